package domain

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"time"

	"github.com/varvebackup/varve/internal/qmp"
	"github.com/varvebackup/varve/internal/sparse"
)

// holeBytes is the smallest hole that is punched into an overlay: a block of the usual file systems. It must be this
// small, because QEMU counts the allocated blocks, also those of clusters that are nearly empty.
const holeBytes = 4 << 10

// createOverlay creates the qcow2 file at path over the raw disk at rawPath, which it does not change.
//
// It uses qemu-storage-daemon, because qemu-img create truncates an existing data file. Afterwards it punches holes
// into the file. Only then, and with a cluster size that fits the disk, does QEMU recognize it as preallocated
// metadata and pass the raw file's holes on, so that a full backup of a sparse disk stays sparse.
func createOverlay(ctx context.Context, path, rawPath string, virtualBytes int64, clusterBytes int) error {
	// Whoever has the claim may have put something in its place, or a link to something else.
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // durable.Rename syncs it
	raw, err := os.Stat(rawPath)
	if err != nil {
		return err
	}
	rawDriver := "file"
	if !raw.Mode().IsRegular() {
		rawDriver = "host_device"
	}
	err = storageDaemonJob(ctx, f, []any{
		map[string]any{"driver": rawDriver, "node-name": "data", "filename": rawPath},
		map[string]any{"driver": "file", "node-name": "overlay", "filename": childFile},
	}, map[string]any{
		"driver": "qcow2", "version": "v3", "file": "overlay", "data-file": "data", "data-file-raw": true,
		"size": virtualBytes, "cluster-size": clusterBytes,
	})
	if err != nil {
		return fmt.Errorf("create overlay %s: %w", path, err)
	}
	if err := sparse.Dig(path, holeBytes); err != nil {
		return fmt.Errorf("create overlay %s: %w", path, err)
	}
	return nil
}

// storageDaemonTimeout bounds one blockdev-create, which writes metadata only.
const storageDaemonTimeout = time.Minute

// storageDaemonJob runs blockdev-create with these options in a qemu-storage-daemon that has these nodes, and f as childFile.
func storageDaemonJob(ctx context.Context, f *os.File, nodes []any, create map[string]any) error {
	ctx, cancel := context.WithTimeout(ctx, storageDaemonTimeout)
	defer cancel()
	args := []string{"--chardev", "stdio,id=qmp", "--monitor", "chardev=qmp"}
	for _, node := range nodes {
		doc, err := json.Marshal(node)
		if err != nil {
			return err
		}
		args = append(args, "--blockdev", string(doc))
	}
	cmd := exec.CommandContext(ctx, "qemu-storage-daemon", args...)
	cmd.Env, cmd.ExtraFiles = qemuEnvironment, []*os.File{f}
	cmd.WaitDelay = time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	talk := createImage(qmp.New(in, out), create)
	if talk != nil && !errors.Is(talk, io.EOF) {
		_ = cmd.Process.Kill() // It does not exit with its monitor, unless it has just ended.
	}
	ended := errors.Join(in.Close(), cmd.Wait())
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("qemu-storage-daemon: %w", ctx.Err())
	case errors.Is(talk, io.EOF) || (talk == nil && ended != nil):
		return fmt.Errorf("qemu-storage-daemon: %w: %s", errors.Join(talk, ended), bytes.TrimSpace(stderr.Bytes()))
	}
	return talk
}

// createImage runs blockdev-create in a qemu-storage-daemon and ends it.
func createImage(daemon *qmp.Client, options map[string]any) error {
	none := map[string]any{}
	if err := daemon.Run("blockdev-create", map[string]any{"job-id": "create", "options": options}, nil); err != nil {
		return err
	}
	if err := daemon.Await(jobConcluded); err != nil {
		return err
	}
	var jobs []struct {
		Error string `json:"error"`
	}
	if err := daemon.Run("query-jobs", none, &jobs); err != nil {
		return err
	}
	if len(jobs) != 1 {
		return fmt.Errorf("%d jobs, not 1", len(jobs))
	}
	if err := daemon.Run("quit", none, nil); err != nil {
		return err
	}
	if jobs[0].Error != "" {
		return errors.New(jobs[0].Error)
	}
	return nil
}

// jobConcluded says whether an event reports that a job has concluded.
func jobConcluded(e qmp.Event) bool {
	var data struct {
		Status string `json:"status"`
	}
	return e.Name == "JOB_STATUS_CHANGE" && json.Unmarshal(e.Data, &data) == nil && data.Status == "concluded"
}
