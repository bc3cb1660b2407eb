//go:build nbd_interop

package nbd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/wait"
)

// debian names the Debian package of each program that these tests run.
var debian = map[string]string{
	"qemu-nbd": "qemu-utils", "qemu-img": "qemu-utils", "qemu-io": "qemu-utils", "qemu-storage-daemon": "qemu-system-common",
	"nbdkit": "nbdkit", "nbdinfo": "libnbd-bin", "nbdcopy": "libnbd-bin",
}

// newQEMU is where the launcher image's QEMU is, from Debian 13. Debian 12's does not know extended headers.
const newQEMU = "../../build/launcher-root"

func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("%s is missing: install Debian's package %s (hack/deps.sh interop)", name, debian[name])
	}
	return path
}

// fromLauncher returns the command line of a program in the launcher's image.
func fromLauncher(t *testing.T, name string) []string {
	t.Helper()
	root, err := filepath.EvalSymlinks(newQEMU)
	if err != nil {
		t.Fatalf("no launcher root: run `make launcher-root`: %v", err)
	}
	lib := filepath.Join(root, "usr/lib/x86_64-linux-gnu")
	return []string{filepath.Join(lib, "ld-linux-x86-64.so.2"), "--library-path", lib, filepath.Join(root, "usr/bin", name)}
}

// run runs a program to its end and returns its output.
func run(t *testing.T, name string, args ...string) []byte {
	t.Helper()
	out, err := tryRun(t, name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func tryRun(t *testing.T, name string, args ...string) ([]byte, error) {
	t.Helper()
	return runLine(t, append([]string{program(t, name)}, args...)...)
}

// runLine runs a command line to its end. An error contains all that it said.
func runLine(t *testing.T, line ...string) ([]byte, error) {
	t.Helper()
	cmd := exec.CommandContext(testContext(t), line[0], line[1:]...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return out, fmt.Errorf("%s: %w\n%s%s", strings.Join(line, " "), err, out, stderr.Bytes())
	}
	return out, nil
}

// socketDir makes a directory with a short name.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "nbd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// start runs a server until the test ends, and returns when it listens on its socket.
func start(t *testing.T, socket string, command ...string) {
	t.Helper()
	cmd := exec.CommandContext(context.Background(), command[0], command[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			cmd.Process.Kill()
			<-ended
		}
		if t.Failed() {
			t.Logf("%s said: %s", filepath.Base(command[0]), said.Bytes())
		}
	})
	wait.Until(t, testTimeout, strings.Join(command, " ")+" to listen", func() bool {
		if nc, err := new(net.Dialer).DialContext(t.Context(), "unix", socket); err == nil {
			nc.Close()
			return true
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("%s ended: %v\n%s", strings.Join(command, " "), err, said.Bytes())
		default:
		}
		return false
	})
}

const imageBytes = 12 << 20

// imageData are the extents with data in an image; the rest is a hole.
var imageData = []extent.Extent{
	{Offset: 0, Length: 64 << 10},
	{Offset: 1 << 20, Length: 256 << 10},
	{Offset: 5<<20 + 4096, Length: 4096},
	{Offset: 7 << 20, Length: 2 << 20},
	{Offset: imageBytes - 128<<10, Length: 128 << 10},
}

// rawImage makes a sparse file, and returns its path and its content.
func rawImage(t *testing.T) (string, []byte) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk.raw")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	content := make([]byte, imageBytes)
	err = f.Truncate(imageBytes)
	for i, e := range imageData {
		copy(content[e.Offset:e.End()], pattern(int(e.Length), byte(i*37+1)))
		_, werr := f.WriteAt(content[e.Offset:e.End()], e.Offset)
		err = errors.Join(err, werr)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	return path, content
}

// qcow2Image makes an image with the same content and two bitmaps: b0 has the changes to its third extent, b1 those to the third and fourth.
func qcow2Image(t *testing.T) (string, []byte) {
	t.Helper()
	raw, content := rawImage(t)
	path := filepath.Join(t.TempDir(), "disk.qcow2")
	run(t, "qemu-img", "convert", "-f", "raw", "-O", "qcow2", raw, path)
	for i, bitmap := range []string{"b1", "b0"} {
		run(t, "qemu-img", "bitmap", "--add", "-g", "64K", path, bitmap)
		e := imageData[3-i]
		run(t, "qemu-io", "-f", "qcow2", "-c", fmt.Sprintf("write -s %s %d %d", slice(t, content, e), e.Offset, e.Length), path)
	}
	return path, content
}

// slice makes a file with a part of content.
func slice(t *testing.T, content []byte, e extent.Extent) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "part")
	if err := os.WriteFile(path, content[e.Offset:e.End()], 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// mapped is a run of status, as nbdinfo and this package report it.
type mapped struct {
	Offset int64  `json:"offset"`
	Length int64  `json:"length"`
	Type   uint64 `json:"type"`
}

// nbdinfoMap returns what libnbd says about a context, with runs of one kind merged.
func nbdinfoMap(t *testing.T, uri, name string) []mapped {
	t.Helper()
	var said, merged []mapped
	out := run(t, "nbdinfo", "--map="+name, "--json", uri)
	if err := json.Unmarshal(out, &said); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	for _, m := range said {
		if n := len(merged); n > 0 && merged[n-1].Type == m.Type {
			merged[n-1].Length += m.Length
			continue
		}
		merged = append(merged, m)
	}
	return merged
}

// ourMaps returns the same from our client, for all contexts in one pass.
func ourMaps(t *testing.T, c *Client) map[string][]mapped {
	t.Helper()
	maps := map[string][]mapped{}
	err := c.BlockStatus(testContext(t), extent.Extent{Length: c.Info().Bytes}, func(name string, e extent.Extent, flags uint64) error {
		maps[name] = append(maps[name], mapped{Offset: e.Offset, Length: e.Length, Type: flags})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return maps
}

// nbdcopyOut returns the content as nbdcopy reads it.
func nbdcopyOut(t *testing.T, uri string, options ...string) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "copy")
	run(t, "nbdcopy", append(options, uri, path)...)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
