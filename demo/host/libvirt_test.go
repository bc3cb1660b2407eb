//go:build libvirt_dlopen

// Package demohost runs those commands of docs/quickstart-host.md that `make demo-host` cannot run because they need libvirt.
package demohost

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/cli"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/session"
	"github.com/varvebackup/varve/internal/domain/domaintest"
	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/test/verdict"
)

// TestMain runs the tests in the root that has libvirt. If the binary is called by the name varve, it is varve.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "varve" {
		storage.Register()
		root := cli.New(cli.Options{Program: "varve", Streams: session.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}, Now: time.Now, Env: os.Getenv})
		root.SetArgs(os.Args[1:])
		err := root.ExecuteContext(context.Background())
		cli.Report(os.Stderr, err, "varve")
		os.Exit(failure.Code(err))
	}
	os.Exit(domaintest.Run(m))
}

// libvirtDomain is a machine without an operating system. Its disk is written through QEMU's own device.
const libvirtDomain = `<domain type='qemu'>
  <name>web</name>
  <memory unit='MiB'>64</memory>
  <os><type arch='x86_64' machine='q35'>hvm</type></os>
  <devices>
    <disk type='file' device='disk'>
      <driver name='qemu' type='qcow2'/>
      <source file='%s'/>
      <target dev='vda' bus='virtio'/>
    </disk>
  </devices>
</domain>
`

// site is a directory in which the page's commands run, with a libvirt that has the machine web.
type site struct {
	*testing.T
	dir string
	env []string
}

func newSite(t *testing.T) *site {
	t.Helper()
	domaintest.StartHostLibvirt(t)
	s := &site{T: t, dir: t.TempDir()}
	bin := filepath.Join(s.dir, "bin")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(bin, "varve")); err != nil {
		t.Fatal(err)
	}
	s.env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "VARVE_PASSWORD=a", "LIBVIRT_DEFAULT_URI="+domaintest.HostURI,
		"VARVE_REPO_CONFIG="+filepath.Join(s.dir, "repository.config"))
	if err := os.WriteFile(filepath.Join(s.dir, "web.xml"), fmt.Appendf(nil, libvirtDomain, filepath.Join(s.dir, "web.qcow2")), 0o600); err != nil {
		t.Fatal(err)
	}
	s.run("varve repo create $PWD/repository")
	s.run("qemu-img create -q -f qcow2 web.qcow2 64M && qemu-io -c 'write -q -P 1 0 8M' web.qcow2")
	s.run("virsh define web.xml && virsh start web")
	return s
}

// try runs a script as the page tells the reader to, and returns its output.
func (s *site) try(script string) (string, error) {
	cmd := exec.CommandContext(s.Context(), "bash", "-euo", "pipefail", "-c", script)
	cmd.Dir, cmd.Env = s.dir, s.env
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (s *site) run(script string) string {
	s.Helper()
	out, err := s.try(script)
	if err != nil {
		s.Fatalf("%v: %s\n%s", err, script, out)
	}
	return out
}

// libvirtScript returns the page's script for running guests.
func libvirtScript(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/quickstart-host.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(page), "\n## Only what changed, while the guest runs\n")
	section, _, _ := strings.Cut(after, "\n## ")
	var lines []string
	for line := range strings.Lines(section) {
		if code, ok := strings.CutPrefix(line, "    "); ok {
			lines = append(lines, code)
		}
	}
	if !found || len(lines) < 10 {
		t.Fatal("quickstart-host.md has no script for running guests any more")
	}
	return strings.Join(lines, "")
}

// The page's script makes a full restore point of a running guest, then incremental ones, and leaves one checkpoint
// in libvirt. If libvirt has forgotten that checkpoint, the script fails, and continues with an empty base as the page says.
func TestQuickstart_libvirt(t *testing.T) {
	s, script := newSite(t), libvirtScript(t)
	write := func(pattern int, where string) {
		s.run(fmt.Sprintf(`virsh qemu-monitor-command web --hmp 'qemu-io -d /machine/peripheral/virtio-disk0/virtio-backend "write -P %d %s"'`, pattern, where))
	}
	s.run(script)
	write(2, "1M 64k")
	s.run(script)
	write(3, "20M 192k")
	s.run(script)

	list := s.run("varve disk list web")
	if strings.Count(list, " Full (NoParent)") != 1 || strings.Count(list, " Incremental") != 2 {
		t.Errorf("not a full restore point and two incremental ones:\n%s", list)
	}
	points := strings.Fields(s.run("varve disk list web -o name"))
	if len(points) != 3 {
		verdict.Fatalf(t, "%d restore points, not 3:\n%s", len(points), list)
	}
	checkpoints := strings.Fields(s.run("virsh checkpoint-list web --name"))
	if len(checkpoints) != 1 {
		t.Fatalf("checkpoints %q are left, not one", checkpoints)
	}
	s.run("virsh checkpoint-delete web --metadata " + checkpoints[0])
	if out, err := s.try(script); err == nil {
		t.Errorf("the script worked although libvirt has forgotten its checkpoint:\n%s", out)
	}
	write(4, "30M 64k")
	s.run(strings.Replace(script, "base=$(varve disk checkpoint web)", "base=$(:)", 1))
	points = strings.Fields(s.run("varve disk list web -o name"))

	// After a clean shutdown, the image is what the guest had when the last backup began: nothing was written since.
	s.run("virsh destroy --graceful web; qemu-img convert -f qcow2 -O raw web.qcow2 web.raw")
	s.run("varve disk restore " + points[len(points)-1] + " restored.raw")
	if out, err := s.try("cmp web.raw restored.raw"); err != nil {
		verdict.JudgeErrorf(t, verdict.Differ(err), "cmp web.raw restored.raw: %v\n%s", err, out)
	}
}
