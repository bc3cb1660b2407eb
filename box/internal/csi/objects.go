package csi

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// DriverName is the driver's name in CSIDriver, CSINode, StorageClass and PersistentVolume objects.
const DriverName = "csi.box.varvebackup.io"

// The StorageClasses of the box. ClassName is the cluster's default and binds when the first consumer is scheduled.
// ImmediateClassName binds at once, on the first node.
const (
	ClassName          = "box"
	ImmediateClassName = "box-immediate"
)

// Install creates the driver's objects in the cluster. It does not change existing objects.
func Install(ctx context.Context, c kubernetes.Interface) error {
	no := false
	fsGroup := storagev1.FileFSGroupPolicy
	_, err := c.StorageV1().CSIDrivers().Create(ctx, &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: DriverName},
		Spec: storagev1.CSIDriverSpec{
			AttachRequired: &no, PodInfoOnMount: &no, FSGroupPolicy: &fsGroup,
			VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent},
		},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make the CSIDriver %s: %w", DriverName, err)
	}
	for name, mode := range map[string]storagev1.VolumeBindingMode{
		ClassName: storagev1.VolumeBindingWaitForFirstConsumer, ImmediateClassName: storagev1.VolumeBindingImmediate,
	} {
		class := &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: DriverName, VolumeBindingMode: &mode,
		}
		if name == ClassName {
			class.Annotations = map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}
		}
		_, err := c.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("make the StorageClass %s: %w", name, err)
		}
	}
	return nil
}

// Registered returns an error unless kubelet has announced that the driver serves the node.
func Registered(ctx context.Context, c kubernetes.Interface, node string) error {
	n, err := c.StorageV1().CSINodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("look for the driver on %s: %w", node, err)
	}
	for _, d := range n.Spec.Drivers {
		if d.Name == DriverName {
			return nil
		}
	}
	return fmt.Errorf("kubelet has not registered %s on %s yet", DriverName, node)
}

// nodeAffinity pins a volume to the node whose disk has it.
func nodeAffinity(node string) *corev1.VolumeNodeAffinity {
	return &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{
			Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node},
		}},
	}}}}
}
