package checkpoint

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
)

func tracker(checkpoint string, disks ...string) backupv1.VirtualMachineBackupTracker {
	t := backupv1.VirtualMachineBackupTracker{}
	if checkpoint != "" {
		t.Status.LatestCheckpoint = &backupv1.Checkpoint{Name: checkpoint, Disks: disks}
	}
	return t
}

func TestRedefinition_hasOnlyDisksThatTheGuestTracks(t *testing.T) {
	t.Parallel()
	disks := []*pb.Disk{{Volume: "a", Tracked: true}, {Volume: "b"}, {Volume: "c", Tracked: true}}
	for _, test := range []struct {
		tracker backupv1.VirtualMachineBackupTracker
		want    []string
	}{
		{tracker("k", "a", "b", "gone"), []string{"a"}},
		{tracker("k", "a", "c"), []string{"a", "c"}},
		{tracker("k", "b"), nil},
		{tracker(""), nil},
	} {
		if diff := cmp.Diff(test.want, redefinitionOf(&test.tracker, disks).GetVolumes()); diff != "" {
			t.Errorf("%+v: %s", test.tracker.Status.LatestCheckpoint, diff)
		}
	}
}

func TestLostDisks_areThoseThatAreNotValid(t *testing.T) {
	t.Parallel()
	asked := &pb.Checkpoint{Name: "k", Volumes: []string{"valid", "lost", "unsaid", "replaced", "elsewhere", "written", "crashed"}}
	results := []*pb.RedefineCheckpointsResponse_Result{{Name: "other"}, {
		Name: "k", Valid: []string{"valid"}, Lost: map[string]string{"lost": "inconsistent", "replaced": "m", "elsewhere": "m", "written": "m", "crashed": "m"},
	}}
	disks := []*pb.Disk{
		{Volume: "replaced", OverlayRenewed: "DiskReplaced"},
		{Volume: "elsewhere", OverlayRenewed: "UsedElsewhere"},
		{Volume: "written", OverlayRenewed: "WrittenWithoutOverlay"},
		{Volume: "crashed", OverlayRenewed: "NotClean"},
		{Volume: "lost"},
	}
	got := map[string]backupv1.FullReason{}
	for _, d := range lostDisks(asked, results, disks) {
		got[d.Volume] = d.Reason
		if d.Message == "" {
			t.Errorf("%s: no message", d.Volume)
		}
	}
	want := map[string]backupv1.FullReason{
		"lost": "BitmapLost", "unsaid": "BitmapLost", "replaced": "DiskReplaced", "elsewhere": "DiskReplaced", "written": "DiskReplaced", "crashed": "BitmapLost",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if n := len(lostDisks(asked, nil, nil)); n != len(asked.GetVolumes()) {
		t.Errorf("a launcher that answers nothing lost %d disks", n)
	}
}

func TestDiscard(t *testing.T) {
	t.Parallel()
	d := func(volume string, why backupv1.FullReason) backupv1.DiscardedDisk {
		return backupv1.DiscardedDisk{Volume: volume, Reason: why}
	}
	s := tracker("k", "a", "b").Status
	s.Discarded = []backupv1.DiscardedDisk{d("a", "DiskReplaced")}
	if gone := Discard(&s, "older", []backupv1.DiscardedDisk{d("a", "BitmapLost")}); gone != nil || len(s.LatestCheckpoint.Disks) != 2 {
		t.Errorf("another checkpoint was changed: %+v", s)
	}
	gone := Discard(&s, "k", []backupv1.DiscardedDisk{d("a", "BitmapLost"), d("x", "BitmapLost")})
	if len(gone) != 1 || s.LatestCheckpoint == nil || len(s.Discarded) != 1 || s.Discarded[0].Reason != "BitmapLost" {
		t.Errorf("%+v, %+v", gone, s)
	}
	if Discard(&s, "k", []backupv1.DiscardedDisk{d("b", "BitmapLost")}); s.LatestCheckpoint != nil || len(s.Discarded) != 2 {
		t.Errorf("a checkpoint without disks: %+v", s)
	}
}

func TestUnreferencedCheckpoints_areThoseThatNoTrackerNames(t *testing.T) {
	t.Parallel()
	state := &pb.State{Checkpoints: []*pb.Checkpoint{{Name: "k1"}, {Name: "stray"}}, StrayBitmaps: []string{"k2", "forgotten"}}
	trackers := []backupv1.VirtualMachineBackupTracker{tracker("k1", "a"), tracker("k2", "a"), tracker("")}
	if diff := cmp.Diff([]string{"stray", "forgotten"}, unreferencedCheckpoints(state, trackers)); diff != "" {
		t.Error(diff)
	}
}
