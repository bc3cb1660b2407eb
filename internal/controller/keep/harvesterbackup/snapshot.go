package harvesterbackup

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	vmsnapshotv1 "github.com/varvebackup/varve/api/snapshot/v1beta1"
	"github.com/varvebackup/varve/internal/controller/child"
	"github.com/varvebackup/varve/internal/definition"
	"github.com/varvebackup/varve/internal/reconcile"
)

// snapshotDeadline is how long a VirtualMachineSnapshot may take: some storages copy a disk, or upload it, before its
// snapshot is ready.
const snapshotDeadline = 6 * time.Hour

// answerDeadline is how much longer a backup waits for what makes VirtualMachineSnapshots to say that one has failed.
const answerDeadline = 10 * time.Minute

// isSnapshot says whether a backup is a set of snapshots that stay in the machine's storage.
func isSnapshot(b *harvesterv1.VirtualMachineBackup) bool { return b.Spec.Type == harvesterv1.Snapshot }

// planSnapshot decides which disks a snapshot has.
func (in *input) planSnapshot() plan {
	for _, name := range []string{
		harvesterv1.AnnotationLocation, harvesterv1.AnnotationSnapshotID, harvesterv1.AnnotationScratchClass,
		harvesterv1.AnnotationScratchSize,
	} {
		if _, has := in.backup.Annotations[name]; has {
			return refusePlan("the annotation %s is for type backup, and a snapshot stays in the storage of its "+
				"machine: leave it out, or set spec.type to backup", name)
		}
	}
	if p := in.refuseSnapshot(); p != nil {
		return *p
	}
	if p := in.checkMachine(); p != nil {
		return *p
	}
	status, p := in.describeMachine()
	if p != nil {
		return *p
	}
	if p := in.addVolumes(status); p != nil {
		return *p
	}
	if in.stopped != nil {
		if p := in.recordStopped(status); p != nil {
			return *p
		}
	}
	return plan{status: status}
}

// takeSnapshot makes the VirtualMachineSnapshot, and looks how far it is.
func (r *reconciler) takeSnapshot(ctx context.Context, b *harvesterv1.VirtualMachineBackup) (ctrl.Result, error) {
	s, refused, err := r.makeSnapshot(ctx, b)
	if err != nil {
		return ctrl.Result{}, err
	}
	base, now := b.DeepCopy(), r.Clock.Now()
	if refused != "" {
		return ctrl.Result{}, r.endFailed(ctx, base, b, refused)
	}
	if failed, err := r.failWritten(ctx, b); failed || err != nil {
		return ctrl.Result{}, err
	}
	if s != nil && (s.IsReady() || s.Status != nil && s.Status.CreationTime != nil) {
		b.Status.Stopped = nil // all snapshots are taken: from now on the machine may start
	}
	content, err := r.findContent(ctx, b, s)
	if err != nil {
		return ctrl.Result{}, err
	}
	failed := describeSnapshotFailure(b, s, now)
	if content != nil {
		observeContent(&b.Status, content)
	}
	if failed == "" && !s.IsReady() {
		setProgressing(&b.Status, now, describeSnapshotProgress(s))
		return ctrl.Result{RequeueAfter: lookEvery}, r.writeStatus(ctx, base, b)
	}
	if failed == "" {
		failed = describeTaken(b, s, content)
	}
	if failed == "" {
		if failed, err = r.checkVolumeSnapshots(ctx, b); err != nil {
			return ctrl.Result{}, err
		}
	}
	if failed != "" {
		markUnready(&b.Status)
		return ctrl.Result{}, r.endFailed(ctx, base, b, failed)
	}
	setReady(&b.Status, now)
	if err := r.writeStatus(ctx, base, b); err != nil {
		return ctrl.Result{}, err
	}
	r.events.Eventf(b, nil, corev1.EventTypeNormal, "Ready", "BackUp",
		"the machine's disks are in snapshots of its storage: they are lost with it")
	return ctrl.Result{}, nil
}

// makeSnapshot returns the VirtualMachineSnapshot, and makes it if it was not made before. nil: somebody deleted it.
func (r *reconciler) makeSnapshot(ctx context.Context, b *harvesterv1.VirtualMachineBackup) (s *vmsnapshotv1.VirtualMachineSnapshot, refused string, err error) {
	s, err = r.findSnapshot(ctx, b)
	switch {
	case meta.IsNoMatchError(err):
		return nil, "the cluster does not have the kind VirtualMachineSnapshot of snapshot.kubevirt.io, which a " +
			"snapshot needs: install it, or set spec.type to backup", nil
	case err != nil || child.AreMade(b):
		return s, "", err
	case s == nil:
		if s, refused, err = r.createSnapshot(ctx, b); refused != "" || err != nil {
			return nil, refused, err
		}
	}
	return s, "", child.NoteMade(ctx, r.cached, b)
}

// createSnapshot creates the VirtualMachineSnapshot.
func (r *reconciler) createSnapshot(
	ctx context.Context, b *harvesterv1.VirtualMachineBackup,
) (s *vmsnapshotv1.VirtualMachineSnapshot, refused string, err error) {
	s = newSnapshot(b)
	if r.BesideKubeVirt {
		limitFreeze(b, s)
	}
	refused, err = r.children.Make(ctx, b.UID, s)
	return s, r.nameGate(refused, gateSnapshot), err
}

// findSnapshot returns the VirtualMachineSnapshot of a backup, or nil.
func (r *reconciler) findSnapshot(ctx context.Context, b *harvesterv1.VirtualMachineBackup) (*vmsnapshotv1.VirtualMachineSnapshot, error) {
	s, err := reconcile.Find(ctx, r.live, types.NamespacedName{Namespace: b.Namespace, Name: b.Status.Group},
		&vmsnapshotv1.VirtualMachineSnapshot{})
	if err != nil || s == nil || s.Labels[LabelBackup] != string(b.UID) {
		return nil, err
	}
	return s, nil
}

// findContent returns the content of a backup's VirtualMachineSnapshot, or nil.
func (r *reconciler) findContent(ctx context.Context, b *harvesterv1.VirtualMachineBackup, s *vmsnapshotv1.VirtualMachineSnapshot) (*vmsnapshotv1.VirtualMachineSnapshotContent, error) {
	if s == nil || s.Status == nil {
		return nil, nil //nolint:nilnil // there is none, as for reconcile.Find
	}
	key := types.NamespacedName{
		Namespace: b.Namespace, Name: ptr.Deref(s.Status.VirtualMachineSnapshotContentName, ""),
	}
	content, err := reconcile.Find(ctx, r.live, key, &vmsnapshotv1.VirtualMachineSnapshotContent{})
	if err != nil || content == nil || ptr.Deref(content.Spec.VirtualMachineSnapshotName, "") != s.Name {
		return nil, err
	}
	return content, nil
}

// newSnapshot returns the VirtualMachineSnapshot of a backup.
func newSnapshot(b *harvesterv1.VirtualMachineBackup) *vmsnapshotv1.VirtualMachineSnapshot {
	machine := definition.MachineKind
	s := &vmsnapshotv1.VirtualMachineSnapshot{
		ObjectMeta: metav1.ObjectMeta{
			// Without an owner reference: with one, a deletion of the backup in the foreground would delete it while a
			// restore reads it.
			Namespace: b.Namespace, Name: b.Status.Group, Annotations: map[string]string{},
		},
		Spec: vmsnapshotv1.VirtualMachineSnapshotSpec{
			Source: corev1.TypedLocalObjectReference{
				APIGroup: ptr.To(machine.Group), Kind: machine.Kind,
				Name: b.Spec.Source.Name,
			},
			DeletionPolicy:  ptr.To(vmsnapshotv1.DeleteContent),
			FailureDeadline: &metav1.Duration{Duration: snapshotDeadline},
		},
	}
	if b.Status.Untracked != nil {
		s.OwnerReferences = []metav1.OwnerReference{ownerReference(b)} // nothing restores from it
	}
	var without []string
	for _, v := range b.Status.ExcludedVolumes {
		if v.Reason == harvesterv1.ExcludedByUser {
			without = append(without, v.Name)
		}
	}
	if len(without) > 0 {
		s.Annotations[vmsnapshotv1.AnnotationExcludeVolumes] = strings.Join(without, ",")
	}
	switch deadline := b.Spec.FSFreezeDeadline; {
	case b.Annotations[harvesterv1.AnnotationFreeze] == "false":
		s.Annotations[vmsnapshotv1.AnnotationFreezeDeadline] = "false"
	case deadline != nil:
		s.Annotations[vmsnapshotv1.AnnotationFreezeDeadline] = deadline.Duration.String()
	}
	return s
}

// describeSnapshotFailure says why a VirtualMachineSnapshot will never be ready, or "".
func describeSnapshotFailure(b *harvesterv1.VirtualMachineBackup, s *vmsnapshotv1.VirtualMachineSnapshot, now time.Time) string {
	switch {
	case s == nil || s.DeletionTimestamp != nil:
		return fmt.Sprintf("VirtualMachineSnapshot %s was deleted by somebody else: create another backup",
			b.Status.Group)
	case s.HasFailed():
		return fmt.Sprintf("VirtualMachineSnapshot %s failed: %s", s.Name,
			cmp.Or(errorOf(s), conditionOf(s, vmsnapshotv1.ConditionFailure), "it does not say why"))
	case s.Status != nil && s.Status.SourceUID != nil && *s.Status.SourceUID != *b.Status.SourceUID:
		return fmt.Sprintf("virtual machine %s was made again before its snapshot was taken: create another backup",
			b.Spec.Source.Name)
	}
	return describeLateSnapshot(s, now)
}

func errorOf(s *vmsnapshotv1.VirtualMachineSnapshot) string {
	if s.Status == nil || s.Status.Error == nil {
		return ""
	}
	return ptr.Deref(s.Status.Error.Message, "")
}

// describeLateSnapshot says that a VirtualMachineSnapshot should have been ready, or have failed, by now, or "". Nobody may
// run who would say so, and some storages never get ready what they have taken.
func describeLateSnapshot(s *vmsnapshotv1.VirtualMachineSnapshot, now time.Time) string {
	const limit = snapshotDeadline + answerDeadline
	if s.IsReady() || !now.After(s.CreationTimestamp.Add(limit)) {
		return ""
	}
	return fmt.Sprintf("waited %s for %s: look at the VolumeSnapshots and at what makes them, and create another backup",
		limit, describeSnapshotProgress(s))
}

// conditionOf returns what a condition of a VirtualMachineSnapshot says, or "". KubeVirt's have sentences as their reasons.
func conditionOf(s *vmsnapshotv1.VirtualMachineSnapshot, kind vmsnapshotv1.ConditionType) string {
	if s.Status == nil {
		return ""
	}
	for _, c := range s.Status.Conditions {
		if c.Type == kind {
			return cmp.Or(c.Message, c.Reason)
		}
	}
	return ""
}

// describeSnapshotProgress says what a VirtualMachineSnapshot waits for.
func describeSnapshotProgress(s *vmsnapshotv1.VirtualMachineSnapshot) string {
	text := fmt.Sprintf("VirtualMachineSnapshot %s to be ready", s.Name)
	why := errorOf(s)
	if why == "" {
		why = conditionOf(s, vmsnapshotv1.ConditionProgressing)
	}
	if why != "" {
		text += ": " + why
	}
	return text
}

// observeContent writes into the status how far the VolumeSnapshots are.
func observeContent(s *harvesterv1.VirtualMachineBackupStatus, content *vmsnapshotv1.VirtualMachineSnapshotContent) {
	ready := 0
	for i := range s.VolumeBackups {
		v := &s.VolumeBackups[i]
		taken := findTaken(content, v)
		if taken == nil {
			continue
		}
		v.VolumeSnapshotName = taken.VolumeSnapshotName
		if content.Status == nil {
			continue
		}
		for _, one := range content.Status.VolumeSnapshotStatus {
			if one.VolumeSnapshotName == *v.VolumeSnapshotName && one.CreationTime != nil {
				v.CreationTime = one.CreationTime
			}
			if one.VolumeSnapshotName == *v.VolumeSnapshotName && ptr.Deref(one.ReadyToUse, false) {
				v.Progress = 100
				ready++
			}
		}
	}
	s.Progress = max(s.Progress, min(99, 100*ready/len(s.VolumeBackups)))
}

// findTaken returns the VolumeSnapshot of a disk's claim in the content, or nil.
func findTaken(content *vmsnapshotv1.VirtualMachineSnapshotContent, v *harvesterv1.VolumeBackup) *vmsnapshotv1.VolumeBackup {
	for i := range content.Spec.VolumeBackups {
		taken := &content.Spec.VolumeBackups[i]
		if taken.VolumeName == v.VolumeName && ptr.Deref(taken.VolumeSnapshotName, "") != "" &&
			taken.PersistentVolumeClaim.ObjectMeta.Name == v.PersistentVolumeClaim.ObjectMeta.Name {
			return taken
		}
	}
	return nil
}

// describeTaken writes into the status how consistent a VirtualMachineSnapshot is that is ready, and says how it differs
// from what was planned, or "".
func describeTaken(b *harvesterv1.VirtualMachineBackup, s *vmsnapshotv1.VirtualMachineSnapshot, content *vmsnapshotv1.VirtualMachineSnapshotContent) (failed string) {
	const another = ": create another backup"
	switch {
	case s.Status.SourceUID == nil:
		return fmt.Sprintf("VirtualMachineSnapshot %s does not say of which machine it is%s", s.Name, another)
	case content == nil:
		return fmt.Sprintf("VirtualMachineSnapshot %s is ready, and its VirtualMachineSnapshotContent is not there%s",
			s.Name, another)
	}
	b.Status.SourceIndications = nil
	for _, i := range s.Status.SourceIndications {
		b.Status.SourceIndications = append(b.Status.SourceIndications,
			harvesterv1.SourceIndication{Indication: string(i.Indication), Message: i.Message})
	}
	for i := range b.Status.VolumeBackups {
		v := &b.Status.VolumeBackups[i]
		if findTaken(content, v) == nil {
			return fmt.Sprintf("volume %s (PersistentVolumeClaim %s) is not in VirtualMachineSnapshot %s: its "+
				"storage may not make snapshots, or the machine was changed meanwhile. Leave the volume out with "+
				"the annotation %s, or create another backup",
				v.VolumeName, v.PersistentVolumeClaim.ObjectMeta.Name, s.Name, harvesterv1.AnnotationExcludeVolumes)
		}
	}
	for i := range content.Spec.VolumeBackups {
		name := content.Spec.VolumeBackups[i].VolumeName
		if !strings.HasPrefix(name, stateVolumePrefix) && !slices.ContainsFunc(b.Status.VolumeBackups,
			func(v harvesterv1.VolumeBackup) bool { return v.VolumeName == name }) &&
			!slices.ContainsFunc(b.Status.ExcludedVolumes,
				func(v harvesterv1.ExcludedVolume) bool { return v.Name == name }) {
			return fmt.Sprintf("volume %s was added to the machine before its snapshot was taken%s", name, another)
		}
	}
	return ""
}

// checkVolumeSnapshots reads the VolumeSnapshots, and says which one cannot be used, or "".
func (r *reconciler) checkVolumeSnapshots(ctx context.Context, b *harvesterv1.VirtualMachineBackup) (failed string, err error) {
	b.Status.CSIDriverVolumeSnapshotClassNames = nil
	for i := range b.Status.VolumeBackups {
		v := &b.Status.VolumeBackups[i]
		key := types.NamespacedName{Namespace: b.Namespace, Name: *v.VolumeSnapshotName}
		snapshot, err := reconcile.Find(ctx, r.live, key, &snapshotv1.VolumeSnapshot{})
		switch {
		case err != nil:
			return "", err
		case snapshot == nil || snapshot.DeletionTimestamp != nil:
			return fmt.Sprintf("volume %s: VolumeSnapshot %s was deleted by somebody else", v.VolumeName, key.Name), nil
		case snapshot.Status == nil || !ptr.Deref(snapshot.Status.ReadyToUse, false):
			return fmt.Sprintf("volume %s: VolumeSnapshot %s is not ready to use", v.VolumeName, key.Name), nil
		}
		v.ReadyToUse, v.Progress = ptr.To(true), 100
		v.CreationTime = cmp.Or(snapshot.Status.CreationTime, v.CreationTime)
		if size := snapshot.Status.RestoreSize; size != nil {
			v.VolumeSize = max(v.VolumeSize, size.Value())
		}
		if class := ptr.Deref(snapshot.Spec.VolumeSnapshotClassName, ""); class != "" && v.CSIDriverName != "" {
			if b.Status.CSIDriverVolumeSnapshotClassNames == nil {
				b.Status.CSIDriverVolumeSnapshotClassNames = map[string]string{}
			}
			b.Status.CSIDriverVolumeSnapshotClassNames[v.CSIDriverName] = class
		}
	}
	return "", nil
}

// markUnready takes back what a failed snapshot has said of its disks: its VolumeSnapshots are deleted.
func markUnready(s *harvesterv1.VirtualMachineBackupStatus) {
	for i := range s.VolumeBackups {
		s.VolumeBackups[i].ReadyToUse, s.VolumeBackups[i].VolumeSnapshotName = ptr.To(false), nil
	}
}

// deleteSnapshot deletes the VirtualMachineSnapshot, and with it the VolumeSnapshots, and says what is left.
func (r *reconciler) deleteSnapshot(ctx context.Context, b *harvesterv1.VirtualMachineBackup) (left string, err error) {
	if b.Status.Group == "" {
		return "", nil // it was not planned
	}
	s, err := r.findSnapshot(ctx, b)
	if err != nil || s == nil {
		if meta.IsNoMatchError(err) {
			return "", nil // the kind is gone, and all its objects with it
		}
		return "", err
	}
	left = fmt.Sprintf("VirtualMachineSnapshot %s to be deleted with its VolumeSnapshots", s.Name)
	if why := errorOf(s); why != "" {
		left += " (" + why + ")"
	}
	return left, r.children.Remove(ctx, s)
}
