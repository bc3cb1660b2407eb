//go:build nbd_interop

package disk

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/loop"
	"github.com/varvebackup/varve/test/verdict"
)

func TestDiskInUse_isNoSource(t *testing.T) {
	t.Parallel()
	raw, content := sparseFile(t, mib, extent.Extent{Length: mib})
	serveWith(t, "raw", raw)
	_, err := OpenSource(t.Context(), raw, SourceOptions{})
	wantError(t, err, errclass.Conflict, raw, "in use", "NBD export")
	wantBytes(t, openSource(t, raw, SourceOptions{IgnoreLocks: true}), content)

	image, _ := cleanImage(t)
	serveWith(t, "qcow2", image)
	_, err = OpenSource(t.Context(), image, SourceOptions{Format: QCOW2})
	wantError(t, err, errclass.Conflict, image, "in use", "NBD export")
	_, err = OpenSource(t.Context(), image, SourceOptions{Format: QCOW2, IgnoreLocks: true})
	wantError(t, err, errclass.Invalid, image, "in memory")

	// The image of a running guest, on a base that others may read.
	over := imageWithBacking(t, raw, "raw")
	_, err = OpenSource(t.Context(), over, SourceOptions{Format: QCOW2, Backing: []BackingFile{{Format: Raw, Path: raw}}})
	wantError(t, err, errclass.Conflict, raw, "in use")

	file, content := sparseFile(t, mib, extent.Extent{Length: mib})
	device := loop.Device(t, file)
	serveWith(t, "raw", device)
	_, err = OpenSource(t.Context(), device, SourceOptions{})
	wantError(t, err, errclass.Conflict, device, "in use")
	wantBytes(t, openSource(t, device, SourceOptions{IgnoreLocks: true}), content)
}

func TestDiskThatIsRead_isNotWritten(t *testing.T) {
	t.Parallel()
	raw, content := sparseFile(t, mib, extent.Extent{Length: mib})
	image, imageContent := cleanImage(t)
	for _, disk := range []struct {
		path    string
		format  Format
		content []byte
	}{{raw, Raw, content}, {image, QCOW2, imageContent}} {
		path, format, o := disk.path, string(disk.format), SourceOptions{Format: disk.format}
		source, err := OpenSource(t.Context(), path, o)
		if err != nil {
			t.Fatal(err)
		}
		wantBytes(t, openSource(t, path, o), disk.content) // others may read it, too
		run(t, "qemu-io", "-r", "-f", format, "-c", "read 0 512", path)
		if out, err := tool(t, "qemu-io", "-f", format, "-c", "write 0 512", path).CombinedOutput(); err == nil {
			t.Errorf("%s: QEMU writes it meanwhile: %s", format, out)
		}
		_, err = OpenTarget(t.Context(), path, mib, TargetOptions{Format: o.Format, Overwrite: true})
		wantError(t, err, errclass.Conflict, path)
		if err := source.Close(); err != nil {
			t.Fatal(err)
		}
	}
	// Once the source is closed, nothing stands in the way.
	path, _ := sparseFile(t, mib)
	source, err := OpenSource(t.Context(), path, SourceOptions{})
	if err := errors.Join(err, source.Close()); err != nil {
		t.Fatal(err)
	}
	run(t, "qemu-io", "-f", "raw", "-c", "write 0 512", path)
}

func TestRawDiskAsQCOW2_isSaidSo(t *testing.T) {
	t.Parallel()
	path, _ := sparseFile(t, mib, extent.Extent{Length: mib})
	_, err := OpenSource(t.Context(), path, SourceOptions{Format: QCOW2})
	wantError(t, err, errclass.Invalid, path, "not in qcow2 format")
}

// A qcow2 restore that is nearly done, with a file as large as the disk, is not half of a raw one.
func TestJournal_isOfOneFormat(t *testing.T) {
	t.Parallel()
	path, content := filepath.Join(t.TempDir(), "new"), noise(mib, 5)
	j := newTestJournal(t, JournalOptions{Token: "a"})
	target, err := OpenTarget(t.Context(), path, mib, TargetOptions{Format: QCOW2, Journal: j})
	if err != nil {
		t.Fatal(err)
	}
	restore(t, target, j, content, 31)
	if err := errors.Join(j.Save(t.Context(), target), target.Close()); err != nil {
		t.Fatal(err)
	}
	before := contentOf(t, path)
	if len(before) < mib {
		t.Fatalf("%d bytes are fewer than the disk has", len(before))
	}
	_, err = OpenTarget(t.Context(), path, mib, TargetOptions{Format: Raw, Journal: newTestJournal(t, JournalOptions{Token: "a"})})
	wantError(t, err, errclass.Conflict, path, "qcow2")
	if string(contentOf(t, path)) != string(before) {
		verdict.Errorf(t, "the image has changed")
	}
	target, err = OpenTarget(t.Context(), path, mib, TargetOptions{Format: QCOW2, Journal: newTestJournal(t, JournalOptions{Token: "a"})})
	if err := errors.Join(err, target.Close()); err != nil {
		t.Error(err)
	}
}
