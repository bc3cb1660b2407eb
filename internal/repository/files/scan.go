package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/errclass"
)

// Totals is what a tree consists of.
type Totals struct {
	Files, Bytes                             int64
	Directories, Symlinks, Specials, Sockets int64
	// SymlinkBytes is the length of what symbolic links point to.
	SymlinkBytes int64
	// Changed is the latest time of a change of anything (ctime), in nanoseconds since 1970.
	Changed int64
}

// Scan walks the tree in dir, counts, and writes its attributes. It calls progress for each directory.
func Scan(ctx context.Context, dir string, to io.Writer, progress func(Totals)) (Totals, error) {
	v, err := openVolume(dir)
	if err != nil {
		return Totals{}, err
	}
	w, err := newAttributesWriter(to)
	s := &scanner{volume: v, attributes: w, progress: progress}
	if err == nil {
		err = v.inDir(rootPath, func(fd int) error { return s.readDevice(fd) })
	}
	if err == nil {
		err = s.scanDir(ctx, rootPath)
	}
	return s.totals, errors.Join(err, v.Close())
}

type scanner struct {
	*volume
	device     uint64
	attributes *attributesWriter
	progress   func(Totals)
	totals     Totals
}

func (s *scanner) readDevice(fd int) error {
	st, err := lstat(fd, ".")
	s.device = uint64(st.Dev) //nolint:unconvert // another type on other processors
	return err
}

// scanDir scans a directory: what is in its directories, what else is in it, and then itself.
func (s *scanner) scanDir(ctx context.Context, dir string) error {
	var dirs []string
	var records []*record
	var own *record
	err := s.inDir(dir, func(fd int) (err error) {
		if own, err = s.examine(fd, dir, "."); err != nil {
			return err
		}
		names, err := readNames(fd)
		if err != nil {
			return &fs.PathError{Op: "read", Path: dir, Err: err}
		}
		for _, name := range names {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			st, err := lstat(fd, name)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
				dirs = append(dirs, joinPath(dir, name))
				continue
			}
			r, err := s.examine(fd, dir, name)
			if err != nil {
				return err
			}
			if r != nil && !r.isEmpty() {
				records = append(records, r)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.progress(s.totals)
	slices.SortFunc(dirs, func(a, b string) int { return strings.Compare(encodePath(a), encodePath(b)) })
	for _, d := range dirs {
		if err := s.scanDir(ctx, d); err != nil {
			return err
		}
	}
	slices.SortFunc(records, func(a, b *record) int { return strings.Compare(a.Path, b.Path) })
	for _, r := range records {
		if err := s.attributes.write(r); err != nil {
			return err
		}
	}
	if own.isEmpty() {
		return nil
	}
	return s.attributes.write(own)
}

// examine counts what is called name in the open directory dir, and returns its record; nil if it is left out.
func (s *scanner) examine(fd int, dir, name string) (*record, error) {
	path := dir
	if name != "." {
		path = joinPath(dir, name)
	}
	st, err := lstat(fd, name)
	if err != nil {
		return nil, &fs.PathError{Op: "look at", Path: path, Err: err}
	}
	r := &record{Path: encodePath(path), Dir: st.Mode&unix.S_IFMT == unix.S_IFDIR}
	if !s.count(&st, r) {
		return nil, nil
	}
	s.totals.Changed = max(s.totals.Changed, changeTime(&st))
	if _, exact := kopiaTime(st.Mtim); !exact {
		r.Mtime = &[2]int64{st.Mtim.Sec, st.Mtim.Nsec}
	}
	if !r.Dir && st.Nlink > 1 {
		r.Link = linkOf(&st, s.device)
	}
	if r.Xattrs, err = readXattrs(fd, name); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFREG && mayHaveHoles(&st) {
		return r, s.findHoles(dir, name, st.Size, r)
	}
	return r, nil
}

// count counts a file, and notes what it is if kopia's directory does not say so. It returns false for what is left out.
func (s *scanner) count(st *unix.Stat_t, r *record) bool {
	var kind string
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		s.totals.Files++
		s.totals.Bytes += st.Size
		return true
	case unix.S_IFDIR:
		s.totals.Directories++
		return true
	case unix.S_IFLNK:
		s.totals.Symlinks++
		s.totals.SymlinkBytes += st.Size
		return true
	case unix.S_IFIFO:
		kind = typePipe
	case unix.S_IFCHR:
		kind = typeChar
	case unix.S_IFBLK:
		kind = typeBlock
	default:
		s.totals.Sockets++
		return false
	}
	s.totals.Specials++
	r.Special = &special{Type: kind, Mode: st.Mode & 0o7777, UID: st.Uid, GID: st.Gid, Mtime: [2]int64{st.Mtim.Sec, st.Mtim.Nsec}}
	if kind != typePipe {
		r.Special.Major, r.Special.Minor = unix.Major(uint64(st.Rdev)), unix.Minor(uint64(st.Rdev)) //nolint:unconvert // another type on other processors
	}
	return true
}

// The types of special files.
const (
	typePipe  = "pipe"
	typeChar  = "char"
	typeBlock = "block"
)

// findHoles notes which parts of a file have data, if others are holes.
func (s *scanner) findHoles(dir, name string, size int64, r *record) error {
	f, err := s.openFile(dir, name)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // it only reads
	data, err := dataExtents(f, size)
	if err != nil {
		return fmt.Errorf("%s: %w", joinPath(dir, name), err)
	}
	var sum int64
	for _, e := range data {
		r.Data = append(r.Data, e.offset, e.length)
		sum += e.length
	}
	if r.Sparse = sum < size; !r.Sparse {
		r.Data = nil
	}
	return nil
}

// linkOf returns what all names of an inode have in common.
func linkOf(st *unix.Stat_t, device uint64) string {
	ino := strconv.FormatUint(st.Ino, 10)
	if dev := uint64(st.Dev); dev != device { //nolint:unconvert // another type on other processors
		return strconv.FormatUint(dev, 10) + "-" + ino // a subvolume
	}
	return ino
}

func changeTime(st *unix.Stat_t) int64 { return unix.TimespecToNsec(st.Ctim) }

// MaxFileBytes is the longest file. A longer one can only consist of holes.
const MaxFileBytes = 256 << 40

func checkSize(path string, size int64) error {
	if size > MaxFileBytes {
		return fmt.Errorf("%s: %w: it is %d bytes long, more than %d", path, errclass.Invalid, size, int64(MaxFileBytes))
	}
	return nil
}
