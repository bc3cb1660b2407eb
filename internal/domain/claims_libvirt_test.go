//go:build libvirt_dlopen

package domain

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/test/loop"
	"github.com/varvebackup/varve/test/verdict"
)

// runUntracked runs the machine once without overlays. Its guest writes where it had trimmed, and where the
// fingerprint does not look.
func (m *machine) runUntracked() {
	m.Helper()
	overlay := m.options.Disks[0].Overlay
	m.options.Disks[0].Overlay = ""
	m.restart()
	for at := 4 * mib; at < 6*mib; at += cluster {
		if !slices.ContainsFunc(samplePlaces("run 1", 64*mib), func(place int64) bool { return place/cluster == at/cluster }) {
			m.write("d0", 0xbb, at/cluster)
		}
	}
	m.stop()
	m.options.Disks[0].Overlay = overlay
}

// withTimeKept calls do and resets the file's modification time afterwards, as can happen with clocks and file systems of servers.
func withTimeKept(t *testing.T, path string, do func()) {
	t.Helper()
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	do()
	if err := os.Chtimes(path, before.ModTime(), before.ModTime()); err != nil {
		t.Fatal(err)
	}
}

// resize grows or shrinks a disk that no guest has open.
func (m *machine) resize(bytes int64) {
	m.Helper()
	if err := os.Truncate(m.raw("d0"), bytes); err != nil {
		m.Fatal(err)
	}
	if m.options.Disks[0].Block {
		loop.Resize(m, m.options.Disks[0].RawPath)
	}
}

// restoreBase writes the content of the backup "base" to the disk.
func (m *machine) restoreBase() {
	m.Helper()
	m.run("qemu-img", "convert", "-n", "-f", "qcow2", "-O", "raw", filepath.Join(m.dir, "base-d0.qcow2"), m.options.Disks[0].RawPath)
}

// staysTrackable checks that the machine's next two backups are right: a full one, and an incremental of it, which
// has the disk's last bytes too.
func (m *machine) staysTrackable() {
	m.Helper()
	m.restart()
	end, err := DiskSize(m.options.Disks[0].RawPath)
	if err != nil {
		m.Fatal(err)
	}
	m.full("first", "d0")
	last := end/cluster - 1
	m.write("d0", 0x44, 64, last)
	reference := m.reference("d0", "second")
	file := m.capture("second", "first", "d0")["d0"]
	if diff := cmp.Diff([]int64{64, last}, ownClusters(m, file)); diff != "" {
		verdict.Errorf(m, "%s", diff)
	}
	if err := SetBacking(m.Context(), file, "first-d0.qcow2"); err != nil {
		m.Fatal(err)
	}
	sameBytes(m, reference, file)
	m.stop()
}

// TestOverlay_throughTheLifeOfItsClaim covers what happens to a claim while the machine is down. The guest reads what
// the disk holds, and no incremental backup misses any of it.
func TestOverlay_throughTheLifeOfItsClaim(t *testing.T) {
	follows := Run{ID: "run 2", Previous: "run 1"}
	for name, c := range map[string]struct {
		happens func(t *testing.T, m *machine)
		run     Run
		want    Renewed
	}{
		"a run without tracking, the overlays still there": {func(t *testing.T, m *machine) {
			withTimeKept(t, m.raw("d0"), m.runUntracked)
		}, Run{ID: "run 3", Previous: "run 2"}, UsedElsewhere},
		"grown": {func(t *testing.T, m *machine) { withTimeKept(t, m.raw("d0"), func() { m.resize(128 * mib) }) }, follows, DiskReplaced},
		"shrunk and grown back": {func(t *testing.T, m *machine) {
			m.resize(32 * mib)
			m.resize(64 * mib)
		}, follows, WrittenWithoutOverlay},
		"restored from a snapshot under the same name": {func(t *testing.T, m *machine) {
			withTimeKept(t, m.raw("d0"), m.restoreBase)
			m.claims = map[string]string{"d0": "restored"}
		}, follows, DiskReplaced},
		"cloned with the overlays": {func(t *testing.T, m *machine) {
			withTimeKept(t, m.raw("d0"), m.runUntracked) // by the clone
			m.claims = map[string]string{"d0": "clone"}
		}, follows, DiskReplaced},
		"the machine made again without its state claim": {func(t *testing.T, m *machine) {
			if err := m.overlays.Retain(nil); err != nil {
				t.Fatal(err)
			}
		}, follows, NewOverlay},
		"the machine made again with its state claim": {func(*testing.T, *machine) {}, follows, Kept},
	} {
		for _, kind := range []string{"block", "file"} {
			t.Run(kind+", "+name, func(t *testing.T) {
				m := usedMachine(t, kind == "block")
				c.happens(t, m)
				m.thisRun = c.run
				if got := m.prepare()["d0"]; got != c.want {
					t.Errorf("the overlay: %q, want %q", got, c.want)
				}
				m.seesTheDisk()
				m.staysTrackable()
			})
		}
	}
}

// TestOverlay_ofADiskThatIsRemovedAndAddedAgain: only a disk that was not part of the machine for a run gets a full
// backup, and nothing of its old overlay stays. Another machine may have written to the disk meanwhile.
func TestOverlay_ofADiskThatIsRemovedAndAddedAgain(t *testing.T) {
	m := newMachine(t, 64*mib, 64*mib)
	m.thisRun = Run{ID: "run 1"}
	m.prepare()
	m.start()
	for _, d := range []string{"d0", "d1"} {
		m.io(d, "write -P 0x11 0 64M", "discard 4M 1M")
	}
	m.full("c0", "d0", "d1")
	m.stop()
	m.markClean()

	disks, spec := m.options.Disks, m.vmi.Spec.Domain.Devices.Disks
	m.options.Disks, m.vmi.Spec.Domain.Devices.Disks = disks[:1], spec[:1]
	m.thisRun = Run{ID: "run 2", Previous: "run 1"}
	if err := m.overlays.Retain([]string{"d0"}); err != nil {
		t.Fatal(err)
	}
	if got := m.prepare(); got["d0"] != Kept {
		t.Fatalf("the disk that stays: %v", got)
	}
	m.restart()
	m.redefine("c0", "d0")
	m.write("d0", 0x22, 70)
	c1 := m.capture("c1", "c0", "d0")["d0"]
	if err := SetBacking(t.Context(), c1, "c0-d0.qcow2"); err != nil {
		t.Fatal(err)
	}
	if err := m.DeleteCheckpoint(t.Context(), "c0"); err != nil {
		t.Fatal(err)
	}
	m.stop()
	m.markClean()
	withTimeKept(t, m.raw("d1"), func() { run(t, "qemu-io", "-f", "raw", "-c", "write -P 0xbb 4M 64k", m.raw("d1")) })

	m.options.Disks, m.vmi.Spec.Domain.Devices.Disks = disks, spec
	m.thisRun = Run{ID: "run 3", Previous: "run 2"}
	if err := m.overlays.Retain([]string{"d0", "d1"}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]Renewed{"d0": Kept, "d1": NewOverlay}, m.prepare()); diff != "" {
		t.Error(diff)
	}
	m.restart()
	m.wantStray("c1")
	valid, lost := m.redefine("c1", "d0", "d1")
	if !slices.Equal(valid, []string{"d0"}) || len(lost) != 1 {
		t.Fatalf("valid %v, lost %v", valid, lost)
	}
	m.write("d0", 0x33, 71)
	b := Backup{Checkpoint: "c2", Disks: []BackupDisk{
		{Volume: "d0", Target: m.target("d0", "c2"), Incremental: "c1"}, {Volume: "d1", Target: m.target("d1", "c2")},
	}}
	references := []string{m.reference("d0", "c2"), m.reference("d1", "c2")}
	m.backup(b)
	if err := SetBacking(t.Context(), b.Disks[0].Target, "c1-d0.qcow2"); err != nil {
		t.Fatal(err)
	}
	for i, d := range b.Disks {
		sameBytes(t, references[i], d.Target)
	}
	m.wantBitmaps(map[string][]string{"d0": {"c1", "c2"}, "d1": {"c2"}})
}
