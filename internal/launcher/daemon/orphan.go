package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// pollInterval is how often ctx is checked while a process ends.
const pollInterval = 50 * time.Millisecond

// EndEmulators ends the QEMU processes that a dead libvirtd left behind. It sends SIGTERM, on which QEMU flushes its
// disks and saves its bitmaps, and SIGKILL when ctx is done. It finds them by the files *.pid in dir, where libvirt
// keeps them. It returns when they are gone.
func EndEmulators(ctx context.Context, dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.pid"))
	if err != nil {
		return fmt.Errorf("find emulators in %s: %w", dir, err)
	}
	var errs []error
	for _, file := range files {
		if err := endEmulator(ctx, file); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func endEmulator(ctx context.Context, pidFile string) error {
	data, err := os.ReadFile(pidFile)
	if err != nil {
		return fmt.Errorf("end emulator: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || pid <= 1 {
		return fmt.Errorf("end emulator: %s holds no process id", pidFile)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("end emulator %d: %w", pid, err)
	}
	defer func() { _ = unix.Close(fd) }()
	// The ID may have been given to another process meanwhile. The descriptor now pins the process that is checked.
	if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err != nil || !strings.HasPrefix(string(comm), "qemu") {
		return nil // the process is gone: nothing to end
	}
	if err := signalAndWait(ctx, fd, unix.SIGTERM); err == nil || ctx.Err() == nil {
		return err
	}
	return signalAndWait(context.WithoutCancel(ctx), fd, unix.SIGKILL)
}

// signalAndWait signals the process behind a pidfd and waits until it has exited or ctx is done.
func signalAndWait(ctx context.Context, pidfd int, sig unix.Signal) error {
	if err := unix.PidfdSendSignal(pidfd, sig, nil, 0); err != nil {
		if errors.Is(err, unix.ESRCH) {
			return nil
		}
		return fmt.Errorf("signal emulator: %w", err)
	}
	for {
		// A pidfd polls readable once its process has ended.
		fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(pollInterval.Milliseconds()))
		switch {
		case n > 0:
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("wait for emulator: %w", err)
		case ctx.Err() != nil:
			return fmt.Errorf("wait for emulator: %w", ctx.Err())
		}
	}
}
