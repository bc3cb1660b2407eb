//go:build controlplane

package keptsnapshot

import (
	"encoding/base64"
	"errors"
	"fmt"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/controller/datamove/pointdeletion"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/datamove/settings"
	"github.com/varvebackup/varve/test/controlplane"
)

var cluster *controlplane.Cluster

func TestMain(m *testing.M) { controlplane.Main(m, &cluster) }

const system = controlplane.SystemNamespace

// TestControlPlane runs the controller with the rights that it has in a cluster, at first without the kinds of snapshots.
func TestControlPlane(t *testing.T) {
	t.Parallel()
	if err := cluster.InstallRoles(t.Context()); err != nil {
		t.Fatal(err)
	}
	start := func() (stop func()) {
		user := controlplane.Controller
		user.Restricted = true
		mgr := cluster.Manager(t, user, func(o *ctrl.Options) { o.Cache.ByObject = pointdeletion.CachedObjects() }) // as package controller does
		if err := Setup(mgr, Options{Namespace: system, Interval: 200 * time.Millisecond}); err != nil {
			t.Fatal(err)
		}
		return controlplane.StartManager(t, mgr)
	}
	stop := start()
	if err := cluster.InstallSnapshotKinds(t.Context()); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)

	// One that cannot be examined holds up no other one.
	w.keep("unknown", func(k *datamove.KeptSnapshot, _ *velerov2.DataUpload) { k.Upload.Name = "no/name" })
	monday := w.keep("monday", nil)
	w.stays(monday)
	// The next one is published, and the one before goes when no upload runs any more.
	running := w.upload("running", velerov2.PhaseInProgress)
	ofMachine := w.upload("of-machine", velerov2.PhaseInProgress, func(u *velerov2.DataUpload) { u.Spec.SnapshotType = velerov2.SnapshotMachineBackup }) // It counts from no snapshot.
	// The controller has seen by then what runs.
	w.stays(monday)
	tuesday := w.keep("tuesday", nil)
	w.stays(monday, tuesday)
	w.setPhase(running, velerov2.PhaseFailed)
	w.goes(monday)
	w.stays(tuesday)

	// What is no snapshot of a completed upload goes, and one that nobody has kept is none of the controller's business.
	w.goes(w.keep("failed", func(_ *datamove.KeptSnapshot, u *velerov2.DataUpload) { u.Status.Phase = velerov2.PhaseFailed }))
	w.goes(w.keep("another-upload", func(k *datamove.KeptSnapshot, _ *velerov2.DataUpload) { k.UploadUID = "other" }))
	w.goes(w.keep("another-claim", func(k *datamove.KeptSnapshot, _ *velerov2.DataUpload) { k.ClaimUID = "other" }))
	w.goes(w.keep("another-class", func(k *datamove.KeptSnapshot, _ *velerov2.DataUpload) { k.StorageClass = "other" }))
	w.goes(w.keep("another-driver", func(k *datamove.KeptSnapshot, _ *velerov2.DataUpload) { k.Driver = "other" }))
	forged := w.snapshot("forged", nil)
	forged.Labels = map[string]string{datamove.LabelKeptSnapshot: "forged"}
	w.create(forged)
	w.goes(forged)
	relabeled := w.snapshot("relabeled", &datamove.KeptSnapshot{ // of an upload that runs
		Upload: client.ObjectKeyFromObject(ofMachine), UploadUID: ofMachine.UID, Claim: client.ObjectKeyFromObject(w.claim), ClaimUID: w.claim.UID,
		StorageClass: "fast", Driver: "csi.test", Repository: "another",
	})
	relabeled.Labels[datamove.LabelKeptSnapshot] = "forged"
	w.create(relabeled)
	w.goes(relabeled)
	plain := w.snapshot("plain", nil)
	w.create(plain)
	w.stays(tuesday, plain)

	// What happens while nobody looks is found when somebody does.
	stop()
	upload := &velerov2.DataUpload{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "tuesday"}}
	if err := w.admin.Delete(t.Context(), upload); err != nil {
		t.Fatal(err)
	}
	w.stays(tuesday)
	start()
	w.goes(tuesday)

	// Each of what it is kept for.
	for name, end := range map[string]func(){
		"the setting": func() { w.settings("storageClasses: {fast: {readOnly: true}}") },
		"the service": func() { w.remove(w.service) },
		"the claim":   func() { w.remove(w.claim) },
	} {
		w.newClaim()
		w.settings("storageClasses: {fast: {keepSnapshot: true}}")
		w.announce()
		kept := w.keep("kept-"+name[4:], nil)
		w.stays(kept)
		w.settings("nonsense: true") // The driver keeps to what it had.
		w.stays(kept, plain)
		w.settings("storageClasses: {fast: {keepSnapshot: true}}")
		end()
		t.Log(name)
		w.goes(kept)
	}
}

type world struct {
	*testing.T
	ns      string
	admin   client.Client
	claim   *corev1.PersistentVolumeClaim
	service *unstructured.Unstructured
	seconds int
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, ns: cluster.Namespace(t), admin: cluster.Client(t, controlplane.Admin)}
	w.newClaim()
	w.announce()
	w.settings("storageClasses: {fast: {keepSnapshot: true}}")
	return w
}

func (w *world) create(o client.Object) {
	w.Helper()
	if err := w.admin.Create(w.Context(), o); err != nil {
		w.Fatal(err)
	}
}

func (w *world) remove(o client.Object) {
	w.Helper()
	o.SetFinalizers(nil)
	if err := errors.Join(w.admin.Update(w.Context(), o), client.IgnoreNotFound(w.admin.Delete(w.Context(), o))); err != nil {
		w.Fatal(err)
	}
}

// newClaim makes the claim again, as another one, if it is gone.
func (w *world) newClaim() {
	w.Helper()
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "data"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: ptr.To("fast"),
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
	if err := w.admin.Create(w.Context(), claim); err == nil {
		w.claim = claim
	} else if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(claim), claim); err != nil {
		w.Fatal(err)
	} else {
		w.claim = claim
	}
}

// announce makes the driver's service, if there is none.
func (w *world) announce() {
	w.Helper()
	w.service = &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "cbt.storage.k8s.io/v1alpha1", "kind": "SnapshotMetadataService",
		"spec": map[string]any{"address": "metadata.csi:6443", "audience": "audience", "caCert": base64.StdEncoding.EncodeToString([]byte("PEM"))},
	}}
	w.service.SetName("csi.test")
	if err := w.admin.Create(w.Context(), w.service); err != nil {
		if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(w.service), w.service); err != nil {
			w.Fatal(err)
		}
	}
}

func (w *world) settings(text string) {
	w.Helper()
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: settings.ConfigMap}}
	// Between a deletion and a creation the defaults would hold, which keep nothing.
	if _, err := controllerutil.CreateOrUpdate(w.Context(), w.admin, m, func() error {
		m.Data = map[string]string{settings.Key: text}
		return nil
	}); err != nil {
		w.Fatal(err)
	}
}

// upload makes a DataUpload of the claim in a phase. Each completes a second later than the one before.
func (w *world) upload(name string, phase velerov2.Phase, edit ...func(*velerov2.DataUpload)) *velerov2.DataUpload {
	w.Helper()
	w.seconds++
	u := &velerov2.DataUpload{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name},
		Spec:       velerov2.DataUploadSpec{SnapshotType: velerov2.SnapshotCSI, SourcePVC: "data", SourceNamespace: w.ns, BackupStorageLocation: "default", DataMover: datamove.Mover},
		Status:     velerov2.DataUploadStatus{Phase: phase, CompletionTimestamp: ptr.To(metav1.NewTime(time.Unix(1800000000+int64(w.seconds), 0)))},
	}
	for _, f := range edit {
		f(u)
	}
	w.create(u)
	return u
}

func (w *world) setPhase(u *velerov2.DataUpload, phase velerov2.Phase) {
	w.Helper()
	controlplane.Update(w.T, w.admin, u, false, func(u *velerov2.DataUpload) { u.Status.Phase = phase })
}

// keep makes a DataUpload that has completed, and its kept snapshot.
func (w *world) keep(name string, edit func(*datamove.KeptSnapshot, *velerov2.DataUpload)) *snapshotv1.VolumeSnapshot {
	w.Helper()
	u := w.upload(name, velerov2.PhaseInProgress)
	kept := datamove.KeptSnapshot{
		Upload: client.ObjectKeyFromObject(u), UploadUID: u.UID, Claim: client.ObjectKeyFromObject(w.claim), ClaimUID: w.claim.UID,
		StorageClass: "fast", Driver: "csi.test", Repository: "repo-" + w.ns,
	}
	phase := velerov2.PhaseCompleted
	if edit != nil {
		u.Status.Phase = phase
		edit(&kept, u)
		phase = u.Status.Phase
	}
	o := w.snapshot(name, &kept)
	w.create(o)
	w.setPhase(u, phase)
	return o
}

func (w *world) snapshot(name string, kept *datamove.KeptSnapshot) *snapshotv1.VolumeSnapshot {
	o := &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: w.ns + "-" + name},
		Spec:       snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{VolumeSnapshotContentName: ptr.To("du-" + name)}},
	}
	if kept != nil {
		o.Labels = map[string]string{datamove.LabelKeptSnapshot: kept.Key()}
		o.Annotations = map[string]string{datamove.AnnotationKeptSnapshot: kept.Encode()}
	}
	return o
}

func (w *world) exists(o client.Object) error {
	return w.admin.Get(w.Context(), client.ObjectKeyFromObject(o), o)
}

func (w *world) goes(o client.Object) {
	w.Helper()
	controlplane.Eventually(w, func() error {
		if err := w.exists(o); client.IgnoreNotFound(err) != nil {
			return err
		} else if err == nil {
			return fmt.Errorf("%s is there", o.GetName())
		}
		return nil
	})
}

func (w *world) stays(all ...client.Object) {
	w.Helper()
	controlplane.Consistently(w, time.Second, func() error {
		for _, o := range all {
			if err := w.exists(o); err != nil {
				return err
			}
		}
		return nil
	})
}
