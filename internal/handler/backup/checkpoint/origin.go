package checkpoint

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/reconcile"
	"github.com/varvebackup/varve/internal/stateclaim"
)

// origins say when the machine and its claims were made. A machine without an overlay for a disk of its checkpoint has
// lost the claim that held it, or the file alone, or is a machine that was made again on restored claims. The ages of
// its claims tell which.
type origins struct {
	// Machine is the VirtualMachine. Its name is empty if it is not known.
	Machine origin
	// State is the claim that holds the overlays. Its name is empty if it is not known, or has taken over the overlays of
	// an earlier claim, so that its own age says nothing.
	State origin
	// Disks are the claims of the disks by volume.
	Disks map[string]origin
}

// origin is an object and when it was made.
type origin struct {
	Name string
	Made time.Time
}

// isYoungerThan reports whether the object was made after a checkpoint. The two times are of different clocks, of the
// API server and of a node. Nothing but words depends on the comparison.
func (o origin) isYoungerThan(checkpoint time.Time) bool {
	return o.Name != "" && o.Made.After(checkpoint)
}

func (o origin) madeAfter(checkpoint time.Time) string {
	return fmt.Sprintf("was made at %s, after the checkpoint of %s", o.Made.UTC().Format(time.RFC3339), checkpoint.UTC().Format(time.RFC3339))
}

// explainLoss says why a disk of a checkpoint had no overlay at this start.
func (o origins) explainLoss(volume string, checkpoint time.Time) (backupv1.FullReason, string) {
	disk, again := o.Disks[volume], ""
	if o.Machine.isYoungerThan(checkpoint) {
		again = fmt.Sprintf("; machine %s was made again at %s", o.Machine.Name, o.Machine.Made.UTC().Format(time.RFC3339))
	}
	switch {
	case disk.isYoungerThan(checkpoint):
		return backupv1.FullDiskReplaced, fmt.Sprintf("the disk's claim %s %s, so that it is another disk%s", disk.Name, disk.madeAfter(checkpoint), again)
	case o.State.isYoungerThan(checkpoint):
		return backupv1.FullBitmapLost, fmt.Sprintf("claim %s, which holds the record of changes, %s: the claim before it was deleted%s", o.State.Name, o.State.madeAfter(checkpoint), again)
	case o.State.Name != "":
		return backupv1.FullBitmapLost, fmt.Sprintf("the disk has no record of changes on claim %s any more", o.State.Name)
	default:
		return backupv1.FullBitmapLost, "the disk has no record of changes any more"
	}
}

// explainNewOverlays says of the lost disks of a tracker's checkpoint that had no overlay why they had none.
func (k *Keeper) explainNewOverlays(ctx context.Context, tracker *backupv1.VirtualMachineBackupTracker, lost []backupv1.DiscardedDisk, disks []*launcherpb.Disk) error {
	isNew := func(d backupv1.DiscardedDisk) bool { return overlayRenewed(d.Volume, disks) == renewedNew }
	if !slices.ContainsFunc(lost, isNew) {
		return nil
	}
	from, err := k.readOrigins(ctx, types.NamespacedName{Namespace: tracker.Namespace, Name: tracker.Spec.Source.Name})
	if err != nil {
		return err
	}
	for i := range lost {
		if isNew(lost[i]) {
			reason, why := from.explainLoss(lost[i].Volume, tracker.Status.LatestCheckpoint.CreationTime.Time)
			lost[i].Reason, lost[i].Message = reason, why+": "+lost[i].Message
		}
	}
	return nil
}

// readOrigins asks the API server when a machine, its running instance's disks and its state claim were made. What is
// gone is left out.
func (k *Keeper) readOrigins(ctx context.Context, machine types.NamespacedName) (origins, error) {
	o := origins{Disks: map[string]origin{}}
	vm, err := reconcile.Find(ctx, k.Live, machine, &kubevirtv1.VirtualMachine{})
	if err != nil {
		return origins{}, err
	}
	vmi, err := reconcile.Find(ctx, k.Live, machine, &kubevirtv1.VirtualMachineInstance{})
	if err != nil {
		return origins{}, err
	}
	var uid types.UID
	if vm != nil {
		o.Machine, uid = origin{vm.Name, vm.CreationTimestamp.Time}, vm.UID
	}
	var volumes []kubevirtv1.Volume
	if vmi != nil {
		volumes = vmi.Spec.Volumes
	}
	for _, v := range volumes {
		if v.PersistentVolumeClaim == nil {
			continue
		}
		claim, err := k.findClaim(ctx, machine.Namespace, v.PersistentVolumeClaim.ClaimName)
		if err != nil {
			return origins{}, err
		}
		if claim != nil {
			o.Disks[v.Name] = origin{claim.Name, claim.CreationTimestamp.Time}
		}
	}
	state := map[string]*corev1.PersistentVolumeClaim{}
	for _, name := range layout.StatePVCs(machine.Name) {
		claim, err := k.findClaim(ctx, machine.Namespace, name)
		if err != nil {
			return origins{}, err
		}
		if claim != nil {
			state[name] = claim
		}
	}
	claims := stateclaim.Find(machine.Name, uid, state)
	if c := claims.Current; c != nil && claims.Successor == nil && c.Annotations[layout.AnnotationMovesFrom] == "" {
		o.State = origin{c.Name, c.CreationTimestamp.Time}
	}
	return o, nil
}

// findClaim reads a claim from the API server. It returns nil if there is none.
func (k *Keeper) findClaim(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	return reconcile.Find(ctx, k.Live, types.NamespacedName{Namespace: namespace, Name: name},
		&corev1.PersistentVolumeClaim{})
}
