package serve

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/durable"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
)

// base is the disk below an overlay. It does not change.
type base interface {
	Size() int64
	ReadAt(ctx context.Context, p []byte, offset int64) error
	NextRun(ctx context.Context, e extent.Extent) (length int64, zero bool, err error)
}

// Overlay is a writable disk: what was written is in a local file, everything else comes from the disk below. The file holds the bytes
// at their own offsets, and <file>.map says which clusters of 64 KiB it has. Flush adds to the map what is new, after the
// bytes: what was flushed is there after a crash, as on any disk. One process at a time has the file, and always over the same disk.
type Overlay struct {
	below    base
	file     *os.File
	clusters *clusters
	// storage is what makes the file and the map last.
	storage storage

	// taking is held by who takes clusters over, so that nobody's write is covered by what another one copies from below. Reads, and writes
	// to clusters that are in the file, need nobody's leave.
	taking sync.Mutex
	// flushing guards what follows.
	flushing sync.Mutex
	// layout is that of the map's file.
	layout layout
	// lost is why something that was written may be gone. The kernel says so once; what is flushed later would wrongly be believed.
	lost error
}

// storage are the steps of a flush.
type storage struct {
	sync    func(*os.File) error
	writeAt func(f *os.File, p []byte, offset int64) (int, error)
	// replace is durable.Write.
	replace func(path string, data []byte) error
}

// OpenOverlay opens path over below, or makes it. token names the disk below. The file of another disk is errclass.Invalid,
// one that somebody has opened errclass.Conflict, and one that lacks what was written to it errclass.Corrupt.
func OpenOverlay(path, token string, below base) (*Overlay, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open overlay: %w", err)
	}
	o := &Overlay{below: below, file: f, clusters: newClusters(token, below.Size())}
	o.storage = storage{sync: (*os.File).Sync, writeAt: (*os.File).WriteAt, replace: durable.Write}
	if err := o.lockAndLoad(); err != nil {
		return nil, errors.Join(fmt.Errorf("open overlay %s: %w", path, err), o.releaseFile())
	}
	return o, nil
}

func (o *Overlay) mapPath() string { return o.file.Name() + ".map" }

// lockAndLoad keeps other processes from the file, and loads its map or makes it.
func (o *Overlay) lockAndLoad() error {
	if len(o.clusters.token) > maxTokenBytes {
		return fmt.Errorf("%w: a token of %d bytes, at most %d", errclass.Invalid, len(o.clusters.token), maxTokenBytes)
	}
	err := unix.Flock(int(o.file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("%w: another process has it", errclass.Conflict)
	}
	if err != nil {
		return os.NewSyscallError("flock", err)
	}
	info, err := o.file.Stat()
	if err != nil {
		return err
	}
	stored, err := os.ReadFile(o.mapPath())
	switch {
	case err == nil:
		o.layout, err = o.clusters.decodeMap(stored)
	case errors.Is(err, fs.ErrNotExist) && info.Size() > 0:
		err = fmt.Errorf("%w: the file has content and no map beside it, so it is not an overlay", errclass.Invalid)
	case errors.Is(err, fs.ErrNotExist):
		// Before the file has its size: after a crash an overlay without a map would not be one.
		stored, o.layout = o.clusters.encodeMap()
		err = o.storage.replace(o.mapPath(), stored)
	}
	if err != nil {
		return err
	}
	if info.Size() != o.Size() && !o.clusters.isEmpty() {
		return fmt.Errorf("%w: the file has %d bytes, not the disk's %d, and by its map something was written to it", errclass.Corrupt, info.Size(), o.Size())
	}
	return o.file.Truncate(o.Size())
}

// Size is the disk's in bytes.
func (o *Overlay) Size() int64 { return o.below.Size() }

// Flush makes everything durable that was written before it was called.
func (o *Overlay) Flush(context.Context) error {
	o.flushing.Lock()
	defer o.flushing.Unlock()
	if o.lost != nil {
		return o.lost
	}
	u := o.clusters.takeChanges(o.layout) // before the sync, so that the file has what the map will say
	if err := o.storage.sync(o.file); err != nil {
		o.lost = fmt.Errorf("overlay %s has lost what was written: %w", o.file.Name(), err)
		return o.lost
	}
	if u == nil {
		return nil
	}
	if err := o.storeMap(u); err != nil {
		o.clusters.markFresh(u.windows)
		return fmt.Errorf("store the map of overlay %s: %w", o.file.Name(), err)
	}
	o.layout = u.next
	return nil
}

// storeMap makes an update of the map durable. What it leaves if it fails belongs to the map as well; the next one has it again.
func (o *Overlay) storeMap(u *update) error {
	good := o.layout
	o.layout = layout{} // After a failure nobody knows what the kernel has kept of the file: another one is written.
	if u.at == 0 {
		return o.storage.replace(o.mapPath(), u.data)
	}
	f, err := os.OpenFile(o.mapPath(), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	if _, err := o.storage.writeAt(f, u.data, u.at*sectorBytes); err != nil {
		o.layout = good // The file is as it was, and where space is short the next one needs as little.
		return errors.Join(err, f.Close())
	}
	return errors.Join(o.storage.sync(f), f.Close())
}

// Close flushes and closes the file.
func (o *Overlay) Close() error {
	return errors.Join(o.Flush(context.Background()), o.releaseFile())
}

// releaseFile gives the file up at once. Closing it is not enough: a child that this process is starting has it open until it runs.
func (o *Overlay) releaseFile() error {
	_ = unix.Flock(int(o.file.Fd()), unix.LOCK_UN) // It is closed next.
	return o.file.Close()
}
