package names_test

import (
	"strings"
	"testing"

	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/names"
)

// Handles of volumes and of sources never meet, and name heads that never meet an image.
func TestVolumeHandle_isAUIDAndNoSource(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, name := range []string{
		"pvc-0b1e5a0e-9f3c-4b43-8a34-1f1b2f0f9c11", "Sanity Volume/1", "", "-a", "a-", "source-1", "image-1", strings.Repeat("x", 64),
		strings.Repeat("x", 63),
	} {
		handle := names.VolumeHandle(name)
		if err := disk.UID(handle).Validate(); err != nil {
			t.Errorf("%q: %v", name, err)
		}
		if names.Head(handle) == names.Head(names.SourceHandle("1")) || strings.HasPrefix(handle, "source-") ||
			names.Head(handle) == names.Head(names.ReaderHandle("1")) || names.IsReader(handle) {
			t.Errorf("%q has the handle %q, which is a source's or a reader's", name, handle)
		}
		if other, ok := seen[handle]; ok {
			t.Errorf("%q and %q have the handle %q", name, other, handle)
		}
		seen[handle] = name
	}
	if got := names.VolumeHandle("pvc-1"); got != "pvc-1" {
		t.Errorf("handle %q", got)
	}
}

func TestIsImage_findsTheImage(t *testing.T) {
	t.Parallel()
	const uuid = "0a1b2c3d-0000-4000-8000-000000000001"
	image, found, ok := names.IsImage(names.Image("ubuntu-22.04", uuid))
	if !ok || image != "ubuntu-22.04" || found != uuid {
		t.Errorf("%q, %q, %t", image, found, ok)
	}
	for _, name := range []disk.Name{names.Head("image"), "image/ubuntu-22.04"} {
		if image, _, ok := names.IsImage(name); ok {
			t.Errorf("%s is image %q", name, image)
		}
	}
	if names.Image("a", "1") == names.Image("a", "2") {
		t.Error("two images of one name have the same name on a disk")
	}
	if err := names.Image(strings.Repeat("x", 63), uuid).Validate(); err != nil {
		t.Error(err)
	}
}

func TestIsHead_findsTheHandle(t *testing.T) {
	t.Parallel()
	for _, handle := range []string{"pvc-1", names.SourceHandle("1")} {
		if got, ok := names.IsHead(names.Head(handle)); !ok || got != handle {
			t.Errorf("%q, %t: the head is %s's", got, ok, handle)
		}
		if got := names.IsSource(handle); got != (handle != "pvc-1") {
			t.Errorf("%s: source %t", handle, got)
		}
	}
	for _, name := range []disk.Name{names.Image("a", "1"), names.Copy("1")} {
		if handle, ok := names.IsHead(name); ok {
			t.Errorf("%s is the head of %q", name, handle)
		}
	}
}
