//go:build beside

package beside

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/test/verdict"
	"github.com/varvebackup/varve/test/wait"
)

// virtctlCommand returns a command of upstream's virtctl in the machine's namespace.
func (s *scene) virtctlCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(cluster.root, "build/virtctl/bin/virtctl"),
		append(args, "--namespace="+s.Namespace)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+cluster.kubeconfig)
	return cmd
}

// runVirtctl runs upstream's virtctl until it ends.
func (s *scene) runVirtctl(args ...string) {
	s.t.Helper()
	if out, err := s.virtctlCommand(s.t.Context(), args...).CombinedOutput(); err != nil {
		s.t.Fatalf("virtctl %s (make virtctl builds it): %v\n%s", strings.Join(args, " "), err, out)
	}
}

// screen keeps what a program prints.
type screen struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write implements io.Writer.
func (c *screen) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.Write(p)
}

func (c *screen) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.String()
}

// typeAtConsole types a line at the guest's console with virtctl while a backup runs. The guest's shell answers.
func (s *scene) typeAtConsole() {
	s.t.Helper()
	b := s.createBackup("console")
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	cmd := s.virtctlCommand(ctx, "console", machine)
	var shown screen
	cmd.Stdout, cmd.Stderr = &shown, &shown
	keys, err := cmd.StdinPipe()
	s.mustSucceed(err)
	s.mustSucceed(cmd.Start())
	s.waitShown(ctx, &shown, "Successfully connected")
	_, err = io.WriteString(keys, "\necho answer-$((6*7))\n")
	s.mustSucceed(err)
	s.waitShown(ctx, &shown, "answer-42")
	_, err = keys.Write([]byte{0x1d}) // Ctrl+]
	s.mustSucceed(err)
	if err := cmd.Wait(); err != nil {
		s.t.Errorf("virtctl console: %v\n%s", err, shown.String())
	}
	s.waitEnded(b)
	if !b.IsReady() {
		s.t.Errorf("backup %s failed: %s", b.Name, *b.Status.Error.Message)
	}
}

// waitShown waits until a program has printed a text.
func (s *scene) waitShown(ctx context.Context, shown *screen, text string) {
	s.t.Helper()
	s.mustSucceed(wait.For(ctx, time.Minute, text+" on the console", func(context.Context) (bool, string, error) {
		all := shown.String()
		return strings.Contains(all, text), all, nil
	}))
}

// exportStopped stops the machine with virtctl and downloads its disk, which holds what it held while the guest ran.
// The stopped machine is backed up, lost and restored, and started with virtctl.
func (s *scene) exportStopped() {
	s.t.Helper()
	ctx := s.t.Context()
	s.runInGuest(`dd if=/dev/urandom of=$root bs=1M seek=3 count=5 conv=fsync`)
	sizes, running := s.measureDisks(), s.getInstance()
	sums := s.hashFirstBytes(sizes)
	s.runVirtctl("stop", machine)
	s.mustSucceed(s.WaitGone(ctx, running, 2*time.Minute))

	file := filepath.Join(s.t.TempDir(), "root.tar")
	s.runVirtctl("vmexport", "download", "stopped", "--vm="+machine, "--volume="+machine+"-root", "--port-forward",
		"--format=raw", "--output="+file)
	if got := s.hashArchived(file, sizes["root"]); got != sums["root"] {
		verdict.Errorf(s.t, "virtctl downloaded a disk with the sum %s, want %s", got, sums["root"])
	}
	s.backUpStopped()

	s.endTracking()
	s.runVirtctl("start", machine)
	s.waitBooted()
	if diff := cmp.Diff(sums, s.hashFirstBytes(sizes)); diff != "" {
		verdict.Errorf(s.t, "the restored disks differ from those before the stop (-want +got):\n%s", diff)
	}
}

// hashArchived returns the SHA-256 of the first bytes of a disk. KubeVirt exports a claim that nothing declares to be a
// disk as an archive of its files. It may have added zeroes to the disk.
func (s *scene) hashArchived(name string, size int64) string {
	s.t.Helper()
	f, err := os.Open(name)
	s.mustSucceed(err)
	defer f.Close()
	files := tar.NewReader(f)
	for {
		header, err := files.Next()
		s.mustSucceed(err)
		if path.Base(header.Name) == "disk.img" {
			break
		}
	}
	sum := sha256.New()
	_, err = io.CopyN(sum, files, size)
	s.mustSucceed(err)
	rest, err := io.ReadAll(files)
	s.mustSucceed(err)
	if strings.Trim(string(rest), "\x00") != "" {
		s.t.Errorf("%s holds data behind its %d bytes", name, size)
	}
	return hex.EncodeToString(sum.Sum(nil))
}
