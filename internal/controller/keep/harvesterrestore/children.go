package harvesterrestore

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/reconcile"
)

// annotationBegun is on a restore all of whose DataDownloads were made: its UID. A copy of it begins anew.
const annotationBegun = layout.Prefix + "downloads-made"

// machineResource is that of virtual machines.
var machineResource = schema.GroupResource{Group: "kubevirt.io", Resource: "virtualmachines"}

// makeChildren makes the claims and the DataDownloads. Each is found again by its name. The DataDownloads that it makes
// are added to downloads.
func (r *reconciler) makeChildren(ctx context.Context, o *harvesterv1.VirtualMachineRestore, downloads map[string]*velerov2.DataDownload) (refused string, err error) {
	for i := range o.Status.VolumeRestores {
		v := &o.Status.VolumeRestores[i]
		claim := &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: o.Namespace, Name: v.PersistentVolumeClaim.ObjectMeta.Name,
				Labels: v.PersistentVolumeClaim.ObjectMeta.Labels, Annotations: v.PersistentVolumeClaim.ObjectMeta.Annotations,
			},
			Spec: *v.PersistentVolumeClaim.Spec.DeepCopy(),
		}
		if refused, err := r.children.Make(ctx, o.UID, claim); refused != "" || err != nil {
			return refused, err
		}
		if downloads[v.VolumeName] != nil {
			continue
		}
		d := newDownload(o, v)
		if refused, err := r.children.Make(ctx, o.UID, d); refused != "" || err != nil {
			return refused, err
		}
		downloads[v.VolumeName] = d
	}
	changed := o.DeepCopy()
	metav1.SetMetaDataAnnotation(&changed.ObjectMeta, annotationBegun, string(o.UID))
	if err := r.cached.Patch(ctx, changed, reconcile.MergeFrom(o)); err != nil {
		return "", fmt.Errorf("note that the DataDownloads are made: %w", err)
	}
	changed.DeepCopyInto(o)
	return "", nil
}

// newDownload returns the DataDownload of a disk.
func newDownload(o *harvesterv1.VirtualMachineRestore, v *harvesterv1.VolumeRestore) *velerov2.DataDownload {
	return &velerov2.DataDownload{
		ObjectMeta: metav1.ObjectMeta{Namespace: o.Status.Location.Namespace, Name: v.DataDownload},
		Spec: velerov2.DataDownloadSpec{
			TargetVolume:          velerov2.TargetVolumeSpec{Namespace: o.Namespace, PVC: v.PersistentVolumeClaim.ObjectMeta.Name},
			BackupStorageLocation: o.Status.Location.Name, DataMover: datamove.Mover, SnapshotID: v.SnapshotID, SourceNamespace: o.Spec.VirtualMachineBackupNamespace,
			OperationTimeout: velerov1.Duration{Duration: downloadTimeout}, SnapshotSize: v.VolumeSize,
		},
	}
}
