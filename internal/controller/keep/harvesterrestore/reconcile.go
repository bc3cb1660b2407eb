package harvesterrestore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/controller/child"
	"github.com/varvebackup/varve/internal/definition"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/reconcile"
)

const (
	// lookEvery is how often DataDownloads and the machine are looked at, of whose progress no event tells.
	lookEvery = 3 * time.Second
	// downloadTimeout bounds each wait of a DataDownload, as the command line has it.
	downloadTimeout = 10 * time.Minute
)

// Reconcile takes one restore one step further.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	result, err := r.advance(ctx, req.NamespacedName)
	if err != nil && !apierrors.IsConflict(err) {
		err = fmt.Errorf("VirtualMachineRestore %s: %w", req.NamespacedName, err)
	}
	return reconcile.RetryConflict(result, err)
}

func (r *reconciler) advance(ctx context.Context, key types.NamespacedName) (ctrl.Result, error) {
	o, err := reconcile.Find(ctx, r.live, key, &harvesterv1.VirtualMachineRestore{})
	if err != nil || o == nil {
		return ctrl.Result{}, err
	}
	switch {
	case o.DeletionTimestamp != nil:
		return r.deleteUnneeded(ctx, o)
	case o.IsComplete() || o.HasFailed():
		return r.finishEnded(ctx, o)
	case controllerutil.AddFinalizer(o, Finalizer):
		base := o.DeepCopy()
		controllerutil.RemoveFinalizer(base, Finalizer)
		return ctrl.Result{}, r.cached.Patch(ctx, o, reconcile.MergeFrom(base)) // the write comes back as an event
	case o.Status.BackupUID == "":
		return r.writePlan(ctx, o)
	case !areRestored(o):
		return r.restoreDisks(ctx, o)
	}
	return r.restoreMachine(ctx, o)
}

// writePlan writes down what is to be made, before anything is.
func (r *reconciler) writePlan(ctx context.Context, o *harvesterv1.VirtualMachineRestore) (ctrl.Result, error) {
	in := &input{restore: o}
	var err error
	key := types.NamespacedName{Namespace: o.Spec.VirtualMachineBackupNamespace, Name: o.Spec.VirtualMachineBackupName}
	if in.backup, err = reconcile.Find(ctx, r.live, key, &harvesterv1.VirtualMachineBackup{}); err != nil {
		return ctrl.Result{}, err
	}
	if in.machine, err = r.findMachine(ctx, o); err != nil {
		return ctrl.Result{}, err
	}
	if err := errors.Join(r.gatherPlaces(ctx, in), r.gatherTarget(ctx, in), r.gatherSnapshots(ctx, in)); err != nil {
		return ctrl.Result{}, err
	}
	base := o.DeepCopy()
	if refused := makePlan(in, &o.Status); refused != "" {
		return ctrl.Result{}, r.endFailed(ctx, base, o, refused)
	}
	setProgressing(&o.Status, r.Clock.Now(), messageInitializing, "")
	if err := r.writeStatus(ctx, base, o); err != nil {
		return ctrl.Result{}, err
	}
	return r.restoreDisks(ctx, o)
}

// gatherPlaces reads where volumes can be made.
func (r *reconciler) gatherPlaces(ctx context.Context, in *input) error {
	var nodes corev1.NodeList
	var classes storagev1.StorageClassList
	if err := errors.Join(r.cached.List(ctx, &nodes), r.cached.List(ctx, &classes)); err != nil {
		return fmt.Errorf("list nodes and StorageClasses: %w", err)
	}
	in.nodes, in.waiting, in.provisioners = nodes.Items, map[string]bool{}, map[string]string{}
	for i := range classes.Items {
		in.provisioners[classes.Items[i].Name] = classes.Items[i].Provisioner
		mode := ptr.Deref(classes.Items[i].VolumeBindingMode, storagev1.VolumeBindingImmediate)
		in.waiting[classes.Items[i].Name] = mode == storagev1.VolumeBindingWaitForFirstConsumer
	}
	return nil
}

func (r *reconciler) findMachine(ctx context.Context, o *harvesterv1.VirtualMachineRestore) (vm machine, err error) {
	return reconcile.Find(ctx, r.live, types.NamespacedName{Namespace: o.Namespace, Name: o.Spec.Target.Name},
		definition.NewMachine())
}

// areRestored says whether every disk is restored.
func areRestored(o *harvesterv1.VirtualMachineRestore) bool {
	for _, v := range o.Status.VolumeRestores {
		if v.Progress < 100 {
			return false
		}
	}
	return true
}

// restoreDisks makes the claims and the DataDownloads, and looks how far they are.
func (r *reconciler) restoreDisks(ctx context.Context, o *harvesterv1.VirtualMachineRestore) (ctrl.Result, error) {
	if o.Status.Location == nil {
		return r.bindClaims(ctx, o)
	}
	all, err := r.readDownloads(ctx, o)
	if err != nil {
		return ctrl.Result{}, err
	}
	base := o.DeepCopy()
	if !child.AreMade(o) {
		refused, err := r.makeChildren(ctx, o, all)
		switch {
		case err != nil:
			return ctrl.Result{}, err
		case refused != "":
			if ended, err := all.Cancel(ctx, r.cached); err != nil || !ended {
				return ctrl.Result{RequeueAfter: lookEvery}, err
			}
			return ctrl.Result{}, r.endFailed(ctx, base, o, refused)
		}
		base = o.DeepCopy()
	}
	out, now := observeDownloads(&o.Status, all), r.Clock.Now()
	switch {
	case out.restored:
		setProgressing(&o.Status, now, messageMachine, "")
		if err := r.writeStatus(ctx, base, o); err != nil {
			return ctrl.Result{}, err
		}
		return r.restoreMachine(ctx, o)
	case out.failed != "":
		ended, err := all.Cancel(ctx, r.cached)
		if err != nil {
			return ctrl.Result{}, err
		}
		if ended {
			return ctrl.Result{}, r.endFailed(ctx, base, o, out.failed)
		}
		setProgressing(&o.Status, now, messageClaims, "the other disks to end, because of "+out.failed)
	default:
		setProgressing(&o.Status, now, messageClaims, out.waiting)
	}
	return ctrl.Result{RequeueAfter: lookEvery}, r.writeStatus(ctx, base, o)
}

// readDownloads returns the DataDownloads of the disks that are there.
func (r *reconciler) readDownloads(ctx context.Context, o *harvesterv1.VirtualMachineRestore) (downloads, error) {
	all := downloads{}
	for i := range o.Status.VolumeRestores {
		v := &o.Status.VolumeRestores[i]
		key := types.NamespacedName{Namespace: o.Status.Location.Namespace, Name: v.DataDownload}
		if err := all.Read(ctx, r.children, o.UID, v.VolumeName, key, &velerov2.DataDownload{}); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// endFailed ends the restore, and says why in an event.
func (r *reconciler) endFailed(ctx context.Context, base, o *harvesterv1.VirtualMachineRestore, why string) error {
	setFailed(&o.Status, r.Clock.Now(), why)
	if err := r.writeStatus(ctx, base, o); err != nil {
		return err
	}
	r.events.Eventf(o, nil, corev1.EventTypeWarning, "Failed", "Restore", "%s", why)
	return nil
}

func (r *reconciler) writeStatus(ctx context.Context, base, o *harvesterv1.VirtualMachineRestore) error {
	return reconcile.WriteStatus(ctx, r.cached, base, o)
}

// finishEnded deletes the DataDownloads of a restore that is complete, and lets go of one that has ended in memory.
func (r *reconciler) finishEnded(ctx context.Context, o *harvesterv1.VirtualMachineRestore) (ctrl.Result, error) {
	if o.Labels[layout.LabelEnded] != "" {
		return ctrl.Result{}, nil
	}
	if o.IsComplete() {
		if _, err := r.deleteDownloads(ctx, o); err != nil {
			return ctrl.Result{}, err
		}
	} else if o.Status.DefinitionDownload != "" { // it has Secrets in clear
		if _, err := r.stored.Delete(ctx, definitionRequest(o)); err != nil {
			return ctrl.Result{}, err
		}
	}
	return ctrl.Result{}, child.MarkEnded(ctx, r.cached, o)
}

// deleteUnneeded deletes what a restore has made and nobody needs: DataDownloads, and the claims unless the machine is there.
func (r *reconciler) deleteUnneeded(ctx context.Context, o *harvesterv1.VirtualMachineRestore) (ctrl.Result, error) {
	if !controllerutil.ContainsFinalizer(o, Finalizer) {
		return ctrl.Result{}, nil
	}
	if left, err := r.deleteDownloads(ctx, o); err != nil || left {
		return ctrl.Result{RequeueAfter: lookEvery}, err
	}
	vm, err := r.findMachine(ctx, o)
	if err != nil {
		return ctrl.Result{}, err
	}
	if !isMade(vm, o) && o.Status.TargetUID == nil {
		if err := errors.Join(r.releaseMachine(ctx, o, vm), r.deleteClaims(ctx, o, vm),
			r.deleteReferences(ctx, o)); err != nil {
			return ctrl.Result{}, err
		}
	}
	base := o.DeepCopy()
	controllerutil.RemoveFinalizer(o, Finalizer)
	return ctrl.Result{}, client.IgnoreNotFound(r.cached.Patch(ctx, o, reconcile.MergeFrom(base)))
}

// deleteDownloads deletes the DataDownloads, and says whether one of them is still there. One that goes on is canceled
// by that.
func (r *reconciler) deleteDownloads(ctx context.Context, o *harvesterv1.VirtualMachineRestore) (left bool, err error) {
	if o.Status.Location == nil {
		return false, nil
	}
	all, err := r.readDownloads(ctx, o)
	if err != nil {
		return false, err
	}
	for _, d := range all {
		if err := r.children.Remove(ctx, d); err != nil {
			return false, err
		}
	}
	if o.Status.DefinitionDownload != "" {
		if left, err = r.stored.Delete(ctx, definitionRequest(o)); err != nil {
			return false, err
		}
	}
	return left || len(all) > 0, nil
}

// deleteClaims deletes the claims of a restore that has made no machine. Those that a machine has all the same stay.
func (r *reconciler) deleteClaims(ctx context.Context, o *harvesterv1.VirtualMachineRestore, vm machine) error {
	used := claimsOf(vm)
	users, err := r.findClaimUsers(ctx, o.Namespace)
	if err != nil {
		return err
	}
	for i := range o.Status.VolumeRestores {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
			Namespace: o.Namespace, Name: o.Status.VolumeRestores[i].PersistentVolumeClaim.ObjectMeta.Name,
		}}
		if slices.Contains(used, claim.Name) || users[claim.Name] != "" {
			continue
		}
		if err := r.children.Delete(ctx, o.UID, claim); err != nil {
			return err
		}
	}
	return nil
}
