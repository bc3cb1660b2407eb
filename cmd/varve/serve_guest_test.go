//go:build nbd_interop

package main

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

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/test/verdict"
)

const (
	guestDir = "../../build/guest"
	// qemuDir has QEMU from Debian 13: Debian 12's breaks this guest's kernel under emulation.
	qemuDir = "../../build/launcher-root"
	// bootPatience is far more than the 25 s that were measured.
	bootPatience = 5 * time.Minute
)

// guest is a virtual machine with a shell on its serial console.
type guest struct {
	t     *testing.T
	qemu  *exec.Cmd
	in    io.Writer
	ended chan error

	mu      sync.Mutex
	console bytes.Buffer
	grown   chan struct{} // receives a value when console has grown
}

// boot starts the Debian guest with its root on a disk, and waits for its shell. The image has no boot loader, so
// kernel and initramfs come from files, as for every guest with its own kernel in Varve's tests. Everything else is
// read from the disk.
func boot(t *testing.T, drive string, args ...string) *guest {
	t.Helper()
	root, err := filepath.EvalSymlinks(qemuDir)
	if err != nil {
		t.Fatalf("run `make launcher-root`: %v", err)
	}
	line := append([]string{
		filepath.Join(root, "usr/lib64/ld-linux-x86-64.so.2"), "--library-path", filepath.Join(root, "usr/lib/x86_64-linux-gnu"),
		filepath.Join(root, "usr/bin/qemu-system-x86_64"), "-L", filepath.Join(root, "usr/share/qemu"), "-L", filepath.Join(root, "usr/share/seabios"),
		// Never KVM: /dev/kvm may exist and still hang the guest.
		"-machine", "q35,accel=tcg", "-cpu", "qemu64", "-m", "384", "-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio",
		"-kernel", filepath.Join(guestDir, "debian-vmlinuz"), "-initrd", filepath.Join(guestDir, "debian-initrd.img"),
		"-append", "console=ttyS0 quiet panic=-1 mitigations=off nokaslr root=LABEL=root rw",
		"-device", "virtio-rng-pci", "-drive", drive,
	}, args...)
	g := &guest{t: t, qemu: exec.CommandContext(context.Background(), line[0], line[1:]...), ended: make(chan error, 1), grown: make(chan struct{}, 1)}
	g.qemu.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	g.qemu.Stdout, g.qemu.Stderr = g, g
	if g.in, err = g.qemu.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := g.qemu.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { g.ended <- g.qemu.Wait() }()
	t.Cleanup(func() {
		_ = g.qemu.Process.Kill() // it may already have ended
		if t.Failed() {
			t.Logf("console:\n%s", g.text(0))
		}
	})
	g.await(0, "root@varve-debian:~# ")
	return g
}

// Write receives the console's output.
func (g *guest) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case g.grown <- struct{}{}:
	default:
	}
	return g.console.Write(p)
}

func (g *guest) text(from int) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.console.String()[from:]
}

// await waits until the console shows a text, and returns what it showed from an offset up to that text.
func (g *guest) await(from int, text string) string {
	g.t.Helper()
	late := time.NewTimer(bootPatience)
	defer late.Stop()
	for {
		if before, _, ok := strings.Cut(g.text(from), text); ok {
			return before
		}
		select {
		case <-g.grown:
		case err := <-g.ended:
			g.t.Fatalf("QEMU ended while %q was waited for: %v", text, err)
		case <-late.C:
			g.t.Fatalf("the console does not say %q", text)
		}
	}
}

// sh runs a command that must succeed, and returns its output.
func (g *guest) sh(command string) string {
	g.t.Helper()
	from := len(g.text(0))
	// The console also echoes what is typed, which must not look like the markers.
	fmt.Fprintf(g.in, "echo beg''in; { %s; }; echo en''ded $?\n", command)
	from += len(g.await(from, "begin\r\n")) + len("begin\r\n")
	out := g.await(from, "ended ")
	if code := g.await(from+len(out)+len("ended "), "\r\n"); code != "0" {
		g.t.Fatalf("%s: exit code %s: %s", command, code, out)
	}
	return strings.TrimSpace(out)
}

// powerOff shuts the guest down in order.
func (g *guest) powerOff() {
	g.t.Helper()
	fmt.Fprintln(g.in, "systemctl poweroff")
	select {
	case err := <-g.ended:
		if err != nil {
			g.t.Errorf("QEMU: %v", err)
		}
	case <-time.After(bootPatience):
		g.t.Fatal("the guest does not power off")
	}
}

// debugfs runs a command of debugfs on an ext4 image, and returns its output.
func debugfs(t *testing.T, image string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "/sbin/debugfs", append(args, image)...).Output()
	if err != nil {
		t.Fatalf("debugfs (package e2fsprogs) %v: %v", args, err)
	}
	return string(out)
}

// tool runs a program that must succeed, and returns its output.
func tool(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	var stderr bytes.Buffer
	cmd.Env, cmd.Stderr = append(os.Environ(), env...), &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out, stderr.Bytes())
	}
	return string(out)
}

// TestServe_guestRunsFromARestorePoint: a Debian guest has its root on a writable export, writes to it and powers off. With
// the same overlay everything is still there, and the restore point has not changed. Then another guest runs from a
// read-only export, with QEMU's own snapshot for writes.
func TestServe_guestRunsFromARestorePoint(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "guest")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	disk, word := filepath.Join(dir, "root.img"), fmt.Sprintf("only on this disk: %d", time.Now().UnixNano())
	tool(t, nil, "qemu-img", "convert", "-f", "qcow2", "-O", "raw", filepath.Join(guestDir, "debian-root.qcow2"), disk)
	if err := os.WriteFile(filepath.Join(dir, "word"), []byte(word), 0o600); err != nil {
		t.Fatal(err)
	}
	debugfs(t, disk, "-w", "-R", "write "+filepath.Join(dir, "word")+" /word")
	k := &kept{dir: dir, env: []string{"VARVE_REPO_CONFIG=" + filepath.Join(dir, "config"), "VARVE_PASSWORD=of this test", "XDG_CACHE_HOME=" + dir}}
	tool(t, k.env, "varve", "repo", "create", filepath.Join(dir, "blobs"))
	k.id = strings.TrimSpace(tool(t, k.env, "varve", "disk", "backup", "guest", "root="+disk, "-o", "name", "--progress", "none"))

	s := k.serve(t, "--overlay", "o")
	g := boot(t, "file="+s.uri()+",format=raw,if=virtio,discard=unmap")
	if got := g.sh("cat /word"); got != word {
		t.Errorf("it runs from another disk: %q", got)
	}
	if got := g.sh("findmnt -no SOURCE,FSTYPE /"); got != "/dev/vda ext4" {
		t.Errorf("root is %q", got)
	}
	g.sh("seq 100000 >/numbers && sync && sha256sum /numbers")
	sum, _, _ := strings.Cut(g.sh("sha256sum /numbers"), " ")
	g.sh("fstrim /") // otherwise QEMU would not offer it to the guest
	g.powerOff()
	endServer(t, s)
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(dir, "o"), &st); err != nil || st.Blocks*512 > 64<<20 {
		t.Errorf("the overlay takes %d bytes: %v", st.Blocks*512, err)
	}

	s = k.serve(t, "--overlay", "o")
	later := filepath.Join(dir, "later.img")
	tool(t, nil, "nbdcopy", s.uri(), later)
	endServer(t, s)
	tool(t, nil, "/sbin/e2fsck", "-fn", later)
	if err := os.WriteFile(filepath.Join(dir, "numbers"), []byte(debugfs(t, later, "-R", "cat /numbers")), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := tool(t, nil, "sha256sum", filepath.Join(dir, "numbers")); !strings.HasPrefix(got, sum) || len(sum) != 64 {
		verdict.Errorf(t, "what the guest wrote has the sum %s, and had %s in it", got, sum)
	}

	s = k.serve(t)
	sameDisk(t, s, disk)
	g = boot(t, "file="+s.uri()+",format=raw,if=virtio,snapshot=on")
	if got := g.sh("cat /word && ! test -e /numbers"); got != word {
		verdict.Errorf(t, "it runs from another disk: %q", got)
	}
	g.sh("echo something >/something && sync")
	g.powerOff()
	sameDisk(t, s, disk)
	endServer(t, s)
}

// sameDisk compares what a server has with a raw disk.
func sameDisk(t *testing.T, s *diskServer, disk string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "qemu-img", "compare", "-f", "raw", "-F", "raw", s.uri(), disk).CombinedOutput()
	if err != nil {
		verdict.JudgeFatalf(t, verdict.Differ(err), "qemu-img compare %s %s: %v\n%s", s.uri(), disk, err, out)
	}
}

func endServer(t *testing.T, s *diskServer) {
	t.Helper()
	if err := s.end(syscall.SIGTERM); err != nil || strings.Contains(s.text(), "level=") {
		t.Errorf("varve disk serve: %v\n%s", err, s.text())
	}
}
