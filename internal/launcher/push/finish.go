package push

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/varvebackup/varve/internal/guard"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/launcher/target"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/manifest"
)

// sealAtOnce is how many files are hashed at the same time. More would only make the target's disk seek.
const sealAtOnce = 2

// publish makes the backup durable and visible. The backup exists from the rename on.
func (j *job) publish(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	parent, err := j.linkToParent(ctx)
	if err != nil {
		return err
	}
	sealed, err := j.sealFiles(ctx)
	if err != nil {
		return causeOr(ctx, err)
	}
	j.ConfirmFreeze(ctx)
	// From here on nothing outside ends the backup.
	if err := context.Cause(ctx); err != nil {
		return err
	}
	digest, err := j.progress.volume.Commit(j.req.Directory, j.buildManifest(parent, sealed))
	if err != nil {
		return err
	}
	j.progress.partial = false
	j.UpdateState(func(b *pb.Backup) {
		b.ManifestSha256 = digest
		for i, v := range b.Volumes {
			v.File = layout.BackupFile(j.req.Directory, v.Volume)
			v.MovedBytes, v.Sha256 = sealed[i].AllocatedBytes, sealed[i].SHA256
		}
		b.ProcessedBytes = b.TotalBytes
	})
	return j.progress.volume.Close()
}

// sealFiles makes the files durable and hashes them. Nothing changes them afterwards.
func (j *job) sealFiles(ctx context.Context) ([]target.Sealed, error) {
	sealed := make([]target.Sealed, len(j.req.Volumes))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(sealAtOnce)
	for i, v := range j.req.Volumes {
		group.Go(func() error {
			return guard.Call(func() error {
				var err error
				sealed[i], err = j.progress.volume.Seal(ctx, target.PartialFile(j.req.Directory, v.Volume), j.reportHashed)
				return err
			})
		})
	}
	if err := group.Wait(); err != nil {
		return nil, fmt.Errorf("make the backup durable: %w", err)
	}
	return sealed, nil
}

// reportHashed reports bytes that were read for hashing. The total that they count against is an upper bound.
func (j *job) reportHashed(bytes int) {
	j.UpdateState(func(b *pb.Backup) { b.ProcessedBytes = min(b.ProcessedBytes+uint64(bytes), b.TotalBytes) })
}

// causeOr returns why the context was canceled, or err if it was not.
func causeOr(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

func (j *job) buildManifest(parent *manifest.Parent, sealed []target.Sealed) manifest.Manifest {
	state := j.Snapshot()
	m := manifest.Manifest{
		Namespace: j.req.Namespace, VM: j.req.Vm,
		Backup:  manifest.Backup{Name: j.req.Name, UID: j.req.Uid},
		Tracker: j.req.Tracker, Checkpoint: j.req.Checkpoint, Parent: parent,
		PointInTime: state.PointInTime.AsTime(), Quiesced: state.Quiesce == pb.Backup_FROZEN,
	}
	for i, v := range j.req.Volumes {
		m.Volumes = append(m.Volumes, manifestVolume(v, state.Volumes[i].VirtualBytes, sealed[i]))
	}
	for _, v := range j.req.ExcludedVolumes {
		m.ExcludedVolumes = append(m.ExcludedVolumes, manifest.ExcludedVolume{Name: v.Volume, Reason: v.Reason, Message: v.Message})
	}
	return m
}

func manifestVolume(v *pb.BackupVolume, virtualBytes uint64, sealed target.Sealed) manifest.Volume {
	m := manifest.Volume{
		Name: v.Volume, Type: manifest.Full, FullReason: v.FullReason,
		VirtualBytes: virtualBytes, MovedBytes: sealed.AllocatedBytes,
		File: v.Volume + ".qcow2", SHA256: sealed.SHA256,
	}
	if v.Incremental {
		m.Type, m.FullReason = manifest.Incremental, ""
	}
	return m
}
