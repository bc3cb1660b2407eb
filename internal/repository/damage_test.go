package repository

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kopia/kopia/repo/content"

	"github.com/varvebackup/varve/internal/extent"
)

// blobFiles are the files of a filesystem repository whose blob's name begins with prefix.
func blobFiles(tb testing.TB, configFile, prefix string) []string {
	tb.Helper()
	root := filepath.Join(filepath.Dir(filepath.Dir(configFile)), "blobs")
	var out []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		relative, err := filepath.Rel(root, path)
		if name := strings.ReplaceAll(relative, string(filepath.Separator), ""); strings.HasPrefix(name, prefix) && strings.HasSuffix(name, ".f") {
			out = append(out, path)
		}
		return err
	})
	if err != nil || len(out) == 0 {
		tb.Fatalf("no blobs %s*: %v", prefix, err)
	}
	return out
}

// Whatever happens to a blob with data or tables: verify finds it and names what it touches, no restore gives wrong bytes, and what is
// undamaged still restores.
func TestDamageIsFoundAndNeverRestored(t *testing.T) {
	t.Parallel()
	for kind, prefix := range map[string]string{"pack": "p", "metadata": "q"} {
		for name, damage := range map[string]func(data []byte, at int) []byte{
			"bit flipped": func(d []byte, at int) []byte { d[at] ^= 0x40; return d },
			"truncated":   func(d []byte, at int) []byte { return d[:at] },
			"zeroed":      func(d []byte, _ int) []byte { clear(d); return d },
			"empty":       func([]byte, int) []byte { return nil },
			"missing":     nil,
		} {
			t.Run(kind+" "+name, func(t *testing.T) {
				t.Parallel()
				damaged(t, prefix, damage)
			})
		}
	}
}

// middles is where in each blob a content has its middle, by the end of the blob's name that is its file's name.
func middles(tb testing.TB, r *Repository) map[string]int {
	tb.Helper()
	out := map[string]int{}
	err := r.rep.ContentReader().IterateContents(tb.Context(), content.IterateOptions{}, func(info content.Info) error {
		for i := range info.PackBlobID {
			out[string(info.PackBlobID[i:])] = int(info.PackOffset + info.PackedLength/2)
		}
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	return out
}

// clearCache makes the next connection read from the storage.
func clearCache(tb testing.TB, config string) {
	tb.Helper()
	if err := os.RemoveAll(filepath.Join(filepath.Dir(filepath.Dir(config)), "cache")); err != nil {
		tb.Fatal(err)
	}
}

func damaged(t *testing.T, prefix string, damage func([]byte, int) []byte) {
	t.Helper()
	r, config := newRepository(t)
	random := rand.New(rand.NewPCG(1, 2))
	held := map[string][]byte{}
	backUp := func(path string) string {
		disk := &memory{data: make([]byte, 3*mib+17)}
		disk.write(random, extent.Extent{Offset: mib, Length: 2 * mib}, false)
		source := testSource
		source.Path = path
		p, err := r.Backup(t.Context(), Request{Source: source, Time: time.Unix(1, 0), Disks: []DiskSource{disk.source(false)}})
		if err != nil {
			t.Fatal(err)
		}
		held[p.ID] = disk.data
		return p.ID
	}
	backUp("/good")
	good := map[string]bool{}
	for _, f := range blobFiles(t, config, prefix) {
		good[f] = true
	}
	bad := backUp("/bad")
	inside := middles(t, r)
	for _, f := range blobFiles(t, config, prefix) {
		if good[f] {
			continue
		}
		if damage == nil {
			if err := os.Remove(f); err != nil {
				t.Fatal(err)
			}
			continue
		}
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f, damage(data, inside[strings.TrimSuffix(filepath.Base(f), ".f")]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	clearCache(t, config)
	fresh := open(t, config)
	report, err := fresh.Verify(t.Context(), VerifyOptions{Percent: 100})
	if err != nil {
		t.Fatal(err)
	}
	if !report.Damaged() {
		t.Error("verify found nothing")
	}
	for _, d := range report.Damage {
		if d.Point.ID != bad {
			t.Errorf("verify blames %s: %v", d.Point.ID, d.Err)
		}
	}
	points, err := fresh.List(t.Context(), nil)
	if err != nil && !errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
	for _, p := range points {
		got := make([]byte, len(held[p.ID]))
		image, err := fresh.Image(t.Context(), p.Disks[0])
		if err == nil {
			err = image.ReadAt(context.Background(), got, 0)
		}
		switch {
		case p.ID == bad && err == nil && bytes.Equal(got, held[bad]):
			// What was damaged is not part of this disk.
		case p.ID == bad && err == nil:
			t.Error("wrong bytes")
		case p.ID == bad && !errors.Is(err, ErrCorrupt):
			t.Errorf("not told as corrupt: %v", err)
		case p.ID != bad && (err != nil || !bytes.Equal(got, held[p.ID])):
			t.Errorf("the undamaged restore point: %v", err)
		}
	}
}

// Damage of a restore point's description alone is damage too, and not a storage that does not answer.
func TestADamagedDescriptionIsDamage(t *testing.T) {
	t.Parallel()
	r, config := newRepository(t)
	_, point := twoRegions(t, r)
	where := map[string]int{}
	err := r.rep.ContentReader().IterateContents(t.Context(), content.IterateOptions{}, func(info content.Info) error {
		if info.ContentID.Prefix() == "k" {
			where[string(info.PackBlobID)] = int(info.PackOffset + info.PackedLength/2)
		}
		return nil
	})
	if err != nil || len(where) != 1 {
		t.Fatalf("descriptions in %v: %v", where, err)
	}
	for name, at := range where {
		f := blobFiles(t, config, name)[0]
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		data[at] ^= 1
		if err := os.WriteFile(f, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	fresh := open(t, config)
	if points, err := fresh.List(t.Context(), nil); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), point.ID) || len(points) > 0 {
		t.Errorf("%d restore points: %v", len(points), err)
	}
	report, err := fresh.Verify(t.Context(), VerifyOptions{Percent: 100})
	if err != nil || !errors.Is(report.Unlisted, ErrCorrupt) {
		t.Errorf("%+v, %v", report, err)
	}
}
