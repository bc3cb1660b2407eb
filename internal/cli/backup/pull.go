package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/progress"
	"github.com/varvebackup/varve/internal/cli/repoaccess"
	"github.com/varvebackup/varve/internal/cli/resource"
	"github.com/varvebackup/varve/internal/cli/session"
	"github.com/varvebackup/varve/internal/collection"
	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export/endpoint"
)

// pullFlags are the flags of `backup pull`.
type pullFlags struct {
	output, format, parent string
	noParent, repository   bool
	name                   string
	via                    string
	parallel               int
	finish                 bool
	timeout                time.Duration
	form                   string
	display                session.Display
}

func newPullCommand(s *resource.Session, repo *repoaccess.Session) *cobra.Command {
	var f pullFlags
	c := &cobra.Command{
		Use: "pull NAME", Short: "Fetch the disks of a backup in pull mode",
		Long: `Fetch the disks of a backup in pull mode, all at the same time, into files or into a repository.

With --output, each disk becomes a file in the directory, and backup.json describes the
backup. An incremental disk becomes a qcow2 image with what has changed, over the file of the
backup before: the one in --parent, or in a directory beside the output. qemu-img convert
makes a whole disk of the last image. Files have their names, and backup.json is there, when
everything is verified and on stable storage. Until then the same command goes on where it was
interrupted.

With --repo, the disks become a restore point in the repository that varve repo connect
selected, under the name of the machine. Of an incremental, only what has changed is read, if
the repository has the restore point of the backup before.

The endpoints are in the cluster. If their host has no address here, the command reaches the
export pod through the API server, as kubectl port-forward does (--via).

The backup goes on after a pull, so that it can be read again. --finish deletes it when
everything is verified and on stable storage: only then does its tracker move, and the next
incremental backup starts from here.`,
		Example: `  # Make a backup, fetch it, and let the tracker move
  varve backup create monday --tracker web --pvc scratch --pull --wait
  varve backup pull monday --output /srv/backups/web/monday --finish

  # The next day: an incremental over it
  varve backup create tuesday --tracker web --pvc scratch --pull --wait
  varve backup pull tuesday --output /srv/backups/web/tuesday --finish

  # Into a repository
  varve backup pull tuesday --repo --finish`,
		Args: cmdline.ExactArgs(1, "the name of a backup"), ValidArgsFunction: s.CompleteArgs(resource.NewBackups, 1),
		PreRunE: func(cmd *cobra.Command, _ []string) error { return f.validate(cmd) },
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := s.Connect()
			if err != nil {
				return err
			}
			p := &pull{pullFlags: &f, session: s, repo: repo, client: c, out: cmd.OutOrStdout()}
			return p.run(cmd.Context(), args[0])
		},
	}
	f.addFlags(c)
	repo.AddFlags(c.Flags())
	return c
}

func (f *pullFlags) addFlags(c *cobra.Command) {
	flags := c.Flags()
	flags.StringVar(&f.output, "output", "", "the directory for the files; it is created if it does not exist")
	cmdline.AddChoice(c, &f.format, "format", string(disk.QCOW2), "qcow2 or raw, for --output", string(disk.QCOW2), string(disk.Raw))
	flags.StringVar(&f.parent, "parent", "", "the directory of the backup that an incremental continues (default: one beside --output)")
	flags.BoolVar(&f.noParent, "no-parent", false, "fetch an incremental alone: its images have only what has changed")
	flags.BoolVar(&f.repository, "repo", false, "store the disks in the repository")
	flags.StringVar(&f.name, "name", "", "with --repo: the name of the machine there (default: its name in the cluster)")
	cmdline.AddChoice(c, &f.via, "via", viaAuto, "how to reach the endpoints: auto, direct or port-forward", viaAuto, viaDirect, viaForward)
	flags.IntVar(&f.parallel, "parallel", 8, "how many disks, or with --repo blocks, are fetched in parallel")
	flags.BoolVar(&f.finish, "finish", false, "then delete the backup, which says that its data was read and moves its tracker")
	flags.DurationVar(&f.timeout, "timeout", 0, "how long to wait until the backup is ready, such as 90s; 0 waits forever")
	f.display.AddFlag(c, "while fetching")
	output.AddFlagAs(c, "result", &f.form, output.AsJSON, output.AsYAML)
}

func (f *pullFlags) validate(c *cobra.Command) error {
	switch {
	case (f.output == "") == !f.repository:
		return failure.Usage("give exactly one of --output DIRECTORY and --repo")
	case f.repository && (f.parent != "" || f.noParent || c.Flags().Changed("format")):
		return failure.Usage("--format, --parent and --no-parent go with --output")
	case !f.repository && f.name != "":
		return failure.Usage("--name goes with --repo")
	case f.parent != "" && f.noParent:
		return failure.Usage("--parent and --no-parent contradict each other")
	case f.parallel < 1:
		return failure.Usage("--parallel %d: give at least 1", f.parallel)
	case f.timeout < 0:
		return failure.Usage("--timeout %s: it must not be negative", f.timeout)
	}
	return nil
}

// pull is one run of `backup pull`.
type pull struct {
	*pullFlags

	session *resource.Session
	repo    *repoaccess.Session
	client  *cluster.Client
	out     io.Writer
	backup  *backupv1.VirtualMachineBackup
}

func (p *pull) run(ctx context.Context, name string) (err error) {
	if p.backup, err = getBackup(ctx, p.client, name); err != nil {
		return err
	}
	if !p.backup.Spec.IsPull() {
		return &failure.Error{
			Err: fmt.Errorf("backup %s is in push mode: its files are on claim %s", name, p.backup.Spec.PVCName), Code: errclass.ExitRefused,
			Hint: p.session.CommandHint("backup describe "+name) + " shows them; `varve backup create --pull` makes a backup that can be pulled",
		}
	}
	if err := p.waitReady(ctx); err != nil {
		return p.explain(ctx, err)
	}
	endpoints, disconnect, err := connectEndpoints(ctx, p.session, p.client, p.backup, p.via)
	if err != nil {
		return p.explain(ctx, err)
	}
	defer disconnect()
	var print func() error
	if p.repository {
		print, err = p.pullIntoRepository(ctx, endpoints)
	} else {
		print, err = p.pullIntoFiles(ctx, endpoints)
	}
	if err != nil {
		return p.explain(ctx, err)
	}
	if p.finish {
		if err := p.display.ShowWhile(p.session.Session, func(show func(progress.Report)) error {
			return finishBackup(ctx, p.session, p.client, p.backup, show)
		}); err != nil {
			return failure.Interrupted(ctx, err, "the data is here", "run the same command again to finish the backup")
		}
	}
	if err := print(); err != nil || p.form != "" {
		return err
	}
	if p.finish {
		_, err = fmt.Fprintf(p.out, "backup %s finished%s\n", p.backup.Name, formatMoved(p.backup))
		return err
	}
	return printUnfinished(p.out, p.session, p.backup)
}

func formatMoved(b *backupv1.VirtualMachineBackup) string {
	if b.Spec.TrackerName() == "" || b.Status.CheckpointName == "" {
		return ""
	}
	return fmt.Sprintf(": tracker %s is at checkpoint %s", b.Spec.TrackerName(), b.Status.CheckpointName)
}

// waitReady waits until the endpoints can be read.
func (p *pull) waitReady(ctx context.Context) error {
	if p.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, p.timeout, failure.ErrTimeout)
		defer cancel()
	}
	return p.display.ShowWhile(p.session.Session, func(show func(progress.Report)) error {
		if err := untilReady(p.session, p.client, p.backup)(ctx, show); err != nil {
			return err
		}
		return checkEndpoints(p.backup)
	})
}

// checkEndpoints checks that a backup that is Ready says what to read.
func checkEndpoints(b *backupv1.VirtualMachineBackup) error {
	if len(b.Status.IncludedVolumes) == 0 || b.Status.Cert == "" {
		return errclass.Errorf(errclass.Invalid, "backup %s is Ready, but has no volumes or no certificate", b.Name)
	}
	for _, v := range b.Status.IncludedVolumes {
		if v.DataEndpoint == "" || v.MapEndpoint == "" {
			return errclass.Errorf(errclass.Invalid, "backup %s is Ready, but volume %s has no endpoints", b.Name, v.Name)
		}
	}
	return nil
}

// endpointsOf returns the endpoints of a volume.
func endpointsOf(v *backupv1.IncludedVolume) endpoint.Volume {
	return endpoint.Volume{Name: v.Name, Map: v.MapEndpoint, Data: v.DataEndpoint, Bytes: v.VirtualBytes, Incremental: v.Type == backupv1.Incremental}
}

// baseOfBackup returns the checkpoint that incremental volumes start from, and the backup that made it.
func baseOfBackup(b *backupv1.VirtualMachineBackup) (checkpoint, uid string) {
	if base := b.Status.BaseCheckpoint; base != nil {
		return base.Name, string(base.BackupUID)
	}
	return "", ""
}

// explain gives an error its exit code and hint.
func (p *pull) explain(ctx context.Context, err error) error {
	var known *failure.Error
	var hint string
	switch {
	case errors.As(err, &known):
		return err
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		return failure.Interrupted(ctx, err, "what was fetched is kept", "run the same command again: it goes on where it was")
	case errors.Is(err, failure.ErrTimeout):
		hint = p.session.CommandHint("backup describe "+p.backup.Name) + " shows what it waits for"
	case errors.Is(err, collection.ErrNoParent):
		hint = "--parent names the directory of the backup before; --no-parent fetches only what has changed"
	case errors.Is(err, disk.ErrHasContent):
		hint = "remove the file, or choose another directory"
	case errors.Is(err, endpoint.ErrOtherPoint):
		hint = "remove what was fetched of it, and run the command again"
	case errors.Is(err, errclass.Exhausted):
		hint = "make space and run the same command again: it goes on where it was"
	case errors.Is(err, errclass.Transient):
		hint = "run the same command again: it goes on where it was; --via port-forward or --via direct chooses another way"
	default:
		hint = failure.Hint(err)
	}
	return &failure.Error{Err: err, Code: failure.Code(err), Hint: hint}
}
