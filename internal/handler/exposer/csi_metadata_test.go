//go:build controlplane

package exposer

import (
	"encoding/base64"
	"strings"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	"github.com/varvebackup/varve/internal/datamove"
)

var metadataTests = map[string]func(*world){
	"a Block volume of a driver with a service": metadataAnnounced,
	"a Filesystem volume":                       metadataOfFiles,
	"what cannot be used":                       metadataUnusable,
	"the settings want it read as a whole":      metadataUnwanted,
}

// announce makes the SnapshotMetadataService of the test's driver.
func (w *world) announce(spec map[string]any) {
	w.Helper()
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "cbt.storage.k8s.io/v1alpha1", "kind": "SnapshotMetadataService", "spec": spec}}
	o.SetName(w.storage.driver)
	w.create(o)
	w.Cleanup(func() { _ = w.admin.Delete(w.Context(), o) })
}

func serviceSpec(authorities string) map[string]any {
	return map[string]any{"address": "metadata.csi:6443", "audience": "audience", "caCert": base64.StdEncoding.EncodeToString([]byte(authorities))}
}

// blockUpload makes a DataUpload of a Block volume.
func (w *world) blockUpload() *upload {
	return w.upload(policyDelete, func(u *upload) { u.content.Spec.SourceVolumeMode = ptr.To(corev1.PersistentVolumeBlock) })
}

func metadataAnnounced(w *world) {
	w.announce(serviceSpec("PEM"))
	u := w.blockUpload()
	want := &datamove.SnapshotSource{
		SnapshotMoment: datamove.SnapshotMoment{Driver: w.storage.driver, Volume: "volume-" + string(u.claim.UID), Snapshot: "snap-" + w.ns, Taken: takenAt},
		Metadata: &datamove.SnapshotMetadata{
			Address: "metadata.csi:6443", CA: []byte("PEM"), Audience: "audience", Namespace: system, Name: datamove.ChildName(datamove.Upload, u.UID),
		},
	}
	if diff := cmp.Diff(want, w.exposed(u).Volume.Snapshot); diff != "" {
		w.Error(diff)
	}
	w.settle()
	// The source is gone by then, and the note says all of it.
	if diff := cmp.Diff(want, w.exposed(u).Volume.Snapshot); diff != "" {
		w.Error(diff)
	}
	w.disposed(u)
	w.nothingLeft(u)
}

func metadataOfFiles(w *world) {
	w.announce(serviceSpec("PEM"))
	u := w.upload(policyDelete)
	if got := w.exposed(u).Volume.Snapshot; got != nil {
		w.Errorf("%+v", got)
	}
}

func metadataUnusable(w *world) {
	u := w.blockUpload()
	w.saysNoMetadata(u, "has no SnapshotMetadataService")
	w.announce(map[string]any{"address": "metadata.csi:6443"})
	w.saysNoMetadata(u, "no audience")
}

func (w *world) saysNoMetadata(u *upload, says string) {
	w.Helper()
	got := w.exposed(u).Volume.Snapshot
	if got == nil || got.Metadata != nil || got.Snapshot != "snap-"+w.ns || !strings.Contains(got.NoMetadata, says) {
		w.Errorf("%+v, want %q", got, says)
	}
}

func metadataUnwanted(w *world) {
	w.announce(serviceSpec("PEM"))
	w.options.Classes = map[string]Class{w.className("immediate"): {ReadWhole: true}}
	w.saysNoMetadata(w.blockUpload(), "StorageClass "+w.className("immediate")+" are read as a whole")
}
