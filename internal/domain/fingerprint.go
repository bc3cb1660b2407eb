package domain

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A fingerprint is a hash of parts of a raw disk. It catches most unannounced writers: mounting a file system writes
// to its superblock, and replacing a disk's content changes nearly all of it. It does not see a writer that touches none of these parts.
type fingerprint struct {
	// Seed chooses the samples.
	Seed string `json:"seed"`
	// SHA256 is in hexadecimal digits.
	SHA256 string `json:"sha256"`
}

const (
	// edgeBytes are hashed at both ends of a disk, and partitionBytes at the beginning of each partition, where file
	// systems, LVM and RAID keep their superblocks.
	edgeBytes      = 1 << 20
	partitionBytes = 128 << 10
	// mostPartitions limits how many partitions of a table are hashed.
	mostPartitions = 64
	// samples of sampleBytes each are hashed at offsets derived from the seed.
	samples     = 128
	sampleBytes = 4 << 10
)

// fingerprintOf reads about 2.5 MiB of the disk at path, and 128 KiB more for each partition.
func fingerprintOf(path, seed string) (fingerprint, error) {
	f, err := openUncached(path)
	if err != nil {
		return fingerprint{}, fmt.Errorf("fingerprint of disk: %w", err)
	}
	defer func() { _ = f.Close() }() // only read
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return fingerprint{}, fmt.Errorf("fingerprint of disk %s: %w", path, err)
	}
	h := sha256.New()
	buffer := alignedBuffer(edgeBytes)
	read := func(at, length int64) ([]byte, error) {
		at = max(at-at%sampleBytes, 0)
		n, err := f.ReadAt(buffer[:length], at)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("fingerprint of disk %s: %w", path, err)
		}
		_ = binary.Write(h, binary.LittleEndian, []int64{at, int64(n)}) // writing to a hash never fails
		_, _ = h.Write(buffer[:n])
		return buffer[:n], nil
	}
	first, err := read(0, edgeBytes)
	if err != nil {
		return fingerprint{}, err
	}
	for _, at := range partitionStarts(first, size) {
		if _, err := read(at, partitionBytes); err != nil {
			return fingerprint{}, err
		}
	}
	if _, err := read(size-edgeBytes+sampleBytes-1, edgeBytes); err != nil {
		return fingerprint{}, err
	}
	for _, at := range samplePlaces(seed, size) {
		if _, err := read(at, sampleBytes); err != nil {
			return fingerprint{}, err
		}
	}
	return fingerprint{Seed: seed, SHA256: hex.EncodeToString(h.Sum(nil))}, nil
}

// samplePlaces returns offsets in bytes within a disk of size bytes. They are the same for the same seed.
func samplePlaces(seed string, size int64) []int64 {
	if size < sampleBytes {
		return nil
	}
	sum := sha256.Sum256([]byte(seed))
	numbers := rand.New(rand.NewPCG(binary.LittleEndian.Uint64(sum[:8]), binary.LittleEndian.Uint64(sum[8:16]))) //nolint:gosec // not a secret
	places := make([]int64, samples)
	for i := range places {
		places[i] = numbers.Int64N(size/sampleBytes) * sampleBytes
	}
	return places
}

// partitionStarts returns the offsets in bytes of the partitions listed in the first bytes of a disk, in a GPT or an
// MBR with sectors of 512 bytes. The guest controls the table: entries that make no sense are left out.
func partitionStarts(first []byte, size int64) []int64 {
	const sector = 512
	var starts []int64
	add := func(lba uint64) {
		if lba > 0 && lba < uint64(size)/sector && len(starts) < mostPartitions {
			starts = append(starts, int64(lba)*sector) //nolint:gosec // less than size
		}
	}
	if len(first) < 34*sector || first[510] != 0x55 || first[511] != 0xaa {
		return nil
	}
	if !bytes.Equal(first[sector:sector+8], []byte("EFI PART")) {
		for i := range 4 {
			add(uint64(binary.LittleEndian.Uint32(first[446+16*i+8:])))
		}
		return starts
	}
	for entry := 2 * sector; entry < 34*sector; entry += 128 {
		add(binary.LittleEndian.Uint64(first[entry+32:]))
	}
	return starts
}

// openUncached opens a disk for reading. It bypasses the page cache for a device, because the cache knows nothing of
// writes by other nodes.
func openUncached(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	flags := os.O_RDONLY
	if !info.Mode().IsRegular() {
		flags |= unix.O_DIRECT
	}
	return os.OpenFile(path, flags, 0)
}

// alignedBuffer returns memory aligned for O_DIRECT.
func alignedBuffer(length int) []byte {
	const align = 4 << 10
	memory := make([]byte, length+align)
	skip := (align - int(uintptr(unsafe.Pointer(unsafe.SliceData(memory)))%align)) % align //nolint:gosec // only the address is used
	return memory[skip : skip+length]
}
