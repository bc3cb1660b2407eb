package backup

import (
	"cmp"
	"context"
	"errors"

	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/progress"
	"github.com/varvebackup/varve/internal/cli/repoaccess"
	"github.com/varvebackup/varve/internal/cli/restorepoint"
	"github.com/varvebackup/varve/internal/export/endpoint"
	"github.com/varvebackup/varve/internal/mover"
	"github.com/varvebackup/varve/internal/repository"
)

// pullIntoRepository stores the disks as a restore point, and returns what prints it.
func (p *pull) pullIntoRepository(ctx context.Context, endpoints *endpoint.Client) (func() error, error) {
	b := p.backup
	pulled := mover.PulledBackup{UID: string(b.UID), Checkpoint: b.Status.CheckpointName, Machine: b.Namespace + "/" + sourceOf(b)}
	pulled.BaseCheckpoint, pulled.BaseUID = baseOfBackup(b)
	for i := range b.Status.IncludedVolumes {
		pulled.Volumes = append(pulled.Volumes, endpointsOf(&b.Status.IncludedVolumes[i]))
	}
	name := cmp.Or(p.name, sourceOf(b))
	var point *repository.RestorePoint
	err := p.repo.WithWritable(ctx, func(ctx context.Context, r *repository.Repository) error {
		q := mover.BackupRequest{History: r.Source("", "", mover.HistoryPath(name)), Workers: p.parallel}
		if err := pulled.AddTo(ctx, r, endpoints, &q); err != nil {
			return err
		}
		var warnings []error
		q.Warn = func(err error) { warnings = append(warnings, err) } // Nobody else may write while the progress is shown.
		err := p.display.ShowWhile(p.session.Session, func(show func(progress.Report)) (err error) {
			q.Progress = func(m mover.Progress) { show(repoaccess.NewReport(name, m)) }
			point, err = mover.Backup(ctx, r, q)
			return err
		})
		for _, warning := range warnings {
			p.session.Warn(warning)
		}
		var ofEndpoints *endpoint.Error
		if errors.As(err, &ofEndpoints) { // The hints of the repository are not for it.
			return p.explain(ctx, err)
		}
		return failure.Interrupted(ctx, err, "no restore point of "+human.Line(name)+" was made", "run the same command again: it stores what is missing")
	})
	if err != nil {
		return nil, err
	}
	return func() error {
		if p.form != "" {
			return restorepoint.Print(&output.Printer{Out: p.out, Form: p.form}, []*repository.RestorePoint{point})
		}
		return restorepoint.PrintBackup(p.out, point)
	}, nil
}
