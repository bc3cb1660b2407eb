package utilityvolume

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/controller/machine/holdpod"
)

const (
	pending  = kubevirtv1.VolumePending
	attached = kubevirtv1.VolumeAttachedToNode
	mounted  = kubevirtv1.VolumeMountedToPod
	removing = kubevirtv1.VolumeDetaching
	removed  = kubevirtv1.VolumeUnMountedFromPod
)

var (
	now    = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	backup = types.UID("0123abcd-0000")
	// volume is the utility volume of that backup.
	volume = "backup-0123abcd"
)

// guest returns a running instance, with or without the volume in its spec, and with the volume in this phase or,
// if phase is empty, without a status for it.
func guest(wants bool, phase kubevirtv1.VolumePhase) *kubevirtv1.VirtualMachineInstance {
	i := &kubevirtv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Name: "vm", Namespace: "ns", UID: "i"}}
	i.Status.Phase = kubevirtv1.PhaseRunning
	i.Status.NodeName = "n1"
	i.Status.VolumeStatus = []kubevirtv1.VolumeStatus{{Name: "root", Target: "vda"}}
	if wants {
		i.Spec.UtilityVolumes = []kubevirtv1.UtilityVolume{{
			Name: volume, PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"},
		}}
	}
	if phase != "" {
		i.Status.VolumeStatus = append(i.Status.VolumeStatus, kubevirtv1.VolumeStatus{
			Name: volume, Phase: phase, HotplugVolume: &kubevirtv1.HotplugVolumeStatus{AttachPodName: "pod", AttachPodUID: "p"},
		})
	}
	return i
}

func ended(i *kubevirtv1.VirtualMachineInstance, ago time.Duration) *kubevirtv1.VirtualMachineInstance {
	i.Status.Phase = kubevirtv1.PhaseFailed
	i.Status.PhaseTransitionTimestamps = []kubevirtv1.PhaseTransitionTimestamp{{Phase: kubevirtv1.PhaseFailed, PhaseTransitionTimestamp: metav1.NewTime(now.Add(-ago))}}
	return i
}

func starting(i *kubevirtv1.VirtualMachineInstance) *kubevirtv1.VirtualMachineInstance {
	i.Status.Phase = kubevirtv1.PhaseScheduled
	return i
}

func stopping(i *kubevirtv1.VirtualMachineInstance) *kubevirtv1.VirtualMachineInstance {
	i.DeletionTimestamp = &metav1.Time{Time: now}
	return i
}

func podIn(uid types.UID, phase corev1.PodPhase) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod", UID: uid}, Status: corev1.PodStatus{Phase: phase}}
	if phase == corev1.PodRunning {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	}
	return pod
}

func going(pod *corev1.Pod) *corev1.Pod {
	pod.DeletionTimestamp = &metav1.Time{Time: now}
	return pod
}

func unscheduled() *corev1.Pod {
	pod := podIn("p", corev1.PodPending)
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "no node"}}
	return pod
}

func claimIn(phase corev1.PersistentVolumeClaimPhase, mode corev1.PersistentVolumeMode) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "claim"},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeMode: ptr.To(mode)},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: phase},
	}
}

func backupIn(phase backupv1.BackupPhase, instance types.UID) []backupv1.VirtualMachineBackup {
	b := backupv1.VirtualMachineBackup{ObjectMeta: metav1.ObjectMeta{Name: "b", UID: backup}}
	b.Status.Phase = phase
	b.Status.InstanceUID = instance
	return []backupv1.VirtualMachineBackup{b}
}

// verdict is the part of a decision that a table checks. Phase is empty if the volume has no entry.
type verdict struct {
	Phase          kubevirtv1.VolumePhase
	Reason         string
	Create, Delete bool
	Requeue        time.Duration
}

func TestDecide(t *testing.T) {
	t.Parallel()
	bound := claimIn(corev1.ClaimBound, corev1.PersistentVolumeFilesystem)
	unbound := claimIn(corev1.ClaimPending, corev1.PersistentVolumeFilesystem)
	block := claimIn(corev1.ClaimBound, corev1.PersistentVolumeBlock)
	run, wait, dead := podIn("p", corev1.PodRunning), podIn("p", corev1.PodPending), podIn("p", corev1.PodFailed)
	for name, c := range map[string]struct {
		instance *kubevirtv1.VirtualMachineInstance
		claim    *corev1.PersistentVolumeClaim
		pod      *corev1.Pod
		backups  []backupv1.VirtualMachineBackup
		want     verdict
	}{
		"new":                             {guest(true, ""), bound, nil, nil, verdict{Phase: pending, Reason: ReasonPodPending, Create: true}},
		"new, claim missing":              {guest(true, ""), nil, nil, nil, verdict{Phase: pending, Reason: ReasonClaimNotFound}},
		"new, claim is a device":          {guest(true, ""), block, nil, nil, verdict{Phase: pending, Reason: ReasonClaimIsBlock}},
		"new, claim waits for a consumer": {guest(true, ""), unbound, nil, nil, verdict{Phase: pending, Reason: ReasonPodPending, Create: true}},
		"new, guest does not run yet":     {starting(guest(true, "")), bound, nil, nil, verdict{Phase: pending, Reason: ReasonGuestNotRunning}},
		"new, guest is being stopped":     {stopping(guest(true, "")), bound, nil, nil, verdict{}},
		"new, guest ended":                {ended(guest(true, ""), 0), bound, nil, nil, verdict{}},
		"pod was not made":                {guest(true, pending), bound, nil, nil, verdict{Phase: pending, Reason: ReasonPodPending, Create: true}},
		"pod starts":                      {guest(true, pending), bound, wait, nil, verdict{Phase: pending, Reason: ReasonPodPending}},
		"pod starts, claim unbound":       {guest(true, pending), unbound, wait, nil, verdict{Phase: pending, Reason: ReasonClaimNotBound}},
		"pod has no node":                 {guest(true, pending), bound, unscheduled(), nil, verdict{Phase: pending, Reason: ReasonPodPending}},
		"pod has no node, claim unbound":  {guest(true, pending), unbound, unscheduled(), nil, verdict{Phase: pending, Reason: ReasonClaimNotBound}},
		"pod runs":                        {guest(true, pending), bound, run, nil, verdict{Phase: attached}},
		"attached":                        {guest(true, attached), bound, run, nil, verdict{Phase: attached}},
		"mounted":                         {guest(true, mounted), bound, run, nil, verdict{Phase: mounted}},
		"mounted, claim object gone":      {guest(true, mounted), nil, run, nil, verdict{Phase: mounted}},
		"mounted, guest is being stopped": {stopping(guest(true, mounted)), bound, run, nil, verdict{Phase: mounted}},
		"mounted, pod gone":               {guest(true, mounted), bound, nil, nil, verdict{Phase: removing, Reason: ReasonPodLost}},
		"mounted, pod failed":             {guest(true, mounted), bound, dead, nil, verdict{Phase: removing, Reason: ReasonPodLost}},
		"mounted, pod going":              {guest(true, mounted), bound, going(podIn("p", corev1.PodRunning)), nil, verdict{Phase: removing, Reason: ReasonPodLost}},
		"mounted, another pod runs":       {guest(true, mounted), bound, podIn("q", corev1.PodRunning), nil, verdict{Phase: removing, Reason: ReasonPodLost}},
		"mounted, container starts again": {guest(true, mounted), bound, wait, nil, verdict{Phase: mounted}},
		"mounted, stopping, pod gone":     {stopping(guest(true, mounted)), bound, nil, nil, verdict{Phase: removing, Reason: ReasonPodLost}},
		"attached, pod gone":              {guest(true, attached), bound, nil, nil, verdict{Phase: removing, Reason: ReasonPodLost}},
		"lost, not unmounted yet":         {guest(true, removing), bound, nil, nil, verdict{Phase: removing}},
		"lost, unmounted, pod gone":       {guest(true, removed), bound, nil, nil, verdict{}},
		"no longer wanted, never there":   {guest(false, pending), nil, wait, nil, verdict{Phase: removed, Delete: true}},
		"no longer wanted, no pod":        {guest(false, pending), nil, nil, nil, verdict{}},
		"no longer wanted, attached":      {guest(false, attached), nil, run, nil, verdict{Phase: attached}},
		"no longer wanted, mounted":       {guest(false, mounted), nil, run, nil, verdict{Phase: mounted}},
		"no longer wanted, detaching":     {guest(false, removing), nil, run, nil, verdict{Phase: removing}},
		"unmounted":                       {guest(false, removed), nil, run, nil, verdict{Phase: removed, Delete: true}},
		"unmounted, pod going":            {guest(false, removed), nil, going(podIn("p", corev1.PodRunning)), nil, verdict{Phase: removed}},
		"unmounted, pod gone":             {guest(false, removed), nil, nil, nil, verdict{}},
		"wanted again while it leaves":    {guest(true, removed), bound, run, nil, verdict{Phase: removed, Delete: true}},
		"a pod without an entry":          {guest(false, ""), nil, run, nil, verdict{Delete: true}},
		"guest ended":                     {ended(guest(true, mounted), 0), bound, run, nil, verdict{Phase: removed, Delete: true}},
		"guest ended, pod gone":           {ended(guest(true, removed), 0), bound, nil, nil, verdict{}},
		"guest ended, backup copies":      {ended(guest(true, mounted), 0), bound, run, backupIn(backupv1.BackupCopying, "i"), verdict{Phase: mounted, Reason: ReasonHeldByBackup, Requeue: 2 * time.Minute}},
		"guest ended, backup prunes":      {ended(guest(true, mounted), time.Minute), bound, run, backupIn(backupv1.BackupPruning, "i"), verdict{Phase: mounted, Reason: ReasonHeldByBackup, Requeue: time.Minute}},
		"guest ended, backup hangs":       {ended(guest(true, mounted), 2*time.Minute), bound, run, backupIn(backupv1.BackupPruning, "i"), verdict{Phase: removed, Delete: true}},
		"guest ended, backup pruned":      {ended(guest(true, mounted), 0), bound, run, backupIn(backupv1.BackupPruned, "i"), verdict{Phase: removed, Delete: true}},
		"guest ended, backup of another":  {ended(guest(true, mounted), 0), bound, run, backupIn(backupv1.BackupPruning, "j"), verdict{Phase: removed, Delete: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := input{Now: now, Instance: c.instance, Backups: c.backups, Pods: map[string]*corev1.Pod{}, Claims: map[string]*corev1.PersistentVolumeClaim{}}
			if c.claim != nil {
				in.Claims["claim"] = c.claim
			}
			if c.pod != nil {
				in.Pods[volume] = c.pod
			}
			before := c.instance.DeepCopy()
			d := decide(in)
			got := verdict{Create: len(d.Create) > 0, Delete: len(d.Delete) > 0, Requeue: d.RequeueAfter}
			for _, s := range d.Status {
				if s.Name == volume {
					got.Phase, got.Reason = s.Phase, s.Reason
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
			if len(d.Status) == 0 || d.Status[0].Name != "root" || d.Status[0].Target != "vda" {
				t.Errorf("the disk's status was lost: %+v", d.Status)
			}
			if diff := cmp.Diff(before, c.instance); diff != "" {
				t.Errorf("the input was modified: %s", diff)
			}
		})
	}
}

func TestAttached_namesItsPod(t *testing.T) {
	t.Parallel()
	bound := claimIn(corev1.ClaimBound, corev1.PersistentVolumeFilesystem)
	d := decide(input{
		Now: now, Instance: guest(true, pending), Claims: map[string]*corev1.PersistentVolumeClaim{"claim": bound},
		Pods: map[string]*corev1.Pod{volume: podIn("q", corev1.PodRunning)},
	})
	if h := d.Status[1].HotplugVolume; h.AttachPodName != "pod" || h.AttachPodUID != "q" {
		t.Errorf("%+v", h)
	}
}

func TestAttachmentPod_hasNoPrivileges(t *testing.T) {
	t.Parallel()
	i := guest(true, "")
	pod := attachmentPod(i, i.Spec.UtilityVolumes[0], "host-1", holdpod.Image{Name: "varve:1"})
	s, c := pod.Spec, pod.Spec.Containers[0].SecurityContext
	if s.HostNetwork || s.HostPID || s.HostIPC || ptr.Deref(s.AutomountServiceAccountToken, true) || !ptr.Deref(s.SecurityContext.RunAsNonRoot, false) {
		t.Errorf("%+v", s)
	}
	if ptr.Deref(c.Privileged, true) || ptr.Deref(c.AllowPrivilegeEscalation, true) || len(c.Capabilities.Add) > 0 || c.Capabilities.Drop[0] != "ALL" {
		t.Errorf("%+v", c)
	}
	if s.NodeName != "" || s.NodeSelector[corev1.LabelHostname] != "host-1" {
		t.Errorf("node: %q, selector %v", s.NodeName, s.NodeSelector)
	}
	if s.Volumes[0].PersistentVolumeClaim.ClaimName != "claim" || pod.Labels["varvebackup.io/attachment"] != volume || !metav1.IsControlledBy(pod, i) {
		t.Errorf("%+v", pod)
	}
}
