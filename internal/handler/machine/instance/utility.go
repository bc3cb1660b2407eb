package instance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/handler/launcherclient"
	"github.com/varvebackup/varve/internal/handler/machine/attachment"
	"github.com/varvebackup/varve/internal/handler/machine/mount"
	"github.com/varvebackup/varve/internal/handler/turns"
	"github.com/varvebackup/varve/internal/instancepod"
	"github.com/varvebackup/varve/internal/launcher/launcherpb"
)

// lazyAfter is how long a volume may stay busy before it is unmounted lazily, if no backup runs.
const lazyAfter = time.Minute

// Mounts are the utility volumes of launchers on this node; see package mount.
type Mounts interface {
	Cover(launcher types.UID) error
	Attach(launcher types.UID, name string, from mount.Source, machine string) error
	Admit(claim mount.Source) error
	Detach(launcher types.UID, name string, lazy bool) error
	Uncover(launcher types.UID) error
	Names(launcher types.UID) ([]string, error)
	ReadSecret(pod types.UID, volume, key string) ([]byte, error)
	All() (map[types.UID][]string, error)
}

// wantedVolumes returns the utility volumes that must be in the launcher. There are none if the guest has ended. A volume
// in the spec whose phase is Detaching or UnMountedFromPod has lost its attachment pod, and is left out.
func wantedVolumes(vmi *kubevirtv1.VirtualMachineInstance, ended bool) []string {
	var names []string
	if ended {
		return nil
	}
	for _, v := range vmi.Spec.UtilityVolumes {
		lost := slices.ContainsFunc(vmi.Status.VolumeStatus, func(s kubevirtv1.VolumeStatus) bool {
			return s.Name == v.Name && (s.Phase == kubevirtv1.VolumeDetaching || s.Phase == kubevirtv1.VolumeUnMountedFromPod)
		})
		if !lost {
			names = append(names, v.Name)
		}
	}
	return names
}

// syncVolumes mounts and unmounts the instance's utility volumes and writes the result into status. The returned
// duration is when to look again, or 0.
func (r *Reconciler) syncVolumes(ctx context.Context, vmi *kubevirtv1.VirtualMachineInstance, pod types.UID, l *launcherclient.Client, status *kubevirtv1.VirtualMachineInstanceStatus) (*problem, time.Duration, error) {
	ended := status.Phase.Final()
	keep := wantedVolumes(vmi, ended)
	mounted, err := r.Mounts.Names(pod)
	if err != nil {
		return nil, 0, err
	}
	var trouble *problem
	var again time.Duration
	for _, name := range mounted {
		if slices.Contains(keep, name) {
			continue
		}
		if err := r.detachVolume(ctx, pod, name, l); err != nil {
			again = retryInterval
			trouble = &problem{ReasonMountFailed, fmt.Sprintf("utility volume %s cannot be unmounted yet: %v", name, err)}
		}
	}
	if mounted, err = r.Mounts.Names(pod); err != nil {
		return nil, 0, err
	}
	if len(mounted) == 0 && len(keep) == 0 {
		if err := r.Mounts.Uncover(pod); err != nil && !errors.Is(err, mount.ErrBusy) {
			return nil, 0, err
		}
	}
	for i := range status.VolumeStatus {
		s := &status.VolumeStatus[i]
		if s.HotplugVolume == nil {
			continue
		}
		if !slices.Contains(keep, s.Name) {
			if mayBeInLauncher(s.Phase) && !slices.Contains(mounted, s.Name) {
				s.Phase, s.Reason, s.Message = kubevirtv1.VolumeUnMountedFromPod, "", ""
				r.Events.Eventf(vmi, nil, corev1.EventTypeNormal, "UtilityVolumeUnmounted", "Unmount", "Utility volume %s was unmounted from the launcher.", s.Name)
			}
			continue
		}
		if p := r.attachVolume(ctx, vmi, pod, l, s, slices.Contains(mounted, s.Name)); p != nil {
			trouble, again = p, retryInterval
		}
	}
	return trouble, again, nil
}

// mayBeInLauncher reports whether a volume in this phase may be in the launcher. The controller writes the phases before
// and after.
func mayBeInLauncher(p kubevirtv1.VolumePhase) bool {
	return p == kubevirtv1.VolumeAttachedToNode || p == kubevirtv1.VolumeMountedToPod || p == kubevirtv1.VolumeDetaching
}

// attachVolume mounts one volume that is attached to the node. If something prevents it, the volume's status says so and
// it is retried.
func (r *Reconciler) attachVolume(ctx context.Context, vmi *kubevirtv1.VirtualMachineInstance, pod types.UID, l *launcherclient.Client, s *kubevirtv1.VolumeStatus, mounted bool) *problem {
	if (s.Phase != kubevirtv1.VolumeAttachedToNode && s.Phase != kubevirtv1.VolumeMountedToPod) || s.HotplugVolume.AttachPodUID == "" {
		return nil
	}
	if mounted && s.Phase == kubevirtv1.VolumeMountedToPod {
		return nil
	}
	if err := r.mountVolume(ctx, vmi, pod, l, s); err != nil {
		s.Reason, s.Message = ReasonMountFailed, err.Error()
		return &problem{ReasonMountFailed, fmt.Sprintf("utility volume %s: %v", s.Name, err)}
	}
	s.Phase, s.Reason, s.Message = kubevirtv1.VolumeMountedToPod, "", ""
	r.Events.Eventf(vmi, nil, corev1.EventTypeNormal, "UtilityVolumeMounted", "Mount", "Utility volume %s is mounted into the launcher.", s.Name)
	return nil
}

func (r *Reconciler) mountVolume(ctx context.Context, vmi *kubevirtv1.VirtualMachineInstance, pod types.UID, l *launcherclient.Client, s *kubevirtv1.VolumeStatus) error {
	i := slices.IndexFunc(vmi.Spec.UtilityVolumes, func(u kubevirtv1.UtilityVolume) bool { return u.Name == s.Name })
	source, err := attachment.Find(ctx, r.Live, r.NodeName, attachment.Volume{
		Namespace: vmi.Namespace, Instance: vmi.Name, InstanceUID: vmi.UID,
		Name: s.Name, Claim: vmi.Spec.UtilityVolumes[i].ClaimName, PodUID: s.HotplugVolume.AttachPodUID,
	})
	if err != nil {
		return err
	}
	running, err := instancepod.Get(ctx, r.Live, vmi.Namespace, instancepod.ActiveLauncher(vmi))
	if err != nil {
		return err
	}
	if err := r.Mounts.Cover(pod); err != nil {
		return err
	}
	// The launcher must answer after the cover and before the mount: see mount.Mounts.Cover.
	state, err := l.Fresh(ctx)
	if err != nil {
		return err
	}
	if state.GetPhase() == launcherpb.State_ENDED {
		return errors.New("the guest has ended")
	}
	turns.Outside(ctx, func() { err = r.Mounts.Attach(pod, s.Name, source, visibleDirectory(vmi, pod, running)) })
	return err
}

// visibleDirectory returns the directory of a target claim that the launcher may see: its machine's. Launchers from
// before they stopped running as root write below the claim's root, and get the whole claim: for them it returns "".
// Only the pod's spec tells, which nobody can change. What a launcher says about itself proves nothing. pod is what
// has the launcher pod's name, or nil.
func visibleDirectory(vmi *kubevirtv1.VirtualMachineInstance, launcher types.UID, pod *corev1.Pod) string {
	if pod != nil && pod.UID == launcher && instancepod.IsLauncher(pod, vmi.Name, vmi.UID) && instancepod.RunsAsRoot(pod) {
		return ""
	}
	return vmi.Name
}

// detachVolume unmounts one volume. As the last resort it unmounts lazily, if the volume has been busy for long although
// the launcher runs no backup.
func (r *Reconciler) detachVolume(ctx context.Context, pod types.UID, name string, l *launcherclient.Client) error {
	key := mountKey{pod, name}
	err := r.unmountVolume(ctx, pod, name, false)
	if err == nil || !errors.Is(err, mount.ErrBusy) {
		r.busy.clearBusy(key)
		return err
	}
	if since := r.busy.busySince(key, r.Clock.Now()); r.Clock.Since(since) < lazyAfter || backupRuns(l) {
		return err
	}
	r.Log.Info("a utility volume stays busy: unmounting it lazily", "pod", pod, "volume", name)
	if err := r.unmountVolume(ctx, pod, name, true); err != nil {
		return err
	}
	r.busy.clearBusy(key)
	return nil
}

func (r *Reconciler) unmountVolume(ctx context.Context, pod types.UID, name string, lazy bool) (err error) {
	turns.Outside(ctx, func() { err = r.Mounts.Detach(pod, name, lazy) })
	return err
}

// backupRuns reports whether the launcher may still be writing to a target. A launcher that does not answer is dead
// or unknown; its writes end with its pod.
func backupRuns(l *launcherclient.Client) bool {
	if l == nil {
		return false
	}
	seen := l.Snapshot()
	if seen.Err != nil || seen.State.GetBackup() == nil {
		return false
	}
	p := seen.State.GetBackup().GetPhase()
	return p != launcherpb.Backup_DONE && p != launcherpb.Backup_FAILED
}
