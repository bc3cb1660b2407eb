package reflink

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/errclass"
)

// reserveFile keeps blocks for deletions: each one writes a new meta.json first, which is impossible on a full disk, so
// that the disk would stay full for ever. What it holds means nothing, and anybody may remove it.
const reserveFile = "varve-reserve"

// XFS takes more than a file has, for inodes and for what a transaction might need. Guests that write take what is
// given up, too, so it is given up in parts.
const (
	reserveBytes = 16 << 20
	reservePart  = 4 << 20
	reserveLeast = 1 << 20 // what is worth an attempt
)

// withReserve makes a change. While that fails because the disk is full, it gives up a part of the reserve and tries
// again.
func (d *Disk) withReserve(change func() error) error {
	err := change()
	for errclass.IsFull(err) {
		given, reserveErr := d.giveReserve()
		if reserveErr != nil {
			return errors.Join(err, fmt.Errorf("give up a part of %s: %w", reserveFile, reserveErr))
		}
		if !given {
			return err
		}
		err = change()
	}
	return err
}

// giveReserve gives up a part of the reserve, if there is any. It truncates the file: the blocks are free when it
// returns, which they would not be if it removed the file.
func (d *Disk) giveReserve() (given bool, err error) {
	f, err := os.OpenFile(filepath.Join(d.dir, reserveFile), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return false, err
	}
	return true, errors.Join(f.Truncate(max(info.Size()-reservePart, 0)), f.Sync())
}

// fillReserve makes the reserve as large as the disk allows, up to reserveBytes. Without it, all but deletions on a
// full disk works.
func (d *Disk) fillReserve() error {
	if err := d.growReserve(); err != nil {
		return fmt.Errorf("keep space for deletions in %s: %w", reserveFile, err)
	}
	return nil
}

func (d *Disk) growReserve() (err error) {
	f, err := os.OpenFile(filepath.Join(d.dir, reserveFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	size := info.Size()
	for more := reserveBytes - size; more >= reserveLeast; more /= 2 {
		err := unix.Fallocate(int(f.Fd()), 0, size, more)
		if err == nil {
			return f.Sync()
		}
		if !errclass.IsFull(err) {
			return err
		}
		if err := f.Truncate(size); err != nil { // a part of it may be allocated
			return err
		}
	}
	return nil
}
