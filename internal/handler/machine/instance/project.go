package instance

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/condition"
	"github.com/varvebackup/varve/internal/handler/launcherclient"
	"github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/tracking"
)

// Reasons of the conditions of an instance that the handler writes.
const (
	// ReasonGuestNotRunning: the launcher answers, but the guest does not run.
	ReasonGuestNotRunning = "GuestNotRunning"
	// ReasonGuestPaused: the guest's CPUs are stopped.
	ReasonGuestPaused = "GuestPaused"
	// ReasonGuestStopping: the guest was asked to shut down.
	ReasonGuestStopping = "GuestStopping"
	// ReasonLauncherSilent: the launcher does not answer the handler.
	ReasonLauncherSilent = "LauncherNotResponding"
	// ReasonReviewFailed: the trackers' checkpoints could not be validated after the start, so that tracking is not Enabled yet.
	ReasonReviewFailed = "CheckpointReviewFailed"
	// ReasonStartFailed: the guest could not be started; the message says what to fix.
	ReasonStartFailed = "StartFailed"
	// ReasonClaimNotFound: a disk's claim does not exist.
	ReasonClaimNotFound = "ClaimNotFound"
	// ReasonMountFailed: a utility volume could not be mounted into, or unmounted from, the launcher.
	ReasonMountFailed = "UtilityVolumeMountFailed"
	// ReasonBackupInProgress: a stop waits for a backup.
	ReasonBackupInProgress = "BackupInProgress"
	// ReasonDiskSize: a disk's size is not a multiple of 512 bytes; grow it.
	ReasonDiskSize = "DiskSizeNotTrackable"
	// ReasonStopping: the stop does not wait, or no longer waits.
	ReasonStopping = "Stopping"
)

// silence is how long a launcher may be silent before the guest no longer counts as ready.
const silence = 30 * time.Second

// problem is why the node could not make the guest match its spec.
type problem struct{ Reason, Message string }

// view is what a status is computed from.
type view struct {
	Now      time.Time
	Instance *kubevirtv1.VirtualMachineInstance
	Launcher launcherclient.Snapshot
	Decision decision
	// Problem is what went wrong in this pass, or nil.
	Problem *problem
	// Reviewed says that the trackers' checkpoints were validated since the guest started, or that a backup holds
	// the instance and validates them itself.
	Reviewed bool
}

// projectStatus returns the instance's status with the handler's fields updated. It does not change the instance.
func projectStatus(v view) *kubevirtv1.VirtualMachineInstanceStatus {
	s := v.Instance.Status.DeepCopy()
	state := v.Launcher.State
	if state == nil {
		setSynchronized(v, s)
		return s
	}
	if state.GetEnd() == launcherpb.State_MIGRATED {
		return s // the guest goes on, and the other node's handler reports it
	}
	runs := launcherclient.GuestRuns(state)
	if runs && s.Phase == kubevirtv1.PhaseScheduled {
		s.Phase = kubevirtv1.PhaseRunning
		s.PhaseTransitionTimestamps = append(s.PhaseTransitionTimestamps, kubevirtv1.PhaseTransitionTimestamp{
			Phase: s.Phase, PhaseTransitionTimestamp: metav1.NewTime(v.Now).Rfc3339Copy(),
		})
	}
	setConditions(v, s)
	setSynchronized(v, s)
	s.FSFreezeStatus = ""
	if state.GetFrozen() {
		s.FSFreezeStatus = "frozen"
	}
	if runs {
		s.Interfaces = interfaceStatus(state.GetInterfaces())
		s.GuestOSInfo = guestOS(state.GetGuestOs())
		s.VolumeStatus = volumeStatus(v.Instance, state.GetDisks())
		setNotTracked(v, s)
	}
	s.ChangedBlockTracking = trackingStatus(v)
	// An older version wrote it, and the controller waits until that is gone.
	if c := condition.Find(s.Conditions, kubevirtv1.ConditionLiveMigratable); c != nil &&
		c.Reason == "LiveMigrationNotSupported" {
		s.Conditions = condition.Remove(s.Conditions, kubevirtv1.ConditionLiveMigratable)
	}
	return s
}

func setCondition(s *kubevirtv1.VirtualMachineInstanceStatus, now time.Time, t kubevirtv1.ConditionType, status corev1.ConditionStatus, reason, message string) {
	s.Conditions = condition.Set(s.Conditions, kubevirtv1.Condition{Type: t, Status: status, Reason: reason, Message: message}, now)
}

func setConditions(v view, s *kubevirtv1.VirtualMachineInstanceStatus) {
	state := v.Launcher.State
	ready, reason, message := corev1.ConditionFalse, ReasonGuestNotRunning, state.GetMessage()
	switch state.GetPhase() {
	case launcherpb.State_RUNNING:
		ready, reason, message = corev1.ConditionTrue, "", ""
	case launcherpb.State_PAUSED:
		reason = ReasonGuestPaused
	case launcherpb.State_SHUTTING_DOWN:
		reason = ReasonGuestStopping
	case launcherpb.State_IDLE, launcherpb.State_STARTING, launcherpb.State_ENDED:
	}
	if v.Launcher.Err != nil && state.GetPhase() != launcherpb.State_ENDED && v.Now.Sub(v.Launcher.Since) > silence {
		ready, reason, message = corev1.ConditionFalse, ReasonLauncherSilent, v.Launcher.Err.Error()
	}
	setCondition(s, v.Now, kubevirtv1.ConditionReady, ready, reason, message)
	if state.GetPhase() == launcherpb.State_PAUSED {
		setCondition(s, v.Now, kubevirtv1.ConditionPaused, corev1.ConditionTrue, ReasonGuestPaused, state.GetMessage())
	} else {
		s.Conditions = condition.Remove(s.Conditions, kubevirtv1.ConditionPaused)
	}
	if state.GetAgentConnected() {
		setCondition(s, v.Now, kubevirtv1.ConditionAgentConnected, corev1.ConditionTrue, "", "")
	} else {
		s.Conditions = condition.Remove(s.Conditions, kubevirtv1.ConditionAgentConnected)
	}
	switch {
	case v.Decision.Delayed != "":
		setCondition(s, v.Now, kubevirtv1.ConditionStopDelayed, corev1.ConditionTrue,
			cmp.Or(v.Decision.DelayReason, ReasonBackupInProgress), v.Decision.Delayed)
	case condition.True(s.Conditions, kubevirtv1.ConditionStopDelayed):
		// Keep it as False: the controller counts the guest's grace period from here.
		setCondition(s, v.Now, kubevirtv1.ConditionStopDelayed, corev1.ConditionFalse, ReasonStopping, "the guest is being stopped")
	}
}

// setNotTracked reports the disks that were to be tracked and are not.
func setNotTracked(v view, s *kubevirtv1.VirtualMachineInstanceStatus) {
	var reasons []string
	for _, d := range v.Launcher.State.GetDisks() {
		if d.GetNotTracked() != "" {
			reasons = append(reasons, d.GetNotTracked())
		}
	}
	if len(reasons) == 0 {
		s.Conditions = condition.Remove(s.Conditions, kubevirtv1.ConditionDiskNotTracked)
		return
	}
	setCondition(s, v.Now, kubevirtv1.ConditionDiskNotTracked, corev1.ConditionTrue, ReasonDiskSize, strings.Join(reasons, "; "))
}

// setSynchronized sets the condition that says whether the node could do what the object asks.
func setSynchronized(v view, s *kubevirtv1.VirtualMachineInstanceStatus) {
	state := v.Launcher.State
	ended := state.GetPhase() == launcherpb.State_ENDED
	switch {
	case ended && state.GetEnd() == launcherpb.State_START_FAILED:
		setCondition(s, v.Now, kubevirtv1.ConditionSynchronized, corev1.ConditionFalse, ReasonStartFailed, state.GetMessage())
	case ended:
		// A launcher that exits after its guest is expected to be silent.
	case v.Launcher.Err != nil:
		setCondition(s, v.Now, kubevirtv1.ConditionSynchronized, corev1.ConditionFalse, ReasonLauncherSilent,
			fmt.Sprintf("the launcher does not answer; the handler keeps trying: %v", v.Launcher.Err))
	case v.Problem != nil:
		setCondition(s, v.Now, kubevirtv1.ConditionSynchronized, corev1.ConditionFalse, v.Problem.Reason, v.Problem.Message)
	case state != nil:
		setCondition(s, v.Now, kubevirtv1.ConditionSynchronized, corev1.ConditionTrue, "", "")
	}
}

// interfaceStatus leaves IP empty: the guest is behind QEMU's own network stack, so that nobody reaches it at its own
// addresses, nor at the pod's.
func interfaceStatus(all []*launcherpb.Interface) []kubevirtv1.InterfaceStatus {
	var out []kubevirtv1.InterfaceStatus
	for _, i := range all {
		s := kubevirtv1.InterfaceStatus{MAC: i.GetMac(), Name: i.GetName(), IPs: slices.Clone(i.GetIps()), InterfaceName: i.GetGuestName(), InfoSource: "domain"}
		switch {
		case i.GetFromAgent() && s.Name != "":
			s.InfoSource = "domain, guest-agent"
		case i.GetFromAgent():
			s.InfoSource = "guest-agent"
		}
		out = append(out, s)
	}
	slices.SortStableFunc(out, func(a, b kubevirtv1.InterfaceStatus) int { return strings.Compare(b.Name, a.Name) })
	return out
}

func guestOS(g *launcherpb.GuestOS) kubevirtv1.GuestOSInfo {
	return kubevirtv1.GuestOSInfo{
		ID: g.GetId(), Name: g.GetName(), PrettyName: g.GetPrettyName(), Version: g.GetVersion(), KernelRelease: g.GetKernelRelease(),
	}
}

// volumeStatus merges the guest's disks into the volume status: one entry for each volume of the spec, then the utility
// volumes as they are.
func volumeStatus(vmi *kubevirtv1.VirtualMachineInstance, reported []*launcherpb.Disk) []kubevirtv1.VolumeStatus {
	var out []kubevirtv1.VolumeStatus
	old := func(name string) kubevirtv1.VolumeStatus {
		for _, s := range vmi.Status.VolumeStatus {
			if s.Name == name && s.HotplugVolume == nil {
				return *s.DeepCopy()
			}
		}
		return kubevirtv1.VolumeStatus{Name: name}
	}
	names := map[string]bool{}
	for _, volume := range vmi.Spec.Volumes {
		names[volume.Name] = true
		s := old(volume.Name)
		if i := slices.IndexFunc(reported, func(d *launcherpb.Disk) bool { return d.GetVolume() == volume.Name }); i >= 0 {
			s.Target, s.Size, s.Phase = reported[i].GetTarget(), int64(reported[i].GetVirtualBytes()), kubevirtv1.VolumeReady //nolint:gosec // a disk's size
			s.Reason, s.Message = "", ""
		}
		if volume.PersistentVolumeClaim != nil && s.PersistentVolumeClaimInfo == nil {
			s.PersistentVolumeClaimInfo = &kubevirtv1.PersistentVolumeClaimInfo{ClaimName: volume.PersistentVolumeClaim.ClaimName}
		}
		out = append(out, s)
	}
	for _, s := range vmi.Status.VolumeStatus {
		if !names[s.Name] || s.HotplugVolume != nil {
			out = append(out, *s.DeepCopy())
		}
	}
	return out
}

// trackingStatus moves changed block tracking to Initializing and from there to Enabled. Every other state belongs
// to the controller. Enabled promises that the trackers name only checkpoints that were validated since the guest
// started.
func trackingStatus(v view) *kubevirtv1.ChangedBlockTrackingStatus {
	vmi, state := v.Instance, v.Launcher.State
	now := vmi.Status.ChangedBlockTracking.DeepCopy()
	if vmi.Annotations[layout.AnnotationTracking] != "true" {
		return now
	}
	if now == nil {
		now = &kubevirtv1.ChangedBlockTrackingStatus{}
	}
	if now.State != "" && now.State != kubevirtv1.ChangedBlockTrackingInitializing {
		return now
	}
	now.State = kubevirtv1.ChangedBlockTrackingInitializing
	if launcherclient.GuestRuns(state) && v.Reviewed && allTracked(vmi, state) {
		now.State = kubevirtv1.ChangedBlockTrackingEnabled
	}
	return now
}

// allTracked reports whether every disk that can be tracked is tracked. A disk that cannot be tracked is reported
// in a condition of its own, and must not keep the others from being backed up.
func allTracked(vmi *kubevirtv1.VirtualMachineInstance, state *launcherpb.State) bool {
	for _, name := range tracking.EligibleVolumes(&vmi.Spec) {
		decided := func(d *launcherpb.Disk) bool {
			return d.GetVolume() == name && (d.GetTracked() || d.GetNotTracked() != "")
		}
		if !slices.ContainsFunc(state.GetDisks(), decided) {
			return false
		}
	}
	return true
}
