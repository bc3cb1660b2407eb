package process

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/test/wait"
)

// A server's children end with it: they would hold its port.
func TestKill_endsWhatTheServerStarted(t *testing.T) {
	t.Parallel()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	p, err := Start("/bin/sh", []string{"-c", "sleep 1000 & echo $!; wait"}, []string{"PATH=/usr/bin:/bin"}, log)
	if err != nil {
		t.Fatal(err)
	}
	child := 0
	wait.Until(t, time.Minute, "the child", func() bool {
		child, err = strconv.Atoi(strings.TrimSpace(Tail(log)))
		return err == nil
	})
	if ended, err := p.Ended(); ended {
		t.Errorf("it ended: %v", err)
	}
	p.Kill()
	if ended, err := p.Ended(); !ended || err == nil {
		t.Errorf("it lives: %v", err)
	}
	wait.Until(t, time.Minute, "the child's end", func() bool { return errors.Is(unix.Kill(child, 0), unix.ESRCH) || isZombie(child) })
}

// isZombie says that a process has ended, and nobody has asked how. Who adopts orphans may be slow.
func isZombie(pid int) bool {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	_, state, _ := strings.Cut(string(text), ") ")
	return err == nil && strings.HasPrefix(state, "Z")
}

func TestTerminate_letsItEndByItself(t *testing.T) {
	t.Parallel()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	p, err := Start("/bin/sh", []string{"-c", "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.05; done"}, []string{"PATH=/usr/bin:/bin"}, log)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	wait.Until(t, time.Minute, "the trap", func() bool { return strings.Contains(Tail(log), "ready") })
	p.Terminate(time.Minute)
	if ended, err := p.Ended(); !ended || err != nil || !strings.Contains(Tail(log), "bye") {
		t.Errorf("%v %v %q", ended, err, Tail(log))
	}
}
