package backup

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/progress"
	"github.com/varvebackup/varve/internal/collection"
	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/export/endpoint"
	"github.com/varvebackup/varve/internal/manifest"
)

// pulledFiles is the result of a pull into files, as -o json shows it.
type pulledFiles struct {
	Backup    string       `json:"backup"`
	BackupUID string       `json:"backupUID"`
	Directory string       `json:"directory"`
	Finished  bool         `json:"finished"`
	Volumes   []pulledFile `json:"volumes"`
}

// pulledFile is a file of a pull. The sizes are bytes.
type pulledFile struct {
	Name         string `json:"name"`
	Type         string `json:"type"`
	File         string `json:"file"`
	SHA256       string `json:"sha256"`
	VirtualBytes uint64 `json:"virtualBytes"`
	// DataBytes and ZeroBytes are what the backup has of the disk. FetchedBytes of data came with this command, in so many
	// requests.
	DataBytes    int64 `json:"dataBytes"`
	ZeroBytes    int64 `json:"zeroBytes"`
	FetchedBytes int64 `json:"fetchedBytes"`
	Requests     int   `json:"requests"`
}

// pullIntoFiles fetches the disks into files, and returns what prints the result.
func (p *pull) pullIntoFiles(ctx context.Context, endpoints *endpoint.Client) (func() error, error) {
	q := collection.Request{
		Backup: describeBackup(p.backup), Client: endpoints, Directory: p.output, Format: disk.Format(p.format), Parent: p.parent, NoParent: p.noParent, Parallel: p.parallel,
	}
	began := p.session.Now()
	var result *collection.Result
	err := p.display.ShowEach(p.session.Session, func(show func(progress.Report)) (err error) {
		q.Progress = func(v collection.Progress) {
			show(progress.Report{
				Name: v.Volume, Phase: v.Phase, Percent: progress.Percent(v.ProcessedBytes, v.TotalBytes), ProcessedBytes: v.ProcessedBytes, TotalBytes: v.TotalBytes,
			})
		}
		result, err = collection.Collect(ctx, q)
		return err
	})
	if err != nil {
		return nil, err
	}
	out := p.describeResult(result)
	took := p.session.Now().Sub(began)
	return func() error {
		if p.form != "" {
			return output.PrintData(p.out, p.form, out)
		}
		return p.printFiles(out, len(result.Volumes) == 0, human.Span(took))
	}, nil
}

// describeBackup returns a backup as package collection has it.
func describeBackup(b *backupv1.VirtualMachineBackup) collection.Backup {
	out := collection.Backup{
		Namespace: b.Namespace, VM: sourceOf(b), Name: b.Name, UID: string(b.UID), Tracker: b.Spec.TrackerName(), Checkpoint: b.Status.CheckpointName,
		Quiesced: meta.IsStatusConditionTrue(b.Status.Conditions, backupv1.ConditionQuiesced),
	}
	out.BaseCheckpoint, out.BaseUID = baseOfBackup(b)
	if b.Status.StartTimestamp != nil {
		out.PointInTime = b.Status.StartTimestamp.Time
	}
	for i := range b.Status.IncludedVolumes {
		v := &b.Status.IncludedVolumes[i]
		out.Volumes = append(out.Volumes, collection.Volume{Volume: endpointsOf(v), FullReason: string(v.FullReason)})
	}
	for _, v := range b.Status.ExcludedVolumes {
		out.Excluded = append(out.Excluded, manifest.ExcludedVolume{Name: v.Name, Reason: string(v.Reason), Message: v.Message})
	}
	return out
}

func (p *pull) describeResult(r *collection.Result) pulledFiles {
	out := pulledFiles{Backup: p.backup.Name, BackupUID: string(p.backup.UID), Directory: p.output, Finished: p.finish, Volumes: []pulledFile{}}
	for i, v := range r.Manifest.Volumes {
		file := pulledFile{Name: v.Name, Type: string(v.Type), File: v.File, SHA256: v.SHA256, VirtualBytes: v.VirtualBytes}
		if i < len(r.Volumes) {
			took := r.Volumes[i]
			file.DataBytes, file.ZeroBytes, file.FetchedBytes, file.Requests = took.DataBytes, took.ZeroBytes, took.Stats.UsefulBytes, took.Stats.Attempts
		}
		out.Volumes = append(out.Volumes, file)
	}
	return out
}

func (p *pull) printFiles(out pulledFiles, verified bool, took string) error {
	if verified {
		_, err := fmt.Fprintf(p.out, "backup %s is in %s already; its files are as they were\n", p.backup.Name, p.output)
		return err
	}
	t := &output.Table{Header: []string{"DISK", "TYPE", "SIZE", "DATA", "ZEROES", "FETCHED", "FILE"}}
	var fetched int64
	for _, v := range out.Volumes {
		t.Add(v.Name, v.Type, human.Bytes(int64(v.VirtualBytes)), human.Bytes(v.DataBytes), human.Bytes(v.ZeroBytes), human.Bytes(v.FetchedBytes), v.File)
		fetched += v.FetchedBytes
	}
	fmt.Fprintf(p.out, "backup %s is in %s: %s, %s fetched in %s\n", p.backup.Name, p.output, human.Count(len(out.Volumes), "disk"), human.Bytes(fetched), took)
	return t.Write(p.out)
}
