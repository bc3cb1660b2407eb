//go:build libvirt_dlopen

package domain

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"libvirt.org/go/libvirt"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/domain/domaintest"
	"github.com/varvebackup/varve/test/verdict"
)

const (
	kib     = int64(1) << 10
	mib     = int64(1) << 20
	gib     = int64(1) << 30
	cluster = 64 * kib
)

// machine is a guest without an operating system. Its disks are written through the device's own block backend, on
// the same path as the guest's requests, so that every byte is known.
type machine struct {
	testing.TB
	*Session
	vmi      *kubevirtv1.VirtualMachineInstance
	options  Options
	overlays *Overlays
	thisRun  Run
	claims   map[string]string // volume -> UID of its claim; uid-<volume> if missing
	dir      string
	libvirt  *domaintest.Libvirt
	events   []Event
}

// newMachine makes a machine with tracked virtio disks of these sizes, named d0, d1, …, and a libvirtd for it. It
// does not start the machine.
func newMachine(tb testing.TB, sizes ...int64) *machine {
	tb.Helper()
	dir := tb.TempDir()
	m := &machine{TB: tb, dir: dir, libvirt: domaintest.StartLibvirt(tb), overlays: &Overlays{Dir: filepath.Join(dir, "cbt")}, thisRun: Run{ID: "run"}}
	tb.Cleanup(m.disconnect)
	if err := os.Mkdir(m.overlays.Dir, 0o755); err != nil {
		tb.Fatal(err)
	}
	m.vmi = &kubevirtv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vm"}}
	m.vmi.Spec.Domain.Memory = &kubevirtv1.Memory{Guest: ptr.To(resource.MustParse("64Mi"))}
	m.options = Options{UseEmulation: true, SerialLog: filepath.Join(dir, "serial.log")}
	for i, size := range sizes {
		volume := fmt.Sprintf("d%d", i)
		m.addDisk(volume, size)
		m.options.Disks[i].Overlay = m.overlays.Path(volume)
	}
	return m
}

// addDisk adds an untracked virtio disk.
func (m *machine) addDisk(volume string, size int64) {
	m.Helper()
	raw := filepath.Join(m.dir, volume+".raw")
	if err := os.WriteFile(raw, nil, 0o644); err != nil {
		m.Fatal(err)
	}
	if err := os.Truncate(raw, size); err != nil {
		m.Fatal(err)
	}
	m.vmi.Spec.Domain.Devices.Disks = append(m.vmi.Spec.Domain.Devices.Disks, kubevirtv1.Disk{Name: volume, Disk: &kubevirtv1.DiskTarget{Bus: "virtio"}})
	m.options.Disks = append(m.options.Disks, Disk{Volume: volume, RawPath: raw})
}

func (m *machine) raw(volume string) string { return filepath.Join(m.dir, volume+".raw") }

// prepare prepares the overlays and returns why each of them is new, or Kept.
func (m *machine) prepare() map[string]Renewed {
	m.Helper()
	out := map[string]Renewed{}
	for _, d := range m.options.Disks {
		if d.Overlay == "" {
			continue
		}
		size, err := DiskSize(d.RawPath)
		if err != nil {
			m.Fatal(err)
		}
		id := Identity{ClaimUID: cmp.Or(m.claims[d.Volume], "uid-"+d.Volume), VirtualBytes: size}
		why, err := m.overlays.Prepare(m.Context(), d.Volume, d.RawPath, id, m.thisRun)
		if err != nil {
			m.Fatal(err)
		}
		out[d.Volume] = why
	}
	return out
}

// start connects and starts the machine with the overlays as they are.
func (m *machine) start() {
	m.Helper()
	if m.Session == nil {
		s, err := Connect(domaintest.URI)
		if err != nil {
			m.Fatal(err)
		}
		m.Session = s
	}
	doc, err := DomainXML(m.vmi, m.options)
	if err != nil {
		m.Fatal(err)
	}
	if err := m.Start(m.Context(), doc); err != nil {
		m.Fatalf("%v\n%s", err, doc)
	}
}

// disconnect ends the session.
func (m *machine) disconnect() {
	m.Helper()
	if m.Session == nil {
		return
	}
	if err := m.Close(); err != nil {
		m.Error(err)
	}
	m.Session = nil
}

// stop ends QEMU cleanly.
func (m *machine) stop() {
	m.Helper()
	if err := m.Destroy(m.Context()); err != nil {
		m.Fatal(err)
	}
}

// markClean does what a launcher does after a clean end.
func (m *machine) markClean() {
	m.Helper()
	opened := map[string]Opened{}
	for _, d := range m.options.Disks {
		if d.Overlay != "" {
			opened[d.Volume] = Opened{RawPath: d.RawPath, Run: m.thisRun.ID}
		}
	}
	if err := m.overlays.MarkClean(opened); err != nil {
		m.Fatal(err)
	}
}

// io runs qemu-io commands on a disk's device.
func (m *machine) io(volume string, commands ...string) {
	m.Helper()
	for _, command := range commands {
		line := fmt.Sprintf("qemu-io -d /machine/peripheral/%s%s/virtio-backend %q", aliasPrefix, volume, command)
		said, err := queryDomain(m.Context(), m.Session, "qemu-io", func(d *libvirt.Domain) (string, error) {
			return d.QemuMonitorCommand(line, libvirt.DOMAIN_QEMU_MONITOR_COMMAND_HMP)
		})
		if err != nil || strings.Contains(said, "failed") || strings.Contains(said, "rror") {
			m.Fatalf("%s: %v: %s", line, err, said)
		}
	}
}

// suspend stops the guest's processors. When it returns, none of their disk requests is in flight.
func (m *machine) suspend() {
	m.Helper()
	if err := m.withDomain(m.Context(), "suspend", (*libvirt.Domain).Suspend); err != nil {
		m.Fatal(err)
	}
}

// write fills whole clusters of a disk with a pattern.
func (m *machine) write(volume string, pattern byte, clusters ...int64) {
	m.Helper()
	for _, c := range clusters {
		m.io(volume, fmt.Sprintf("write -P 0x%02x %d %d", pattern, c*cluster, cluster))
	}
}

// reference copies a disk's current content.
func (m *machine) reference(volume, name string) string {
	m.Helper()
	to := filepath.Join(m.dir, name+"-"+volume+".reference")
	m.run("cp", "--sparse=always", m.raw(volume), to)
	return to
}

// target creates a file for a backup of a disk.
func (m *machine) target(volume, name string) string {
	m.Helper()
	size, err := DiskSize(m.raw(volume))
	if err != nil {
		m.Fatal(err)
	}
	path := filepath.Join(m.dir, name+"-"+volume+".qcow2")
	if err := CreateTarget(m.Context(), path, size); err != nil {
		m.Fatal(err)
	}
	return path
}

// begin starts a backup and fails the test if that fails.
func (m *machine) begin(b Backup) {
	m.Helper()
	if err := m.tryBegin(b); err != nil {
		m.Fatal(err)
	}
}

// tryBegin prepares a backup and begins it.
func (m *machine) tryBegin(b Backup) error {
	begin, err := m.PrepareBackup(m.Context(), b)
	if err != nil {
		return err
	}
	return begin(m.Context())
}

// backup runs a backup until it succeeds.
func (m *machine) backup(b Backup) {
	m.Helper()
	m.begin(b)
	if e := m.await(EventBackupCompleted); e.Err != nil {
		m.Fatal(e.Err)
	}
}

// full makes a full backup of the disks with a new checkpoint that has the backup's name, and returns the files.
func (m *machine) full(name string, volumes ...string) map[string]string {
	m.Helper()
	return m.capture(name, "", volumes...)
}

// capture makes a full backup, or an incremental one if there is a base.
func (m *machine) capture(name, base string, volumes ...string) map[string]string {
	m.Helper()
	files := map[string]string{}
	b := Backup{Checkpoint: name}
	for _, v := range volumes {
		files[v] = m.target(v, name)
		b.Disks = append(b.Disks, BackupDisk{Volume: v, Target: files[v], Incremental: base})
	}
	m.backup(b)
	return files
}

// await returns the next event of a kind, and keeps the events before it in m.events.
func (m *machine) await(kind EventKind) Event {
	m.Helper()
	deadline := time.After(4 * time.Minute) // a guest may have to boot
	for {
		select {
		case e, open := <-m.Events():
			if !open {
				m.Fatalf("the events ended while waiting for %s", kind)
			}
			m.events = append(m.events, e)
			if e.Kind == kind {
				return e
			}
		case <-deadline:
			m.Fatalf("no %s event; seen: %+v", kind, m.events)
		}
	}
}

// awaitState returns the lifecycle event that enters a state.
func (m *machine) awaitState(state State) Event {
	m.Helper()
	for {
		if e := m.await(EventLifecycle); e.State == state {
			return e
		}
	}
}

func (m *machine) run(name string, args ...string) string {
	m.Helper()
	return run(m, name, args...)
}

func run(tb testing.TB, name string, args ...string) string {
	tb.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		tb.Fatalf("%s %v: %v\n%s%s", name, args, err, stdout.Bytes(), stderr.Bytes())
	}
	return stdout.String()
}

// sameBytes compares a raw reference with a backup or an overlay, read through its chain.
func sameBytes(tb testing.TB, reference, image string) {
	tb.Helper()
	out, err := exec.Command("qemu-img", "compare", "-f", "raw", "-F", "qcow2", reference, image).CombinedOutput()
	if err != nil {
		verdict.JudgeFatalf(tb, verdict.Differ(err), "qemu-img compare %s %s: %v\n%s", reference, image, err, out)
	}
}

// ownClusters returns the clusters that a qcow2 file itself has, data or zero, whatever is below it.
func ownClusters(tb testing.TB, file string) []int64 {
	tb.Helper()
	var extents []struct {
		Start, Length int64
		Depth         int
		Present       bool
		Data, Zero    bool
	}
	if err := json.Unmarshal([]byte(run(tb, "qemu-img", "map", "--output=json", file)), &extents); err != nil {
		tb.Fatal(err)
	}
	var out []int64
	for _, e := range extents {
		if e.Depth != 0 || !e.Present {
			continue
		}
		for c := e.Start / cluster; c*cluster < e.Start+e.Length; c++ {
			out = append(out, c)
		}
	}
	return out
}

// diskUsage returns how many bytes a file has allocated.
func diskUsage(tb testing.TB, file string) int64 {
	tb.Helper()
	var bytes int64
	if _, err := fmt.Sscanf(run(tb, "stat", "-c", "%b", file), "%d", &bytes); err != nil {
		tb.Fatal(err)
	}
	return bytes * 512
}

// bitmapsIn returns the bitmaps of the tracked disks.
func bitmapsIn(d *libvirt.Domain) (bitmapsByVolume, error) {
	_, bitmaps, err := bitmapsOf(d)
	return bitmaps, err
}
