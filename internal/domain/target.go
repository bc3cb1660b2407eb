package domain

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/errclass"
)

// TargetClusterBytes is the cluster size of a backup's files. It is the granularity of the bitmaps, so that an
// incremental backup writes the dirty clusters and no more.
const TargetClusterBytes = 64 << 10

// CreateTarget creates the qcow2 file that libvirt writes a disk's backup into, with a size of virtualBytes and no
// backing file. It fails if the file exists. errclass.Exhausted: the file system is full.
func CreateTarget(ctx context.Context, path string, virtualBytes int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("create target: %w", classifyWrite(err))
	}
	err = qemuImg(ctx, f, "create", "-q", "-f", "qcow2", "-o", fmt.Sprintf("compat=1.1,cluster_size=%d", TargetClusterBytes), childFile, strconv.FormatInt(virtualBytes, 10))
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("create target %s: %w", path, classifyWrite(errors.Join(err, os.Remove(path))))
	}
	return nil
}

// SetBacking makes the qcow2 file at relativeBacking, relative to path's directory, the backing file of the qcow2
// file at path. It neither reads nor changes the data of either file. The change is durable when it returns.
// errclass.Invalid: the file is not what CreateTarget made; others can write to the target, too.
func SetBacking(ctx context.Context, path, relativeBacking string) error {
	if err := setBacking(ctx, path, relativeBacking); err != nil {
		return fmt.Errorf("set backing file of %s to %s: %w", path, relativeBacking, err)
	}
	return nil
}

func setBacking(ctx context.Context, path, relativeBacking string) error {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	if err = plainImage(f); err == nil {
		err = qemuImg(ctx, f, "rebase", "-u", "-f", "qcow2", "-F", "qcow2", "-b", relativeBacking, childFile)
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// plainImage checks that a file is a qcow2 image as CreateTarget makes them. QEMU opens the data file that a header
// names, wherever it is (QEMU's docs/interop/qcow2.txt, "Header": incompatible features).
func plainImage(f *os.File) error {
	var b [80]byte
	info, err := f.Stat()
	if err == nil && info.Mode().IsRegular() {
		_, err = f.ReadAt(b[:], 0)
	}
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return err
	case string(b[:4]) != "QFI\xfb" || binary.BigEndian.Uint32(b[4:]) != 3:
		return fmt.Errorf("%w: it is not the qcow2 file that Varve made", errclass.Invalid)
	case binary.BigEndian.Uint64(b[72:]) != 0:
		return fmt.Errorf("%w: it is not the qcow2 file that Varve made: its data is damaged or elsewhere", errclass.Invalid)
	}
	return nil
}

// childFile is the path at which a child opens the file that qemuImg passed to it, wherever the file's own path leads now.
const childFile = "/proc/self/fd/3"

// qemuEnvironment is the whole environment of QEMU's programs: isNoSpace recognizes errors by their text.
var qemuEnvironment = []string{"LC_ALL=C"}

// qemuImg runs qemu-img with one file, childFile. An error contains its messages.
func qemuImg(ctx context.Context, f *os.File, args ...string) error {
	cmd := exec.CommandContext(ctx, "qemu-img", args...)
	cmd.Env, cmd.ExtraFiles = qemuEnvironment, []*os.File{f}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("qemu-img %s: %w: %s", args[0], err, bytes.TrimSpace(stderr.Bytes()))
	}
	return nil
}

// classifyWrite wraps a failed write in errclass.Exhausted if the file system was full.
func classifyWrite(err error) error {
	if isNoSpace(err) {
		return fmt.Errorf("%w: %w", errclass.Exhausted, err)
	}
	return err
}

// isNoSpace says whether a file system was full. QEMU reports a failed block job in words only (those of strerror in
// the C locale, in which libvirtd and QEMU run here), so the text is all there is to check.
func isNoSpace(err error) bool {
	text := strings.ToLower(err.Error())
	return errclass.IsFull(err) || slices.ContainsFunc(errclass.FullErrnos, func(full error) bool { return strings.Contains(text, full.Error()) })
}
