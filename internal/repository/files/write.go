package files

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"os"
	"slices"

	"github.com/kopia/kopia/repo/object"
	"github.com/kopia/kopia/snapshot"
	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/table"
	"github.com/varvebackup/varve/internal/sparse"
)

const (
	// writeBytes is how much of a file is read and written at once.
	writeBytes = 1 << 20
	// holeUnitBytes is what a hole in a sparse file is a multiple of.
	holeUnitBytes = 4 << 10
	// maxSymlinkBytes is more than any file system takes.
	maxSymlinkBytes = 64 << 10
)

// writePart makes a file in the staging directory, complete with its metadata, and returns its name there.
func (r *restore) writePart(ctx context.Context, j *fileJob) (part string, written int64, err error) {
	part = r.staging.newPart()
	switch {
	case j.entry == nil:
		err = makeSpecial(r.staging.fd, part, j.record.Special)
	case j.entry.Type == snapshot.EntryTypeSymlink:
		err = r.makeSymlink(ctx, part, j.entry)
	default:
		written, err = r.writeContent(ctx, part, j)
	}
	if err == nil {
		err = setMetadata(r.staging.fd, part, metadataOf(j.entry, j.record))
	}
	return part, written, err
}

func makeSpecial(fd int, name string, s *special) error {
	mode, known := map[string]uint32{typePipe: unix.S_IFIFO, typeChar: unix.S_IFCHR, typeBlock: unix.S_IFBLK}[s.Type]
	if !known {
		return fmt.Errorf("%w: %s: type %q", errclass.Corrupt, Name, s.Type)
	}
	if err := unix.Mknodat(fd, name, mode|0o600, int(unix.Mkdev(s.Major, s.Minor))); err != nil {
		return fmt.Errorf("make a %s: %w", s.Type, err)
	}
	return nil
}

func (r *restore) makeSymlink(ctx context.Context, name string, e *snapshot.DirEntry) error {
	target, err := table.ReadObject(ctx, r.r, e.ObjectID, maxSymlinkBytes)
	if err != nil {
		return err
	}
	return unix.Symlinkat(string(target), r.staging.fd, name)
}

// writeContent writes a regular file.
func (r *restore) writeContent(ctx context.Context, name string, j *fileJob) (written int64, err error) {
	fd, err := unix.Openat(r.staging.fd, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return 0, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer func() { err = errors.Join(err, f.Close()) }()
	if j.entry.FileSize == 0 {
		return 0, r.checkLength(ctx, j.entry)
	}
	err = r.eachPiece(ctx, j, func(data []byte, at int64) error {
		n, err := writePiece(f, data, at, j.record.Sparse)
		written += n
		return err
	})
	if err == nil && j.record.Sparse {
		err = f.Truncate(j.entry.FileSize)
	}
	return written, err
}

// checkLength checks an empty file.
func (r *restore) checkLength(ctx context.Context, e *snapshot.DirEntry) error {
	_, err := table.ReadObject(ctx, r.r, e.ObjectID, e.FileSize)
	return err
}

// eachPiece reads a file from the repository, but not its holes.
func (r *restore) eachPiece(ctx context.Context, j *fileJob, do func(data []byte, at int64) error) error {
	or, err := table.OpenObject(ctx, r.r, j.entry.ObjectID)
	if err != nil {
		return err
	}
	defer or.Close() //nolint:errcheck // it only reads
	if or.Length() != j.entry.FileSize {
		return fmt.Errorf("%w: object %s has %d bytes, not %d", errclass.Corrupt, j.entry.ObjectID, or.Length(), j.entry.FileSize)
	}
	parts, err := partsOf(j)
	if err != nil {
		return err
	}
	buffer, _ := r.buffers.Get().(*[]byte)
	defer r.buffers.Put(buffer)
	for _, p := range parts {
		if err := readPart(ctx, or, j.entry.ObjectID, p, *buffer, do); err != nil {
			return err
		}
	}
	return nil
}

// partsOf returns the parts of a file that are not holes.
func partsOf(j *fileJob) ([]extent, error) {
	size := j.entry.FileSize
	if !j.record.Sparse {
		return []extent{{length: size}}, nil
	}
	var out []extent
	at := int64(0)
	for e := range slices.Chunk(j.record.Data, 2) {
		if e[0] < at || e[1] <= 0 || e[1] > size-e[0] {
			return nil, fmt.Errorf("%w: %s: %q has data at %d+%d", errclass.Corrupt, Name, j.record.Path, e[0], e[1])
		}
		out = append(out, extent{e[0], e[1]})
		at = e[0] + e[1]
	}
	return out, nil
}

func readPart(ctx context.Context, or object.Reader, id object.ID, p extent, buffer []byte, do func([]byte, int64) error) error {
	if _, err := or.Seek(p.offset, io.SeekStart); err != nil {
		return err
	}
	for at := p.offset; at < p.end(); {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		data := buffer[:min(int64(len(buffer)), p.end()-at)]
		if _, err := io.ReadFull(or, data); err != nil {
			return table.WrapReadError(fmt.Sprintf("read object %s", id), err)
		}
		if err := do(data, at); err != nil {
			return err
		}
		at += int64(len(data))
	}
	return nil
}

// writePiece writes a piece of a file. In a sparse file, it leaves out zeroes.
func writePiece(f *os.File, data []byte, at int64, isSparse bool) (written int64, err error) {
	if !isSparse {
		n, err := f.WriteAt(data, at)
		return int64(n), err
	}
	for start := 0; start < len(data); {
		end := start
		for end < len(data) && !sparse.IsZero(data[end:min(end+holeUnitBytes, len(data))]) {
			end = min(end+holeUnitBytes, len(data))
		}
		if end > start {
			n, err := f.WriteAt(data[start:end], at+int64(start))
			if written += int64(n); err != nil {
				return written, err
			}
		}
		start = min(end+holeUnitBytes, len(data))
	}
	return written, nil
}

// isRestored says whether an interrupted restore has finished a file. Files get their names when they are complete, so it is enough
// to look at the name, unless the machine may have lost what was written.
func (r *restore) isRestored(ctx context.Context, fd int, j *fileJob) (bool, error) {
	st, err := lstat(fd, j.name)
	if errors.Is(err, iofs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	kind := st.Mode & unix.S_IFMT
	if kind == unix.S_IFDIR {
		return false, fmt.Errorf("%w: a directory is in its place", errclass.Conflict)
	}
	if !r.staging.doubtful {
		return true, nil
	}
	if j.entry == nil || j.entry.Type != snapshot.EntryTypeFile || kind != unix.S_IFREG || st.Size != j.entry.FileSize || j.record.Sparse || j.record.Link != "" {
		return false, nil // It is made again.
	}
	same, err := r.hasContent(ctx, fd, j)
	if err != nil || !same {
		return false, err
	}
	return true, setMetadata(fd, j.name, metadataOf(j.entry, j.record))
}

var errDiffers = errors.New("the content differs")

// hasContent compares a file with what the repository has.
func (r *restore) hasContent(ctx context.Context, fd int, j *fileJob) (bool, error) {
	file, err := unix.Openat(fd, j.name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false, err
	}
	f := os.NewFile(uintptr(file), j.name)
	defer f.Close() //nolint:errcheck // it only reads
	buffer := make([]byte, writeBytes)
	err = r.eachPiece(ctx, j, func(data []byte, at int64) error {
		there := buffer[:len(data)]
		if _, err := f.ReadAt(there, at); err != nil {
			return err
		}
		if !bytes.Equal(there, data) {
			return errDiffers
		}
		return nil
	})
	if errors.Is(err, errDiffers) {
		return false, nil
	}
	return err == nil, err
}
