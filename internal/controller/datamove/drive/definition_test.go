package drive

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
)

// newDownload returns a DataDownload of a disk, and what decisions need of it.
func newDownload(
	t *testing.T, target velerov2.TargetVolumeSpec, config map[string]string,
) (*velerov2.DataDownload, Object) {
	t.Helper()
	o := &velerov2.DataDownload{
		ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: "download", UID: "u1"},
		Spec: velerov2.DataDownloadSpec{
			SnapshotID:   "varve1.disk.0123456789abcdef0123456789abcdef.app",
			TargetVolume: target, DataMoverConfig: config,
		},
	}
	v, err := viewOf(o)
	if err != nil {
		t.Fatal(err)
	}
	return o, v
}

// A DataDownload that reads a definition needs no volume, and so no node: its pod has a job for it, and mounts nothing
// more than every mover pod does.
func TestMoverPod_readsADefinition(t *testing.T) {
	t.Parallel()
	o, v := newDownload(t, velerov2.TargetVolumeSpec{Namespace: "app", PVC: "none"},
		map[string]string{datamove.ConfigRead: datamove.ReadDefinition})
	pod := podFor(t, func(in *podInput) { in.object, in.view, in.volume = o, v, Volume{} })
	c := pod.Spec.Containers[0]
	job, err := datamove.DecodeJob(c.Env[0].Value)
	if err != nil || !job.ReadDefinition || job.SnapshotID != o.Spec.SnapshotID || job.VolumeMode != "" {
		t.Errorf("job %+v: %v", job, err)
	}
	if len(pod.Spec.Volumes) != 3 || c.SecurityContext.Capabilities.Add != nil || c.Command[2] != "download" {
		t.Errorf("volumes %+v, container %+v", pod.Spec.Volumes, c)
	}
	m := &Mover{}
	place, wait, err := m.placeOf(t.Context(), o, &v)
	if err != nil || wait != 0 || place.nodes != nil {
		t.Errorf("it waits %s for a claim that never comes, or belongs to %+v: %v", wait, place, err)
	}
}

// The pod of a DataDownload to the source of an image writes its record, and goes to the node of the source.
func TestMoverPod_writesAnImage(t *testing.T) {
	t.Parallel()
	o, v := newDownload(t, velerov2.TargetVolumeSpec{Namespace: "varve", PVC: "source-1"},
		map[string]string{datamove.ConfigWrite: datamove.WriteImage})
	source := Volume{Claim: "source-1", VolumeMode: corev1.PersistentVolumeBlock}
	pod := podFor(t, func(in *podInput) { in.object, in.view, in.volume = o, v, source })
	c := pod.Spec.Containers[0]
	job, err := datamove.DecodeJob(c.Env[0].Value)
	if err != nil || !job.Image || c.SecurityContext.Capabilities.Add != nil ||
		len(c.VolumeDevices) != 1 || c.VolumeDevices[0].DevicePath != datamove.VolumeDevice {
		t.Errorf("job %+v, container %+v: %v", job, c, err)
	}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: "source-1"}}
	claim.Spec.VolumeName = "source-1"
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "source-1"}}
	volume.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: nodeNamed("node-v")}
	live := fake.NewClientBuilder().WithObjects(claim, volume).Build()
	m := &Mover{Live: live, Cluster: live, Clock: clock.RealClock{}}
	if place, wait, err := m.placeOf(t.Context(), o, &v); err != nil || wait != 0 || onlyNode(place.nodes) != "node-v" {
		t.Errorf("%+v, %s, %v", place, wait, err)
	}
}
