package moverpod

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/durable"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/mover"
	"github.com/varvebackup/varve/internal/repository"
)

// imageMode is the mode of an image that was restored: that of the images that CDI makes for KubeVirt. The kubelet gives the group.
const imageMode = 0o660

// download writes a restore point to the volume.
func (r *run) download(ctx context.Context, repo *repository.Repository) (datamove.Report, error) {
	id, err := datamove.ParseSnapshotID(r.Job.SnapshotID)
	if err != nil {
		return datamove.Report{}, lasting(err, "restore it with the data mover that has backed it up")
	}
	if r.Job.ReadDefinition {
		return r.downloadDefinition(ctx, repo, id)
	}
	if id.Form == datamove.Files && r.Job.VolumeMode == corev1.PersistentVolumeBlock {
		return datamove.Report{}, lasting(errclass.Errorf(errclass.Invalid, "the backup has files, and the target claim has the volumeMode Block"), "restore it to a claim with the volumeMode Filesystem")
	}
	point, err := repo.Get(ctx, id.Point)
	if err != nil {
		return datamove.Report{}, judgeAbsence(err, "it was deleted, or the backup location is not the one that it was stored in")
	}
	if id.Form == datamove.Files {
		return r.downloadFiles(ctx, repo, point)
	}
	var report datamove.Report
	err = mover.WithLease(ctx, repo, point.ID, r.warn, func() (err error) {
		report, err = r.downloadDisk(ctx, repo, point)
		return err
	})
	return report, judgeDownload(err)
}

// downloadDisk writes a disk to a device, or to the image on a file system.
func (r *run) downloadDisk(ctx context.Context, repo *repository.Repository, point *repository.RestorePoint) (datamove.Report, error) {
	d, err := point.Disk(datamove.DiskName)
	if err != nil {
		return datamove.Report{}, lasting(err, "it is no backup of a volume")
	}
	to, err := r.destination()
	if err != nil {
		return datamove.Report{}, err
	}
	r.Log.Info("restoring a disk", "restorePoint", point.ID, "bytes", d.Bytes, "to", to.Location)
	if r.Job.Image {
		return r.downloadImage(ctx, repo, d, to)
	}
	if to.Larger {
		if err := clearTail(ctx, to.Location, d.Bytes); err != nil {
			return datamove.Report{}, err
		}
	}
	result, err := mover.Restore(ctx, repo, mover.RestoreRequest{
		Disk: *d, Destination: to, Workers: r.Job.Parallel, CancelGrace: r.workGrace(),
		// What is known to be zero is done when work begins.
		Progress: func(p mover.Progress) { r.progress.set(d.Bytes, d.Bytes-p.TotalBytes+p.ProcessedBytes) },
	})
	if err != nil {
		return datamove.Report{}, err
	}
	if !to.Larger {
		if err := finishImage(to.Location); err != nil {
			return datamove.Report{}, err
		}
	}
	r.progress.set(d.Bytes, d.Bytes)
	r.Log.Info("restored: every block was verified, and the volume is synced", "bytes", d.Bytes, "from an earlier attempt", result.ResumedBytes)
	if to.SkipEqual {
		r.Log.Info("compared: only what differed was written", "written", result.WrittenBytes, "same", result.EqualBytes)
	}
	return datamove.Report{TotalBytes: d.Bytes, WrittenBytes: result.WrittenBytes}, nil
}

// destination returns where the disk goes. The journal of a device is in the directory that belongs to the pod: while the pod lives, the
// device is the same. That of an image is beside it, and goes at the end. Nobody else has the volume, so what it has is of an earlier
// attempt.
func (r *run) destination() (mover.Destination, error) {
	to := mover.Destination{
		Location: r.Files.Volume, Format: disk.Raw, Overwrite: true, SkipEqual: r.Job.SkipEqual,
	}
	if r.Job.VolumeMode == corev1.PersistentVolumeBlock {
		to.Larger, to.Identity = true, "pod:"+string(r.PodUID)
		if info, err := os.Stat(r.Files.Cache); err == nil && info.IsDir() {
			to.JournalPath = filepath.Join(r.Files.Cache, "restore.journal")
		}
		return to, nil
	}
	var err error
	to.Location, err = r.targetImage()
	return to, err
}

// clearTail makes a device zero from an offset on: a disk that is smaller than its device ends there, and what the storage had there
// before is not the user's.
func clearTail(ctx context.Context, device string, from int64) error {
	bytes, err := deviceBytes(device)
	if err != nil || bytes <= from {
		return err
	}
	target, err := disk.OpenTarget(ctx, device, bytes, disk.TargetOptions{Format: disk.Raw, Overwrite: true})
	if err != nil {
		return &mover.OpenError{Err: err}
	}
	err = target.Zero(ctx, extent.Extent{Offset: from, Length: bytes - from})
	if err == nil {
		err = target.Sync(ctx)
	}
	return errors.Join(err, target.Close())
}

func deviceBytes(device string) (int64, error) {
	f, err := os.Open(device)
	if err != nil {
		return 0, &mover.OpenError{Err: err}
	}
	bytes, err := f.Seek(0, io.SeekEnd)
	return bytes, errors.Join(err, f.Close())
}

// finishImage gives an image that is complete its mode.
func finishImage(path string) error {
	if err := os.Chmod(path, imageMode); err != nil {
		return fmt.Errorf("open the image to its group: %w", err)
	}
	return durable.Sync(path)
}

// judgeDownload is judge for a download: a volume that is not there does not appear, and a full one stays full.
func judgeDownload(err error) error {
	var opening *mover.OpenError
	if errors.As(err, &opening) {
		return judgeAbsence(err, "the pod was made without its volume")
	}
	return judge(err)
}
