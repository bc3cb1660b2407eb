//go:build libvirt_dlopen

package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/varvebackup/varve/internal/domain/domaintest"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/manifest"
	"github.com/varvebackup/varve/test/verdict"
)

// slow is a speed in bytes per second that leaves minutes for what a test does while data moves.
const slow = mib / 2

// reference keeps a copy of what the bare disk holds now. The guest must not write the disk meanwhile.
func (p *pod) reference(name string) string {
	p.Helper()
	to := filepath.Join(p.dir, name+".reference")
	p.run("cp", "--sparse=always", layout.DiskFile("data"), to)
	return to
}

// sameBytes rebuilds a backup's disk with qemu-img alone and compares it with the reference.
func (p *pod) sameBytes(reference, directory string) {
	p.Helper()
	restored := filepath.Join(p.dir, "restored.raw")
	p.run("qemu-img", "convert", "-f", "qcow2", "-O", "raw", filepath.Join(directory, "data.qcow2"), restored)
	if out, err := exec.Command("cmp", reference, restored).CombinedOutput(); err != nil {
		verdict.JudgeErrorf(p, verdict.Differ(err), "cmp %s %s: %v\n%s", reference, restored, err, out)
		p.FailNow()
	}
}

// fileSystemHas checks the file system disk of a backup and reads one file of it.
func (p *pod) fileSystemHas(directory, file, want string) {
	p.Helper()
	restored := filepath.Join(p.dir, "fs.raw")
	p.run("qemu-img", "convert", "-f", "qcow2", "-O", "raw", filepath.Join(directory, "fs.qcow2"), restored)
	p.run("e2fsck", "-fn", restored)
	if got := p.run("debugfs", "-R", "cat "+file, restored); !strings.HasSuffix(got, want) {
		verdict.Errorf(p, "%s in %s: %q, want %q", file, directory, got, want)
	}
}

func (p *pod) manifest(directory string) *manifest.Manifest {
	p.Helper()
	data, err := os.ReadFile(filepath.Join(directory, layout.BackupManifest))
	if err != nil {
		p.Fatal(err)
	}
	m, err := manifest.Decode(data)
	if err != nil {
		p.Fatal(err)
	}
	for _, v := range m.Volumes {
		file, err := os.ReadFile(filepath.Join(directory, v.File))
		if err != nil {
			p.Fatal(err)
		}
		if sum := sha256.Sum256(file); hex.EncodeToString(sum[:]) != v.SHA256 {
			verdict.Errorf(p, "%s/%s does not have the hash of its manifest", directory, v.File)
		}
	}
	return m
}

func names(checkpoints []*pb.Checkpoint) []string {
	var out []string
	for _, c := range checkpoints {
		out = append(out, c.Name)
	}
	return out
}

// One chain over two runs of the guest: a full backup while the guest writes, an incremental, a shutdown, and an
// incremental in the next run.
func TestChain_survivesARestart(t *testing.T) {
	p := newPod(t, 128*mib)
	target := p.target("backup-1", 1024*mib)
	if s := p.up(); s.Disks[0].OverlayRenewed != "NewOverlay" || !s.Disks[0].Tracked {
		t.Errorf("first start: %v", s.Disks)
	}
	p.guest("echo first >/disks/fs/file; sync")
	reference := p.reference("full")
	p.beginSlowly(p.request("full", "backup-1"))
	// Write where nothing was copied yet: none of it may be in the backup.
	p.guest("echo late >/disks/fs/file; sync; dd if=/dev/zero of=/dev/vdb bs=64k count=200 seek=1500 oflag=direct 2>/dev/null")
	p.fullSpeed()
	full := p.done("full")
	t.Logf("full: frozen %d ms, %v", full.FrozenMillis, full.Volumes)
	if full.Quiesce != pb.Backup_FROZEN || full.FrozenMillis <= 0 || full.FrozenMillis > 5000 {
		t.Errorf("%v, %d ms frozen", full.Quiesce, full.FrozenMillis)
	}
	p.sameBytes(reference, target+"/vm/backup-full")
	p.fileSystemHas(target+"/vm/backup-full", "/file", "first\n")
	if moved := full.Volumes[1].MovedBytes; moved < uint64(128*mib) || moved > uint64(132*mib) {
		t.Errorf("moved %d bytes of 128 MiB of data", moved)
	}

	reference = p.reference("second")
	request := p.continuing(p.request("second", "backup-1"), target, "full")
	p.begin(request)
	second := p.done("second")
	t.Logf("incremental: frozen %d ms, %v", second.FrozenMillis, second.Volumes)
	p.sameBytes(reference, target+"/vm/backup-second")
	p.fileSystemHas(target+"/vm/backup-second", "/file", "late\n")
	// 200 clusters became zero, which costs metadata only.
	if moved := second.Volumes[1].MovedBytes; moved > uint64(200*64<<10)+uint64(2*mib) {
		t.Errorf("incremental moved %d bytes for 12.5 MiB of changes", moved)
	}
	m := p.manifest(target + "/vm/backup-second")
	want := &manifest.Parent{Checkpoint: "cp-full", BackupUID: "full", Directory: "../backup-full", ManifestSHA256: request.BaseManifestSha256}
	if diff := cmp.Diff(want, m.Parent); diff != "" || !m.Quiesced || m.Volumes[1].Type != manifest.Incremental {
		t.Errorf("manifest: %+v, parent:\n%s", m, diff)
	}
	if _, err := p.client.DeleteCheckpoints(t.Context(), &pb.DeleteCheckpointsRequest{Names: []string{"cp-full", "never-was"}}); err != nil {
		t.Fatal(err)
	}
	p.await("only the newest checkpoint is left", func(s *pb.State) bool { return cmp.Equal(names(s.Checkpoints), []string{"cp-second"}) })

	if _, err := p.client.Shutdown(t.Context(), &pb.ShutdownRequest{GraceSeconds: 60}); err != nil {
		t.Fatal(err)
	}
	p.await("the guest obeys", func(s *pb.State) bool { return s.End == pb.State_REQUESTED_SHUTDOWN })
	p.exit()
	if code := p.wait(); code != 0 || p.termination().End != "REQUESTED_SHUTDOWN" {
		t.Errorf("exit code %d, termination %+v", code, p.termination())
	}
	p.secondRun(target, second)
}

func (p *pod) secondRun(target string, second *pb.Backup) {
	p.Helper()
	s := p.up()
	if s.Disks[0].OverlayRenewed != "" || s.Disks[1].OverlayRenewed != "" || len(s.Checkpoints) != 0 {
		p.Errorf("second start: %v, checkpoints %v", s.Disks, s.Checkpoints)
	}
	if !cmp.Equal(s.StrayBitmaps, []string{"cp-second"}) {
		p.Errorf("stray bitmaps of the second start: %v", s.StrayBitmaps)
	}
	redefined, err := p.client.RedefineCheckpoints(p.Context(), &pb.RedefineCheckpointsRequest{Checkpoints: []*pb.Checkpoint{
		{Name: "cp-second", CreationTime: second.PointInTime, Volumes: []string{"fs", "data"}},
		{Name: "cp-full", CreationTime: second.PointInTime, Volumes: []string{"data"}},
	}})
	if err != nil {
		p.Fatal(err)
	}
	if got := redefined.Results[0]; len(got.Valid) != 2 || len(got.Lost) != 0 {
		p.Errorf("the newest checkpoint: %v", got)
	}
	if got := redefined.Results[1]; len(got.Valid) != 0 || got.Lost["data"] == "" {
		p.Errorf("the deleted checkpoint: %v", got)
	}
	p.guest("dd if=/dev/urandom of=/dev/vdb bs=64k count=16 seek=77 oflag=direct 2>/dev/null")
	reference := p.reference("third")
	p.begin(p.continuing(p.request("third", "backup-1"), target, "second"))
	third := p.done("third")
	p.sameBytes(reference, target+"/vm/backup-third")
	if moved := third.Volumes[1].MovedBytes; moved > uint64(17*64<<10)+uint64(mib) {
		p.Errorf("16 clusters changed, %d bytes moved", moved)
	}
	// A base that nobody has: the handler is told which disks to plan again.
	p.begin(p.continuing(p.request("lost", "backup-1"), target, "full"))
	if b := p.failed("lost", pb.Backup_BASE_LOST); !b.Volumes[0].BaseLost || !b.Volumes[1].BaseLost {
		p.Errorf("volumes: %v", b.Volumes)
	}
	if err := p.cmd.Process.Signal(unix.SIGTERM); err != nil {
		p.Fatal(err)
	}
	p.await("SIGTERM shuts the guest down", func(s *pb.State) bool { return s.End == pb.State_REQUESTED_SHUTDOWN })
	p.exit()
	if code := p.wait(); code != 0 {
		p.Errorf("exit code %d", code)
	}
}

// Everything that can go wrong with a target, on one guest that never notices. At the end, the guest powers off in the
// middle of a backup.
func TestFailures_leaveTheGuestAlone(t *testing.T) {
	p := newPod(t, 384*mib) // large enough to be slowed down before it is copied, even on a busy machine
	p.target("small", 64*mib)
	target := p.target("backup-1", 1024*mib)
	narrow := p.target("narrow", 480*mib)
	p.run("mkdir", "-p", layout.Utility("unmounted"))
	p.up()

	p.begin(p.request("a", "unmounted"))
	p.failed("a", pb.Backup_TARGET_INVALID)
	if found, err := os.ReadDir(layout.Utility("unmounted")); err != nil || len(found) > 0 {
		t.Errorf("written where nothing is mounted: %v, %v", found, err)
	}
	p.begin(p.request("b", "small"))
	b := p.failed("b", pb.Backup_INSUFFICIENT_SPACE)
	if b.Quiesce != pb.Backup_QUIESCE_UNSPECIFIED || b.PointInTime != nil {
		t.Errorf("the guest was touched: %v", b)
	}
	t.Log(b.Message)

	p.fullWhileCopying(narrow)
	p.aborted()

	// The guest is as it was: no failed backup has left a checkpoint, and the next backup works without an agent.
	p.fire("sleep 0.5; rm -f /bin/run-agent /usr/bin/run-agent; killall qemu-ga")
	p.await("the agent is gone", func(s *pb.State) bool { return !s.AgentConnected && len(s.Checkpoints) == 0 })
	reference := p.reference("plain")
	p.begin(p.request("plain", "backup-1"))
	if plain := p.done("plain"); plain.Quiesce != pb.Backup_AGENT_ABSENT || plain.FrozenMillis != 0 {
		t.Errorf("without an agent: %v", plain)
	}
	p.sameBytes(reference, target+"/vm/backup-plain")

	p.beginSlowly(p.request("off", "backup-1"))
	p.run("virsh", "-q", "shutdown", "ns_vm", "--mode", "acpi")
	p.failed("off", pb.Backup_GUEST_SHUTDOWN)
	p.await("the guest is off", func(s *pb.State) bool { return s.Phase == pb.State_ENDED && s.End == pb.State_GUEST_SHUTDOWN })
	begun := time.Now()
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if took := time.Since(begun); took < 5*time.Second || took > 20*time.Second {
		t.Errorf("the launcher ended after %v, want about the linger of 10 s", took)
	}
}

// fullWhileCopying fills the target from outside, once with an idle guest and once with one that writes.
func (p *pod) fullWhileCopying(target string) {
	p.Helper()
	for _, uid := range []string{"idle", "busy"} {
		p.beginSlowly(p.request(uid, "narrow"))
		p.fill(target + "/vm/filler")
		if uid == "busy" {
			p.guest("dd if=/dev/zero of=/dev/vdb bs=64k count=256 seek=1000 oflag=direct 2>/dev/null")
		} else {
			p.fullSpeed()
		}
		p.failed(uid, pb.Backup_TARGET_FULL)
		p.run("rm", target+"/vm/filler")
		p.await("the guest runs", func(s *pb.State) bool { return s.Phase == pb.State_RUNNING })
		p.guest("dd if=/dev/zero of=/dev/vdb bs=64k count=16 seek=3000 oflag=direct 2>/dev/null")
	}
}

// fill takes all the space that is left, in one step.
func (p *pod) fill(path string) {
	p.Helper()
	f, err := os.Create(path)
	if err != nil {
		p.Fatal(err)
	}
	at := int64(0)
	for size := 512 * mib; size >= 4096; {
		switch err := unix.Fallocate(int(f.Fd()), 0, at, size); {
		case errors.Is(err, unix.ENOSPC):
			size /= 2
		case err != nil:
			p.Fatal(err)
		default:
			at += size
		}
	}
	if err := f.Close(); err != nil {
		p.Fatal(err)
	}
}

func (p *pod) aborted() {
	p.Helper()
	p.beginSlowly(p.request("c", "backup-1"))
	p.begin(p.request("c", "backup-1")) // the same again is the same
	_, err := p.client.BeginBackup(p.Context(), p.request("other", "backup-1"))
	if status.Code(err) != codes.AlreadyExists {
		p.Errorf("a second backup: %v", err)
	}
	for _, uid := range []string{"unknown", "c", "c"} {
		if _, err := p.client.AbortBackup(p.Context(), &pb.AbortBackupRequest{Uid: uid}); err != nil {
			p.Error(err)
		}
	}
	p.failed("c", pb.Backup_ABORTED)
	if _, err := p.client.ForgetBackup(p.Context(), &pb.ForgetBackupRequest{Uid: "c"}); err != nil {
		p.Error(err)
	}
	p.await("the backup is forgotten", func(s *pb.State) bool { return s.Backup == nil })
}

func TestKill_qemuDuringABackup(t *testing.T) {
	p := newPod(t, 128*mib)
	p.target("backup-1", 512*mib)
	p.up()
	p.beginSlowly(p.request("a", "backup-1"))
	domaintest.KillQEMU(t)
	p.failed("a", pb.Backup_GUEST_CRASHED)
	p.await("the guest crashed", func(s *pb.State) bool { return s.End == pb.State_CRASHED })
	p.exit()
	if code := p.wait(); code != 1 || p.termination().End != "CRASHED" {
		t.Errorf("exit code %d, %+v", code, p.termination())
	}
	// Nothing says that the overlays are good, so they are made again.
	if s := p.up(); s.Disks[1].OverlayRenewed != "NotClean" {
		t.Errorf("after the crash: %v", s.Disks)
	}
	// A guest that is stopped in the middle of a backup, without a grace period.
	p.beginSlowly(p.request("b", "backup-1"))
	if _, err := p.client.Shutdown(t.Context(), &pb.ShutdownRequest{GraceSeconds: 0}); err != nil {
		t.Fatal(err)
	}
	p.failed("b", pb.Backup_STOPPED)
	p.await("the guest is killed", func(s *pb.State) bool { return s.End == pb.State_KILLED })
	p.exit()
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestKill_libvirtd(t *testing.T) {
	p := newPod(t, mib)
	p.up()
	p.killLibvirtd()
	p.await("the guest counts as crashed", func(s *pb.State) bool { return s.End == pb.State_CRASHED })
	p.exit()
	if code := p.wait(); code != 1 || !strings.Contains(p.termination().Message, "libvirt") {
		t.Errorf("exit code %d, %+v", code, p.termination())
	}
}

// killLibvirtd kills the launcher's libvirtd, the only one in its namespaces.
func (p *pod) killLibvirtd() {
	p.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		p.Fatal(err)
	}
	for _, file := range files {
		if comm, err := os.ReadFile(file); err != nil || string(comm) != "libvirtd\n" {
			continue // another process, or one that has already ended
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			p.Fatal(err)
		}
		if namespace(pid) != namespace(p.cmd.Process.Pid) {
			continue // the neighbour's
		}
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			p.Fatal(err)
		}
	}
}

// namespace returns the PID namespace of a process, or "" of one that has ended.
func namespace(pid int) string {
	name, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid)) // no link, no process
	return name
}

func TestStart_failsWithWords(t *testing.T) {
	p := newPod(t, mib)
	p.sparse(layout.DiskFile("data"), 0)
	p.launch()
	for range 2 {
		if err := p.start(true); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "empty") {
			t.Errorf("start: %v", err)
		}
	}
	s := p.await("the state says so", func(s *pb.State) bool { return s.End == pb.State_START_FAILED })
	if !strings.Contains(s.Message, "data") {
		t.Errorf("message %q", s.Message)
	}
	p.exit()
	if code := p.wait(); code != 1 {
		t.Errorf("exit code %d", code)
	}
}

// virt-freezer, as Velero runs it in the pod, freezes and thaws a real guest.
func TestFreezer_freezesARunningGuest(t *testing.T) {
	p := newPod(t, 16*mib)
	p.up()
	frozen := func(want string) {
		t.Helper()
		said, err := p.agent(t.Context(), `{"execute":"guest-fsfreeze-status"}`)
		if err != nil || !strings.Contains(said, want) {
			t.Errorf("the agent says %s, %v, and not %s", said, err, want)
		}
	}
	for range 2 {
		for _, step := range []struct{ action, want string }{{"--freeze", `"frozen"`}, {"--unfreeze", `"thawed"`}} {
			var said bytes.Buffer
			if code := runFreezer([]string{step.action, "--name", "vm", "--namespace", "ns"}, layout.Socket, &said); code != 0 || said.Len() > 0 {
				t.Errorf("%s: %d %q", step.action, code, said.String())
			}
			frozen(step.want)
		}
	}
	p.guest("echo written >/disks/fs/file; sync")
}
