package harvesterrestore

import (
	"context"
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/controller/child"
	"github.com/varvebackup/varve/internal/datamove"
)

// downloads are the DataDownloads of a restore.
type downloads = child.Movements[*velerov2.DataDownload]

// machineResource is that of virtual machines.
var machineResource = schema.GroupResource{Group: "kubevirt.io", Resource: "virtualmachines"}

// makeChildren makes the claims and the DataDownloads. Each is found again by its name. The DataDownloads that it makes
// are added to all.
func (r *reconciler) makeChildren(ctx context.Context, o *harvesterv1.VirtualMachineRestore, all downloads) (refused string, err error) {
	if o.Status.DefinitionDownload != "" {
		if refused, err := r.stored.Ask(ctx, definitionRequest(o)); refused != "" || err != nil {
			return refused, err
		}
	}
	for i := range o.Status.VolumeRestores {
		v := &o.Status.VolumeRestores[i]
		if refused, err := r.children.Make(ctx, o.UID, plannedClaim(o, v)); refused != "" || err != nil {
			return refused, err
		}
		if all[v.VolumeName] != nil {
			continue
		}
		d := newDownload(o, v)
		if refused, err := r.children.Make(ctx, o.UID, d); refused != "" || err != nil {
			return refused, err
		}
		all[v.VolumeName] = d
	}
	return "", child.NoteMade(ctx, r.cached, o)
}

// plannedClaim returns the claim of a disk.
func plannedClaim(o *harvesterv1.VirtualMachineRestore, v *harvesterv1.VolumeRestore) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: o.Namespace, Name: v.PersistentVolumeClaim.ObjectMeta.Name,
			Labels:      maps.Clone(v.PersistentVolumeClaim.ObjectMeta.Labels),
			Annotations: v.PersistentVolumeClaim.ObjectMeta.Annotations,
		},
		Spec: *v.PersistentVolumeClaim.Spec.DeepCopy(),
	}
}

// newDownload returns the DataDownload of a disk.
func newDownload(o *harvesterv1.VirtualMachineRestore, v *harvesterv1.VolumeRestore) *velerov2.DataDownload {
	return &velerov2.DataDownload{
		ObjectMeta: metav1.ObjectMeta{Namespace: o.Status.Location.Namespace, Name: v.DataDownload},
		Spec: velerov2.DataDownloadSpec{
			TargetVolume: velerov2.TargetVolumeSpec{
				Namespace: o.Namespace,
				PVC:       v.PersistentVolumeClaim.ObjectMeta.Name,
			},
			BackupStorageLocation: o.Status.Location.Name, DataMover: datamove.Mover, SnapshotID: v.SnapshotID,
			SourceNamespace:  o.Spec.VirtualMachineBackupNamespace,
			OperationTimeout: velerov1.Duration{Duration: downloadTimeout}, SnapshotSize: v.VolumeSize,
		},
	}
}
