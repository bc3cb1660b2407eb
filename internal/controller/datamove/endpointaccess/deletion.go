package endpointaccess

import (
	"context"
	"fmt"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/controller/datamove/moversecret"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/datamove/settings"
	"github.com/varvebackup/varve/internal/reconcile"
)

// isStored says that the restore point of a DataUpload is there to stay.
func isStored(o *velerov2.DataUpload, note datamove.ReadBackup) bool {
	return note.Moved && o.Status.Phase == velerov2.PhaseCompleted && o.DeletionTimestamp == nil
}

// endBackup deletes a backup that nobody needs any more, as it was read: what it says now decides whether that is a success.
func (r *reconciler) endBackup(ctx context.Context, b *backupv1.VirtualMachineBackup, current *settings.Settings) (ctrl.Result, error) {
	if !b.Readable() {
		return ctrl.Result{}, nil // it tells when it is Ready again
	}
	readers, err := r.gatherReaders(ctx, b, current)
	if err != nil || !isRead(b, readers) {
		return ctrl.Result{}, err // the last of them tells of its end
	}
	err = r.cached.Delete(ctx, b, client.Preconditions{UID: &b.UID, ResourceVersion: &b.ResourceVersion})
	if client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("delete VirtualMachineBackup %s/%s: %w", b.Namespace, b.Name, err)
	}
	return ctrl.Result{}, nil
}

// reader is a DataUpload that names a backup.
type reader struct {
	asked datamove.BackupDisk
	// stored: its disk of this very backup is stored. over: it reads nothing any more.
	stored, over bool
}

// gatherReaders returns the DataUploads that name a backup and that Varve serves, from the API server.
func (r *reconciler) gatherReaders(ctx context.Context, b *backupv1.VirtualMachineBackup, current *settings.Settings) ([]reader, error) {
	uploads, err := r.listReaders(ctx, client.ObjectKeyFromObject(b))
	if err != nil {
		return nil, err
	}
	var all []reader
	for i := range uploads {
		o, err := reconcile.Find(ctx, r.live, client.ObjectKeyFromObject(&uploads[i]), &velerov2.DataUpload{})
		if err != nil {
			return nil, err
		}
		if o == nil {
			continue
		}
		backup, asked, ok := backupOf(o)
		if !ok || backup != client.ObjectKeyFromObject(b) || !moversecret.Serves(current, o) {
			continue
		}
		note, noted := noteOf(o)
		all = append(all, reader{asked: asked, stored: noted && note.Backup == b.UID && isStored(o, note), over: o.Status.Phase.Ended()})
	}
	return all, nil
}

// isRead says that a backup may be deleted: somebody has asked for that, every disk is stored, and nobody is still to read one.
func isRead(b *backupv1.VirtualMachineBackup, readers []reader) bool {
	stored, asked := map[string]bool{}, false
	for _, r := range readers {
		if !r.over {
			return false
		}
		if r.stored {
			stored[r.asked.Volume] = true
			asked = asked || r.asked.DeleteBackup
		}
	}
	for i := range b.Status.IncludedVolumes {
		if v := &b.Status.IncludedVolumes[i]; !stored[v.Name] && !stored[v.VolumeName] {
			return false
		}
	}
	return asked && len(b.Status.IncludedVolumes) > 0
}
