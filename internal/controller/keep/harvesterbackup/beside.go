package harvesterbackup

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/internal/reconcile"
)

// Beside KubeVirt, a backup of a running machine makes a pull backup of KubeVirt's, which fixes the moment, and a token for
// its endpoints. Each DataUpload reads a disk there. KubeVirt moves its tracker when its backup is deleted, whether or not
// anybody has read it. So the disks of the next backup may be incremental to a checkpoint that the repository does not
// have: after a backup that failed, the next one asks KubeVirt for everything.

// pullMode is the mode as KubeVirt's versions 1.8 and 1.9 spell it.
const pullMode backupv1.BackupMode = "Pull"

// pullTTL ends a pull backup that nobody has deleted. It is longer than any disk is read.
const pullTTL = 7 * 24 * time.Hour

// makePull makes KubeVirt's backup, and the token that opens its endpoints, and waits until it has begun. If an
// incremental one does not begin, it is made once more, as a full one.
func (r *reconciler) makePull(
	ctx context.Context, b *harvesterv1.VirtualMachineBackup,
) (waiting, refused string, err error) {
	token := pullToken(b)
	token.Data = map[string][]byte{podspec.TokenKey: []byte(rand.Text() + rand.Text())}
	if refused, err := r.children.Make(ctx, b.UID, token); refused != "" || err != nil {
		return "", refused, err
	}
	key := client.ObjectKeyFromObject(pullBackup(b, false))
	job, err := reconcile.Find(ctx, r.live, key, &backupv1.VirtualMachineBackup{})
	if err != nil {
		return "", "", err
	}
	if job == nil || job.Labels[LabelBackup] != string(b.UID) {
		full, err := r.needsFull(ctx, b)
		if err != nil {
			return "", "", err
		}
		job = pullBackup(b, full)
		if refused, err := r.children.Make(ctx, b.UID, job); refused != "" || err != nil {
			return "", refused, err
		}
	}
	v := judgePull(job, b.Status.MadeAgain, r.Clock.Now())
	if v.again != "" {
		return v.waiting, "", r.makePullAgain(ctx, b, job, v.again)
	}
	return v.waiting, v.refused, nil
}

// makePullAgain notes why KubeVirt's backup is made again, and then deletes it.
func (r *reconciler) makePullAgain(
	ctx context.Context, b *harvesterv1.VirtualMachineBackup, job *backupv1.VirtualMachineBackup, why string,
) error {
	if b.Status.MadeAgain == "" {
		base := b.DeepCopy()
		b.Status.MadeAgain = why
		if err := r.writeStatus(ctx, base, b); err != nil {
			return err
		}
		r.events.Eventf(b, nil, corev1.EventTypeWarning, "MadeAgain", "BackUp", "%s", why)
	}
	return r.children.Remove(ctx, job)
}

// needsFull says whether the tracker's checkpoint may be one that the repository does not have, or lacks a disk, or did
// not let a backup begin.
func (r *reconciler) needsFull(ctx context.Context, b *harvesterv1.VirtualMachineBackup) (bool, error) {
	if b.Status.MadeAgain != "" {
		return true, nil
	}
	var list harvesterv1.VirtualMachineBackupList
	if err := r.live.List(ctx, &list, client.InNamespace(b.Namespace)); err != nil {
		return false, fmt.Errorf("list the backups of %s: %w", b.Namespace, err)
	}
	var latest metav1.Time
	stored := false
	for i := range list.Items {
		o := &list.Items[i]
		if o.UID == b.UID || o.Status.SourceUID == nil || *o.Status.SourceUID != *b.Status.SourceUID || isFound(o) ||
			o.Status.Location == nil || *o.Status.Location != *b.Status.Location || o.CreationTimestamp.Before(&latest) {
			continue
		}
		// Times have whole seconds: of several backups of one second, any may have run last.
		isStored := o.IsReady() && o.DeletionTimestamp == nil
		stored = isStored && (stored || latest.Before(&o.CreationTimestamp))
		latest = o.CreationTimestamp
	}
	if !stored {
		return true, nil
	}
	t := newTracker(b)
	tracker, err := reconcile.Find(ctx, r.live, client.ObjectKeyFromObject(t), t)
	if err != nil {
		return false, err
	}
	instance, err := r.findInstance(ctx, client.ObjectKey{Namespace: b.Namespace, Name: b.Spec.Source.Name})
	if err != nil {
		return false, err
	}
	return !hasBitmaps(tracker, b, instance), nil
}

// hasBitmaps says whether the tracker's checkpoint has all disks of a backup. KubeVirt asks the hypervisor for the changes
// of all or of none: with one that was added since, it tries until the backup's time is up.
func hasBitmaps(
	tracker *backupv1.VirtualMachineBackupTracker, b *harvesterv1.VirtualMachineBackup,
	instance *kubevirtv1.VirtualMachineInstance,
) bool {
	if tracker == nil || tracker.Status.LatestCheckpoint == nil || instance == nil {
		return false
	}
	has := map[string]bool{}
	for _, v := range tracker.Status.LatestCheckpoint.Volumes {
		has[v.VolumeName] = true
	}
	for i := range b.Status.VolumeBackups {
		if !has[b.Status.VolumeBackups[i].VolumeName] {
			return false
		}
	}
	// KubeVirt has all disks of the guest in its backup, also those that are left out of this one.
	for _, v := range b.Status.ExcludedVolumes {
		left := v.Reason == harvesterv1.ExcludedByUser || v.Reason == harvesterv1.HotPlugged
		if left && !has[v.Name] && claimOf(&instance.Spec, v.Name) != "" {
			return false
		}
	}
	return true
}

// endPull deletes KubeVirt's backup, if there is one.
func (r *reconciler) endPull(ctx context.Context, b *harvesterv1.VirtualMachineBackup) error {
	if !r.BesideKubeVirt {
		return nil
	}
	job := pullBackup(b, false)
	if err := r.children.Delete(ctx, b.UID, job); err != nil || job.DeletionTimestamp == nil {
		return err
	}
	return r.giveTracker(ctx, b)
}

// giveTracker makes the tracker again if it has gone before KubeVirt's backup, which cannot end without it. The new one
// goes with the backup.
func (r *reconciler) giveTracker(ctx context.Context, b *harvesterv1.VirtualMachineBackup) error {
	t := newTracker(b)
	have, err := reconcile.Find(ctx, r.live, client.ObjectKeyFromObject(t), &backupv1.VirtualMachineBackupTracker{})
	if err != nil || have != nil {
		return err
	}
	t.OwnerReferences = []metav1.OwnerReference{ownerReference(b)}
	if err := r.cached.Create(ctx, t); client.IgnoreAlreadyExists(err) != nil {
		return fmt.Errorf("make tracker %s again, without which KubeVirt's backup does not end: %w", t.Name, err)
	}
	return nil
}

// pullToken returns the Secret with the token, without its content.
func pullToken(b *harvesterv1.VirtualMachineBackup) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: b.Namespace, Name: b.Status.Group + "-token",
		OwnerReferences: []metav1.OwnerReference{ownerReference(b)},
	}}
}

// pullBackup returns KubeVirt's backup, with the fields alone that its versions 1.8 and 1.9 know.
func pullBackup(b *harvesterv1.VirtualMachineBackup, full bool) *backupv1.VirtualMachineBackup {
	return &backupv1.VirtualMachineBackup{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: b.Namespace, Name: b.Status.Group, OwnerReferences: []metav1.OwnerReference{ownerReference(b)},
		},
		Spec: backupv1.VirtualMachineBackupSpec{
			Source: &corev1.TypedLocalObjectReference{
				APIGroup: ptr.To(backupv1.GroupVersion.Group), Kind: backupv1.SourceKindTracker,
				Name: trackerName(*b.Status.SourceUID, *b.Status.Location),
			},
			Mode: pullMode, PVCName: scratchName(b.Status.Group), TokenSecretRef: ptr.To(pullToken(b).Name),
			SkipQuiesce: b.Annotations[harvesterv1.AnnotationFreeze] == "false", ForceFullBackup: full,
			TTLDuration: &metav1.Duration{Duration: pullTTL},
		},
	}
}

// pulledDisk says which disk of KubeVirt's backup a DataUpload stores.
func pulledDisk(b *harvesterv1.VirtualMachineBackup, v *harvesterv1.VolumeBackup) map[string]string {
	disk := datamove.BackupDisk{
		Backup: b.Status.Group, Volume: v.VolumeName, Group: b.Status.Group, Definition: string(b.UID),
	}
	return disk.Config()
}
