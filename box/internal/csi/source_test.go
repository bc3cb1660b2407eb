package csi

import (
	"strings"
	"testing"

	snapshotapi "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestContentHandle_refusesWhatTheClaimMayNotHave(t *testing.T) {
	t.Parallel()
	block, files := corev1.PersistentVolumeBlock, corev1.PersistentVolumeFilesystem
	yes, no, handle := true, false, "v~one"
	for name, tc := range map[string]struct {
		change  func(*corev1.PersistentVolumeClaim, *snapshotapi.VolumeSnapshotContent)
		refused string
	}{
		"ready": {change: func(*corev1.PersistentVolumeClaim, *snapshotapi.VolumeSnapshotContent) {}},
		"another's content": {
			change: func(_ *corev1.PersistentVolumeClaim, c *snapshotapi.VolumeSnapshotContent) {
				c.Spec.VolumeSnapshotRef.UID = "other"
			},
			refused: "bound to another",
		},
		"another driver": {
			change:  func(_ *corev1.PersistentVolumeClaim, c *snapshotapi.VolumeSnapshotContent) { c.Spec.Driver = "other" },
			refused: "its driver is other",
		},
		"no status": {
			change:  func(_ *corev1.PersistentVolumeClaim, c *snapshotapi.VolumeSnapshotContent) { c.Status = nil },
			refused: "not ready",
		},
		"not ready": {
			change:  func(_ *corev1.PersistentVolumeClaim, c *snapshotapi.VolumeSnapshotContent) { c.Status.ReadyToUse = &no },
			refused: "not ready",
		},
		"another mode": {
			change: func(p *corev1.PersistentVolumeClaim, _ *snapshotapi.VolumeSnapshotContent) {
				p.Spec.VolumeMode = &block
			},
			refused: "had the mode Filesystem",
		},
		"another mode, allowed": {change: func(p *corev1.PersistentVolumeClaim, c *snapshotapi.VolumeSnapshotContent) {
			p.Spec.VolumeMode = &block
			c.Annotations = map[string]string{allowModeChange: "true"}
		}},
		"another mode, unknown": {change: func(p *corev1.PersistentVolumeClaim, c *snapshotapi.VolumeSnapshotContent) {
			p.Spec.VolumeMode = &block
			c.Spec.SourceVolumeMode = nil
		}},
	} {
		claim := &corev1.PersistentVolumeClaim{}
		snap := &snapshotapi.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s", UID: "uid"}}
		content := &snapshotapi.VolumeSnapshotContent{
			Spec: snapshotapi.VolumeSnapshotContentSpec{
				Driver: DriverName, SourceVolumeMode: &files,
				VolumeSnapshotRef: corev1.ObjectReference{Namespace: "ns", Name: "s", UID: "uid"},
			},
			Status: &snapshotapi.VolumeSnapshotContentStatus{SnapshotHandle: &handle, ReadyToUse: &yes},
		}
		tc.change(claim, content)
		got, err := contentHandle(claim, snap, content, DriverName)
		if tc.refused == "" && (err != nil || got != handle) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if tc.refused != "" && (err == nil || !strings.Contains(err.Error(), tc.refused)) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
