//go:build controlplane

package expose

import (
	"context"
	"encoding/base64"
	"errors"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/internal/datamove"
)

var metadataTests = map[string]func(*world){
	"a Block volume of a driver with a service": metadataAnnounced,
	"a Filesystem volume":                       metadataOfFiles,
	"what cannot be used":                       metadataUnusable,
	"the settings want it read as a whole":      metadataUnwanted,
	"the API server fails for good":             metadataUnanswered,
	"the API server hangs for good":             metadataHangs,
	"the API server fails, and time is short":   metadataUnansweredSoon,
	"the API server fails for a moment":         metadataAnsweredLate,
	"a moment long ago does not count":          metadataCountsAnew,
	"a snapshot is not kept in doubt":           metadataUnansweredAtTheEnd,
	"the API server is back after all":          metadataAnsweredAfterAll,
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
	w.announce(map[string]any{"address": "metadata.csi:6443", "audience": "", "caCert": "UEVN"})
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

// failingLookup reads as its Reader does, but a driver's service only as its function lets it.
type failingLookup struct {
	client.Reader

	fail func(ctx context.Context) error
}

func (f *failingLookup) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	if o.GetObjectKind().GroupVersionKind().Kind == "SnapshotMetadataService" {
		if err := f.fail(ctx); err != nil {
			return err
		}
	}
	return f.Reader.Get(ctx, key, o, options...)
}

// failLookups makes the API server answer 500 whenever the driver's service is asked for.
func (w *world) failLookups() {
	w.live = &failingLookup{w.driver, func(context.Context) error {
		return apierrors.NewInternalError(errors.New("conversion webhook for cbt.storage.k8s.io failed"))
	}}
}

// failsToExpose fails the test unless Expose fails because of the driver's service.
func (w *world) failsToExpose(u *upload) {
	w.Helper()
	for range w.steps() {
		exposure, err := w.csi().Expose(w.Context(), u.DataUpload)
		if err != nil {
			if errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "SnapshotMetadataService") {
				w.Fatal(err)
			}
			return
		}
		if exposure.Volume != nil {
			w.Fatalf("%+v", exposure.Volume.Snapshot)
		}
		w.settle()
	}
	w.Fatal("it does not fail")
}

// What holds up an upload for ever is worse than reading the whole volume. Each call is by another process, so to
// speak: they have no memory.
func metadataUnanswered(w *world) {
	w.announce(serviceSpec("PEM"))
	w.failLookups()
	u := w.blockUpload()
	w.failsToExpose(u)
	w.clock.SetTime(w.clock.Now().Add(lookupPatience - time.Second))
	w.failsToExpose(u)
	w.clock.SetTime(w.clock.Now().Add(2 * time.Second))
	w.saysNoMetadata(u, "conversion webhook")
	w.saysNoMetadata(u, "get SnapshotMetadataService "+w.storage.driver)
	w.disposed(u)
	w.nothingLeft(u)
}

// A pass of the driver ends after a minute, whatever it has got to know by then.
func metadataHangs(w *world) {
	w.announce(serviceSpec("PEM"))
	w.live = &failingLookup{w.driver, func(ctx context.Context) error {
		if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > 15*time.Second {
			w.Error("the lookup may take as long as it likes")
		}
		return context.DeadlineExceeded
	}}
	u := w.blockUpload()
	w.failsToExpose(u)
	w.clock.SetTime(w.clock.Now().Add(lookupPatience))
	w.saysNoMetadata(u, "deadline exceeded")
}

// An upload that has less time is not failed by this.
func metadataUnansweredSoon(w *world) {
	w.options.PrepareTimeout = time.Minute
	w.failLookups()
	u := w.blockUpload()
	w.failsToExpose(u)
	w.clock.SetTime(w.clock.Now().Add(20 * time.Second))
	w.saysNoMetadata(u, "conversion webhook")
}

func metadataAnsweredLate(w *world) {
	w.announce(serviceSpec("PEM"))
	w.failLookups()
	u := w.blockUpload()
	w.failsToExpose(u)
	w.live = w.driver
	if got := w.exposed(u).Volume.Snapshot; got == nil || got.Metadata == nil || got.NoMetadata != "" {
		w.Errorf("%+v", got)
	}
}

// A pod that is lost is made again hours later. One failure then is one failure.
func metadataCountsAnew(w *world) {
	w.announce(serviceSpec("PEM"))
	w.failLookups()
	u := w.blockUpload()
	w.failsToExpose(u)
	w.live = w.driver
	w.exposed(u)
	w.clock.SetTime(w.clock.Now().Add(time.Hour))
	w.failLookups()
	w.failsToExpose(u)
}

// If nobody can say whether the driver has a service, the snapshot is deleted in time, and holds up no disposal.
func metadataUnansweredAtTheEnd(w *world) {
	w.keeping()
	u := w.blockUpload()
	w.exposed(u)
	w.report(u, datamove.Succeeded, datamove.Disk)
	w.failLookups()
	for range w.steps() {
		if _, err := w.csi().Dispose(w.Context(), u.DataUpload); err != nil {
			break
		}
		w.settle()
	}
	if !w.exists(u.childSnapshot()) {
		w.Error("the snapshot is deleted after one failure")
	}
	w.clock.SetTime(w.clock.Now().Add(lookupPatience))
	w.disposed(u)
	w.nothingLeft(u)
}

// What was given up is asked for anew by whoever needs it later: a pod that is made again, and the decision what to keep. One failure then is no
// reason to give up at once.
func metadataAnsweredAfterAll(w *world) {
	w.keeping()
	w.failLookups()
	u := w.blockUpload()
	w.failsToExpose(u)
	w.clock.SetTime(w.clock.Now().Add(lookupPatience))
	w.saysNoMetadata(u, "conversion webhook")
	w.live = w.driver
	if got := w.exposed(u).Volume.Snapshot; got == nil || got.Metadata == nil {
		w.Errorf("%+v", got)
	}
	w.report(u, datamove.Succeeded, datamove.Disk)
	w.failLookups()
	if _, err := w.csi().Dispose(w.Context(), u.DataUpload); err != nil {
		w.Fatal(err) // the claim goes first
	}
	w.settle()
	if _, err := w.csi().Dispose(w.Context(), u.DataUpload); err == nil || !w.exists(u.childSnapshot()) {
		w.Errorf("%v", err)
	}
	w.live = w.driver
	w.disposed(u)
	w.wantKept(u)
}
