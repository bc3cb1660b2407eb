package daemon

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/varvebackup/varve/test/wait"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// output is a writer that counts Writes and may be read while it is written.
type output struct {
	mu     sync.Mutex
	buf    bytes.Buffer
	writes int
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.writes++
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

func TestOutput_isPrefixedByLine(t *testing.T) {
	t.Parallel()
	var out output
	p, err := Start(Spec{Path: "/bin/sh", Args: []string{"-c", "echo one; echo two >&2; printf three; exit 4"}, Output: &out, Prefix: "d: "})
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if want := "d: one\nd: two\nd: three\n"; out.String() != want || out.writes != 3 {
		t.Errorf("%d writes: %q, want %q", out.writes, out.String(), want)
	}
	if p.Err() == nil || p.Err().Error() != "exit status 4" {
		t.Errorf("ended with %v, want exit status 4", p.Err())
	}
}

func TestOutput_longLineIsBrokenNotLost(t *testing.T) {
	t.Parallel()
	var out output
	copyLines(&out, "", io.LimitReader(strings.NewReader(strings.Repeat("x", 3*maxLine)), 3*maxLine))
	if got := strings.Count(out.String(), "x"); got != 3*maxLine {
		t.Errorf("%d bytes, want %d", got, 3*maxLine)
	}
}

func TestProcess_doneDoesNotWaitForAGrandchildThatHoldsThePipe(t *testing.T) {
	t.Parallel()
	var out output
	p, err := Start(Spec{Path: "/bin/sh", Args: []string{"-c", "echo begun; sleep 60 & exit 0"}, Output: &out})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Done():
	case <-time.After(30 * time.Second):
		t.Fatal("still waiting for the grandchild")
	}
	if out.String() != "begun\n" {
		t.Errorf("output %q", out.String())
	}
}

func TestProcess_stopKillsWhatIgnoresSIGTERM(t *testing.T) {
	t.Parallel()
	var out output
	p, err := Start(Spec{Path: "/bin/sh", Args: []string{"-c", `trap "" TERM; echo ready; while :; do sleep 0.05; done`}, Output: &out})
	if err != nil {
		t.Fatal(err)
	}
	wait.Until(t, time.Minute, "the shell to be ready", func() bool { return strings.Contains(out.String(), "ready") })
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	p.Stop(ctx)
	if p.Err() == nil || p.Err().Error() != "signal: killed" {
		t.Errorf("ended with %v, want signal: killed", p.Err())
	}
}

// emulator starts a shell under a name like QEMU's, with a PID file.
func emulator(t *testing.T, dir, name, script string) *exec.Cmd {
	t.Helper()
	program := filepath.Join(t.TempDir(), name)
	sh, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, sh, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "-c", script)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if _, err := out.Read(make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".pid"), fmt.Appendf(nil, "%d\n", cmd.Process.Pid), 0o600); err != nil {
		t.Fatal(err)
	}
	return cmd
}

const forever = "while :; do sleep 0.05; done"

func TestEndEmulators(t *testing.T) {
	t.Parallel()
	dir, proof := t.TempDir(), filepath.Join(t.TempDir(), "proof")
	obeys := emulator(t, dir, "qemu-obeys", fmt.Sprintf("trap 'echo clean >%s; exit 0' TERM; echo ready; %s", proof, forever))
	ignores := emulator(t, dir, "qemu-ignores", `trap "" TERM; echo ready; `+forever)
	stranger := emulator(t, dir, "stranger", "echo ready; "+forever)
	// Long enough for a shell to handle SIGTERM on a machine that is busy with other tests.
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := EndEmulators(ctx, dir); err != nil {
		t.Fatal(err)
	}
	if err := obeys.Wait(); err != nil {
		t.Errorf("the one that obeys SIGTERM: %v", err)
	}
	if _, err := os.Stat(proof); err != nil {
		t.Errorf("its handler did not run: %v", err)
	}
	if err := ignores.Wait(); err == nil || err.Error() != "signal: killed" {
		t.Errorf("the one that ignores SIGTERM: %v, want signal: killed", err)
	}
	if err := stranger.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("a process that is no emulator was ended: %v", err)
	}
	if err := EndEmulators(ctx, filepath.Join(dir, "missing")); err != nil {
		t.Errorf("nothing to end: %v", err)
	}
}
