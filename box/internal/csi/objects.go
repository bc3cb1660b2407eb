package csi

import (
	"context"
	"fmt"
	"slices"

	snapshotapi "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/typed/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// The drivers' names in CSIDriver, CSINode, StorageClass, VolumeSnapshotClass and PersistentVolume objects. PlainDriverName
// has no snapshots and no clones.
const (
	DriverName      = "csi.box.varvebackup.io"
	PlainDriverName = "nosnap.csi.box.varvebackup.io"
)

// The StorageClasses of the box. ClassName is the cluster's default and binds when the first consumer is scheduled.
// ImmediateClassName binds at once, on the first node. PlainClassName is as ClassName, of the driver without snapshots.
const (
	ClassName          = "box"
	ImmediateClassName = "box-immediate"
	PlainClassName     = "box-nosnap"
)

// The VolumeSnapshotClasses of the box, by their deletion policies. The first one is the default, and has Velero's label.
const (
	SnapshotClassName       = "box"
	RetainSnapshotClassName = "box-retain"
)

// veleroClassLabel marks the VolumeSnapshotClass that Velero takes for a driver. It must be on one class of each driver.
const veleroClassLabel = "velero.io/csi-volumesnapshot-class"

// nodeAttribute is the volume attribute with the node that has the volume.
const nodeAttribute = "node"

// Clients are what Install needs.
type Clients struct {
	Kubernetes kubernetes.Interface
	Snapshots  snapshotv1.SnapshotV1Interface
}

// Install creates the drivers' objects in the cluster. It does not change existing objects. The CRDs of the
// VolumeSnapshot API must be there.
func Install(ctx context.Context, c Clients) error {
	for _, d := range drivers {
		if err := installDriver(ctx, c.Kubernetes, d.name); err != nil {
			return err
		}
	}
	late, early := storagev1.VolumeBindingWaitForFirstConsumer, storagev1.VolumeBindingImmediate
	for _, class := range []*storagev1.StorageClass{
		{
			ObjectMeta: metav1.ObjectMeta{
				Name: ClassName, Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"},
			},
			Provisioner: DriverName, VolumeBindingMode: &late,
		},
		{ObjectMeta: metav1.ObjectMeta{Name: ImmediateClassName}, Provisioner: DriverName, VolumeBindingMode: &early},
		{ObjectMeta: metav1.ObjectMeta{Name: PlainClassName}, Provisioner: PlainDriverName, VolumeBindingMode: &late},
	} {
		_, err := c.Kubernetes.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("make the StorageClass %s: %w", class.Name, err)
		}
	}
	for _, class := range []*snapshotapi.VolumeSnapshotClass{
		{
			ObjectMeta: metav1.ObjectMeta{
				Name: SnapshotClassName, Labels: map[string]string{veleroClassLabel: "true"},
				Annotations: map[string]string{"snapshot.storage.kubernetes.io/is-default-class": "true"},
			},
			DeletionPolicy: snapshotapi.VolumeSnapshotContentDelete, Driver: DriverName,
		},
		{
			ObjectMeta:     metav1.ObjectMeta{Name: RetainSnapshotClassName},
			DeletionPolicy: snapshotapi.VolumeSnapshotContentRetain, Driver: DriverName,
		},
	} {
		_, err := c.Snapshots.VolumeSnapshotClasses().Create(ctx, class, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("make the VolumeSnapshotClass %s: %w", class.Name, err)
		}
	}
	return nil
}

func installDriver(ctx context.Context, c kubernetes.Interface, name string) error {
	no := false
	fsGroup := storagev1.FileFSGroupPolicy
	_, err := c.StorageV1().CSIDrivers().Create(ctx, &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: storagev1.CSIDriverSpec{
			AttachRequired: &no, PodInfoOnMount: &no, FSGroupPolicy: &fsGroup,
			VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent},
		},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make the CSIDriver %s: %w", name, err)
	}
	return nil
}

// Registered returns an error unless kubelet has announced that the drivers serve the node.
func Registered(ctx context.Context, c kubernetes.Interface, node string) error {
	n, err := c.StorageV1().CSINodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("look for the driver on %s: %w", node, err)
	}
	for _, want := range drivers {
		registered := slices.ContainsFunc(n.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == want.name })
		if !registered {
			return fmt.Errorf("kubelet has not registered %s on %s yet", want.name, node)
		}
	}
	return nil
}

// nodeAffinity pins a volume to the node whose disk has it, unless its access modes let all nodes write to it.
func nodeAffinity(node string, modes []corev1.PersistentVolumeAccessMode) *corev1.VolumeNodeAffinity {
	if slices.Contains(modes, corev1.ReadWriteMany) {
		return nil
	}
	return &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{
			Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node},
		}},
	}}}}
}
