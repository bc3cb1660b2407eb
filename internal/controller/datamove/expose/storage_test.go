//go:build controlplane

package expose

import (
	"context"
	"fmt"
	"slices"
	"strings"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// Finalizers and annotations of the controllers that storage plays.
const (
	finalizerContent        = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"
	finalizerBound          = "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection"
	finalizerClaim          = "kubernetes.io/pvc-protection"
	finalizerVolume         = "kubernetes.io/pv-protection"
	annotationBeingDeleted  = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted"
	annotationProvisionedBy = "pv.kubernetes.io/provisioned-by"
)

// storage plays one driver's storage and everybody between it and the API: snapshot-controller, csi-snapshotter, external-provisioner,
// the binder of volumes, and the protection of claims in use. Each does what the real one was read to do, as far as exposing depends on it.
type storage struct {
	*world
	// client is what all parts read and write with.
	client client.Client
	driver string
	// snapshots and volumes are what there is on the storage, by handle.
	snapshots, volumes map[string]bool
	// made are the names of all PersistentVolumes that there have been.
	made []string
	// stopped has the parts that do nothing.
	stopped []string
	// hidesSize: the driver cannot list snapshots, so nobody learns their sizes.
	hidesSize bool
	// fails is the error that the driver gives when it is asked for a volume or about a snapshot.
	fails string
}

// settle has every part act once, and reports whether anything changed.
func (s *storage) settle(ctx context.Context) (bool, error) {
	var changed bool
	for _, part := range []struct {
		name string
		act  func(context.Context) (bool, error)
	}{
		{"snapshot-controller", s.controlSnapshots},
		{"csi-snapshotter", s.serveContents},
		{"external-provisioner", s.serveClaims},
		{"binder", s.bindVolumes},
		{"protection", s.unprotect},
	} {
		if slices.Contains(s.stopped, part.name) {
			continue
		}
		acted, err := part.act(ctx)
		if err != nil {
			return false, fmt.Errorf("%s: %w", part.name, err)
		}
		changed = changed || acted
	}
	return changed, nil
}

func find[T client.Object](ctx context.Context, s *storage, namespace, name string, o T) (T, bool, error) {
	err := s.client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, o)
	return o, err == nil, client.IgnoreNotFound(err)
}

// contents returns the contents of this driver.
func (s *storage) contents(ctx context.Context) ([]*snapshotv1.VolumeSnapshotContent, error) {
	list := &snapshotv1.VolumeSnapshotContentList{}
	if err := s.client.List(ctx, list); err != nil {
		return nil, err
	}
	var ours []*snapshotv1.VolumeSnapshotContent
	for i := range list.Items {
		if list.Items[i].Spec.Driver == s.driver {
			ours = append(ours, &list.Items[i])
		}
	}
	return ours, nil
}

// controlSnapshots plays snapshot-controller.
func (s *storage) controlSnapshots(ctx context.Context) (bool, error) {
	contents, err := s.contents(ctx)
	if err != nil {
		return false, err
	}
	var changed bool
	for _, content := range contents {
		ref := content.Spec.VolumeSnapshotRef
		snapshot, ok, err := find(ctx, s, ref.Namespace, ref.Name, &snapshotv1.VolumeSnapshot{})
		if err != nil {
			return false, err
		}
		if !ok || ref.UID != "" && ref.UID != snapshot.UID {
			continue
		}
		acted, err := s.controlSnapshot(ctx, snapshot, content)
		if err != nil {
			return false, err
		}
		changed = changed || acted
	}
	// Snapshots whose content is gone lose their finalizers.
	list := &snapshotv1.VolumeSnapshotList{}
	if err := s.client.List(ctx, list, client.InNamespace(s.ns)); err != nil {
		return false, err
	}
	own := &snapshotv1.VolumeSnapshotList{}
	if err := s.client.List(ctx, own, client.InNamespace(system)); err != nil {
		return false, err
	}
	for _, snapshot := range slices.Concat(list.Items, own.Items) {
		if snapshot.DeletionTimestamp == nil || snapshot.Namespace == system && !s.owns(&snapshot) {
			continue
		}
		name := ptr.Deref(snapshot.Spec.Source.VolumeSnapshotContentName, "snapcontent-"+string(snapshot.UID))
		_, ok, err := find(ctx, s, "", name, &snapshotv1.VolumeSnapshotContent{})
		if err != nil {
			return false, err
		}
		if !ok {
			acted, err := s.dropFinalizer(ctx, &snapshot, finalizerBound)
			if err != nil {
				return false, err
			}
			changed = changed || acted
		}
	}
	return changed, nil
}

// owns says that a snapshot in Varve's namespace was made for an object of this test's namespace.
func (s *storage) owns(o client.Object) bool {
	return strings.Contains(o.GetAnnotations()["varvebackup.io/data-mover-owner"], "/"+s.ns+"/")
}

func (s *storage) controlSnapshot(ctx context.Context, snapshot *snapshotv1.VolumeSnapshot, content *snapshotv1.VolumeSnapshotContent) (bool, error) {
	if snapshot.DeletionTimestamp != nil {
		return s.deleteSnapshot(ctx, snapshot, content)
	}
	if content.Spec.VolumeSnapshotRef.UID == "" {
		if ptr.Deref(snapshot.Spec.Source.VolumeSnapshotContentName, "") != content.Name || content.DeletionTimestamp != nil {
			return false, nil
		}
		content.Spec.VolumeSnapshotRef.UID = snapshot.UID
		controllerutil.AddFinalizer(content, finalizerContent)
		if err := s.client.Update(ctx, content); err != nil {
			return false, err
		}
		controllerutil.AddFinalizer(snapshot, finalizerBound)
		return true, s.client.Update(ctx, snapshot)
	}
	if content.Status == nil || snapshot.Status != nil && ptr.Deref(snapshot.Status.ReadyToUse, false) == ptr.Deref(content.Status.ReadyToUse, false) {
		return false, nil
	}
	snapshot.Status = &snapshotv1.VolumeSnapshotStatus{BoundVolumeSnapshotContentName: &content.Name, ReadyToUse: content.Status.ReadyToUse, Error: content.Status.Error}
	if content.Status.RestoreSize != nil {
		snapshot.Status.RestoreSize = ptr.To(quantity(*content.Status.RestoreSize))
	}
	return true, s.client.Status().Update(ctx, snapshot)
}

func (s *storage) deleteSnapshot(ctx context.Context, snapshot *snapshotv1.VolumeSnapshot, content *snapshotv1.VolumeSnapshotContent) (bool, error) {
	var changed bool
	if content.Annotations[annotationBeingDeleted] == "" {
		metav1.SetMetaDataAnnotation(&content.ObjectMeta, annotationBeingDeleted, "yes")
		if err := s.client.Update(ctx, content); err != nil {
			return false, err
		}
		changed = true
	}
	if content.Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentDelete {
		if content.DeletionTimestamp != nil {
			return changed, nil
		}
		return true, client.IgnoreNotFound(s.client.Delete(ctx, content))
	}
	acted, err := s.dropFinalizer(ctx, snapshot, finalizerBound)
	return changed || acted, err
}

func (s *storage) dropFinalizer(ctx context.Context, o client.Object, name string) (bool, error) {
	if !controllerutil.RemoveFinalizer(o, name) {
		return false, nil
	}
	return true, client.IgnoreNotFound(s.client.Update(ctx, o))
}

// serveContents plays csi-snapshotter.
func (s *storage) serveContents(ctx context.Context) (bool, error) {
	contents, err := s.contents(ctx)
	if err != nil {
		return false, err
	}
	var changed bool
	for _, content := range contents {
		var acted bool
		if content.DeletionTimestamp != nil {
			acted, err = s.deleteContent(ctx, content)
		} else {
			acted, err = s.serveContent(ctx, content)
		}
		if err != nil {
			return false, err
		}
		changed = changed || acted
	}
	return changed, nil
}

func (s *storage) deleteContent(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) (bool, error) {
	unbound := content.Spec.Source.SnapshotHandle != nil && content.Spec.VolumeSnapshotRef.UID == ""
	if !unbound && content.Annotations[annotationBeingDeleted] == "" {
		return false, nil
	}
	if content.Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentDelete && content.Status != nil && content.Status.SnapshotHandle != nil {
		delete(s.snapshots, *content.Status.SnapshotHandle)
		content.Status.SnapshotHandle, content.Status.ReadyToUse = nil, nil
		if err := s.client.Status().Update(ctx, content); err != nil {
			return false, err
		}
	}
	return s.dropFinalizer(ctx, content, finalizerContent)
}

func (s *storage) serveContent(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) (bool, error) {
	handle := content.Spec.Source.SnapshotHandle
	if handle == nil || content.Status != nil {
		return false, nil
	}
	content.Status = &snapshotv1.VolumeSnapshotContentStatus{}
	switch {
	case s.fails != "":
		content.Status.ReadyToUse = ptr.To(false)
		content.Status.Error = &snapshotv1.VolumeSnapshotError{Message: &s.fails, Time: ptr.To(metav1.NewTime(s.clock.Now()))}
	default:
		content.Status.SnapshotHandle, content.Status.ReadyToUse = handle, ptr.To(true)
		if !s.hidesSize {
			content.Status.RestoreSize = ptr.To[int64](128 * mebibyte)
		}
	}
	return true, s.client.Status().Update(ctx, content)
}

// claims returns the claims of this test's classes.
func (s *storage) claims(ctx context.Context) ([]*corev1.PersistentVolumeClaim, error) {
	var ours []*corev1.PersistentVolumeClaim
	for _, namespace := range []string{s.ns, system} {
		list := &corev1.PersistentVolumeClaimList{}
		if err := s.client.List(ctx, list, client.InNamespace(namespace)); err != nil {
			return nil, err
		}
		for i := range list.Items {
			if strings.HasPrefix(ptr.Deref(list.Items[i].Spec.StorageClassName, ""), s.ns+"-") {
				ours = append(ours, &list.Items[i])
			}
		}
	}
	return ours, nil
}

// serveClaims plays external-provisioner: it makes volumes for claims, and deletes released ones.
func (s *storage) serveClaims(ctx context.Context) (bool, error) {
	claims, err := s.claims(ctx)
	if err != nil {
		return false, err
	}
	var changed bool
	for _, claim := range claims {
		if claim.Spec.VolumeName != "" || claim.Spec.Selector != nil || claim.DeletionTimestamp != nil {
			continue
		}
		acted, err := s.provision(ctx, claim)
		if err != nil {
			return false, err
		}
		changed = changed || acted
	}
	for _, volume := range s.world.volumesBy(s.client) {
		if volume.Status.Phase == corev1.VolumeReleased && volume.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete && volume.DeletionTimestamp == nil {
			delete(s.volumes, volume.Spec.CSI.VolumeHandle)
			if err := client.IgnoreNotFound(s.client.Delete(ctx, &volume)); err != nil {
				return false, err
			}
			changed = true
		}
	}
	return changed, nil
}

func (s *storage) provision(ctx context.Context, claim *corev1.PersistentVolumeClaim) (bool, error) {
	class, ok, err := find(ctx, s, "", *claim.Spec.StorageClassName, &storagev1.StorageClass{})
	if err != nil || !ok {
		return false, err
	}
	node := claim.Annotations[annotationSelectedNode]
	if *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer && node == "" {
		return false, nil
	}
	if s.fails != "" {
		return false, s.warn(ctx, claim, s.fails)
	}
	if source := claim.Spec.DataSource; source != nil {
		snapshot, ok, err := find(ctx, s, claim.Namespace, source.Name, &snapshotv1.VolumeSnapshot{})
		if err != nil || !ok || snapshot.Status == nil || !ptr.Deref(snapshot.Status.ReadyToUse, false) {
			return false, err
		}
		size := ptr.Deref(snapshot.Status.RestoreSize, quantity(0))
		if claim.Spec.Resources.Requests.Storage().Cmp(size) < 0 {
			return false, fmt.Errorf("claim %s is smaller than its snapshot", claim.Name)
		}
	}
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-" + string(claim.UID), Annotations: map[string]string{annotationProvisionedBy: s.driver}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{corev1.ResourceStorage: *claim.Spec.Resources.Requests.Storage()}, AccessModes: claim.Spec.AccessModes, VolumeMode: claim.Spec.VolumeMode,
			StorageClassName: class.Name, PersistentVolumeReclaimPolicy: *class.ReclaimPolicy,
			ClaimRef:               &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, ResourceVersion: claim.ResourceVersion},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: s.driver, VolumeHandle: "volume-" + string(claim.UID)}},
		},
	}
	if node != "" {
		volume.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: onNode(node)}
	}
	if err := s.client.Create(ctx, volume); apierrors.IsAlreadyExists(err) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	s.volumes[volume.Spec.CSI.VolumeHandle] = true
	s.made = append(s.made, volume.Name)
	return true, nil
}

func onNode(name string) *corev1.NodeSelector {
	return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{name}}},
	}}}
}

// warn records an event as the provisioner does, once.
func (s *storage) warn(ctx context.Context, claim *corev1.PersistentVolumeClaim, message string) error {
	err := s.client.Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: claim.Namespace, Name: claim.Name + ".failed"},
		InvolvedObject: corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
		Type:           corev1.EventTypeWarning, Reason: "ProvisioningFailed", Message: message, LastTimestamp: metav1.NewTime(s.clock.Now()),
	})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// bindVolumes plays the binder of kube-controller-manager, from the volume's side: a volume whose claimRef has a claim's UID is bound to
// that claim, whatever the claim's selector asks for, and is released when the claim is gone.
func (s *storage) bindVolumes(ctx context.Context) (bool, error) {
	var changed bool
	for _, volume := range s.world.volumesBy(s.client) {
		ref := volume.Spec.ClaimRef
		if ref == nil || ref.UID == "" || volume.DeletionTimestamp != nil {
			continue
		}
		claim, ok, err := find(ctx, s, ref.Namespace, ref.Name, &corev1.PersistentVolumeClaim{})
		if err != nil {
			return false, err
		}
		phase := corev1.VolumeBound
		if !ok || claim.UID != ref.UID {
			phase = corev1.VolumeReleased
		}
		if volume.Status.Phase != phase {
			volume.Status.Phase = phase
			if err := s.client.Status().Update(ctx, &volume); err != nil {
				return false, err
			}
			changed = true
		}
		if phase == corev1.VolumeReleased || claim.Spec.VolumeName != "" {
			continue
		}
		claim.Spec.VolumeName = volume.Name
		if err := s.client.Update(ctx, claim); err != nil {
			return false, err
		}
		claim.Status.Phase, claim.Status.Capacity, claim.Status.AccessModes = corev1.ClaimBound, volume.Spec.Capacity, volume.Spec.AccessModes
		if err := s.client.Status().Update(ctx, claim); err != nil {
			return false, err
		}
		changed = true
	}
	return changed, nil
}

// unprotect removes the finalizers of claims that no pod uses, and of volumes that no claim has.
func (s *storage) unprotect(ctx context.Context) (bool, error) {
	claims, err := s.claims(ctx)
	if err != nil {
		return false, err
	}
	var changed bool
	for _, claim := range claims {
		if claim.DeletionTimestamp == nil {
			continue
		}
		acted, err := s.dropFinalizer(ctx, claim, finalizerClaim)
		if err != nil {
			return false, err
		}
		changed = changed || acted
	}
	for _, volume := range s.world.volumesBy(s.client) {
		if volume.DeletionTimestamp == nil || volume.Status.Phase == corev1.VolumeBound {
			continue
		}
		acted, err := s.dropFinalizer(ctx, &volume, finalizerVolume)
		if err != nil {
			return false, err
		}
		changed = changed || acted
	}
	return changed, nil
}
