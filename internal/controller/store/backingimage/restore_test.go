package backingimage

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/location"
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
			outcome{first: pending, reason: longhornv1.ReasonSourceNotReady}, "is being deleted",
		},
		"the beginning": {
			func(*fixture) {},
			outcome{first: inProgress, disk: "a", disks: "a", states: "a pending", reason: progress}, "gets the first copy",
		},
		"a storage that one node reaches": {
			func(f *fixture) { f.origin.storage.nodes = map[string]bool{"b": true, "z": true} },
			outcome{first: inProgress, disk: "b", disks: "b", states: "b pending", reason: progress}, "gets the first copy",
		},
		"a storage that no node with a disk reaches": {
			func(f *fixture) { f.origin.storage.nodes = map[string]bool{"a": false, "z": true} },
			outcome{first: pending, reason: longhornv1.ReasonNoDisk},
			"no node that reaches the storage of the BackupStorageLocation s3 has a disk",
		},
		"a storage that one node uses": {
			func(f *fixture) { f.origin.storage.inUse = "c" },
			outcome{first: inProgress, disk: "c", disks: "c", states: "c pending", reason: progress}, "gets the first copy",
		},
		"a storage that one node uses, whose disk has failed": {
			func(f *fixture) {
				f.origin.storage.inUse = "c"
				f.begun("c", pending)
				delete(f.image.Spec.DiskFileSpecMap, "disk-c")
			},
			outcome{first: inProgress, disk: "a", disks: "a", states: "a pending", reason: progress}, "gets the first copy",
		},
		"a head": {
			func(f *fixture) { f.begun("a", inProgress); f.reports("a", inProgress) },
			outcome{first: inProgress, disk: "a", disks: "a", states: "a in-progress", source: makeSource, reason: progress},
			"0 % of the source were read",
		},
		"a DataDownload that waits": {
			func(f *fixture) {
				f.begun("a", inProgress)
				f.reports("a", inProgress)
				f.hasDownload(velerov2.PhaseAccepted, "waiting for the repository")
			},
			outcome{first: inProgress, disk: "a", disks: "a", states: "a in-progress", source: makeSource, reason: progress},
			"0 % of the source were read: waiting for the repository",
		},
		"a DataDownload that goes on": {
			func(f *fixture) {
				f.begun("a", inProgress)
				f.reports("a", inProgress)
				f.hasDownload(velerov2.PhaseInProgress, "")
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
			func(f *fixture) {
				f.begun("a", inProgress)
				f.reports("a", inProgress)
				f.hasDownload(velerov2.PhaseFailed, "the restore point does not exist")
			},
			outcome{first: failed, disk: "a", states: "a in-progress", source: removeSource, reason: failure},
			"attempt 1 failed: DataDownload source-u is Failed: the restore point does not exist; the next one begins at",
		},
		"a DataDownload that somebody has canceled": {
			func(f *fixture) {
				f.begun("a", inProgress)
				f.reports("a", inProgress)
				f.hasDownload(velerov2.PhaseInProgress, "")
				f.source.download.Spec.Cancel = true
			},
			outcome{first: failed, disk: "a", states: "a in-progress", source: removeSource, reason: failure},
			"was canceled by somebody else",
		},
		"a DataDownload that somebody has deleted": {
			func(f *fixture) {
				f.begun("a", inProgress)
				f.reports("a", inProgress)
				f.hasDownload(velerov2.PhaseInProgress, "")
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
			outcome{first: failed, disk: "a", source: removeSource, reason: failure}, "the next one begins at",
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

// Where the claim of a location can be used is where the first copy of a restore is made.
func TestReadStorage(t *testing.T) {
	t.Parallel()
	claim := func(name string, mode corev1.PersistentVolumeAccessMode) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: name},
			Spec: corev1.PersistentVolumeClaimSpec{
				VolumeName: name, AccessModes: []corev1.PersistentVolumeAccessMode{mode},
			},
		}
	}
	local := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "local"}}
	local.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
			Key: "kubernetes.io/hostname", Operator: corev1.NodeSelectorOpIn, Values: []string{"b"},
		}}}},
	}}
	node := func(name string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/hostname": name}}}
	}
	pod := func(name, storage, on string, phase corev1.PodPhase) *corev1.Pod {
		s := datamove.Storage{Volume: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: storage},
		}}
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: name, Labels: map[string]string{
				datamove.LabelStorage: s.Label(),
			}},
			Spec: corev1.PodSpec{NodeName: on}, Status: corev1.PodStatus{Phase: phase},
		}
	}
	objects := []client.Object{
		node("a"), node("b"), local, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "network"}},
		claim("local", corev1.ReadWriteOnce), claim("network", corev1.ReadWriteOnce), claim("shared", corev1.ReadWriteMany),
		claim("pod", corev1.ReadWriteOncePod), pod("1", "network", "a", corev1.PodSucceeded),
		pod("2", "network", "", corev1.PodPending), pod("3", "network", "b", corev1.PodRunning),
		pod("4", "shared", "b", corev1.PodRunning),
	}
	r := &reconciler{Options: Options{Namespace: "varve"}, live: fake.NewClientBuilder().WithObjects(objects...).Build()}
	onlyB := map[string]bool{"a": false, "b": true}
	for name, c := range map[string]struct {
		provider, bucket string
		state            longhornv1.BackingImageState
		want             storagePlace
	}{
		"local":         {location.ProviderClaim, "local", pending, storagePlace{nodes: onlyB}},
		"local, later":  {location.ProviderClaim, "local", inProgress, storagePlace{}},
		"network":       {location.ProviderClaim, "network", failed, storagePlace{inUse: "b"}},
		"shared":        {location.ProviderClaim, "shared", pending, storagePlace{}},
		"no claim":      {location.ProviderClaim, "none", pending, storagePlace{}},
		"another claim": {location.ProviderClaim, "pod", pending, storagePlace{}},
		"no bucket":     {location.ProviderClaim, "", pending, storagePlace{}},
		"a bucket":      {"aws", "local", pending, storagePlace{}},
	} {
		o := &origin{location: &velerov1.BackupStorageLocation{}}
		o.location.Spec.Provider = c.provider
		o.location.Spec.ObjectStorage = &velerov1.ObjectStorageLocation{Bucket: c.bucket}
		image := &longhornv1.BackingImage{Status: longhornv1.BackingImageStatus{V2FirstCopyStatus: c.state}}
		if err := r.readStorage(t.Context(), image, o); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(c.want, o.storage, cmp.AllowUnexported(storagePlace{})); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
