//go:build nbd_interop

package collection

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/export/exporttest"
	"github.com/varvebackup/varve/test/exportsite"
	"github.com/varvebackup/varve/test/verdict"
)

// nextOf returns an incremental of a volume: half of its blocks have changed, some of them to zeroes.
func nextOf(v *exporttest.Volume, seed uint64) *exporttest.Volume {
	next := exporttest.NewVolume(v.Description.Name, v.Description.Bytes, true, seed)
	for i, dirty := range next.Dirty {
		if offset := int64(i) * exporttest.BlockBytes; !dirty {
			copy(next.Content[offset:], v.Content[offset:min(offset+exporttest.BlockBytes, v.Description.Bytes)])
		}
	}
	return next
}

// convert returns a raw file with what an image and its backing files have.
func convert(t *testing.T, image string) string {
	t.Helper()
	raw := filepath.Join(t.TempDir(), "raw")
	if out, err := exec.Command("qemu-img", "convert", "-f", "qcow2", "-O", "raw", image, raw).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return raw
}

func TestCollect_chainOfImages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	base := exporttest.NewVolume("root", 24<<20+512, false, 1)
	volumes := []*exporttest.Volume{base, nextOf(base, 2)}
	volumes = append(volumes, nextOf(volumes[1], 3))
	names := []string{"monday", "tuesday", "wednesday"}
	for i, v := range volumes {
		added := exporttest.NewVolume("added", 2<<20, false, uint64(i)) // full each time
		s := exportsite.Open(t, v, added)
		q := Request{
			Backup: describe(s, "u"+names[i], "c"+names[i], v, added), Directory: filepath.Join(dir, names[i]),
			Client: exportsite.NewClient(t, exportsite.Cut(s.Options(), uint64(i), 3<<20, 10)),
		}
		if i > 0 {
			q.Backup.BaseCheckpoint, q.Backup.BaseUID = "c"+names[i-1], "u"+names[i-1]
		}
		interrupted(t, q, "root", 4<<20)
		m := mustCollect(t, q).Manifest
		if i > 0 && (m.Parent == nil || m.Parent.Directory != "../"+names[i-1] || m.Parent.ManifestSHA256 == "" || m.Volume("root").Type != "Incremental" || m.Volume("added").Type != "Full") {
			t.Errorf("manifest %+v", m)
		}
		wantOnly(t, q.Directory, "root.qcow2", "added.qcow2", "backup.json")
		wantFile(t, convert(t, filepath.Join(q.Directory, "added.qcow2")), added)
	}
	if err := os.Rename(dir, dir+".moved"); err != nil { // the names are relative
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir + ".moved") })
	for i, v := range volumes {
		wantFile(t, convert(t, filepath.Join(dir+".moved", names[i], "root.qcow2")), v)
	}
}

func TestCollect_parentIsFoundOrRefused(t *testing.T) {
	t.Parallel()
	dir, elsewhere := t.TempDir(), t.TempDir()
	base := exporttest.NewVolume("root", 8<<20, false, 1)
	next := nextOf(base, 2)
	s := exportsite.Open(t, base)
	for _, format := range []disk.Format{disk.QCOW2, disk.Raw} {
		mustCollect(t, Request{
			Backup: describe(s, "u1", "c1", base), Client: exportsite.NewClient(t, s.Options()), Format: format, Directory: filepath.Join(elsewhere, string(format)),
		})
	}
	s = exportsite.Open(t, next)
	q := Request{Backup: describe(s, "u2", "c2", next), Client: exportsite.NewClient(t, s.Options()), Directory: filepath.Join(dir, "next")}
	q.Backup.BaseCheckpoint, q.Backup.BaseUID = "c1", "u1"
	if _, err := Collect(t.Context(), q); !errors.Is(err, ErrNoParent) {
		t.Errorf("beside nothing: %v", err)
	}
	if _, err := os.Stat(q.Directory); err == nil {
		t.Error("a refused request made a directory")
	}
	for _, format := range []disk.Format{disk.QCOW2, disk.Raw} {
		q.Parent, q.Directory = filepath.Join(elsewhere, string(format)), filepath.Join(dir, "over-"+string(format))
		mustCollect(t, q)
		wantFile(t, convert(t, filepath.Join(q.Directory, "root.qcow2")), next)
	}
	other := q
	other.Directory, other.Backup.BaseUID = filepath.Join(dir, "other"), "u0"
	if _, err := Collect(t.Context(), other); !errors.Is(err, ErrNoParent) {
		t.Errorf("over another parent: %v", err)
	}
	q.Parent, q.NoParent, q.Directory = "", true, filepath.Join(dir, "alone")
	m := mustCollect(t, q).Manifest
	if m.Parent == nil || m.Parent.Directory != "" || m.Parent.BackupUID != "u1" {
		t.Errorf("manifest %+v", m.Parent)
	}
	// Only what has changed is in it; the rest reads as zeroes.
	alone, err := os.ReadFile(convert(t, filepath.Join(q.Directory, "root.qcow2")))
	if err != nil {
		t.Fatal(err)
	}
	for i, dirty := range next.Dirty {
		offset := i * exporttest.BlockBytes
		want := make([]byte, exporttest.BlockBytes)
		if dirty {
			want = next.Content[offset : offset+exporttest.BlockBytes]
		}
		if !slices.Equal(alone[offset:offset+exporttest.BlockBytes], want) {
			verdict.Fatalf(t, "block %d, dirty %v", i, dirty)
		}
	}
}
