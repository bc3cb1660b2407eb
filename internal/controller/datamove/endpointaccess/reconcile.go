package endpointaccess

import (
	"cmp"
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/controller/datamove/moversecret"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/datamove/settings"
	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/internal/reconcile"
)

const (
	// soon is when a Secret is looked at again that is that of an earlier pod, and about to go.
	soon = time.Second
	// retryMissing is when something is looked at again that the backup lacks. Secrets of tenants are not watched.
	retryMissing = 5 * time.Second
	// lookEvery is how often the token of a backup is read while it is read.
	lookEvery = 30 * time.Second
)

// Reconcile keeps the Secret of one DataUpload, and ends its backup if it is not needed any more.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	result, err := r.advance(ctx, req.NamespacedName)
	if err != nil && !apierrors.IsConflict(err) {
		err = fmt.Errorf("DataUpload %s: %w", req.NamespacedName, err)
	}
	return reconcile.RetryConflict(result, err)
}

func (r *reconciler) advance(ctx context.Context, key types.NamespacedName) (ctrl.Result, error) {
	known, err := reconcile.Find(ctx, r.cached, key, &velerov2.DataUpload{})
	if err != nil || known == nil {
		return ctrl.Result{}, err
	}
	_, _, ofBackup := backupOf(known)
	_, _, ofExport := exportOf(known)
	if !ofBackup && !ofExport {
		return ctrl.Result{}, nil
	}
	upload, err := reconcile.Find(ctx, r.live, key, &velerov2.DataUpload{})
	if err != nil || upload == nil {
		return ctrl.Result{}, err
	}
	note, noted := noteOf(upload)
	if !noted {
		return ctrl.Result{}, nil // its exposer has not seen the backup, or is of another version
	}
	current, err := r.secrets.Settings(ctx)
	switch {
	case err != nil:
		return ctrl.Result{}, err
	case !moversecret.Serves(current, upload) && moversecret.IsMoving(upload):
		return ctrl.Result{RequeueAfter: lookEvery}, nil // nothing tells when the settings change
	case !moversecret.Serves(current, upload):
		return ctrl.Result{}, nil
	}
	if name, asked, ok := exportOf(upload); ok {
		return r.keepExport(ctx, upload, name, asked, note)
	}
	return r.followBackup(ctx, upload, note, current)
}

// followBackup keeps the Secret of a DataUpload that reads a pull backup, and ends that if it is not needed any more.
func (r *reconciler) followBackup(ctx context.Context, upload *velerov2.DataUpload, note datamove.ReadBackup, current *settings.Settings) (ctrl.Result, error) {
	backup, asked, ok := backupOf(upload)
	if !ok {
		return ctrl.Result{}, nil
	}
	b, err := reconcile.Find(ctx, r.live, backup, &backupv1.VirtualMachineBackup{})
	if err != nil {
		return ctrl.Result{}, err
	}
	ended := whyEnded(backup, b, note)
	switch {
	case moversecret.IsMoving(upload) && ended != "":
		return ctrl.Result{}, r.secrets.TellEnd(ctx, upload, ended)
	case moversecret.IsMoving(upload):
		return r.keepSecret(ctx, upload, asked.Definition, func() (map[string][]byte, string, error) {
			return r.readAccess(ctx, b)
		})
	case ended != "" || !upload.Status.Phase.Ended():
		return ctrl.Result{}, nil
	}
	return r.endBackup(ctx, b, current)
}

// backupOf returns the backup whose endpoints a DataUpload reads. ok is false for one that reads none, or whose configuration is bad: its
// exposer says so.
func backupOf(o *velerov2.DataUpload) (backup types.NamespacedName, asked datamove.BackupDisk, ok bool) {
	if o.Spec.SnapshotType != velerov2.SnapshotMachineBackup || !datamove.ReadsEndpoints(o.Spec.DataMoverConfig) || o.Spec.SourceNamespace == "" {
		return backup, asked, false
	}
	asked, err := datamove.ParseBackupDisk(o.Spec.DataMoverConfig)
	return types.NamespacedName{Namespace: o.Spec.SourceNamespace, Name: asked.Backup}, asked, err == nil
}

func noteOf(o *velerov2.DataUpload) (note datamove.ReadBackup, ok bool) {
	note, err := datamove.DecodeReadBackup(o.Annotations[datamove.AnnotationExposed])
	return note, err == nil
}

// whyEnded says why a backup cannot be read any more, or "".
func whyEnded(name types.NamespacedName, b *backupv1.VirtualMachineBackup, note datamove.ReadBackup) string {
	switch {
	case b == nil || b.DeletionTimestamp != nil:
		return fmt.Sprintf("VirtualMachineBackup %s was deleted", name)
	case b.UID != note.Backup:
		return fmt.Sprintf("VirtualMachineBackup %s was made again", name)
	}
	if why, ended := b.Ended(); ended {
		return fmt.Sprintf("VirtualMachineBackup %s has ended: %s", name, why)
	}
	return ""
}

// keepSecret makes the Secret of a mover pod, or brings it up to date. read returns what opens the disk, or what is
// missing. definition is the UID of the machine's definition, which the Secret has as well; "": there is none to store.
func (r *reconciler) keepSecret(
	ctx context.Context, upload *velerov2.DataUpload, definition string,
	read func() (data map[string][]byte, missing string, err error),
) (ctrl.Result, error) {
	pod, err := r.secrets.FindPod(ctx, upload)
	if err != nil || pod == nil {
		return ctrl.Result{RequeueAfter: lookEvery}, err // the pod's making is watched
	}
	data, missing, err := read()
	if err == nil && missing == "" && definition != "" {
		data[datamove.DefinitionKey], missing, err = r.readDefinition(ctx, definition)
	}
	switch {
	case err != nil:
		return ctrl.Result{}, err
	case missing != "":
		r.events.Eventf(pod, nil, corev1.EventTypeWarning, "EndpointAccessMissing", "Give", "%s", missing)
		return ctrl.Result{RequeueAfter: retryMissing}, nil
	}
	have, err := r.secrets.Find(ctx, pod)
	if err != nil {
		return ctrl.Result{}, err
	}
	if kept, err := r.secrets.Keep(ctx, upload, pod, have, data); err != nil || !kept {
		return ctrl.Result{RequeueAfter: soon}, err
	}
	return ctrl.Result{RequeueAfter: lookEvery}, nil
}

// readAccess returns what opens the endpoints of a backup, or what it lacks.
func (r *reconciler) readAccess(ctx context.Context, b *backupv1.VirtualMachineBackup) (data map[string][]byte, missing string, err error) {
	authorities := cmp.Or(b.Status.Cert, b.Status.EndpointCert)
	if authorities == "" {
		return nil, fmt.Sprintf("VirtualMachineBackup %s/%s has no certificate of its endpoints", b.Namespace, b.Name), nil
	}
	secret := types.NamespacedName{Namespace: b.Namespace, Name: ptr.Deref(b.Spec.TokenSecretRef, "")}
	return r.readToken(ctx, secret, "VirtualMachineBackup "+b.Name, authorities)
}

// readToken returns the token of the Secret that owner names, with the authorities, or what is missing.
func (r *reconciler) readToken(ctx context.Context, key types.NamespacedName, owner, authorities string) (data map[string][]byte, missing string, err error) {
	secret, err := reconcile.Find(ctx, r.live, key, &corev1.Secret{})
	switch {
	case err != nil:
		return nil, "", err
	case secret == nil:
		return nil, fmt.Sprintf("Secret %s does not exist, which %s names in tokenSecretRef", key, owner), nil
	case len(secret.Data[podspec.TokenKey]) == 0:
		return nil, fmt.Sprintf("Secret %s has no %s", key, podspec.TokenKey), nil
	}
	return map[string][]byte{
		datamove.EndpointTokenKey: secret.Data[podspec.TokenKey], datamove.EndpointAuthoritiesKey: []byte(authorities), datamove.EndpointEndedKey: {},
	}, "", nil
}
