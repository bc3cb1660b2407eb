// Package cli is the user's side of Varve: the commands of `varve`, which is also installed as `kubectl-varve`.
//
// A command that talks to a cluster only writes and watches objects: it may die at any moment, be repeated, and be
// replaced by kubectl. The commands of `repo` and `disk` work on a repository and need no cluster. If they die,
// internal/repository keeps the stored data intact.
//
// Results go to standard output, in a form that -o selects; progress, warnings and errors go to standard error. The
// exit code is 0 only if what was asked for is so (see package failure). Text from the cluster is stripped of control
// characters before it reaches a terminal.
//
// New builds a command tree for one run, in one goroutine.
package cli

import (
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/backup"
	"github.com/varvebackup/varve/internal/cli/data"
	"github.com/varvebackup/varve/internal/cli/disk"
	"github.com/varvebackup/varve/internal/cli/image"
	"github.com/varvebackup/varve/internal/cli/location"
	"github.com/varvebackup/varve/internal/cli/repo"
	"github.com/varvebackup/varve/internal/cli/repoaccess"
	"github.com/varvebackup/varve/internal/cli/resource"
	"github.com/varvebackup/varve/internal/cli/schedule"
	"github.com/varvebackup/varve/internal/cli/session"
	"github.com/varvebackup/varve/internal/cli/status"
	"github.com/varvebackup/varve/internal/cli/tracker"
	"github.com/varvebackup/varve/internal/cli/vm"
	"github.com/varvebackup/varve/internal/layout"
)

// Options is the environment of a run.
type Options struct {
	// Program is the name that the program was started with; "kubectl-varve" makes help say "kubectl varve".
	Program string
	// Version is what `varve version` reports.
	Version string
	Streams session.Streams
	// Now is the clock for ages.
	Now func() time.Time
	// Env looks up an environment variable; an absent one is empty.
	Env func(name string) string
	// Servers are the commands that run Varve's components. Users do not see them.
	Servers []*cobra.Command
}

// isServer is the annotation of the commands that `varve help servers` lists.
const isServer = "varve/server"

const rootLong = `Varve backs up virtual machines on Kubernetes, incrementally forever: after one full
backup, each later one holds only what changed.

Exit codes: 0 success, 1 failure, 2 wrong usage, 3 not found, 4 timeout,
5 refused, 6 no answer from the API server or the storage, 7 overdue (varve status),
130 interrupted.`

const rootExample = `  # Which machines are there, and are their disks tracked?
  varve vm list

  # Make a full backup, then incremental ones
  varve tracker create web --vm web
  varve backup create --tracker web --pvc backups --wait

  # Without a cluster: list the restore points in a repository of disks
  varve repo connect s3://s3.example.com/backups
  varve disk list`

// New builds the command tree.
func New(o Options) *cobra.Command {
	base := &session.Session{Streams: o.Streams, Now: o.Now, Env: o.Env}
	inCluster, inRepository := resource.NewSession(base), repoaccess.NewSession(base)
	root := &cobra.Command{
		Use:           "varve",
		Short:         "Incremental-forever backup for virtual machines on Kubernetes",
		Long:          rootLong,
		Example:       rootExample,
		Version:       o.Version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetIn(o.Streams.In)
	root.SetOut(o.Streams.Out)
	root.SetErr(o.Streams.Err)
	// A command that only holds others is runnable, so that it can complain. Its usage must not offer that.
	root.SetUsageTemplate(strings.Replace(root.UsageTemplate(), "{{if .Runnable}}", "{{if and .Runnable (not .HasAvailableSubCommands)}}", 1))
	root.SetVersionTemplate(newVersionInfo(o.Version).String() + "\n")
	root.SetFlagErrorFunc(flagFailure)
	root.AddCommand(vm.NewCommand(inCluster), schedule.NewCommand(inCluster), status.NewCommand(inCluster),
		backup.NewCommand(inCluster, inRepository), tracker.NewCommand(inCluster), data.NewCommand(inCluster),
		location.NewCommand(inCluster), image.NewCommand(resource.NewSessionIn(base, layout.Namespace)),
		repo.NewCommand(inRepository), disk.NewCommand(inRepository), versionCommand(o.Version))
	for _, server := range o.Servers {
		server.Hidden, server.Annotations = true, map[string]string{isServer: ""}
		root.AddCommand(server)
	}
	root.AddCommand(newManPagesCommand(), serversTopic(root), optionsTopic(root))
	root.InitDefaultCompletionCmd()
	refuseUnknownCommands(root)
	applyProgramName(root, o.Program)
	return root
}
