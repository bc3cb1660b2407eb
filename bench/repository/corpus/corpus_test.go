package corpus

import (
	"bytes"
	"compress/flate"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/varvebackup/varve/internal/extent"
)

const mib = 1 << 20

func TestMix(t *testing.T) {
	t.Parallel()
	if d := cmp.Diff(Sizes{System: 512 * mib, Text: 192 * mib, Random: 192 * mib, Zero: 128 * mib}, Mix(1024*mib, 5000*mib)); d != "" {
		t.Error(d)
	}
	// A machine with few files gets more of the other kinds.
	if s := Mix(1024*mib, 12*mib+5); s[System] != 12*mib || s.Total() != 1024*mib || s[Text] != s[Random] {
		t.Errorf("%v", s)
	}
}

func TestLayout(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var sizes Sizes
		for kind := range sizes {
			sizes[kind] = Grain * rapid.Int64Range(0, 8<<10).Draw(t, "pages")
		}
		image := sizes.Total() + Grain*rapid.Int64Range(0, 16<<10).Draw(t, "holes")
		seed := rapid.Uint64().Draw(t, "seed")
		runs := Layout(seed, image, sizes)
		if d := cmp.Diff(runs, Layout(seed, image, sizes)); d != "" {
			t.Fatalf("the same seed: %s", d)
		}
		var got Sizes
		end := int64(0)
		for _, r := range runs {
			if r.Offset < end || r.Offset%Grain != 0 || r.Empty() {
				t.Fatalf("run %s after %d", r.Extent, end)
			}
			end = r.End()
			got[r.Kind] += r.Length
		}
		if got != sizes || end > image {
			t.Fatalf("%v, up to %d; want %v in %d", got, end, sizes, image)
		}
	})
}

func TestPieces(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		align := int64(Grain) << rapid.IntRange(0, 4).Draw(t, "align")
		length := align * rapid.Int64Range(1, 16).Draw(t, "length")
		within := []extent.Extent{{Offset: 3 * Grain, Length: 8 * mib}, {Offset: 20 * mib, Length: Grain}, {Offset: 32*mib + Grain, Length: 8 * mib}}
		seed := rapid.Uint64().Draw(t, "seed")
		choose := func() []extent.Extent {
			pieces, err := Pieces(rand.New(rand.NewPCG(seed, 0)), within, length, align, 4)
			if err != nil {
				t.Fatal(err)
			}
			return pieces
		}
		pieces := choose()
		if d := cmp.Diff(pieces, choose()); d != "" {
			t.Fatalf("the same seed: %s", d)
		}
		all := extent.NewSet(within...)
		if got := extent.NewSet(pieces...).Bytes(); got != 4*length {
			t.Fatalf("%d bytes of pieces that overlap: %v", got, pieces)
		}
		for _, p := range pieces {
			if p.Length != length || p.Offset%align != 0 || !all.Contains(p) {
				t.Fatalf("piece %s", p)
			}
		}
	})
}

func TestPiecesReachEveryPlace(t *testing.T) {
	t.Parallel()
	within := []extent.Extent{{Offset: Grain, Length: 2 * Grain}, {Offset: 10 * Grain, Length: Grain}, {Offset: 20 * Grain, Length: 3 * Grain}}
	pieces, err := Pieces(rand.New(rand.NewPCG(1, 0)), within, Grain, Grain, 6)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := extent.NewSet(pieces...), extent.NewSet(within...); got.Bytes() != want.Bytes() || !got.Contains(within[2]) {
		t.Errorf("%v", pieces)
	}
	if _, err := Pieces(rand.New(rand.NewPCG(1, 0)), within, Grain, Grain, 7); err == nil {
		t.Error("there is room for one more")
	}
	if _, err := Pieces(rand.New(rand.NewPCG(1, 0)), within, mib, Grain, 1); err == nil {
		t.Error("there is room for a large one")
	}
}

// The image must be the same wherever it is made, so that figures can be compared. This is the image for seed 1,
// without the system's files.
func TestImageIsDeterministic(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	sizes := Sizes{System: 2 * mib, Text: 3 * mib, Random: mib, Zero: mib}
	if err := os.WriteFile(filepath.Join(dir, "a"), []byte("system"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "b"), bytes.Repeat([]byte("file"), 3000), 0o600); err != nil {
		t.Fatal(err)
	}
	files := &Files{paths: []string{filepath.Join(dir, "a"), filepath.Join(dir, "gone"), filepath.Join(dir, "b")}}
	image := filepath.Join(dir, "image")
	runs := Layout(1, 16*mib, sizes)
	if err := Write(t.Context(), image, 1, 16*mib, runs, files); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	if got := sha256.Sum256(content); len(content) != 16*mib || bytes.Equal(got[:], make([]byte, 32)) {
		t.Fatalf("%d bytes", len(content))
	} else if want := "b29b657b360e5666ee626a472cdaed12af1eb49c2db6f33d50983b32dd757b08"; want != hex.EncodeToString(got[:]) {
		t.Errorf("the image has the hash %s", hex.EncodeToString(got[:]))
	}
	system := Extents(runs, System)[0]
	head := content[system.Offset:]
	if want := append([]byte("system"), make([]byte, Grain-6)...); !bytes.HasPrefix(head, append(want, "filefile"...)) {
		t.Errorf("files begin with %q", head[:16])
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Write(cancelled, image, 1, 16*mib, runs, files); err == nil {
		t.Error("it went on after the end")
	}
}

func TestKindsCompressAsTheyShould(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		from     io.Reader
		min, max float64
	}{{"text", newText(7), 2.5, 6}, {"noise", Noise(7, 3), 0.9, 1.01}} {
		var out bytes.Buffer
		w, err := flate.NewWriter(&out, 6)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(w, c.from, 4*mib); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if ratio := 4 * mib / float64(out.Len()); ratio < c.min || ratio > c.max {
			t.Errorf("%s compresses to 1/%.2f", c.name, ratio)
		}
	}
}

func TestSystemFiles(t *testing.T) {
	t.Parallel()
	files, err := SystemFiles(8 * mib)
	if err != nil {
		t.Fatal(err)
	}
	if files.Bytes < 8*mib || files.Bytes%Grain != 0 {
		t.Fatalf("%d bytes in %d files", files.Bytes, len(files.paths))
	}
	r := files.openReader()
	defer r.Close()
	if n, err := io.CopyN(io.Discard, r, files.Bytes); err != nil {
		t.Errorf("%d of %d bytes: %v", n, files.Bytes, err)
	}
}
