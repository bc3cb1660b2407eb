// Package repoaccess opens the repository that the user selects, and gives the errors of repositories and disks exit
// codes and hints.
package repoaccess

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/session"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository"
)

// Session is what the commands that work on a repository share: which repository, and where its password is.
type Session struct {
	*session.Session

	config, passwordFile string
	inCluster            clusterLocation
}

// NewSession returns a session without values of the flags.
func NewSession(s *session.Session) *Session {
	return &Session{Session: s, inCluster: newClusterLocation()}
}

// GroupCommand makes a command that only holds others, all of which work on a repository.
func (s *Session) GroupCommand(use, short, long, example string, children ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Long: long, Example: example}
	c.AddCommand(children...)
	s.AddFlags(c.PersistentFlags())
	s.inCluster.addFlags(c.PersistentFlags())
	return c
}

// AddFlags adds the flags that select the repository.
func (s *Session) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&s.config, "repo-config", "", "the file that connecting wrote (default $VARVE_REPO_CONFIG, or varve/repository.config in the user's directory of configurations)")
	s.AddPasswordFlag(f)
}

// AddPasswordFlag adds the flag that says where the password is.
func (s *Session) AddPasswordFlag(f *pflag.FlagSet) {
	f.StringVar(&s.passwordFile, "password-file", "", "a file with the repository's password (default $VARVE_PASSWORD, or a prompt on a terminal)")
}

// ConfigPath returns the path of the file that connecting writes.
func (s *Session) ConfigPath() (string, error) {
	path := s.config
	if path == "" {
		path = s.Getenv("VARVE_REPO_CONFIG")
	}
	if path == "" {
		dir, err := os.UserConfigDir()
		if err != nil {
			return "", failure.Usage("no directory for configuration files: %s; give --repo-config", err)
		}
		path = filepath.Join(dir, "varve", "repository.config")
	}
	return filepath.Abs(path)
}

// WithRepository opens the repository, calls f, and closes it. It gives errors their exit codes and hints. The context of f ends with ctx, and
// also when a pod is gone that has the storage, with the reason as its cause, which is errclass.Expired.
func (s *Session) WithRepository(ctx context.Context, f func(context.Context, *repository.Repository) error) error {
	if s.inCluster.isUsed() {
		if s.config != "" || s.passwordFile != "" {
			return failure.Usage("--location excludes --repo-config and --password-file: the password is in the cluster")
		}
		within, end := context.WithCancelCause(ctx)
		defer end(nil)
		r, done, err := s.inCluster.open(ctx, s, end)
		if err != nil {
			return err
		}
		defer done()
		return explainEnd(ctx, within, useRepository(within, s.Session, r, f))
	}
	return s.WithPassword(ctx, func(config, password string) error {
		r, err := repository.Open(ctx, config, password)
		if err != nil {
			return explainOpen(err)
		}
		return useRepository(ctx, s.Session, r, f)
	})
}

// explainEnd is Explain for the error of a command that worked within a context of ctx, which the user ends.
func explainEnd(ctx, within context.Context, err error) error {
	return Explain(failure.Interrupted(ctx, whyEnded(ctx, within, err), "", ""))
}

// whyEnded returns err, unless it says that something was cancelled although the user has not interrupted the command. Then within has ended,
// whose cause is told first, or err has the reason beside that; for nobody it is an interrupt.
func whyEnded(ctx, within context.Context, err error) error {
	if ctx.Err() != nil || !errors.Is(err, context.Canceled) {
		return err
	}
	if cause := context.Cause(within); cause != nil {
		err = fmt.Errorf("%w (%w)", cause, err)
	}
	return notInterruptedError{err}
}

// notInterruptedError is an error without the context.Canceled that is in it.
type notInterruptedError struct{ error }

// Is is for errors.Is.
func (n notInterruptedError) Is(target error) bool {
	return target != context.Canceled && errors.Is(n.error, target)
}

// As is for errors.As.
func (n notInterruptedError) As(target any) bool { return errors.As(n.error, target) }

// Hurry has no pod made for a repository that only pods reach: it is not opened.
func (s *Session) Hurry() { s.inCluster.noPod = true }

// useRepository calls f with a repository, and closes it.
func useRepository(ctx context.Context, s *session.Session, r *repository.Repository, f func(context.Context, *repository.Repository) error) error {
	if err := r.WithoutCache(); err != nil {
		s.Warn(fmt.Errorf("continuing without the cache, which is slower: %w", err))
	}
	err := f(ctx, r)
	// An interrupted command must close what it opened, too.
	return errors.Join(err, r.Close(context.WithoutCancel(ctx)))
}

// RequireConnection refuses --location, for commands that need a connection of this machine's.
func (s *Session) RequireConnection() error {
	if s.inCluster.isUsed() {
		return failure.Usage("this command takes no --location: connect with `varve repo connect`; `varve location password export` writes the password")
	}
	return s.inCluster.checkUnused()
}

// WithPassword calls f with the file that connecting wrote and the repository's password.
func (s *Session) WithPassword(ctx context.Context, f func(config, password string) error) error {
	if err := s.RequireConnection(); err != nil {
		return err
	}
	config, err := s.ConfigPath()
	if err != nil {
		return err
	}
	// Check this before anybody types a password.
	if _, err := os.Stat(config); errors.Is(err, fs.ErrNotExist) {
		return &failure.Error{
			Err: fmt.Errorf("not connected to a repository: there is no %s", config), Code: errclass.ExitNotFound,
			Hint: "`varve repo connect` or `varve repo create` writes it; --repo-config or VARVE_REPO_CONFIG selects another one",
		}
	}
	password, err := s.ReadPassword(ctx, false)
	if err != nil {
		return err
	}
	return explainEnd(ctx, ctx, f(config, password))
}

// WithWritable is WithRepository for commands that write to the repository.
func (s *Session) WithWritable(ctx context.Context, f func(context.Context, *repository.Repository) error) error {
	return s.WithRepository(ctx, func(ctx context.Context, r *repository.Repository) error {
		if r.ReadOnly() {
			return &failure.Error{
				Err: errors.New("this connection is read-only"), Code: errclass.ExitRefused,
				Hint: "`varve repo connect` without --read-only replaces it",
			}
		}
		return f(ctx, r)
	})
}
