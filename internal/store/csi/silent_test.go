package csi

import (
	"context"
	"errors"
	"testing"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/diskguard"
	"github.com/varvebackup/varve/internal/store/diskset"
)

// silentDisk does not answer.
type silentDisk struct{ disk.Disk }

func (silentDisk) List(context.Context) ([]disk.Object, error) { return nil, diskguard.ErrSilent }

// A disk that does not answer keeps nobody from the volumes of another one, and no volume counts as deleted meanwhile.
func TestFindHead_looksAtTheOtherDisks(t *testing.T) {
	t.Parallel()
	disks := &diskset.Set{}
	disks.Put(diskset.Disk{Disk: silentDisk{}, Name: "a", UUID: "disk-a"})
	disks.Put(diskset.Disk{Disk: &deletions{handle: "pvc-1"}, Name: "b", UUID: "disk-b"})
	d := New(Options{Disks: disks})
	on, head, err := d.findHead(t.Context(), "pvc-1", "")
	if err != nil || on.Name != "b" || head.Name != "volume/pvc-1" {
		t.Errorf("the volume of the other disk: %+v, %+v, %v", on, head, err)
	}
	for _, known := range []disk.UID{"", "disk-a"} {
		if _, _, err := d.findHead(t.Context(), "pvc-2", known); errclass.Of(err) != errclass.Transient ||
			errors.Is(err, errclass.NotFound) {
			t.Errorf("a volume that may be on disk %q: %v", known, err)
		}
	}
}
