package endpointaccess

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"

	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/controller/datamove/moversecret"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/reconcile"
)

// exportOf returns the export that a DataUpload reads. ok is false for one that reads none, or whose configuration is bad:
// its exposer says so.
func exportOf(o *velerov2.DataUpload) (export types.NamespacedName, asked datamove.ExportDisk, ok bool) {
	if o.Spec.SnapshotType != velerov2.SnapshotMachineBackup || !datamove.ReadsExport(o.Spec.DataMoverConfig) ||
		o.Spec.SourceNamespace == "" {
		return export, asked, false
	}
	asked, err := datamove.ParseExportDisk(o.Spec.DataMoverConfig)
	return types.NamespacedName{Namespace: o.Spec.SourceNamespace, Name: asked.Export}, asked, err == nil
}

// keepExport keeps the Secret of a DataUpload that reads an export.
func (r *reconciler) keepExport(ctx context.Context, upload *velerov2.DataUpload, name types.NamespacedName, asked datamove.ExportDisk, note datamove.ReadBackup) (ctrl.Result, error) {
	if !moversecret.IsMoving(upload) {
		return ctrl.Result{}, nil
	}
	o, err := reconcile.Find(ctx, r.live, name, &exportv1.VirtualMachineExport{})
	if err != nil {
		return ctrl.Result{}, err
	}
	if ended := whyExportEnded(name, o, note); ended != "" {
		return ctrl.Result{}, r.secrets.TellEnd(ctx, upload, ended)
	}
	return r.keepSecret(ctx, upload, asked.Definition, func() (map[string][]byte, string, error) {
		return r.readExportAccess(ctx, o)
	})
}

// whyExportEnded says why an export cannot be read any more, or "".
func whyExportEnded(name types.NamespacedName, o *exportv1.VirtualMachineExport, note datamove.ReadBackup) string {
	switch {
	case o == nil || o.DeletionTimestamp != nil:
		return fmt.Sprintf("VirtualMachineExport %s was deleted", name)
	case o.UID != note.Backup:
		return fmt.Sprintf("VirtualMachineExport %s was made again", name)
	}
	return ""
}

// readExportAccess returns what opens an export, or what it lacks.
func (r *reconciler) readExportAccess(ctx context.Context, o *exportv1.VirtualMachineExport) (data map[string][]byte, missing string, err error) {
	owner := fmt.Sprintf("VirtualMachineExport %s/%s", o.Namespace, o.Name)
	if o.Status.Links == nil || o.Status.Links.Internal == nil || o.Status.Links.Internal.Cert == "" {
		return nil, owner + " is not served now", nil
	}
	secret := types.NamespacedName{Namespace: o.Namespace, Name: ptr.Deref(o.Status.TokenSecretRef, "")}
	return r.readToken(ctx, secret, owner, o.Status.Links.Internal.Cert)
}

// readDefinition returns the definition of a machine, or what is missing of it.
func (r *reconciler) readDefinition(ctx context.Context, uid string) (definition []byte, missing string, err error) {
	key := types.NamespacedName{Namespace: r.Namespace, Name: datamove.DefinitionSecret(uid)}
	secret, err := reconcile.Find(ctx, r.live, key, &corev1.Secret{})
	switch {
	case err != nil:
		return nil, "", err
	case secret == nil:
		return nil, fmt.Sprintf("Secret %s with the definition of the machine does not exist", key), nil
	case secret.Type != datamove.DefinitionSecretType || len(secret.Data[datamove.DefinitionKey]) == 0:
		return nil, fmt.Sprintf("Secret %s is not that of a definition of a machine: it has the type %q, or nothing in its key %q",
			key, secret.Type, datamove.DefinitionKey), nil
	}
	return secret.Data[datamove.DefinitionKey], "", nil
}
