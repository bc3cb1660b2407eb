package harvesterbackup

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	vmsnapshotv1 "github.com/varvebackup/varve/api/snapshot/v1beta1"
	"github.com/varvebackup/varve/internal/definition"
	"github.com/varvebackup/varve/internal/reconcile"
	"github.com/varvebackup/varve/internal/runepoch"
)

// exportTTL ends an export that nobody has deleted. It is longer than any disk is read.
const exportTTL = 7 * 24 * time.Hour

// isStopped says whether no guest runs, or is about to.
func isStopped(instance *kubevirtv1.VirtualMachineInstance) bool {
	return instance == nil || instance.Status.Phase.Final()
}

// machineOf returns a machine with its fields, or nil if it has no template or cannot be read. Its DataVolumes have claims
// as other volumes have them.
func machineOf(o *unstructured.Unstructured) *kubevirtv1.VirtualMachine {
	vm := &kubevirtv1.VirtualMachine{}
	o = o.DeepCopy()
	if err := definition.NameClaims(o, "spec", "template", "spec", "volumes"); err != nil {
		return nil
	}
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, vm)
	if err != nil || vm.Spec.Template == nil {
		return nil
	}
	return vm
}

// guestSpec returns the spec of the guest that runs, or, if none does, of the one that would be started; nil: neither is known.
func (in *input) guestSpec() *kubevirtv1.VirtualMachineInstanceSpec {
	switch {
	case in.stopped != nil:
		return &in.stopped.Spec.Template.Spec
	case isStopped(in.instance):
		return nil
	}
	return &in.instance.Spec
}

// confirmStopped looks once more whether the machine runs, and who can write to its disks. It comes after the claims were
// read: so a guest that starts later has a run that is not in what was read of them.
func (r *reconciler) confirmStopped(ctx context.Context, in *input) (err error) {
	key := types.NamespacedName{Namespace: in.backup.Namespace, Name: in.backup.Spec.Source.Name}
	if in.instance, err = r.findInstance(ctx, key); err != nil {
		return err
	}
	if !isStopped(in.instance) {
		in.stopped = nil
		return nil
	}
	in.pods, err = r.listPods(ctx, in.backup.Namespace)
	return err
}

func (r *reconciler) listPods(ctx context.Context, namespace string) ([]corev1.Pod, error) {
	var list corev1.PodList
	if err := r.live.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("list the pods of %s: %w", namespace, err)
	}
	return list.Items, nil
}

// checkStopped says what a stopped machine waits for before its disks can be read, or nil.
func (in *input) checkStopped(name string) *plan {
	var p plan
	switch why := definition.AboutToRun(in.stopped); {
	case why != "":
		p = waitFor("virtual machine %s to run: %s", name, why)
	case in.instance != nil && in.instance.DeletionTimestamp != nil:
		p = waitFor("the instance of virtual machine %s, which has ended, to go", name)
	case in.beside && in.instance == nil && hasInstance(in.machine):
		p = waitFor("KubeVirt to note that virtual machine %s has stopped", name)
	case in.beside && latestRun(in.machine, in.instance) == "":
		p = waitFor("KubeVirt to note that virtual machine %s does not run", name)
	case in.earlier != "":
		p = in.waitForEarlier()
	default:
		return nil
	}
	return &p
}

// recordStopped writes down what tells later that somebody could write to the disks.
func (in *input) recordStopped(status *harvesterv1.VirtualMachineBackupStatus) *plan {
	s := &harvesterv1.StoppedMachine{Generation: in.machine.GetGeneration()}
	for _, v := range status.VolumeBackups {
		claim := in.claims[v.PersistentVolumeClaim.ObjectMeta.Name]
		epoch, err := runepoch.Of(claim)
		if err != nil {
			p := refusePlan("%v", err)
			return &p
		}
		run := epoch.Run
		if in.beside {
			run = latestRun(in.machine, in.instance)
		}
		s.Claims = append(s.Claims, harvesterv1.StoppedClaim{Name: claim.Name, UID: claim.UID, Run: run})
	}
	for i := range in.pods {
		pod := &in.pods[i]
		claim := writtenClaim(pod, s.Claims)
		if claim == "" {
			continue
		}
		if !hasEnded(pod) {
			p := waitFor("pod %s to end, which can write to PersistentVolumeClaim %s", pod.Name, claim)
			return &p
		}
		s.EndedPods = append(s.EndedPods, pod.UID)
	}
	status.Stopped = s
	return nil
}

// writtenClaim returns the first of these claims that a pod can write to, or could when it ran, or "".
func writtenClaim(pod *corev1.Pod, claims []harvesterv1.StoppedClaim) string {
	if isExportPod(pod) {
		return ""
	}
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim == nil || v.PersistentVolumeClaim.ReadOnly {
			continue
		}
		name := v.PersistentVolumeClaim.ClaimName
		if slices.ContainsFunc(claims, func(c harvesterv1.StoppedClaim) bool { return c.Name == name }) {
			return name
		}
	}
	return ""
}

func hasEnded(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// failWritten fails the backup of a stopped machine if somebody could write to its disks since it was planned. That is
// written down first, and what is stored is deleted then: a look at a later time may find nothing any more.
func (r *reconciler) failWritten(ctx context.Context, b *harvesterv1.VirtualMachineBackup) (failed bool, err error) {
	if b.Status.Stopped == nil {
		return false, nil
	}
	why, err := r.findWriter(ctx, b)
	if err != nil || why == "" {
		return false, err
	}
	base, err := reconcile.Find(ctx, r.live, client.ObjectKeyFromObject(b), &harvesterv1.VirtualMachineBackup{})
	if err != nil || base == nil {
		return true, err
	}
	after := base.DeepCopy()
	for i := range after.Status.VolumeBackups {
		v := &after.Status.VolumeBackups[i]
		v.ReadyToUse, v.SnapshotID = ptr.To(false), ""
	}
	return true, r.endFailed(ctx, base, after, why)
}

// findWriter says who could write to the disks of a stopped machine since its backup was planned, or "". The claims come
// first: a guest that begins later has an instance that is found.
func (r *reconciler) findWriter(ctx context.Context, b *harvesterv1.VirtualMachineBackup) (string, error) {
	const another = ": create another backup"
	name := b.Spec.Source.Name
	started := fmt.Sprintf("virtual machine %s was started while its disks were read%s", name, another)
	if why, err := r.findOtherClaim(ctx, b, started); why != "" || err != nil {
		return why, err
	}
	key := types.NamespacedName{Namespace: b.Namespace, Name: name}
	vm, err := reconcile.Find(ctx, r.live, key, definition.NewMachine())
	switch {
	case err != nil:
		return "", err
	case vm == nil || vm.GetUID() != *b.Status.SourceUID:
		return fmt.Sprintf("virtual machine %s was deleted, or made again, while its disks were read%s", name,
			another), nil
	}
	instance, err := r.findInstance(ctx, key)
	switch {
	case err != nil:
		return "", err
	case !isStopped(instance):
		return started, nil
	case r.BesideKubeVirt && hasRunSince(b.Status.Stopped, latestRun(vm, instance)):
		return fmt.Sprintf("virtual machine %s was started while its disks were read, or its instance, which had "+
			"ended, was deleted%s", name, another), nil
	case vm.GetGeneration() != b.Status.Stopped.Generation:
		return fmt.Sprintf("virtual machine %s was changed while its disks were read, and may have been started%s",
			name, another), nil
	}
	// A pod that comes and goes between two looks is not found: hence at each of them.
	pods, err := r.listPods(ctx, b.Namespace)
	if err != nil {
		return "", err
	}
	for i := range pods {
		pod := &pods[i]
		claim := writtenClaim(pod, b.Status.Stopped.Claims)
		if claim != "" && !slices.Contains(b.Status.Stopped.EndedPods, pod.UID) {
			return fmt.Sprintf("pod %s could write to PersistentVolumeClaim %s while it was read%s", pod.Name, claim,
				another), nil
		}
	}
	return "", nil
}

// findOtherClaim says which claim of a stopped machine is another one by now, or returns started if a run that could write
// to one was noted on it since the backup was planned, or "".
func (r *reconciler) findOtherClaim(ctx context.Context, b *harvesterv1.VirtualMachineBackup, started string) (string, error) {
	for _, c := range b.Status.Stopped.Claims {
		key := types.NamespacedName{Namespace: b.Namespace, Name: c.Name}
		claim, err := reconcile.Find(ctx, r.live, key, &corev1.PersistentVolumeClaim{})
		switch {
		case err != nil:
			return "", err
		case claim == nil || claim.UID != c.UID:
			return fmt.Sprintf("PersistentVolumeClaim %s was deleted, or made again, while it was read: create another "+
				"backup", c.Name), nil
		case r.BesideKubeVirt:
			continue // there, the machine itself tells its runs
		}
		if epoch, err := runepoch.Of(claim); err != nil || epoch.Run != c.Run {
			return started, nil //nolint:nilerr // the record of the claim's runs is another one
		}
	}
	return "", nil
}

// machineExport returns the export that the disks are read from: of the machine, which is stopped, or of its snapshot.
func machineExport(b *harvesterv1.VirtualMachineBackup) *exportv1.VirtualMachineExport {
	source := corev1.TypedLocalObjectReference{
		APIGroup: ptr.To(definition.MachineKind.Group), Kind: definition.MachineKind.Kind, Name: b.Spec.Source.Name,
	}
	if b.Status.Untracked != nil {
		source = corev1.TypedLocalObjectReference{
			APIGroup: ptr.To(vmsnapshotv1.GroupVersion.Group), Kind: exportv1.SourceSnapshot, Name: b.Status.Group,
		}
	}
	return &exportv1.VirtualMachineExport{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: b.Namespace, Name: exportName(b.Status.Group),
			OwnerReferences: []metav1.OwnerReference{ownerReference(b)},
		},
		Spec: exportv1.VirtualMachineExportSpec{Source: source, TTLDuration: &metav1.Duration{Duration: exportTTL}},
	}
}
