// Package push moves the data of a backup onto a volume in the launcher pod: libvirt writes the state of each disk at the
// point in time into a qcow2 file on the target volume.
//
// PREPARING checks and creates the target's files. COPYING waits for libvirt. FINISHING makes the files durable, writes
// the manifest and gives the directory its final name. A failed backup leaves no partial directory. Package backupjob has
// what is common to all backups.
package push

import (
	"context"
	"fmt"

	"github.com/varvebackup/varve/internal/launcher/backupjob"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/launcher/target"
)

// Images creates and changes the target's qcow2 files.
type Images interface {
	// CreateTarget creates an empty qcow2 file for a disk of virtualBytes.
	CreateTarget(ctx context.Context, path string, virtualBytes int64) error
	// SetBacking sets the file's backing file, relative to the file's directory.
	SetBacking(ctx context.Context, path, relativeBacking string) error
}

// Config is the configuration of a backup.
type Config struct {
	backupjob.Config

	Images Images
	// OpenTarget opens a utility volume by its name.
	OpenTarget func(name string) (*target.Volume, error)
}

// job is the mode of one backup.
type job struct {
	*backupjob.Job

	cfg Config
	req *pb.BeginBackupRequest
	// progress belongs to Run's goroutine.
	progress progress
}

// progress is how far a backup has come, and so what must be undone.
type progress struct {
	volume *target.Volume
	// partial: the partial directory may exist.
	partial bool
	// sealBytes is the estimate, in bytes, of what publish reads for hashing.
	sealBytes uint64
}

// New returns a backup that its Run will carry out. ctx bounds its work, but not its cleanup. An error says what is wrong
// with the request.
func New(ctx context.Context, cfg Config, req *pb.BeginBackupRequest) (*backupjob.Job, error) {
	j, err := newJob(ctx, cfg, req)
	if err != nil {
		return nil, err
	}
	return j.Job, nil
}

func newJob(ctx context.Context, cfg Config, req *pb.BeginBackupRequest) (*job, error) {
	for _, v := range req.Volumes {
		if v.Incremental && (req.BaseDirectory == "" || req.BaseManifestSha256 == "") {
			return nil, fmt.Errorf("%w: volume %q is incremental, but the request does not say where its parent is", backupjob.ErrRequest, v.Volume)
		}
	}
	mode := &job{cfg: cfg}
	_, err := backupjob.New(ctx, cfg.Config, req, func(common *backupjob.Job) backupjob.Mode {
		mode.Job, mode.req = common, common.Request()
		return mode
	})
	return mode, err
}

// Move implements backupjob.Mode.
func (j *job) Move(ctx context.Context) error {
	begun := j.cfg.Clock.Now()
	if err := j.awaitCopy(ctx); err != nil {
		return err
	}
	copied := j.cfg.Clock.Now()
	j.UpdateState(func(b *pb.Backup) { b.Phase, b.CopyMillis = pb.Backup_FINISHING, copied.Sub(begun).Milliseconds() })
	if err := j.publish(ctx); err != nil {
		return err
	}
	j.UpdateState(func(b *pb.Backup) { b.SealMillis = j.cfg.Clock.Since(copied).Milliseconds() })
	return nil
}
