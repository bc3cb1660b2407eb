package moverpod

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/varvebackup/varve/internal/csichanges"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/mover"
	"github.com/varvebackup/varve/internal/repository"
)

// granuleBytes is the unit of a snapshot's allocated and changed bytes. It bounds the number of extents.
const granuleBytes = 64 << 10

// snapshotUpload is the upload of a Block volume that was made from a CSI snapshot. If the snapshot's driver says what has changed since the
// snapshot of an earlier restore point, nothing else is read. In any doubt everything is read, and the report says why. What a driver says within
// the rules, and wrongly, is found by samples alone.
type snapshotUpload struct {
	*run

	// point is the ID of the restore point to be.
	point string
	from  *datamove.SnapshotSource
	// base is what changes are counted from; nil: nothing, for the reason full, which is "" for a volume that is stored for the first time.
	base *baseSnapshot
	// full and detail say why the upload is no incremental.
	full, detail string
	opened       bool
}

// uploadSnapshot makes a restore point of the device at path.
func (r *run) uploadSnapshot(ctx context.Context, repo *repository.Repository, id, path string) (datamove.Report, error) {
	history := r.history(repo)
	points, err := repo.List(ctx, &history)
	if err != nil && !errors.Is(err, errclass.Corrupt) { // What is damaged is no base, and counts for as little as what was deleted.
		return datamove.Report{}, judge(err)
	}
	u := &snapshotUpload{run: r, point: id, from: r.Job.Snapshot}
	var why string
	if u.base, why = chooseBase(points, id, string(r.Job.SourceUID), r.Job.Snapshot.SnapshotMoment); why != "" {
		u.noIncremental(datamove.FullNoBaseSnapshot, why)
	}
	source := mover.Source{
		Name: datamove.DiskName, Identity: string(r.Job.SourceUID), Checkpoint: u.from.Name(id),
		Open: func(ctx context.Context) (disk.Source, error) { return u.open(ctx, path) },
	}
	parent := ""
	if u.base != nil {
		parent, source.Options.Bitmap = u.base.point.ID, u.base.name
	}
	r.Log.Info("storing a snapshot", "path", path, "restorePoint", id, "snapshot", u.from.Snapshot, "parent", parent)
	report, err := r.storeDisk(ctx, repo, id, source, parent, judgeUpload)
	if err != nil {
		return report, err
	}
	return report, u.addReason(ctx, repo, &report)
}

// open opens the device, and asks the driver about it.
func (u *snapshotUpload) open(ctx context.Context, path string) (disk.Source, error) {
	device, err := disk.OpenSource(ctx, path, disk.SourceOptions{Format: disk.Raw})
	if err != nil {
		return nil, err
	}
	u.opened = true
	d := &snapshotDisk{Source: device}
	u.ask(ctx, d)
	if ctx.Err() != nil {
		return nil, errors.Join(context.Cause(ctx), device.Close())
	}
	if u.full != "" {
		u.Log.Warn("the upload is no incremental", "reason", u.full, "detail", u.detail)
	}
	return d, nil
}

// ask gives d what the driver says. Whatever goes wrong, d is read as a whole. A driver that no longer knows the base is not asked for
// changes, but has said nothing wrong.
func (u *snapshotUpload) ask(ctx context.Context, d *snapshotDisk) {
	at := u.from.Metadata
	if at == nil {
		u.noIncremental(datamove.FullNoSnapshotMetadata, u.from.NoMetadata)
		return
	}
	client, err := csichanges.NewClient(&csichanges.Service{Address: at.Address, CA: at.CA, Audience: at.Audience}, u.snapshotToken, u.limits.metadata)
	if err != nil {
		u.noIncremental(datamove.FullNoSnapshotMetadata, err.Error())
		return
	}
	defer func() { _ = client.Close() }() // Nothing is written to it.
	u.Log.Info("asking the CSI driver about the snapshot", "driver", u.from.Driver, "address", at.Address)
	s := csichanges.Snapshot{Namespace: at.Namespace, Name: at.Name, Bytes: d.Bytes()}
	var baseGone error
	switch {
	case u.base == nil:
	case u.base.disk.Bytes != s.Bytes:
		u.noIncremental(datamove.FullNoBaseSnapshot, fmt.Sprintf("the volume has %d bytes, and had %d in restore point %s", s.Bytes, u.base.disk.Bytes, u.base.point.ID))
	default:
		changed, err := client.Changed(ctx, u.base.moment.Snapshot, s)
		if err == nil {
			changed = changed.Widen(granuleBytes, s.Bytes)
			d.changed = &changed
			return
		}
		if !errors.Is(err, errclass.NotFound) {
			u.noIncremental(datamove.FullNoSnapshotMetadata, err.Error())
			return
		}
		baseGone = err
	}
	err = u.askAllocated(ctx, client, s, d)
	switch {
	case baseGone != nil && err == nil:
		u.noIncremental(datamove.FullNoBaseSnapshot, baseGone.Error())
	case err != nil:
		if baseGone != nil {
			u.noIncremental(datamove.FullNoSnapshotMetadata, baseGone.Error())
		}
		u.noIncremental(datamove.FullNoSnapshotMetadata, err.Error())
	}
}

// askAllocated gives d where the snapshot has data.
func (u *snapshotUpload) askAllocated(ctx context.Context, client *csichanges.Client, s csichanges.Snapshot, d *snapshotDisk) error {
	allocated, err := client.Allocated(ctx, s)
	if err != nil {
		return err
	}
	allocated = allocated.Widen(granuleBytes, s.Bytes)
	rest := extent.NewSet(extent.Extent{Length: s.Bytes}).Subtract(allocated)
	if err := checkZeroSamples(ctx, d.Source, rest, u.point); err != nil {
		return err
	}
	d.data = &allocated
	return nil
}

// noIncremental notes a reason. The first one stays the reason, and the details add up.
func (u *snapshotUpload) noIncremental(full, detail string) {
	detail = shorten(detail) // A service may say as much as it likes.
	if u.full == "" {
		u.full, u.detail = full, detail
		return
	}
	u.detail += "; " + detail
}

// addReason completes a report.
func (u *snapshotUpload) addReason(ctx context.Context, repo *repository.Repository, report *datamove.Report) error {
	switch {
	case report.FullReason == string(repository.FullOtherContent):
		report.FullDetail = fmt.Sprintf("the CSI driver %s says that a part of the volume has not changed since snapshot %s, and it has", u.from.Driver, u.base.describe())
	case u.opened:
		report.FullReason, report.FullDetail = cmp.Or(report.FullReason, u.full), shorten(u.detail)
	case report.FullReason != "":
	default: // Another process of this pod has stored it.
		p, err := repo.Get(ctx, u.point)
		if err != nil {
			return judge(err)
		}
		if d, err := p.Disk(datamove.DiskName); err == nil && d.FullReason == repository.FullNoChanges {
			report.FullReason, report.FullDetail = datamove.FullNoSnapshotMetadata, "the mover was started again after it had stored the volume, and does not know the reason any more"
		}
	}
	return nil
}

// snapshotToken reads the token that the kubelet renews. A service may send it back, so it is hidden.
func (r *run) snapshotToken(context.Context, string) (string, error) {
	text, err := os.ReadFile(r.Files.SnapshotToken)
	if err != nil {
		return "", fmt.Errorf("read the token for the snapshot metadata service: %w", err)
	}
	token := strings.TrimSpace(string(text))
	r.Secrets.Hide(token)
	return token, nil
}

// snapshotDisk is a device that was made from a snapshot, and what the snapshot's driver has said about it.
type snapshotDisk struct {
	disk.Source

	// data may be nonzero; nil: ask the device. changed has changed since the base; nil: not known.
	data, changed *extent.Set
}

// Data implements disk.Source.
func (d *snapshotDisk) Data(ctx context.Context) (*extent.Set, error) {
	if d.data != nil {
		return d.data, nil
	}
	return d.Source.Data(ctx)
}

// Changes implements disk.Source.
func (d *snapshotDisk) Changes(context.Context) (*extent.Set, error) { return d.changed, nil }
