package backuppolicy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	varvev1 "github.com/varvebackup/varve/api/varve/v1alpha1"
	"github.com/varvebackup/varve/internal/controller/child"
	"github.com/varvebackup/varve/internal/definition"
	"github.com/varvebackup/varve/internal/reconcile"
)

const (
	// retryRefused is when a schedule is tried again that the API server did not accept: no event tells when a quota was
	// raised.
	retryRefused = 5 * time.Minute
	// pageSize is how many schedules are read at a time. One has up to 250 backups in its status.
	pageSize = 100
)

// scheduleKind is the kind of the schedules.
var scheduleKind = harvesterv1.GroupVersion.WithKind("ScheduleVMBackup")

// Reconcile makes the schedules of one policy what it wants them to be.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	result, err := r.advance(ctx, req.NamespacedName)
	if err != nil && !apierrors.IsConflict(err) {
		err = fmt.Errorf("BackupPolicy %s: %w", req.NamespacedName, err)
	}
	return reconcile.RetryConflict(result, err)
}

func (r *reconciler) advance(ctx context.Context, key types.NamespacedName) (ctrl.Result, error) {
	policy, err := reconcile.Find(ctx, r.live, key, &varvev1.BackupPolicy{})
	if err != nil || policy == nil || policy.DeletionTimestamp != nil {
		return ctrl.Result{}, err
	}
	in, err := r.readInput(ctx, policy)
	if err != nil {
		return ctrl.Result{}, err
	}
	d := decide(in)
	err = r.carryOut(ctx, d)
	base := policy.DeepCopy()
	policy.Status = newStatus(policy, d, r.Clock.Now())
	if err := errors.Join(err, reconcile.WriteStatus(ctx, r.cached, base, policy)); err != nil {
		return ctrl.Result{}, err
	}
	return nextTry(d), nil
}

// nextTry says when a policy is looked at again without an event.
func nextTry(d *decision) ctrl.Result {
	if slices.ContainsFunc(d.failed, func(f varvev1.FailedMachine) bool { return f.Reason == varvev1.ReasonRefused }) {
		return ctrl.Result{RequeueAfter: retryRefused}
	}
	return ctrl.Result{}
}

// readInput reads what a decision follows from: the policy's own schedules from the API server, because the cache may
// be behind its own writes, and of the others and of machines what the cache has of their metadata.
func (r *reconciler) readInput(ctx context.Context, policy *varvev1.BackupPolicy) (*input, error) {
	in := &input{policy: policy, others: map[string]bool{}}
	machines, err := r.listMetadata(ctx, policy.Namespace, definition.MachineKind)
	if err != nil {
		return nil, err
	}
	in.machines = machines
	schedules, err := r.listMetadata(ctx, policy.Namespace, scheduleKind)
	if err != nil {
		return nil, err
	}
	for i := range schedules {
		if o := &schedules[i]; o.Labels[varvev1.LabelPolicy] != string(policy.UID) {
			in.others[o.Name] = true
		}
	}
	in.schedules, err = r.listSchedules(ctx, policy)
	return in, err
}

// listMetadata returns the metadata of all objects of a kind in a namespace.
func (r *reconciler) listMetadata(
	ctx context.Context, namespace string, kind schema.GroupVersionKind,
) ([]metav1.PartialObjectMetadata, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	if err := r.cached.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("list the metadata of every %s in %s: %w", kind.Kind, namespace, err)
	}
	return list.Items, nil
}

// listSchedules returns the schedules that have the policy's label, without their status.
func (r *reconciler) listSchedules(
	ctx context.Context, policy *varvev1.BackupPolicy,
) ([]*harvesterv1.ScheduleVMBackup, error) {
	var all []*harvesterv1.ScheduleVMBackup
	newList := func() *harvesterv1.ScheduleVMBackupList { return &harvesterv1.ScheduleVMBackupList{} }
	err := reconcile.ListPages(ctx, r.live, pageSize, newList, func(page *harvesterv1.ScheduleVMBackupList) error {
		for i := range page.Items {
			o := page.Items[i] // a copy, so that the statuses of the page do not stay in memory
			o.Status = harvesterv1.ScheduleVMBackupStatus{}
			all = append(all, &o)
		}
		return nil
	}, client.InNamespace(policy.Namespace), client.MatchingLabels{varvev1.LabelPolicy: string(policy.UID)})
	if err != nil {
		return nil, fmt.Errorf("list the schedules of the policy: %w", err)
	}
	return all, nil
}

// carryOut does what a decision says, and adds to it what the API server refuses, and which machines have a schedule
// now. What fails for one machine keeps no other one from its schedule.
func (r *reconciler) carryOut(ctx context.Context, d *decision) error {
	var failures []error
	finish := func(o *harvesterv1.ScheduleVMBackup, err error) {
		if child.IsFinal(err) {
			d.failed = append(d.failed, varvev1.FailedMachine{
				Name: o.Spec.VMBackupSpec.Source.Name, Reason: varvev1.ReasonRefused,
				Message: reconcile.CutText(err.Error(), messageBytes),
			})
			return
		}
		failures = append(failures, err)
	}
	for _, o := range d.remove {
		if err := r.children.Remove(ctx, o); err != nil {
			failures = append(failures, err)
		}
	}
	for _, u := range d.update {
		if err := r.cached.Patch(ctx, u.want, reconcile.MergeFrom(u.have)); err != nil {
			finish(u.have, fmt.Errorf("change ScheduleVMBackup %s: %w", u.have.Name, err))
		}
	}
	for _, o := range d.create {
		err := r.cached.Create(ctx, o)
		switch {
		case err == nil:
			d.scheduled++
		case apierrors.IsAlreadyExists(err): // the cache does not know it yet
			failures = append(failures, apierrors.NewConflict(
				schema.GroupResource{Group: scheduleKind.Group, Resource: "schedulevmbackups"}, o.Name, err))
		default:
			finish(o, fmt.Errorf("create ScheduleVMBackup %s: %w", o.Name, err))
		}
	}
	return errors.Join(failures...)
}
