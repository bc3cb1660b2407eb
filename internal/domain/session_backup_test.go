//go:build libvirt_dlopen

package domain

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/test/loop"
	"github.com/varvebackup/varve/test/verdict"
)

func TestBackup_incrementalHasExactlyWhatChanged(t *testing.T) {
	m := newMachine(t, 64*mib)
	m.prepare()
	m.start()
	m.write("d0", 0xa1, 0, 3, 100, 101, 1023)
	reference0 := m.reference("d0", "full")
	full := m.full("c0", "d0")["d0"]
	sameBytes(t, reference0, full)

	// New data, data over data, zeros over data, a discard, and a cluster rewritten with the same content.
	m.write("d0", 0xb2, 3, 500)
	m.io("d0", "write -z 6553600 65536", "discard 67043328 65536")
	m.io("d0", "write -P 0x00 0 65536")
	want := []int64{0, 3, 100, 500, 1023}
	reference1 := m.reference("d0", "incremental")
	incremental := m.capture("c1", "c0", "d0")["d0"]
	if diff := cmp.Diff(want, ownClusters(t, incremental)); diff != "" {
		verdict.Errorf(t, "%s", diff)
	}
	if err := SetBacking(t.Context(), incremental, "c0-d0.qcow2"); err != nil {
		t.Fatal(err)
	}
	sameBytes(t, reference1, incremental)
	sameBytes(t, reference0, full)
}

func TestBackup_untrackedDiskIsLeftOut(t *testing.T) {
	m := newMachine(t, 64*mib)
	m.addDisk("plain", 32*mib)
	m.prepare()
	m.start()
	m.full("c0", "d0")
	m.write("plain", 0x99, 1)
	m.write("d0", 0x9a, 2)
	if diff := cmp.Diff([]int64{2}, ownClusters(t, m.capture("c1", "c0", "d0")["d0"])); diff != "" {
		verdict.Errorf(t, "%s", diff)
	}
	err := m.tryBegin(Backup{Checkpoint: "c2", Disks: []BackupDisk{{Volume: "plain", Target: m.target("plain", "x")}}})
	if !errors.Is(err, errclass.Invalid) {
		t.Errorf("a checkpoint of an untracked disk: %v", err)
	}
	// Without a checkpoint the whole disk can be copied.
	reference, target := m.reference("plain", "y"), m.target("plain", "y")
	m.backup(Backup{Disks: []BackupDisk{{Volume: "plain", Target: target}}})
	sameBytes(t, reference, target)
	m.wantCheckpoints(map[string][]string{"c0": {"d0"}, "c1": {"d0"}})
}

func TestBackup_sparseFullMovesWhatIsUsed(t *testing.T) {
	m := newMachine(t, 10*gib)
	raw, err := os.OpenFile(m.raw("d0"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	// 200 MiB in pieces of 4 MiB, spread over the disk.
	piece := bytes.Repeat([]byte{0xc7}, int(4*mib))
	for i := range int64(50) {
		if _, err := raw.WriteAt(piece, i*200*mib+64*kib); err != nil {
			t.Fatal(err)
		}
	}
	if err := raw.Close(); err != nil {
		t.Fatal(err)
	}
	m.prepare()
	m.start()
	began := time.Now()
	file := m.full("c0", "d0")["d0"]
	if moved, most := diskUsage(t, file), int64(1.1*200*float64(mib)); moved > most {
		t.Errorf("moved %d MiB of 200 MiB used, want at most %d", moved/mib, most/mib)
	} else {
		t.Logf("%d MiB in %v", moved/mib, time.Since(began))
	}
	sameBytes(t, m.raw("d0"), file)
}

func TestBackup_laterWritesStayOutOfIt(t *testing.T) {
	m := newMachine(t, 256*mib)
	m.prepare()
	m.start()
	m.io("d0", "write -P 0x10 0 128M")
	reference := m.reference("d0", "c0")
	target := m.target("d0", "c0")
	m.begin(Backup{Checkpoint: "c0", Disks: []BackupDisk{{Volume: "d0", Target: target}}})
	m.write("d0", 0xff, 2000, 1, 4000)
	m.await(EventBackupCompleted)
	sameBytes(t, reference, target)
	if diff := cmp.Diff([]int64{1, 2000, 4000}, ownClusters(t, m.capture("c1", "c0", "d0")["d0"])); diff != "" {
		verdict.Errorf(t, "writes after the moment are not in the next backup:\n%s", diff)
	}
}

func TestBackup_abortAndBusy(t *testing.T) {
	m := newMachine(t, 64*mib)
	reads := newGate(t, m.raw("d0"))
	m.prepare()
	m.start()
	m.io("d0", "write -P 0x10 0 60M")
	m.full("base", "d0")
	m.write("d0", 0x20, 5)
	slow := Backup{Checkpoint: "c0", Disks: []BackupDisk{{Volume: "d0", Target: m.target("d0", "c0")}}}
	m.suspend() // A blocked read of the guest would keep the backup from beginning.
	reads.close()
	m.begin(slow)
	reads.await() // The job is running, and does not end by itself.
	job, err := m.BackupJob(t.Context())
	if err != nil || !job.Active || !job.Known || job.TotalBytes == 0 {
		t.Errorf("job %+v, %v", job, err)
	}
	if err := m.tryBegin(Backup{Disks: []BackupDisk{{Volume: "d0", Target: m.target("d0", "second")}}}); !errors.Is(err, ErrBusy) {
		t.Errorf("a second backup: %v", err)
	}
	for range 2 {
		if err := m.AbortBackup(t.Context()); err != nil {
			t.Error(err)
		}
	}
	reads.open()
	if e := m.await(EventBackupCompleted); e.Err == nil {
		t.Error("an aborted backup succeeded")
	}
	if job, err := m.BackupJob(t.Context()); err != nil || job.Active || !job.Known || job.Err == nil {
		t.Errorf("job %+v, %v", job, err)
	}
	if err := m.AbortBackup(t.Context()); err != nil {
		t.Errorf("abort without a job: %v", err)
	}
	// The base is unchanged: the failed backup's checkpoint is deleted, and the change is in the next backup.
	if err := m.DeleteCheckpoint(t.Context(), "c0"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int64{5}, ownClusters(t, m.capture("c1", "base", "d0")["d0"])); diff != "" {
		verdict.Errorf(t, "%s", diff)
	}
}

// expired is a context that expires once the call that it was given to has begun, and that interrupts nothing.
type expired struct {
	context.Context
	asked int
}

func (e *expired) Done() <-chan struct{} { return nil }

func (e *expired) Err() error {
	if e.asked++; e.asked == 1 {
		return nil
	}
	return context.DeadlineExceeded
}

// Nobody watches a job that begins after its caller has given up, so the guest's writes would wait for its target for ever.
func TestBackupThatBeginsLate_isAborted(t *testing.T) {
	m := newMachine(t, 64*mib)
	reads := newGate(t, m.raw("d0"))
	m.prepare()
	m.start()
	m.io("d0", "write -P 0x10 0 60M")
	begin, err := m.PrepareBackup(t.Context(), Backup{Checkpoint: "c0", Disks: []BackupDisk{{Volume: "d0", Target: m.target("d0", "c0")}}})
	if err != nil {
		t.Fatal(err)
	}
	m.suspend()
	reads.close() // The job does not end by itself.
	if err := begin(&expired{Context: t.Context()}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("begun: %v", err)
	}
	reads.open()
	if e := m.await(EventBackupCompleted); e.Err == nil {
		t.Error("a backup that nobody watches went on to its end")
	}
}

// A target hangs when the backup is to begin. The guest is frozen meanwhile, and its caller gives up in time.
func TestBegin_waitsForNoTarget(t *testing.T) {
	m := newMachine(t, 64*mib)
	m.prepare()
	m.start()
	target := m.target("d0", "c0")
	begin, err := m.PrepareBackup(t.Context(), Backup{Checkpoint: "c0", Disks: []BackupDisk{{Volume: "d0", Target: target}}})
	if err != nil {
		t.Fatal(err)
	}
	reads := newGate(t, target)
	reads.close()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	begun := make(chan error, 1)
	go func() { begun <- begin(ctx) }()
	select {
	case err := <-begun:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("begun: %v", err)
		}
		reads.open()
	case <-time.After(time.Minute):
		t.Error("the begin waits for the target, and a frozen guest with it")
		reads.open()
		<-begun
	}
	if job, err := m.BackupJob(t.Context()); err != nil || job.Known {
		t.Errorf("a backup began after its caller had given up: %+v, %v", job, err)
	}
}

func TestBackup_fullTargetLeavesTheGuestAlone(t *testing.T) {
	m := newMachine(t, 64*mib)
	m.prepare()
	m.start()
	m.io("d0", "write -P 0x10 0 60M")
	small := t.TempDir()
	if err := unix.Mount("tmpfs", small, "tmpfs", 0, "size=8m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(small, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	target := small + "/d0.qcow2"
	if err := CreateTarget(t.Context(), target, 64*mib); err != nil {
		t.Fatal(err)
	}
	m.begin(Backup{Checkpoint: "c0", Disks: []BackupDisk{{Volume: "d0", Target: target}}})
	if e := m.await(EventBackupCompleted); !errors.Is(e.Err, errclass.Exhausted) {
		t.Errorf("got %v", e.Err)
	}
	if job, err := m.BackupJob(t.Context()); err != nil || !errors.Is(job.Err, errclass.Exhausted) {
		t.Errorf("got %+v, %v", job, err)
	}
	m.write("d0", 0x20, 5)
	if info, err := m.Info(t.Context()); err != nil || info.State != StateRunning {
		t.Errorf("got %+v, %v", info, err)
	}
}

func TestBackup_destroyFailsItAndKeepsTheBase(t *testing.T) {
	m := newMachine(t, gib)
	m.prepare()
	m.start()
	m.io("d0", "write -P 0x10 0 900M")
	m.full("base", "d0")
	m.write("d0", 0x20, 5)
	m.begin(Backup{Checkpoint: "c0", Disks: []BackupDisk{{Volume: "d0", Target: m.target("d0", "c0")}}})
	m.stop()
	if e := m.await(EventBackupCompleted); e.Err == nil {
		t.Error("the backup of a machine that ended succeeded")
	}
	m.restart()
	if valid, lost := m.redefine("base", "d0"); len(valid) != 1 {
		t.Fatalf("lost %v", lost)
	}
	if err := m.DeleteCheckpoint(t.Context(), "c0"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int64{5}, ownClusters(t, m.capture("c1", "base", "d0")["d0"])); diff != "" {
		verdict.Errorf(t, "%s", diff)
	}
}

func TestBackup_blockDeviceIsTrackedLikeAFile(t *testing.T) {
	m := newMachine(t)
	m.addDisk("d0", 64*mib)
	file := m.options.Disks[0].RawPath
	m.options.Disks[0] = Disk{Volume: "d0", RawPath: loop.Device(t, file), Block: true, Overlay: m.overlays.Path("d0")}
	m.prepare()
	m.start()
	m.write("d0", 0x31, 0, 9)
	reference := m.reference("d0", "c0")
	full := m.full("c0", "d0")["d0"]
	sameBytes(t, reference, full)
	m.write("d0", 0x32, 9, 10)
	reference = m.reference("d0", "c1")
	incremental := m.capture("c1", "c0", "d0")["d0"]
	if diff := cmp.Diff([]int64{9, 10}, ownClusters(t, incremental)); diff != "" {
		verdict.Errorf(t, "%s", diff)
	}
	if err := SetBacking(t.Context(), incremental, "c0-d0.qcow2"); err != nil {
		t.Fatal(err)
	}
	sameBytes(t, reference, incremental)
	m.stop()
	m.markClean()
	if diff := cmp.Diff(map[string]Renewed{"d0": Kept}, m.prepare()); diff != "" {
		t.Error(diff)
	}
}

func TestTarget_refusesAFileThatExists(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/x.qcow2"
	if err := CreateTarget(t.Context(), path, 64*mib); err != nil {
		t.Fatal(err)
	}
	if err := CreateTarget(t.Context(), path, 64*mib); !errors.Is(err, os.ErrExist) {
		t.Errorf("got %v", err)
	}
	if err := SetBacking(t.Context(), path, "not-there.qcow2"); err != nil {
		t.Errorf("a backing file that is not there yet: %v", err)
	}
}

// Whoever can write to the target may replace a file that was created there. QEMU would open the files that its
// header names, or write where a link leads.
func TestSetBacking_takesOnlyWhatCreateTargetMade(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	run := func(args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), "qemu-img", args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	own := dir + "/own.qcow2"
	if err := CreateTarget(t.Context(), own, mib); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(own)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(
		os.Symlink(own, dir+"/link"), os.WriteFile(dir+"/raw", make([]byte, mib), 0o600), os.WriteFile(dir+"/short", []byte("QFI\xfb"), 0o600),
		os.Mkdir(dir+"/directory", 0o700), unix.Mkfifo(dir+"/fifo", 0o600),
	); err != nil {
		t.Fatal(err)
	}
	run("create", "-q", "-f", "qcow2", "-o", "data_file="+dir+"/data", dir+"/elsewhere", "1M")
	run("create", "-q", "-f", "vmdk", dir+"/vmdk", "1M")
	for _, name := range []string{"link", "raw", "short", "directory", "fifo", "elsewhere", "vmdk"} {
		if err := SetBacking(t.Context(), dir+"/"+name, "base.qcow2"); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	after, err := os.ReadFile(own)
	if err != nil || !bytes.Equal(before, after) {
		verdict.Errorf(t, "a file that a link leads to was changed: %v", err)
	}
}

// Anything in the place of a new overlay is removed, and nothing is written where a link leads.
func TestCreateOverlay_followsNoLink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := errors.Join(
		os.WriteFile(dir+"/raw", make([]byte, mib), 0o600), os.WriteFile(dir+"/other", []byte("of somebody else"), 0o600), os.Symlink("other", dir+"/overlay"),
	); err != nil {
		t.Fatal(err)
	}
	if err := createOverlay(t.Context(), dir+"/overlay", dir+"/raw", mib, TargetClusterBytes); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(dir + "/other"); err != nil || string(got) != "of somebody else" {
		verdict.Errorf(t, "a file that a link leads to has %d bytes: %v", len(got), err)
	}
}

// QEMU would write the backup into the file that a target's header names.
func TestTargetReplacedBeforeTheBackupBegins_isRefused(t *testing.T) {
	m := newMachine(t, 64*mib)
	m.prepare()
	m.start()
	m.write("d0", 0xa1, 3)
	target, victim := m.target("d0", "c0"), m.dir+"/victim"
	begin, err := m.PrepareBackup(t.Context(), Backup{Checkpoint: "c0", Disks: []BackupDisk{{Volume: "d0", Target: target}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(target), os.WriteFile(victim, make([]byte, 64*mib), 0o600)); err != nil {
		t.Fatal(err)
	}
	m.run("qemu-img", "create", "-q", "-f", "qcow2", "-o", "data_file="+victim, target, "64M")
	if err := begin(t.Context()); !errors.Is(err, errclass.Invalid) {
		t.Errorf("begun: %v", err)
		m.await(EventBackupCompleted)
	}
	if got, err := os.ReadFile(victim); err != nil || bytes.IndexByte(got, 0xa1) >= 0 {
		verdict.Errorf(t, "the file that the target's header names has the guest's data: %v", err)
	}
}
