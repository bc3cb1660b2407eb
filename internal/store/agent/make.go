package agent

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/sparse"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/diskset"
	"github.com/varvebackup/varve/internal/store/handover"
	"github.com/varvebackup/varve/internal/store/names"
	"github.com/varvebackup/varve/internal/store/peer"
)

const (
	// parallelPieces is how many pieces are read at once.
	parallelPieces = 8
	// pieceTimeout is how long one may take.
	pieceTimeout = time.Minute
	// zeroUnit is what is left out of a copy if it is zero. With single blocks of the file system a copy would have so many
	// extents that each clone of it takes seconds.
	zeroUnit = 64 << 10
)

// step tells a test how far a job is.
func (a *agent) step(name string) error {
	if a.reached == nil {
		return nil
	}
	return a.reached(name)
}

// createSource makes the head into which the source of an image writes.
func createSource(ctx context.Context, d disk.Disk, uuid string) error {
	return d.Create(ctx, names.SourceHead(uuid), disk.Source{
		UID: disk.UID(names.SourceHandle(uuid)), Volume: disk.UID(uuid), Bytes: handover.DeviceBytes,
	})
}

// sealHead makes an image of a head. The seal says how large it is, and what it must have.
func (a *agent) sealHead(
	ctx context.Context, d disk.Disk, head disk.Name, image *longhornv1.BackingImage, seal disk.Seal, j *job,
) error {
	j.progress.Store(99)
	if err := a.step("seal"); err != nil {
		return err
	}
	seal.UID, seal.Kind = disk.UID(image.Status.UUID), disk.KindImage
	if err := d.Snapshot(ctx, head, names.Image(image.Name, image.Status.UUID), seal); err != nil {
		return err
	}
	return a.step("sealed")
}

// sealSource makes an image of the head in which its first copy was made, and deletes the head.
func (a *agent) sealSource(
	ctx context.Context, d disk.Disk, image *longhornv1.BackingImage, seal disk.Seal, j *job,
) error {
	head := names.SourceHead(image.Status.UUID)
	if err := a.sealHead(ctx, d, head, image, seal, j); err != nil {
		return err
	}
	if err := d.Delete(ctx, head); err != nil && !errors.Is(err, errclass.NotFound) {
		return err // the image is there, so that the next look deletes the head
	}
	return a.step("head deleted")
}

// pieceReader is a copy of an image that another one is made from.
type pieceReader struct {
	size     int64
	checksum string
	pieces   []disk.PieceHash
	// known says that the pieces are those of the data with the checksum.
	known  bool
	readAt func(ctx context.Context, p []byte, offset int64) error
	close  func() error
	// noteDamage is told what is wrong with the copy. It may be nil: the store of the copy finds it out by itself.
	noteDamage func(why string)
}

// checkPiece compares a piece that was read with its hash.
func (r *pieceReader) checkPiece(p []byte, i int) error {
	if sha256.Sum256(p) == r.pieces[i] {
		return nil
	}
	if r.noteDamage != nil {
		r.noteDamage(fmt.Sprintf("MiB %d is not what was sealed", i))
	}
	return fmt.Errorf("%w: MiB %d of the other copy is not what was sealed", errclass.Corrupt, i)
}

// openCopy opens a copy of an image that is ready. All that there are take turns, those on this node first.
func (a *agent) openCopy(
	ctx context.Context, image *longhornv1.BackingImage, except string, turn int,
) (*pieceReader, error) {
	candidates := readyDisks(image, except)
	slices.Sort(candidates)
	var local []diskset.Disk
	for _, uuid := range candidates {
		if d, err := a.Disks.Find(disk.UID(uuid)); err == nil {
			local = append(local, d)
		}
	}
	if turn == 0 && len(local) > 0 { // which needs nothing of the API server
		return a.openLocal(ctx, local[0], image)
	}
	var managers longhornv1.InstanceManagerList
	if err := a.live.List(ctx, &managers, client.InNamespace(a.Namespace)); err != nil {
		return nil, fmt.Errorf("find the stores of the copies: %w", err)
	}
	type place struct{ ip, diskUUID string }
	var places []place
	for _, uuid := range candidates {
		for _, m := range managers.Items {
			c, reported := m.Status.BackingImages[copyKey{uuid, image.Status.UUID}.String()]
			if reported && c.State == longhornv1.StateReady && m.Status.IP != "" && m.Name != a.Node &&
				m.Status.CurrentState == longhornv1.ManagerRunning {
				places = append(places, place{m.Status.IP, uuid})
			}
		}
	}
	if len(places)+len(local) == 0 {
		return nil, errclass.Errorf(errclass.Transient, "no store that has a copy has reported within %s (disks %v)",
			longhornv1.ReportTimeout, candidates)
	}
	turn %= len(places) + len(local)
	if turn < len(local) {
		return a.openLocal(ctx, local[turn], image)
	}
	from := places[turn-len(local)]
	remote, err := peer.OpenImage(ctx, from.ip, a.Port, a.TLSDir, peer.Copy{
		Image: image.Name, UUID: image.Status.UUID, DiskUUID: from.diskUUID,
	})
	if err != nil {
		return nil, err
	}
	return &pieceReader{
		size: remote.Bytes, checksum: remote.Checksum, pieces: remote.Pieces, readAt: remote.ReadAt, close: remote.Close,
	}, nil
}

// openLocal opens a copy on a disk of this node.
func (a *agent) openLocal(
	ctx context.Context, d diskset.Disk, image *longhornv1.BackingImage,
) (_ *pieceReader, err error) {
	noteDamage := func(why string) {
		c := peer.Copy{Image: image.Name, UUID: image.Status.UUID, DiskUUID: string(d.UUID)}
		a.NoteDamage(context.WithoutCancel(ctx), c, why)
	}
	name := names.Image(image.Name, image.Status.UUID)
	lease, err := d.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, lease.Close())
		}
	}()
	objects, err := d.List(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(objects, func(o disk.Object) bool {
		return o.Name == name && string(o.UID) == image.Status.UUID && o.State == disk.StateReady
	})
	if i < 0 {
		return nil, errclass.Errorf(errclass.NotFound, "%q is not the image %s", name, image.Status.UUID)
	}
	pieces, err := d.Pieces(ctx, name)
	if errors.Is(err, errclass.Corrupt) {
		noteDamage(err.Error())
	}
	if err != nil {
		return nil, err
	}
	f, err := os.Open(lease.Path())
	if err != nil {
		return nil, err
	}
	return &pieceReader{
		size: objects[i].Bytes, checksum: objects[i].Checksum, pieces: pieces, noteDamage: noteDamage,
		readAt: func(ctx context.Context, p []byte, offset int64) error {
			_, err := f.ReadAt(p, offset)
			return errors.Join(err, ctx.Err())
		},
		close: func() error { return errors.Join(f.Close(), lease.Close()) },
	}, nil
}

// syncCopy reads an image from another disk, and seals it. What an earlier attempt has read is not read again.
func (a *agent) syncCopy(
	ctx context.Context, d disk.Disk, image *longhornv1.BackingImage, turn int, j *job,
) (err error) {
	var own string
	if open, ok := d.(*openDisk); ok {
		own = string(open.UUID)
	}
	from, err := a.openCopy(ctx, image, own, turn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.close()) }()
	if from.checksum != image.Status.Checksum {
		return fmt.Errorf("%w: the other copy has the checksum %.16s…, and the image %.16s…", errclass.Corrupt,
			from.checksum, image.Status.Checksum)
	}
	sum := disk.SumPieces(from.pieces)
	switch image.Status.PiecesChecksum {
	case sum:
		from.known = true
	case "": // only the checksum tells
	default:
		err := errclass.Errorf(errclass.Corrupt,
			"the hashes of the other copy are those of %.16s…, and the image's of %.16s…", sum, image.Status.PiecesChecksum)
		if from.noteDamage != nil {
			from.noteDamage(err.Error())
		}
		return err
	}
	return copyAndSeal(ctx, d, peer.Copy{Image: image.Name, UUID: image.Status.UUID}, from, j, a.step)
}

// CopyImage makes the copy of an image on a disk from the one that another store has leased, as the agent of a disk does
// that an image wants, but without an API server, which says that the hashes are the image's. Benchmarks measure it.
func CopyImage(ctx context.Context, to disk.Disk, c peer.Copy, from *peer.Image) error {
	reader := &pieceReader{
		size: from.Bytes, checksum: from.Checksum, pieces: from.Pieces, known: true, readAt: from.ReadAt,
	}
	return copyAndSeal(ctx, to, c, reader, &job{}, func(string) error { return nil })
}

// copyAndSeal fills a head with what a copy has, and seals it as the image.
func copyAndSeal(
	ctx context.Context, d disk.Disk, image peer.Copy, from *pieceReader, j *job, step func(string) error,
) error {
	head := names.Copy(image.UUID)
	err := d.Create(ctx, head, disk.Source{
		UID: disk.UID("copy-" + image.UUID), Volume: disk.UID(image.UUID), Bytes: from.size,
	})
	if err != nil {
		return err
	}
	if err := step("copy created"); err != nil {
		return err
	}
	c := &copying{from: from, disk: d, head: head, job: j, step: step}
	if err := c.run(ctx); err != nil {
		return err
	}
	if err := step("copied"); err != nil {
		return err
	}
	seal := disk.Seal{UID: disk.UID(image.UUID), Kind: disk.KindImage, Checksum: from.checksum}
	if from.known {
		seal.Pieces = from.pieces
	}
	err = d.Snapshot(ctx, head, names.Image(image.Image, image.UUID), seal)
	if errors.Is(err, errclass.Corrupt) { // although each piece had its hash: begin again
		return errors.Join(err, d.Delete(ctx, head))
	}
	if err != nil {
		return err
	}
	if err := step("copy sealed"); err != nil {
		return err
	}
	return d.Delete(ctx, head)
}

// copying is an attempt to fill the head of a copy.
type copying struct {
	from *pieceReader
	disk disk.Disk
	head disk.Name
	job  *job
	step func(string) error

	there   []bool // pieces of which an earlier attempt has written something
	done    atomic.Int64
	zero    [2]disk.PieceHash // of a whole piece of zeroes, and of the last one
	buffers sync.Pool
}

// run reads the pieces that are missing.
func (c *copying) run(ctx context.Context) error {
	last := c.from.size - int64(len(c.from.pieces)-1)*disk.PieceBytes
	zeroes := make([]byte, disk.PieceBytes)
	c.zero = [2]disk.PieceHash{sha256.Sum256(zeroes), sha256.Sum256(zeroes[:last])}
	c.buffers.New = func() any { return new([disk.PieceBytes]byte) }
	c.there = make([]bool, len(c.from.pieces))
	for e, err := range c.disk.Changed(ctx, c.head, "") {
		if err != nil {
			return err
		}
		for i := e.Offset / disk.PieceBytes; i*disk.PieceBytes < e.End(); i++ {
			c.there[i] = true
		}
	}
	return withFile(ctx, c.disk, c.head, os.O_RDWR, func(f *os.File) error {
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(parallelPieces)
		for i := range c.from.pieces {
			if ctx.Err() != nil {
				break
			}
			group.Go(func() error { return c.copyPiece(ctx, f, i) })
		}
		return errors.Join(group.Wait(), f.Sync())
	})
}

// copyPiece reads a piece, unless it is there, and compares it with its hash before it is written.
func (c *copying) copyPiece(ctx context.Context, to *os.File, i int) error {
	offset := int64(i) * disk.PieceBytes
	buffer := c.buffers.Get().(*[disk.PieceBytes]byte)
	defer c.buffers.Put(buffer)
	p := buffer[:min(disk.PieceBytes, c.from.size-offset)]
	isZero := c.from.pieces[i] == c.zero[0]
	if i == len(c.from.pieces)-1 {
		isZero = c.from.pieces[i] == c.zero[1]
	}
	defer c.countPiece()
	if isZero && !c.there[i] {
		return nil
	}
	if c.there[i] {
		if _, err := to.ReadAt(p, offset); err != nil {
			return err
		}
		if sha256.Sum256(p) == c.from.pieces[i] {
			return nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, pieceTimeout)
	defer cancel()
	if err := c.from.readAt(ctx, p, offset); err != nil {
		return fmt.Errorf("read MiB %d of the other copy: %w", i, err)
	}
	if err := c.from.checkPiece(p, i); err != nil {
		return err
	}
	if err := writePiece(to, p, offset, c.there[i]); err != nil {
		return err
	}
	c.job.moved.Store(true)
	return c.step("piece")
}

// writePiece writes what is not zero of a piece, or all of it if something else is there.
func writePiece(to *os.File, p []byte, offset int64, all bool) error {
	begin := 0
	flush := func(end int) error {
		if begin == end {
			return nil
		}
		_, err := to.WriteAt(p[begin:end], offset+int64(begin))
		return err
	}
	for at := 0; at < len(p); at += zeroUnit {
		end := min(at+zeroUnit, len(p))
		if all || !sparse.IsZero(p[at:end]) {
			continue
		}
		if err := flush(at); err != nil {
			return err
		}
		begin = end
	}
	return flush(len(p))
}

// countPiece counts a piece that is there now. 100 percent is a copy that is sealed.
func (c *copying) countPiece() {
	c.job.progress.Store(int32(min(99, c.done.Add(1)*100/int64(len(c.from.pieces)))))
}
