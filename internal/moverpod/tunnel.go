package moverpod

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"

	"k8s.io/utils/clock"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export/httpserver"
	"github.com/varvebackup/varve/internal/export/source"
	"github.com/varvebackup/varve/internal/export/tunnel"
	"github.com/varvebackup/varve/internal/mover"
	"github.com/varvebackup/varve/internal/repository"
)

// farEnd is where the launcher of a running machine offers its disks. It serves from the start of the pod, so that the launcher is
// connected when the object is InProgress.
type farEnd struct {
	server *tunnel.Server
	stop   context.CancelFunc
	served chan error
}

// startFarEnd listens for the launcher until the far end is closed.
func (r *run) startFarEnd(ctx context.Context) (*farEnd, error) {
	certificate := httpserver.NewCertificateFiles(r.Files.TunnelCertificate, r.Files.TunnelKey, clock.RealClock{})
	if _, err := certificate.Get(nil); err != nil {
		return nil, err
	}
	listen := r.Listen
	if listen == nil {
		listen = func(ctx context.Context) (net.Listener, error) {
			return (&net.ListenConfig{}).Listen(ctx, "tcp", ":"+strconv.Itoa(datamove.TunnelPort))
		}
	}
	listener, err := listen(ctx)
	if err != nil {
		return nil, fmt.Errorf("listen for the launcher: %w", err)
	}
	far := &farEnd{served: make(chan error, 1), server: &tunnel.Server{
		TLS: &tls.Config{GetCertificate: certificate.Get, MinVersion: tls.VersionTLS13}, BackupUID: string(r.Job.Tunnel.BackupUID),
		Token: r.readTunnelToken, Log: r.Log,
	}}
	var serving context.Context
	serving, far.stop = context.WithCancel(context.WithoutCancel(ctx))
	go func() { far.served <- far.server.Serve(serving, listener) }()
	r.Log.Info("waiting for the launcher", "address", listener.Addr().String(), "backup", r.Job.Tunnel.BackupUID)
	return far, nil
}

func (f *farEnd) close() error {
	f.stop()
	return <-f.served
}

// readTunnelToken reads the token for each connection: the kubelet may bring it late.
func (r *run) readTunnelToken() ([]byte, error) {
	token, err := os.ReadFile(r.Files.TunnelToken)
	if err != nil {
		return nil, fmt.Errorf("read the token of the tunnel: %w", err)
	}
	r.Secrets.Hide(string(token))
	return token, nil
}

// readDefinition returns the definition of the machine, or nil if the job has none.
func (r *run) readDefinition() ([]byte, error) {
	if !r.Job.Definition {
		return nil, nil
	}
	definition, err := os.ReadFile(r.Files.Definition)
	if err != nil {
		return nil, fmt.Errorf("read the definition of the machine: %w", err)
	}
	return definition, nil
}

// uploadMachineDisk makes a restore point of the disk of a running machine, as it was when its backup began.
func (r *run) uploadMachineDisk(ctx context.Context, repo *repository.Repository, id string) (datamove.Report, error) {
	from := r.Job.Tunnel
	base := mover.QualifyCheckpoint(string(from.BaseUID), from.BaseCheckpoint)
	parent, err := mover.PointWithCheckpoint(ctx, repo, r.history(repo), datamove.DiskName, base)
	if err != nil {
		return datamove.Report{}, judge(err)
	}
	readable, stop := r.untilEnded(ctx, r.Files.TunnelEnded)
	defer stop()
	volume := &tunnelVolume{far: r.far.server, name: from.Volume, patience: r.limits.launcher, readable: readable, log: r.Log}
	stored := mover.Source{
		Name: datamove.DiskName, Identity: string(r.Job.SourceUID), Checkpoint: mover.QualifyCheckpoint(string(from.BackupUID), from.Checkpoint),
		Options: disk.SourceOptions{Bitmap: base},
		Open:    func(ctx context.Context) (disk.Source, error) { return volume.openDisk(ctx, base == "") },
	}
	r.Log.Info("storing the disk of a running machine", "volume", from.Volume, "restorePoint", id, "base", base, "parent", parent)
	report, err := r.storeDisk(ctx, repo, id, stored, parent, judgeTunnel)
	if err == nil && base != "" && parent == "" && report.FullReason == "" {
		// Changes were offered, and nothing is there that they could be added to.
		report.FullReason = string(repository.FullNoParent)
	}
	return report, err
}

// judgeTunnel is judge for an upload from a tunnel.
func judgeTunnel(err error) error {
	var machine *machineDiskError
	switch {
	case errors.Is(err, tunnel.ErrChecksum):
		return lasting(err, "the launcher sent other bytes than it read: try again, and look at the node's memory if it comes again")
	case errors.Is(err, errMachineVolume), errors.Is(err, source.ErrVolume):
		return lasting(err, "")
	case errors.Is(err, errclass.Expired):
		return lasting(err, "the next DataUpload takes another moment")
	case errors.As(err, &machine) && errors.Is(machine.err, errclass.Corrupt):
		return lasting(err, "the machine's disk cannot be read: look at its storage")
	}
	return judge(err)
}
