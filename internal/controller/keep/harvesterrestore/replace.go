package harvesterrestore

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/controller/child"
	"github.com/varvebackup/varve/internal/definition"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/reconcile"
)

// annotationHalted is on a machine that a restore halted to replace it: `<UID of the restore>/<run strategy before>`.
const annotationHalted = layout.Prefix + "halted-for-restore"

// stopDeadline is how long a restore waits for the machine to be stopped, after its disks are restored.
const stopDeadline = time.Hour

// replaceMachine gives the machine the spec of the backup, with the restored claims, once it is stopped. replaced is nil
// until then.
func (r *reconciler) replaceMachine(ctx context.Context, o *harvesterv1.VirtualMachineRestore, vm machine) (replaced machine, result ctrl.Result, err error) {
	name, target := o.Spec.Target.Name, *o.Status.Replaced
	base, now := o.DeepCopy(), r.Clock.Now()
	if why := checkReplaceable(o, vm); why != "" {
		return nil, result, r.endFailed(ctx, base, o, why)
	}
	// All that takes long comes before the machine is stopped.
	b, waiting, refused, err := r.prepareDefinition(ctx, o)
	if refused != "" {
		return nil, result, r.endUnreplaced(ctx, base, o, vm, refused)
	}
	if waiting != "" || err != nil {
		result, err = r.endOrWait(ctx, base, o, waiting, "", err)
		return nil, result, err
	}
	base = o.DeepCopy()
	if target.WaitingSince == nil {
		target.WaitingSince = ptr.To(metav1.NewTime(now))
		o.Status.Replaced.WaitingSince = target.WaitingSince
		if err := r.writeStatus(ctx, base, o); err != nil {
			return nil, result, err
		}
		base = o.DeepCopy()
	}
	deadline := target.WaitingSince.Add(stopDeadline)
	waiting, err = r.haltMachine(ctx, o, vm, now.Before(deadline))
	if err != nil {
		return nil, result, err
	}
	switch {
	case waiting != "" && now.After(deadline):
		why := fmt.Sprintf("virtual machine %s was not stopped within %s (%s), and is left as it is", name,
			stopDeadline, waiting)
		return nil, result, r.endUnreplaced(ctx, base, o, vm, why)
	case waiting != "":
		waiting = fmt.Sprintf("virtual machine %s to be stopped, until %s: %s", name,
			deadline.UTC().Format(time.RFC3339), waiting)
		result, err = r.endOrWait(ctx, base, o, waiting, "", nil)
		return nil, result, err
	}
	wanted, refused := defineMachine(o, b)
	if refused == "" {
		// The update has the version of this machine: what it names now is what it had to the end.
		o.Status.Replaced.Claims = replacedClaims(o, vm)
		if err := r.writeStatus(ctx, base, o); err != nil {
			return nil, result, err
		}
		base = o.DeepCopy()
		replaced = putBack(vm, wanted)
		err = r.cached.Update(ctx, replaced) // with the resource version at which the machine was found to be stopped
		if err == nil {
			return replaced, result, nil
		}
		refused = fmt.Sprintf("replace virtual machine %s: %v", name, err)
	}
	if err != nil && !child.IsFinal(err) {
		return nil, result, fmt.Errorf("replace virtual machine %s: %w", name, err)
	}
	return nil, result, r.endUnreplaced(ctx, base, o, vm, refused)
}

// checkReplaceable says why the machine is not, or not any more, the one that the plan names, or "".
func checkReplaceable(o *harvesterv1.VirtualMachineRestore, vm machine) string {
	name, target := o.Spec.Target.Name, o.Status.Replaced
	switch {
	case o.Status.TargetUID != nil:
		return fmt.Sprintf("virtual machine %s was replaced, and changed by somebody else before it was ready; its old claims stay", name)
	case vm == nil:
		return fmt.Sprintf("virtual machine %s was deleted before it was replaced", name)
	case vm.GetUID() != target.UID:
		return fmt.Sprintf("virtual machine %s was made again before it was replaced (UID %s, not %s), and is left as it is",
			name, vm.GetUID(), target.UID)
	case vm.GetDeletionTimestamp() != nil:
		return fmt.Sprintf("virtual machine %s is deleted before it was replaced", name)
	}
	return ""
}

// putBack returns the machine as it was backed up. Labels and annotations that it got since stay.
func putBack(vm, wanted machine) machine {
	replaced := vm.DeepCopy()
	replaced.Object["spec"] = wanted.Object["spec"]
	merge := func(have, want map[string]string) map[string]string {
		all := map[string]string{}
		maps.Copy(all, have)
		maps.Copy(all, want)
		return all
	}
	replaced.SetLabels(merge(vm.GetLabels(), wanted.GetLabels()))
	have := vm.GetAnnotations()
	delete(have, annotationHalted)
	delete(have, annotationStrategy)
	annotations := merge(have, wanted.GetAnnotations())
	annotations[harvesterv1.AnnotationRestoredFrom] = joinOrigins(append(readOrigins(wanted.GetAnnotations()),
		readOrigins(have)...))
	replaced.SetAnnotations(annotations)
	return replaced
}

// haltMachine halts a machine that is stopped, so that nobody starts it by another strategy, or that the restore is to
// stop. It does so once, and leaves alone a machine that somebody starts again. waiting says why the machine cannot be
// replaced yet, or is "".
//
// The controller of machines starts none after it has written into the status that it saw the strategy Halted. So an
// instance that is not there then cannot come, unless the machine is changed, and then the replacement conflicts.
func (r *reconciler) haltMachine(ctx context.Context, o *harvesterv1.VirtualMachineRestore, vm machine, inTime bool) (waiting string, err error) {
	instance, err := r.findInstance(ctx, o)
	if err != nil {
		return "", err
	}
	strategy, err := definition.RunStrategy(vm)
	if err != nil {
		return "", err
	}
	waiting = describeRunning(vm, instance)
	_, halted := haltedBy(o, vm)
	seen, _, _ := unstructured.NestedString(vm.Object, "status", "runStrategy")
	ready, _, _ := unstructured.NestedBool(vm.Object, "status", "ready")
	switch {
	case strategy != runStrategyHalted && !inTime:
		return cmp.Or(waiting, "it is not halted"), nil
	case strategy != runStrategyHalted && (waiting == "" || stopsTarget(o) && !halted):
		return "it is being halted", r.setHalted(ctx, o, vm, strategy)
	case waiting != "" && strategy != runStrategyHalted && halted:
		return waiting + ": somebody started it again: stop it", nil
	case waiting != "" && strategy != runStrategyHalted:
		return fmt.Sprintf("%s: stop it, or give the restore the annotation %s: \"true\"", waiting,
			harvesterv1.AnnotationStopTarget), nil
	case waiting != "":
		return waiting, nil
	case ready || seen != "" && seen != runStrategyHalted:
		return "its controller has not seen yet that it is halted", nil
	}
	return "", nil
}

// haltedBy returns the run strategy of a machine before the restore halted it.
func haltedBy(o *harvesterv1.VirtualMachineRestore, vm machine) (strategy string, halted bool) {
	return strings.CutPrefix(vm.GetAnnotations()[annotationHalted], string(o.UID)+"/")
}

func (r *reconciler) setHalted(ctx context.Context, o *harvesterv1.VirtualMachineRestore, vm machine, before string) error {
	changed := vm.DeepCopy()
	annotations := changed.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[annotationHalted] = string(o.UID) + "/" + before
	changed.SetAnnotations(annotations)
	if err := definition.SetRunStrategy(changed, runStrategyHalted); err != nil {
		return err
	}
	if err := r.cached.Patch(ctx, changed, reconcile.MergeFrom(vm)); err != nil {
		return fmt.Errorf("stop virtual machine %s: %w", vm.GetName(), err)
	}
	return nil
}

// releaseMachine gives a machine that the restore halted and does not replace the run strategy that it had.
func (r *reconciler) releaseMachine(ctx context.Context, o *harvesterv1.VirtualMachineRestore, vm machine) error {
	if vm == nil {
		return nil
	}
	before, halted := haltedBy(o, vm)
	if !halted {
		return nil
	}
	changed := vm.DeepCopy()
	annotations := changed.GetAnnotations()
	delete(annotations, annotationHalted)
	changed.SetAnnotations(annotations)
	now, err := definition.RunStrategy(vm)
	if err != nil {
		return err
	}
	if now == runStrategyHalted {
		if err := definition.SetRunStrategy(changed, before); err != nil {
			return err
		}
	}
	if err := r.cached.Patch(ctx, changed, reconcile.MergeFrom(vm)); err != nil {
		return fmt.Errorf("give virtual machine %s its run strategy %s back: %w", vm.GetName(), before, err)
	}
	return nil
}

// endUnreplaced ends a restore whose machine stays what it was.
func (r *reconciler) endUnreplaced(ctx context.Context, base, o *harvesterv1.VirtualMachineRestore, vm machine, why string) error {
	if err := r.releaseMachine(ctx, o, vm); err != nil {
		return err
	}
	return r.endFailed(ctx, base, o, why)
}
