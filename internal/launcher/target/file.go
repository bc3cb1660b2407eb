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
)

// hashBuffer is how many bytes are read at once for hashing; the context is looked at between.
const hashBuffer = 1 << 20

// Sealed is what Seal finds of a file.
type Sealed struct {
	// SHA256 of the file's bytes in lower case hex.
	SHA256 string
	// AllocatedBytes are what the file system allocated for the file (st_blocks): what the backup costs on the
	// volume. A file system that compresses tells less than what was written.
	AllocatedBytes uint64
}

// Seal makes a finished file durable and hashes it. Both go on at once: the bytes that are still in memory are hashed
// while they are written back. read is called with the number of bytes that were hashed since its last call.
func (v *Volume) Seal(ctx context.Context, name string, read func(bytes int)) (Sealed, error) {
	f, err := v.root.Open(name)
	if err != nil {
		return Sealed{}, fmt.Errorf("seal file: %w", err)
	}
	var sealed Sealed
	var group errgroup.Group
	group.Go(f.Sync)
	group.Go(func() error {
		var err error
		sealed.SHA256, err = hash(ctx, f, read)
		return err
	})
	err = group.Wait()
	if err == nil {
		sealed.AllocatedBytes, err = allocated(f)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return Sealed{}, fmt.Errorf("seal file %s: %w", name, err)
	}
	return sealed, nil
}

func hash(ctx context.Context, r io.Reader, read func(bytes int)) (string, error) {
	h := sha256.New()
	buf := make([]byte, hashBuffer)
	for {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		n, err := r.Read(buf)
		h.Write(buf[:n])
		read(n)
		if errors.Is(err, io.EOF) {
			return hex.EncodeToString(h.Sum(nil)), nil
		}
		if err != nil {
			return "", err
		}
	}
}

func allocated(f *os.File) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, err
	}
	const block = 512 // stat(2): st_blocks counts these on every file system
	return uint64(st.Blocks) * block, nil
}
