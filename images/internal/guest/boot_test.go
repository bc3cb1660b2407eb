package guest_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/varvebackup/varve/images/internal/cache"
	"github.com/varvebackup/varve/images/internal/command"
	"github.com/varvebackup/varve/images/internal/debian"
	"github.com/varvebackup/varve/images/internal/guest"
	"github.com/varvebackup/varve/images/internal/recipe"
)

// wrongData is the mark of test/verdict, which this module cannot import.
const wrongData = "WRONG DATA: "

// Kernel arguments, as in images/guest/README.md.
const (
	testArgs   = "console=ttyS0 quiet panic=-1 mitigations=off nokaslr"
	debianArgs = "console=ttyS0 quiet panic=-1 mitigations=off nokaslr root=LABEL=root rw"
)

// kitchen builds from the repository's files into the user's cache, which has everything after the first run.
func kitchen(t *testing.T) *recipe.Kitchen {
	t.Helper()
	store, err := cache.Default()
	if err != nil {
		t.Fatal(err)
	}
	roots := &debian.Builder{Cache: store, Log: command.NewLog(t.Output(), time.Now)}
	return &recipe.Kitchen{
		Debian: roots,
		Guest:  &guest.Builder{Roots: roots, Suite: recipe.Suite, Source: "../../guest"},
		Config: "../../launcher",
	}
}

// disk makes a raw disk of 64 MiB, with an ext4 file system if label is not empty.
func disk(t *testing.T, label string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk.raw")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 64<<20); err != nil {
		t.Fatal(err)
	}
	if label != "" {
		host(t, "mke2fs", "-q", "-F", "-t", "ext4", "-L", label, path)
	}
	return path
}

// host runs a program on this machine.
func host(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func drive(id, path string) []string {
	return []string{"-drive", "if=none,format=raw,id=" + id + ",file=" + path}
}

// A guest with a virtio, a SATA and a SCSI disk, and a disk without a file system. It checks which are mounted where,
// what the agent's freeze reaches, and that written data survives the power button.
func TestTestGuest(t *testing.T) {
	t.Parallel()
	g, err := kitchen(t).Guest.Test(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	named, plain, empty, sata, scsi := disk(t, "a"), disk(t, "b"), disk(t, ""), disk(t, "c"), disk(t, "d")
	args := append(drive("named", named), drive("plain", plain)...)
	args = append(append(append(args, drive("empty", empty)...), drive("sata", sata)...), drive("scsi", scsi)...)
	args = append(args,
		"-device", "virtio-blk-pci,drive=named,serial=DATA-1",
		"-device", "virtio-blk-pci,drive=plain",
		"-device", "virtio-blk-pci,drive=empty,serial=EMPTY",
		"-device", "ide-hd,drive=sata,bus=ide.0,serial=SATA1",
		"-device", "virtio-scsi-pci,id=scsi", "-device", "scsi-hd,drive=scsi,bus=scsi.0,serial=SCSI1")
	m, took := boot(t, g.Kernel, g.Initrd, testArgs, args...)
	t.Logf("the agent answered after %.1f s", took.Seconds())

	for _, dir := range []string{"/disks/DATA-1", "/disks/vdb", "/disks/SATA1", "/disks/SCSI1"} {
		// SATA and SCSI disks appear when the kernel has found them.
		m.must("i=0; until grep -q ' " + dir + " ext4 ' /proc/mounts; do i=$((i+1)); [ $i -lt 600 ] || exit 1; usleep 100000; done")
	}
	if out := m.must("grep -c '^/dev/vdc' /proc/mounts || true"); strings.TrimSpace(out) != "0" {
		t.Errorf("a disk without a file system is mounted")
	}
	if out := m.must("cat /sys/block/vdc/serial"); strings.TrimSpace(out) != "EMPTY" {
		t.Errorf("serial of the third disk: %q", out)
	}
	freezeHolds(t, m, "/disks/DATA-1", named, 4)
	m.must("mkfs.ext4 -q /dev/vdc && mount-disks && touch /disks/EMPTY/made && e2fsck -V && umount /disks/EMPTY && e2fsck -fn /dev/vdc")

	m.monitor.call(t, "system_powerdown", nil, stopTimeout)
	t.Logf("off %.1f s after the power button", m.waitOff().Seconds())
	if out := host(t, "dumpe2fs", "-h", named); !strings.Contains(out, "state:         clean") {
		t.Errorf("the disk was not unmounted at power-off:\n%s", out)
	}
	if out := host(t, "debugfs", "-R", "cat /frozen", named); !strings.Contains(out, "after") {
		t.Errorf(wrongData+"what the guest wrote is not on the disk: %q", out)
	}
}

// freezeHolds checks that a freeze reaches as many file systems as are mounted, and that the disk below dir does not
// change during the freeze, although a program in the guest writes to it all the time.
func freezeHolds(t *testing.T, m *machine, dir, disk string, mounted int) {
	t.Helper()
	m.must("(while [ ! -e /tmp/stop ]; do date >>" + dir + "/ticks; sync; sleep 0.1; done; touch /tmp/stopped) >/dev/null 2>&1 &")
	before := hash(t, disk)
	for deadline := time.Now().Add(stopTimeout); hash(t, disk) == before; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the writer in the guest changes nothing: the test would prove nothing")
		}
	}

	var count int
	if m.guest("guest-fsfreeze-freeze", nil, &count); count != mounted {
		t.Errorf("%d file systems were frozen, want %d", count, mounted)
	}
	var status string
	if m.guest("guest-fsfreeze-status", nil, &status); status != "frozen" {
		t.Errorf("status after freeze: %s", status)
	}
	frozen := hash(t, disk)
	time.Sleep(time.Second) // Ten times the writer's pause between two writes.
	if hash(t, disk) != frozen {
		t.Error(wrongData + "the disk changed while the guest was frozen")
	}
	if m.guest("guest-fsfreeze-thaw", nil, &count); count != mounted {
		t.Errorf("%d file systems were thawed, want %d", count, mounted)
	}
	m.must("touch /tmp/stop; until [ -e /tmp/stopped ]; do sleep 0.1; done; echo after >" + dir + "/frozen; sync")
	if hash(t, disk) == frozen {
		t.Error("the disk did not change after the thaw")
	}
}

func hash(t *testing.T, path string) string {
	t.Helper()
	sum, err := cache.HashFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// The guest agent's shutdown ends the guest, as libvirt's agent mode requests it.
func TestTestGuestAgentShutdown(t *testing.T) {
	t.Parallel()
	g, err := kitchen(t).Guest.Test(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m, took := boot(t, g.Kernel, g.Initrd, testArgs)
	t.Logf("the agent answered after %.1f s", took.Seconds())
	m.agent.send(t, "guest-shutdown", map[string]any{"mode": "powerdown"}) // It has no answer.
	t.Logf("off after %.1f s", m.waitOff().Seconds())
}

// The Debian guest boots from its root disk, mounts the data disk by its label, freezes both, and obeys the power button.
func TestDebianGuest(t *testing.T) {
	t.Parallel()
	g, err := kitchen(t).Guest.Debian(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	root, data := filepath.Join(t.TempDir(), "root.raw"), disk(t, "data")
	host(t, "qemu-img", "convert", "-f", "qcow2", "-O", "raw", g.Disk, root)
	args := append(drive("root", root), drive("data", data)...)
	m, took := boot(t, g.Kernel, g.Initrd, debianArgs, append(args,
		"-device", "virtio-blk-pci,drive=root", "-device", "virtio-blk-pci,drive=data")...)
	t.Logf("the agent answered after %.1f s", took.Seconds())

	m.must("i=0; until grep -q ' /data ext4 ' /proc/mounts; do i=$((i+1)); [ $i -lt 300 ] || exit 1; sleep 0.1; done")
	if out := m.must("cat /etc/os-release"); !strings.Contains(out, "VERSION_CODENAME="+recipe.Suite) {
		t.Errorf("os-release: %s", out)
	}
	freezeHolds(t, m, "/data", data, 2)
	if failed := m.must("systemctl list-units --failed --plain --no-legend"); failed != "" {
		t.Errorf("units that failed:\n%s", failed)
	}

	m.monitor.call(t, "system_powerdown", nil, stopTimeout)
	t.Logf("off %.1f s after the power button", m.waitOff().Seconds())
	for _, path := range []string{root, data} {
		host(t, "e2fsck", "-fn", path)
	}
	if out := host(t, "debugfs", "-R", "cat /frozen", data); !strings.Contains(out, "after") {
		t.Errorf(wrongData+"what the guest wrote is not on the disk: %q", out)
	}
}
