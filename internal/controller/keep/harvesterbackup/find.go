package harvesterbackup

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/controller/keep/stored"
	"github.com/varvebackup/varve/internal/datamove"
)

// isFound says whether a backup is one that a location has already: of another cluster, or of this one before it was made
// again.
func isFound(b *harvesterv1.VirtualMachineBackup) bool {
	return b.Annotations[harvesterv1.AnnotationSnapshotID] != "" && !isSnapshot(b)
}

// definitionRequest asks for the definition of such a backup, whose location is known.
func definitionRequest(b *harvesterv1.VirtualMachineBackup) stored.Request {
	return stored.Request{
		Owner: b.UID, Name: groupName(b.Name, b.UID) + ".definition", Location: *b.Status.Location,
		SnapshotID: b.Annotations[harvesterv1.AnnotationSnapshotID], Namespace: b.Namespace,
	}
}

// findStored writes into the status what a location has of the machine. Then it can be restored as any other backup.
func (r *reconciler) findStored(ctx context.Context, b *harvesterv1.VirtualMachineBackup) (ctrl.Result, error) {
	base, now := b.DeepCopy(), r.Clock.Now()
	if refused := checkSnapshotID(b); refused != "" {
		return ctrl.Result{}, r.endFailed(ctx, base, b, refused)
	}
	wait := func(what string) (ctrl.Result, error) {
		deadline := b.CreationTimestamp.Add(startDeadline)
		if now.After(deadline) {
			return ctrl.Result{}, r.endFailed(ctx, base, b, fmt.Sprintf("waited %s for %s", startDeadline, what))
		}
		setProgressing(&b.Status, now, what+", until "+deadline.UTC().Format(time.RFC3339))
		return ctrl.Result{RequeueAfter: lookEvery}, r.writeStatus(ctx, base, b)
	}
	if b.Status.Location == nil {
		location, p, err := r.chooseStored(ctx, b)
		switch {
		case err != nil:
			return ctrl.Result{}, err
		case p != nil && p.refused != "":
			return ctrl.Result{}, r.endFailed(ctx, base, b, p.refused)
		case p != nil:
			return wait(p.waiting)
		}
		b.Status.Location = &harvesterv1.LocationReference{Namespace: location.Namespace, Name: location.Name}
		b.Status.BackupTarget = targetOf(location)
		if err := r.writeStatus(ctx, base, b); err != nil {
			return ctrl.Result{}, err
		}
		base = b.DeepCopy()
	}
	answer, err := r.stored.Read(ctx, definitionRequest(b))
	switch {
	case err != nil:
		return ctrl.Result{}, err
	case answer.Failed != "":
		return ctrl.Result{}, r.endFailed(ctx, base, b, answer.Failed)
	case answer.Definition == nil:
		return wait(answer.Waiting)
	}
	if refused := describeStored(b, &answer); refused != "" {
		return ctrl.Result{}, r.endFailed(ctx, base, b, refused)
	}
	setReady(&b.Status, now)
	return ctrl.Result{}, r.writeStatus(ctx, base, b)
}

// checkSnapshotID says why the annotation names no disk that the backup may have, or "". A disk of another namespace is
// another tenant's.
func checkSnapshotID(b *harvesterv1.VirtualMachineBackup) (refused string) {
	id, err := datamove.ParseSnapshotID(b.Annotations[harvesterv1.AnnotationSnapshotID])
	switch {
	case err != nil:
		return fmt.Sprintf("the annotation %s: %v", harvesterv1.AnnotationSnapshotID, err)
	case id.Namespace != b.Namespace:
		return fmt.Sprintf("the annotation %s names a disk of namespace %s: create the backup there, and restore it from there into any namespace",
			harvesterv1.AnnotationSnapshotID, id.Namespace)
	}
	return ""
}

// chooseStored returns the location that has the backup.
func (r *reconciler) chooseStored(ctx context.Context, b *harvesterv1.VirtualMachineBackup) (*velerov1.BackupStorageLocation, *plan, error) {
	in := &input{now: r.Clock.Now(), backup: b}
	var err error
	if in.locations, err = r.listLocations(ctx); err != nil {
		return nil, nil, err
	}
	location, p := in.chooseLocation()
	return location, p, nil
}

// describeStored writes into the status what was read, or says why no machine can be made of it.
func describeStored(b *harvesterv1.VirtualMachineBackup, a *stored.Answer) (refused string) {
	d := a.Definition
	if name := d.Machine.ObjectMeta.Name; name != b.Spec.Source.Name {
		return fmt.Sprintf("the annotation %s names a disk of virtual machine %s: name that one in spec.source.name",
			harvesterv1.AnnotationSnapshotID, name)
	}
	s := &b.Status
	s.Source, s.ExcludedVolumes, s.VolumeBackups = d.Machine.DeepCopy(), d.ExcludedVolumes, nil
	s.SecretBackups = nil
	for _, secret := range d.Secrets {
		s.SecretBackups = append(s.SecretBackups, harvesterv1.SecretBackup{Name: secret.Name})
	}
	var missing []string
	for _, claim := range d.Claims {
		name := claim.PersistentVolumeClaim.ObjectMeta.Name
		i := slices.IndexFunc(a.Disks, func(disk datamove.StoredDisk) bool { return disk.Claim == name })
		if i < 0 {
			missing = append(missing, fmt.Sprintf("%s (claim %s)", claim.Volume, name))
			continue
		}
		disk := a.Disks[i]
		s.VolumeBackups = append(s.VolumeBackups, harvesterv1.VolumeBackup{
			Name: ptr.To(d.Backup.Name + "-volume-" + name), VolumeName: claim.Volume, SnapshotID: disk.SnapshotID,
			PersistentVolumeClaim: claim.PersistentVolumeClaim, VolumeSize: disk.Bytes, Progress: 100,
			ReadyToUse:   ptr.To(true),
			CreationTime: ptr.To(metav1.NewTime(disk.Time)),
		})
	}
	if len(missing) > 0 {
		return fmt.Sprintf("the location does not have all disks of virtual machine %s as they were stored: %s is missing. `varve disk list` shows what is there, and `varve disk restore` restores one disk",
			b.Spec.Source.Name, strings.Join(missing, ", "))
	}
	return ""
}

// deleteRequest deletes what was made to read the definition, and says whether something is left.
func (r *reconciler) deleteRequest(ctx context.Context, b *harvesterv1.VirtualMachineBackup) (left bool, err error) {
	if b.Status.Location == nil {
		return false, nil
	}
	return r.stored.Delete(ctx, definitionRequest(b))
}
