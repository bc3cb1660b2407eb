//go:build nbd_interop

package mover

import (
	"errors"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/repository"
)

// qemu runs one of QEMU's programs.
func qemu(tb testing.TB, program string, args ...string) {
	tb.Helper()
	if out, err := exec.CommandContext(tb.Context(), program, args...).CombinedOutput(); err != nil {
		tb.Fatalf("%s %s: %v: %s", program, strings.Join(args, " "), err, out)
	}
}

// bitmapNames returns the names of an image's bitmaps.
func bitmapNames(tb testing.TB, image string) (names []string) {
	tb.Helper()
	bitmaps, err := disk.Bitmaps(tb.Context(), image)
	if err != nil {
		tb.Fatal(err)
	}
	for _, b := range bitmaps {
		names = append(names, b.Name)
	}
	return names
}

func TestBackup_tracksAnImage(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	image := filepath.Join(t.TempDir(), "disk.qcow2")
	qemu(t, "qemu-img", "create", "-q", "-f", "qcow2", image, "16M")
	qemu(t, "qemu-io", "-f", "qcow2", "-c", "write -q -P 1 1M 4M", image)
	var warnings []error
	q := BackupRequest{
		ID: "00000000000000000000000000000001", History: r.Source("", "", "/web"), Track: true,
		Sources: []Source{{Name: "root", Location: image, Options: disk.SourceOptions{Format: disk.QCOW2}}},
		Warn:    func(err error) { warnings = append(warnings, err) },
	}
	backUp := func(id string) *repository.RestorePoint {
		t.Helper()
		q.ID = id
		p, err := Backup(t.Context(), r, q)
		if err != nil {
			t.Fatal(err)
		}
		if got := bitmapNames(t, image); !slices.Equal(got, []string{p.Disks[0].Change}) {
			t.Errorf("the image has the bitmaps %v, and the restore point names %s", got, p.Disks[0].Change)
		}
		return p
	}
	first := backUp("00000000000000000000000000000001")
	if q.Sources[0].Checkpoint != "" || q.Sources[0].Options.Bitmap != "" {
		t.Errorf("the caller's request was changed: %+v", q.Sources[0])
	}

	// The same request again finds the restore point, and leaves the image as it is.
	if again := backUp(first.ID); again.Disks[0].Change != first.Disks[0].Change {
		t.Errorf("the checkpoint %s has become %s", first.Disks[0].Change, again.Disks[0].Change)
	}

	qemu(t, "qemu-io", "-f", "qcow2", "-c", "write -q -P 2 2M 256k", image)
	if p := backUp("00000000000000000000000000000002"); p.Disks[0].FullReason != "" || p.Disks[0].Base != first.Disks[0].Change || p.Disks[0].Stats.ReadBytes != 256<<10 {
		t.Errorf("%+v", p.Disks[0])
	}
	if len(warnings) > 0 {
		t.Errorf("warnings: %v", warnings)
	}

	// A bitmap that does not record is not used, and the caller hears of it.
	qemu(t, "qemu-img", "bitmap", "--disable", image, bitmapNames(t, image)[0])
	if p := backUp("00000000000000000000000000000003"); p.Disks[0].FullReason != repository.FullNoChanges {
		t.Errorf("%+v", p.Disks[0])
	}
	if len(warnings) != 1 || !strings.Contains(warnings[0].Error(), "disk root is read as a whole") {
		t.Errorf("warnings: %v", warnings)
	}
}

func TestBackup_needsTheBitmapOfItsCheckpoint(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	image := filepath.Join(t.TempDir(), "disk.qcow2")
	qemu(t, "qemu-img", "create", "-q", "-f", "qcow2", image, "16M")
	q := BackupRequest{History: r.Source("", "", "/web"), Sources: []Source{{
		Name: "root", Location: image, Options: disk.SourceOptions{Format: disk.QCOW2}, Checkpoint: NewCheckpoint(),
	}}}
	var missing *MissingBitmapError
	if _, err := Backup(t.Context(), r, q); !errors.As(err, &missing) || missing.Source != "root" || missing.Location != image || missing.Checkpoint != q.Sources[0].Checkpoint {
		t.Error(err)
	}
	if err := disk.AddBitmap(t.Context(), image, q.Sources[0].Checkpoint); err != nil {
		t.Fatal(err)
	}
	if p, err := Backup(t.Context(), r, q); err != nil || p.Disks[0].Change != q.Sources[0].Checkpoint {
		t.Errorf("%+v: %v", p, err)
	}
}
