package storage

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/kopia/kopia/repo/blob"
	"golang.org/x/sys/unix"
)

// A deletion frees nothing by itself: it stores an index, and maintenance stores more of them before it deletes a pack.
// On a full file system that could never begin. So a directory holds a file without meaning, whose space is given up
// for that, and taken again when there is room. Whoever loses the race for it has lost nothing: the operation fails as
// it would without the file.
const (
	reserveFile = "varve.reserve"
	// maxReserve is the size of the file. On a small file system it is a part of that.
	maxReserve  = 16 << 20
	reservePart = 16
	// reserveRoom is how many times the size of the file must be free for the file to be made.
	reserveRoom = 4
	// reserveSlice is what SliceReserve gives up, which is more than a few manifests and an index need.
	reserveSlice = 1 << 20
)

// KeepReserve makes the reserve of a directory if there is none and if there is room for it. Other storages have none.
func KeepReserve(st blob.Reader) {
	path, want, free := reserveOf(st)
	if path == "" || want < reserveSlice || free < reserveRoom*want {
		return
	}
	if info, err := os.Stat(path); err == nil && info.Size() >= want {
		return
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return // nobody may write there, and nobody needs the reserve then
	}
	err = takeSpace(f, want)
	if err := errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(path) // A reserve without its space is none.
	}
}

// takeSpace makes a file take up this many bytes. Where the file system takes no space in advance, it is filled with
// what cannot be compressed.
func takeSpace(f *os.File, bytes int64) error {
	err := unix.Fallocate(int(f.Fd()), 0, 0, bytes)
	if err == nil || !errors.Is(err, unix.EOPNOTSUPP) {
		return os.NewSyscallError("fallocate", err)
	}
	noise := rand.NewChaCha8([32]byte{})
	buffer := make([]byte, reserveSlice)
	for at := int64(0); at < bytes; at += reserveSlice {
		_, _ = noise.Read(buffer) // it never fails
		if _, err := f.WriteAt(buffer[:min(reserveSlice, bytes-at)], at); err != nil {
			return err
		}
	}
	return f.Sync()
}

// GiveUpReserve gives up the space of a directory's reserve, and says whether there was any.
func GiveUpReserve(st blob.Reader) bool {
	path, _, _ := reserveOf(st)
	return path != "" && os.Remove(path) == nil
}

// SliceReserve gives up a small part of a directory's reserve, so that something can end, and says whether there was
// any.
func SliceReserve(st blob.Reader) bool {
	path, _, _ := reserveOf(st)
	if path == "" {
		return false
	}
	info, err := os.Stat(path)
	if err != nil || info.Size() == 0 {
		return false
	}
	return os.Truncate(path, max(0, info.Size()-reserveSlice)) == nil
}

// NeedsReserve says whether a directory has less room than its reserve is for.
func NeedsReserve(st blob.Reader) bool {
	path, want, free := reserveOf(st)
	return path != "" && free < want
}

// IsShort says whether a directory has so little room that maintenance should free something before it writes.
func IsShort(st blob.Reader) bool {
	path, want, free := reserveOf(st)
	return path != "" && free < reserveRoom*want
}

// reserveOf returns the path of a storage's reserve, the size that it should have, and how much is free beside it. The
// path is "" if the storage is no directory.
func reserveOf(st blob.Reader) (path string, want, free int64) {
	dir := directoryOf(st)
	if dir == "" {
		return "", 0, 0
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return "", 0, 0
	}
	want = min(maxReserve, int64(fs.Blocks)*fs.Frsize/reservePart) &^ (reserveSlice - 1)
	return filepath.Join(dir, reserveFile), want, int64(fs.Bavail) * fs.Frsize
}

// discardPartial removes a file that could not be written completely, and frees its space although the writer has it
// open.
func discardPartial(w any) {
	f, ok := w.(interface{ Name() string })
	if !ok {
		return
	}
	if err := os.Truncate(f.Name(), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return // maintenance removes it
	}
	_ = os.Remove(f.Name()) // maintenance removes it otherwise
}
