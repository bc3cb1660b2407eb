package files

import (
	"context"
	"errors"
	"io"
	iofs "io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/repo/object"
	"github.com/kopia/kopia/snapshot"
	"golang.org/x/sys/unix"
)

// batchNames is how many names of a directory are looked at while it is open.
const batchNames = 512

// sourceEntry is a file or directory as kopia's uploader sees it.
type sourceEntry struct {
	u *upload
	// dir is the path of the directory, and name the name in it: "." for the root.
	dir, name string
	mode      iofs.FileMode
	size      int64
	modTime   time.Time
	owner     fs.OwnerInfo
	// doubtful says that the file may have changed since the parent, whatever the rest says.
	doubtful bool
	// links is how many names the inode has, link what they have in common, and holes says that it may have some.
	links uint64
	link  string
	holes bool
}

func (u *upload) entryOf(dir, name string, st *unix.Stat_t) sourceEntry {
	e := sourceEntry{
		u: u, dir: dir, name: name, mode: fileMode(st.Mode), size: st.Size, owner: fs.OwnerInfo{UserID: st.Uid, GroupID: st.Gid},
		doubtful: changeTime(st) >= u.o.TrustedBefore, links: uint64(st.Nlink), holes: mayHaveHoles(st), //nolint:unconvert // another type on other processors
	}
	e.modTime, _ = kopiaTime(st.Mtim)
	if e.links > 1 {
		e.link = linkOf(st, 0)
	}
	return e
}

func (e *sourceEntry) path() string {
	if e.name == "." {
		return e.dir
	}
	return joinPath(e.dir, e.name)
}

// Name implements fs.Entry.
func (e *sourceEntry) Name() string {
	if e.name == "." {
		return treeName
	}
	return EncodeName(e.name)
}

// Mode implements fs.Entry. A doubtful file has a bit that is not stored, and that no file of the parent has: so kopia does not take it
// over.
func (e *sourceEntry) Mode() iofs.FileMode {
	if e.doubtful && !e.mode.IsDir() {
		return e.mode | iofs.ModeTemporary
	}
	return e.mode
}

func (e *sourceEntry) IsDir() bool                 { return e.mode.IsDir() }
func (e *sourceEntry) Size() int64                 { return e.size }
func (e *sourceEntry) ModTime() time.Time          { return e.modTime }
func (e *sourceEntry) Sys() any                    { return nil }
func (e *sourceEntry) Owner() fs.OwnerInfo         { return e.owner }
func (e *sourceEntry) Device() fs.DeviceInfo       { return fs.DeviceInfo{} }
func (e *sourceEntry) LocalFilesystemPath() string { return "" }
func (e *sourceEntry) Close()                      {}

// dirEntry returns the entry of kopia's directory.
func (e *sourceEntry) dirEntry(id object.ID) *snapshot.DirEntry {
	return &snapshot.DirEntry{
		Name: e.Name(), Type: snapshot.EntryTypeFile, Permissions: snapshot.Permissions(e.mode & fs.ModBits), FileSize: e.size,
		ModTime: fs.UTCTimestampFromTime(e.modTime), UserID: e.owner.UserID, GroupID: e.owner.GroupID, ObjectID: id,
	}
}

// sourceDir is a directory.
type sourceDir struct{ sourceEntry }

// Size implements fs.Entry.
func (d *sourceDir) Size() int64 { return 0 }

// SupportsMultipleIterations implements fs.Directory.
func (d *sourceDir) SupportsMultipleIterations() bool { return true }

// Child implements fs.Directory.
func (d *sourceDir) Child(_ context.Context, encoded string) (fs.Entry, error) {
	name, err := DecodeName(encoded)
	if err != nil {
		return nil, err
	}
	var found fs.Entry
	err = d.u.volume.inDir(d.path(), func(fd int) (err error) {
		found, err = d.u.find(fd, d.path(), name)
		return err
	})
	if err == nil && found == nil {
		err = fs.ErrEntryNotFound
	}
	return found, err
}

// Iterate implements fs.Directory. Only names are kept while the uploader is in the directories below, and no descriptor.
func (d *sourceDir) Iterate(context.Context) (fs.DirectoryIterator, error) {
	i := &sourceIterator{d: d}
	err := d.u.volume.inDir(d.path(), func(fd int) (err error) {
		i.names, err = readNames(fd)
		return err
	})
	slices.SortFunc(i.names, strings.Compare)
	return i, err
}

type sourceIterator struct {
	d     *sourceDir
	names []string
	batch []fs.Entry
}

// Next implements fs.DirectoryIterator.
func (i *sourceIterator) Next(ctx context.Context) (fs.Entry, error) {
	for len(i.batch) == 0 {
		if len(i.names) == 0 {
			return nil, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err := i.fillBatch(); err != nil {
			return nil, err
		}
	}
	e := i.batch[0]
	i.batch = i.batch[1:]
	return e, nil
}

func (i *sourceIterator) fillBatch() error {
	n := min(batchNames, len(i.names))
	names := i.names[:n]
	i.names = i.names[n:]
	i.batch = i.batch[:0]
	dir := i.d.path()
	return i.d.u.volume.inDir(dir, func(fd int) error {
		for _, name := range names {
			e, err := i.d.u.find(fd, dir, name)
			if err != nil {
				return err
			}
			if e != nil {
				i.batch = append(i.batch, e)
			}
		}
		return nil
	})
}

// Close implements fs.DirectoryIterator.
func (i *sourceIterator) Close() {}

// find returns what is called name in an open directory; nil if it is not in kopia's directories, or gone.
func (u *upload) find(fd int, dir, name string) (fs.Entry, error) {
	st, err := lstat(fd, name)
	if errors.Is(err, iofs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, &iofs.PathError{Op: "look at", Path: joinPath(dir, name), Err: err}
	}
	e := u.entryOf(dir, name, &st)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return &sourceDir{e}, nil
	case unix.S_IFLNK:
		return &sourceLink{e}, nil
	case unix.S_IFREG:
		if err := checkSize(e.path(), e.size); err != nil {
			return nil, err
		}
		if e.links > 1 || e.holes {
			return &sourceSpecial{sourceFile{e}}, nil
		}
		return &sourceFile{e}, nil
	}
	return nil, nil
}

// sourceLink is a symbolic link.
type sourceLink struct{ sourceEntry }

// Readlink implements fs.Symlink.
func (l *sourceLink) Readlink(context.Context) (target string, err error) {
	err = l.u.volume.inDir(l.dir, func(fd int) (err error) {
		target, err = readLink(fd, l.name)
		return err
	})
	return target, err
}

// Resolve implements fs.Symlink. Nothing that is stored depends on what a link points to.
func (l *sourceLink) Resolve(context.Context) (fs.Entry, error) { return nil, errors.ErrUnsupported }

// sourceFile is a regular file.
type sourceFile struct{ sourceEntry }

// Open implements fs.File.
func (f *sourceFile) Open(context.Context) (fs.Reader, error) {
	file, err := f.u.volume.openFile(f.dir, f.name)
	if err != nil {
		return nil, err
	}
	return &sourceReader{File: file, f: f}, nil
}

// sourceReader counts what is read.
type sourceReader struct {
	*os.File
	f *sourceFile
}

func (r *sourceReader) Read(p []byte) (int, error) {
	n, err := r.File.Read(p)
	r.f.u.addRead(n)
	return n, err
}

// WriteTo keeps a copier from reading past Read.
func (r *sourceReader) WriteTo(w io.Writer) (int64, error) {
	return io.Copy(w, struct{ io.Reader }{r})
}

// Entry implements fs.Reader.
func (r *sourceReader) Entry() (fs.Entry, error) { return r.f, nil }

// sourceSpecial is a regular file with holes or several names, which this package stores itself: kopia would read the holes, and
// the file once for each of its names.
type sourceSpecial struct{ sourceFile }

// DirEntryOrNil implements snapshot.HasDirEntryOrNil. The uploader calls it before it reads the file, and takes what it returns.
func (f *sourceSpecial) DirEntryOrNil(ctx context.Context) (*snapshot.DirEntry, error) {
	id, err := f.u.storeOnce(ctx, &f.sourceFile)
	if err != nil {
		return nil, err
	}
	return f.dirEntry(id), nil
}

var (
	_ fs.Directory              = (*sourceDir)(nil)
	_ fs.Symlink                = (*sourceLink)(nil)
	_ fs.File                   = (*sourceSpecial)(nil)
	_ snapshot.HasDirEntryOrNil = (*sourceSpecial)(nil)
)
