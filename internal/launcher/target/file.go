package target

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/sparse"
)

// hashBuffer is how many bytes are read at once for hashing. The context is checked in between.
const hashBuffer = 1 << 20

// holeBytes is the size of a block of zeros that is freed: a cluster of the file.
const holeBytes = 64 << 10

// Sealed is what Seal reports about a file.
type Sealed struct {
	// SHA256 is the hash of the file's bytes in lower case hex.
	SHA256 string
	// AllocatedBytes is what the file system allocated for the file (st_blocks): what the backup costs on the volume.
	// A file system that compresses reports less than was written.
	AllocatedBytes uint64
}

// Seal makes a finished file durable, hashes it and frees its zero blocks. It does so at the same time: bytes that
// are still in memory are hashed while they are written back. A full backup has zeros where a block device was never
// written, and where a guest has wiped data. Seal calls read with the number of bytes that were hashed since the last call.
func (v *Volume) Seal(ctx context.Context, name string, read func(bytes int)) (Sealed, error) {
	f, err := v.root.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return Sealed{}, fmt.Errorf("seal file: %w", err)
	}
	var sealed Sealed
	var group errgroup.Group
	group.Go(f.Sync)
	group.Go(func() error {
		var err error
		sealed.SHA256, err = hashAndPunch(ctx, f, read)
		return err
	})
	err = group.Wait()
	if err == nil {
		err = f.Sync() // the holes
	}
	if err == nil {
		sealed.AllocatedBytes, err = allocatedBytes(f)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return Sealed{}, fmt.Errorf("seal file %s: %w", name, err)
	}
	return sealed, nil
}

// hashAndPunch returns the SHA-256 of the file's content and frees its zero blocks.
func hashAndPunch(ctx context.Context, f *os.File, read func(bytes int)) (string, error) {
	h := sha256.New()
	buf := make([]byte, hashBuffer)
	for at := int64(0); ; at += int64(len(buf)) {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		n, err := f.ReadAt(buf, at)
		end := errors.Is(err, io.EOF)
		if err != nil && !end {
			return "", err
		}
		h.Write(buf[:n])
		read(n)
		if err := sparse.Punch(f, at, buf[:n], holeBytes); err != nil {
			return "", err
		}
		if end {
			return hex.EncodeToString(h.Sum(nil)), nil
		}
	}
}

func allocatedBytes(f *os.File) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, err
	}
	const block = 512 // stat(2): st_blocks counts these on every file system
	return uint64(st.Blocks) * block, nil
}
