package domain

import (
	"bufio"
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

	"github.com/varvebackup/varve/internal/sparse"
)

// holeBytes is the size of what is freed of an overlay at least: a block of the usual file systems. It must be this small: QEMU
// counts the blocks of clusters that are nearly empty.
const holeBytes = 4 << 10

// createOverlay makes the qcow2 file at path over the raw disk at rawPath, which it does not change.
//
// It asks qemu-storage-daemon, because qemu-img create truncates a data file that exists. The file is
// punched afterwards: only then, and with a cluster size that fits the disk, does QEMU recognize it as preallocated
// metadata and pass the raw file's holes on, so that a full backup of a sparse disk stays sparse.
func createOverlay(ctx context.Context, path, rawPath string, virtualBytes int64, clusterBytes int) error {
	// Whoever has the claim may have put something in its way, or a link to something else.
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

// storageDaemonTimeout bounds one blockdev-create: it writes metadata only.
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
	talk := qmpCreate(json.NewEncoder(in), bufio.NewReader(out), create)
	ended := errors.Join(in.Close(), cmd.Wait())
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("qemu-storage-daemon: %w", ctx.Err())
	case errors.Is(talk, io.EOF) || (talk == nil && ended != nil):
		return fmt.Errorf("qemu-storage-daemon: %w: %s", errors.Join(talk, ended), bytes.TrimSpace(stderr.Bytes()))
	}
	return talk
}

// qmpReply is any message of a QMP server.
type qmpReply struct {
	Event string `json:"event"`
	Data  struct {
		Status string `json:"status"`
	} `json:"data"`
	Return json.RawMessage `json:"return"`
	Error  *struct {
		Desc string `json:"desc"`
	} `json:"error"`
}

// qmpCreate runs blockdev-create over a QMP connection and ends the daemon.
func qmpCreate(to *json.Encoder, from io.Reader, options map[string]any) error {
	messages := json.NewDecoder(from)
	// next returns the reply to a command, or for a wanted status the event that announces it.
	next := func(status string) (qmpReply, error) {
		for {
			var m qmpReply
			if err := messages.Decode(&m); err != nil {
				return m, err
			}
			if m.Error != nil {
				return m, errors.New(m.Error.Desc)
			}
			if status == "" && m.Return != nil || status != "" && m.Event == "JOB_STATUS_CHANGE" && m.Data.Status == status {
				return m, nil
			}
		}
	}
	command := func(name string, arguments map[string]any, status string) (qmpReply, error) {
		if err := to.Encode(map[string]any{"execute": name, "arguments": arguments}); err != nil {
			return qmpReply{}, err
		}
		return next(status)
	}
	none := map[string]any{}
	if _, err := command("qmp_capabilities", none, ""); err != nil {
		return err
	}
	if _, err := command("blockdev-create", map[string]any{"job-id": "create", "options": options}, "concluded"); err != nil {
		return err
	}
	reply, err := command("query-jobs", none, "")
	if err != nil {
		return err
	}
	var jobs []struct {
		Error string `json:"error"`
	}
	if err := json.Unmarshal(reply.Return, &jobs); err != nil {
		return err
	}
	if len(jobs) != 1 {
		return fmt.Errorf("%d jobs, not 1", len(jobs))
	}
	if _, err := command("quit", none, ""); err != nil {
		return err
	}
	if jobs[0].Error != "" {
		return errors.New(jobs[0].Error)
	}
	return nil
}
