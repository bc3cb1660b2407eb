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
		strings.Repeat("x", 63), "snapshot-1", "cloning-1",
	} {
		handle := names.VolumeHandle(name)
		if err := disk.UID(handle).Validate(); err != nil {
			t.Errorf("%q: %v", name, err)
		}
		if names.Head(handle) == names.Head(names.SourceHandle("1")) || strings.HasPrefix(handle, "source-") ||
			names.Head(handle) == names.Head(names.ReaderHandle("1")) || names.IsReader(handle) {
			t.Errorf("%q has the handle %q, which is a source's or a reader's", name, handle)
		}
		if strings.HasPrefix(handle, "snapshot-") || strings.HasPrefix(handle, "cloning-") {
			t.Errorf("%q has the handle %q, which is the UID of a snapshot", name, handle)
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

// Snapshots have UIDs that no volume has, names that are found again, and handles that say where they are.
func TestSnapshot_isFoundByItsHandle(t *testing.T) {
	t.Parallel()
	seen := map[disk.UID]string{}
	for _, name := range []string{
		"snapshot-0b1e5a0e-9f3c-4b43-8a34-1f1b2f0f9c11", "any Name/1", "", "pvc-1", "snapshot-" + strings.Repeat("x", 64),
	} {
		uid := names.SnapshotUID(name)
		if err := uid.Validate(); err != nil || seen[uid] != "" || !strings.HasPrefix(string(uid), "snapshot-") {
			t.Errorf("%q has the UID %s, as %q: %v", name, uid, seen[uid], err)
		}
		seen[uid] = name
		on, found, ok := names.ParseSnapshotHandle(names.SnapshotHandle("disk-1", uid))
		if !ok || on != "disk-1" || found != uid {
			t.Errorf("%q: %s, %s, %t", name, on, found, ok)
		}
		handle, found, ok := names.IsSnapshot(names.Snapshot("pvc-1", uid))
		if !ok || handle != "pvc-1" || found != uid {
			t.Errorf("%q: %s, %s, %t", name, handle, found, ok)
		}
	}
	if names.SnapshotUID("snapshot-1") != "snapshot-1" {
		t.Error("the snapshot of a VolumeSnapshot does not have its UID")
	}
	for _, handle := range []string{"", "disk-1", "/snapshot-1", "disk-1/pvc-1", "disk-1/snapshot-1/2", "disk-1/../snapshot-1"} {
		if on, uid, ok := names.ParseSnapshotHandle(handle); ok {
			t.Errorf("%q is the snapshot %s of disk %s", handle, uid, on)
		}
	}
	for _, name := range []disk.Name{names.Head("snapshot"), names.Image("a", "1"), "snapshot/pvc-1", "cloning/pvc-1"} {
		if handle, _, ok := names.IsSnapshot(name); ok {
			t.Errorf("%s is a snapshot of %s", name, handle)
		}
	}
}
