package backingimage

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/controller/store/storageplace"
	"github.com/varvebackup/varve/internal/nodeselector"
	"github.com/varvebackup/varve/internal/reconcile"
)

// origin is what the first copy of an image is made of: another image or a volume, which a disk has already, or a
// restore point in a location. What does not exist is nil.
type origin struct {
	location *velerov1.BackupStorageLocation
	// storage is which nodes reach the storage of the location.
	storage storageplace.Place
	// kubeNodes are Kubernetes' nodes, and tolerations those of the pods that restore. They are nil if they were not read.
	kubeNodes   []corev1.Node
	tolerations []corev1.Toleration
	image       *longhornv1.BackingImage
	volume      *longhornv1.Volume
	replica     *longhornv1.Replica
}

// originName returns the name of the image, the volume or the backup storage location that an image is made of, or
// nothing if it comes from elsewhere.
func originName(image *longhornv1.BackingImage) string {
	switch image.Spec.SourceType {
	case longhornv1.SourceClone:
		return string(image.Spec.SourceParameters[longhornv1.ParameterBackingImage])
	case longhornv1.SourceExport:
		return string(image.Spec.SourceParameters[longhornv1.ParameterVolumeName])
	case longhornv1.SourceRestore:
		return string(image.Spec.SourceParameters[longhornv1.ParameterLocation])
	default:
		return ""
	}
}

// listOriginDisks returns the disks that can have the first copy because they have what it is made of, or else what has
// to happen before one can. disks is nil if any disk can have it.
func (in *input) listOriginDisks() (disks map[string]bool, waits string) {
	switch in.image.Spec.SourceType {
	case longhornv1.SourceClone:
		return in.listImageDisks()
	case longhornv1.SourceExport:
		return in.listVolumeDisks()
	case longhornv1.SourceRestore:
		return in.listReachableDisks(), in.explainNoPoint()
	default:
		return nil, ""
	}
}

func (in *input) listImageDisks() (disks map[string]bool, waits string) {
	name, from := originName(in.image), in.origin.image
	switch {
	case name == in.image.Name:
		return nil, "sourceParameters.backing-image names the image itself: make another image that names the one to clone"
	case from == nil:
		return nil, fmt.Sprintf("the image %s, which sourceParameters.backing-image names, does not exist in namespace %s: "+
			"create it", name, in.Namespace)
	case from.DeletionTimestamp != nil:
		return nil, fmt.Sprintf("the image %s, which is to be cloned, is being deleted: use another one", name)
	}
	disks = map[string]bool{}
	for disk := range from.Spec.DiskFileSpecMap {
		if from.HasReadyCopy(disk) {
			disks[disk] = true
		}
	}
	if len(disks) == 0 {
		return nil, fmt.Sprintf("the image %s, which is to be cloned, has no copy that is ready: look at its condition Ready",
			name)
	}
	return disks, ""
}

func (in *input) listVolumeDisks() (disks map[string]bool, waits string) {
	name, v, replica := originName(in.image), in.origin.volume, in.origin.replica
	switch {
	case v == nil:
		return nil, fmt.Sprintf("the volume %s, which sourceParameters.volume-name names, does not exist: give the name of "+
			"a Volume (kubectl -n %s get lhv)", name, in.Namespace)
	case v.DeletionTimestamp != nil || v.Status.State == longhornv1.VolumeDeleting:
		return nil, fmt.Sprintf("the volume %s is being deleted: use another one", name)
	case v.Status.State == longhornv1.VolumeAttached:
		return nil, fmt.Sprintf("the volume %s is attached to node %s: stop what uses it", name, v.Status.CurrentNodeID)
	case v.Status.State != longhornv1.VolumeDetached || replica == nil:
		return nil, fmt.Sprintf("the volume %s is not made yet", name)
	case v.Status.Robustness == longhornv1.RobustnessFaulted:
		return nil, fmt.Sprintf("the volume %s has no data that can be used (%s): restore it from a backup", name,
			replica.Status.Message)
	}
	return map[string]bool{replica.Spec.DiskID: true}, ""
}

// describeOrigin names for people what an image is made of.
func (in *input) describeOrigin() string {
	if in.image.Spec.SourceType == longhornv1.SourceClone {
		return "the image " + originName(in.image)
	}
	return "the volume " + originName(in.image)
}

// followLocalCopy says how far a store is with a first copy that it makes of what its disk has.
func (in *input) followLocalCopy(place string, r report) reason {
	text := joinReason(place+": the first copy is made of "+in.describeOrigin(), r.Message)
	return reason{longhornv1.ReasonFirstCopyInProgress, text + afterFailure(&in.image.Status)}
}

// readOrigin reads what the first copy of an image is made of, as long as it is not made.
func (r *reconciler) readOrigin(ctx context.Context, image *longhornv1.BackingImage, o *origin) (err error) {
	key := types.NamespacedName{Namespace: image.Namespace, Name: originName(image)}
	if key.Name == "" || image.Status.V2FirstCopyStatus == longhornv1.StateReady || image.DeletionTimestamp != nil {
		return nil
	}
	switch image.Spec.SourceType {
	case longhornv1.SourceClone:
		o.image, err = reconcile.Find(ctx, r.live, key, &longhornv1.BackingImage{})
		return err
	case longhornv1.SourceRestore:
		if o.location, err = reconcile.Find(ctx, r.live, key, &velerov1.BackupStorageLocation{}); err != nil {
			return err
		}
		if s := image.Status.V2FirstCopyStatus; o.location == nil || s == longhornv1.StateInProgress ||
			s == longhornv1.StateUnknown {
			return nil // the disk is chosen
		}
		if o.storage, err = storageplace.Read(ctx, r.live, r.Namespace, o.location); err != nil {
			return err
		}
		return r.readKubeNodes(ctx, o)
	default:
	}
	if o.volume, err = reconcile.Find(ctx, r.live, key, &longhornv1.Volume{}); err != nil {
		return err
	}
	o.replica, err = reconcile.Find(ctx, r.live, key, &longhornv1.Replica{})
	return err
}

// readKubeNodes reads on which nodes the data mover's pods can run.
func (r *reconciler) readKubeNodes(ctx context.Context, o *origin) error {
	var nodes corev1.NodeList
	if err := r.live.List(ctx, &nodes); err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	current, err := r.settings.Read(ctx, r.live, r.Namespace)
	if err != nil {
		return err
	}
	o.kubeNodes, o.tolerations = nodes.Items, current.Pod.Tolerations
	return nil
}

// explainClosed says why the pod that restores an image cannot run on a node, or "". Source pods run on every node.
func (in *input) explainClosed(node string) string {
	if in.origin.kubeNodes == nil {
		return ""
	}
	if why := nodeselector.ExplainUnusable(in.origin.kubeNodes, node, in.origin.tolerations); why != "" {
		return "is on a node that takes no pods of the data mover, because " + why
	}
	return ""
}

// imagesFrom asks for the images that are to be made of an image or a volume.
func (r *reconciler) imagesFrom(from longhornv1.SourceType) func(context.Context, client.Object) []ctrl.Request {
	return func(ctx context.Context, o client.Object) []ctrl.Request {
		var list longhornv1.BackingImageList
		if err := r.cached.List(ctx, &list, client.InNamespace(r.Namespace)); err != nil {
			log.FromContext(ctx).Error(fmt.Errorf("list the BackingImages: %w", err), "a change of a source is not seen")
			return nil
		}
		var requests []ctrl.Request
		for i := range list.Items {
			image := &list.Items[i]
			waits := image.Status.V2FirstCopyStatus != longhornv1.StateReady && o.GetNamespace() == r.Namespace
			if waits && image.Spec.SourceType == from && originName(image) == o.GetName() {
				requests = append(requests, requestFor(r.Namespace, image.Name)...)
			}
		}
		return requests
	}
}

// changesReadiness leaves out updates of images without another number of copies that are ready.
func changesReadiness() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*longhornv1.BackingImage)
		after, ok2 := e.ObjectNew.(*longhornv1.BackingImage)
		return ok && ok2 && before.Status.ReadyCopies != after.Status.ReadyCopies
	}}
}

// changesState leaves out updates of volumes that are in the same state as before.
func changesState() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*longhornv1.Volume)
		after, ok2 := e.ObjectNew.(*longhornv1.Volume)
		return ok && ok2 && before.Status != after.Status
	}}
}
