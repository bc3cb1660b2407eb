package corpus

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// systemRoot is the directory with the files of the system.
const systemRoot = "/usr"

// Files is a list of regular files that are read one after the other, each beginning at a multiple of Grain.
type Files struct {
	paths []string
	// Bytes is their total size, including the padding.
	Bytes int64
}

// SystemFiles lists the machine's own files in the order of their names until there are enough bytes. It skips unreadable files.
func SystemFiles(enough int64) (*Files, error) {
	files := &Files{}
	err := filepath.WalkDir(systemRoot, func(path string, d fs.DirEntry, err error) error {
		if files.Bytes >= enough {
			return fs.SkipAll
		}
		if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil || info.Size() == 0 {
			return nil //nolint:nilerr // the file went away meanwhile
		}
		files.paths = append(files.paths, path)
		files.Bytes += (info.Size() + Grain - 1) &^ (Grain - 1)
		return nil
	})
	return files, err
}

// openReader reads the files from the beginning. After the last one it reads zeros.
func (f *Files) openReader() io.ReadCloser { return &filesReader{paths: f.paths} }

type filesReader struct {
	paths []string
	file  *os.File
	// pad is how many zeros are due before the next file.
	pad, at int64
}

// Read implements io.Reader. It fills p.
func (r *filesReader) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		if r.pad > 0 || (r.file == nil && len(r.paths) == 0) {
			part := p[n:]
			if r.pad > 0 {
				part = part[:min(int64(len(part)), r.pad)]
				r.pad -= int64(len(part))
			}
			clear(part)
			n += len(part)
			continue
		}
		if r.file == nil {
			if err := r.openNext(); err != nil {
				return n, err
			}
			continue
		}
		got, err := r.file.Read(p[n:])
		n, r.at = n+got, r.at+int64(got)
		if errors.Is(err, io.EOF) {
			r.pad = -r.at & (Grain - 1)
			err = r.Close()
		}
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// openNext opens the next file, if it still exists.
func (r *filesReader) openNext() (err error) {
	r.file, err = os.Open(r.paths[0])
	r.paths, r.at = r.paths[1:], 0
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		r.file, err = nil, nil
	}
	return err
}

// Close implements io.Closer.
func (r *filesReader) Close() error {
	f := r.file
	if r.file = nil; f == nil {
		return nil
	}
	return f.Close()
}
