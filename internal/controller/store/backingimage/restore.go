package backingimage

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/reconcile"
)

// newDownload returns the DataDownload that restores the first copy of an image to the claim of its source.
func newDownload(image *longhornv1.BackingImage) (*velerov2.DataDownload, error) {
	text := string(image.Spec.SourceParameters[longhornv1.ParameterSnapshotID])
	id, err := datamove.ParseSnapshotID(text)
	if err != nil {
		return nil, fmt.Errorf("sourceParameters.%s: %w", longhornv1.ParameterSnapshotID, err)
	}
	m := sourceMeta(image)
	return &velerov2.DataDownload{
		ObjectMeta: m,
		Spec: velerov2.DataDownloadSpec{
			TargetVolume:          velerov2.TargetVolumeSpec{Namespace: m.Namespace, PVC: m.Name},
			BackupStorageLocation: originName(image), DataMover: datamove.Mover, SnapshotID: text,
			SourceNamespace:  id.Namespace,
			OperationTimeout: velerov1.Duration{Duration: datamove.DefaultOperationTimeout},
			DataMoverConfig:  map[string]string{datamove.ConfigWrite: datamove.WriteImage},
		},
	}, nil
}

// explainNoPoint says what is wrong with where the restore point of a restore is, or "".
func (in *input) explainNoPoint() string {
	name, location := originName(in.image), in.origin.location
	_, err := datamove.ParseSnapshotID(string(in.image.Spec.SourceParameters[longhornv1.ParameterSnapshotID]))
	switch {
	case err != nil:
		return fmt.Sprintf("sourceParameters.%s: %s: make another image", longhornv1.ParameterSnapshotID, err)
	case location == nil:
		return fmt.Sprintf("the BackupStorageLocation %s, which sourceParameters.%s names, does not exist in namespace %s: "+
			"create it", name, longhornv1.ParameterLocation, in.Namespace)
	case location.DeletionTimestamp != nil:
		return fmt.Sprintf("the BackupStorageLocation %s, which sourceParameters.%s names, is being deleted: create it "+
			"again", name, longhornv1.ParameterLocation)
	}
	return ""
}

// listReachableDisks returns the disks of nodes that reach the storage of a restore's location; nil: all disks.
func (in *input) listReachableDisks() map[string]bool {
	if in.origin.storage.Nodes == nil {
		return nil
	}
	disks := map[string]bool{}
	for uuid, d := range in.disks {
		if in.origin.storage.Reaches(d.node) {
			disks[uuid] = true
		}
	}
	return disks
}

// explainDownloadFailure says why a DataDownload will not restore the image, or "".
func explainDownloadFailure(d *velerov2.DataDownload) string {
	switch {
	case d.Status.Phase.Ended():
		return joinReason("DataDownload "+d.Name+" is "+string(d.Status.Phase), d.Status.Message)
	case d.DeletionTimestamp != nil:
		return "DataDownload " + d.Name + " was deleted by somebody else while it was needed"
	case d.Spec.Cancel:
		return "DataDownload " + d.Name + " was canceled by somebody else while it was needed"
	}
	return ""
}

// percentRestored returns how much of a restore point was read.
func (s *sourceObjects) percentRestored() int {
	if s.download == nil {
		return 0
	}
	return s.download.Status.Progress.Percent()
}

// removeDownload deletes the DataDownload of a source. The data mover ends its pod, and lets it go. If the pod's node
// is silent, that is not waited for, as for a source pod.
func (r *reconciler) removeDownload(ctx context.Context, d *velerov2.DataDownload, force bool) error {
	if err := r.removeObjects(ctx, []client.Object{d}, false); err != nil || !force {
		return err
	}
	key := types.NamespacedName{Namespace: r.Namespace, Name: datamove.ChildName(datamove.Download, d.UID)}
	pod, err := reconcile.Find(ctx, r.live, key, &corev1.Pod{})
	if err != nil || pod == nil || pod.Labels[datamove.LabelObject] != string(d.UID) {
		return err
	}
	return r.removeObjects(ctx, []client.Object{pod}, true)
}
