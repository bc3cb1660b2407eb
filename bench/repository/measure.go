package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/bench/process"
)

// task is a command as a user would type it, and what is measured with it.
type task struct {
	// name is the task's name in the log and in the names of its profiles.
	name string
	args []string
	// repository is a directory whose growth is measured; "" if nothing is stored.
	repository string
	// beside is a process that works for the command and whose processor time counts too; 0 if there is none.
	beside int
}

// usage is what a command used.
type usage struct {
	wall, cpu time.Duration
	// memory is the largest resident set of the command, or of one that it started. stored is how much the repository
	// grew. Both are in bytes.
	memory, stored int64
}

// measureTask runs a task with cold caches. Its time includes the whole command and a sync of the file system that it wrote to.
func (b *bench) measureTask(ctx context.Context, t task) (usage, []byte, error) {
	before, err := t.repositorySize()
	if err != nil {
		return usage{}, nil, err
	}
	if err := b.prepareCold(ctx, t.args[0]); err != nil {
		return usage{}, nil, err
	}
	helped, err := process.ProcessorTime(t.beside)
	if err != nil {
		return usage{}, nil, err
	}
	start := time.Now()
	out, state, err := b.runWith(ctx, b.profileVariable(t.name), t.args...)
	if err == nil {
		err = syncAll(b.dir)
	}
	u := usage{wall: time.Since(start)}
	if err != nil {
		return usage{}, nil, err
	}
	helper, err := process.ProcessorTime(t.beside)
	if err != nil {
		return usage{}, nil, err
	}
	after, err := t.repositorySize()
	// The kernel starts a child's maximum at this process's own size, some 30 MiB. Of all programs only qemu-img needs less.
	u.memory = state.SysUsage().(*syscall.Rusage).Maxrss * kib
	u.cpu, u.stored = state.UserTime()+state.SystemTime()+helper-helped, after-before
	fmt.Fprintf(b.log, "  %-34s %7.2f s  cpu %7.2f s  %5d MiB", t.name, u.wall.Seconds(), u.cpu.Seconds(), u.memory/mib)
	if t.repository != "" {
		fmt.Fprintf(b.log, "  stored %8.1f MiB", float64(u.stored)/float64(mib))
	}
	fmt.Fprintln(b.log)
	return u, out, err
}

func (t *task) repositorySize() (int64, error) {
	if t.repository == "" {
		return 0, nil
	}
	return bytesIn(t.repository)
}

// profileVariable returns the variable that makes the profiling varve write profiles named after the task, if profiling is on.
func (b *bench) profileVariable(name string) []string {
	if b.profile == "" {
		return nil
	}
	return []string{"VARVE_PROFILE=" + filepath.Join(b.profile, strings.ReplaceAll(name, " ", "-"))}
}

// run runs a program until it exits and returns its output.
func (b *bench) run(ctx context.Context, args ...string) ([]byte, error) {
	out, _, err := b.runWith(ctx, nil, args...)
	return out, err
}

// runWith runs a program with these variables in addition to the usual ones. The program sees nothing else of the
// user's environment, and dies with this process.
func (b *bench) runWith(ctx context.Context, variables []string, args ...string) ([]byte, *os.ProcessState, error) {
	// The kernel kills the program when the thread that started it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(b.toolEnvironment(), variables...)
	cmd.Dir = b.dir
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.WaitDelay = process.LastWords
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	if ctx.Err() != nil {
		return nil, nil, fmt.Errorf("%s: %w", strings.Join(args, " "), context.Cause(ctx))
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(said.Bytes()))
	}
	return out.Bytes(), cmd.ProcessState, nil
}

// syncAll writes back everything that the file system of a directory still has in memory.
func syncAll(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // it is a directory
	return os.NewSyscallError("syncfs", unix.Syncfs(int(f.Fd())))
}
