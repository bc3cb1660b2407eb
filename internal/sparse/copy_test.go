package sparse

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"
)

func TestCopy_keepsContentAndHoles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	rapid.Check(t, func(r *rapid.T) {
		data := make([]byte, rapid.IntRange(0, 3<<20).Draw(r, "size"))
		var written int64
		for range rapid.IntRange(0, 10).Draw(r, "writes") {
			if len(data) == 0 {
				break
			}
			at := rapid.IntRange(0, len(data)-1).Draw(r, "at")
			n := copy(data[at:], bytes.Repeat([]byte{7}, rapid.IntRange(1, 100_000).Draw(r, "length")))
			written += int64(n) + 2*copyUnit
		}
		from, to := create(r, filepath.Join(dir, "from")), create(r, filepath.Join(dir, "to"))
		defer from.Close()
		defer to.Close()
		if _, err := from.Write(data); err != nil {
			r.Fatal(err)
		}
		if err := Copy(t.Context(), to, from); err != nil {
			r.Fatal(err)
		}
		got, err := os.ReadFile(to.Name())
		if err != nil || !bytes.Equal(got, data) {
			r.Fatalf("%d bytes, not those %d (%v)", len(got), len(data), err)
		}
		if took := used(t, to.Name()); took > written {
			r.Fatalf("%d bytes used for %d with data", took, written)
		}
	})
}

func TestCopy_endsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	file := filepath.Join(t.TempDir(), "f")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := Copy(ctx, f, f); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func create(r *rapid.T, path string) *os.File {
	r.Helper()
	f, err := os.Create(path)
	if err != nil {
		r.Fatal(err)
	}
	return f
}
