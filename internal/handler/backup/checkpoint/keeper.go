package checkpoint

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/handler/launcherclient"
	"github.com/varvebackup/varve/internal/launcher/launcherpb"
)

// EventDiscarded is the reason of the event on a tracker and its machine when a disk has lost its checkpoint.
const EventDiscarded = "CheckpointDiscarded"

// Keeper applies the package's decisions.
type Keeper struct {
	// Live reads from the API server, Writer writes to it.
	Live   client.Reader
	Writer client.Client
	Events events.EventRecorder
	// Discarded counts discarded disks by reason.
	Discarded func(reason backupv1.FullReason)
}

// Trackers reads a machine's trackers from the API server.
func (k *Keeper) Trackers(ctx context.Context, machine types.NamespacedName) ([]backupv1.VirtualMachineBackupTracker, error) {
	var list backupv1.VirtualMachineBackupTrackerList
	// Let the API server select, because a namespace may have thousands of trackers.
	ofMachine := client.MatchingFieldsSelector{Selector: fields.OneTermEqualSelector("spec.source.name", machine.Name)}
	if err := k.Live.List(ctx, &list, client.InNamespace(machine.Namespace), ofMachine); err != nil {
		return nil, fmt.Errorf("list the trackers of %s: %w", machine, err)
	}
	return list.Items, nil
}

// Validate defines the trackers' checkpoints in libvirt again and discards the disks whose bitmap cannot be
// trusted. It returns the trackers as they are afterwards.
func (k *Keeper) Validate(ctx context.Context, l *launcherclient.Client, state *launcherpb.State, trackers []backupv1.VirtualMachineBackupTracker) ([]backupv1.VirtualMachineBackupTracker, error) {
	asked := make([]*launcherpb.Checkpoint, len(trackers))
	request := &launcherpb.RedefineCheckpointsRequest{}
	for i := range trackers {
		if asked[i] = redefinitionOf(&trackers[i], state.GetDisks()); asked[i] != nil {
			request.Checkpoints = append(request.Checkpoints, asked[i])
		}
	}
	if len(request.GetCheckpoints()) == 0 {
		return trackers, nil
	}
	response, err := l.RPC().RedefineCheckpoints(ctx, request)
	if err != nil {
		return nil, fmt.Errorf("redefine checkpoints: %w", err)
	}
	for i := range trackers {
		if asked[i] == nil {
			continue
		}
		disks := lostDisks(asked[i], response.GetResults(), state.GetDisks())
		if err := k.explainNewOverlays(ctx, &trackers[i], disks, state.GetDisks()); err != nil {
			return nil, err
		}
		if err := k.Discard(ctx, &trackers[i], asked[i].GetName(), disks); err != nil {
			return nil, err
		}
	}
	return trackers, nil
}

// Discard removes disks from the tracker's checkpoint, both on the API server and in tracker. If the tracker is
// gone, or another one of its name has replaced it, there is nothing to discard and Discard empties tracker.Status.
func (k *Keeper) Discard(ctx context.Context, tracker *backupv1.VirtualMachineBackupTracker, checkpoint string, disks []backupv1.DiscardedDisk) error {
	if len(disks) == 0 {
		return nil
	}
	uid := tracker.UID
	var gone []backupv1.DiscardedDisk
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		live := &backupv1.VirtualMachineBackupTracker{}
		err := k.Live.Get(ctx, client.ObjectKeyFromObject(tracker), live)
		if apierrors.IsNotFound(err) || (err == nil && live.UID != uid) {
			tracker.Status = backupv1.VirtualMachineBackupTrackerStatus{}
			return nil
		}
		if err != nil {
			return err
		}
		if gone = Discard(&live.Status, checkpoint, disks); len(gone) > 0 {
			if err := k.Writer.Status().Update(ctx, live); err != nil {
				return err
			}
		}
		live.DeepCopyInto(tracker)
		return nil
	})
	if err != nil {
		return fmt.Errorf("discard disks from tracker %s/%s: %w", tracker.Namespace, tracker.Name, err)
	}
	for _, d := range gone {
		k.reportDiscard(ctx, tracker, d)
	}
	return nil
}

func (k *Keeper) reportDiscard(ctx context.Context, tracker *backupv1.VirtualMachineBackupTracker, d backupv1.DiscardedDisk) {
	k.Discarded(d.Reason)
	const note = "Discarded the checkpoint of volume %s (%s): %s. The next backup of the volume with tracker %s is full."
	machine := &kubevirtv1.VirtualMachine{}
	related := client.Object(machine)
	if err := k.Live.Get(ctx, types.NamespacedName{Namespace: tracker.Namespace, Name: tracker.Spec.Source.Name}, machine); err != nil {
		related = nil // The machine may be gone; the tracker gets the event in any case.
	}
	k.Events.Eventf(tracker, nil, corev1.EventTypeWarning, EventDiscarded, "Validate", note, d.Volume, d.Reason, d.Message, tracker.Name)
	if related != nil {
		k.Events.Eventf(machine, tracker, corev1.EventTypeWarning, EventDiscarded, "Validate", note, d.Volume, d.Reason, d.Message, tracker.Name)
	}
}

// Prune deletes every checkpoint of libvirt and every bitmap in the overlays that none of the machine's trackers
// names. No backup may be running whose checkpoint is not on its tracker yet.
func (k *Keeper) Prune(ctx context.Context, l *launcherclient.Client, machine types.NamespacedName) error {
	// Read the state first: a checkpoint in it was made before the trackers are read.
	state, err := l.Fresh(ctx)
	if err != nil {
		return err
	}
	trackers, err := k.Trackers(ctx, machine)
	if err != nil {
		return err
	}
	names := unreferencedCheckpoints(state, trackers)
	if len(names) == 0 {
		return nil
	}
	if _, err := l.RPC().DeleteCheckpoints(ctx, &launcherpb.DeleteCheckpointsRequest{Names: names}); err != nil {
		return fmt.Errorf("delete the checkpoints %v of %s: %w", names, machine, err)
	}
	return nil
}
