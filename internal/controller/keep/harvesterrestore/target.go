package harvesterrestore

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/definition"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/reconcile"
)

// maxOrigins is how many machines annotationRestoredFrom names.
const maxOrigins = 16

// runStrategyHalted and runStrategyAlways are run strategies of machines.
const (
	runStrategyHalted = "Halted"
	runStrategyAlways = "Always"
)

// gatherTarget reads what concerns the machine that a restore replaces.
func (r *reconciler) gatherTarget(ctx context.Context, in *input) error {
	o := in.restore
	if o.Spec.NewVM || in.machine == nil {
		return nil
	}
	var err error
	if in.instance, err = r.findInstance(ctx, o); err != nil {
		return err
	}
	var others harvesterv1.VirtualMachineRestoreList
	if err := r.live.List(ctx, &others, client.InNamespace(o.Namespace),
		client.MatchingLabelsSelector{Selector: layout.UnfinishedBackups()}); err != nil {
		return fmt.Errorf("list VirtualMachineRestores: %w", err)
	}
	in.others = others.Items
	for _, name := range claimsOf(in.machine, excludedByUser(o)...) { // what is left out is not to be deleted either
		key := types.NamespacedName{Namespace: o.Namespace, Name: name}
		claim, err := reconcile.Find(ctx, r.live, key, &corev1.PersistentVolumeClaim{})
		if err != nil {
			return err
		}
		if claim != nil {
			in.claims = append(in.claims, harvesterv1.ReplacedClaim{Name: name, UID: claim.UID})
		}
	}
	return nil
}

// checkTarget says why the machine cannot be replaced, or "".
func (in *input) checkTarget() (refused string) {
	o, vm := in.restore, in.machine
	name := o.Namespace + "/" + o.Spec.Target.Name
	if vm == nil {
		return fmt.Sprintf("can't replace nonexistent vm %s: name one that exists in spec.target.name, or set spec.newVM to true",
			o.Spec.Target.Name)
	}
	if vm.GetDeletionTimestamp() != nil {
		return fmt.Sprintf("VM %s is being deleted, and cannot be replaced", name)
	}
	if other := in.earlierRestore(); other != "" {
		return fmt.Sprintf("Please wait for the previous VM restore on the %s to be complete first: VirtualMachineRestore %s goes on",
			name, other)
	}
	confirmed, has := o.Annotations[harvesterv1.AnnotationReplaceUID]
	switch uid := string(vm.GetUID()); {
	case has && confirmed != uid:
		return fmt.Sprintf("VM %s has the UID %s, and the annotation %s names %.80q: it is left as it is",
			name, uid, harvesterv1.AnnotationReplaceUID, confirmed)
	case !has && !comesFrom(vm, in.backup):
		return fmt.Sprintf("VM %s (UID %s) is not the machine that was backed up (UID %s), and is left as it is: "+
			"to replace it all the same, create the restore with the annotation %s: %s",
			name, uid, ptr.Deref(in.backup.Status.SourceUID, "unknown"), harvesterv1.AnnotationReplaceUID, uid)
	}
	if why := describeRunning(vm, in.instance); why != "" && !stopsTarget(o) {
		return fmt.Sprintf("Please stop the VM %q before doing a restore: %s. With the annotation %s: \"true\", "+
			"the restore stops it when the disks are restored", o.Spec.Target.Name, why, harvesterv1.AnnotationStopTarget)
	}
	return ""
}

// earlierRestore returns the name of another restore of the machine that goes on, or "". Of two that were created at the
// same time, each one sees the other.
func (in *input) earlierRestore() string {
	o := in.restore
	for i := range in.others {
		other := &in.others[i]
		planned := other.Status.BackupUID != ""
		switch {
		case other.UID == o.UID || other.Spec.Target.Name != o.Spec.Target.Name || other.IsComplete() || other.HasFailed():
		case planned || !o.CreationTimestamp.Before(&other.CreationTimestamp):
			return other.Namespace + "/" + other.Name
		}
	}
	return ""
}

func stopsTarget(o *harvesterv1.VirtualMachineRestore) bool {
	return o.Annotations[harvesterv1.AnnotationStopTarget] == "true"
}

// comesFrom says whether a machine is the one that was backed up, or was made by restores of it.
func comesFrom(vm machine, b *harvesterv1.VirtualMachineBackup) bool {
	source := string(ptr.Deref(b.Status.SourceUID, ""))
	return source != "" && (string(vm.GetUID()) == source || slices.Contains(readOrigins(vm.GetAnnotations()), source))
}

// readOrigins returns the UIDs of the machines that a machine comes from.
func readOrigins(annotations map[string]string) []string {
	return strings.FieldsFunc(annotations[harvesterv1.AnnotationRestoredFrom], func(r rune) bool { return r == ',' })
}

// originsOf returns the UIDs of the machines that one restored from a backup comes from: the latest first.
func originsOf(b *harvesterv1.VirtualMachineBackup) []string {
	var all []string
	if uid := ptr.Deref(b.Status.SourceUID, ""); uid != "" {
		all = append(all, string(uid))
	}
	return append(all, readOrigins(b.Status.Source.ObjectMeta.Annotations)...)
}

// joinOrigins writes them as the annotation has them, each once.
func joinOrigins(uids []string) string {
	var all []string
	for _, uid := range uids {
		if !slices.Contains(all, uid) && len(all) < maxOrigins {
			all = append(all, uid)
		}
	}
	return strings.Join(all, ",")
}

// findInstance returns the instance of the target, or nil.
func (r *reconciler) findInstance(ctx context.Context, o *harvesterv1.VirtualMachineRestore) (*unstructured.Unstructured, error) {
	instance := &unstructured.Unstructured{}
	instance.SetGroupVersionKind(definition.MachineKind.GroupVersion().WithKind("VirtualMachineInstance"))
	return reconcile.Find(ctx, r.live, types.NamespacedName{Namespace: o.Namespace, Name: o.Spec.Target.Name}, instance)
}

// describeRunning says why a machine is not stopped, or "". One that starts, is paused or shuts down is not.
func describeRunning(vm machine, instance *unstructured.Unstructured) string {
	requests, _, _ := unstructured.NestedSlice(vm.Object, "status", "stateChangeRequests")
	strategy, err := definition.RunStrategy(vm)
	switch {
	case instance != nil:
		phase, _, _ := unstructured.NestedString(instance.Object, "status", "phase")
		return fmt.Sprintf("it has an instance (phase %q)", phase)
	case err != nil:
		return err.Error()
	case strategy == runStrategyAlways:
		return "its run strategy is Always"
	case len(requests) > 0:
		return "its start or stop is requested"
	}
	return ""
}

// claimsOf returns the names of the claims that the volumes of a machine or an instance name, each once, without those of
// some volumes.
func claimsOf(o *unstructured.Unstructured, without ...string) []string {
	if o == nil {
		return nil
	}
	var names []string
	for _, path := range [][]string{{"spec", "template", "spec", "volumes"}, {"spec", "volumes"}} {
		volumes, _, _ := unstructured.NestedSlice(o.Object, path...)
		for _, v := range volumes {
			volume, _ := v.(map[string]any)
			if name, _ := volume["name"].(string); slices.Contains(without, name) {
				continue
			}
			for _, field := range [][]string{
				{"persistentVolumeClaim", "claimName"},
				{"dataVolume", "name"},
				{"memoryDump", "claimName"},
				{"ephemeral", "persistentVolumeClaim", "claimName"},
			} {
				if name, _, _ := unstructured.NestedString(volume, field...); name != "" &&
					!slices.Contains(names, name) {
					names = append(names, name)
				}
			}
		}
	}
	return names
}
