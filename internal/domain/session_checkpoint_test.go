//go:build libvirt_dlopen

package domain

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/internal/domain/domaintest"
	"github.com/varvebackup/varve/test/verdict"
)

// redefine does what a launcher does with a checkpoint that it remembers.
func (m *machine) redefine(name string, volumes ...string) (valid []string, lost map[string]string) {
	m.Helper()
	valid, lost, err := m.Redefine(m.Context(), Checkpoint{Name: name, CreationTime: time.Unix(1700000000, 0), Volumes: volumes})
	if err != nil {
		m.Fatal(err)
	}
	return valid, lost
}

// wantCheckpoints fails the test unless libvirt knows exactly these (name -> volumes).
func (m *machine) wantCheckpoints(want map[string][]string) {
	m.Helper()
	all, _, err := m.Checkpoints(m.Context())
	if err != nil {
		m.Fatal(err)
	}
	got := map[string][]string{}
	for _, cp := range all {
		got[cp.Name] = cp.Volumes
	}
	if diff := cmp.Diff(want, got); diff != "" {
		m.Errorf("checkpoints (-want +got):\n%s", diff)
	}
}

// wantStray fails the test unless the overlays have exactly these bitmaps that libvirt does not know.
func (m *machine) wantStray(want ...string) {
	m.Helper()
	_, stray, err := m.Checkpoints(m.Context())
	if err != nil {
		m.Fatal(err)
	}
	if !slices.Equal(want, stray) {
		m.Errorf("stray bitmaps %v, want %v", stray, want)
	}
}

// wantBitmaps fails the test unless the overlays have exactly these (volume -> names).
func (m *machine) wantBitmaps(want map[string][]string) {
	m.Helper()
	bitmaps, err := queryDomain(m.Context(), m.Session, "bitmaps", bitmapsIn)
	if err != nil {
		m.Fatal(err)
	}
	got := map[string][]string{}
	for volume, held := range bitmaps {
		got[volume] = append([]string{}, slices.Sorted(maps.Keys(held))...)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		m.Errorf("bitmaps (-want +got):\n%s", diff)
	}
}

// restart makes libvirt forget everything, as the end of a launcher pod does, and starts the machine again.
func (m *machine) restart() {
	m.Helper()
	m.disconnect()
	m.libvirt.Renew(m)
	m.start()
}

func TestCheckpoint_survivesARestart(t *testing.T) {
	m := newMachine(t, 64*mib, 32*mib)
	m.prepare()
	m.start()
	m.write("d0", 0x11, 1, 2, 3)
	m.full("c0", "d0", "d1")
	m.write("d0", 0x22, 2, 70)
	m.write("d1", 0x33, 5)
	m.stop()
	m.markClean()
	if diff := cmp.Diff(map[string]Renewed{"d0": Kept, "d1": Kept}, m.prepare()); diff != "" {
		t.Fatalf("overlays were not kept:\n%s", diff)
	}

	m.restart()
	m.wantCheckpoints(map[string][]string{})
	m.wantStray("c0")
	m.write("d0", 0x44, 900)
	for range 2 { // the second call finds that libvirt knows the checkpoint
		valid, lost := m.redefine("c0", "d0", "d1")
		if diff := cmp.Diff([]string{"d0", "d1"}, valid); diff != "" || len(lost) != 0 {
			t.Fatalf("valid %v, lost %v", valid, lost)
		}
	}
	m.wantCheckpoints(map[string][]string{"c0": {"d0", "d1"}})
	m.wantStray()
	dirty, err := m.DirtyBytes(t.Context(), "c0")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]uint64{"d0": 3 * uint64(cluster), "d1": uint64(cluster)}, dirty); diff != "" {
		verdict.Errorf(t, "%s", diff)
	}

	references := map[string]string{"d0": m.reference("d0", "c1"), "d1": m.reference("d1", "c1")}
	incremental := m.capture("c1", "c0", "d0", "d1")
	if diff := cmp.Diff([]int64{2, 70, 900}, ownClusters(t, incremental["d0"])); diff != "" {
		verdict.Errorf(t, "%s", diff)
	}
	for volume, file := range incremental {
		if err := SetBacking(t.Context(), file, "c0-"+volume+".qcow2"); err != nil {
			t.Fatal(err)
		}
		sameBytes(t, references[volume], file)
	}
	if err := m.DeleteCheckpoint(t.Context(), "c0"); err != nil {
		t.Fatal(err)
	}
	m.wantCheckpoints(map[string][]string{"c1": {"d0", "d1"}})
	m.wantBitmaps(map[string][]string{"d0": {"c1"}, "d1": {"c1"}})

	// After another restart, a bitmap that no checkpoint of libvirt names can be deleted by its name alone.
	m.stop()
	m.markClean()
	m.prepare()
	m.restart()
	m.wantStray("c1")
	if err := m.DeleteCheckpoint(t.Context(), "c1"); err != nil {
		t.Fatal(err)
	}
	m.wantStray()
	m.wantBitmaps(map[string][]string{"d0": {}, "d1": {}})
}

func TestCheckpoint_crashedBitmapsAreLostAndRemoved(t *testing.T) {
	m := newMachine(t, 64*mib, 64*mib)
	m.prepare()
	m.start()
	m.full("old", "d0")
	m.stop()
	m.restart() // now the bitmap is in the overlay
	m.redefine("old", "d0")
	m.full("young", "d0", "d1") // these are in memory only
	domaintest.KillQEMU(t)
	if e := m.awaitState(StateShutOff); e.Reason != ReasonCrashed && e.Reason != ReasonFailed {
		t.Errorf("a killed QEMU ended as %s", e.Reason)
	}

	m.restart()
	if err := m.tryBegin(Backup{Disks: []BackupDisk{{Volume: "d0", Target: m.target("d0", "refused"), Incremental: "old"}}}); !errors.Is(err, ErrCheckpointLost) {
		t.Errorf("incremental from a checkpoint that libvirt does not know: %v", err)
	}
	if _, err := m.DirtyBytes(t.Context(), "old"); !errors.Is(err, ErrCheckpointLost) {
		t.Errorf("dirty bytes of an inconsistent bitmap: %v", err)
	}
	if _, err := m.DirtyBytes(t.Context(), "young"); !errors.Is(err, ErrCheckpointLost) {
		t.Errorf("dirty bytes of a bitmap that is not there: %v", err)
	}
	m.wantBitmaps(map[string][]string{"d0": {"old"}, "d1": {}})
	valid, lost := m.redefine("old", "d0", "d1")
	if len(valid) != 0 || len(lost) != 2 || lost["d0"] == lost["d1"] {
		t.Errorf("valid %v, lost %v", valid, lost)
	}
	m.wantBitmaps(map[string][]string{"d0": {}, "d1": {}})
	m.wantCheckpoints(map[string][]string{})

	m.full("new", "d0", "d1")
	m.write("d1", 0x55, 7)
	if diff := cmp.Diff([]int64{7}, ownClusters(t, m.capture("next", "new", "d1")["d1"])); diff != "" {
		verdict.Errorf(t, "%s", diff)
	}
}

func TestCheckpoint_oneLostDiskLeavesTheOtherValid(t *testing.T) {
	m := newMachine(t, 64*mib, 64*mib)
	m.prepare()
	m.start()
	m.full("c0", "d0", "d1")
	m.stop()
	m.run("qemu-img", "bitmap", "--remove", m.overlays.Path("d1"), "c0")
	m.restart()
	m.write("d0", 0x66, 12)
	m.write("d1", 0x77, 13)
	valid, lost := m.redefine("c0", "d0", "d1")
	if !slices.Equal(valid, []string{"d0"}) || lost["d1"] == "" || len(lost) != 1 {
		t.Fatalf("valid %v, lost %v", valid, lost)
	}
	m.wantCheckpoints(map[string][]string{"c0": {"d0"}})

	// The lost disk gets a full backup in the same job.
	references := map[string]string{"d0": m.reference("d0", "c1"), "d1": m.reference("d1", "c1")}
	b := Backup{Checkpoint: "c1", Disks: []BackupDisk{
		{Volume: "d0", Target: m.target("d0", "c1"), Incremental: "c0"},
		{Volume: "d1", Target: m.target("d1", "c1")},
	}}
	m.backup(b)
	if diff := cmp.Diff([]int64{12}, ownClusters(t, b.Disks[0].Target)); diff != "" {
		verdict.Errorf(t, "%s", diff)
	}
	if err := SetBacking(t.Context(), b.Disks[0].Target, "c0-d0.qcow2"); err != nil {
		t.Fatal(err)
	}
	for _, d := range b.Disks {
		sameBytes(t, references[d.Volume], d.Target)
	}
	m.wantCheckpoints(map[string][]string{"c0": {"d0"}, "c1": {"d0", "d1"}})
}

func TestCheckpoint_isDeleted(t *testing.T) {
	m := newMachine(t, 64*mib)
	m.prepare()
	m.start()
	m.full("c0", "d0")
	m.full("c1", "d0")
	m.full("c2", "d0")
	if err := m.DeleteCheckpoint(t.Context(), "nobody-knows-it"); err != nil {
		t.Error(err)
	}
	if err := m.DeleteCheckpoint(t.Context(), "c1"); err != nil {
		t.Error(err)
	}
	m.wantCheckpoints(map[string][]string{"c0": {"d0"}, "c2": {"d0"}})
	m.wantBitmaps(map[string][]string{"d0": {"c0", "c2"}})
	m.stop()

	m.restart() // libvirt has lost both, but the bitmaps still exist
	if err := m.DeleteCheckpoint(t.Context(), "c0"); err != nil {
		t.Error(err)
	}
	m.wantBitmaps(map[string][]string{"d0": {"c2"}})
	m.write("d0", 0x88, 40)
	if valid, lost := m.redefine("c2", "d0"); len(valid) != 1 {
		t.Fatalf("lost %v", lost)
	}
	if diff := cmp.Diff([]int64{40}, ownClusters(t, m.capture("c3", "c2", "d0")["d0"])); diff != "" {
		verdict.Errorf(t, "%s", diff)
	}
}

func TestBackup_unknownBaseStartsNothing(t *testing.T) {
	m := newMachine(t, 64*mib)
	m.prepare()
	m.start()
	err := m.tryBegin(Backup{Checkpoint: "c1", Disks: []BackupDisk{{Volume: "d0", Target: m.target("d0", "x"), Incremental: "c0"}}})
	if !errors.Is(err, ErrCheckpointLost) {
		t.Errorf("got %v", err)
	}
	m.wantCheckpoints(map[string][]string{})
	m.wantBitmaps(map[string][]string{"d0": {}})
	m.full("c1", "d0") // the name can be used again
}
