// Package reflink keeps a disk's images and volumes as files of a directory on XFS or btrfs, and shares their blocks by
// reflinks.
//
//	varve-disk.json                                            format version, UUID
//	varve-reserve                                              blocks that a deletion on a full disk takes
//	images/<image UID>/{meta.json, data, hashes}               hashes: SHA-256 of each MiB, and the SHA-512 of all
//	images/<image UID>/damaged                                 why, if the data was found to be other than it was
//	volumes/<volume UID>/<head UID>/{meta.json, head, snapshots/<snapshot UID>}
//
// An object exists if and only if a meta.json has it. A meta.json is replaced by a rename, or comes and goes with its
// directory by one. Everything else is written, and made durable, under a name that ends with .new before that, or
// removed after it. So a crash leaves the old state or the new one, and files that nothing refers to, which Open
// removes. Sealed data is immutable (chattr +i), even for root.
//
// A Disk is safe for concurrent use. Its mutex is held for renames, never while data is cloned or read.
package reflink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/durable"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
)

const (
	headerFile   = "varve-disk.json"
	metadataFile = "meta.json"
	hashesFile   = "hashes"
	damagedFile  = "damaged"
	imagesDir    = "images"
	volumesDir   = "volumes"
	snapshotsDir = "snapshots"
	newSuffix    = ".new"  // is being made
	goneSuffix   = ".gone" // is deleted, and may still have files
)

// DefaultMaxExtents is how many extents a head may have that is cloned while it is in use. Its reads and writes stand
// still meanwhile, for 30 µs of processor time an extent or more: about 2 s. What is sealed, and a head that nobody else
// has open, has no limit.
const DefaultMaxExtents = 1 << 16

// Options are what a Disk may be told.
type Options struct {
	MaxExtents int // 0: DefaultMaxExtents
}

// Disk is a directory on a file system with reflinks. It implements [disk.Disk].
type Disk struct {
	dir        string
	header     header
	lock       *os.File
	maxExtents int
	recovered  []string
	// reached is called after each durable step of a change, and may fail it. Tests crash there.
	reached func(step string) error

	mu      sync.Mutex
	groups  map[string]metadata    // by directory: images/<UID>, volumes/<UID>/<UID>
	damaged map[disk.UID]bool      // objects whose data was not intact at Open, or later
	pending map[disk.UID]disk.Name // objects that are being made
	cloning map[disk.UID]disk.UID  // by a head that is being made: what it is a clone of
	sealing map[disk.UID]bool      // heads of which a snapshot or an image is being made
	// exclusive are heads that nobody may lease until the data of an object that is being made of them is taken.
	exclusive map[disk.UID]bool
	leases    map[disk.UID]int
	closed    bool // by CloseUnused
}

var _ disk.Disk = (*Disk)(nil)

// located is an object and the directory that holds it.
type located struct {
	entry
	group string
}

// Format makes an empty directory a disk. It succeeds if the directory is the disk with this UUID already.
func Format(dir string, uuid disk.UID) error {
	if err := uuid.Validate(); err != nil {
		return fmt.Errorf("format disk %s: %w", dir, err)
	}
	h, err := readHeader(dir)
	switch {
	case err == nil && h.UUID == uuid:
		return nil
	case err == nil:
		return errclass.Errorf(errclass.Conflict, "format disk %s: it is the disk %s already", dir, h.UUID)
	case !errors.Is(err, errclass.NotFound):
		return err
	}
	if err := checkEmpty(dir); err != nil {
		return fmt.Errorf("format disk %s: %w", dir, err)
	}
	data, err := encodeIndented(header{Format: formatVersion, UUID: uuid})
	err = errors.Join(err, makeDirectory(filepath.Join(dir, imagesDir)), makeDirectory(filepath.Join(dir, volumesDir)))
	if err == nil {
		err = durable.Write(filepath.Join(dir, headerFile), data)
	}
	if err != nil {
		return fmt.Errorf("format disk %s: %w", dir, describeFull(err))
	}
	return nil
}

// checkEmpty returns Conflict if a directory has more than a crash of Format leaves.
func checkEmpty(dir string) error {
	for _, sub := range []string{"", imagesDir, volumesDir} {
		entries, err := os.ReadDir(filepath.Join(dir, sub))
		if err != nil && (sub == "" || !errors.Is(err, os.ErrNotExist)) {
			return err
		}
		for _, e := range entries {
			name := e.Name()
			if sub != "" || (name != imagesDir && name != volumesDir && !strings.HasPrefix(name, headerFile+".")) {
				return errclass.Errorf(errclass.Conflict, "%s is there: use an empty directory", filepath.Join(dir, sub, name))
			}
		}
	}
	return nil
}

func readHeader(dir string) (header, error) {
	data, err := os.ReadFile(filepath.Join(dir, headerFile))
	if errors.Is(err, os.ErrNotExist) {
		return header{}, errclass.Errorf(errclass.NotFound, "%s is not a disk of Varve: %s is missing", dir, headerFile)
	}
	if err != nil {
		return header{}, err
	}
	var h header
	if err := decodeVersioned(data, &h); err != nil {
		return header{}, fmt.Errorf("disk %s: read %s: %w", dir, headerFile, err)
	}
	if err := h.UUID.Validate(); err != nil {
		return header{}, fmt.Errorf("%w: disk %s: %s: %w", errclass.Corrupt, dir, headerFile, err)
	}
	return h, nil
}

// Open opens a disk for this process alone, and removes what a crash has left. The error has class NotFound if the
// directory is not a disk, Invalid if its file system cannot reflink or a newer version wrote it, and Conflict if another
// process uses it.
func Open(ctx context.Context, dir string, o Options) (_ *Disk, err error) {
	h, err := readHeader(dir)
	if err != nil {
		return nil, err
	}
	lock, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("open disk %s: %w", dir, errors.Join(err, lock.Close()))
		}
	}()
	err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, errclass.Errorf(errclass.Conflict, "another process uses it: end that one first")
	}
	if err == nil {
		err = checkFileSystem(dir)
	}
	if err != nil && !errclass.IsFull(err) { // a full disk must be opened, so that something on it can be deleted
		return nil, err
	}
	d := &Disk{
		dir: dir, header: h, lock: lock, maxExtents: cmp.Or(o.MaxExtents, DefaultMaxExtents),
		groups: map[string]metadata{}, damaged: map[disk.UID]bool{}, pending: map[disk.UID]disk.Name{},
		cloning: map[disk.UID]disk.UID{}, sealing: map[disk.UID]bool{}, exclusive: map[disk.UID]bool{},
		leases: map[disk.UID]int{},
	}
	if err := d.recoverState(ctx); err != nil {
		return nil, err
	}
	if err := d.fillReserve(); err != nil {
		d.recovered = append(d.recovered, err.Error())
	}
	return d, nil
}

// ReadUUID returns the UUID of the disk that a directory is. The error has class NotFound if it is none.
func ReadUUID(dir string) (disk.UID, error) {
	h, err := readHeader(dir)
	return h.UUID, err
}

// TouchDevice reads from the device of a disk's file system, past the page cache. It returns when the device has
// answered, whatever the answer is. Where a file system cannot read past its cache, it returns at once.
func TouchDevice(dir string) {
	f, err := os.OpenFile(filepath.Join(dir, headerFile), os.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return // the next reader of the file reports it
	}
	// Direct I/O needs an aligned buffer.
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err == nil {
		_, _ = f.Read(page)   // only the time that it takes is of interest
		_ = unix.Munmap(page) // of what was just mapped
	}
	_ = f.Close() // nothing was written
}

// CheckDirectory returns an error of class Invalid if a disk cannot be in a directory, because its file system is neither
// XFS with reflinks nor btrfs. It writes a file to find that out, and removes it.
func CheckDirectory(dir string) error {
	if err := checkFileSystem(dir); err != nil {
		return fmt.Errorf("check %s: %w", dir, err)
	}
	return nil
}

// UUID returns the disk's UUID.
func (d *Disk) UUID() disk.UID { return d.header.UUID }

// Recovered says what Open found beside the objects: what it removed, and what it left alone because it cannot be read.
func (d *Disk) Recovered() []string { return slices.Clone(d.recovered) }

// CloseUnused closes the disk if nobody uses an object of it, and returns Conflict otherwise. Every later call fails
// with class Transient: what a closed disk holds is not known.
func (d *Disk) CloseUnused() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if used := len(d.leases) + len(d.pending); used > 0 {
		return errclass.Errorf(errclass.Conflict, "close disk %s: %d objects on it are in use", d.dir, used)
	}
	if d.closed {
		return nil
	}
	d.closed = true
	return d.Close()
}

// checkOpen returns an error after CloseUnused. The caller has the mutex.
func (d *Disk) checkOpen(ctx context.Context) error {
	if d.closed {
		return errclass.Errorf(errclass.Transient, "disk %s is closed, because it is no longer a disk of the node", d.dir)
	}
	return ctx.Err()
}

// Close ends the use of the disk by this process. No call may be under way.
func (d *Disk) Close() error {
	// A program that this process starts at this moment has the file, too, so that closing it would not be enough.
	return errors.Join(unix.Flock(int(d.lock.Fd()), unix.LOCK_UN), d.lock.Close())
}

// List implements [disk.Disk].
func (d *Disk) List(ctx context.Context) ([]disk.Object, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.checkOpen(ctx); err != nil {
		return nil, err
	}
	var all []disk.Object
	for o := range d.allObjects() {
		all = append(all, d.describe(o))
	}
	slices.SortFunc(all, func(a, b disk.Object) int { return cmp.Compare(a.Name, b.Name) })
	return all, nil
}

// Usage implements [disk.Disk].
func (d *Disk) Usage(ctx context.Context) (disk.Usage, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.checkOpen(ctx); err != nil {
		return disk.Usage{}, err
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(d.lock.Fd()), &fs); err != nil {
		return disk.Usage{}, fmt.Errorf("read the usage of disk %s: %w", d.dir, err)
	}
	u := disk.Usage{Capacity: int64(fs.Blocks) * fs.Frsize, Available: int64(fs.Bavail) * fs.Frsize}
	for o := range d.allObjects() {
		if o.Kind == disk.KindHead {
			u.Provisioned += o.Bytes
		}
	}
	return u, nil
}

// reach is called after each durable step of a change.
func (d *Disk) reach(step string) error {
	if d.reached == nil {
		return nil
	}
	return d.reached(step)
}
