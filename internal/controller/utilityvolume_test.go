//go:build controlplane

package controller

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/controller/machine/holdpod"
	"github.com/varvebackup/varve/internal/controller/machine/utilityvolume"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
)

// want sets the instance's utility volumes: one on each claim, with the claim's name.
func (w *world) want(vmi *kubevirtv1.VirtualMachineInstance, claims ...string) {
	w.Helper()
	controlplane.Update(w.T, w.varve, vmi, false, func(i *kubevirtv1.VirtualMachineInstance) {
		i.Spec.UtilityVolumes = nil
		for _, c := range claims {
			i.Spec.UtilityVolumes = append(i.Spec.UtilityVolumes, kubevirtv1.UtilityVolume{
				Name: c, PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: c},
			})
		}
	})
}

// volume waits for a utility volume to be in a phase with a reason.
func (w *world) volume(name string, phase kubevirtv1.VolumePhase, reason string) *kubevirtv1.VirtualMachineInstance {
	w.Helper()
	return w.vmi(func(i *kubevirtv1.VirtualMachineInstance) error {
		for _, s := range i.Status.VolumeStatus {
			if s.Name == name && s.Phase == phase && s.Reason == reason {
				return nil
			}
		}
		return fmt.Errorf("%s is not %s %s: %+v", name, phase, reason, i.Status.VolumeStatus)
	})
}

func (w *world) noVolume(name string) {
	w.Helper()
	w.vmi(func(i *kubevirtv1.VirtualMachineInstance) error {
		for _, s := range i.Status.VolumeStatus {
			if s.Name == name {
				return fmt.Errorf("%+v", s)
			}
		}
		return nil
	})
}

// setVolume plays the handler.
func (w *world) setVolume(vmi *kubevirtv1.VirtualMachineInstance, name string, phase kubevirtv1.VolumePhase) {
	w.Helper()
	controlplane.Update(w.T, w.node, vmi, true, func(i *kubevirtv1.VirtualMachineInstance) {
		for n := range i.Status.VolumeStatus {
			if i.Status.VolumeStatus[n].Name == name {
				i.Status.VolumeStatus[n].Phase = phase
			}
		}
	})
}

func (w *world) attachment(vmi *kubevirtv1.VirtualMachineInstance, name string) *corev1.Pod {
	w.Helper()
	return wait(w, &corev1.Pod{ObjectMeta: w.meta(layout.AttachmentPod(vmi.Name, vmi.UID, name))}, exists)
}

func utilityVolume(w *world) {
	w.claim("root", "1Gi", corev1.PersistentVolumeFilesystem)
	w.claim("target", "1Gi", corev1.PersistentVolumeFilesystem)
	w.machine(kubevirtv1.RunStrategyAlways, nil)
	vmi, _ := w.boot()
	w.want(vmi, "target")
	w.volume("target", kubevirtv1.VolumePending, utilityvolume.ReasonPodPending)
	pod := w.attachment(vmi, "target")
	if pod.Spec.NodeSelector[corev1.LabelHostname] != "host-1" {
		w.Errorf("node selector %v", pod.Spec.NodeSelector)
	}
	w.run(pod)
	vmi = w.volume("target", kubevirtv1.VolumeAttachedToNode, "")
	if s := vmi.Status.VolumeStatus[0]; s.Target != "" || s.HotplugVolume.AttachPodUID != pod.UID || s.PersistentVolumeClaimInfo.ClaimName != "target" {
		w.Errorf("%+v", s)
	}
	w.setVolume(vmi, "target", kubevirtv1.VolumeMountedToPod)
	w.restart()

	// The pod is drained: the volume is unmounted before another pod is made.
	w.remove(pod)
	w.volume("target", kubevirtv1.VolumeDetaching, utilityvolume.ReasonPodLost)
	w.setVolume(vmi, "target", kubevirtv1.VolumeUnMountedFromPod)
	pod = w.attachment(vmi, "target")
	w.run(pod)
	w.volume("target", kubevirtv1.VolumeAttachedToNode, "")
	w.setVolume(vmi, "target", kubevirtv1.VolumeMountedToPod)

	w.want(vmi)
	w.volume("target", kubevirtv1.VolumeMountedToPod, "")
	w.setVolume(vmi, "target", kubevirtv1.VolumeUnMountedFromPod)
	w.sweep(pod)
	w.noVolume("target")
}

func utilityVolumeWaits(w *world) {
	w.claim("root", "1Gi", corev1.PersistentVolumeFilesystem)
	w.claim("device", "1Gi", corev1.PersistentVolumeBlock)
	const unreadable = `{"holders":{}}`
	w.claimWith(map[string]string{layout.AnnotationRunEpoch: unreadable}, "unreadable", "1Gi", corev1.PersistentVolumeFilesystem)
	w.machine(kubevirtv1.RunStrategyAlways, nil)
	vmi, _ := w.boot()
	w.want(vmi, "later", "device", "unreadable")
	w.volume("unreadable", kubevirtv1.VolumePending, utilityvolume.ReasonClaimRecord)
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: w.meta("unreadable")}
	if err := w.kubelet.Get(w.Context(), client.ObjectKeyFromObject(claim), claim); err != nil || claim.Annotations[layout.AnnotationRunEpoch] != unreadable {
		w.Errorf("the record of who writes to the claim is gone: %v, %v", err, claim.Annotations)
	}
	w.volume("later", kubevirtv1.VolumePending, utilityvolume.ReasonClaimNotFound)
	w.volume("device", kubevirtv1.VolumePending, utilityvolume.ReasonClaimIsBlock)
	w.claim("later", "1Gi", corev1.PersistentVolumeFilesystem)
	w.run(w.attachment(vmi, "later"))
	w.volume("later", kubevirtv1.VolumeAttachedToNode, "")
	w.want(vmi, "later")
	w.noVolume("device")
}

// utilityVolumeOfDeadGuest: a backup's volume outlives its guest until the partial files are gone. Nothing else
// outlives it.
func utilityVolumeOfDeadGuest(w *world) {
	w.claim("root", "1Gi", corev1.PersistentVolumeFilesystem)
	w.claim("target", "1Gi", corev1.PersistentVolumeFilesystem)
	w.machine(kubevirtv1.RunStrategyManual, nil)
	w.vm(printable(kubevirtv1.VirtualMachineStopped))
	w.ask(kubevirtv1.StateChangeRequest{Action: kubevirtv1.StartRequest})
	vmi, launcher := w.boot()

	// The backup must be in Pruning and its volume in the spec before the backup's own controller, which also runs
	// here, sees either. It would end one without the other.
	w.stop()
	b := w.backup()
	name := layout.BackupUtilityVolume(b.UID)
	controlplane.Update(w.T, w.varve, b, true, func(b *backupv1.VirtualMachineBackup) {
		b.Status.Phase, b.Status.SourceName, b.Status.InstanceUID = backupv1.BackupPruning, "vm", vmi.UID
		b.Status.PhaseDeadline = nil
	})
	controlplane.Update(w.T, w.varve, vmi, false, func(i *kubevirtv1.VirtualMachineInstance) {
		i.Spec.UtilityVolumes = []kubevirtv1.UtilityVolume{{Name: name, PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "target"}}}
	})
	w.start()
	pod := w.attachment(vmi, name)
	w.run(pod)
	w.volume(name, kubevirtv1.VolumeAttachedToNode, "")
	w.setVolume(vmi, name, kubevirtv1.VolumeMountedToPod)

	w.end(launcher, corev1.PodFailed, `{"end":"CRASHED","message":"QEMU died"}`)
	w.sweep(launcher)
	w.volume(name, kubevirtv1.VolumeMountedToPod, utilityvolume.ReasonHeldByBackup)
	w.restart()
	if err := w.kubelet.Get(w.Context(), client.ObjectKeyFromObject(pod), pod); err != nil || pod.DeletionTimestamp != nil {
		w.Fatalf("the attachment pod did not wait for the backup: %v, %v", err, pod.DeletionTimestamp)
	}
	// The instance waits for its attachment pod, and its successor waits for the instance.
	if vmi := w.vmi(exists); vmi.DeletionTimestamp == nil || vmi.Status.Phase != kubevirtv1.PhaseFailed {
		w.Errorf("%+v", vmi.ObjectMeta)
	}
	controlplane.Update(w.T, w.varve, b, true, func(b *backupv1.VirtualMachineBackup) { b.Status.Phase = backupv1.BackupPruned })
	w.sweep(pod)
	w.gone(&kubevirtv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "vm"}})
}

// utilityVolumeHijacked: somebody else's pods with our labels, our owner or our name are not attachment pods.
func utilityVolumeHijacked(w *world) {
	w.claim("root", "1Gi", corev1.PersistentVolumeFilesystem)
	w.claim("target", "1Gi", corev1.PersistentVolumeFilesystem)
	w.machine(kubevirtv1.RunStrategyAlways, nil)
	vmi, launcher := w.boot()
	forged := func(name string) *corev1.Pod {
		pod := gen.Pod(w.meta(name))
		pod.Labels = map[string]string{layout.LabelApp: holdpod.App, layout.LabelCreatedBy: string(vmi.UID), layout.LabelVM: "vm", layout.LabelAttachment: "target"}
		pod.Spec.Volumes = []corev1.Volume{{Name: "pv", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}}}
		w.create(w.varve, pod) // admission refuses it from others
		w.run(pod)
		return pod
	}
	labelled, named := forged("mine"), forged(layout.AttachmentPod("vm", vmi.UID, "target"))
	w.want(vmi, "target")
	w.volume("target", kubevirtv1.VolumePending, utilityvolume.ReasonPodForeign)
	w.remove(named)
	controlplane.Eventually(w.T, func() error { // the name is retried with growing pauses
		pod := &corev1.Pod{ObjectMeta: w.meta(named.Name)}
		if err := w.kubelet.Get(w.Context(), client.ObjectKeyFromObject(pod), pod); err != nil || pod.UID == named.UID {
			return fmt.Errorf("no attachment pod yet: %w", err)
		}
		w.run(pod)
		return nil
	})
	vmi = w.volume("target", kubevirtv1.VolumeAttachedToNode, "")
	if uid := vmi.Status.VolumeStatus[0].HotplugVolume.AttachPodUID; uid == labelled.UID || uid == named.UID {
		w.Errorf("a forged pod was adopted: %s", uid)
	}
	// Nor does a forged pod keep the instance from ending.
	w.want(vmi)
	w.setVolume(vmi, "target", kubevirtv1.VolumeUnMountedFromPod)
	w.sweep(&corev1.Pod{ObjectMeta: w.meta(named.Name)})
	w.noVolume("target")
	if err := w.kubelet.Delete(w.Context(), vmi); err != nil {
		w.Fatal(err)
	}
	w.halt(vmi, launcher)
	w.vmi(other(vmi.UID))
}

// launcherPodHijacked: a pod that has the launcher pod's name and labels but that the instance does not control is
// not started as a guest.
func launcherPodHijacked(w *world) {
	vmi := gen.VirtualMachineInstance(w.meta("vm"), gen.Guest(gen.Disk("root", "root")))
	w.create(w.user, vmi) // it waits for its claim
	pod := gen.Pod(w.meta(layout.LauncherPod("vm", vmi.UID)))
	pod.Labels = map[string]string{layout.LabelApp: "virt-launcher", layout.LabelCreatedBy: string(vmi.UID), layout.LabelVM: "vm"}
	w.create(w.varve, pod) // admission refuses it from others
	w.run(pod)
	w.claim("root", "1Gi", corev1.PersistentVolumeFilesystem)
	w.vmi(func(i *kubevirtv1.VirtualMachineInstance) error {
		for _, c := range i.Status.Conditions {
			if c.Type == kubevirtv1.ConditionSynchronized && c.Reason == "FailedCreate" && i.Status.Phase == kubevirtv1.PhasePending {
				return nil
			}
		}
		return fmt.Errorf("%+v", i.Status)
	})
}

// drainWaitsForBackup: while a volume is attached, or a backup holds the instance, none of its pods is evicted.
func drainWaitsForBackup(w *world) {
	w.claim("root", "1Gi", corev1.PersistentVolumeFilesystem)
	w.claim("target", "1Gi", corev1.PersistentVolumeFilesystem)
	w.machine(kubevirtv1.RunStrategyAlways, nil)
	vmi, launcher := w.boot()
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: w.meta(layout.BackupBudget("vm", vmi.UID))}
	if err := w.kubelet.Get(w.Context(), client.ObjectKeyFromObject(budget), budget); err == nil {
		w.Error("a budget without a backup")
	}
	w.want(vmi, "target")
	attachment := w.attachment(vmi, "target")
	wait(w, budget, exists)
	selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
	if err != nil {
		w.Fatal(err)
	}
	for _, pod := range []*corev1.Pod{launcher, attachment} {
		if !selector.Matches(labels.Set(pod.Labels)) {
			w.Errorf("the budget does not cover pod %s", pod.Name)
		}
	}
	if !metav1.IsControlledBy(budget, vmi) {
		w.Errorf("the budget would stay behind: %+v", budget.OwnerReferences)
	}
	// The API server asks the budget. Nobody has counted pods for it yet, and that allows no eviction either.
	w.run(attachment)
	if err := w.evict(attachment); !apierrors.IsTooManyRequests(err) {
		w.Errorf("the attachment pod was evicted: %v", err)
	}
	w.restart()
	controlplane.Update(w.T, w.varve, vmi, true, func(i *kubevirtv1.VirtualMachineInstance) {
		i.Status.ChangedBlockTracking = &kubevirtv1.ChangedBlockTrackingStatus{
			State: kubevirtv1.ChangedBlockTrackingEnabled, BackupStatus: &kubevirtv1.InstanceBackupStatus{BackupName: "gone"},
		}
	})
	w.want(vmi) // the lock belongs to a backup that does not exist, so it is released
	w.gone(budget)
}

// evict asks for an eviction once. A client repeats a refused one ten times, ten seconds apart.
func (w *world) evict(pod *corev1.Pod) error {
	clientset, err := kubernetes.NewForConfig(cluster.ConfigFor(controlplane.Admin))
	if err != nil {
		w.Fatal(err)
	}
	eviction := &policyv1.Eviction{ObjectMeta: w.meta(pod.Name)}
	return clientset.CoreV1().RESTClient().Post().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).
		SubResource("eviction").Body(eviction).MaxRetries(0).Do(w.Context()).Error()
}
