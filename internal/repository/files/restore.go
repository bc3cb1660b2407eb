package files

import (
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"sync"

	"github.com/kopia/kopia/repo/object"
	"github.com/kopia/kopia/snapshot"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/table"
)

// queuedJobs is how many files wait for a writer.
const queuedJobs = 256

// RestoreOptions are for Restore.
type RestoreOptions struct {
	// ID is the restore point's.
	ID string
	// Root is the tree, and Attributes the object with its attributes.
	Root       *snapshot.DirEntry
	Attributes object.ID
	Parallel   int
	// Progress is called with what was done since the call before, from several goroutines.
	Progress func(doneFiles, doneBytes, writtenBytes int64)
}

// restore is one call of Restore.
type restore struct {
	o       *RestoreOptions
	r       table.ContentReader
	volume  *volume
	staging *staging
	records *attributesReader
	jobs    chan *fileJob
	buffers sync.Pool

	mu sync.Mutex
	// atWork holds the inodes with several names that a writer is restoring.
	atWork map[string]chan struct{}
}

// restoreDir is a directory that is not finished. Its parents are kept by it.
type restoreDir struct {
	parent *restoreDir
	// path has the names as they are, and encoded has them encoded.
	path, encoded string
	entry         *snapshot.DirEntry

	mu     sync.Mutex
	record *record
	// left counts what is not finished in the directory, with one for its reading.
	left int
}

// fileJob is a file, symbolic link or special file to restore.
type fileJob struct {
	dir    *restoreDir
	name   string
	entry  *snapshot.DirEntry // nil for a special file
	record *record
}

// Restore writes a tree into dir.
func Restore(ctx context.Context, cr table.ContentReader, dir string, o RestoreOptions) (err error) {
	v, err := openVolume(dir)
	if err != nil {
		return err
	}
	defer func() { err = explainFull(dir, errors.Join(err, v.Close())) }()
	r := &restore{o: &o, r: cr, volume: v, jobs: make(chan *fileJob, queuedJobs), atWork: map[string]chan struct{}{}}
	r.buffers.New = func() any { b := make([]byte, writeBytes); return &b }
	attributes, err := table.OpenObject(ctx, cr, o.Attributes)
	if err != nil {
		return err
	}
	defer attributes.Close() //nolint:errcheck // it only reads
	if r.records, err = newAttributesReader(attributes); err != nil {
		return table.WrapReadError("read "+Name, err)
	}
	if r.staging, err = beginStaging(v, o.ID); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.staging.Close()) }()
	root := &restoreDir{path: rootPath, encoded: rootPath, entry: o.Root, left: 1}
	group, inner := errgroup.WithContext(ctx)
	for range o.Parallel {
		group.Go(func() error { return r.writeFiles(inner) })
	}
	group.Go(func() error {
		defer close(r.jobs)
		return r.readDir(inner, root)
	})
	if err := group.Wait(); err != nil {
		return err
	}
	return r.end(root)
}

// explainFull says what to do about a full file system. Reading from a repository needs no room, so that it is the target's.
func explainFull(dir string, err error) error {
	if errclass.IsFull(err) {
		return errclass.Errorf(errclass.ErrTargetFull, "directory %s: no space is left: make some and continue: %w",
			dir, err)
	}
	return err
}

// readDir reads a directory of the tree, makes the directories in it, and queues everything else.
func (r *restore) readDir(ctx context.Context, d *restoreDir) error {
	err := EachEntry(ctx, r.r, d.entry.ObjectID, func(e *snapshot.DirEntry) error {
		name, err := DecodeName(e.Name)
		if err != nil {
			return err
		}
		if isDir(e) {
			return r.enterDir(ctx, d, name, e)
		}
		record, err := r.records.take(joinPath(d.encoded, e.Name), false, r.queueSpecial(ctx, d))
		if err != nil {
			return err
		}
		return r.queue(ctx, &fileJob{dir: d, name: name, entry: e, record: record})
	})
	if err != nil {
		return err
	}
	record, err := r.records.take(d.encoded, true, r.queueSpecial(ctx, d))
	if err != nil {
		return err
	}
	d.mu.Lock()
	d.record = record
	d.mu.Unlock()
	return r.release(d)
}

func (r *restore) enterDir(ctx context.Context, parent *restoreDir, name string, e *snapshot.DirEntry) error {
	d := &restoreDir{parent: parent, path: joinPath(parent.path, name), encoded: joinPath(parent.encoded, e.Name), entry: e, left: 1}
	err := r.volume.inDir(parent.path, func(fd int) error {
		err := unix.Mkdirat(fd, name, 0o700)
		if errors.Is(err, iofs.ErrExist) {
			return nil
		}
		return err
	})
	if err == nil {
		err = r.volume.inDir(d.path, openUp)
	}
	if err != nil {
		return fmt.Errorf("make directory %s: %w", d.path, err)
	}
	parent.add()
	return r.readDir(ctx, d)
}

// openUp makes a directory writable, and keeps what is made in it from inheriting anything.
func openUp(fd int) error {
	if err := unix.Fchmod(fd, 0o700); err != nil {
		return err
	}
	err := unix.Fremovexattr(fd, "system.posix_acl_default")
	if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	return err
}

// queueSpecial returns what to do with records that belong to no entry of the directory d: those of its pipes and devices are queued.
func (r *restore) queueSpecial(ctx context.Context, d *restoreDir) func(*record) error {
	return func(a *record) error {
		if a.Special == nil || parentOf(a.Path) != d.encoded {
			return nil // It vanished while the backup ran.
		}
		name, err := DecodeName(baseOf(a.Path))
		if err != nil {
			return err
		}
		return r.queue(ctx, &fileJob{dir: d, name: name, record: a})
	}
}

func (r *restore) queue(ctx context.Context, j *fileJob) error {
	j.dir.add()
	select {
	case r.jobs <- j:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (d *restoreDir) add() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.left++
}

// release notes that something in the directory is finished. If it was the last, the directory gets its owner, permissions and
// attributes, and is finished, too. The root gets them at the very end.
func (r *restore) release(d *restoreDir) error {
	for d.parent != nil {
		d.mu.Lock()
		d.left--
		finished := d.left == 0
		d.mu.Unlock()
		if !finished {
			return nil
		}
		if err := r.volume.inDir(d.parent.path, func(fd int) error { return setMetadata(fd, baseOf(d.path), metadataOf(d.entry, d.record)) }); err != nil {
			return fmt.Errorf("directory %s: %w", d.path, err)
		}
		d = d.parent
	}
	return nil
}

func (r *restore) writeFiles(ctx context.Context) error {
	for j := range r.jobs {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := r.writeFile(ctx, j); err != nil {
			return fmt.Errorf("%s: %w", joinPath(j.dir.path, j.name), err)
		}
		if err := r.release(j.dir); err != nil {
			return err
		}
	}
	return nil
}

// writeFile restores what is not a directory.
func (r *restore) writeFile(ctx context.Context, j *fileJob) error {
	var written int64
	err := r.volume.inDir(j.dir.path, func(fd int) error {
		there, err := r.isRestored(ctx, fd, j)
		if err != nil || there {
			return err
		}
		if j.record.Link != "" {
			written, err = r.writeLinked(ctx, fd, j)
			return err
		}
		part, n, err := r.writePart(ctx, j)
		if err != nil {
			return err
		}
		written = n
		return unix.Renameat(r.staging.fd, part, fd, j.name)
	})
	if err == nil && j.entry != nil {
		r.o.Progress(1, j.entry.FileSize, written)
	}
	return err
}

// writeLinked restores one of the names of an inode. The first that comes makes the inode, and keeps another name for it until the end.
func (r *restore) writeLinked(ctx context.Context, fd int, j *fileJob) (written int64, err error) {
	kept := linkPrefix + j.record.Link
	done := r.beginLinked(kept)
	if done != nil {
		defer func() {
			r.mu.Lock()
			delete(r.atWork, kept)
			r.mu.Unlock()
			close(done)
		}()
		_, err := lstat(r.staging.fd, kept)
		if errors.Is(err, iofs.ErrNotExist) {
			var part string
			if part, written, err = r.writePart(ctx, j); err == nil {
				err = unix.Renameat(r.staging.fd, part, r.staging.fd, kept)
			}
		}
		if err != nil {
			return written, err
		}
	}
	if err := unix.Unlinkat(fd, j.name, 0); err != nil && !errors.Is(err, iofs.ErrNotExist) {
		return written, err
	}
	err = unix.Linkat(r.staging.fd, kept, fd, j.name, 0)
	if errors.Is(err, iofs.ErrNotExist) {
		return written, fmt.Errorf("%w: another name of the same file could not be restored", errclass.Conflict)
	}
	return written, err
}

// beginLinked returns a channel to close when the inode is there, or waits until it is, and returns nil.
func (r *restore) beginLinked(kept string) chan struct{} {
	r.mu.Lock()
	running := r.atWork[kept]
	if running == nil {
		done := make(chan struct{})
		r.atWork[kept] = done
		r.mu.Unlock()
		return done
	}
	r.mu.Unlock()
	<-running
	return nil
}

// end makes everything durable, and then removes what would let the restore be continued.
func (r *restore) end(root *restoreDir) error {
	m := metadataOf(root.entry, root.record)
	if err := r.volume.inDir(rootPath, func(fd int) error { return setMetadata(fd, ".", m) }); err != nil {
		return fmt.Errorf("the root: %w", err)
	}
	if err := r.volume.sync(); err != nil {
		return err
	}
	if err := r.staging.remove(); err != nil {
		return err
	}
	// Removing it has changed the root's time of modification.
	if err := r.volume.inDir(rootPath, func(fd int) error { return errors.Join(setTime(fd, ".", m.mtime), r.staging.removeMarker(fd)) }); err != nil {
		return fmt.Errorf("the root: %w", err)
	}
	return r.volume.sync()
}
