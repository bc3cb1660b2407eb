package harvesterrestore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/controller/child"
	"github.com/varvebackup/varve/internal/definition"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/reconcile"
)

// machine is a virtual machine.
type machine = *unstructured.Unstructured

// annotationStrategy is on a machine that a restore has made and not started yet: the run strategy that it had when it
// was backed up.
const annotationStrategy = layout.Prefix + "restored-run-strategy"

// startDeadline is how long the restored machine may take to be ready.
const startDeadline = 30 * time.Minute

func restoreID(o *harvesterv1.VirtualMachineRestore) string { return o.Name + "-" + string(o.UID) }

// isMade says whether a machine was made, or replaced, by the restore.
func isMade(vm machine, o *harvesterv1.VirtualMachineRestore) bool {
	return vm != nil && vm.GetAnnotations()[annotationRestoreUID] == restoreID(o) &&
		(o.Status.Replaced == nil || o.Status.Replaced.UID == vm.GetUID())
}

// restoreMachine makes the machine, starts it, and ends the restore when it is ready.
func (r *reconciler) restoreMachine(ctx context.Context, o *harvesterv1.VirtualMachineRestore) (ctrl.Result, error) {
	vm, result, err := r.obtainMachine(ctx, o)
	if vm == nil || err != nil {
		return result, err
	}
	base, now := o.DeepCopy(), r.Clock.Now()
	if o.Status.TargetUID == nil {
		o.Status.TargetUID, o.Status.Progress = ptr.To(vm.GetUID()), machineMade
		if o.Status.Replaced != nil {
			o.Status.Replaced.ReplacedTime = ptr.To(metav1.NewTime(now))
		}
		setProgressing(&o.Status, now, messageMachine, "")
		if err := r.writeStatus(ctx, base, o); err != nil {
			return ctrl.Result{}, err
		}
	}
	if err := r.giveToMachine(ctx, o, vm); err != nil {
		return ctrl.Result{}, err
	}
	base = o.DeepCopy()
	if _, pending := vm.GetAnnotations()[annotationStrategy]; pending || o.Spec.HaltAfterRestore {
		waiting, refused, err := r.completeReferences(ctx, o, vm)
		if waiting != "" || refused != "" || err != nil {
			return r.endOrWait(ctx, base, o, waiting, refused, err)
		}
	}
	return r.startMachine(ctx, base, o, vm)
}

// obtainMachine returns the machine that the restore has made or put in the place of another one, now or before; nil: not
// yet, or never.
func (r *reconciler) obtainMachine(ctx context.Context, o *harvesterv1.VirtualMachineRestore) (machine, ctrl.Result, error) {
	vm, err := r.findMachine(ctx, o)
	if err != nil {
		return nil, ctrl.Result{}, err
	}
	base := o.DeepCopy()
	switch {
	case vm == nil && o.Status.TargetUID != nil:
		return nil, ctrl.Result{}, r.endFailed(ctx, base, o,
			fmt.Sprintf("virtual machine %s was deleted before it was ready", o.Spec.Target.Name))
	case o.Status.Replaced != nil && !isMade(vm, o):
		return r.replaceMachine(ctx, o, vm)
	case vm == nil:
		made, waiting, refused, err := r.makeMachine(ctx, o)
		if made != nil && err == nil {
			return made, ctrl.Result{}, nil
		}
		result, err := r.endOrWait(ctx, o.DeepCopy(), o, waiting, refused, err)
		return nil, result, err
	case !isMade(vm, o):
		return nil, ctrl.Result{}, r.endFailed(ctx, base, o,
			fmt.Sprintf("virtual machine %s was made by somebody else meanwhile, and is left as it is: restore under another name", o.Spec.Target.Name))
	}
	return vm, ctrl.Result{}, nil
}

// endOrWait ends a restore that is refused, or says what it waits for.
func (r *reconciler) endOrWait(ctx context.Context, base, o *harvesterv1.VirtualMachineRestore, waiting, refused string, err error) (ctrl.Result, error) {
	switch {
	case err != nil:
		return ctrl.Result{}, err
	case refused != "":
		return ctrl.Result{}, r.endFailed(ctx, base, o, refused)
	}
	setProgressing(&o.Status, r.Clock.Now(), messageMachine, waiting)
	return ctrl.Result{RequeueAfter: lookEvery}, r.writeStatus(ctx, base, o)
}

// findBackup returns the backup that is restored, or why it is not there any more.
func (r *reconciler) findBackup(ctx context.Context, o *harvesterv1.VirtualMachineRestore) (b *harvesterv1.VirtualMachineBackup, refused string, err error) {
	key := types.NamespacedName{Namespace: o.Spec.VirtualMachineBackupNamespace, Name: o.Spec.VirtualMachineBackupName}
	b, err = reconcile.Find(ctx, r.live, key, &harvesterv1.VirtualMachineBackup{})
	if err == nil && (b == nil || b.UID != o.Status.BackupUID || b.Status.Source == nil) {
		refused = fmt.Sprintf("VMBackup %s was deleted meanwhile, and with it the definition of the machine", key)
	}
	return b, refused, err
}

// prepareDefinition returns the backup, when what the machine refers to is known.
func (r *reconciler) prepareDefinition(ctx context.Context, o *harvesterv1.VirtualMachineRestore) (b *harvesterv1.VirtualMachineBackup, waiting, refused string, err error) {
	if b, refused, err = r.findBackup(ctx, o); refused != "" || err != nil {
		return nil, "", refused, err
	}
	waiting, refused, err = r.decideReferences(ctx, o, b)
	return b, waiting, refused, err
}

// defineMachine returns the machine that is to be made, or put in the place of the one that exists, from what the backup
// has of it.
func defineMachine(o *harvesterv1.VirtualMachineRestore, b *harvesterv1.VirtualMachineBackup) (vm machine, refused string) {
	claims := map[string]string{}
	for i := range o.Status.VolumeRestores {
		claims[o.Status.VolumeRestores[i].VolumeName] = o.Status.VolumeRestores[i].PersistentVolumeClaim.ObjectMeta.Name
	}
	vm, strategy, err := definition.Restored(b.Status.Source, definition.Target{
		Namespace: o.Namespace, Name: o.Spec.Target.Name, Claims: claims,
		Without: volumeNames(o.Status.ExcludedVolumes), KeepAddresses: o.Spec.KeepMacAddress || !o.Spec.NewVM,
		Secrets: otherNames(o, kindSecret), ConfigMaps: otherNames(o, kindConfigMap),
		Annotations: map[string]string{
			annotationRestore: o.Name, annotationRestoreUID: restoreID(o),
			harvesterv1.AnnotationRestoredFrom: joinOrigins(originsOf(b)),
		},
	})
	if err != nil {
		return nil, err.Error()
	}
	if !o.Spec.HaltAfterRestore {
		annotations := vm.GetAnnotations()
		annotations[annotationStrategy] = strategy
		vm.SetAnnotations(annotations)
	}
	return vm, ""
}

// makeMachine makes the machine.
func (r *reconciler) makeMachine(ctx context.Context, o *harvesterv1.VirtualMachineRestore) (vm machine, waiting, refused string, err error) {
	b, waiting, refused, err := r.prepareDefinition(ctx, o)
	if waiting != "" || refused != "" || err != nil {
		return nil, waiting, refused, err
	}
	if vm, refused = defineMachine(o, b); refused != "" {
		return nil, "", refused, nil
	}
	err = r.cached.Create(ctx, vm)
	switch {
	case apierrors.IsAlreadyExists(err):
		return nil, "", "", apierrors.NewConflict(machineResource, vm.GetName(), err) // look whose it is
	case child.IsFinal(err):
		return nil, "", fmt.Sprintf("create virtual machine %s: %v", vm.GetName(), err), nil
	case err != nil:
		return nil, "", "", fmt.Errorf("create virtual machine %s: %w", vm.GetName(), err)
	}
	return vm, "", "", nil
}

func volumeNames(volumes []harvesterv1.ExcludedVolume) []string {
	var all []string
	for _, v := range volumes {
		all = append(all, v.Name)
	}
	return all
}

func ownerReference(vm machine) metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: definition.MachineKind.GroupVersion().String(), Kind: definition.MachineKind.Kind,
		Name: vm.GetName(), UID: vm.GetUID(),
	}
}

// giveToMachine makes the machine the owner of the restore, as Harvester does: the restore goes with it.
func (r *reconciler) giveToMachine(ctx context.Context, o *harvesterv1.VirtualMachineRestore, vm machine) error {
	for _, owner := range o.OwnerReferences {
		if owner.UID == vm.GetUID() {
			return nil
		}
	}
	base := o.DeepCopy()
	o.OwnerReferences = append(o.OwnerReferences, ownerReference(vm))
	if err := r.cached.Patch(ctx, o, reconcile.MergeFrom(base)); err != nil {
		return fmt.Errorf("give the restore to its machine: %w", err)
	}
	return nil
}

// startMachine gives the machine its run strategy back, and ends the restore when it is ready. A machine that was halted, or
// that is to stay stopped, is not started.
func (r *reconciler) startMachine(ctx context.Context, base, o *harvesterv1.VirtualMachineRestore, vm machine) (ctrl.Result, error) {
	now := r.Clock.Now()
	if strategy, pending := vm.GetAnnotations()[annotationStrategy]; pending {
		if err := r.setStrategy(ctx, o, vm, strategy); err != nil {
			if now.After(madeTime(o, vm).Add(startDeadline)) {
				return ctrl.Result{}, r.endFailed(ctx, base, o, fmt.Sprintf(
					"virtual machine %s is restored, and could not be started within %s: %v", vm.GetName(), startDeadline, err))
			}
			setProgressing(&o.Status, now, messageMachine, err.Error())
			return ctrl.Result{}, errors.Join(err, r.writeStatus(ctx, base, o))
		}
	}
	strategy, _, _ := unstructured.NestedString(vm.Object, "spec", "runStrategy")
	ready, _, _ := unstructured.NestedBool(vm.Object, "status", "ready")
	switch {
	case ready || strategy == runStrategyHalted || o.Spec.HaltAfterRestore:
		return ctrl.Result{}, r.finishMachine(ctx, base, o, vm)
	case now.After(madeTime(o, vm).Add(startDeadline)):
		return ctrl.Result{}, r.endFailed(ctx, base, o,
			fmt.Sprintf("virtual machine %s is restored, and was not ready within %s of being started: %s",
				vm.GetName(), startDeadline, describeMachine(vm)))
	}
	setProgressing(&o.Status, now, messageMachine, describeMachine(vm))
	return ctrl.Result{RequeueAfter: lookEvery}, r.writeStatus(ctx, base, o)
}

// madeTime is when the machine was made or replaced.
func madeTime(o *harvesterv1.VirtualMachineRestore, vm machine) time.Time {
	if t := o.Status.Replaced; t != nil && t.ReplacedTime != nil {
		return t.ReplacedTime.Time
	}
	return vm.GetCreationTimestamp().Time
}

// finishMachine ends the restore of a machine that is there. The claims that it had before it was replaced are needed no
// more.
func (r *reconciler) finishMachine(ctx context.Context, base, o *harvesterv1.VirtualMachineRestore, vm machine) error {
	if missing := missingClaim(o, vm); missing != "" {
		return r.endFailed(ctx, base, o,
			fmt.Sprintf("virtual machine %s was changed by somebody else, and does not have the "+
				"restored PersistentVolumeClaim %s: its old disks stay", vm.GetName(), missing))
	}
	if o.Status.Replaced != nil {
		instance, err := r.findInstance(ctx, o)
		if err != nil {
			return err
		}
		if missing := missingClaim(o, instance); missing != "" {
			return r.endFailed(ctx, base, o,
				fmt.Sprintf("virtual machine %s is replaced, and its instance does not have the restored "+
					"PersistentVolumeClaim %s: restart it", vm.GetName(), missing))
		}
		if err := r.deleteReplacedClaims(ctx, base, o); err != nil {
			return err
		}
		base = o.DeepCopy()
	}
	setComplete(&o.Status, r.Clock.Now())
	return r.writeStatus(ctx, base, o)
}

// setStrategy gives the machine the run strategy that it had. One that starts on request gets the strategy first, and then
// the request: KubeVirt takes a request to start a machine that is halted for one to have it run always. The annotation
// goes when the request is there, so that it is made again after a restart, or if the machine has changed meanwhile.
func (r *reconciler) setStrategy(
	ctx context.Context, o *harvesterv1.VirtualMachineRestore, vm machine, strategy string,
) error {
	instance, err := r.findInstance(ctx, o)
	if err != nil {
		return err
	}
	changed := vm.DeepCopy()
	if err := unstructured.SetNestedField(changed.Object, strategy, "spec", "runStrategy"); err != nil {
		return err
	}
	asked := strategy != "Manual" || isAskedToRun(vm, instance)
	if asked {
		annotations := changed.GetAnnotations()
		delete(annotations, annotationStrategy)
		changed.SetAnnotations(annotations)
	}
	if err := r.cached.Patch(ctx, changed, reconcile.MergeFrom(vm)); err != nil {
		return fmt.Errorf("start virtual machine %s: %w", vm.GetName(), err)
	}
	changed.DeepCopyInto(vm)
	if asked {
		return nil
	}
	if err := r.StartMachine(ctx, vm); err != nil {
		return fmt.Errorf("ask for the start of virtual machine %s: %w", vm.GetName(), err)
	}
	return nil
}

// isAskedToRun says whether a machine has an instance, or a request for one. Its status may be that of an instance that
// is gone.
func isAskedToRun(vm machine, instance *unstructured.Unstructured) bool {
	requests, _, _ := unstructured.NestedSlice(vm.Object, "status", "stateChangeRequests")
	isStart := func(request any) bool {
		fields, _ := request.(map[string]any)
		return fields["action"] == "Start"
	}
	return instance != nil && instance.GetDeletionTimestamp() == nil || slices.ContainsFunc(requests, isStart)
}

// describeMachine says what a machine that is not ready says of itself.
func describeMachine(vm machine) string {
	status, _, _ := unstructured.NestedString(vm.Object, "status", "printableStatus")
	texts := []string{"virtual machine " + vm.GetName() + " is " + cmp.Or(status, "not seen by its controller yet")}
	conditions, _, _ := unstructured.NestedSlice(vm.Object, "status", "conditions")
	for _, c := range conditions {
		fields, _ := c.(map[string]any)
		message, _ := fields["message"].(string)
		if kind := fields["type"]; message != "" && (kind == "Failure" && fields["status"] == "True" ||
			kind == "Ready" && fields["status"] == "False") {
			texts = append(texts, message)
		}
	}
	return strings.Join(texts, ": ")
}
