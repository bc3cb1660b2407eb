package harvesterrestore

import (
	"context"
	"fmt"
	"strings"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/controller/child"
	"github.com/varvebackup/varve/internal/diagnosis"
	"github.com/varvebackup/varve/internal/reconcile"
)

// bindDeadline is how long the claim of a disk may take to be bound, where that does not wait for the machine. Some storages
// copy the disk first.
const bindDeadline = 6 * time.Hour

// isSnapshot says whether the disks of a backup are in snapshots that stayed in the machine's storage.
func isSnapshot(b *harvesterv1.VirtualMachineBackup) bool { return b.Spec.Type == harvesterv1.Snapshot }

// gatherSnapshots reads what a restore from VolumeSnapshots needs.
func (r *reconciler) gatherSnapshots(ctx context.Context, in *input) error {
	b := in.backup
	if b == nil || !isSnapshot(b) || b.Namespace != in.restore.Namespace || b.Status.Source == nil {
		return nil
	}
	in.snapshots = map[string]*snapshotv1.VolumeSnapshot{}
	for i := range b.Status.VolumeBackups {
		s, err := r.findVolumeSnapshot(ctx, b.Namespace, ptr.Deref(b.Status.VolumeBackups[i].VolumeSnapshotName, ""))
		if err != nil {
			return err
		}
		if s != nil {
			in.snapshots[s.Name] = s
		}
	}
	var err error
	in.missing, err = r.findMissing(ctx, b.Namespace, b)
	return err
}

// findVolumeSnapshot returns a VolumeSnapshot, or nil.
func (r *reconciler) findVolumeSnapshot(ctx context.Context, namespace, name string) (*snapshotv1.VolumeSnapshot, error) {
	s, err := reconcile.Find(ctx, r.live, types.NamespacedName{Namespace: namespace, Name: name},
		&snapshotv1.VolumeSnapshot{})
	if meta.IsNoMatchError(err) {
		return nil, nil //nolint:nilnil // without the kind there is none
	}
	return s, err
}

// checkSnapshot says why a backup of type snapshot cannot be restored as the restore asks, or "".
func (in *input) checkSnapshot(name string) (refused string) {
	o := in.restore
	switch {
	case o.Namespace != in.backup.Namespace:
		return fmt.Sprintf("VMBackup %s is of type snapshot: its snapshots are in namespace %s and cannot be "+
			"restored into namespace %s. A backup of type backup can",
			name, in.backup.Namespace, o.Namespace)
	case !o.Spec.NewVM && o.Spec.DeletionPolicy == harvesterv1.DeletionPolicyDelete:
		return "delete policy with backup type snapshot for replacing VM is not supported: the storage may need " +
			"the old volumes for their snapshots. Set spec.deletionPolicy to retain"
	case in.missing != "":
		return fmt.Sprintf("VMBackup %s is of type snapshot, which has no copy of what its machine refers to: %s. "+
			"Create these in namespace %s, and restore again",
			name, in.missing, o.Namespace)
	}
	return ""
}

// planFromSnapshot returns what is made for a disk that is in a VolumeSnapshot: a claim that the storage makes of it.
func (in *input) planFromSnapshot(choices *choices, restore harvesterv1.VolumeRestore, v *harvesterv1.VolumeBackup) (harvesterv1.VolumeRestore, error) {
	name := ptr.Deref(v.VolumeSnapshotName, "")
	switch s := in.snapshots[name]; {
	case s == nil:
		return restore, fmt.Errorf("VolumeSnapshot %q does not exist: it was deleted, and the disk with it", name)
	case s.DeletionTimestamp != nil:
		return restore, fmt.Errorf("VolumeSnapshot %s is being deleted", name)
	case s.Status == nil || !ptr.Deref(s.Status.ReadyToUse, false):
		return restore, fmt.Errorf("VolumeSnapshot %s is not ready to use%s", name, describeError(s))
	}
	if err := choices.applyTo(&restore, in.waiting); err != nil {
		return restore, err
	}
	spec := &restore.PersistentVolumeClaim.Spec
	class := ptr.Deref(spec.StorageClassName, "")
	if by := in.provisioners[class]; by != "" && v.CSIDriverName != "" && by != v.CSIDriverName {
		return restore, fmt.Errorf("StorageClass %s is of provisioner %s, and VolumeSnapshot %s of driver %s: "+
			"name a class of that driver in the annotation %s",
			class, by, name, v.CSIDriverName, harvesterv1.AnnotationStorageClassMap)
	}
	restore.DataDownload, spec.Selector = "", nil
	spec.DataSource = &corev1.TypedLocalObjectReference{
		APIGroup: ptr.To(snapshotv1.GroupName), Kind: "VolumeSnapshot", Name: name,
	}
	return restore, nil
}

// describeError says what the storage says of a VolumeSnapshot, after a colon, or "".
func describeError(s *snapshotv1.VolumeSnapshot) string {
	if s == nil || s.Status == nil || s.Status.Error == nil || ptr.Deref(s.Status.Error.Message, "") == "" {
		return ""
	}
	return ": " + *s.Status.Error.Message
}

// bindClaims makes the claims of disks that are in VolumeSnapshots, and looks whether they are bound.
func (r *reconciler) bindClaims(ctx context.Context, o *harvesterv1.VirtualMachineRestore) (ctrl.Result, error) {
	if !child.AreMade(o) {
		refused, err := r.makeClaims(ctx, o)
		switch {
		case err != nil:
			return ctrl.Result{}, err
		case refused != "":
			return ctrl.Result{}, r.endFailed(ctx, o.DeepCopy(), o, refused)
		}
	}
	base, now := o.DeepCopy(), r.Clock.Now()
	out, err := r.observeClaims(ctx, o)
	switch {
	case err != nil:
		return ctrl.Result{}, err
	case out.failed != "":
		return ctrl.Result{}, r.endFailed(ctx, base, o, out.failed)
	case !out.restored:
		setProgressing(&o.Status, now, messageClaims, out.waiting)
		return ctrl.Result{RequeueAfter: lookEvery}, r.writeStatus(ctx, base, o)
	}
	setProgressing(&o.Status, now, messageMachine, "")
	if err := r.writeStatus(ctx, base, o); err != nil {
		return ctrl.Result{}, err
	}
	return r.restoreMachine(ctx, o)
}

func (r *reconciler) makeClaims(ctx context.Context, o *harvesterv1.VirtualMachineRestore) (refused string, err error) {
	for i := range o.Status.VolumeRestores {
		claim := plannedClaim(o, &o.Status.VolumeRestores[i])
		if refused, err := r.children.Make(ctx, o.UID, claim); refused != "" || err != nil {
			return refused, err
		}
	}
	return "", child.NoteMade(ctx, r.cached, o)
}

// observeClaims writes into the status which claims are bound, or will be by the start of the machine.
func (r *reconciler) observeClaims(ctx context.Context, o *harvesterv1.VirtualMachineRestore) (outcome, error) {
	out, done := outcome{restored: true}, 0
	for i := range o.Status.VolumeRestores {
		v := &o.Status.VolumeRestores[i]
		if v.Progress < 100 {
			state, err := r.readClaim(ctx, o, v)
			if err != nil {
				return out, err
			}
			bound, waiting, failed := state.decide(r.Clock.Now())
			switch {
			case failed != "":
				return outcome{failed: fmt.Sprintf("volume %s: %s", v.VolumeName, failed)}, nil
			case bound:
				v.Progress = 100
			case out.waiting == "":
				out.waiting = fmt.Sprintf("volume %s: %s", v.VolumeName, waiting)
			}
			out.restored = out.restored && bound
		}
		done += v.Progress
	}
	o.Status.Progress = max(o.Status.Progress, done*disksRestored/100/len(o.Status.VolumeRestores))
	return out, nil
}

// claimState is what the claim of a disk is like that is in a VolumeSnapshot.
type claimState struct {
	name, snapshotName string
	// claim is nil if it was deleted.
	claim *corev1.PersistentVolumeClaim
	// snapshot is nil if there is none. It is read for a claim that is not bound.
	snapshot *snapshotv1.VolumeSnapshot
	// volume is the claim's, or nil.
	volume *corev1.PersistentVolume
	// waits: its volume is made when the machine starts.
	waits bool
	// warning is the latest one about the claim, or "".
	warning string
}

func (r *reconciler) readClaim(ctx context.Context, o *harvesterv1.VirtualMachineRestore, v *harvesterv1.VolumeRestore) (*claimState, error) {
	planned := plannedClaim(o, v)
	c := &claimState{name: planned.Name, snapshotName: planned.Spec.DataSource.Name}
	claim, err := reconcile.Find(ctx, r.live, client.ObjectKeyFromObject(planned), &corev1.PersistentVolumeClaim{})
	if err != nil || claim == nil || claim.Labels[LabelRestore] != string(o.UID) {
		return c, err
	}
	if c.claim = claim; claim.Status.Phase == corev1.ClaimBound {
		c.volume, err = reconcile.Find(ctx, r.live, types.NamespacedName{Name: claim.Spec.VolumeName},
			&corev1.PersistentVolume{})
		return c, err
	}
	key := types.NamespacedName{Name: ptr.Deref(claim.Spec.StorageClassName, "")}
	class, err := reconcile.Find(ctx, r.cached, key, &storagev1.StorageClass{})
	if err != nil {
		return nil, err
	}
	c.waits = class != nil && ptr.Deref(class.VolumeBindingMode, storagev1.VolumeBindingImmediate) ==
		storagev1.VolumeBindingWaitForFirstConsumer
	if c.snapshot, err = r.findVolumeSnapshot(ctx, o.Namespace, c.snapshotName); err != nil {
		return nil, err
	}
	c.warning = diagnosis.LastWarning(ctx, r.live, claim)
	return c, nil
}

// decide says whether the disk is there, or will be when the machine starts; what it waits for; or why it will never be.
func (c *claimState) decide(now time.Time) (bound bool, waiting, failed string) {
	switch {
	case c.claim == nil || c.claim.DeletionTimestamp != nil:
		return false, "", fmt.Sprintf("PersistentVolumeClaim %s was deleted by somebody else", c.name)
	case c.volume != nil && c.volume.CreationTimestamp.Before(&c.claim.CreationTimestamp):
		// Kubernetes binds a claim to any volume that fits, whatever the claim is to be made of.
		return false, "", fmt.Sprintf("PersistentVolumeClaim %s was bound to PersistentVolume %s, which was there "+
			"before it and has something else: delete that volume, or map the StorageClass to another one, and "+
			"restore again", c.name, c.volume.Name)
	case c.claim.Status.Phase == corev1.ClaimBound:
		return true, "", ""
	case c.claim.Status.Phase == corev1.ClaimLost:
		return false, "", fmt.Sprintf("PersistentVolumeClaim %s has lost its volume", c.name)
	case c.snapshot == nil:
		return false, "", fmt.Sprintf("VolumeSnapshot %s was deleted before PersistentVolumeClaim %s was bound",
			c.snapshotName, c.name)
	case c.waits:
		return true, "", ""
	}
	why := describeError(c.snapshot)
	if c.warning != "" && !strings.Contains(why, c.warning) {
		why += ": " + c.warning
	}
	deadline := c.claim.CreationTimestamp.Add(bindDeadline)
	if now.After(deadline) {
		return false, "", fmt.Sprintf("PersistentVolumeClaim %s was not bound within %s%s", c.name, bindDeadline, why)
	}
	return false, fmt.Sprintf("PersistentVolumeClaim %s to be bound, until %s%s", c.name,
		deadline.UTC().Format(time.RFC3339), why), ""
}
