package moverpod

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export/endpoint"
	"github.com/varvebackup/varve/internal/mover"
	"github.com/varvebackup/varve/internal/repository"
)

// endpointError is a failure of the endpoints of a pull backup, and not of the repository.
type endpointError struct{ err error }

func (e *endpointError) Error() string { return e.err.Error() }
func (e *endpointError) Unwrap() error { return e.err }

// uploadEndpoint makes a restore point of a disk in a pull backup, as it was when that backup began.
func (r *run) uploadEndpoint(ctx context.Context, repo *repository.Repository, id string) (datamove.Report, error) {
	from := r.Job.Endpoint
	if from.Export {
		return r.uploadExport(ctx, repo, id)
	}
	base := qualifyDiskCheckpoint(string(from.BaseUID), from.BaseCheckpoint, from.Volume)
	parent, err := mover.PointWithCheckpoint(ctx, repo, r.history(repo), datamove.DiskName, base)
	if err != nil {
		return datamove.Report{}, judge(err)
	}
	client := endpoint.New(r.endpointOptions())
	defer client.Close()
	source := mover.Source{
		Name: datamove.DiskName, Identity: string(r.Job.SourceUID), Checkpoint: qualifyDiskCheckpoint(string(from.CheckpointUID), from.Checkpoint, from.Volume),
		Options: disk.SourceOptions{Bitmap: base},
		Open: func(ctx context.Context) (disk.Source, error) {
			d, err := r.openEndpoint(ctx, client, base != "")
			if err != nil {
				return nil, &endpointError{err}
			}
			return d, nil
		},
	}
	r.Log.Info("storing a disk of a pull backup", "volume", from.Volume, "backup", from.BackupUID, "restorePoint", id, "base", base, "parent", parent)
	report, err := r.storeDisk(ctx, repo, id, source, parent, judgeEndpoint)
	if err == nil && parent == "" {
		report.FullReason = cmp.Or(from.FullReason, report.FullReason)
		if base != "" {
			// Changes were offered, and nothing is there that they could be added to.
			report.FullReason = cmp.Or(report.FullReason, string(repository.FullNoParent))
		}
	}
	return report, err
}

// qualifyDiskCheckpoint returns the name of a checkpoint of one disk that no other disk has: two volumes of a machine have the same
// checkpoint, and either may be stored under the claim of the other by mistake.
func qualifyDiskCheckpoint(uid, checkpoint, volume string) string {
	qualified := mover.QualifyCheckpoint(uid, checkpoint)
	if qualified == "" {
		return ""
	}
	return qualified + "/" + volume
}

// endpointOptions reads the Secret for each connection and each request: its owner may rotate what is in it.
func (r *run) endpointOptions() endpoint.Options {
	read := func(path string) ([]byte, error) {
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read what opens the endpoints: %w", err) // The kubelet brings it up to date.
		}
		return content, nil
	}
	return endpoint.Options{
		Authorities: func(context.Context) ([]byte, error) { return read(r.Files.EndpointAuthorities) },
		Token: func(context.Context) (string, error) {
			// It is asked for before each attempt: an export pod that is gone for good does not say so.
			if err := whyEnded(r.Files.EndpointEnded); err != nil {
				return "", err
			}
			content, err := read(r.Files.EndpointToken)
			token := strings.TrimSpace(string(content)) // as the client sends it
			r.Secrets.Hide(token)
			return token, err
		},
		Dial: r.DialEndpoint, Patience: r.limits.endpoint, Stall: r.limits.endpointStall,
		Retrying: func(reason error) { r.Log.Info("the endpoints are asked again", "reason", reason.Error()) },
	}
}

// openEndpoint opens the disk. A process that comes after one that died reads the same point in time, or nothing: what identifies that is
// kept in the pod.
func (r *run) openEndpoint(ctx context.Context, client *endpoint.Client, incremental bool) (*endpoint.Disk, error) {
	from := r.Job.Endpoint
	volume := endpoint.Volume{Name: from.Volume, Map: from.Map, Data: from.Data, Bytes: from.Bytes, Incremental: incremental}
	if from.KubeVirt {
		volume.Dialect = endpoint.KubeVirt
	}
	volume.Tag, volume.Server = r.rememberedPoint()
	d, err := client.OpenDisk(ctx, volume, string(r.Job.SourceUID))
	if err == nil && volume.Tag == "" && volume.Server == "" {
		r.rememberPoint(d.Tag(), d.Server())
	}
	return d, err
}

// pointFile is the file in the pod's cache that has the entity tag of the point in time and the hash of its server's certificate, a line
// each.
const pointFile = "endpoint-point"

func (r *run) rememberedPoint() (tag, server string) {
	text, err := os.ReadFile(filepath.Join(r.Files.Cache, pointFile))
	if err != nil {
		return "", "" // It is the first process, or the pod has no cache.
	}
	tag, server, _ = strings.Cut(string(text), "\n")
	return tag, strings.TrimSuffix(server, "\n")
}

func (r *run) rememberPoint(tag, server string) {
	if err := os.WriteFile(filepath.Join(r.Files.Cache, pointFile), []byte(tag+"\n"+server+"\n"), 0o600); err != nil {
		r.warn(fmt.Errorf("the next process of this pod will not know which point in time this one has read: %w", err))
	}
}

// judgeEndpoint is judge for an upload from endpoints.
func judgeEndpoint(err error) error {
	var opening *endpointError
	var reading *endpoint.Error
	if !errors.As(err, &opening) && !errors.As(err, &reading) {
		return judge(err)
	}
	if errors.Is(err, endpoint.ErrOtherPoint) {
		return lasting(err, "the pull backup was made again while it was read: back up the new one")
	}
	switch errclass.Of(err) {
	case errclass.Denied:
		return lasting(err, "the token is not that of the pull backup any more, or its server is another one: try again with a new pull backup")
	case errclass.NotFound, errclass.Expired:
		return lasting(err, "the pull backup is over, or does not have this volume: make a new one")
	case errclass.Corrupt:
		return lasting(err, "the pull backup's server contradicts itself: make a new backup, and look at the log of its export")
	case errclass.Exhausted:
		return lasting(err, "the scratch claim of the pull backup is full: make a new one with a larger claim")
	case errclass.Invalid, errclass.Conflict:
		return lasting(err, "")
	default:
		return err
	}
}
