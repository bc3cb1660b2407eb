//go:build libvirt_dlopen

package domain

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/varvebackup/varve/test/loop"
)

// blockMachine returns a usedMachine on a block device.
func blockMachine(t *testing.T) (m *machine, device string) {
	t.Helper()
	m = usedMachine(t, true)
	return m, m.options.Disks[0].RawPath
}

// usedMachine returns a machine with one tracked disk, d0, a block device or a file. Before its first clean stop, its
// guest has written 0x11 everywhere, trimmed 1 MiB at 4 MiB, and backed up the disk with checkpoint "base". So the
// overlay has zero clusters and a bitmap.
func usedMachine(t *testing.T, block bool) *machine {
	t.Helper()
	m := newMachine(t)
	m.addDisk("d0", 64*mib)
	m.options.Disks[0].Overlay = m.overlays.Path("d0")
	if block {
		m.options.Disks[0].RawPath, m.options.Disks[0].Block = loop.Device(t, m.raw("d0")), true
	}
	m.thisRun = Run{ID: "run 1"}
	m.prepare()
	m.start()
	m.io("d0", "write -P 0x11 0 64M", "discard 4M 1M")
	m.full("base", "d0")
	m.io("d0", "discard 5M 1M")
	m.stop()
	m.markClean()
	return m
}

// outsider writes 0xbb to the disk without the overlay, where the guest trimmed it and in other places.
func outsider(t *testing.T, device string) {
	t.Helper()
	for _, at := range []string{"4M 2M", "9M 64k", "33M 192k"} {
		run(t, "qemu-io", "-f", "raw", "-t", "none", "-c", "write -P 0xbb "+at, device)
	}
}

// seesTheDisk checks that the guest reads what the disk holds, and that an incremental backup, if one is possible,
// has it too. A full backup reads through the overlay, as the guest does.
func (m *machine) seesTheDisk() {
	m.Helper()
	m.restart()
	valid, _ := m.redefine("base", "d0")
	reference := m.reference("d0", "now")
	sameBytes(m, reference, m.full("whole", "d0")["d0"])
	if len(valid) > 0 {
		file := m.capture("changes", "base", "d0")["d0"]
		if err := SetBacking(m.Context(), file, "base-d0.qcow2"); err != nil {
			m.Fatal(err)
		}
		sameBytes(m, reference, file)
	}
	m.stop()
}

// TestBlockOverlay_holdsForItsRunAlone: a block device has no modification time, so only the runs of its claim reveal
// what could have written to it between two runs.
func TestBlockOverlay_holdsForItsRunAlone(t *testing.T) {
	for name, c := range map[string]struct {
		next Run
		want Renewed
	}{
		// Another machine, or the same machine with the volume renamed, shareable or not tracked: each is run 2.
		"a run between":                       {Run{ID: "run 3", Previous: "run 2"}, UsedElsewhere},
		"the claim names nobody's run":        {Run{}, UsedElsewhere},
		"the claim names another run by now":  {Run{ID: "", Previous: "run 1"}, UsedElsewhere},
		"the claim's record began again":      {Run{ID: "run 2"}, UsedElsewhere},
		"written by a stranger, nobody knows": {Run{ID: "run 2", Previous: "run 1"}, WrittenWithoutOverlay},
	} {
		t.Run(name, func(t *testing.T) {
			m, device := blockMachine(t)
			outsider(t, device)
			if c.want == WrittenWithoutOverlay {
				// Any other file system does this as well: it writes to its superblock.
				run(t, "qemu-io", "-f", "raw", "-t", "none", "-c", "write -P 0xbb 0 4k", device)
			}
			m.thisRun = c.next
			if got := m.prepare()["d0"]; got != c.want {
				t.Errorf("the overlay: %q, want %q", got, c.want)
			}
			m.seesTheDisk()
		})
	}
}

// TestBlockOverlay_isKeptFromRunToRun: the machine's own restarts keep the base, even if a start failed in between,
// and even if the disk was not part of the machine for a while.
func TestBlockOverlay_isKeptFromRunToRun(t *testing.T) {
	m, _ := blockMachine(t)
	for i := range 3 {
		// The run that fails to start never opens the disk. The next run has it as its previous run.
		m.thisRun = Run{ID: fmt.Sprint("failed ", i), Previous: m.thisRun.ID}
		if got := m.prepare()["d0"]; got != Kept {
			t.Fatalf("run %q: %q", m.thisRun.ID, got)
		}
		m.thisRun = Run{ID: fmt.Sprint("run ", i+2), Previous: m.thisRun.ID}
		if got := m.prepare()["d0"]; got != Kept {
			t.Fatalf("run %q: %q", m.thisRun.ID, got)
		}
		if err := m.overlays.MarkStarted([]string{"d0"}); err != nil {
			t.Fatal(err)
		}
		m.restart()
		m.write("d0", byte(0x20+i), int64(100+i))
		if valid, lost := m.redefine("base", "d0"); len(valid) != 1 {
			t.Fatalf("lost %v", lost)
		}
		m.stop()
		m.markClean()
	}
	m.thisRun = Run{ID: "last", Previous: m.thisRun.ID}
	m.prepare()
	m.restart()
	m.redefine("base", "d0")
	reference := m.reference("d0", "c1")
	file := m.capture("c1", "base", "d0")["d0"]
	if err := SetBacking(t.Context(), file, "base-d0.qcow2"); err != nil {
		t.Fatal(err)
	}
	sameBytes(t, reference, file)
}

// TestBlockOverlay_ofAnotherDisk: a claim that was created again, cloned or grown is another disk, whatever its runs say.
func TestBlockOverlay_ofAnotherDisk(t *testing.T) {
	m, device := blockMachine(t)
	follows := Run{ID: "run 2", Previous: "run 1"}
	same := Identity{ClaimUID: "uid-d0", VirtualBytes: 64 * mib}
	prepare := func(path string, id Identity) Renewed {
		t.Helper()
		// Use a copy of the overlays for each case, because a renewal destroys what the next case needs.
		o := &Overlays{Dir: filepath.Join(t.TempDir(), "cbt")}
		run(t, "cp", "-a", m.overlays.Dir, o.Dir)
		rec, err := readRecord(o.recordPath("d0"))
		if err != nil {
			t.Fatal(err)
		}
		if rec.Clean.Overlay, err = stampOf(o.Path("d0")); err != nil {
			t.Fatal(err)
		}
		if err := writeRecord(o.recordPath("d0"), rec); err != nil {
			t.Fatal(err)
		}
		why, err := o.Prepare(t.Context(), "d0", path, id, follows)
		if err != nil {
			t.Fatal(err)
		}
		return why
	}
	if got := prepare(device, same); got != Kept {
		t.Fatalf("the disk itself: %q", got)
	}
	if got := prepare(device, Identity{ClaimUID: "restored", VirtualBytes: 64 * mib}); got != DiskReplaced {
		t.Errorf("a claim that was made again from a snapshot: %q", got)
	}
	grown := filepath.Join(m.dir, "grown")
	run(t, "cp", "--sparse=always", m.raw("d0"), grown)
	if err := os.Truncate(grown, 128*mib); err != nil {
		t.Fatal(err)
	}
	if got := prepare(loop.Device(t, grown), Identity{ClaimUID: "uid-d0", VirtualBytes: 128 * mib}); got != DiskReplaced {
		t.Errorf("a claim that was grown: %q", got)
	}
	restored := filepath.Join(m.dir, "restored")
	run(t, "qemu-img", "create", "-q", "-f", "raw", restored, "64M")
	run(t, "qemu-img", "convert", "-n", "-f", "qcow2", "-O", "raw", filepath.Join(m.dir, "base-d0.qcow2"), restored)
	run(t, "qemu-io", "-f", "raw", "-c", "write -P 0x77 1k 4k", restored) // what the restored system had in its superblock
	if got := prepare(loop.Device(t, restored), same); got != WrittenWithoutOverlay {
		t.Errorf("a restore in place: %q", got)
	}
}

// TestMarkClean_leavesTheNextRunAlone: a launcher that was presumed dead but ends later must not vouch for what
// another one has opened.
func TestMarkClean_leavesTheNextRunAlone(t *testing.T) {
	o := &Overlays{Dir: t.TempDir()}
	raw, _ := rawDisk(t, 4*mib)
	id := Identity{ClaimUID: "a", VirtualBytes: 4 * mib}
	prepareRun(t, o, raw, id, Run{ID: "run 1"})
	if err := o.MarkStarted([]string{"root"}); err != nil {
		t.Fatal(err)
	}
	prepareRun(t, o, raw, id, Run{ID: "run 2", Previous: "run 1"})
	if err := o.MarkStarted([]string{"root"}); err != nil {
		t.Fatal(err)
	}
	if err := o.MarkClean(map[string]Opened{"root": {RawPath: raw, Run: "run 1"}}); err == nil {
		t.Error("the overlay of run 2 was marked as clean by run 1")
	}
	if got := prepareRun(t, o, raw, id, Run{ID: "run 3", Previous: "run 2"}); got != NotClean {
		t.Errorf("the overlay: %q", got)
	}
}
