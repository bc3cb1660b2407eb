package kubevirtbackup

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/internal/backupstate"
	"github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/test/gen"
)

func TestPlan_decidesEachDiskAlone(t *testing.T) {
	t.Parallel()
	base := func(disks ...string) *backupv1.Checkpoint {
		return &backupv1.Checkpoint{Name: "tr-1", Disks: disks, BackupUID: "uid-1", Target: &backupv1.BackupTarget{
			PVCName: "target", PVCUID: "claim-1", Directory: "vm/b-1", ManifestSHA256: "digest",
		}}
	}
	baseOn := func(change func(*backupv1.BackupTarget)) *backupv1.VirtualMachineBackupTrackerStatus {
		c := base("a", "b")
		change(c.Target)
		return &backupv1.VirtualMachineBackupTrackerStatus{LatestCheckpoint: c}
	}
	older := base("a", "b")
	older.Target = nil
	tracked := backupv1.VirtualMachineBackupSpec{BackupTracker: "tr"}
	lost := []backupv1.DiscardedDisk{{Volume: "a", Reason: backupv1.FullBitmapLost}, {Volume: "b", Reason: backupv1.FullDiskReplaced}}
	tests := []struct {
		name string
		in   planInput
		// want is the full reason of each of the disks a and b. Empty means incremental.
		want map[string]backupv1.FullReason
	}{
		{"no tracker", planInput{}, map[string]backupv1.FullReason{"a": "NoTracker", "b": "NoTracker"}},
		{
			"the first backup of a tracker",
			planInput{Spec: tracked, Tracker: &backupv1.VirtualMachineBackupTrackerStatus{}},
			map[string]backupv1.FullReason{"a": "NoCheckpoint", "b": "NoCheckpoint"},
		},
		{
			"the tracker went",
			planInput{Spec: tracked, Base: base("a", "b")},
			map[string]backupv1.FullReason{"a": "NoCheckpoint", "b": "NoCheckpoint"},
		},
		{
			"all incremental",
			planInput{Spec: tracked, Base: base("a", "b"), Tracker: &backupv1.VirtualMachineBackupTrackerStatus{LatestCheckpoint: base("a", "b")}},
			map[string]backupv1.FullReason{"a": "", "b": ""},
		},
		{
			"forced",
			planInput{
				Spec: backupv1.VirtualMachineBackupSpec{BackupTracker: "tr", ForceFullBackup: true}, Base: base("a", "b"),
				Tracker: &backupv1.VirtualMachineBackupTrackerStatus{LatestCheckpoint: base("a", "b")},
			},
			map[string]backupv1.FullReason{"a": "ForceFullBackup", "b": "ForceFullBackup"},
		},
		{
			"a new disk",
			planInput{Spec: tracked, Base: base("a"), Tracker: &backupv1.VirtualMachineBackupTrackerStatus{LatestCheckpoint: base("a")}},
			map[string]backupv1.FullReason{"a": "", "b": "NewDisk"},
		},
		{
			"one disk was discarded",
			planInput{Spec: tracked, Base: base("a", "b"), Tracker: &backupv1.VirtualMachineBackupTrackerStatus{LatestCheckpoint: base("b"), Discarded: lost[:1]}},
			map[string]backupv1.FullReason{"a": "BitmapLost", "b": ""},
		},
		{
			"every disk was discarded",
			planInput{Spec: tracked, Base: base("a", "b"), Tracker: &backupv1.VirtualMachineBackupTrackerStatus{Discarded: lost}},
			map[string]backupv1.FullReason{"a": "BitmapLost", "b": "DiskReplaced"},
		},
		{
			"the tracker has another checkpoint than the controller read",
			planInput{
				Spec: tracked, Base: base("a", "b"),
				Tracker: &backupv1.VirtualMachineBackupTrackerStatus{LatestCheckpoint: &backupv1.Checkpoint{Name: "tr-9", Disks: []string{"a", "b"}}},
			},
			map[string]backupv1.FullReason{"a": "NoCheckpoint", "b": "NoCheckpoint"},
		},
		{
			"the claim was made anew, or is another",
			planInput{Spec: tracked, Base: base("a", "b"), Tracker: baseOn(func(t *backupv1.BackupTarget) { t.PVCUID = "claim-0" })},
			map[string]backupv1.FullReason{"a": "TargetReplaced", "b": "TargetReplaced"},
		},
		{
			"an older version recorded no target",
			planInput{Spec: tracked, Base: older, Tracker: &backupv1.VirtualMachineBackupTrackerStatus{LatestCheckpoint: older}},
			map[string]backupv1.FullReason{"a": "ParentUnknown", "b": "ParentUnknown"},
		},
		{
			"no manifest is recorded",
			planInput{Spec: tracked, Base: base("a", "b"), Tracker: baseOn(func(t *backupv1.BackupTarget) { t.ManifestSHA256 = "" })},
			map[string]backupv1.FullReason{"a": "ParentUnknown", "b": "ParentUnknown"},
		},
		{
			"the controller read no checkpoint",
			planInput{Spec: tracked, Tracker: &backupv1.VirtualMachineBackupTrackerStatus{LatestCheckpoint: base("a", "b")}},
			map[string]backupv1.FullReason{"a": "NoCheckpoint", "b": "NoCheckpoint"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.in.Disks = []*launcherpb.Disk{
				{Volume: "a", Tracked: true, VirtualBytes: 10}, {Volume: "cdrom"}, {Volume: "b", Tracked: true, VirtualBytes: 20},
			}
			test.in.TargetUID = "claim-1"
			p := planDisks(test.in)
			got, incremental := map[string]backupv1.FullReason{}, false
			for _, v := range p.Volumes {
				got[v.Name] = v.FullReason
				incremental = incremental || v.incremental()
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
			if (p.Base != nil) != incremental {
				t.Errorf("base %+v although incremental is %v", p.Base, incremental)
			}
			b := &backupv1.VirtualMachineBackup{Spec: test.in.Spec}
			if r := p.beginRequest(b, "backup-1"); (r.GetBaseCheckpoint() == "tr-1" && r.GetBaseBackupUid() == "uid-1" &&
				r.GetBaseDirectory() == "vm/b-1" && r.GetBaseManifestSha256() == "digest") != incremental {
				t.Errorf("request %+v", r)
			}
			if p.recordIn(&b.Status); (b.Status.BackupType == backupv1.Incremental) != incremental {
				t.Errorf("type %s", b.Status.BackupType)
			}
		})
	}
}

// What is not in a backup is said, with the reason, in its status and in its manifest.
func TestPlan_saysWhatIsLeftOut(t *testing.T) {
	t.Parallel()
	instance := gen.Guest(gen.Disk("root", "root"), gen.Disk("shared", "shared"), gen.Disk("iso", "iso"), gen.Disk("odd", "odd"))
	instance.Domain.Devices.Disks[1].Shareable = ptr.To(true)
	instance.Domain.Devices.Disks[2].Disk.ReadOnly = true
	p := planDisks(planInput{Instance: instance, Disks: []*launcherpb.Disk{
		{Volume: "root", Tracked: true}, {Volume: "shared"}, {Volume: "iso"}, {Volume: "odd", NotTracked: "its size is odd"},
	}})
	b := &backupv1.VirtualMachineBackup{}
	b.Status.ExcludedVolumes = []backupv1.ExcludedVolume{
		{Name: "new", Reason: backupv1.ExcludedNotAttached, Message: "restart"}, {Name: "root", Reason: backupv1.ExcludedNotTracked}, // of an earlier round
	}
	p.recordIn(&b.Status)
	want := []backupv1.ExcludedVolume{
		{Name: "new", Reason: backupv1.ExcludedNotAttached, Message: "restart"},
		{Name: "shared", Reason: backupv1.ExcludedShareable, Message: backupstate.VolumeShareable},
		{Name: "iso", Reason: backupv1.ExcludedReadOnly, Message: backupstate.VolumeReadOnly},
		{Name: "odd", Reason: backupv1.ExcludedNotTracked, Message: "its size is odd"},
	}
	if diff := cmp.Diff(want, b.Status.ExcludedVolumes); diff != "" {
		t.Error(diff)
	}
	request := p.beginRequest(b, "backup-1")
	for i, v := range want {
		if got := request.GetExcludedVolumes()[i]; got.GetVolume() != v.Name || got.GetReason() != string(v.Reason) || got.GetMessage() != v.Message {
			t.Errorf("request: %v, want %v", got, v)
		}
	}
	if said := backupstate.Completed(&b.Status, "target").Message; !strings.Contains(said, "Not in the backup: new (RestartRequired), shared (Shareable), iso (ReadOnly), odd (NotTracked)") {
		t.Error(said)
	}
}

func TestPlan_eachRoundTurnsADiskFull(t *testing.T) {
	t.Parallel()
	planned := []backupv1.IncludedVolume{{Name: "a", Type: backupv1.Incremental}, {Name: "b", Type: backupv1.Incremental}, {Name: "c", Type: backupv1.Full}}
	named := &launcherpb.Backup{Volumes: []*launcherpb.BackedUpVolume{{Volume: "b", BaseLost: true}, {Volume: "c", BaseLost: true}, {Volume: "x", BaseLost: true}}}
	if diff := cmp.Diff([]string{"b"}, disksWithLostBase(planned, named)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"a", "b"}, disksWithLostBase(planned, &launcherpb.Backup{})); diff != "" {
		t.Error(diff)
	}
	if got := disksWithLostBase(planned[2:], named); got != nil {
		t.Errorf("a full backup has no base to lose: %v", got)
	}
}

func TestPlan_replacedTrackerGivesNoBase(t *testing.T) {
	t.Parallel()
	b := &backupv1.VirtualMachineBackup{}
	b.Spec.BackupTracker, b.Status.TrackerUID = "daily", "first"
	for tracker, want := range map[[2]string]bool{{"daily", "first"}: true, {"daily", "second"}: false, {"weekly", "first"}: false} {
		if got := isPlannedTracker(b, &backupv1.VirtualMachineBackupTracker{ObjectMeta: metav1.ObjectMeta{Name: tracker[0], UID: types.UID(tracker[1])}}); got != want {
			t.Errorf("%v: %v", tracker, got)
		}
	}
}

// Unlike the plan, the launcher sees the target. It may make a planned incremental full because its parent is
// missing, and may change nothing else.
func TestMirror_takesOverALostParent(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		planned backupv1.IncludedVolume
		told    *launcherpb.BackedUpVolume
		want    backupv1.IncludedVolume
	}{
		"parent missing": {
			backupv1.IncludedVolume{Type: backupv1.Incremental},
			&launcherpb.BackedUpVolume{FullReason: "ParentMissing"},
			backupv1.IncludedVolume{Type: backupv1.Full, FullReason: backupv1.FullParentMissing},
		},
		"parent changed": {
			backupv1.IncludedVolume{Type: backupv1.Incremental},
			&launcherpb.BackedUpVolume{FullReason: "ParentChanged"},
			backupv1.IncludedVolume{Type: backupv1.Full, FullReason: backupv1.FullParentChanged},
		},
		"as planned": {
			backupv1.IncludedVolume{Type: backupv1.Incremental},
			&launcherpb.BackedUpVolume{Incremental: true},
			backupv1.IncludedVolume{Type: backupv1.Incremental},
		},
		"another reason": {
			backupv1.IncludedVolume{Type: backupv1.Incremental},
			&launcherpb.BackedUpVolume{FullReason: "whatever"},
			backupv1.IncludedVolume{Type: backupv1.Incremental},
		},
		"full already": {
			backupv1.IncludedVolume{Type: backupv1.Full, FullReason: backupv1.FullBitmapLost},
			&launcherpb.BackedUpVolume{FullReason: "ParentMissing"},
			backupv1.IncludedVolume{Type: backupv1.Full, FullReason: backupv1.FullBitmapLost},
		},
	} {
		test.planned.Name, test.told.Volume, test.want.Name = "a", "a", "a"
		b := &backupv1.VirtualMachineBackup{Status: backupv1.VirtualMachineBackupStatus{IncludedVolumes: []backupv1.IncludedVolume{test.planned}}}
		mirrorJob(b, &launcherpb.Backup{Phase: launcherpb.Backup_DONE, ManifestSha256: "digest", Volumes: []*launcherpb.BackedUpVolume{test.told}})
		if diff := cmp.Diff(test.want, b.Status.IncludedVolumes[0]); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if b.Status.BackupType != test.want.Type || b.Status.ManifestSHA256 != "digest" {
			t.Errorf("%s: type %s, manifest %q", name, b.Status.BackupType, b.Status.ManifestSHA256)
		}
	}
}
