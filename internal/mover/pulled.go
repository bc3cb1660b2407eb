package mover

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"strings"

	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export/endpoint"
	"github.com/varvebackup/varve/internal/repository"
)

// PulledBackup is a backup in pull mode that becomes a restore point.
type PulledBackup struct {
	// UID is the backup's. There is one restore point of it, however often it is stored.
	UID string
	// Checkpoint is the one that the backup makes, and BaseCheckpoint, made by the backup BaseUID, the one that its
	// incremental volumes start from. Either may be "".
	Checkpoint              string
	BaseCheckpoint, BaseUID string
	// Machine distinguishes the machine from every other one, such as namespace/name.
	Machine string
	Volumes []endpoint.Volume
}

// AddTo completes a request: its ID, its sources, and the parent. That is the restore point that recorded the base of the
// incremental volumes. Without one, they are read as a whole, and the restore point says why.
func (b *PulledBackup) AddTo(ctx context.Context, r *repository.Repository, client *endpoint.Client, q *BackupRequest) error {
	points, err := listReadable(ctx, r, q.History)
	if err != nil {
		return err
	}
	q.ID, q.Parent = b.restorePointID(), repository.ParentAuto
	base := QualifyCheckpoint(b.BaseUID, b.BaseCheckpoint)
	for _, v := range b.Volumes {
		identity := "pull:" + b.Machine + "/" + v.Name
		s := Source{
			Name: v.Name, Identity: identity, Checkpoint: QualifyCheckpoint(b.UID, b.Checkpoint),
			Open: func(ctx context.Context) (disk.Source, error) { return client.OpenDisk(ctx, v, identity) },
		}
		if v.Incremental {
			s.Options.Bitmap = base
			if id := pointWith(points, v.Name, base); id != "" {
				q.Parent = id
			}
		}
		q.Sources = append(q.Sources, s)
	}
	return nil
}

// restorePointID returns the ID of the restore point of the backup.
func (b *PulledBackup) restorePointID() string {
	id := strings.ReplaceAll(b.UID, "-", "")
	if raw, err := hex.DecodeString(id); err == nil && len(raw) == 16 && id == strings.ToLower(id) {
		return id
	}
	sum := sha256.Sum256([]byte(b.UID))
	return hex.EncodeToString(sum[:16])
}

// QualifyCheckpoint returns a checkpoint's name with the backup that made it, which makes it unique among clusters; "" without
// a checkpoint.
func QualifyCheckpoint(backupUID, name string) string {
	if backupUID == "" || name == "" {
		return ""
	}
	return name + "@" + backupUID
}

// PointWithCheckpoint returns the ID of a restore point of a history that has the checkpoint for a disk, or "". All that have it hold the
// same bytes.
func PointWithCheckpoint(ctx context.Context, r *repository.Repository, history repository.Source, diskName, checkpoint string) (string, error) {
	points, err := listReadable(ctx, r, history)
	if err != nil {
		return "", err
	}
	return pointWith(points, diskName, checkpoint), nil
}

// listReadable returns the restore points of a history, without those that are damaged.
func listReadable(ctx context.Context, r *repository.Repository, history repository.Source) ([]*repository.RestorePoint, error) {
	points, err := r.List(ctx, &history)
	if errors.Is(err, errclass.Corrupt) {
		err = nil
	}
	return points, err
}

// pointWith returns the latest restore point that has the checkpoint for a disk, or "".
func pointWith(points []*repository.RestorePoint, diskName, checkpoint string) string {
	for _, p := range slices.Backward(points) {
		if d, err := p.Disk(diskName); err == nil && checkpoint != "" && d.Change == checkpoint {
			return p.ID
		}
	}
	return ""
}
