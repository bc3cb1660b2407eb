//go:build controlplane

package expose

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/store/names"
)

var restoreTests = map[string]func(*world){
	"the class deletes":                              func(w *world) { volumeIsHandedOver(w, corev1.PersistentVolumeReclaimDelete) },
	"the class retains":                              func(w *world) { volumeIsHandedOver(w, corev1.PersistentVolumeReclaimRetain) },
	"the claim comes later":                          targetComesLater,
	"the claim as the target wants it":               claimLikeTarget,
	"a disk that is larger than the target":          largeDisk,
	"the class makes clones of an image":             classClonesImage,
	"the target waits for a consumer":                targetWaitsForConsumer,
	"the target waits for nobody":                    targetWaitsForNobody,
	"a consumer that never comes":                    consumerNeverComes,
	"Expose refuses":                                 restoreRefuses,
	"the target is replaced while it is restored":    targetReplaced,
	"the target is bound to another volume":          targetBoundToAnother,
	"the target is deleted while it is bound":        targetDeletedWhileBound,
	"the target never gets the volume":               targetNeverBound,
	"a stranger has the claim's name":                strangerIsClaim,
	"the restored volume is deleted by others":       volumeDeletedByOthers,
	"the claim is deleted by others":                 restoreClaimDeletedByOthers,
	"disposed of before Finish":                      disposedBeforeFinish,
	"disposed of without Expose":                     disposedWithoutExpose,
	"disposed of when the target has the volume":     disposedWhenBound,
	"the target is deleted after it was handed to":   targetDeletedAfterFinish,
	"labels of the volume":                           labelsOfVolume,
	"an older volume is bound to the claim":          olderVolumeForRestore,
	"a volume that is made later and is bound to it": youngerVolumeForRestore,
	"the volume is not released yet":                 volumeNotReleased,
	"a claim in use by a pod":                        claimInUse,
}

// filled calls Expose until there is a volume that a pod could mount, and plays the pod.
func (w *world) filled(d *download) Exposure {
	w.Helper()
	var last Exposure
	for range w.steps() {
		exposure, err := w.restore().Expose(w.Context(), d.DataDownload)
		if err != nil {
			w.Fatalf("expose: %v", err)
		}
		w.settle()
		if exposure.Volume != nil {
			claim := d.childClaim()
			w.read(claim)
			if claim.Spec.VolumeName != "" {
				return exposure
			}
			w.edit(claim, func() { metav1.SetMetaDataAnnotation(&claim.ObjectMeta, annotationSelectedNode, "node-pod") })
			w.settle()
			continue
		}
		last = exposure
	}
	w.Fatalf("no volume: %s", last.Waiting)
	return Exposure{}
}

func (w *world) handedOver(d *download) Progress {
	w.Helper()
	return w.finished(func(ctx context.Context) (Progress, error) { return w.restore().Finish(ctx, d.DataDownload) })
}

func (w *world) discarded(d *download) Progress {
	w.Helper()
	return w.finished(func(ctx context.Context) (Progress, error) { return w.restore().Dispose(ctx, d.DataDownload) })
}

// targetHas fails the test if the target does not have a volume with that policy, or if anything else is left.
func (w *world) targetHas(d *download, policy corev1.PersistentVolumeReclaimPolicy) {
	w.Helper()
	w.settle()
	w.read(d.target)
	volumes := w.volumes()
	if len(volumes) != 1 || len(w.storage.volumes) != 1 {
		w.Fatalf("%d PersistentVolumes, %v on the storage, want the target's alone", len(volumes), w.storage.volumes)
	}
	w.same("volume of the target", d.target.Spec.VolumeName, volumes[0].Name)
	w.same("claim of the volume", volumes[0].Spec.ClaimRef.UID, d.target.UID)
	w.same("policy", volumes[0].Spec.PersistentVolumeReclaimPolicy, policy)
	w.same("phase", volumes[0].Status.Phase, corev1.VolumeBound)
	if w.exists(d.childClaim()) {
		w.Error("the claim in Varve's namespace is left")
	}
}

// nothingRestored fails the test if a claim or a volume is left, on the storage too.
func (w *world) nothingRestored(d *download) {
	w.Helper()
	w.settle()
	if w.exists(d.childClaim()) || len(w.volumes()) != 0 || len(w.storage.volumes) != 0 {
		w.Errorf("the claim, %d PersistentVolumes, or %v on the storage are left", len(w.volumes()), w.storage.volumes)
	}
}

func volumeIsHandedOver(w *world, policy corev1.PersistentVolumeReclaimPolicy) {
	w.class("class", storagev1.VolumeBindingImmediate, policy)
	d := w.download(func(d *download) { d.target.Spec.StorageClassName = ptr.To(w.className("class")) })
	exposure := w.filled(d)
	want := &Volume{Claim: datamove.ChildName(datamove.Download, d.UID), VolumeMode: corev1.PersistentVolumeFilesystem, Bytes: 64 * mebibyte}
	if diff := cmp.Diff(want, exposure.Volume); diff != "" {
		w.Error(diff)
	}
	w.handedOver(d)
	w.targetHas(d, policy)
	w.same("label", w.volumes()[0].Labels[datamove.LabelRestoredVolume], w.ns+".data.lbv55")
	progress, err := w.restore().Finish(w.Context(), d.DataDownload)
	w.same("again", progress, Progress{Done: true})
	w.same("again", err, nil)
	w.discarded(d)
	w.targetHas(d, policy)
}

func targetComesLater(w *world) {
	d := w.download(func(d *download) { d.target = nil })
	exposure, err := w.restore().Expose(w.Context(), d.DataDownload)
	w.same("error", err, nil)
	w.same("waiting", exposure.Waiting, "PersistentVolumeClaim "+w.ns+"/data to be created")
	d.target = w.claimOf("data", "immediate")
	d.target.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{datamove.LabelRestoredVolume: "x"}}
	w.create(d.target)
	w.filled(d)
	w.handedOver(d)
	w.targetHas(d, corev1.PersistentVolumeReclaimDelete)
}

func claimLikeTarget(w *world) {
	d := w.download(func(d *download) {
		d.target.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
		d.target.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany, corev1.ReadWriteOnce}
		d.target.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "source"}
	})
	w.same("mode", w.filled(d).Volume.VolumeMode, corev1.PersistentVolumeBlock)
	claim := d.childClaim()
	w.read(claim)
	w.same("modes", claim.Spec.AccessModes, d.target.Spec.AccessModes)
	w.same("selector", claim.Spec.Selector == nil, true)
	w.same("data source", claim.Spec.DataSource == nil, true)
	w.same("label", claim.Labels[datamove.LabelObject], d.UID)
	w.same("owner", claim.Annotations[datamove.AnnotationOwner], "DataDownload/"+w.ns+"/"+d.Name)
	w.same("a volume that is only read", writableModes([]corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}),
		[]corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadOnlyMany})
	w.discarded(d)
	w.nothingRestored(d)
}

// A volume that its class makes as a clone of an image is compared with the disk. One with files is not, nor is one of
// another driver, to which the parameter means something else.
func classClonesImage(w *world) {
	for _, c := range []struct {
		provisioner, image string
		mode               corev1.PersistentVolumeMode
		want               bool
	}{
		{names.Driver, "debian-13", corev1.PersistentVolumeBlock, true},
		{driverOfLonghorn, "debian-13", corev1.PersistentVolumeBlock, true},
		{names.Driver, "debian-13", corev1.PersistentVolumeFilesystem, false},
		{names.Driver, "", corev1.PersistentVolumeBlock, false},
		{"csi.other", "debian-13", corev1.PersistentVolumeBlock, false},
	} {
		sub := newWorld(w.T)
		sub.storage.driver = c.provisioner
		class := &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: sub.className("images")}, Provisioner: c.provisioner,
		}
		if c.image != "" {
			class.Parameters = map[string]string{"backingImage": c.image}
		}
		sub.create(class)
		d := sub.download(func(d *download) {
			d.target.Spec.VolumeMode, d.target.Spec.StorageClassName = ptr.To(c.mode), ptr.To(class.Name)
		})
		if got := sub.filled(d).Volume.OfImage; got != c.want {
			w.Errorf("%+v: %t", c, got)
		}
		sub.discarded(d)
	}
}

func largeDisk(w *world) {
	d := w.download(func(d *download) { d.Spec.SnapshotSize = 96 * mebibyte })
	w.same("bytes", w.filled(d).Volume.Bytes, 96*mebibyte)
	w.handedOver(d)
	w.targetHas(d, corev1.PersistentVolumeReclaimDelete)
	files := newWorld(w.T)
	d = files.download(func(d *download) {
		d.Spec.SnapshotSize = 96 * mebibyte
		d.Spec.SnapshotID = datamove.SnapshotID{Form: datamove.Files, Point: strings.Repeat("ab", 16), Namespace: files.ns}.String()
	})
	files.same("bytes", files.filled(d).Volume.Bytes, 64*mebibyte)
	files.discarded(d)
}

// restoredLate is a download of a claim whose class waits for a first consumer.
func (w *world) restoredLate(edit func(*download)) *download {
	w.Helper()
	w.class("wffc", storagev1.VolumeBindingWaitForFirstConsumer, corev1.PersistentVolumeReclaimDelete)
	return w.download(func(d *download) {
		d.target.Spec.StorageClassName = ptr.To(w.className("wffc"))
		edit(d)
	})
}

// isMadeOn checks that the volume of a download is made for a node, and handed over.
func (w *world) isMadeOn(d *download, node string) {
	w.Helper()
	w.filled(d)
	exposure, err := w.restore().Expose(w.Context(), d.DataDownload)
	if err != nil {
		w.Fatal(err)
	}
	if diff := cmp.Diff(onNode(node), exposure.Volume.NodeAffinity); diff != "" {
		w.Error(diff)
	}
	w.handedOver(d)
	w.targetHas(d, corev1.PersistentVolumeReclaimDelete)
}

func ofVelero(d *download) { d.Labels = map[string]string{datamove.LabelRestoreName: "r1"} }

func hasNode(node string) func(*download) {
	return func(d *download) { d.target.Annotations = map[string]string{annotationSelectedNode: node} }
}

// Whose volume is made at once: on the node that is selected already, or else where the mover pod runs.
func targetWaitsForNobody(w *world) {
	const wait = 10 * time.Minute
	for name, c := range map[string]struct {
		wait  time.Duration
		class string
		edit  []func(*download)
		want  string
	}{
		"a node is selected":                      {wait, "", []func(*download){ofVelero, hasNode("node-3")}, "node-3"},
		"a node is selected, and nobody waits":    {0, "", []func(*download){hasNode("node-3")}, "node-3"},
		"the setting says so":                     {0, "", []func(*download){ofVelero}, "node-pod"},
		"the class says so":                       {wait, "false", []func(*download){ofVelero}, "node-pod"},
		"Velero did not make it":                  {wait, "", nil, "node-pod"},
		"it is not Velero's, and the class waits": {wait, "true", nil, "node-pod"},
	} {
		sub := newWorld(w.T)
		sub.options.ConsumerWait = c.wait
		d := sub.restoredLate(func(d *download) {
			for _, edit := range c.edit {
				edit(d)
			}
		})
		if c.class != "" {
			sub.annotateClass(c.class)
		}
		exposure, err := sub.restore().Expose(w.Context(), d.DataDownload)
		if err != nil || !exposure.Until.IsZero() || exposure.Notice != "" || !sub.exists(d.childClaim()) {
			w.Errorf("%s: %+v, %v", name, exposure, err)
		}
		sub.isMadeOn(d, c.want)
	}
}

// annotateClass says on the class whether restores wait for its consumers.
func (w *world) annotateClass(value string) {
	w.Helper()
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: w.className("wffc")}}
	w.read(class)
	w.edit(class, func() { metav1.SetMetaDataAnnotation(&class.ObjectMeta, AnnotationWaitForConsumer, value) })
}

// A restore of Velero's brings the pod that uses the claim: the volume is made on that pod's node.
func targetWaitsForConsumer(w *world) {
	w.options.ConsumerWait = 10 * time.Minute
	d := w.restoredLate(ofVelero)
	w.annotateClass("true")
	accepted := metav1.NewTime(w.clock.Now().Add(time.Minute).Truncate(time.Second))
	d.Status.AcceptedTimestamp = &accepted
	exposure, err := w.restore().Expose(w.Context(), d.DataDownload)
	if err != nil || !strings.Contains(exposure.Waiting, "a pod that uses PersistentVolumeClaim "+w.ns+"/data") ||
		!exposure.Until.Equal(accepted.Add(10*time.Minute)) {
		w.Errorf("%+v, %v", exposure, err)
	}
	if w.exists(d.childClaim()) {
		w.Error("the volume is made for no node")
	}
	w.edit(d.target, func() { metav1.SetMetaDataAnnotation(&d.target.ObjectMeta, annotationSelectedNode, "node-4") })
	exposure, err = w.restore().Expose(w.Context(), d.DataDownload)
	if err != nil || !strings.Contains(exposure.Waiting, "to be bound to a volume for node node-4") {
		w.Errorf("the pod would be made before it is known where the volume is: %+v, %v", exposure, err)
	}
	w.isMadeOn(d, "node-4")
}

// No pod comes, as of a machine that is stopped: the volume is made anyway, and that is said once.
func consumerNeverComes(w *world) {
	w.options.ConsumerWait = 10 * time.Minute
	d := w.restoredLate(ofVelero)
	w.clock.SetTime(d.target.CreationTimestamp.Add(10*time.Minute - time.Second))
	if exposure, err := w.restore().Expose(w.Context(), d.DataDownload); err != nil || exposure.Waiting == "" {
		w.Errorf("a second before the end: %+v, %v", exposure, err)
	}
	w.clock.SetTime(d.target.CreationTimestamp.Add(10 * time.Minute))
	exposure, err := w.restore().Expose(w.Context(), d.DataDownload)
	if err != nil || exposure.Volume == nil || !strings.Contains(exposure.Notice, "is made on any node") {
		w.Errorf("%+v, %v", exposure, err)
	}
	if exposure, err = w.restore().Expose(w.Context(), d.DataDownload); err != nil || exposure.Notice != "" {
		w.Errorf("it is said again: %+v, %v", exposure, err)
	}
	w.isMadeOn(d, "node-pod")
}

func restoreRefuses(w *world) {
	w.create(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: w.className("static")}, Provisioner: noProvisioner})
	for want, edit := range map[string]func(w *world, d *download){
		"has no StorageClass":       func(_ *world, d *download) { d.target.Spec.StorageClassName = ptr.To("") },
		"does not exist: create it": func(_ *world, d *download) { d.target.Spec.StorageClassName = ptr.To("gone") },
		"has no driver":             func(_ *world, d *download) { d.target.Spec.StorageClassName = ptr.To(w.className("static")) },
		"is limited to 80Mi": func(_ *world, d *download) {
			d.target.Spec.Resources.Limits = corev1.ResourceList{corev1.ResourceStorage: quantity(80 * mebibyte)}
			d.Spec.SnapshotSize = 96 * mebibyte
		},
		"is bound to PersistentVolume": func(_ *world, d *download) { d.target.Spec.VolumeName = "somebodys" },
	} {
		sub := newWorld(w.T)
		d := sub.download(func(d *download) { edit(sub, d) })
		_, err := sub.restore().Expose(w.Context(), d.DataDownload)
		sub.refused(err, want)
		if sub.exists(d.childClaim()) || d.Annotations[datamove.AnnotationExposed] != "" {
			w.Errorf("%s: something was made", want)
		}
		sub.discarded(d)
	}
}

// replaceTarget deletes the target and makes another of its name.
func (w *world) replaceTarget(d *download) {
	w.Helper()
	w.delete(d.target)
	w.settle()
	other := d.target.DeepCopy()
	other.ObjectMeta = metav1.ObjectMeta{Namespace: d.target.Namespace, Name: d.target.Name}
	w.create(other)
	d.target = other
}

func targetReplaced(w *world) {
	d := w.download()
	w.filled(d)
	w.replaceTarget(d)
	_, err := w.restore().Expose(w.Context(), d.DataDownload)
	w.refused(err, "replaced by another")
	_, err = w.restore().Finish(w.Context(), d.DataDownload)
	w.refused(err, "replaced by another")
	w.discarded(d)
	w.nothingRestored(d)
	w.read(d.target)
	w.same("volume of the other claim", d.target.Spec.VolumeName, "")
}

func targetBoundToAnother(w *world) {
	d := w.download()
	w.filled(d)
	w.edit(d.target, func() { d.target.Spec.VolumeName = "somebodys" })
	_, err := w.restore().Expose(w.Context(), d.DataDownload)
	w.refused(err, "is bound to PersistentVolume somebodys already")
	_, err = w.restore().Finish(w.Context(), d.DataDownload)
	w.refused(err, "was bound to PersistentVolume somebodys")
	w.discarded(d)
	w.nothingRestored(d)
}

// given calls Finish until the volume's claimRef is the target's, while nobody binds it.
func (w *world) given(d *download) {
	w.Helper()
	w.filled(d)
	for range w.steps() {
		for _, volume := range w.volumes() {
			if volume.Spec.ClaimRef.UID == d.target.UID {
				return
			}
		}
		w.storage.stopped = nil
		w.settle()
		w.storage.stopped = []string{"binder"}
		if _, err := w.restore().Finish(w.Context(), d.DataDownload); err != nil {
			w.Fatal(err)
		}
	}
	w.Fatal("the volume was not handed over")
}

func targetDeletedWhileBound(w *world) {
	w.class("retain", storagev1.VolumeBindingImmediate, corev1.PersistentVolumeReclaimRetain)
	d := w.download(func(d *download) { d.target.Spec.StorageClassName = ptr.To(w.className("retain")) })
	w.given(d)
	w.delete(d.target)
	w.storage.stopped = nil
	w.settle()
	_, err := w.restore().Finish(w.Context(), d.DataDownload)
	w.refused(err, "was deleted")
	w.discarded(d)
	w.nothingRestored(d)
}

func targetNeverBound(w *world) {
	d := w.download()
	w.given(d)
	progress, err := w.restore().Finish(w.Context(), d.DataDownload)
	w.same("error", err, nil)
	if progress.Done || !strings.Contains(progress.Waiting, "data to be bound to PersistentVolume") {
		w.Errorf("progress %+v", progress)
	}
	if _, err := w.restore().Dispose(w.Context(), d.DataDownload); err != nil {
		w.Fatal(err)
	}
	w.storage.stopped = nil
	w.discarded(d)
	w.nothingRestored(d)
	w.read(d.target)
	w.same("volume of the target", d.target.Spec.VolumeName, "")
}

func strangerIsClaim(w *world) {
	d := w.download()
	stranger := d.childClaim()
	stranger.Spec = w.claimOf("x", "immediate").Spec
	w.create(stranger)
	_, err := w.restore().Expose(w.Context(), d.DataDownload)
	w.refused(err, "was not made by Varve")
	progress := w.discarded(d)
	if !strings.Contains(progress.Left, "was not made by Varve") {
		w.Errorf("left %q", progress.Left)
	}
	w.read(stranger)
	w.same("the stranger", stranger.DeletionTimestamp == nil, true)
	w.delete(stranger)
	w.settle()
}

func volumeDeletedByOthers(w *world) {
	d := w.download()
	w.filled(d)
	w.storage.stopped = []string{"protection"}
	if _, err := w.restore().Finish(w.Context(), d.DataDownload); err != nil {
		w.Fatal(err)
	}
	volume := w.volumes()[0]
	w.edit(&volume, func() { volume.Finalizers = nil })
	w.delete(&volume)
	_, err := w.restore().Finish(w.Context(), d.DataDownload)
	w.refused(err, "was deleted by somebody else")
	w.storage.stopped = nil
	w.storage.volumes = map[string]bool{} // nobody but who deleted the object can find it
	w.discarded(d)
	w.nothingRestored(d)
}

func restoreClaimDeletedByOthers(w *world) {
	w.class("retain", storagev1.VolumeBindingImmediate, corev1.PersistentVolumeReclaimRetain)
	d := w.download(func(d *download) { d.target.Spec.StorageClassName = ptr.To(w.className("retain")) })
	w.filled(d)
	w.delete(d.childClaim())
	w.settle()
	_, err := w.restore().Expose(w.Context(), d.DataDownload)
	w.refused(err, "was deleted by somebody else")
	_, err = w.restore().Finish(w.Context(), d.DataDownload)
	w.refused(err, "was deleted by somebody else")
	w.discarded(d)
	w.nothingRestored(d)
}

func disposedBeforeFinish(w *world) {
	for _, policy := range []corev1.PersistentVolumeReclaimPolicy{corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRetain} {
		sub := newWorld(w.T)
		sub.class("class", storagev1.VolumeBindingImmediate, policy)
		d := sub.download(func(d *download) { d.target.Spec.StorageClassName = ptr.To(sub.className("class")) })
		sub.filled(d)
		sub.discarded(d)
		sub.nothingRestored(d)
		sub.read(d.target)
		sub.same("volume of the target", d.target.Spec.VolumeName, "")
	}
}

func disposedWithoutExpose(w *world) {
	d := w.download()
	w.same("progress", w.discarded(d), Progress{Done: true})
	w.read(d.target)
}

// What was handed over stays, even if the DataDownload is cancelled before anybody has noted it.
func disposedWhenBound(w *world) {
	d := w.download()
	w.given(d)
	w.storage.stopped = nil
	w.settle()
	w.read(d.target)
	w.same("bound", d.target.Status.Phase, corev1.ClaimBound)
	w.same("policy", w.volumes()[0].Spec.PersistentVolumeReclaimPolicy, corev1.PersistentVolumeReclaimRetain)
	w.discarded(d)
	w.targetHas(d, corev1.PersistentVolumeReclaimDelete)
}

func targetDeletedAfterFinish(w *world) {
	w.class("retain", storagev1.VolumeBindingImmediate, corev1.PersistentVolumeReclaimRetain)
	d := w.download(func(d *download) { d.target.Spec.StorageClassName = ptr.To(w.className("retain")) })
	w.filled(d)
	w.handedOver(d)
	w.delete(d.target)
	w.settle()
	w.discarded(d)
	volumes := w.volumes()
	if len(volumes) != 1 || volumes[0].Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain || len(w.storage.volumes) != 1 {
		w.Error("the volume that was the target's is gone, although its class retains volumes")
	}
}

func labelsOfVolume(w *world) {
	d := w.download(func(d *download) { d.target.Spec.Selector.MatchLabels["topology.kubernetes.io/zone"] = "elsewhere" })
	w.filled(d)
	volume := w.volumes()[0]
	w.edit(&volume, func() {
		volume.Labels = map[string]string{"topology.kubernetes.io/zone": "here", datamove.LabelRestoredVolume: "of-another-restore"}
		metav1.SetMetaDataAnnotation(&volume.ObjectMeta, annotationBoundByController, "yes")
	})
	w.handedOver(d)
	w.targetHas(d, corev1.PersistentVolumeReclaimDelete)
	want := map[string]string{"topology.kubernetes.io/zone": "here", datamove.LabelRestoredVolume: w.ns + ".data.lbv55"}
	if diff := cmp.Diff(want, w.volumes()[0].Labels); diff != "" {
		w.Error(diff)
	}
	w.same("annotation", w.volumes()[0].Annotations[annotationBoundByController], "")
}

func olderVolumeForRestore(w *world) {
	old := w.unclaimedVolume()
	time.Sleep(1100 * time.Millisecond) // creation times have seconds
	w.keptFromDownload(old)
}

func youngerVolumeForRestore(w *world) { w.keptFromDownload(nil) }

// keptFromDownload has the claim of a DataDownload bound to a volume that others made, before the claim or, if it is nil, after it.
func (w *world) keptFromDownload(old *corev1.PersistentVolume) {
	d := w.download()
	if _, err := w.restore().Expose(w.Context(), d.DataDownload); err != nil {
		w.Fatal(err)
	}
	if old == nil {
		old = w.unclaimedVolume()
	}
	w.storage.stopped = []string{"external-provisioner"}
	w.choose(old, d.childClaim())
	w.storage.stopped = nil
	_, err := w.restore().Expose(w.Context(), d.DataDownload)
	w.refused(err, "was there before")
	_, err = w.restore().Finish(w.Context(), d.DataDownload)
	w.refused(err, "was there before")
	w.discarded(d)
	w.read(old)
	w.same("policy of the other volume", old.Spec.PersistentVolumeReclaimPolicy, corev1.PersistentVolumeReclaimRetain)
}

// The volume does not leave the claim while a pod mounts it.
func claimInUse(w *world) {
	d := w.download()
	w.filled(d)
	w.storage.stopped = []string{"protection"}
	for range 3 {
		progress, err := w.restore().Finish(w.Context(), d.DataDownload)
		w.same("error", err, nil)
		if !strings.Contains(progress.Waiting, "to be deleted (kept by "+finalizerClaim) {
			w.Errorf("waits for %q", progress.Waiting)
		}
		w.settle()
	}
	policies := []corev1.PersistentVolumeReclaimPolicy{w.volumes()[0].Spec.PersistentVolumeReclaimPolicy}
	w.same("policy", slices.Equal(policies, []corev1.PersistentVolumeReclaimPolicy{corev1.PersistentVolumeReclaimRetain}), true)
	w.storage.stopped = nil
	w.handedOver(d)
	w.targetHas(d, corev1.PersistentVolumeReclaimDelete)
}

// While the cluster has not released the volume, its phase cannot tell whether the target has it.
func volumeNotReleased(w *world) {
	d := w.download()
	w.filled(d)
	w.storage.stopped = []string{"binder"}
	var progress Progress
	for range 3 {
		var err error
		if progress, err = w.restore().Finish(w.Context(), d.DataDownload); err != nil {
			w.Fatal(err)
		}
		w.settle()
	}
	if !strings.Contains(progress.Waiting, "to be released") || w.volumes()[0].Spec.ClaimRef.UID == d.target.UID {
		w.Errorf("waits for %q", progress.Waiting)
	}
	w.storage.stopped = nil
	w.handedOver(d)
	w.targetHas(d, corev1.PersistentVolumeReclaimDelete)
}
