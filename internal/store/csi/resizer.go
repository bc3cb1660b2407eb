package csi

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/names"
)

// The pace of retries for a claim that is to grow. They go on for ever, and the claim's events say why.
const (
	resizeRetryFirst = time.Second
	resizeRetryMost  = time.Minute
	resizeThreads    = 2
	claimResync      = time.Minute
)

// Reasons of events of claims. They are external-resizer's.
const (
	// reasonResized: the volume has the size that its claim asks for.
	reasonResized = "VolumeResizeSuccessful"
	// reasonResizeFailed: the volume does not have it yet. The driver tries again, and the message says why.
	reasonResizeFailed = "VolumeResizeFailed"
)

// resizer grows the volumes of one node to what their claims ask for: it is what external-resizer is for other drivers.
// The volume is on the node, so the device and the file system grow here as well, and kubelet's part is left out.
type resizer struct {
	provisioner
	events record.EventRecorder
}

// runResizer grows the volumes of the claims of an informer until ctx ends.
func (d *Driver) runResizer(ctx context.Context, claims cache.SharedIndexInformer) error {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: d.options.Kubernetes.CoreV1().Events("")})
	source := corev1.EventSource{Component: names.Driver, Host: d.options.Node}
	r := &resizer{provisioner{&controllerServer{Driver: d}}, broadcaster.NewRecorder(scheme.Scheme, source)}
	queue := newQueue[cache.ObjectName](resizeRetryFirst, resizeRetryMost)
	add := func(o any) {
		if c, ok := o.(*corev1.PersistentVolumeClaim); ok && needsGrowth(c) {
			queue.Add(cache.MetaObjectToName(c))
		}
	}
	if _, err := claims.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: add, UpdateFunc: func(_, o any) { add(o) },
	}); err != nil {
		return fmt.Errorf("watch claims, to grow their volumes: %w", err)
	}
	return runQueue(ctx, queue, resizeThreads, r.growClaim, func(name cache.ObjectName, err error) {
		r.log.Error("grow the volume of a claim, which is tried again", "claim", name.String(), "error", err)
	})
}

// runClaims runs what works on claims, provisioner and resizer, until ctx ends. They share what they know of them.
func (d *Driver) runClaims(ctx context.Context) error {
	factory := informers.NewSharedInformerFactory(d.options.Kubernetes, claimResync)
	claims := factory.Core().V1().PersistentVolumeClaims().Informer()
	provision := d.newProvisioner(claims) // it adds indexes, which comes before the informer runs
	g, running := errgroup.WithContext(ctx)
	g.Go(func() error { return d.runProvisioner(running, provision) })
	g.Go(func() error { return d.runResizer(running, claims) })
	g.Go(func() error { claims.Run(running.Done()); return running.Err() })
	return g.Wait()
}

// needsGrowth says whether a claim asks for more than its volume has, or a former growth of it is to be finished.
func needsGrowth(c *corev1.PersistentVolumeClaim) bool {
	wanted, there := c.Spec.Resources.Requests[corev1.ResourceStorage], c.Status.Capacity[corev1.ResourceStorage]
	if c.Spec.VolumeName == "" || c.Status.Phase != corev1.ClaimBound || c.DeletionTimestamp != nil {
		return false
	}
	_, unfinished := c.Status.AllocatedResourceStatuses[corev1.ResourceStorage]
	return wanted.Cmp(there) > 0 || unfinished
}

// growClaim grows the volume of a claim, as the API server has it now, if it is one of this node.
func (r *resizer) growClaim(ctx context.Context, name cache.ObjectName) error {
	core := r.options.Kubernetes.CoreV1()
	claim, err := core.PersistentVolumeClaims(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || (err == nil && !needsGrowth(claim)) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get claim %s: %w", name, err)
	}
	pv, err := core.PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get PersistentVolume %s: %w", claim.Spec.VolumeName, err)
	}
	bound := pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.UID == claim.UID
	if !bound || pv.Spec.CSI == nil || pv.Spec.CSI.Driver != names.Driver || !r.ShouldDelete(ctx, pv) {
		return nil
	}
	size, err := r.growVolume(ctx, claim, pv)
	if apierrors.IsConflict(err) {
		return err
	}
	if err != nil {
		r.events.Event(claim, corev1.EventTypeWarning, reasonResizeFailed, err.Error())
		return err
	}
	r.events.Eventf(claim, corev1.EventTypeNormal, reasonResized, "the volume has %s", size.String())
	return nil
}

// growVolume marks a claim as growing, so that kubelet leaves it alone, grows the volume, and writes its size into the
// PersistentVolume and then into the claim.
func (r *resizer) growVolume(
	ctx context.Context, claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume,
) (resource.Quantity, error) {
	wanted := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	core := r.options.Kubernetes.CoreV1()
	if markGrowing(claim, wanted, metav1.NewTime(r.options.Clock.Now())) {
		marked, err := core.PersistentVolumeClaims(claim.Namespace).UpdateStatus(ctx, claim, metav1.UpdateOptions{})
		if err != nil {
			return wanted, errclass.Errorf(errclass.Transient, "write that claim %s/%s grows: %w", claim.Namespace, claim.Name,
				err)
		}
		claim = marked
	}
	made, err := r.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
		VolumeId: pv.Spec.CSI.VolumeHandle, CapacityRange: &csi.CapacityRange{RequiredBytes: wanted.Value()},
	})
	if err != nil {
		return wanted, err
	}
	size := *resource.NewQuantity(made.GetCapacityBytes(), resource.BinarySI)
	if there := pv.Spec.Capacity[corev1.ResourceStorage]; there.Cmp(size) < 0 {
		if err := r.patchCapacity(ctx, pv, size); err != nil {
			return size, err
		}
	}
	markGrown(claim, size)
	_, err = core.PersistentVolumeClaims(claim.Namespace).UpdateStatus(ctx, claim, metav1.UpdateOptions{})
	if err != nil {
		return size, errclass.Errorf(errclass.Transient, "write the size of claim %s/%s: %w", claim.Namespace, claim.Name,
			err)
	}
	return size, nil
}

func (r *resizer) patchCapacity(ctx context.Context, pv *corev1.PersistentVolume, size resource.Quantity) error {
	data := fmt.Appendf(nil, `{"spec":{"capacity":{"storage":%q}}}`, size.String())
	_, err := r.options.Kubernetes.CoreV1().PersistentVolumes().Patch(ctx, pv.Name, types.MergePatchType, data,
		metav1.PatchOptions{})
	if err != nil {
		return errclass.Errorf(errclass.Transient, "write the size of PersistentVolume %s: %w", pv.Name, err)
	}
	return nil
}

// markGrowing writes into the status of a claim that its volume grows, as external-resizer does. It returns false if
// that is there.
func markGrowing(c *corev1.PersistentVolumeClaim, wanted resource.Quantity, now metav1.Time) bool {
	allocated := c.Status.AllocatedResources[corev1.ResourceStorage]
	state := c.Status.AllocatedResourceStatuses[corev1.ResourceStorage]
	if state == corev1.PersistentVolumeClaimControllerResizeInProgress && allocated.Cmp(wanted) == 0 {
		return false
	}
	c.Status.AllocatedResources = corev1.ResourceList{corev1.ResourceStorage: wanted}
	c.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{
		corev1.ResourceStorage: corev1.PersistentVolumeClaimControllerResizeInProgress,
	}
	c.Status.Conditions = append(withoutResize(c.Status.Conditions), corev1.PersistentVolumeClaimCondition{
		Type: corev1.PersistentVolumeClaimResizing, Status: corev1.ConditionTrue, LastTransitionTime: now,
	})
	return true
}

// markGrown writes into the status of a claim how large its volume is now.
func markGrown(c *corev1.PersistentVolumeClaim, size resource.Quantity) {
	if c.Status.Capacity == nil {
		c.Status.Capacity = corev1.ResourceList{}
	}
	c.Status.Capacity[corev1.ResourceStorage] = size
	delete(c.Status.AllocatedResourceStatuses, corev1.ResourceStorage)
	c.Status.Conditions = withoutResize(c.Status.Conditions)
}

func withoutResize(all []corev1.PersistentVolumeClaimCondition) []corev1.PersistentVolumeClaimCondition {
	return slices.DeleteFunc(all, func(c corev1.PersistentVolumeClaimCondition) bool {
		return c.Type == corev1.PersistentVolumeClaimResizing || c.Type == corev1.PersistentVolumeClaimFileSystemResizePending
	})
}
