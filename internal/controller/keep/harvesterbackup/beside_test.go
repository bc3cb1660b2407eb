package harvesterbackup

import (
	"testing"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/test/gen"
)

// KubeVirt has all disks of the guest in its backup: an incremental needs a bitmap of each. What is on no claim has none.
func TestHasBitmaps(t *testing.T) {
	t.Parallel()
	guest := gen.Guest(gen.Disk("root", "web-root"), gen.Disk("swap", "web-swap"), gen.Disk("plugged", "web-plugged"))
	guest.Volumes = append(guest.Volumes, kubevirtv1.Volume{Name: "cloudinit"})
	excluded := func(name string, reason harvesterv1.ExclusionReason) []harvesterv1.ExcludedVolume {
		return []harvesterv1.ExcludedVolume{{Name: name, Reason: reason}}
	}
	for name, c := range map[string]struct {
		checkpoint []string
		excluded   []harvesterv1.ExcludedVolume
		want       bool
	}{
		"no checkpoint":                           {nil, nil, false},
		"all disks":                               {[]string{"root"}, nil, true},
		"a disk was added":                        {[]string{"other"}, nil, false},
		"a disk that the user leaves out":         {[]string{"root"}, excluded("swap", harvesterv1.ExcludedByUser), false},
		"which the checkpoint has":                {[]string{"root", "swap"}, excluded("swap", harvesterv1.ExcludedByUser), true},
		"a disk that was plugged in":              {[]string{"root"}, excluded("plugged", harvesterv1.HotPlugged), false},
		"a volume on no claim, left out":          {[]string{"root"}, excluded("cloudinit", harvesterv1.ExcludedByUser), true},
		"a volume that the guest does not have":   {[]string{"root"}, excluded("later", harvesterv1.ExcludedByUser), true},
		"a disk that several guests may write to": {[]string{"root"}, excluded("swap", harvesterv1.Shareable), true},
	} {
		tracker := &backupv1.VirtualMachineBackupTracker{}
		if c.checkpoint != nil {
			tracker.Status.LatestCheckpoint = &backupv1.Checkpoint{}
		}
		for _, volume := range c.checkpoint {
			v := backupv1.CheckpointVolume{VolumeName: volume}
			tracker.Status.LatestCheckpoint.Volumes = append(tracker.Status.LatestCheckpoint.Volumes, v)
		}
		b := &harvesterv1.VirtualMachineBackup{}
		b.Status.VolumeBackups = []harvesterv1.VolumeBackup{{VolumeName: "root"}}
		b.Status.ExcludedVolumes = c.excluded
		instance := &kubevirtv1.VirtualMachineInstance{Spec: guest}
		if got := hasBitmaps(tracker, b, instance); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
