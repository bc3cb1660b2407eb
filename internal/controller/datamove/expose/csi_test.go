//go:build controlplane

package expose

import (
	"context"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/internal/datamove"
)

const (
	policyDelete = snapshotv1.VolumeSnapshotContentDelete
	policyRetain = snapshotv1.VolumeSnapshotContentRetain
)

var csiTests = map[string]func(*world){
	"the policy is Delete":                            func(w *world) { snapshotIsMoved(w, policyDelete) },
	"the policy is Retain":                            func(w *world) { snapshotIsMoved(w, policyRetain) },
	"what is copied to the own content":               contentIsCopied,
	"the class of the volume is Retain":               classRetains,
	"the volume waits for a consumer":                 volumeWaitsForConsumer,
	"a Block volume":                                  blockVolume,
	"settings of the class":                           classSettings,
	"the size is not known":                           sizeUnknown,
	"the claim is gone":                               sourceClaimGone,
	"another claim has the name":                      sourceClaimReplaced,
	"neither size nor claim":                          sizeAndClaimGone,
	"the snapshot is not ready":                       snapshotNotReady,
	"the snapshot fails":                              snapshotFails,
	"the own snapshot fails":                          ownSnapshotFails,
	"the driver makes no volume":                      provisioningFails,
	"Expose refuses":                                  exposeRefuses,
	"the class became another driver's":               classChanges,
	"a stranger has a child's name":                   strangersAmongChildren,
	"the source was replaced":                         sourceReplaced,
	"given up by Velero, Delete":                      func(w *world) { disposedUnexposed(w, policyDelete) },
	"given up by Velero, Retain":                      func(w *world) { disposedUnexposed(w, policyRetain) },
	"given up by Velero, not its own snapshot":        disposeLeavesStrangers,
	"disposed of before the own snapshot is ready":    disposedBeforeReady,
	"disposed of after others deleted the source":     disposedWithoutSource,
	"an older volume is bound to the claim":           olderVolume,
	"a volume that is made later and is bound to it":  youngerVolume,
	"the claim was deleted by others":                 claimDeletedByOthers,
	"the volume was given to another claim":           volumeGivenAway,
	"disposed of twice":                               disposedTwice,
	"a slow source does not hold up the exposure":     slowSource,
	"a note of a later version":                       laterNote,
	"the object was changed in between":               staleUpload,
	"the own content's policy survives others' hands": policyChangedByOthers,
}

// contentsOf returns the contents of the test's driver by their policies, and fails the test if more than one of them has Delete.
func (w *world) contentsOf() map[snapshotv1.DeletionPolicy]int {
	w.Helper()
	contents, err := w.storage.contents(context.WithoutCancel(w.Context()))
	if err != nil {
		w.Fatal(err)
	}
	policies := map[snapshotv1.DeletionPolicy]int{}
	for _, content := range contents {
		policies[content.Spec.DeletionPolicy]++
	}
	if policies[policyDelete] > 1 {
		w.Errorf("%d contents of one snapshot have the policy Delete", policies[policyDelete])
	}
	return policies
}

func snapshotIsMoved(w *world, policy snapshotv1.DeletionPolicy) {
	u := w.upload(policy)
	exposure := w.exposed(u)
	want := &Volume{Claim: datamove.ChildName(datamove.Upload, u.UID), VolumeMode: corev1.PersistentVolumeFilesystem, Bytes: 128 * mebibyte, SourceUID: u.claim.UID}
	if diff := cmp.Diff(want, exposure.Volume); diff != "" {
		w.Error(diff)
	}
	claim := u.childClaim()
	w.read(claim)
	w.same("data source", *claim.Spec.DataSource, corev1.TypedLocalObjectReference{APIGroup: claim.Spec.DataSource.APIGroup, Kind: "VolumeSnapshot", Name: claim.Name})
	for _, o := range []client.Object{claim, u.childSnapshot(), u.childContent()} {
		w.read(o)
		w.same("label of "+describe(o), o.GetLabels()[datamove.LabelObject], u.UID)
		w.same("owner of "+describe(o), o.GetAnnotations()[datamove.AnnotationOwner], "DataUpload/"+u.Namespace+"/"+u.Name)
	}
	w.settle()
	if _, err := w.csi().Expose(w.Context(), u.DataUpload); err != nil {
		w.Fatal(err)
	}
	w.settle()
	if w.exists(u.source) || w.exists(u.content) {
		w.Error("the source is left while the data is moved")
	}
	if len(w.storage.snapshots) != 1 {
		w.Error("the snapshot is gone while the data is moved")
	}
	progress, err := w.csi().Finish(w.Context(), u.DataUpload)
	w.same("finish", progress, Progress{Done: true})
	w.same("finish", err, nil)
	w.disposed(u)
	w.nothingLeft(u)
}

func contentIsCopied(w *world) {
	u := w.upload(policyDelete)
	w.exposed(u)
	content := u.childContent()
	w.read(content)
	want := map[string]string{labelManagedBy: "node-1", datamove.LabelObject: string(u.UID)}
	if diff := cmp.Diff(want, content.Labels); diff != "" {
		w.Error(diff)
	}
	want = map[string]string{annotationSecretName: "secret", annotationSecretNamespace: "storage", datamove.AnnotationOwner: "DataUpload/" + w.ns + "/" + u.Name}
	if diff := cmp.Diff(want, content.Annotations); diff != "" {
		w.Error(diff)
	}
	w.same("mode", *content.Spec.SourceVolumeMode, corev1.PersistentVolumeFilesystem)
	w.same("class", *content.Spec.VolumeSnapshotClassName, "snapshots")
	w.same("policy", content.Spec.DeletionPolicy, policyDelete)
	w.same("handle", *content.Spec.Source.SnapshotHandle, "snap-"+w.ns)
	w.same("driver", content.Spec.Driver, w.storage.driver)
	w.disposed(u)
}

func classRetains(w *world) {
	w.class("retain", storagev1.VolumeBindingImmediate, corev1.PersistentVolumeReclaimRetain)
	u := w.upload(policyDelete, func(u *upload) { u.Spec.CSISnapshot.StorageClass = w.className("retain") })
	w.exposed(u)
	claim := u.childClaim()
	w.read(claim)
	w.storage.stopped = []string{"protection"} // a pod uses the claim
	if _, err := w.csi().Dispose(w.Context(), u.DataUpload); err != nil {
		w.Fatal(err)
	}
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: claim.Spec.VolumeName}}
	w.read(volume)
	w.same("policy, before the claim is gone", volume.Spec.PersistentVolumeReclaimPolicy, corev1.PersistentVolumeReclaimDelete)
	w.storage.stopped = nil
	w.disposed(u)
	w.nothingLeft(u)
}

func volumeWaitsForConsumer(w *world) {
	w.class("wffc", storagev1.VolumeBindingWaitForFirstConsumer, corev1.PersistentVolumeReclaimRetain)
	u := w.upload(policyRetain, func(u *upload) {
		u.Spec.CSISnapshot.StorageClass = w.className("wffc")
		// The volume that was backed up is reached from one node only, and so is its snapshot.
		source := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-" + string(u.claim.UID)}}
		w.edit(source, func() { source.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: onNode("node-7")} })
	})
	exposure := w.exposed(u)
	claim := u.childClaim()
	w.read(claim)
	w.same("phase", claim.Status.Phase, corev1.ClaimPending)
	if diff := cmp.Diff(onNode("node-7"), exposure.Volume.NodeAffinity); diff != "" {
		w.Error(diff)
	}
	w.edit(claim, func() { metav1.SetMetaDataAnnotation(&claim.ObjectMeta, annotationSelectedNode, "node-8") })
	w.settle()
	exposure = w.exposed(u)
	if diff := cmp.Diff(onNode("node-8"), exposure.Volume.NodeAffinity); diff != "" {
		w.Error(diff)
	}
	w.disposed(u)
	w.nothingLeft(u)
}

func blockVolume(w *world) {
	u := w.upload(policyDelete, func(u *upload) { u.content.Spec.SourceVolumeMode = ptr.To(corev1.PersistentVolumeBlock) })
	w.same("mode", w.exposed(u).Volume.VolumeMode, corev1.PersistentVolumeBlock)
	claim := u.childClaim()
	w.read(claim)
	w.same("mode", *claim.Spec.VolumeMode, corev1.PersistentVolumeBlock)
	w.disposed(u)
	w.nothingLeft(u)
}

func classSettings(w *world) {
	w.class("clones", storagev1.VolumeBindingImmediate, corev1.PersistentVolumeReclaimDelete)
	w.options.Classes = map[string]Class{w.className("immediate"): {StorageClass: w.className("clones"), ReadOnly: true, Annotations: map[string]string{"driver": "fast"}}}
	u := w.upload(policyDelete)
	exposure := w.exposed(u)
	w.same("read-only", exposure.Volume.ReadOnly, true)
	claim := u.childClaim()
	w.read(claim)
	w.same("class", *claim.Spec.StorageClassName, w.className("clones"))
	w.same("modes", claim.Spec.AccessModes, []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany})
	w.same("annotation", claim.Annotations["driver"], "fast")
	w.options = Options{} // who changes the settings does not change what is exposed
	w.same("read-only", w.exposed(u).Volume.ReadOnly, true)
	w.disposed(u)
	w.nothingLeft(u)
}

// without drops what the driver does not tell.
func without(u *upload) {
	u.content.Status = &snapshotv1.VolumeSnapshotContentStatus{ReadyToUse: ptr.To(true), RestoreSize: ptr.To[int64](0)}
	u.content.Spec.SourceVolumeMode = nil
}

func sizeUnknown(w *world) {
	w.storage.hidesSize = true
	u := w.upload(policyDelete, without)
	w.editStatus(u.source, func() { u.source.Status.RestoreSize = ptr.To(quantity(0)) })
	exposure := w.exposed(u)
	w.same("bytes", exposure.Volume.Bytes, 64*mebibyte)
	w.same("mode", exposure.Volume.VolumeMode, corev1.PersistentVolumeFilesystem)
	w.disposed(u)
	w.nothingLeft(u)
}

func sourceClaimGone(w *world) {
	u := w.upload(policyDelete)
	w.delete(u.claim)
	w.settle()
	w.same("bytes", w.exposed(u).Volume.Bytes, 128*mebibyte)
	w.disposed(u)
	w.storage.volumes["source"] = true // which went with its claim, and nothingLeft expects
	w.create(w.claimOf("other", "immediate"))
	delete(w.storage.volumes, "source")
	w.settle()
	w.nothingLeft(u)
}

// A claim of the same name may be of another size and elsewhere.
func sourceClaimReplaced(w *world) {
	for _, label := range []bool{true, false} { // Velero's label tells the UID; without it, the snapshot's volume does
		sub := newWorld(w.T)
		sub.storage.hidesSize = true
		u := sub.upload(policyDelete, without, func(u *upload) {
			if !label {
				delete(u.Labels, labelSourceUID)
			}
		})
		sub.editStatus(u.source, func() { u.source.Status.RestoreSize = nil })
		sub.delete(u.claim)
		sub.settle()
		sub.create(sub.claimOf("data", "immediate"))
		sub.settle()
		_, err := sub.csi().Expose(w.Context(), u.DataUpload)
		sub.refused(err, "is gone")
		sub.disposed(u)
		sub.nothingLeft(u)
	}
}

func sizeAndClaimGone(w *world) {
	u := w.upload(policyDelete, without, func(u *upload) {
		u.Spec.SourcePVC = "gone"
		u.source.Spec.Source.PersistentVolumeClaimName = ptr.To("gone")
	})
	w.editStatus(u.source, func() { u.source.Status.RestoreSize = nil })
	_, err := w.csi().Expose(w.Context(), u.DataUpload)
	w.refused(err, "neither")
	if w.contentsOf()[policyDelete] != 1 || u.Annotations[datamove.AnnotationExposed] != "" {
		w.Error("something was changed before it was refused")
	}
	w.disposed(u)
	w.nothingLeft(u)
}

func snapshotNotReady(w *world) {
	u := w.upload(policyDelete, func(u *upload) {
		u.content.Status = &snapshotv1.VolumeSnapshotContentStatus{ReadyToUse: ptr.To(false)}
	})
	exposure, err := w.csi().Expose(w.Context(), u.DataUpload)
	w.same("error", err, nil)
	if !strings.Contains(exposure.Waiting, u.source.Name+" to be ready") {
		w.Errorf("waits for %q", exposure.Waiting)
	}
	w.disposed(u)
	w.nothingLeft(u)
}

func snapshotFails(w *world) {
	u := w.upload(policyDelete, func(u *upload) {
		u.content.Status = &snapshotv1.VolumeSnapshotContentStatus{ReadyToUse: ptr.To(false)}
	})
	w.editStatus(u.source, func() {
		u.source.Status.Error = &snapshotv1.VolumeSnapshotError{Time: ptr.To(metav1.NewTime(w.clock.Now())), Message: ptr.To("no space")}
	})
	exposure, err := w.csi().Expose(w.Context(), u.DataUpload)
	w.same("error", err, nil)
	if !strings.Contains(exposure.Waiting, "no space") {
		w.Errorf("waits for %q", exposure.Waiting)
	}
	w.clock.SetTime(w.clock.Now().Add(errorGrace + time.Second))
	_, err = w.csi().Expose(w.Context(), u.DataUpload)
	w.refused(err, "has failed: no space")
	w.disposed(u)
	w.nothingLeft(u)
}

func ownSnapshotFails(w *world) {
	u := w.upload(policyDelete)
	w.storage.fails = "no such snapshot"
	var err error
	for range 4 {
		_, err = w.csi().Expose(w.Context(), u.DataUpload)
		w.same("error", err, nil)
		w.settle()
	}
	w.clock.SetTime(w.clock.Now().Add(errorGrace + time.Second))
	_, err = w.csi().Expose(w.Context(), u.DataUpload)
	w.refused(err, "no such snapshot")
	w.same("source", w.exists(u.source), true)
	w.disposed(u)
	w.nothingLeft(u)
}

func provisioningFails(w *world) {
	u := w.upload(policyDelete)
	var exposure Exposure
	for range 6 {
		var err error
		if exposure, err = w.csi().Expose(w.Context(), u.DataUpload); err != nil {
			w.Fatal(err)
		}
		w.settle()
		if w.exists(u.childSnapshot()) {
			w.storage.fails = "quota of the storage is used up"
		}
	}
	if !strings.Contains(exposure.Waiting, "to be bound (ProvisioningFailed: quota of the storage is used up)") {
		w.Errorf("waits for %q", exposure.Waiting)
	}
	w.disposed(u)
	w.nothingLeft(u)
}

// While the own snapshot is waited for, somebody sets a class in whose driver there are no snapshots: it would make an empty volume.
func classChanges(w *world) {
	w.create(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: w.className("local")}, Provisioner: "local.path"})
	u := w.upload(policyDelete)
	exposure, err := w.csi().Expose(w.Context(), u.DataUpload)
	w.same("error", err, nil)
	if !strings.Contains(exposure.Waiting, "to be ready") {
		w.Errorf("waits for %q", exposure.Waiting)
	}
	w.settle()
	w.options.Classes = map[string]Class{w.className("immediate"): {StorageClass: w.className("local")}}
	for range 3 {
		_, err = w.csi().Expose(w.Context(), u.DataUpload)
		w.settle()
	}
	w.refused(err, "belongs to the driver local.path")
	w.same("claim", w.exists(u.childClaim()), false)
	w.options = Options{}
	w.disposed(u)
	w.nothingLeft(u)
}

func exposeRefuses(w *world) {
	w.create(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: w.className("static")}, Provisioner: noProvisioner})
	w.create(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: w.className("foreign")}, Provisioner: "another.driver"})
	u := w.upload(policyRetain)
	good := u.DataUpload.DeepCopy()
	for want, edit := range map[string]func(){
		"csiSnapshot of the DataUpload is missing": func() { u.Spec.CSISnapshot = nil },
		"storageClass of the DataUpload":           func() { u.Spec.CSISnapshot.StorageClass = "" },
		"does not exist: create it":                func() { u.Spec.CSISnapshot.StorageClass = w.className("gone") },
		"has no driver":                            func() { u.Spec.CSISnapshot.StorageClass = w.className("static") },
		"belongs to the driver another.driver":     func() { u.Spec.CSISnapshot.StorageClass = w.className("foreign") },
		"does not exist: back up":                  func() { u.Spec.CSISnapshot.VolumeSnapshot = "gone" },
		"is of PersistentVolumeClaim data":         func() { u.Spec.SourcePVC = "other" },
		"belongs to the backup b1":                 func() { u.Labels[datamove.LabelBackupName] = "b2" },
		"younger":                                  func() { u.CreationTimestamp = metav1.NewTime(u.CreationTimestamp.Add(-time.Hour)) },
	} {
		edit()
		_, err := w.csi().Expose(w.Context(), u.DataUpload)
		w.refused(err, want)
		good.DeepCopyInto(u.DataUpload)
	}
	if w.contentsOf()[policyRetain] != 1 || len(w.contentsOf()) != 1 {
		w.Error("something was changed before it was refused")
	}
	w.disposed(u)
	w.nothingLeft(u)
}

// Objects with the names of children that are not Varve's are neither used nor removed.
func strangersAmongChildren(w *world) {
	u := w.upload(policyDelete)
	for i := range 3 {
		o := []client.Object{u.childClaim(), u.childSnapshot(), u.childContent()}[i]
		switch o := o.(type) {
		case *corev1.PersistentVolumeClaim:
			o.Spec = w.claimOf("x", "immediate").Spec
		case *snapshotv1.VolumeSnapshot:
			o.Spec.Source.VolumeSnapshotContentName = ptr.To("somebody's")
		case *snapshotv1.VolumeSnapshotContent:
			o.Spec = *u.content.Spec.DeepCopy()
			o.Spec.Driver = "another.driver"
		}
		w.create(o)
		_, err := w.csi().Expose(w.Context(), u.DataUpload)
		w.refused(err, "was not made by Varve")
		uid := o.GetUID()
		progress, err := w.csi().Dispose(w.Context(), u.DataUpload)
		w.same("error", err, nil)
		if !strings.Contains(progress.Left, describe(o)) {
			w.Errorf("left: %q", progress.Left)
		}
		w.read(o)
		w.same(describe(o), o.GetUID(), uid)
		if o.GetDeletionTimestamp() != nil {
			w.Errorf("%s is being deleted", describe(o))
		}
		w.delete(o)
		w.settle()
		// The source was disposed of; the next stranger meets a new one.
		w.disposed(u)
		u = w.another(u)
	}
	w.disposed(u)
}

// another returns an upload of the same claim.
func (w *world) another(u *upload) *upload {
	w.Helper()
	next := &upload{DataUpload: u.DataUpload.DeepCopy(), claim: u.claim, source: u.source.DeepCopy(), content: u.content.DeepCopy()}
	w.delete(u.DataUpload)
	next.DataUpload.ObjectMeta = metav1.ObjectMeta{Namespace: u.Namespace, Name: u.Name, Labels: u.Labels}
	next.source.ObjectMeta = metav1.ObjectMeta{Namespace: u.source.Namespace, Name: u.source.Name, Labels: u.source.Labels, Finalizers: []string{finalizerBound}}
	next.content.ObjectMeta = metav1.ObjectMeta{Finalizers: []string{finalizerContent}}
	next.content.Spec.DeletionPolicy = policyDelete
	next.content.Spec.VolumeSnapshotRef = corev1.ObjectReference{}
	next.content.Status = nil
	w.makeSnapshot(next, "snap-"+w.ns)
	w.create(next.DataUpload)
	return next
}

// Another VolumeSnapshot of the name that was noted is never touched, in no state.
func sourceReplaced(w *world) {
	u := w.upload(policyRetain)
	w.exposed(u)
	w.settle()
	if _, err := w.csi().Expose(w.Context(), u.DataUpload); err != nil {
		w.Fatal(err)
	}
	w.settle()
	other := &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: u.source.Name}, Spec: snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: ptr.To("data")}},
	}
	w.create(other)
	if w.exposed(u).Volume == nil {
		w.Error("no volume")
	}
	progress := w.disposed(u)
	if !strings.Contains(progress.Left, "is another one") {
		w.Errorf("left: %q", progress.Left)
	}
	uid := other.UID
	w.read(other)
	if other.UID != uid || other.DeletionTimestamp != nil {
		w.Error("the other VolumeSnapshot was touched")
	}
	w.delete(other)
	w.nothingLeft(u)
}

// Velero waits for nobody when its own timeout is over: it cancels a DataUpload that no node has taken, and leaves the snapshot.
func disposedUnexposed(w *world, policy snapshotv1.DeletionPolicy) {
	u := w.upload(policy)
	w.disposed(u)
	w.nothingLeft(u)
}

func disposeLeavesStrangers(w *world) {
	for what, edit := range map[string]func(*upload){
		"is of PersistentVolumeClaim other": func(u *upload) { u.source.Spec.Source.PersistentVolumeClaimName = ptr.To("other") },
		"belongs to the backup b2":          func(u *upload) { u.source.Labels[datamove.LabelBackupName] = "b2" },
		"belongs to VolumeSnapshot": func(u *upload) {
			u.content.Spec.VolumeSnapshotRef = corev1.ObjectReference{Namespace: w.ns, Name: "another", UID: "u"}
		},
		"was there before": func(u *upload) {
			u.content.Spec.Source = snapshotv1.VolumeSnapshotContentSource{SnapshotHandle: ptr.To("snap-" + w.ns)}
		},
	} {
		sub := newWorld(w.T)
		u := sub.upload(policyDelete, edit)
		_, err := sub.csi().Expose(w.Context(), u.DataUpload)
		sub.refused(err, strings.Fields(what)[len(strings.Fields(what))-1])
		progress := sub.disposed(u)
		if !strings.Contains(progress.Left, what) {
			w.Errorf("%s: left %q", what, progress.Left)
		}
		sub.read(u.source)
		sub.read(u.content)
		if u.source.DeletionTimestamp != nil || u.content.DeletionTimestamp != nil || len(sub.storage.snapshots) != 1 {
			w.Errorf("%s: it was deleted", what)
		}
	}
}

// Before the snapshotter has taken up the own content, its deletion would leave the snapshot on the storage.
func disposedBeforeReady(w *world) {
	for _, stopped := range [][]string{{"csi-snapshotter"}, {"snapshot-controller"}, {"csi-snapshotter", "snapshot-controller"}} {
		for _, policy := range []snapshotv1.DeletionPolicy{policyDelete, policyRetain} {
			sub := newWorld(w.T)
			u := sub.upload(policy)
			sub.storage.stopped = stopped
			for range 3 {
				if _, err := sub.csi().Expose(w.Context(), u.DataUpload); err != nil {
					w.Fatal(err)
				}
				sub.settle()
			}
			sub.same("own content", sub.exists(u.childContent()), true)
			sub.contentsOf()
			sub.storage.stopped = nil
			for range 2 { // it may have become ready in the meantime, or not
				if _, err := sub.csi().Dispose(w.Context(), u.DataUpload); err != nil {
					w.Fatal(err)
				}
				sub.contentsOf()
			}
			sub.disposed(u)
			sub.nothingLeft(u)
		}
	}
}

func disposedWithoutSource(w *world) {
	u := w.upload(policyRetain)
	w.storage.stopped = []string{"csi-snapshotter"}
	for range 2 {
		if _, err := w.csi().Expose(w.Context(), u.DataUpload); err != nil {
			w.Fatal(err)
		}
	}
	w.delete(u.childSnapshot())
	w.storage.stopped = nil
	w.delete(u.source)
	w.settle()
	w.delete(u.content)
	w.settle()
	w.same("own VolumeSnapshot", w.exists(u.childSnapshot()), false)
	w.same("own content", w.exists(u.childContent()), true)
	w.disposed(u)
	w.nothingLeft(u)
}

// The cluster binds a claim to any unclaimed volume that fits, even if the claim asks for a snapshot's content.
func olderVolume(w *world) {
	old := w.unclaimedVolume()
	time.Sleep(1100 * time.Millisecond) // creation times have seconds
	w.keptFromUpload(old)
}

// An administrator makes a volume for data that is there already, while the claim waits for its driver.
func youngerVolume(w *world) { w.keptFromUpload(nil) }

// keptFromUpload has the claim of a DataUpload bound to a volume that others made, before the claim or, if it is nil, after it.
func (w *world) keptFromUpload(old *corev1.PersistentVolume) {
	u := w.upload(policyDelete)
	w.storage.stopped = []string{"external-provisioner"}
	for !w.exists(u.childClaim()) {
		if _, err := w.csi().Expose(w.Context(), u.DataUpload); err != nil {
			w.Fatal(err)
		}
		w.settle()
	}
	if old == nil {
		old = w.unclaimedVolume()
	}
	w.choose(old, u.childClaim())
	_, err := w.csi().Expose(w.Context(), u.DataUpload)
	w.refused(err, "was there before")
	w.storage.stopped = nil
	w.disposed(u)
	w.read(old)
	w.same("policy of the other volume", old.Spec.PersistentVolumeReclaimPolicy, corev1.PersistentVolumeReclaimRetain)
	w.same("the other volume", old.DeletionTimestamp == nil, true)
	w.delete(old)
	w.settle()
	w.nothingLeft(u)
}

// unclaimedVolume makes a volume as an administrator does.
func (w *world) unclaimedVolume() *corev1.PersistentVolume {
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: w.ns + "-old"},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{corev1.ResourceStorage: quantity(256 * mebibyte)}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			StorageClassName: w.className("immediate"), PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: w.storage.driver, VolumeHandle: "old"}},
		},
	}
	w.create(volume)
	w.storage.made = append(w.storage.made, volume.Name)
	return volume
}

// choose binds an unclaimed volume to a claim, as the cluster does when it finds one that fits.
func (w *world) choose(volume *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) {
	w.read(claim)
	w.edit(volume, func() {
		volume.Spec.ClaimRef = &corev1.ObjectReference{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}
		metav1.SetMetaDataAnnotation(&volume.ObjectMeta, annotationBoundByController, "yes")
	})
	w.settle()
}

func claimDeletedByOthers(w *world) {
	w.class("retain", storagev1.VolumeBindingImmediate, corev1.PersistentVolumeReclaimRetain)
	u := w.upload(policyDelete, func(u *upload) { u.Spec.CSISnapshot.StorageClass = w.className("retain") })
	w.exposed(u)
	w.delete(u.childClaim())
	_, err := w.csi().Expose(w.Context(), u.DataUpload)
	w.refused(err, "was deleted by somebody else")
	w.settle()
	_, err = w.csi().Expose(w.Context(), u.DataUpload)
	w.refused(err, "was deleted by somebody else")
	w.disposed(u)
	w.nothingLeft(u)
}

func volumeGivenAway(w *world) {
	w.class("retain", storagev1.VolumeBindingImmediate, corev1.PersistentVolumeReclaimRetain)
	u := w.upload(policyDelete, func(u *upload) { u.Spec.CSISnapshot.StorageClass = w.className("retain") })
	w.exposed(u)
	claim := u.childClaim()
	w.read(claim)
	w.delete(u.childClaim())
	w.settle()
	other := w.claimOf("other", "retain")
	other.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
	w.create(other)
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: claim.Spec.VolumeName}}
	w.edit(volume, func() { volume.Spec.ClaimRef = &corev1.ObjectReference{Namespace: w.ns, Name: "other", UID: other.UID} })
	w.settle()
	progress := w.disposed(u)
	if !strings.Contains(progress.Left, "was given to another claim") {
		w.Errorf("left %q", progress.Left)
	}
	w.read(volume)
	w.same("policy", volume.Spec.PersistentVolumeReclaimPolicy, corev1.PersistentVolumeReclaimRetain)
}

func disposedTwice(w *world) {
	u := w.upload(policyDelete)
	w.exposed(u)
	w.disposed(u)
	progress, err := w.csi().Dispose(w.Context(), u.DataUpload)
	w.same("again", progress, Progress{Done: true})
	w.same("again", err, nil)
	w.nothingLeft(u)
}

// Somebody restores from the source's VolumeSnapshot, so that it is not deleted. The own volume does not wait for that.
func slowSource(w *world) {
	u := w.upload(policyRetain)
	w.edit(u.source, func() { u.source.Finalizers = append(u.source.Finalizers, "example.org/in-use") })
	w.exposed(u)
	w.settle()
	var progress Progress
	for range 8 {
		var err error
		if progress, err = w.csi().Dispose(w.Context(), u.DataUpload); err != nil {
			w.Fatal(err)
		}
		w.settle()
	}
	if !strings.Contains(progress.Waiting, u.source.Name+" to be deleted (kept by example.org/in-use)") {
		w.Errorf("waits for %q", progress.Waiting)
	}
	w.edit(u.source, func() { u.source.Finalizers = nil })
	w.disposed(u)
	w.nothingLeft(u)
}

func laterNote(w *world) {
	u := w.upload(policyDelete)
	setNote(u.DataUpload, `{"version":2}`)
	_, err := w.csi().Expose(w.Context(), u.DataUpload)
	if err == nil || !strings.Contains(err.Error(), "version 2, want 1") {
		w.Errorf("error %v", err)
	}
	_, err = w.csi().Dispose(w.Context(), u.DataUpload)
	if err == nil || !strings.Contains(err.Error(), "version 2, want 1") {
		w.Errorf("error %v", err)
	}
	w.read(u.source)
}

// A driver whose object is not the latest changes nothing.
func staleUpload(w *world) {
	u := w.upload(policyDelete)
	stale := u.DataUpload.DeepCopy()
	w.edit(u.DataUpload, func() { u.Spec.Cancel = true })
	if _, err := w.csi().Expose(w.Context(), stale); err == nil {
		w.Error("a stale DataUpload was exposed")
	}
	w.same("contents", w.contentsOf()[policyDelete], 1)
	w.disposed(u)
	w.nothingLeft(u)
}

func policyChangedByOthers(w *world) {
	u := w.upload(policyDelete)
	w.exposed(u)
	content := u.childContent()
	w.edit(content, func() { content.Spec.DeletionPolicy = policyRetain })
	w.settle()
	w.disposed(u)
	w.nothingLeft(u)
}
