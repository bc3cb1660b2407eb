// Package pull serves the disks of a running guest as they were at one point in time: QEMU serves them on a unix socket in
// the launcher pod, and this package offers them as export.Volumes until it is told that the backup is complete.
//
// PREPARING creates scratch files on the target volume, which QEMU copies into what the guest overwrites. SERVING lasts
// until Finish, a failure or the guest's end. When scratch space runs out, the backup fails and the guest continues: QEMU
// would stop the guest, so the backup ends before that, and if it comes too late, the guest is resumed. However the
// backup ends, no scratch file and no socket is left. Package backupjob has what is common to all backups.
package pull

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/varvebackup/varve/internal/domain"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/nbdvolume"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/launcher/backupjob"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/launcher/target"
	"github.com/varvebackup/varve/internal/nbd"
)

// ErrNotServing means that the backup is not in a phase in which it can be finished.
var ErrNotServing = errclass.New(errclass.Conflict, "the backup does not serve its volumes")

// Volume is what the package needs of an open export.
type Volume interface {
	export.Volume
	// Lost returns why nobody should wait for the volume any more, or nil.
	Lost() error
	Close() error
}

// Images creates scratch files.
type Images interface {
	// CreateTarget creates an empty qcow2 file for a disk of virtualBytes.
	CreateTarget(ctx context.Context, path string, virtualBytes int64) error
}

// Config is the configuration of a backup.
type Config struct {
	backupjob.Config

	Images Images
	// OpenTarget opens a utility volume by its name.
	OpenTarget func(name string) (*target.Volume, error)
	// Socket is the path of the socket on which QEMU serves. Its directory is made, for this process alone.
	Socket string
	// OpenVolume opens an export. OpenNBD does.
	OpenVolume func(ctx context.Context, socket string, o nbdvolume.Options) (Volume, error)
}

// OpenNBD opens the export of a volume on a unix socket.
func OpenNBD(ctx context.Context, socket string, o nbdvolume.Options) (Volume, error) {
	v, err := nbdvolume.Open(ctx, nbd.Target{Network: "unix", Address: socket, Export: o.Name}, o)
	if err != nil {
		return nil, err // not v: a nil pointer in an interface is not nil
	}
	return v, nil
}

// Job is one pull backup. It implements export.Volumes.
type Job struct {
	*backupjob.Job

	cfg Config
	req *pb.BeginBackupRequest
	// finish is closed by Finish.
	finish   chan struct{}
	finished sync.Once
	// readBytes counts the data that was read.
	readBytes atomic.Uint64

	mu      sync.Mutex
	volumes map[string]Volume

	// reads has an element for each read in progress.
	reads chan struct{}

	// connecting guards tunnels. It is not held while volumes are read, nor while a tunnel ends.
	connecting sync.Mutex
	tunnels    connections

	// scratch belongs to Run's goroutine.
	scratch scratch
}

// New returns a backup that its Run will carry out. ctx bounds its work, but not its cleanup. An error says what is wrong
// with the request.
func New(ctx context.Context, cfg Config, req *pb.BeginBackupRequest) (*Job, error) {
	j := &Job{cfg: cfg, finish: make(chan struct{}), reads: make(chan struct{}, mostReads)}
	_, err := backupjob.New(ctx, cfg.Config, req, func(common *backupjob.Job) backupjob.Mode {
		j.Job, j.req = common, common.Request()
		return (*mode)(j)
	})
	return j, err
}

// Finish ends the backup as a success: whoever pulls it has everything. ErrNotServing: it does not serve, or has failed.
func (j *Job) Finish() error {
	switch j.Snapshot().Phase {
	case pb.Backup_SERVING:
		j.finished.Do(func() { close(j.finish) })
	case pb.Backup_DONE:
	default:
		return ErrNotServing
	}
	return nil
}

// Open implements export.Volumes. Before the point in time is fixed, and after the end, no volume can be reached.
func (j *Job) Open(_ context.Context, name string) (export.Volume, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.volumes == nil {
		return nil, errclass.Errorf(errclass.Transient, "the backup does not serve its volumes now")
	}
	v, ok := j.volumes[name]
	if !ok {
		return nil, errclass.Errorf(errclass.NotFound, "the backup has no volume %s", name)
	}
	return counted{Volume: v, job: j}, nil
}

// Infos returns what the backup offers, in the order of the request; nil while it does not serve.
func (j *Job) Infos() (infos []export.Info) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, v := range j.req.Volumes {
		if volume, ok := j.volumes[v.Volume]; ok {
			infos = append(infos, volume.Info())
		}
	}
	return infos
}

// counted counts the data that is read, and limits the reads in progress: each needs memory. A panic of the volume fails the
// backup.
type counted struct {
	export.Volume

	job *Job
}

// Regions implements export.Volume.
func (c counted) Regions(ctx context.Context, e extent.Extent, report func(export.Region) bool) error {
	err := errPanicked
	c.job.Guard(func() { err = c.Volume.Regions(ctx, e, report) })
	return err
}

// Read implements export.Volume.
func (c counted) Read(ctx context.Context, e extent.Extent, scope export.Scope, sink func(export.Chunk) error) error {
	select {
	case c.job.reads <- struct{}{}:
		defer func() { <-c.job.reads }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	err := errPanicked
	c.job.Guard(func() {
		err = c.Volume.Read(ctx, e, scope, func(chunk export.Chunk) error {
			c.job.readBytes.Add(uint64(len(chunk.Data)))
			return sink(chunk)
		})
	})
	return err
}

var errPanicked = errors.New("internal error")

// mostConnections is how many connections the volumes of a backup have together. QEMU's NBD server takes 100 (9.1, and older
// ones with the fix of CVE-2024-7409), and libvirt asks for no other number. One more would wait for ever. The rest is for
// connections that replace others.
const mostConnections = 64

// connectionsFor returns how many connections each of so many volumes has.
func connectionsFor(volumes int) int { return max(1, min(2, mostConnections/volumes)) }

func (j *Job) openVolumes(ctx context.Context) error {
	opened := map[string]Volume{}
	var err error
	for _, v := range j.req.Volumes {
		o := nbdvolume.Options{Name: v.Volume, PointInTime: j.req.Uid + "/" + v.Volume, Connections: connectionsFor(len(j.req.Volumes)), Clock: j.cfg.Clock}
		if v.Incremental {
			o.Bitmap = domain.ChangesBitmap
		}
		if opened[v.Volume], err = j.cfg.OpenVolume(ctx, j.cfg.Socket, o); err != nil {
			delete(opened, v.Volume)
			break
		}
	}
	j.mu.Lock()
	j.volumes = opened
	j.mu.Unlock()
	if err != nil {
		j.closeVolumes()
	}
	return err
}

// lostVolume returns why a volume cannot be read any more although libvirt's job runs, or nil.
func (j *Job) lostVolume() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, v := range j.volumes {
		if err := v.Lost(); err != nil {
			return err
		}
	}
	return nil
}

// closeTimeout is how long the end of a backup waits for its readers. The guest may be waiting for that end.
const closeTimeout = 5 * time.Second

// closeVolumes ends the tunnels and every read. Nothing is lost with the connections. It does not wait for long: what takes
// longer goes on, and reaches nothing once libvirt's job has ended.
func (j *Job) closeVolumes() {
	j.mu.Lock()
	volumes := j.volumes
	j.volumes = nil // there are no other tunnels from here on
	j.mu.Unlock()
	if volumes == nil {
		return
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		var all sync.WaitGroup
		all.Go(func() { j.Guard(j.disconnect) })
		for _, v := range volumes { // a read that does not heed the end of its tunnel ends with its volume
			all.Go(func() { j.Guard(func() { _ = v.Close() }) })
		}
		all.Wait()
	}()
	timer := j.cfg.Clock.NewTimer(closeTimeout)
	defer timer.Stop()
	select {
	case <-closed:
	case <-timer.C():
		j.cfg.Log.Error("readers of the backup do not end, going on without them", "backup", j.req.Name, "uid", j.req.Uid)
	}
}
