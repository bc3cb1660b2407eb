package guest

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
)

// padBytes is the size of a block of zeros. Linux skips zeros after an initramfs, and nothing reads past the end of a
// kernel.
const padBytes = 512

// maxPads limits how many blocks are tried. Each of them has an even chance.
const maxPads = 256

// padChecksum appends blocks of zeros to a kernel or an initramfs until its CRC-32 is below 2^31. KubeVirt stores the
// checksum in a field of its API that is an int32, and Kubernetes 1.36 refuses values that do not fit.
func padChecksum(path string) (err error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	sum := crc32.NewIEEE()
	if _, err := io.Copy(sum, f); err != nil {
		return fmt.Errorf("checksum of %s: %w", path, err)
	}
	block := make([]byte, padBytes)
	for range maxPads {
		if sum.Sum32() < 1<<31 {
			return nil
		}
		if _, err := io.MultiWriter(f, sum).Write(block); err != nil {
			return fmt.Errorf("pad %s: %w", path, err)
		}
	}
	return fmt.Errorf("pad %s: its CRC-32 is still not below 2^31 after %d blocks", path, maxPads)
}
