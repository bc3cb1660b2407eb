package moverpod

import (
	"cmp"
	"context"
	"errors"
	"net"
	"time"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export/endpoint"
	"github.com/varvebackup/varve/internal/mover"
	"github.com/varvebackup/varve/internal/repository"
)

// dialTimeout bounds one attempt to connect to an export.
const dialTimeout = 30 * time.Second

// uploadExport makes a restore point of a disk of a stopped machine or of a snapshot, which an export serves. It has no
// checkpoint, so that the next backup of the running machine is counted from the one before. What is read is what is
// allocated, or all of a disk whose export has no map.
func (r *run) uploadExport(ctx context.Context, repo *repository.Repository, id string) (datamove.Report, error) {
	from := r.Job.Endpoint
	options := r.endpointOptions()
	if options.Dial == nil && from.Address != "" {
		options.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, network, from.Address)
		}
	}
	client := endpoint.New(options)
	defer client.Close()
	source := mover.Source{
		Name: datamove.DiskName, Identity: string(r.Job.SourceUID),
		Open: func(ctx context.Context) (disk.Source, error) {
			d, err := r.openExport(ctx, client)
			if err != nil {
				return nil, &endpointError{err}
			}
			return d, nil
		},
	}
	r.Log.Info("storing an exported disk", "claim", from.Volume, "export", from.BackupUID,
		"restorePoint", id)
	report, err := r.storeDisk(ctx, repo, id, source, "", judgeExport(from))
	if err == nil {
		report.FullReason = cmp.Or(from.FullReason, datamove.FullMachineStopped)
	}
	return report, err
}

// openExport opens the disk: with its map, or, of KubeVirt's exports, which have none, as one file.
func (r *run) openExport(ctx context.Context, client *endpoint.Client) (*endpoint.Disk, error) {
	if r.Job.Endpoint.Map != "" {
		return r.openEndpoint(ctx, client, false)
	}
	volume := endpoint.Volume{Name: r.Job.Endpoint.Volume, Data: r.Job.Endpoint.Data}
	_, volume.Server = r.rememberedPoint()
	d, err := client.OpenRaw(ctx, volume, string(r.Job.SourceUID))
	if err == nil && volume.Server == "" {
		r.rememberPoint("", d.Server())
	}
	return d, err
}

// judgeExport returns judge for an upload from an export.
func judgeExport(from *datamove.EndpointSource) func(error) error {
	exported, another := "stopped machine", "create another backup when the machine has stopped"
	if from.FullReason == datamove.FullNotTracked {
		exported, another = "snapshot", "create another backup"
	}
	return func(err error) error {
		var opening *endpointError
		var reading *endpoint.Error
		if !errors.As(err, &opening) && !errors.As(err, &reading) {
			return judge(err)
		}
		if errors.Is(err, endpoint.ErrOtherPoint) {
			return lasting(err, "the pod of the export was started again, and may serve other bytes: "+another)
		}
		class := errclass.Of(err)
		if class == errclass.NotFound && from.Map == "" {
			return lasting(err, "PersistentVolumeClaim "+from.Volume+" has no "+datamove.ImageFile+": KubeVirt makes the "+
				"disk on an empty claim when the machine starts. Start it once, or leave the volume out of the backup")
		}
		switch class {
		case errclass.Denied, errclass.NotFound, errclass.Expired:
			return lasting(err, "the export of the "+exported+" is over, or another one: "+another)
		case errclass.Corrupt:
			return lasting(err, "the export contradicts itself: look at the log of its pod")
		case errclass.Invalid, errclass.Conflict:
			return lasting(err, "")
		default:
			return err
		}
	}
}
