package csi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/typed/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v10/controller"

	"github.com/varvebackup/varve/box/internal/layout"
)

// selectedNode is the annotation with which the scheduler names the node where a claim's first consumer will run.
const selectedNode = "volume.kubernetes.io/selected-node"

// provisioner creates and deletes the volumes of one node. Every node runs one, and each claim belongs to exactly one
// of them, so they need no leader.
type provisioner struct {
	driver     driver
	node       string
	controller *controllerServer
	client     kubernetes.Interface
	snapshots  snapshotv1.SnapshotV1Interface
}

var (
	_ controller.BlockProvisioner = (*provisioner)(nil)
	_ controller.Qualifier        = (*provisioner)(nil)
	_ controller.DeletionGuard    = (*provisioner)(nil)
)

// The pace of retries, about that of upstream's external-provisioner: a claim may name a snapshot that is not ready yet.
const (
	retryFirst = time.Second
	retryMost  = time.Minute
)

// runProvisioner runs the provisioner until ctx ends.
func runProvisioner(ctx context.Context, client kubernetes.Interface, p *provisioner) error {
	c := controller.NewProvisionController(klog.FromContext(ctx), client, p.driver.name, p,
		controller.LeaderElection(false),
		controller.MetricsPort(0),
		controller.Threadiness(4),
		//nolint:staticcheck // the controller's interface is untyped
		controller.RateLimiter(workqueue.NewItemExponentialFailureRateLimiter(retryFirst, retryMost)),
		controller.FailedProvisionThreshold(0), // retry for ever: a refused claim says so in its events
		controller.FailedDeleteThreshold(0),
	)
	c.Run(ctx)
	return ctx.Err()
}

// ShouldProvision says whether the claim belongs to this node: the scheduler chose this node, or it chose none and this is the first.
func (p *provisioner) ShouldProvision(_ context.Context, claim *corev1.PersistentVolumeClaim) bool {
	if chosen := claim.Annotations[selectedNode]; chosen != "" {
		return chosen == p.node
	}
	return p.node == layout.NodeName(1)
}

// ShouldDelete says whether the volume is on this node.
func (p *provisioner) ShouldDelete(_ context.Context, pv *corev1.PersistentVolume) bool {
	return pv.Spec.CSI != nil && pv.Spec.CSI.VolumeAttributes[nodeAttribute] == p.node
}

// SupportsBlock says that volumes may be block devices.
func (p *provisioner) SupportsBlock(context.Context) bool { return true }

// Provision creates the volume and returns its description.
func (p *provisioner) Provision(ctx context.Context, o controller.ProvisionOptions) (*corev1.PersistentVolume, controller.ProvisioningState, error) {
	if err := checkClaim(o.PVC, p.driver); err != nil {
		return nil, controller.ProvisioningFinished, err
	}
	size := o.PVC.Spec.Resources.Requests[corev1.ResourceStorage]
	mode := volumeMode(o.PVC.Spec.VolumeMode)
	source, err := p.resolveSource(ctx, o.PVC)
	if err != nil {
		return nil, controller.ProvisioningFinished, err
	}
	created, err := p.controller.CreateVolume(ctx, &csi.CreateVolumeRequest{
		Name: o.PVName, CapacityRange: &csi.CapacityRange{RequiredBytes: size.Value()},
		VolumeCapabilities: capabilities(mode, o.PVC.Spec.AccessModes), VolumeContentSource: source,
	})
	if err != nil {
		return nil, controller.ProvisioningFinished, err
	}
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: o.PVName},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: size},
			AccessModes:                   o.PVC.Spec.AccessModes,
			PersistentVolumeReclaimPolicy: *o.StorageClass.ReclaimPolicy,
			MountOptions:                  o.StorageClass.MountOptions,
			VolumeMode:                    &mode,
			NodeAffinity:                  nodeAffinity(p.node, o.PVC.Spec.AccessModes),
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: p.driver.name, VolumeHandle: created.GetVolume().GetVolumeId(), VolumeAttributes: created.GetVolume().GetVolumeContext(),
			}},
		},
	}, controller.ProvisioningFinished, nil
}

// Delete removes the volume's file.
func (p *provisioner) Delete(ctx context.Context, pv *corev1.PersistentVolume) error {
	_, err := p.controller.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: pv.Spec.CSI.VolumeHandle})
	return err
}

// checkClaim rejects what the driver's volumes cannot do.
func checkClaim(claim *corev1.PersistentVolumeClaim, d driver) error {
	// Upstream's external-provisioner says it in these words. Who sets a selector waits for a volume that
	// somebody else makes, as Velero does for a claim that it restores.
	if claim.Spec.Selector != nil {
		return errors.New("claim Selector is not supported")
	}
	modes := claim.Spec.AccessModes
	sourced := claim.Spec.DataSource != nil || claim.Spec.DataSourceRef != nil
	switch {
	case slices.Contains(modes, corev1.ReadOnlyMany) && len(modes) > 1:
		return fmt.Errorf("access modes %v: a volume of the box that has readers on many nodes has no writer", modes)
	case slices.Contains(modes, corev1.ReadOnlyMany) && !sourced:
		return fmt.Errorf("access mode %s: a volume without a data source would be empty for ever", corev1.ReadOnlyMany)
	case sourced && !d.snapshots:
		return fmt.Errorf("the driver %s has neither snapshots nor clones: its volumes start empty", d.name)
	}
	return nil
}

// volumeMode returns a volume mode, which is Filesystem if an object names none.
func volumeMode(mode *corev1.PersistentVolumeMode) corev1.PersistentVolumeMode {
	if mode == nil {
		return corev1.PersistentVolumeFilesystem
	}
	return *mode
}

// capabilities says in CSI's words what a claim asks for.
func capabilities(mode corev1.PersistentVolumeMode, access []corev1.PersistentVolumeAccessMode) []*csi.VolumeCapability {
	c := &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
	}
	switch {
	case slices.Contains(access, corev1.ReadWriteMany):
		c.AccessMode.Mode = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	case slices.Contains(access, corev1.ReadOnlyMany):
		c.AccessMode.Mode = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	}
	if mode == corev1.PersistentVolumeBlock {
		c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	}
	return []*csi.VolumeCapability{c}
}

// roundUp rounds bytes up to whole 4 KiB blocks, which direct I/O on the backing file needs.
func roundUp(bytes int64) int64 {
	const block = 4096
	return (bytes + block - 1) / block * block
}
