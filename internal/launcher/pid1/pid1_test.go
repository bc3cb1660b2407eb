package pid1

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/test/wait"
)

// The tests run an init in a separate process, because it reaps every child that it gets. A sub-reaper adopts orphans as PID 1 does.
func TestMain(m *testing.M) {
	if script := os.Getenv("PID1_TEST_SCRIPT"); script != "" {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			panic(err)
		}
		status, err := Run("/bin/sh", []string{"sh", "-c", script})
		if err != nil {
			panic(err)
		}
		fmt.Printf("signal %d\n", int(status.Signal))
		os.Exit(status.Code)
	}
	os.Exit(m.Run())
}

func start(t *testing.T, script string) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "PID1_TEST_SCRIPT="+script)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cmd.StdinPipe(); err != nil { // what reads from it lives as long as the test
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd, bufio.NewReader(out)
}

func line(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	s, err := r.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(s)
}

func exitCode(t *testing.T, cmd *exec.Cmd) int {
	t.Helper()
	err := cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode()
}

func TestRun_exitCodeIsTheChilds(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]int{"exit 0": 0, "exit 3": 3, "kill -9 $$": 128 + 9} {
		cmd, out := start(t, script)
		wantSignal := "signal 0"
		if want > 128 {
			wantSignal = "signal 9"
		}
		if got := line(t, out); got != wantSignal {
			t.Errorf("%s: %s, want %s", script, got, wantSignal)
		}
		if got := exitCode(t, cmd); got != want {
			t.Errorf("%s: exit code %d, want %d", script, got, want)
		}
	}
}

func TestRun_sigtermReachesTheChild(t *testing.T) {
	t.Parallel()
	cmd, out := start(t, `trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done`)
	line(t, out)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got := exitCode(t, cmd); got != 7 {
		t.Errorf("exit code %d, want that of the trap, 7", got)
	}
}

// Twenty orphans end while the child is alive. None stays a zombie.
func TestRun_reapsOrphans(t *testing.T) {
	t.Parallel()
	cmd, out := start(t, `for i in $(seq 20); do (sleep 0.1 & ) ; done; echo ready; read end`)
	line(t, out)
	wait.Succeeds(t, time.Minute, "the shell to be the only child", func() error {
		if living, zombies := childrenOf(t, cmd.Process.Pid); living != 1 || zombies != 0 {
			return fmt.Errorf("%d living children and %d zombies", living, zombies)
		}
		return nil
	})
}

func childrenOf(t *testing.T, parent int) (living, zombies int) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue // not a process, or gone
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		fields := strings.Fields(rest)
		if len(fields) < 2 || fields[1] != strconv.Itoa(parent) {
			continue
		}
		if fields[0] == "Z" {
			zombies++
		} else {
			living++
		}
	}
	return living, zombies
}
