package expose

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/layout"
)

// annotationSelectedNode is on a claim whose class waits for a consumer: the node that the scheduler chose. With it a volume is made.
const annotationSelectedNode = "volume.kubernetes.io/selected-node"

// AnnotationWaitForConsumer is "false" on a StorageClass whose volumes Velero's restores make at once, although the
// class waits for a first consumer. Without it, or with "true", they wait for Options.ConsumerWait.
const AnnotationWaitForConsumer = layout.Prefix + "wait-for-consumer"

// Restore makes volumes for DataDownloads, and hands them over to the claims that wait for them.
//
// A volume is made by a claim in Varve's namespace. Finish notes the volume and its reclaim policy, sets the policy to Retain, deletes that
// claim, sets the volume's claimRef to the target claim with its UID, waits until the target is bound, and puts the policy back. Until the
// target has the volume, Dispose deletes it with its data; afterwards it is the target's.
type Restore struct{ Access }

// restoreState is what there is for a DataDownload.
type restoreState struct {
	download *velerov2.DataDownload
	note     *restoreNote
	// target is the claim that gets the volume, nil if it does not exist; claim is Varve's own.
	target, claim *corev1.PersistentVolumeClaim
	// stranger says that the claim of the own claim's name is not Varve's.
	stranger string
}

func (r *Restore) observe(ctx context.Context, download *velerov2.DataDownload) (*restoreState, error) {
	note, err := readNote[restoreNote](download)
	if err != nil {
		return nil, err
	}
	s := &restoreState{download: download, note: note}
	s.target, err = r.findClaim(ctx, download.Spec.TargetVolume.Namespace, download.Spec.TargetVolume.PVC)
	if err != nil {
		return nil, err
	}
	s.claim, err = r.findClaim(ctx, r.Namespace, datamove.ChildName(datamove.Download, download.UID))
	if err != nil {
		return nil, err
	}
	if s.claim != nil && !isChild(download, s.claim) {
		s.stranger = describe(s.claim) + " was not made by Varve for this DataDownload, and has the name that it needs"
		s.claim = nil
	}
	return s, nil
}

// hasTarget says that the target claim is there, and is the one that was noted.
func (s *restoreState) hasTarget() bool {
	return s.target != nil && s.note != nil && s.target.UID == s.note.Target
}

func (s *restoreState) describeTarget() string {
	target := s.download.Spec.TargetVolume
	return fmt.Sprintf("PersistentVolumeClaim %s/%s", target.Namespace, target.PVC)
}

// Expose makes the next step towards a claim that a volume can be restored to. The DataDownload gets the note and the new resource version.
func (r *Restore) Expose(ctx context.Context, download *velerov2.DataDownload) (Exposure, error) {
	s, err := r.observe(ctx, download)
	if err != nil {
		return Exposure{}, err
	}
	if s.stranger != "" {
		return Exposure{}, refuse("%s: delete it", s.stranger)
	}
	if waiting, err := s.examineTarget(); err != nil || waiting != "" {
		return Exposure{Waiting: waiting}, err
	}
	class, err := r.restoreClass(ctx, s)
	if err != nil {
		return Exposure{}, err
	}
	notice := ""
	if s.claim == nil {
		waits, until := r.awaitConsumer(s, class)
		if waits && r.Clock.Now().Before(until) {
			return Exposure{Until: until, Waiting: "a pod that uses " + describe(s.target) +
				" to be scheduled, so that its volume is made on the pod's node"}, nil
		}
		if waits {
			notice = fmt.Sprintf("No pod that uses %s has been scheduled, so its volume is made on any node. If a pod "+
				"cannot run there, restore the pod and the claim together.", describe(s.target))
		}
		if err := r.makeClaim(ctx, s, class); err != nil {
			return Exposure{}, err
		}
	}
	exposure, err := r.examineRestored(ctx, s, class)
	exposure.Notice = notice
	return exposure, err
}

// awaitConsumer says whether the volume is to be made on the node of a pod that uses the target, which is not known
// yet, and until when that is waited for.
func (r *Restore) awaitConsumer(s *restoreState, class *storagev1.StorageClass) (bool, time.Time) {
	limit := r.options().ConsumerWait
	if limit <= 0 || s.note != nil || !waitsForConsumer(class) ||
		class.Annotations[AnnotationWaitForConsumer] == "false" ||
		s.download.Labels[datamove.LabelRestoreName] == "" || s.target.Annotations[annotationSelectedNode] != "" {
		return false, time.Time{}
	}
	since := s.target.CreationTimestamp.Time
	if accepted := s.download.Status.AcceptedTimestamp; accepted != nil && accepted.After(since) {
		since = accepted.Time
	}
	return true, since.Add(limit)
}

// examineRestored returns how far the own claim is. Where it names the target's node, its driver makes the volume
// without a pod, and the mover pod goes to where the volume can be reached.
func (r *Restore) examineRestored(
	ctx context.Context, s *restoreState, class *storagev1.StorageClass,
) (Exposure, error) {
	exposure, err := r.examineClaim(ctx, s.claim, class, nil)
	if v := exposure.Volume; v != nil {
		v.OfImage = v.VolumeMode == corev1.PersistentVolumeBlock && clonesImage(class)
	}
	node := s.claim.Annotations[annotationSelectedNode]
	if exposure.Volume == nil || node == "" || s.claim.Status.Phase == corev1.ClaimBound ||
		s.target.Annotations[annotationSelectedNode] != node {
		return exposure, err
	}
	what := fmt.Sprintf("%s to be bound to a volume for node %s", describe(s.claim), node)
	return Exposure{Waiting: withDetail(what, exposure.Diagnosis)}, nil
}

// examineTarget returns what it waits for before a volume can be made for the target, or "".
func (s *restoreState) examineTarget() (string, error) {
	switch {
	case s.note == nil && s.target == nil:
		return s.describeTarget() + " to be created", nil
	case s.note != nil && !s.hasTarget():
		return "", refuse("%s was deleted, or replaced by another of that name: restore the volume again", s.describeTarget())
	case s.target.DeletionTimestamp != nil:
		return "", refuse("%s is being deleted: restore the volume again", describe(s.target))
	case s.target.Spec.VolumeName == "":
		return "", nil
	case s.note != nil && s.target.Spec.VolumeName == s.note.Volume.Name:
		return "the restored volume to be handed over", nil
	}
	return "", refuse("%s is bound to PersistentVolume %s already: delete the claim, and restore the volume again", describe(s.target), s.target.Spec.VolumeName)
}

// restoreClass returns the class of the volume. Where the own claim is already there, the class may be gone and nil.
func (r *Restore) restoreClass(ctx context.Context, s *restoreState) (*storagev1.StorageClass, error) {
	if s.claim != nil {
		return r.classOf(ctx, s.claim)
	}
	name := ptr.Deref(s.target.Spec.StorageClassName, "")
	if name == "" {
		return nil, refuse("%s has no StorageClass to make a volume with: give it one, and restore the volume again",
			describe(s.target))
	}
	return r.findClass(ctx, name)
}

// makeClaim makes the claim, after it has noted the target, and then notes the claim's UID: so its volume is found even if the claim is
// deleted by somebody else.
func (r *Restore) makeClaim(ctx context.Context, s *restoreState, class *storagev1.StorageClass) error {
	if s.note != nil && s.note.Volume.Claim != "" {
		return refuse("PersistentVolumeClaim %s/%s was deleted by somebody else while it was needed: restore the volume again",
			r.Namespace, datamove.ChildName(datamove.Download, s.download.UID))
	}
	bytes, err := s.bytes()
	if err != nil {
		return err
	}
	if s.note == nil {
		s.note = &restoreNote{Version: noteVersion, Target: s.target.UID}
		if err := r.remember(ctx, s.download, s.note); err != nil {
			return err
		}
	}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: childMeta(datamove.Download, s.download, r.Namespace),
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes:               writableModes(s.target.Spec.AccessModes),
			StorageClassName:          ptr.To(class.Name),
			VolumeMode:                s.target.Spec.VolumeMode,
			VolumeAttributesClassName: s.target.Spec.VolumeAttributesClassName,
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(bytes, resource.BinarySI)},
			},
		},
	}
	if node := s.target.Annotations[annotationSelectedNode]; node != "" && waitsForConsumer(class) {
		claim.Annotations[annotationSelectedNode] = node
	}
	if err := r.Writer.Create(ctx, claim); err != nil {
		return fmt.Errorf("create %s: %w", describe(claim), err)
	}
	s.claim = claim
	s.note.Volume.Claim = claim.UID
	return r.remember(ctx, s.download, s.note)
}

// bytes returns how large the volume must be: what the target asks for, and a disk's size if that is more.
func (s *restoreState) bytes() (int64, error) {
	bytes := s.target.Spec.Resources.Requests.Storage().Value()
	id, err := datamove.ParseSnapshotID(s.download.Spec.SnapshotID)
	if err == nil && id.Form == datamove.Disk {
		bytes = max(bytes, s.download.Spec.SnapshotSize)
	}
	limit, limited := s.target.Spec.Resources.Limits[corev1.ResourceStorage]
	if limited && limit.Value() < bytes {
		return 0, refuse("%s is limited to %s, and the disk has %d bytes: raise the limit, and restore the volume again", describe(s.target), limit.String(), bytes)
	}
	return bytes, nil
}

// writableModes returns access modes that a volume can be written with, first one that can.
func writableModes(modes []corev1.PersistentVolumeAccessMode) []corev1.PersistentVolumeAccessMode {
	if slices.Equal(modes, []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}) {
		return []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadOnlyMany}
	}
	return modes
}
