package domaintest

import (
	"bytes"
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// URI is the address of the libvirt that StartLibvirt starts.
const URI = "qemu:///system"

const libvirtSocket = "/run/libvirt/libvirt-sock"

// libvirtState is everything that libvirt keeps, except its cache of QEMU's capabilities.
var libvirtState = []string{"/run/libvirt", "/var/lib/libvirt/qemu", "/etc/libvirt/qemu", "/var/log/libvirt"}

// Libvirt is a running libvirtd.
type Libvirt struct {
	cmd *exec.Cmd
	log bytes.Buffer
}

// StartLibvirt starts a libvirtd that knows no domain. When the test ends, it ends libvirtd and every QEMU, and shows
// libvirtd's log if the test failed.
func StartLibvirt(tb testing.TB) *Libvirt {
	tb.Helper()
	l := &Libvirt{}
	wipe(tb)
	l.start(tb)
	tb.Cleanup(func() {
		l.Kill(tb)
		killQEMU(tb)
		if tb.Failed() {
			tb.Logf("libvirtd said:\n%s", l.log.Bytes())
		}
	})
	return l
}

// wipe removes everything that libvirt knows about domains.
func wipe(tb testing.TB) {
	tb.Helper()
	for _, dir := range libvirtState {
		if err := os.RemoveAll(dir); err != nil {
			tb.Fatal(err)
		}
	}
}

// Renew ends libvirtd and every QEMU with SIGKILL and starts a libvirtd that knows nothing, as in the next launcher pod.
func (l *Libvirt) Renew(tb testing.TB) {
	tb.Helper()
	l.Kill(tb)
	killQEMU(tb)
	wipe(tb)
	l.start(tb)
}

// Restart kills libvirtd and starts it again. QEMU keeps running.
func (l *Libvirt) Restart(tb testing.TB) {
	tb.Helper()
	l.Kill(tb)
	l.start(tb)
}

// Kill ends libvirtd with SIGKILL and waits for it.
func (l *Libvirt) Kill(tb testing.TB) {
	tb.Helper()
	if l.cmd == nil {
		return
	}
	if err := l.cmd.Process.Kill(); err != nil {
		tb.Errorf("kill libvirtd: %v", err)
	}
	_ = l.cmd.Wait() // it was killed, so an error is expected
	l.cmd = nil
	if err := os.Remove(libvirtSocket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		tb.Errorf("remove libvirtd's socket: %v", err)
	}
}

func (l *Libvirt) start(tb testing.TB) {
	tb.Helper()
	l.cmd = exec.Command("libvirtd", "--config", "/etc/libvirt/libvirtd.conf")
	l.cmd.Stdout, l.cmd.Stderr = &l.log, &l.log
	// A process group of its own, so that an interrupted test binary ends before its libvirtd does.
	l.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := l.cmd.Start(); err != nil {
		tb.Fatalf("start libvirtd: %v", err)
	}
	eventually(tb, 20*time.Second, "libvirtd listens", func() bool {
		conn, err := net.Dial("unix", libvirtSocket)
		return err == nil && conn.Close() == nil
	})
}

// QEMUPID returns the process ID of the only guest.
func QEMUPID(tb testing.TB) int {
	tb.Helper()
	pids := qemuPIDs(tb)
	if len(pids) != 1 {
		tb.Fatalf("%d guests run, not 1", len(pids))
	}
	return pids[0]
}

func qemuPIDs(tb testing.TB) []int {
	tb.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		tb.Fatal(err)
	}
	var out []int
	for _, file := range files {
		// The link of a process that has ended meanwhile is gone.
		exe, err := os.Readlink(file)
		if err != nil || !strings.HasPrefix(filepath.Base(exe), "qemu-system-") {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			tb.Fatal(err)
		}
		out = append(out, pid)
	}
	return out
}

// KillQEMU kills the only guest with SIGKILL and waits until it is gone.
func KillQEMU(tb testing.TB) {
	tb.Helper()
	QEMUPID(tb)
	killQEMU(tb)
}

func killQEMU(tb testing.TB) {
	tb.Helper()
	for _, pid := range qemuPIDs(tb) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			tb.Errorf("kill QEMU: %v", err)
		}
	}
	eventually(tb, 20*time.Second, "QEMU is gone", func() bool { return len(qemuPIDs(tb)) == 0 })
}

// GuestKernel returns the test guest's kernel and initial RAM disk.
func GuestKernel(tb testing.TB) (kernel, initrd string) {
	tb.Helper()
	kernel, initrd = GuestDir+"/vmlinux", GuestDir+"/initrd-test.img"
	for _, file := range []string{kernel, initrd} {
		if _, err := os.Stat(file); err != nil {
			tb.Fatalf("no test guest: run `make launcher-root guest`: %v", err)
		}
	}
	return kernel, initrd
}

// eventually waits until a condition holds, and fails the test if it does not hold in time. Tests have test/wait, which this package cannot import.
func eventually(tb testing.TB, within time.Duration, what string, holds func() bool) {
	tb.Helper()
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline.C:
			tb.Fatalf("not within %v: %s", within, what)
		}
	}
}
