package imagebackup

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/store/names"
)

var now = time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC)

const snapshotID = "varve1.disk.0123456789abcdef0123456789abcdef.varve"

// newInput returns a cluster with an image of 1,000,001 bytes that is ready on the nodes a and b, and its backup.
func newInput() *input {
	in := &input{
		now: now,
		backup: &longhornv1.BackupBackingImage{
			ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: "golden-1", UID: "b1"},
			Spec:       longhornv1.BackupBackingImageSpec{BackingImage: "golden"},
		},
		image: &longhornv1.BackingImage{ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: "golden"}},
		locations: []velerov1.BackupStorageLocation{
			{ObjectMeta: metav1.ObjectMeta{Name: "other"}},
			{ObjectMeta: metav1.ObjectMeta{Name: "s3"}, Spec: velerov1.BackupStorageLocationSpec{Default: true}},
		},
	}
	s := &in.image.Status
	s.UUID, s.Checksum, s.Size = "u", strings.Repeat("ab", 64), 1_000_001
	s.DiskFileStatusMap = map[string]*longhornv1.BackingImageDiskFileStatus{}
	in.image.Spec.DiskFileSpecMap = map[string]*longhornv1.BackingImageDiskFileSpec{}
	for _, name := range []string{"a", "b"} {
		s.DiskFileStatusMap["disk-"+name] = &longhornv1.BackingImageDiskFileStatus{State: longhornv1.StateReady}
		in.image.Spec.DiskFileSpecMap["disk-"+name] = nil
		in.nodes = append(in.nodes, longhornv1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Status: longhornv1.NodeStatus{DiskStatus: map[string]*longhornv1.DiskStatus{
				"default-disk": {DiskUUID: "disk-" + name}, "none": nil,
			}},
		})
		in.kubeNodes = append(in.kubeNodes, corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: corev1.ConditionTrue,
			}}},
		})
		in.managers = append(in.managers, longhornv1.InstanceManager{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Status: longhornv1.InstanceManagerStatus{
				CurrentState: longhornv1.ManagerRunning, HeartbeatTime: ptr.To(metav1.NewMicroTime(now.Add(-10 * time.Second))),
			},
		})
	}
	return in
}

// hasUpload has a DataUpload in a phase, with a volume.
func (in *input) hasUpload(phase velerov2.Phase, message string) {
	s := &in.backup.Status
	s.State, s.Location, s.ImageUUID, s.Size = longhornv1.BackupInProgress, "s3", "u", 1_000_001
	in.children.claim, in.children.volume = &corev1.PersistentVolumeClaim{}, &corev1.PersistentVolume{}
	in.children.upload = &velerov2.DataUpload{ObjectMeta: metav1.ObjectMeta{Name: "image-b1"}}
	in.children.upload.Status.Phase, in.children.upload.Status.Message = phase, message
	if phase == velerov2.PhaseCompleted {
		in.children.upload.Status.SnapshotID = snapshotID
	}
}

func TestDecide(t *testing.T) {
	t.Parallel()
	deleted := metav1.NewTime(now)
	const pending, progress = longhornv1.BackupPending, longhornv1.BackupInProgress
	tainted := []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}
	const completed, failed = longhornv1.BackupCompleted, longhornv1.BackupError
	for name, c := range map[string]struct {
		edit  func(*input)
		state longhornv1.BackupState
		do    action
		from  string
		words string // of the message or of the error
		gone  bool   // nothing is left, and the finalizer goes
	}{
		"the beginning": {func(*input) {}, progress, makeChildren, "disk-a", "is being made", false},
		"no image":      {func(in *input) { in.image = nil }, pending, nothing, "", "the image golden does not exist", false},
		"an image that goes": {
			func(in *input) { in.image.DeletionTimestamp = &deleted }, pending, nothing, "", "is being deleted", false,
		},
		"an image that is not ready": {
			func(in *input) { in.image.Status.Checksum = "" }, pending, nothing, "", "is not ready", false,
		},
		"another image meanwhile": {
			func(in *input) { in.backup.Status.ImageUUID = "before" }, failed, nothing, "", "deleted and made again", false,
		},
		"no default location": {
			func(in *input) { in.locations[1].Spec.Default = false }, pending, nothing, "",
			"no BackupStorageLocation in namespace varve is the default one", false,
		},
		"no such location": {
			func(in *input) { in.backup.Spec.BackupTargetName = "none" }, pending, nothing, "",
			"the BackupStorageLocation none does not exist", false,
		},
		"a location that is read-only": {
			func(in *input) { in.locations[1].Spec.AccessMode = velerov1.AccessReadOnly }, pending, nothing, "",
			"the BackupStorageLocation s3 is read-only", false,
		},
		"a copy that failed": {
			func(in *input) { in.image.Status.DiskFileStatusMap["disk-a"].State = longhornv1.StateFailed },
			progress, makeChildren, "disk-b", "", false,
		},
		"a copy that goes": {
			func(in *input) { delete(in.image.Spec.DiskFileSpecMap, "disk-a") }, progress, makeChildren, "disk-b", "", false,
		},
		"a store that is silent": {
			func(in *input) { in.managers[0].Status.CurrentState = longhornv1.ManagerUnknown },
			progress, makeChildren, "disk-b", "", false,
		},
		"a store that never reported": {
			func(in *input) { in.managers[0].Status.HeartbeatTime = nil }, progress, makeChildren, "disk-b", "", false,
		},
		"a copy that is being evicted": {
			func(in *input) {
				in.image.Spec.DiskFileSpecMap["disk-a"] = &longhornv1.BackingImageDiskFileSpec{EvictionRequested: true}
			}, progress, makeChildren, "disk-b", "", false,
		},
		"a node that is cordoned": {
			func(in *input) {
				in.kubeNodes[0].Spec.Unschedulable, in.storage.InUse = true, "a"
			}, progress, makeChildren, "disk-b", "", false,
		},
		"a node that is not ready": {
			func(in *input) { in.kubeNodes[0].Status.Conditions[0].Status = corev1.ConditionUnknown },
			progress, makeChildren, "disk-b", "", false,
		},
		"a node that is gone": {
			func(in *input) { in.kubeNodes = in.kubeNodes[1:] }, progress, makeChildren, "disk-b", "", false,
		},
		"a node that is tainted": {
			func(in *input) { in.kubeNodes[0].Spec.Taints = tainted }, progress, makeChildren, "disk-b", "", false,
		},
		"a taint that movers tolerate": {
			func(in *input) {
				in.kubeNodes[0].Spec.Taints = tainted
				in.tolerations = []corev1.Toleration{{Key: "k", Operator: corev1.TolerationOpExists}}
			}, progress, makeChildren, "disk-a", "", false,
		},
		"no node that takes pods": {
			func(in *input) {
				in.kubeNodes[0].Spec.Unschedulable, in.kubeNodes[1].Spec.Taints = true, tainted
			}, pending, nothing, "", "takes pods, such as node a, because it is cordoned: open one", false,
		},
		"nodes whose clocks are an hour slow": {
			func(in *input) {
				for i := range in.managers {
					in.managers[i].Status.HeartbeatTime = ptr.To(metav1.NewMicroTime(now.Add(-time.Hour)))
				}
			}, progress, makeChildren, "disk-a", "", false,
		},
		"a storage that one node reaches": {
			func(in *input) { in.storage.Nodes = map[string]bool{"b": true} }, progress, makeChildren, "disk-b", "", false,
		},
		"a storage that no node with a copy reaches": {
			func(in *input) { in.storage.Nodes = map[string]bool{"c": true} }, pending, nothing, "",
			"none of 2 copies of the image golden that are ready", false,
		},
		"a storage that one node uses": {
			func(in *input) { in.storage.InUse = "b" }, progress, makeChildren, "disk-b", "", false,
		},
		"a DataUpload that waits": {
			func(in *input) { in.hasUpload(velerov2.PhaseAccepted, "waiting for the repository") },
			progress, nothing, "", "waiting for the repository", false,
		},
		"a DataUpload that is complete": {
			func(in *input) { in.hasUpload(velerov2.PhaseCompleted, "") }, completed, removeVolume, "", "", false,
		},
		"a DataUpload without a restore point": {
			func(in *input) {
				in.hasUpload(velerov2.PhaseCompleted, "")
				in.children.upload.Status.SnapshotID = ""
			}, failed, removeUpload, "", "names no restore point", false,
		},
		"a DataUpload that has failed": {
			func(in *input) { in.hasUpload(velerov2.PhaseFailed, "the bucket is full") },
			failed, removeUpload, "", "DataUpload image-b1 is Failed: the bucket is full", false,
		},
		"a DataUpload of a copy that has rotted": {
			func(in *input) {
				in.hasUpload(velerov2.PhaseFailed, "it is not the image")
				in.children.volume.Spec.CSI = &corev1.CSIPersistentVolumeSource{
					VolumeAttributes: map[string]string{names.ContextDisk: "disk-a"},
				}
			}, failed, removeUpload, "", "is Failed, of the copy on disk disk-a: it is not the image", false,
		},
		"a DataUpload that somebody deletes": {
			func(in *input) {
				in.hasUpload(velerov2.PhaseInProgress, "")
				in.children.upload.DeletionTimestamp = &deleted
			}, failed, removeUpload, "", "was deleted by somebody else", false,
		},
		"complete, with everything": {
			func(in *input) {
				in.hasUpload(velerov2.PhaseCompleted, "")
				in.backup.Status.State = completed
			}, completed, removeVolume, "", "", false,
		},
		"complete": {
			func(in *input) {
				in.hasUpload(velerov2.PhaseCompleted, "")
				in.backup.Status.State, in.children.claim, in.children.volume = completed, nil, nil
			}, completed, nothing, "", "", false,
		},
		"complete, and its DataUpload is gone": {
			func(in *input) { in.backup.Status.State = completed }, failed, nothing, "", "make another backup", false,
		},
		"failed, with a volume": {
			func(in *input) {
				in.hasUpload(velerov2.PhaseFailed, "")
				in.backup.Status.State, in.children.upload = failed, nil
			}, failed, removeVolume, "", "", false,
		},
		"deleted, with a restore point": {
			func(in *input) {
				in.hasUpload(velerov2.PhaseCompleted, "waiting for the restore point to be deleted")
				in.backup.DeletionTimestamp, in.backup.Status.State = &deleted, completed
			}, completed, removeUpload, "", "is being deleted: waiting for the restore point to be deleted", false,
		},
		"deleted, with a volume": {
			func(in *input) {
				in.hasUpload(velerov2.PhaseInProgress, "")
				in.backup.DeletionTimestamp, in.children.upload = &deleted, nil
			}, progress, removeVolume, "", "is being deleted", false,
		},
		"deleted": {func(in *input) { in.backup.DeletionTimestamp = &deleted }, "", nothing, "", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := newInput()
			c.edit(in)
			p := decide(in)
			if p.status.State != c.state || p.do != c.do || p.from.disk != c.from || p.finalizer == c.gone ||
				!strings.Contains(p.status.Message+p.status.Error, c.words) {
				t.Errorf("%+v, want %+v", p, c)
			}
			if (p.status.Error != "") != (c.state == failed && in.backup.Status.State != failed) {
				t.Errorf("error %q", p.status.Error)
			}
			waits := p.status.State == pending || p.status.State == progress || p.do != nothing
			if waits && p.next == 0 {
				t.Error("nobody looks again")
			}
		})
	}
}

// What a restore needs is in the status when the backup is complete.
func TestDecide_saysWhatARestoreNeeds(t *testing.T) {
	t.Parallel()
	in := newInput()
	in.backup.Status = decide(in).status
	u := &velerov2.DataUpload{}
	u.Status.Phase = velerov2.PhaseInProgress
	u.Status.Progress = velerov2.Progress{TotalBytes: 1000, BytesDone: 425}
	in.children.upload = u
	if in.backup.Status = decide(in).status; in.backup.Status.Progress != 42 {
		t.Errorf("%+v", in.backup.Status)
	}
	u.Status.Phase, u.Status.SnapshotID = velerov2.PhaseCompleted, snapshotID
	u.Status.CompletionTimestamp = ptr.To(metav1.NewTime(now.Add(-time.Minute)))
	want := longhornv1.BackupBackingImageStatus{
		State: longhornv1.BackupCompleted, Progress: 100, Location: "s3", ImageUUID: "u", Size: 1_000_001,
		Checksum: strings.Repeat("ab", 64), SnapshotID: snapshotID, BackupCreatedAt: u.Status.CompletionTimestamp,
	}
	if diff := cmp.Diff(want, decide(in).status); diff != "" {
		t.Error(diff)
	}
}

// The copy that was read is checked only if the backup failed, and only if it is known which one it was.
func TestDecide_checksTheCopyAfterAFailure(t *testing.T) {
	t.Parallel()
	for phase, want := range map[velerov2.Phase]string{
		velerov2.PhaseFailed: "disk-a", velerov2.PhaseCanceled: "", velerov2.PhaseCompleted: "", velerov2.PhaseInProgress: "",
	} {
		in := newInput()
		in.hasUpload(phase, "")
		in.children.volume.Spec.CSI = &corev1.CSIPersistentVolumeSource{
			VolumeAttributes: map[string]string{names.ContextDisk: "disk-a"},
		}
		if got := decide(in).check; got != want {
			t.Errorf("%s: disk %q", phase, got)
		}
	}
	in := newInput()
	in.hasUpload(velerov2.PhaseFailed, "")
	in.children.volume = nil
	if got := decide(in).check; got != "" {
		t.Errorf("without a volume: disk %q", got)
	}
}
