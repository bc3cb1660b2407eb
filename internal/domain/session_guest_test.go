//go:build libvirt_dlopen

package domain

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	"libvirt.org/go/libvirt"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/domain/domaintest"
	"github.com/varvebackup/varve/test/guestagent"
	"github.com/varvebackup/varve/test/wait"
)

// newGuest returns a machine that boots the test guest.
func newGuest(t *testing.T, sizes ...int64) *machine {
	t.Helper()
	m := newMachine(t, sizes...)
	m.options.KernelPath, m.options.InitrdPath = domaintest.GuestKernel(t)
	spec := &m.vmi.Spec.Domain
	spec.Memory.Guest = ptr.To(resource.MustParse("256Mi"))
	spec.Firmware = &kubevirtv1.Firmware{Serial: "serial-of-vm", KernelBoot: &kubevirtv1.KernelBoot{
		KernelArgs: "console=ttyS0 quiet panic=-1 mitigations=off nokaslr",
	}}
	spec.Devices.Rng = &kubevirtv1.Rng{}
	spec.Devices.Interfaces = []kubevirtv1.Interface{{Name: "default", Masquerade: &kubevirtv1.InterfaceMasquerade{}}}
	return m
}

// boot starts the guest and waits for its agent.
func (m *machine) boot() {
	m.Helper()
	m.prepare()
	m.start()
	for !m.await(EventAgent).Connected {
	}
}

// exec runs a command in the guest and returns its output.
func (m *machine) exec(command string) string {
	m.Helper()
	out, err := guestagent.Agent(m.ask).Run(m.Context(), time.Minute, command)
	if err != nil {
		m.Fatalf("%s: %v", command, err)
	}
	return strings.TrimSpace(out)
}

func (m *machine) ask(ctx context.Context, command string) (string, error) {
	return queryDomain(ctx, m.Session, "guest agent", func(d *libvirt.Domain) (string, error) {
		return d.QemuAgentCommand(command, 10, 0)
	})
}

func (m *machine) info() Info {
	m.Helper()
	info, err := m.Info(m.Context())
	if err != nil {
		m.Fatal(err)
	}
	return info
}

// TestGuest tests everything with one guest, because booting one takes many seconds under emulation.
func TestGuest(t *testing.T) {
	m := newGuest(t, 64*mib)
	m.addDisk("sata", 32*mib)
	m.addDisk("scsi", 48*mib)
	m.addDisk("shut", 16*mib)
	disks := m.vmi.Spec.Domain.Devices.Disks
	disks[0].Serial = "serial-0"
	disks[1].Disk.Bus = "sata"
	disks[2].Disk.Bus = "scsi"
	disks[2].Serial = "serial-2"
	disks[3].Disk.ReadOnly = true
	m.vmi.Spec.Domain.CPU = &kubevirtv1.CPU{Sockets: 1, Cores: 2, Threads: 1}
	m.boot()
	for _, step := range []struct {
		name string
		run  func(*machine)
	}{
		{"has what the instance says", hasHardware},
		{"is what Info says", infoMerges},
		{"has a consistent file system in a frozen backup", frozenBackup},
		{"tells that a file system was thawed in the guest", thawedInTheGuest},
		{"shuts down on request", shutsDown},
	} {
		if !t.Run(step.name, func(t *testing.T) {
			inner := *m
			inner.TB = t
			step.run(&inner)
		}) {
			return
		}
	}
}

func hasHardware(m *machine) {
	disks := m.vmi.Spec.Domain.Devices.Disks
	for command, want := range map[string]string{
		"grep -c ^processor /proc/cpuinfo":                                     "2",
		"cat /sys/block/vda/size":                                              fmt.Sprint(64 * mib / 512),
		"cat /sys/block/vda/serial":                                            "serial-0",
		"cat /sys/block/sda/size":                                              fmt.Sprint(32 * mib / 512),
		"cat /sys/block/sdb/size":                                              fmt.Sprint(48 * mib / 512),
		"cat /sys/block/vdb/ro":                                                "1",
		"cat /sys/class/dmi/id/product_uuid":                                   UUID(m.vmi),
		"cat /sys/class/dmi/id/product_serial":                                 "serial-of-vm",
		"cat /sys/class/net/eth0/address":                                      MAC(m.vmi, &m.vmi.Spec.Domain.Devices.Interfaces[0]),
		"cat /sys/block/vda/queue/discard_granularity | grep -v '^0$' | wc -l": "1",
		"ls -d /sys/bus/virtio/drivers/virtio_rng/virtio* | wc -l":             "1",
	} {
		if got := m.exec(command); got != want {
			m.Errorf("%s: %q, want %q", command, got, want)
		}
	}
	for _, d := range m.info().Disks {
		if want := TargetDevices(disks)[d.Volume]; d.Target != want {
			m.Errorf("disk %s is %s, not %s", d.Volume, d.Target, want)
		}
		if want := d.Volume == "d0"; d.Tracked != want {
			m.Errorf("disk %s tracked: %v", d.Volume, d.Tracked)
		}
	}
	log, err := os.ReadFile(m.options.SerialLog)
	if err != nil || len(log) == 0 {
		m.Errorf("serial log: %d bytes, %v", len(log), err)
	}
}

func infoMerges(m *machine) {
	mac := MAC(m.vmi, &m.vmi.Spec.Domain.Devices.Interfaces[0])
	var got Info
	wait.Until(m, 60*time.Second, "the guest has an address", func() bool {
		got = m.info()
		return len(got.Interfaces) == 1 && len(got.Interfaces[0].IPs) > 0
	})
	i := got.Interfaces[0]
	if i.Name != "default" || i.MAC != mac || i.GuestName != "eth0" || !i.FromAgent {
		m.Errorf("interface %+v", i)
	}
	if got.State != StateRunning || !got.AgentConnected || got.GuestOS == nil || got.GuestOS.KernelRelease == "" {
		m.Errorf("info %+v, guest %+v", got, got.GuestOS)
	}
	if d := got.Disks; len(d) != 4 || d[0] != (DiskInfo{Volume: "d0", Target: "vda", VirtualBytes: uint64(64 * mib), Tracked: true}) {
		m.Errorf("disks %+v", d)
	}

	// While the guest is frozen, the agent answers nothing else. Its last answers stay.
	froze := m.freeze()
	frozen := m.info()
	if frozen.GuestOS == nil || *frozen.GuestOS != *got.GuestOS || len(frozen.Interfaces[0].IPs) == 0 {
		m.Errorf("frozen: %+v", frozen)
	}
	m.thaw(froze)
}

// freeze returns how many file systems were frozen.
func (m *machine) freeze() int {
	m.Helper()
	n, err := m.Freeze(m.Context(), 10*time.Second)
	if err != nil {
		m.Fatal(err)
	}
	return n
}

// thaw checks that this many file systems were frozen until now.
func (m *machine) thaw(want int) {
	m.Helper()
	if got, err := m.Thaw(m.Context()); err != nil || got != want {
		m.Fatalf("%d file systems were frozen until the thaw (%v), want %d", got, err, want)
	}
}

func frozenIs(m *machine, want bool) {
	m.Helper()
	if got, err := m.FSFrozen(m.Context(), 10*time.Second); err != nil || got != want {
		m.Errorf("frozen is %v (%v), want %v", got, err, want)
	}
}

func frozenBackup(m *machine) {
	m.exec("mkfs.ext4 -q /dev/vda && mount-disks && cd /disks/serial-0 && head -c 5000000 /dev/urandom > a && sha256sum < a > a.sum")
	frozenIs(m, false)
	froze := m.freeze()
	frozenIs(m, true)
	reference, target := m.reference("d0", "c0"), m.target("d0", "c0")
	m.begin(Backup{Checkpoint: "c0", Disks: []BackupDisk{{Volume: "d0", Target: target}}})
	m.thaw(froze)
	m.thaw(0)
	m.exec("cd /disks/serial-0 && dd if=/dev/zero of=a bs=1M count=4 conv=fsync,notrunc && rm a.sum && sync && fstrim .")
	if e := m.await(EventBackupCompleted); e.Err != nil {
		m.Fatal(e.Err)
	}
	sameBytes(m, reference, target)

	// The incremental has the overwritten, deleted and trimmed parts. Read through its chain, it equals the disk.
	froze = m.freeze()
	reference, next := m.reference("d0", "c1"), m.target("d0", "c1")
	m.begin(Backup{Checkpoint: "c1", Disks: []BackupDisk{{Volume: "d0", Target: next, Incremental: "c0"}}})
	m.thaw(froze)
	if e := m.await(EventBackupCompleted); e.Err != nil {
		m.Fatal(e.Err)
	}
	if err := SetBacking(m.Context(), next, "c0-d0.qcow2"); err != nil {
		m.Fatal(err)
	}
	sameBytes(m, reference, next)
	restored := m.dir + "/restored.raw"
	run(m, "qemu-img", "convert", "-O", "raw", target, restored)
	run(m, "e2fsck", "-f", "-n", restored)
}

// thawedInTheGuest thaws a file system without the agent, which still reports the guest as frozen.
func thawedInTheGuest(m *machine) {
	const word = "thawed by hand"
	m.exec("(until fsfreeze --unfreeze /disks/serial-0; do sleep 0.1; done; echo " + word + " > /dev/console) >/dev/null 2>&1 &")
	froze := m.freeze()
	wait.Until(m, 30*time.Second, word, func() bool {
		log, err := os.ReadFile(m.options.SerialLog)
		return err == nil && strings.Contains(string(log), word)
	})
	frozenIs(m, true)
	m.thaw(froze - 1)
}

func shutsDown(m *machine) {
	if err := m.ShutdownRequest(m.Context()); err != nil {
		m.Fatal(err)
	}
	if e := m.awaitState(StateShutOff); e.Reason != ReasonShutdown {
		m.Errorf("reason %s", e.Reason)
	}
	if info := m.info(); info.State != StateShutOff || info.Reason != ReasonShutdown || info.AgentConnected {
		m.Errorf("info %+v", info)
	}
	for what, f := range map[string]func() error{
		"ShutdownRequest": func() error { return m.ShutdownRequest(m.Context()) },
		"Destroy":         func() error { return m.Destroy(m.Context()) },
		"AbortBackup":     func() error { return m.AbortBackup(m.Context()) },
	} {
		if err := f(); err != nil {
			m.Errorf("%s of a machine that ended: %v", what, err)
		}
	}
	if _, err := m.DirtyBytes(m.Context(), "c0"); !errors.Is(err, ErrNotRunning) {
		m.Errorf("DirtyBytes of a machine that ended: %v", err)
	}
}

func TestAgent_silent(t *testing.T) {
	m := newGuest(t, 64*mib)
	m.boot()
	// A stopped agent keeps its channel open but does not answer.
	pid := m.exec("pidof qemu-ga")
	m.exec("(sleep 1; kill -STOP " + pid + "; sleep 25; kill -CONT " + pid + ") >/dev/null 2>&1 &")
	wait.Until(t, 30*time.Second, "the agent is silent", func() bool {
		_, err := queryDomain(t.Context(), m.Session, "ping", func(d *libvirt.Domain) (string, error) {
			return d.QemuAgentCommand(`{"execute":"guest-ping"}`, 1, 0)
		})
		return errors.Is(err, ErrAgent)
	})
	began := time.Now()
	_, err := m.Freeze(t.Context(), 2*time.Second)
	if !errors.Is(err, ErrAgent) {
		t.Errorf("got %v", err)
	}
	if took := time.Since(began); took > 26*time.Second {
		t.Errorf("it took %v", took)
	}

	// The power button works without the agent.
	if err := m.ShutdownRequest(t.Context()); err != nil {
		t.Fatal(err)
	}
	if e := m.awaitState(StateShutOff); e.Reason != ReasonShutdown {
		t.Errorf("reason %s", e.Reason)
	}
}

func TestGuest_panic(t *testing.T) {
	m := newGuest(t, 64*mib)
	m.boot()
	m.exec("(sleep 1; echo c >/proc/sysrq-trigger) >/dev/null 2>&1 &")
	if e := m.awaitState(StateShuttingDown); e.Reason != ReasonCrashed {
		t.Errorf("reason %s", e.Reason)
	}
	m.awaitState(StateShutOff)
	if info := m.info(); info.State != StateShutOff || info.AgentConnected {
		t.Errorf("info %+v", info)
	}
}

func TestAgent_absent(t *testing.T) {
	m := newMachine(t, 64*mib)
	m.prepare()
	m.start()
	if _, err := m.Freeze(t.Context(), time.Second); !errors.Is(err, ErrAgent) {
		t.Errorf("got %v", err)
	}
	if m.info().AgentConnected {
		t.Error("an agent is connected in a machine without an operating system")
	}
}
