// Command varve is the user's command line, also installed as kubectl-varve. Every static component of Varve is a
// subcommand. The command only wires flags, signals, streams and the clock.
package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"
	"k8s.io/klog/v2"

	"github.com/varvebackup/varve/internal/cli"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/session"
	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/internal/version"
)

// stdio holds the standard streams of a process.
type stdio struct {
	in       io.Reader
	out, err io.Writer
	terminal bool
	// readPassword is nil if in is no terminal.
	readPassword func(context.Context) (string, error)
}

// environment looks up a variable; an absent one is empty.
type environment func(name string) string

func main() {
	storage.Register()
	// What client-go says about a port that is forwarded, the commands say in their own words. Servers set a logger.
	klog.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	// The first signal ends the run in order, the second one immediately.
	context.AfterFunc(ctx, stop)
	s := stdio{in: os.Stdin, out: os.Stdout, err: standardError(), terminal: term.IsTerminal(int(os.Stderr.Fd())) && os.Getenv("TERM") != "dumb"}
	if term.IsTerminal(int(os.Stdin.Fd())) {
		s.readPassword = readPassword
	}
	err := run(ctx, os.Args, os.Getenv, s)
	stop()
	cli.Report(s.err, err, filepath.Base(os.Args[0]))
	os.Exit(failure.Code(err))
}

// standardError returns standard error under another number: Go ends a process that writes to a broken pipe with number
// 1 or 2, and a backup must not end because nobody reads its progress any more.
func standardError() *os.File {
	fd, err := unix.FcntlInt(os.Stderr.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return os.Stderr
	}
	return os.NewFile(uintptr(fd), os.Stderr.Name())
}

// run is the program; args[0] is its name.
func run(ctx context.Context, args []string, env environment, s stdio) error {
	root := cli.New(cli.Options{
		Program: filepath.Base(args[0]),
		Version: version.Version,
		Streams: session.Streams{In: s.in, Out: s.out, Err: s.err, Terminal: s.terminal, ReadPassword: s.readPassword},
		Now:     time.Now,
		Env:     env,
		Servers: serverCommands(env),
	})
	root.SetArgs(args[1:])
	return root.ExecuteContext(ctx)
}

// serverCommands returns the commands of the components.
func serverCommands(env environment) []*cobra.Command {
	return []*cobra.Command{
		controllerCommand(env), handlerCommand(env), exportServerCommand(env), exportProxyCommand(), moverCommand(env),
		storeCommand(env), internalCommand(),
	}
}

// readPassword reads a line from the terminal without showing it. A signal ends it, and makes the terminal show input
// again.
func readPassword(ctx context.Context) (string, error) {
	fd := int(os.Stdin.Fd())
	before, err := term.GetState(fd)
	if err != nil {
		return "", err
	}
	type line struct {
		text []byte
		err  error
	}
	read := make(chan line, 1)
	go func() {
		text, err := term.ReadPassword(fd)
		read <- line{text, err}
	}()
	select {
	case l := <-read:
		return string(l.text), l.err
	case <-ctx.Done():
		return "", errors.Join(ctx.Err(), term.Restore(fd, before))
	}
}
