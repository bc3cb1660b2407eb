package node

import (
	"fmt"
	"os"
	"path/filepath"
)

// logLimit bounds one log file, in bytes. A service has at most two: the current one and the previous one (".1").
const logLimit = 16 << 20

// rotated is a log file that is renamed before a write would exceed limit bytes. It is for one goroutine.
type rotated struct {
	path  string
	limit int64
	file  *os.File
	size  int64
}

func openRotated(path string, limit int64) (*rotated, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	r := &rotated{path: path, limit: limit}
	return r, r.openFile()
}

func (r *rotated) openFile() error {
	f, err := os.OpenFile(r.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	r.file, r.size = f, info.Size()
	return nil
}

func (r *rotated) Write(p []byte) (int, error) {
	if r.size > 0 && r.size+int64(len(p)) > r.limit {
		if err := r.file.Close(); err != nil {
			return 0, fmt.Errorf("rotate %s: %w", r.path, err)
		}
		if err := os.Rename(r.path, r.path+".1"); err != nil {
			return 0, fmt.Errorf("rotate %s: %w", r.path, err)
		}
		if err := r.openFile(); err != nil {
			return 0, fmt.Errorf("rotate %s: %w", r.path, err)
		}
	}
	n, err := r.file.Write(p)
	r.size += int64(n)
	return n, err
}

func (r *rotated) Close() error { return r.file.Close() }
