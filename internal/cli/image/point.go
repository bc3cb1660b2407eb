package image

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/errclass"
)

// findPoint adds the restore point of --from-backup or --from-image-backup to an image.
func (r *request) findPoint(ctx context.Context, c *cluster.Client, b *longhornv1.BackingImage) error {
	switch {
	case r.fromImageBackup != "":
		return r.findImageBackup(ctx, c, b)
	case r.fromBackup == "":
		return nil
	}
	namespace, name, _ := strings.Cut(r.fromBackup, "/")
	backup := &harvesterv1.VirtualMachineBackup{}
	if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, backup); err != nil {
		return fmt.Errorf("get machine backup %s: %w", r.fromBackup, err)
	}
	if err := r.checkBackup(backup, b.Namespace); err != nil {
		return err
	}
	disk, err := r.chooseDisk(backup)
	if err != nil {
		return err
	}
	id, err := datamove.ParseSnapshotID(disk.SnapshotID)
	if err != nil || id.Form != datamove.Disk {
		return errclass.Errorf(errclass.Invalid, "volume %s of machine backup %s is not stored as a disk (snapshot ID %q): "+
			"restore it with 'varve vm restore'", disk.VolumeName, r.fromBackup, disk.SnapshotID)
	}
	setPoint(b.Spec.SourceParameters, backup.Status.Location.Name, disk.SnapshotID)
	return nil
}

// setPoint adds a restore point to the parameters of an image's source.
func setPoint(parameters map[string]longhornv1.ParameterValue, location, snapshotID string) {
	parameters[longhornv1.ParameterLocation] = longhornv1.ParameterValue(location)
	parameters[longhornv1.ParameterSnapshotID] = longhornv1.ParameterValue(snapshotID)
}

// checkBackup refuses a backup that no image can be made of in a namespace.
func (r *request) checkBackup(backup *harvesterv1.VirtualMachineBackup, namespace string) error {
	location := backup.Status.Location
	switch {
	case backup.Spec.Type == harvesterv1.Snapshot:
		return errclass.Errorf(errclass.Invalid, "machine backup %s is a snapshot in the machine's storage, which no "+
			"repository has: make a backup, or use --from-claim", r.fromBackup)
	case !ptr.Deref(backup.Status.ReadyToUse, false) || location == nil:
		return errclass.Errorf(errclass.Conflict, "machine backup %s is not complete: wait until 'varve vm backups' shows "+
			"it as ready", r.fromBackup)
	case location.Namespace != namespace:
		return errclass.Errorf(errclass.Invalid, "machine backup %s is in a location of namespace %s, and the image is made "+
			"in namespace %s: create the location there, and use --from-snapshot-id", r.fromBackup, location.Namespace,
			namespace)
	}
	return nil
}

// chooseDisk returns the disk of a backup that --volume names, or its only one.
func (r *request) chooseDisk(backup *harvesterv1.VirtualMachineBackup) (*harvesterv1.VolumeBackup, error) {
	disks := backup.Status.VolumeBackups
	var all []string
	for i := range disks {
		if disks[i].VolumeName == r.volume || r.volume == "" && len(disks) == 1 {
			return &disks[i], nil
		}
		all = append(all, disks[i].VolumeName)
	}
	switch {
	case len(all) == 0:
		return nil, errclass.Errorf(errclass.NotFound, "machine backup %s has no disk", r.fromBackup)
	case r.volume == "":
		return nil, failure.Usage("machine backup %s has %d disks: name one with --volume: %s", r.fromBackup, len(all),
			strings.Join(all, ", "))
	}
	return nil, errclass.Errorf(errclass.NotFound, "machine backup %s has no volume %s: give one of %s", r.fromBackup,
		r.volume, strings.Join(all, ", "))
}

// findImageBackup adds the restore point of --from-image-backup to an image, and the checksum that it must have.
func (r *request) findImageBackup(ctx context.Context, c *cluster.Client, b *longhornv1.BackingImage) error {
	from := &longhornv1.BackupBackingImage{}
	key := client.ObjectKey{Namespace: b.Namespace, Name: r.fromImageBackup}
	if err := c.Get(ctx, key, from); err != nil {
		return fmt.Errorf("get image backup %s: %w", key, err)
	}
	s := &from.Status
	if s.State != longhornv1.BackupCompleted || s.SnapshotID == "" || from.DeletionTimestamp != nil {
		return errclass.Errorf(errclass.Conflict, "image backup %s has no restore point (%s): wait until it is complete",
			r.fromImageBackup, cmp.Or(s.Error, s.Message, string(s.State), "it has not begun"))
	}
	setPoint(b.Spec.SourceParameters, s.Location, s.SnapshotID)
	b.Spec.Checksum = cmp.Or(b.Spec.Checksum, s.Checksum)
	return nil
}
