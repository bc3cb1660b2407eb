package domain

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/durable"
)

// TargetClusterBytes is the cluster size of a backup's files: the granularity of the bitmaps, so that an
// incremental backup writes what is dirty and no more.
const TargetClusterBytes = 64 << 10

// CreateTarget makes the qcow2 file that libvirt writes a disk's backup into: virtualBytes large, without a
// backing file. It fails if the file exists. ErrNoSpace: the file system is full.
func CreateTarget(ctx context.Context, path string, virtualBytes int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("create target: %w", classify(err))
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("create target %s: %w", path, classify(err))
	}
	err = qemuImg(ctx, "create", "-q", "-f", "qcow2", "-o", fmt.Sprintf("compat=1.1,cluster_size=%d", TargetClusterBytes), path, strconv.FormatInt(virtualBytes, 10))
	if err != nil {
		return fmt.Errorf("create target %s: %w", path, classify(errors.Join(err, os.Remove(path))))
	}
	return nil
}

// SetBacking writes into the qcow2 file at path that its backing file is the qcow2 at relativeBacking, relative to path's
// directory. Neither file's data is read or changed. The change is durable when it returns.
func SetBacking(ctx context.Context, path, relativeBacking string) error {
	if err := qemuImg(ctx, "rebase", "-u", "-f", "qcow2", "-F", "qcow2", "-b", relativeBacking, path); err != nil {
		return fmt.Errorf("set backing file of %s to %s: %w", path, relativeBacking, err)
	}
	if err := durable.Sync(path); err != nil {
		return fmt.Errorf("set backing file of %s: %w", path, err)
	}
	return nil
}

// qemuImg runs qemu-img; an error has its words.
func qemuImg(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "qemu-img", args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("qemu-img %s: %w: %s", args[0], err, bytes.TrimSpace(stderr.Bytes()))
	}
	return nil
}

// classify puts a failed write into ErrNoSpace where it belongs.
func classify(err error) error {
	if isNoSpace(err) {
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	}
	return err
}

// noSpace are the errors of a file system that takes no more: full, or over its quota.
var noSpace = []error{unix.ENOSPC, unix.EDQUOT}

// isNoSpace says whether a file system was full. QEMU reports a failed block job in words only (those of
// strerror in the C locale, in which libvirtd and QEMU run here), so that words are all there is to look at.
func isNoSpace(err error) bool {
	for _, full := range noSpace {
		if errors.Is(err, full) || strings.Contains(strings.ToLower(err.Error()), full.Error()) {
			return true
		}
	}
	return false
}
