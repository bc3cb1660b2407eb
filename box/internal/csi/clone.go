package csi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/box/internal/loop"
)

// cloneFile makes the file to, or replaces it, with the content of from, whose blocks it shares. The kernel keeps
// writers out of from meanwhile, so the clone has what from had between two writes.
func cloneFile(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close() //nolint:errcheck // read only
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	err = unix.IoctlFileClone(int(dst.Fd()), int(src.Fd()))
	if err != nil {
		err = fmt.Errorf("clone %s: %w", from, err)
	}
	return errors.Join(err, dst.Sync(), dst.Close())
}

// flushFile writes to file what is still in the caches above it, if it is attached to a loop device on any node. A snapshot
// then has everything that was written before it, and not only what was synced.
func flushFile(file string) error {
	dev, err := loop.Find(file)
	if errors.Is(err, loop.ErrNotAttached) {
		return nil
	}
	if err != nil {
		return err
	}
	return dev.Flush()
}

// cloneVolume makes file a clone of the volume's source, grown to the volume's size.
func cloneVolume(ctx context.Context, file string, spec volumeSpec) error {
	if err := flushFile(spec.source); err != nil {
		return err
	}
	if err := cloneFile(spec.source, file); err != nil {
		return err
	}
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	grow := spec.bytes > info.Size()
	if spec.bytes < info.Size() {
		return fmt.Errorf("%w: %d bytes, and the source has %d", errTooSmall, spec.bytes, info.Size())
	}
	if grow {
		if err := os.Truncate(file, spec.bytes); err != nil {
			return err
		}
	}
	// The journal of a volume that was mounted is replayed by the next mount, unless that is read-only.
	if !spec.filesystem || !grow && !spec.readOnly {
		return nil
	}
	if err := checkFilesystem(ctx, file); err != nil || !grow {
		return err
	}
	return runTool(ctx, 0, "resize2fs", file)
}

// checkFilesystem replays the journal of an ext4 and checks it, as resize2fs demands.
func checkFilesystem(ctx context.Context, file string) error {
	return runTool(ctx, 1, "e2fsck", "-f", "-y", file) // 1: it has changed something
}

// runTool runs a program whose exit code may be 0 to highest.
func runTool(ctx context.Context, highest int, name string, args ...string) error {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.Exited() && exit.ExitCode() <= highest {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}
