package backingimage

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
)

func TestDecideFirstCopy_restore(t *testing.T) {
	t.Parallel()
	const progress, failure = longhornv1.ReasonFirstCopyInProgress, longhornv1.ReasonFirstCopyFailed
	deleted := metav1.NewTime(now)
	for name, c := range map[string]struct {
		edit  func(*fixture)
		want  outcome
		words string
	}{
		"a location that is not there": {
			func(f *fixture) { f.origin.location = nil },
			outcome{first: pending, reason: longhornv1.ReasonSourceNotReady},
			"the BackupStorageLocation s3, which sourceParameters.backup-storage-location names, does not exist",
		},
		"no restore point": {
			func(f *fixture) { f.image.Spec.SourceParameters[longhornv1.ParameterSnapshotID] = "varve1.disk.1.app" },
			outcome{first: pending, reason: longhornv1.ReasonSourceNotReady},
			`restore point "1" is not 32 hexadecimal digits: make another image`,
		},
		"a location that goes": {
			func(f *fixture) {
				f.origin.location = &velerov1.BackupStorageLocation{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &deleted}}
			},
			outcome{first: pending, reason: longhornv1.ReasonSourceNotReady},
			"is being deleted",
		},
		"the beginning": {
			func(*fixture) {},
			outcome{first: inProgress, disk: "a", disks: "a", states: "a pending", reason: progress},
			"gets the first copy",
		},
		"a storage that one node reaches": {
			func(f *fixture) { f.origin.storage.Nodes = map[string]bool{"b": true, "z": true} },
			outcome{first: inProgress, disk: "b", disks: "b", states: "b pending", reason: progress},
			"gets the first copy",
		},
		"a storage that no node with a disk reaches": {
			func(f *fixture) { f.origin.storage.Nodes = map[string]bool{"a": false, "z": true} },
			outcome{first: pending, reason: longhornv1.ReasonNoDisk},
			"no node that reaches the storage of the BackupStorageLocation s3 has a disk",
		},
		"a storage that one node uses": {
			func(f *fixture) { f.origin.storage.InUse = "c" },
			outcome{first: inProgress, disk: "c", disks: "c", states: "c pending", reason: progress},
			"gets the first copy",
		},
		"a storage that one node uses, whose disk has failed": {
			func(f *fixture) {
				f.origin.storage.InUse = "c"
				f.begun("c", pending)
				delete(f.image.Spec.DiskFileSpecMap, "disk-c")
			},
			outcome{first: inProgress, disk: "a", disks: "a", states: "a pending", reason: progress},
			"gets the first copy",
		},
		"a node that is cordoned": {
			func(f *fixture) {
				f.kubeNodes("a", "b", "c")
				f.origin.kubeNodes[0].Spec.Unschedulable = true
			},
			outcome{first: inProgress, disk: "b", disks: "b", states: "b pending", reason: progress},
			"gets the first copy",
		},
		"nodes that take no pods": {
			func(f *fixture) {
				f.kubeNodes("a", "b")
				f.origin.kubeNodes[0].Spec.Unschedulable = true
				f.origin.kubeNodes[1].Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}
			},
			outcome{first: pending, reason: longhornv1.ReasonNoDisk},
			"default-disk of node a is on a node that takes no pods of the data mover, because it is cordoned",
		},
		"a taint that is tolerated": {
			func(f *fixture) {
				f.kubeNodes("a")
				f.origin.kubeNodes[0].Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}
				f.origin.tolerations = []corev1.Toleration{{Key: "k", Operator: corev1.TolerationOpExists}}
			},
			outcome{first: inProgress, disk: "a", disks: "a", states: "a pending", reason: progress},
			"gets the first copy",
		},
		"a head": {
			func(f *fixture) { f.begun("a", inProgress); f.reports("a", inProgress) },
			outcome{first: inProgress, disk: "a", disks: "a", states: "a in-progress", source: makeSource, reason: progress},
			"0 % of the source were read",
		},
		"a DataDownload that waits": {
			func(f *fixture) { f.isRestored(velerov2.PhaseAccepted, "waiting for the repository") },
			outcome{first: inProgress, disk: "a", disks: "a", states: "a in-progress", source: makeSource, reason: progress},
			"0 % of the source were read: waiting for the repository",
		},
		"a DataDownload that goes on": {
			func(f *fixture) {
				f.isRestored(velerov2.PhaseInProgress, "")
				f.source.download.Status.Progress = velerov2.Progress{TotalBytes: 1000, BytesDone: 425}
			},
			outcome{first: inProgress, disk: "a", disks: "a", states: "a in-progress", source: makeSource, reason: progress},
			"42 % of the source were read",
		},
		"a DataDownload that is complete": {
			func(f *fixture) {
				f.begun("a", inProgress)
				f.reports("a", inProgress, func(i *longhornv1.BackingImageV2CopyInfo) { i.Progress = 99 })
				f.hasDownload(velerov2.PhaseCompleted, "")
			},
			outcome{first: inProgress, disk: "a", disks: "a", states: "a in-progress", source: removeSource, reason: progress},
			"is read back and sealed",
		},
		"a DataDownload that has failed": {
			func(f *fixture) { f.isRestored(velerov2.PhaseFailed, "the restore point does not exist") },
			outcome{first: failed, disk: "a", states: "a in-progress", source: removeSource, reason: failure},
			"attempt 1 failed: DataDownload source-u is Failed: the restore point does not exist; the next one begins at",
		},
		"a DataDownload that somebody has canceled": {
			func(f *fixture) {
				f.isRestored(velerov2.PhaseInProgress, "")
				f.source.download.Spec.Cancel = true
			},
			outcome{first: failed, disk: "a", states: "a in-progress", source: removeSource, reason: failure},
			"was canceled by somebody else",
		},
		"a DataDownload that somebody has deleted": {
			func(f *fixture) {
				f.isRestored(velerov2.PhaseInProgress, "")
				f.source.download.DeletionTimestamp = &deleted
			},
			outcome{first: failed, disk: "a", states: "a in-progress", source: removeSource, reason: failure},
			"was deleted by somebody else",
		},
		"what is left of an attempt": {
			func(f *fixture) {
				f.begun("a", failed)
				delete(f.image.Spec.DiskFileSpecMap, "disk-a")
				f.image.Status.FirstCopyRetryTime = ptr.To(metav1.NewTime(now))
				f.hasDownload(velerov2.PhaseCanceling, "")
				f.source.claim, f.source.volume = nil, nil
			},
			outcome{first: failed, disk: "a", source: removeSource, reason: failure},
			"the next one begins at",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture()
			f.restores()
			c.edit(f)
			c.want.compare(t, f.decide(), c.words)
		})
	}
}

func TestNewDownload(t *testing.T) {
	t.Parallel()
	f := newFixture()
	f.restores()
	f.begun("a", inProgress)
	d, err := newDownload(f.image)
	if err != nil || d.Name != "source-u" || d.Spec.SourceNamespace != "app" || d.Spec.BackupStorageLocation != "s3" ||
		d.Spec.TargetVolume != (velerov2.TargetVolumeSpec{Namespace: "varve", PVC: "source-u"}) ||
		d.Labels[LabelImage] != "u" || !metav1.IsControlledBy(d, f.image) {
		t.Errorf("%+v, %v", d, err)
	}
	f.image.Spec.SourceParameters[longhornv1.ParameterSnapshotID] = "kopia-1"
	if _, err := newDownload(f.image); err == nil || !strings.Contains(err.Error(), "sourceParameters.snapshot-id") {
		t.Errorf("%v", err)
	}
}
