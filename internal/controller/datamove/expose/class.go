package expose

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/varvebackup/varve/internal/reconcile"
	"github.com/varvebackup/varve/internal/store/names"
)

// noProvisioner is the provisioner of StorageClasses that never make a volume.
const noProvisioner = "kubernetes.io/no-provisioner"

// findClass returns a StorageClass that can make volumes.
func (a Access) findClass(ctx context.Context, name string) (*storagev1.StorageClass, error) {
	class, err := reconcile.Find(ctx, a.Live, types.NamespacedName{Name: name}, &storagev1.StorageClass{})
	switch {
	case err != nil:
		return nil, err
	case class == nil:
		return nil, refuse("StorageClass %s does not exist: create it, and try again", name)
	case class.Provisioner == "" || class.Provisioner == noProvisioner:
		return nil, refuse("StorageClass %s has no driver that makes volumes: use another class", name)
	}
	return class, nil
}

// classOf returns the StorageClass of a claim, or nil if there is none any more.
func (a Access) classOf(ctx context.Context, claim *corev1.PersistentVolumeClaim) (*storagev1.StorageClass, error) {
	return reconcile.Find(ctx, a.Live, types.NamespacedName{Name: ptr.Deref(claim.Spec.StorageClassName, "")}, &storagev1.StorageClass{})
}

// parameterImage is the parameter of a StorageClass whose volumes are clones of an image. Varve's driver has it from
// Longhorn's.
const parameterImage = "backingImage"

// driverOfLonghorn is the name of Longhorn's CSI driver.
const driverOfLonghorn = "driver.longhorn.io"

// clonesImage says that volumes of a class are made as clones of an image. The class may be gone and nil.
func clonesImage(class *storagev1.StorageClass) bool {
	return class != nil && class.Parameters[parameterImage] != "" &&
		(class.Provisioner == names.Driver || class.Provisioner == driverOfLonghorn)
}

// waitsForConsumer says that volumes of a class are made when a pod needs them.
func waitsForConsumer(class *storagev1.StorageClass) bool {
	return class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
}
