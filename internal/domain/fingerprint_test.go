package domain

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// blankDisk makes a sparse file with a partition table, GPT or MBR, with one partition at the start of its second half.
func blankDisk(t *testing.T, size int64, gpt bool) string {
	t.Helper()
	first := make([]byte, 34*512)
	first[510], first[511] = 0x55, 0xaa
	if gpt {
		copy(first[512:], "EFI PART")
		binary.LittleEndian.PutUint64(first[1024+32:], uint64(size/2/512))
		binary.LittleEndian.PutUint64(first[1024+128+32:], 1<<62) // beyond the disk
	} else {
		binary.LittleEndian.PutUint32(first[446+8:], uint32(size/2/512))
	}
	path := filepath.Join(t.TempDir(), "disk.img")
	if err := os.WriteFile(path, first, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFingerprint_seesWhatWritersTouch(t *testing.T) {
	t.Parallel()
	const size = 64<<20 + 512
	places := samplePlaces("seed", size)
	for name, at := range map[string]int64{
		"superblock of the disk":        1024,
		"end of the disk":               size - 1,
		"superblock of a partition":     size/2/512*512 + 1024,
		"btrfs superblock of partition": size/2/512*512 + 64<<10,
		"a sample":                      places[0] + 17,
		"the last sample":               places[samples-1],
	} {
		for _, gpt := range []bool{true, false} {
			path := blankDisk(t, size, gpt)
			before, err := fingerprintOf(path, "seed")
			if err != nil {
				t.Fatal(err)
			}
			if again, err := fingerprintOf(path, "seed"); err != nil || again != before {
				t.Errorf("nothing changed: %+v, %v, before %+v", again, err, before)
			}
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt([]byte{0xbb}, at); err != nil {
				t.Fatal(err)
			}
			_ = f.Close()
			if after, err := fingerprintOf(path, "seed"); err != nil || after == before {
				t.Errorf("%s (gpt %v): a write at %d was not seen, %v", name, gpt, at, err)
			}
		}
	}
}

func TestFingerprint_ofSmallDisks(t *testing.T) {
	t.Parallel()
	for _, size := range []int64{512, 4096, 4608, 1 << 20, 1<<20 + 512} {
		path := filepath.Join(t.TempDir(), "disk.img")
		if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := fingerprintOf(path, "seed"); err != nil {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
	if _, err := fingerprintOf(filepath.Join(t.TempDir(), "none"), "seed"); err == nil {
		t.Error("a disk that is not there has a fingerprint")
	}
}

func TestFingerprint_samplesFollowTheSeed(t *testing.T) {
	t.Parallel()
	const size = 1 << 40
	a, b := samplePlaces("a", size), samplePlaces("b", size)
	if slices.Equal(a, b) || !slices.Equal(a, samplePlaces("a", size)) {
		t.Error("samples do not follow the seed")
	}
	for _, at := range a {
		if at < 0 || at+sampleBytes > size || at%sampleBytes != 0 {
			t.Errorf("sample at %d", at)
		}
	}
}

func FuzzPartitionStarts(f *testing.F) {
	f.Add(make([]byte, 34*512), int64(1<<30))
	f.Fuzz(func(t *testing.T, table []byte, size int64) {
		if size < 0 {
			return
		}
		starts := partitionStarts(table, size)
		if len(starts) > mostPartitions {
			t.Errorf("%d partitions", len(starts))
		}
		for _, at := range starts {
			if at <= 0 || at >= size {
				t.Errorf("a partition at %d of %d bytes", at, size)
			}
		}
	})
}
