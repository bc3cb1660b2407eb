package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRotatedIsBounded(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log", "x.log")
	line := strings.Repeat("x", 9) + "\n"
	for range 3 { // reopened, as after a restart of the node
		r, err := openRotated(path, 100)
		if err != nil {
			t.Fatal(err)
		}
		for range 50 {
			if n, err := r.Write([]byte(line)); err != nil || n != len(line) {
				t.Fatalf("%d, %v", n, err)
			}
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 2 {
		t.Errorf("%d files, not the log and the one before it", len(entries))
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(filepath.Dir(path), e.Name()))
		if err != nil || len(data) == 0 || len(data) > 100 || len(data)%len(line) != 0 {
			t.Errorf("%s has %d bytes (%v)", e.Name(), len(data), err)
		}
	}
}
