package kubevirtbackup

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	"github.com/varvebackup/varve/internal/controller/backup/tunnelkey"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/reconcile"
)

// gatherPull reads what only a backup in pull mode depends on. Secrets are read from the API server: the cache has none.
func (r *reconciler) gatherPull(ctx context.Context, c client.Reader, in *input) (err error) {
	if !in.isPull() {
		return nil
	}
	fresh := isWaiting(in.Backup) && !in.hasFinalizer() // it has made nothing yet
	if fresh && in.Ahead != nil {
		return nil
	}
	if err := r.gatherToken(ctx, in); err != nil || fresh && missingToken(in) != nil {
		return err
	}
	namespace := in.Backup.Namespace
	if in.Pull.TunnelSecret, err = reconcile.Find(ctx, r.live, types.NamespacedName{Namespace: namespace, Name: in.tunnelSecretName()}, &corev1.Secret{}); err != nil {
		return err
	}
	if in.Pull.TunnelSecret == nil {
		if in.Pull.Key, err = tunnelkey.Read(ctx, r.live, r.configuration.Namespace); err != nil {
			return err
		}
	}
	if in.Backup.Spec.IsPulledByDataUploads() {
		return nil // it has no export, and what has an export's name is somebody else's
	}
	name := layout.BackupExport(in.Backup.Name)
	if in.Pull.Export, err = reconcile.Find(ctx, c, types.NamespacedName{Namespace: namespace, Name: name}, &exportv1.VirtualMachineExport{}); err != nil || in.Pull.Export == nil {
		return err
	}
	if service := in.Pull.Export.Status.ServiceName; service != "" && in.Backup.Status.Phase == backupv1.BackupServing {
		in.Pull.Service, err = reconcile.Find(ctx, r.cached, types.NamespacedName{Namespace: namespace, Name: service}, &corev1.Service{})
	}
	return err
}

// gatherToken reads the clients' token before the point in time is fixed.
func (r *reconciler) gatherToken(ctx context.Context, in *input) (err error) {
	ref := in.Backup.Spec.TokenSecretRef
	if ref == nil || !isWaiting(in.Backup) && in.Backup.Status.Phase != backupv1.BackupAttaching {
		return nil
	}
	in.Pull.Token, err = reconcile.Find(ctx, r.live, types.NamespacedName{Namespace: in.Backup.Namespace, Name: *ref}, &corev1.Secret{})
	return err
}

func (r *reconciler) createExport(ctx context.Context, in *input, export *exportv1.VirtualMachineExport) error {
	err := r.cached.Create(ctx, export)
	if err != nil {
		return ignoreExists(err)
	}
	r.events.Eventf(in.Backup, export, normal, EventExportCreated, "Export", "Created VirtualMachineExport %s.", export.Name)
	return nil
}

// extendExport gives the export the time that is left to the backup.
func (r *reconciler) extendExport(ctx context.Context, in *input) error {
	return patchObject(ctx, r.cached, in.Pull.Export, func(e *exportv1.VirtualMachineExport) {
		e.Spec.TTLDuration = &metav1.Duration{Duration: remainingTime(in, e.CreationTimestamp.Time)}
	})
}

// ignoreExists leaves it to the next look whose the object is that has the name.
func ignoreExists(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// deleteObject deletes the object that was read.
func (r *reconciler) deleteObject(ctx context.Context, o client.Object, options ...client.DeleteOption) error {
	uid := o.GetUID()
	err := r.cached.Delete(ctx, o, append(options, client.Preconditions{UID: &uid})...)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete %s: %w", o.GetName(), err)
	}
	return nil
}
