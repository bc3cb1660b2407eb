package virtualmachineexport

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	"github.com/varvebackup/varve/internal/export/authority"
	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/internal/reconcile"
)

// Reconcile takes one export a step further.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	export := &exportv1.VirtualMachineExport{}
	err := r.cached.Get(ctx, req.NamespacedName, export)
	if apierrors.IsNotFound(err) {
		r.memory.forget(req.NamespacedName)
		return ctrl.Result{}, nil
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	in, issuer, err := r.gatherInput(ctx, export)
	if err != nil {
		return ctrl.Result{}, err
	}
	d := decide(in)
	err = r.applyDecision(ctx, in, d, issuer)
	if apierrors.IsAlreadyExists(err) {
		return reconcile.RetrySoon(), nil // the next look shows whose it is
	}
	if reconcile.IsRefusal(err) {
		r.memory.refused(export, err.Error())
		return ctrl.Result{}, err
	}
	return reconcile.RetryConflict(ctrl.Result{RequeueAfter: d.RequeueAfter}, err)
}

// applyDecision does what d says. Status comes first: clients must know the authorities before a certificate is used, and
// an export that is not served any more must not be said to be.
func (r *reconciler) applyDecision(ctx context.Context, in *input, d decision, issuer *authority.Issuer) error {
	if d.Expire {
		return r.expire(ctx, in.Export)
	}
	if d.Status == nil {
		return nil
	}
	if err := r.writeStatus(ctx, in.Export, d.Status); err != nil {
		return err
	}
	if d.Status.Phase == exportv1.ExportReady {
		r.memory.podServes(in.Export)
	}
	if d.DeletePod {
		if err := r.deletePod(ctx, in, d); err != nil {
			return err
		}
	}
	if err := r.writeChildren(ctx, in, d, issuer); err != nil {
		return err
	}
	r.memory.refused(in.Export, "")
	return nil
}

// expire deletes the export, unless it has changed meanwhile: somebody may just have given it more time.
func (r *reconciler) expire(ctx context.Context, export *exportv1.VirtualMachineExport) error {
	err := r.cached.Delete(ctx, export, client.Preconditions{UID: &export.UID, ResourceVersion: &export.ResourceVersion})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete export %s/%s: %w", export.Namespace, export.Name, err)
	}
	if err == nil {
		r.events.Eventf(export, nil, corev1.EventTypeNormal, "ExportExpired", "Delete", "The export has expired and was deleted.")
	}
	return nil
}

// writeStatus writes the status if it differs.
func (r *reconciler) writeStatus(ctx context.Context, export *exportv1.VirtualMachineExport, status *exportv1.VirtualMachineExportStatus) error {
	if equality.Semantic.DeepEqual(export.Status, *status) {
		return nil
	}
	changed := export.DeepCopy()
	status.DeepCopyInto(&changed.Status)
	if err := r.cached.Status().Patch(ctx, changed, reconcile.MergeFrom(export)); err != nil {
		return fmt.Errorf("write status of export %s/%s: %w", export.Namespace, export.Name, err)
	}
	return nil
}

// deletePod deletes the pod that was read.
func (r *reconciler) deletePod(ctx context.Context, in *input, d decision) error {
	options := []client.DeleteOption{client.Preconditions{UID: &in.Pod.UID}}
	if d.Force {
		options = append(options, client.GracePeriodSeconds(0))
	}
	if err := r.cached.Delete(ctx, in.Pod, options...); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete export pod %s/%s: %w", in.Pod.Namespace, in.Pod.Name, err)
	}
	r.events.Eventf(in.Export, in.Pod, corev1.EventTypeWarning, d.DeleteReason, "Delete", "%s", d.DeleteMessage)
	return nil
}

// writeChildren creates what the export needs, and puts right what it has.
func (r *reconciler) writeChildren(ctx context.Context, in *input, d decision, issuer *authority.Issuer) error {
	export := in.Export
	if d.WriteService {
		if err := r.writeService(ctx, in.Service, exportService(export, in.Source)); err != nil {
			return err
		}
	}
	if d.WriteToken {
		if err := r.writeSecret(ctx, export, in.Token, tokenSecret(export)); err != nil {
			return err
		}
	}
	if d.WriteCertificate {
		certificate, err := issuer.Issue(podspec.ServiceHosts(export.Namespace, export.Name))
		if err != nil {
			return err
		}
		if err := r.writeSecret(ctx, export, in.Certificate, certificateSecret(export, certificate)); err != nil {
			return err
		}
	}
	if d.WriteManifests {
		if err := r.writeSecret(ctx, export, in.Manifests, manifestsSecret(in)); err != nil {
			return err
		}
	}
	if !d.CreatePod {
		return nil
	}
	token, _ := tokenSecretName(export)
	pod := exportPod(export, in.Source, token, r.Image)
	if err := r.cached.Create(ctx, pod); err != nil {
		return fmt.Errorf("create export pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	r.memory.podCreated(export, in.Now)
	r.events.Eventf(export, pod, corev1.EventTypeNormal, "ExporterPodCreated", "Create", "Created pod %s.", pod.Name)
	return nil
}

func (r *reconciler) writeService(ctx context.Context, have, wanted *corev1.Service) error {
	if have == nil {
		if err := r.cached.Create(ctx, wanted); err != nil {
			return fmt.Errorf("create service %s/%s: %w", wanted.Namespace, wanted.Name, err)
		}
		return nil
	}
	changed := have.DeepCopy()
	changed.Spec.Selector, changed.Spec.Ports = wanted.Spec.Selector, wanted.Spec.Ports
	changed.Spec.PublishNotReadyAddresses = wanted.Spec.PublishNotReadyAddresses
	if err := r.cached.Update(ctx, changed); err != nil {
		return fmt.Errorf("update service %s/%s: %w", have.Namespace, have.Name, err)
	}
	return nil
}

func (r *reconciler) writeSecret(ctx context.Context, export *exportv1.VirtualMachineExport, have, wanted *corev1.Secret) error {
	if have == nil {
		if err := r.cached.Create(ctx, wanted); err != nil {
			return fmt.Errorf("create secret %s/%s: %w", wanted.Namespace, wanted.Name, err)
		}
		r.events.Eventf(export, nil, corev1.EventTypeNormal, "SecretCreated", "Create", "Created secret %s.", wanted.Name)
		return nil
	}
	changed := have.DeepCopy()
	changed.Data = wanted.Data
	if err := r.cached.Update(ctx, changed); err != nil {
		return fmt.Errorf("update secret %s/%s: %w", have.Namespace, have.Name, err)
	}
	return nil
}
