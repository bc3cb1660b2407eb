package sparse

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/varvebackup/varve/test/verdict"
)

// used returns how many bytes a file takes on its file system.
func used(t *testing.T, path string) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

func TestDig_freesWholeZeroBlocks(t *testing.T) {
	t.Parallel()
	const unit = 64 << 10
	data := make([]byte, 40*unit+100) // the tail is a block, too
	copy(data[3*unit-1:], "over the border of blocks 2 and 3")
	data[20*unit] = 1
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Dig(path, unit); err != nil {
		t.Fatal(err)
	}
	if got := used(t, path); got > 4*unit || got < 3*unit {
		t.Errorf("%d bytes used for 3 blocks of %d", got, unit)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, data) {
		verdict.Errorf(t, "the content changed (%v)", err)
	}
}

func TestDig_keepsTheContent(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "f")
	rapid.Check(t, func(r *rapid.T) {
		unit := 4 << 10 << rapid.IntRange(0, 8).Draw(r, "unit")
		data := make([]byte, rapid.IntRange(0, 3<<20).Draw(r, "size"))
		for range rapid.IntRange(0, 20).Draw(r, "writes") {
			if len(data) == 0 {
				break
			}
			at := rapid.IntRange(0, len(data)-1).Draw(r, "at")
			copy(data[at:], bytes.Repeat([]byte{7}, rapid.IntRange(1, 100_000).Draw(r, "length")))
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			r.Fatal(err)
		}
		if err := Dig(path, unit); err != nil {
			r.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, data) {
			verdict.Fatalf(r, "the content changed (%v)", err)
		}
	})
}

func TestDig_errors(t *testing.T) {
	t.Parallel()
	if err := Dig(filepath.Join(t.TempDir(), "none"), 4<<10); !os.IsNotExist(err) {
		t.Errorf("a file that does not exist: %v", err)
	}
	f, err := os.Open("/dev/zero") // opened for reading
	if err != nil {
		t.Fatal(err)
	}
	if err := Punch(f, 0, make([]byte, 4<<10), 4<<10); err == nil {
		t.Error("a hole in a file that is open for reading")
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}
