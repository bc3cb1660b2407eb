package csi

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v10/controller"

	"github.com/varvebackup/varve/box/internal/layout"
)

// selectedNode is the annotation with which the scheduler names the node where a claim's first consumer will run.
const selectedNode = "volume.kubernetes.io/selected-node"

// provisioner creates and deletes the volumes of one node. Every node runs one, and each claim belongs to exactly one
// of them, so they need no leader.
type provisioner struct {
	node  string
	store store
}

var (
	_ controller.BlockProvisioner = (*provisioner)(nil)
	_ controller.Qualifier        = (*provisioner)(nil)
	_ controller.DeletionGuard    = (*provisioner)(nil)
)

// runProvisioner runs the provisioner until ctx ends.
func runProvisioner(ctx context.Context, client kubernetes.Interface, node string, volumes store) error {
	p := &provisioner{node: node, store: volumes}
	c := controller.NewProvisionController(klog.FromContext(ctx), client, DriverName, p,
		controller.LeaderElection(false),
		controller.MetricsPort(0),
		controller.Threadiness(4),
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
	return pv.Spec.CSI != nil && pv.Spec.CSI.VolumeAttributes["node"] == p.node
}

// SupportsBlock says that volumes may be block devices.
func (p *provisioner) SupportsBlock(context.Context) bool { return true }

// Provision creates the volume's file and returns its description.
func (p *provisioner) Provision(ctx context.Context, o controller.ProvisionOptions) (*corev1.PersistentVolume, controller.ProvisioningState, error) {
	if err := checkClaim(o.PVC); err != nil {
		return nil, controller.ProvisioningFinished, err
	}
	size := o.PVC.Spec.Resources.Requests[corev1.ResourceStorage]
	mode := corev1.PersistentVolumeFilesystem
	if o.PVC.Spec.VolumeMode != nil {
		mode = *o.PVC.Spec.VolumeMode
	}
	bytes := roundUp(size.Value())
	if err := p.store.createVolume(ctx, o.PVName, bytes, mode == corev1.PersistentVolumeFilesystem); err != nil {
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
			NodeAffinity:                  nodeAffinity(p.node),
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: DriverName, VolumeHandle: o.PVName, VolumeAttributes: map[string]string{"node": p.node},
			}},
		},
	}, controller.ProvisioningFinished, nil
}

// Delete removes the volume's file.
func (p *provisioner) Delete(_ context.Context, pv *corev1.PersistentVolume) error {
	return p.store.removeVolume(pv.Spec.CSI.VolumeHandle)
}

// checkClaim rejects what the box's volumes cannot do.
func checkClaim(claim *corev1.PersistentVolumeClaim) error {
	for _, m := range []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany, corev1.ReadOnlyMany} {
		if slices.Contains(claim.Spec.AccessModes, m) {
			return fmt.Errorf("access mode %s: the box's volumes lie on one node", m)
		}
	}
	if claim.Spec.DataSource != nil || claim.Spec.DataSourceRef != nil {
		return errors.New("the box's volumes start empty: data sources are not supported")
	}
	return nil
}

// roundUp rounds bytes up to whole 4 KiB blocks, which direct I/O on the backing file needs.
func roundUp(bytes int64) int64 {
	const block = 4096
	return (bytes + block - 1) / block * block
}
