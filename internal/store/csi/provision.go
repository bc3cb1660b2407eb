package csi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v10/controller"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/names"
)

// selectedNode is the annotation with which the scheduler names the node of a claim's first consumer.
const selectedNode = "volume.kubernetes.io/selected-node"

// annotationProvisioner is the annotation with which Kubernetes names the provisioner of a claim.
const annotationProvisioner = "volume.kubernetes.io/storage-provisioner"

// The pace of retries. They go on for ever: a claim waits for its image, and its events say so.
const (
	provisionRetryFirst = time.Second
	provisionRetryMost  = 10 * time.Second
)

// provisionThreads is how many claims are worked on at once. A clone takes milliseconds.
const provisionThreads = 4

// provisioner makes and deletes the volumes of one node. Every node runs one, and each claim belongs to one of them, so
// they need no leader.
type provisioner struct{ *controllerServer }

var (
	_ controller.BlockProvisioner = provisioner{}
	_ controller.Qualifier        = provisioner{}
	_ controller.DeletionGuard    = provisioner{}
)

// makingProvisioner is held while a ProvisionController is made: that writes client-go's scheme, which all share.
var makingProvisioner sync.Mutex

// newProvisioner returns the controller of the provisioner, for the claims of an informer that does not run yet.
func (d *Driver) newProvisioner(claims cache.SharedIndexInformer) *controller.ProvisionController {
	log := logr.FromSlogHandler(d.log.Handler())
	makingProvisioner.Lock()
	defer makingProvisioner.Unlock()
	return controller.NewProvisionController(log, d.options.Kubernetes, names.Driver,
		provisioner{&controllerServer{Driver: d}},
		controller.ClaimsInformer(d.makeWakeable(claims)),
		controller.LeaderElection(false),
		controller.MetricsPort(0),
		controller.Threadiness(provisionThreads),
		//nolint:staticcheck // the controller's interface is untyped
		controller.RateLimiter(workqueue.NewItemExponentialFailureRateLimiter(provisionRetryFirst, provisionRetryMost)),
		// A PersistentVolume is written until it is there. Without a limiter the controller gives up, and has the volume
		// deleted, although the API server may have the PersistentVolume already.
		//nolint:staticcheck // the controller's interface is untyped
		controller.CreateProvisionedPVLimiter(
			workqueue.NewItemExponentialFailureRateLimiter(provisionRetryFirst, provisionRetryMost)),
		controller.FailedProvisionThreshold(0),
		controller.FailedDeleteThreshold(0),
		controller.AddFinalizer(true),
	)
}

// runProvisioner runs the provisioner until ctx ends.
func (d *Driver) runProvisioner(ctx context.Context, c *controller.ProvisionController) error {
	c.Run(logr.NewContext(ctx, logr.FromSlogHandler(d.log.Handler())))
	return ctx.Err()
}

// ShouldProvision says whether this node provisions a claim: the scheduler chose the node, or the claim is made of
// something on the node, whatever the scheduler chose: it chooses again when the claim has its volume. If a claim has
// no node, and gets none, the first of the nodes refuses it, so that it has one event and not as many as there are
// nodes.
func (p provisioner) ShouldProvision(ctx context.Context, claim *corev1.PersistentVolumeClaim) bool {
	if claim.Annotations[annotationProvisioner] != names.Driver {
		return false
	}
	if chosen := claim.Annotations[selectedNode]; chosen != "" {
		return cmp.Or(p.findSourceNode(ctx, claim), chosen) == p.options.Node
	}
	nodes := &longhornv1.NodeList{}
	if err := p.options.Client.List(ctx, nodes, client.InNamespace(p.options.Namespace)); err != nil {
		p.log.Error("list the nodes, to refuse a claim that no node is chosen for", "claim",
			client.ObjectKeyFromObject(claim), "error", err)
		return false
	}
	return len(nodes.Items) == 0 || slices.MinFunc(nodes.Items, compareNames).Name == p.options.Node
}

// ShouldDelete says whether a volume is this node's.
func (p provisioner) ShouldDelete(_ context.Context, pv *corev1.PersistentVolume) bool {
	return p.isOfNode(pv)
}

// isOfNode says whether a volume can be used on this node.
func (d *Driver) isOfNode(pv *corev1.PersistentVolume) bool {
	if pv.Spec.CSI == nil || pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil {
		return false
	}
	for _, term := range pv.Spec.NodeAffinity.Required.NodeSelectorTerms {
		for _, e := range term.MatchExpressions {
			if e.Key == names.TopologyNode && slices.Equal(e.Values, []string{d.options.Node}) {
				return true
			}
		}
	}
	return false
}

// SupportsBlock says that volumes may be block devices.
func (p provisioner) SupportsBlock(context.Context) bool { return true }

// Provision makes the volume of a claim, and returns its description.
func (p provisioner) Provision(
	ctx context.Context, o controller.ProvisionOptions,
) (*corev1.PersistentVolume, controller.ProvisioningState, error) {
	if err := p.checkClaim(o.PVC); err != nil {
		return nil, controller.ProvisioningFinished, err
	}
	mode := ptr.Deref(o.PVC.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)
	parameters := maps.Clone(o.StorageClass.Parameters)
	if parameters == nil {
		parameters = map[string]string{}
	}
	parameters[parameterClaim], parameters[parameterClaimNamespace] = o.PVC.Name, o.PVC.Namespace
	size := o.PVC.Spec.Resources.Requests[corev1.ResourceStorage]
	source, err := p.findContentSource(ctx, o.PVC)
	if err != nil {
		return nil, p.afterFailure(ctx, o, err), err
	}
	request := &csi.CreateVolumeRequest{
		Name: o.PVName, CapacityRange: &csi.CapacityRange{RequiredBytes: size.Value()}, Parameters: parameters,
		VolumeCapabilities:  []*csi.VolumeCapability{describeMode(mode, o.StorageClass.MountOptions)},
		VolumeContentSource: source,
	}
	created, err := p.CreateVolume(ctx, request)
	if errors.Is(err, errImageLarger) && isOfRestore(o.PVC) {
		created, err = p.createBlank(ctx, request)
	}
	if err != nil {
		return nil, p.afterFailure(ctx, o, err), err
	}
	v := created.GetVolume()
	capacity := *resource.NewQuantity(v.GetCapacityBytes(), resource.BinarySI)
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: o.PVName},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: capacity},
			AccessModes:                   o.PVC.Spec.AccessModes,
			PersistentVolumeReclaimPolicy: ptr.Deref(o.StorageClass.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete),
			MountOptions:                  o.StorageClass.MountOptions,
			VolumeMode:                    &mode,
			NodeAffinity:                  nodeAffinity(p.options.Node),
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: names.Driver, VolumeHandle: v.GetVolumeId(), VolumeAttributes: v.GetVolumeContext(),
				FSType: describeFileSystem(mode),
			}},
		},
	}, controller.ProvisioningFinished, nil
}

// isOfRestore says whether the data mover made a claim to restore a volume into it.
func isOfRestore(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Labels[datamove.LabelObject] != "" &&
		strings.HasPrefix(claim.Annotations[datamove.AnnotationOwner], string(datamove.Download)+"/")
}

// createBlank makes the volume of a restore without the image of its class, which was made anew under its name and is
// larger than what is restored. An earlier call may have begun a clone of it, before its size was known.
func (p provisioner) createBlank(
	ctx context.Context, r *csi.CreateVolumeRequest,
) (*csi.CreateVolumeResponse, error) {
	if err := p.discardUnbound(ctx, r.GetName()); err != nil {
		return nil, fmt.Errorf("create the volume %s without its image: %w", r.GetName(), err)
	}
	delete(r.Parameters, parameterImage)
	return p.CreateVolume(ctx, r)
}

// afterFailure says what becomes of a claim whose volume could not be made. If another call cannot succeed on this
// node, or the claim is gone, what was made for it goes. If no disk of the node is suitable, the scheduler chooses
// again.
func (p provisioner) afterFailure(
	ctx context.Context, o controller.ProvisionOptions, failed error,
) controller.ProvisioningState {
	if errors.Is(failed, errElsewhere) { // nothing was made here, and the other node may be at work already
		return controller.ProvisioningReschedule
	}
	class := errclass.Of(failed)
	final := class == errclass.Exhausted || class == errclass.Invalid || class == errclass.NotFound
	if !final {
		claim, err := p.options.Kubernetes.CoreV1().PersistentVolumeClaims(o.PVC.Namespace).Get(ctx, o.PVC.Name,
			metav1.GetOptions{})
		final = apierrors.IsNotFound(err) || (err == nil && (claim.UID != o.PVC.UID || claim.DeletionTimestamp != nil))
	}
	if !final {
		return controller.ProvisioningInBackground
	}
	if err := p.discardUnbound(ctx, o.PVName); err != nil {
		p.log.Error("delete what was made for a claim that cannot be provisioned", "volume", o.PVName, "error", err)
		return controller.ProvisioningInBackground
	}
	if class == errclass.Exhausted {
		return controller.ProvisioningReschedule
	}
	return controller.ProvisioningFinished
}

// discardUnbound deletes a volume that has no PersistentVolume, so that nobody has used it. It asks the API server
// itself.
func (p provisioner) discardUnbound(ctx context.Context, pv string) error {
	_, err := p.options.Kubernetes.CoreV1().PersistentVolumes().Get(ctx, pv, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return p.deleteVolume(ctx, names.VolumeHandle(pv), "")
	}
	return err
}

// Delete deletes a volume whose PersistentVolume is released or gone. It asks the API server itself.
func (p provisioner) Delete(ctx context.Context, pv *corev1.PersistentVolume) error {
	if err := p.checkReleased(ctx, pv.Name); err != nil {
		return fmt.Errorf("delete the volume of PersistentVolume %s: %w", pv.Name, err)
	}
	return p.deleteVolume(ctx, pv.Spec.CSI.VolumeHandle, disk.UID(pv.Spec.CSI.VolumeAttributes[names.ContextDisk]))
}

// checkReleased returns an error of class Conflict if a claim may use a PersistentVolume.
func (p provisioner) checkReleased(ctx context.Context, name string) error {
	pv, err := p.options.Kubernetes.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return errclass.Errorf(errclass.Transient, "look whether a claim uses it: %w", err)
	}
	phase := pv.Status.Phase
	released := phase == corev1.VolumeReleased || phase == corev1.VolumeFailed
	if !released && (pv.DeletionTimestamp.IsZero() || phase == corev1.VolumeBound) {
		return errclass.Errorf(errclass.Conflict, "its phase is %q, so that a claim may use it: delete the claim", phase)
	}
	return nil
}

// checkClaim returns an error if volumes cannot be what a claim asks for.
func (p provisioner) checkClaim(claim *corev1.PersistentVolumeClaim) error {
	source := describeDataSource(claim)
	if source != (dataSource{}) && !source.isSnapshot() && !source.isClaim() {
		// A populator has a claim of its own provisioned, and gives this one its volume.
		return &controller.IgnoredError{Reason: "a populator fills the claim from its " + source.kind}
	}
	if claim.Annotations[selectedNode] == "" {
		return errclass.Errorf(errclass.Invalid,
			"no node is chosen for the claim, and volumes of %s are on the node of their consumer: "+
				"use a StorageClass with volumeBindingMode WaitForFirstConsumer", names.Driver)
	}
	if claim.Spec.Selector != nil {
		return errclass.Errorf(errclass.Invalid, "claim Selector is not supported") // external-provisioner's words
	}
	for _, mode := range claim.Spec.AccessModes {
		if mode != corev1.ReadWriteOnce && mode != corev1.ReadWriteOncePod {
			return errclass.Errorf(errclass.Invalid, "the access mode is %s: a volume of %s is on one node, so use %s", mode,
				names.Driver,
				corev1.ReadWriteOnce)
		}
	}
	return nil
}

// describeMode says in CSI's words how a claim's volume is used.
func describeMode(mode corev1.PersistentVolumeMode, options []string) *csi.VolumeCapability {
	c := &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{MountFlags: options}},
	}
	if mode == corev1.PersistentVolumeBlock {
		c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	}
	return c
}

// describeFileSystem returns the file system of a PersistentVolume. Kubelet sets fsGroup only where one is named.
func describeFileSystem(mode corev1.PersistentVolumeMode) string {
	if mode == corev1.PersistentVolumeBlock {
		return ""
	}
	return fileSystem
}

// nodeAffinity lets a volume be used on its node alone.
func nodeAffinity(node string) *corev1.VolumeNodeAffinity {
	return &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{
			Key: names.TopologyNode, Operator: corev1.NodeSelectorOpIn, Values: []string{node},
		}},
	}}}}
}

func compareNames(a, b longhornv1.Node) int { return strings.Compare(a.Name, b.Name) }
