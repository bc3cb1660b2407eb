package repo

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/repoaccess"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository"
)

func newCreateCommand(s *repoaccess.Session) *cobra.Command {
	var form string
	var f repoaccess.S3Flags
	var n connection
	var l lockFlags
	var noConnect bool
	c := &cobra.Command{
		Use: "create LOCATION", Short: "Create a repository",
		Long: `Create a repository, and connect to it. It is encrypted with a key that the password protects:
keep the password, because nobody can recover it.

` + repoaccess.LocationHelp + `

If the file of --repo-config names another repository, the command changes and creates nothing.

With --object-lock, the bucket refuses to delete or overwrite what was written during the period.`,
		Example: `  varve repo create /mnt/backups

  # In a bucket that nobody can empty for a month
  varve repo create s3://s3.eu-central-1.amazonaws.com/backups/varve --object-lock COMPLIANCE --object-lock-period 30d

  # A second repository; this machine stays connected to the first
  varve repo create /mnt/archive --repo-config ~/archive.config

  # Without connecting this machine
  varve repo create /mnt/backups --no-connect --password-file /etc/varve/password`,
		Args: cmdline.ExactArgs(1, "a location: a directory, or s3://endpoint/bucket/prefix"),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := newPlace(s, args[0], &f, &n)
			if err != nil {
				return err
			}
			lock, err := l.newCreateOptions(p.at)
			if err != nil {
				return err
			}
			if !noConnect {
				if err := p.refuseOtherConnection(); err != nil {
					return err
				}
			}
			password, err := s.ReadPassword(cmd.Context(), true)
			if err != nil {
				return err
			}
			if err := repository.Create(cmd.Context(), p.at, password, lock); err != nil {
				return locationFailure(failure.Interrupted(cmd.Context(), err, "", ""))
			}
			done := connectResult{Location: p.at.String()}
			if !noConnect {
				if err := p.writeConnection(cmd.Context(), password); err != nil {
					return fmt.Errorf("the repository was created, but: %w", err)
				}
				done.ConfigFile = p.config
			}
			fmt.Fprintln(cmd.ErrOrStderr(), "Keep the password: without it, nobody can read what is stored here.")
			return done.printResult(cmd.OutOrStdout(), form, true)
		},
	}
	c.Flags().BoolVar(&noConnect, "no-connect", false, "only create the repository")
	f.AddFlags(c)
	f.AddRoleFlag(c)
	l.addFlags(c)
	n.addFlags(c)
	output.AddFlag(c, &form, output.AsJSON, output.AsYAML)
	return c
}

// refuseOtherConnection refuses to replace the connection to another location: a new repository is no reason to lose the
// connection to one that is in use.
func (p *place) refuseOtherConnection() error {
	at, err := repository.ConnectedTo(p.config)
	another := fmt.Sprintf("give the new repository a file of its own with --repo-config, or only create it with --no-connect; %s keeps what it has", p.config)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return &failure.Error{Err: err, Code: errclass.ExitRefused, Hint: another}
	case at != p.at.String():
		return &failure.Error{Err: fmt.Errorf("%s connects to the repository in %s", p.config, at), Code: errclass.ExitRefused, Hint: another}
	}
	return nil
}
