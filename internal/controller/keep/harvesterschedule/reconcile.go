package harvesterschedule

import (
	"cmp"
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/definition"
	"github.com/varvebackup/varve/internal/location"
	"github.com/varvebackup/varve/internal/reconcile"
	"github.com/varvebackup/varve/internal/schedule"
)

const (
	// lookEvery is how often a backup that runs is looked at, of whose progress no event tells.
	lookEvery = 10 * time.Second
	// lookEveryBackup makes that rarer for a schedule with many backups, which are all read then.
	lookEveryBackup = 100 * time.Millisecond
)

// Reconcile does what is due for one schedule.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	result, err := r.advance(ctx, req.NamespacedName)
	if err != nil && !apierrors.IsConflict(err) {
		err = fmt.Errorf("ScheduleVMBackup %s: %w", req.NamespacedName, err)
	}
	return reconcile.RetryConflict(result, err)
}

func (r *reconciler) advance(ctx context.Context, key types.NamespacedName) (ctrl.Result, error) {
	o, err := reconcile.Find(ctx, r.live, key, &harvesterv1.ScheduleVMBackup{})
	if err != nil {
		return ctrl.Result{}, err
	}
	if o == nil || o.DeletionTimestamp != nil {
		r.alarms.wakeAt(key, time.Time{})
		r.strangers.forgetSchedule(key)
		measures.Forget(key)
		return ctrl.Result{}, nil
	}
	in, err := r.readInput(ctx, o)
	if err != nil {
		return ctrl.Result{}, err
	}
	p := makePlan(in)
	if err := r.carryOut(ctx, o, p); err != nil {
		return ctrl.Result{}, err
	}
	r.alarms.wakeAt(key, p.next)
	if p.waits || len(p.remove) > 0 {
		return ctrl.Result{RequeueAfter: max(lookEvery, time.Duration(len(in.backups))*lookEveryBackup)}, nil
	}
	return ctrl.Result{}, nil
}

// readInput reads what a plan follows from.
func (r *reconciler) readInput(ctx context.Context, o *harvesterv1.ScheduleVMBackup) (*input, error) {
	in := &input{schedule: o}
	if err := r.adoptBackups(ctx, o); err != nil {
		return nil, err
	}
	var list harvesterv1.VirtualMachineBackupList
	if err := r.live.List(ctx, &list, client.InNamespace(o.Namespace),
		client.MatchingLabels{harvesterv1.LabelSchedule: string(o.UID)}); err != nil {
		return nil, fmt.Errorf("list its backups: %w", err)
	}
	for i := range list.Items {
		if b := &list.Items[i]; schedule.IsScheduled(b) {
			in.backups = append(in.backups, b)
		}
	}
	schedule.SortByDueTime(in.backups)
	machine, err := reconcile.Find(ctx, r.live,
		types.NamespacedName{Namespace: o.Namespace, Name: o.Spec.VMBackupSpec.Source.Name}, definition.NewMachine())
	if err != nil {
		return nil, err
	}
	in.machine = machine != nil
	if o.Status.Suspended && !o.Spec.Suspend && o.Spec.VMBackupSpec.Type != harvesterv1.Snapshot {
		if in.location, err = r.checkLocation(ctx, o); err != nil {
			return nil, err
		}
	}
	in.now = r.Clock.Now()
	return in, nil
}

// checkLocation says what is wrong with the location that backups of a schedule go to, or "".
func (r *reconciler) checkLocation(ctx context.Context, o *harvesterv1.ScheduleVMBackup) (string, error) {
	var locations velerov1.BackupStorageLocationList
	if err := r.cached.List(ctx, &locations, client.InNamespace(r.Namespace)); err != nil {
		return "", fmt.Errorf("list the BackupStorageLocations of %s: %w", r.Namespace, err)
	}
	name := o.Annotations[harvesterv1.AnnotationLocation]
	switch l := location.Choose(locations.Items, name); {
	case l == nil && name != "":
		return fmt.Sprintf("BackupStorageLocation %.80q, which the annotation %s names, does not exist", name,
			harvesterv1.AnnotationLocation), nil
	case l == nil:
		return "no BackupStorageLocation is the default", nil
	case l.Status.Phase != velerov1.LocationAvailable:
		return fmt.Sprintf("BackupStorageLocation %s is not available (%s)", l.Name,
			cmp.Or(l.Status.Message, "it was not tried yet")), nil
	}
	return "", nil
}

// carryOut does what a plan says. Each step may be the last one before the process dies.
func (r *reconciler) carryOut(ctx context.Context, o *harvesterv1.ScheduleVMBackup, p *plan) error {
	if p.suspend {
		base := o.DeepCopy()
		o.Spec.Suspend = true
		if err := r.cached.Patch(ctx, o, reconcile.MergeFrom(base)); err != nil {
			return fmt.Errorf("suspend it: %w", err)
		}
	}
	if p.create != nil {
		refused, err := r.children.Make(ctx, o.UID, p.create)
		if err != nil {
			return err
		}
		if run := &p.status.Runs[0]; refused != "" {
			run.Result, run.Message, run.Backup = harvesterv1.RunFailed, reconcile.CutText(refused, messageBytes), ""
			p.status.Failure++
			p.ended = append(p.ended, *run)
		}
	}
	base := o.DeepCopy()
	o.Status = p.status
	if err := reconcile.WriteStatus(ctx, r.cached, base, o); err != nil {
		return err
	}
	measures.Record(base, o)
	r.emitEvents(o, p, base.Status.Suspended)
	for _, b := range p.remove { // but not one that somebody has pinned meanwhile
		if err := r.children.RemoveUnchanged(ctx, b); err != nil {
			return err
		}
	}
	return nil
}

// emitEvents makes events of what happened.
func (r *reconciler) emitEvents(o *harvesterv1.ScheduleVMBackup, p *plan, wasSuspended bool) {
	for _, run := range p.failed {
		r.events.Eventf(o, nil, corev1.EventTypeWarning, "BackupFailed", "BackUp", "the backup that was due at %s "+
			"failed, and another one is made at %s: %s",
			run.Time.UTC().Format(time.RFC3339), run.RetryTime.UTC().Format(time.RFC3339), run.Message)
	}
	for _, run := range p.ended {
		if run.Result == harvesterv1.RunFailed {
			r.events.Eventf(o, nil, corev1.EventTypeWarning, "BackupFailed", "BackUp", "the backup that was due "+
				"at %s failed: %s",
				run.Time.UTC().Format(time.RFC3339), run.Message)
		}
	}
	switch now := o.Status.Suspended; {
	case p.suspend:
		r.events.Eventf(o, nil, corev1.EventTypeWarning, "Suspended", "Suspend",
			"%d backups have failed one after the other: put right what status.runs says, and set "+
				"spec.suspend to false", o.Status.Failure)
	case now && !wasSuspended:
		r.events.Eventf(o, nil, corev1.EventTypeNormal, "Suspended", "Suspend", "no backups are made until "+
			"spec.suspend is false")
	case !now && wasSuspended:
		r.events.Eventf(o, nil, corev1.EventTypeNormal, "Resumed", "Resume", "backups are made again")
	}
}
