package harvesterbackup

import (
	"testing"
	"time"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
)

// When a disk fails, the others are canceled. The backup says what the first one failed for.
func TestObserveUploads_namesTheCause(t *testing.T) {
	t.Parallel()
	upload := func(phase velerov2.Phase, message string) *velerov2.DataUpload {
		return &velerov2.DataUpload{Status: velerov2.DataUploadStatus{Phase: phase, Message: message}}
	}
	canceled := upload(velerov2.PhaseCanceled, "spec.cancel was set")
	failed := upload(velerov2.PhaseFailed, "the guest ended")
	for name, c := range map[string]struct {
		all  uploads
		want string
	}{
		"canceled first": {uploads{"blk": canceled, "file": failed}, "volume file: the guest ended"},
		"failed first":   {uploads{"blk": failed, "file": canceled}, "volume blk: the guest ended"},
		"canceled alone": {uploads{"blk": canceled, "file": canceled}, "volume blk: spec.cancel was set"},
	} {
		s := &harvesterv1.VirtualMachineBackupStatus{
			VolumeBackups: []harvesterv1.VolumeBackup{{VolumeName: "blk"}, {VolumeName: "file"}},
		}
		if o := observeUploads(s, time.Unix(0, 0), c.all); o.failed != c.want || !o.ended {
			t.Errorf("%s: %q, ended %v, want %q", name, o.failed, o.ended, c.want)
		}
	}
}
