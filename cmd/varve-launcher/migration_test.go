//go:build libvirt_dlopen

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"libvirt.org/go/libvirt"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/layout"
)

// place returns where the test finds what the launcher has at path.
func (p *pod) place(path string) string {
	if p.aside == "" {
		return path
	}
	for _, dir := range []string{layout.SocketsDir, layout.PrivateDir} {
		if rest, below := strings.CutPrefix(path, dir+"/"); below {
			return filepath.Join(p.aside, filepath.Base(dir), rest)
		}
	}
	return path
}

// suffix is in the names of this launcher's logs.
func (p *pod) suffix() string {
	if p.aside == "" {
		return ""
	}
	return "-" + p.node
}

// neighbour runs a second launcher on the same claims, as on another node.
func (p *pod) neighbour() *pod {
	p.Helper()
	n := p.otherNode()
	n.launch()
	return n
}

// otherNode makes the places of a second launcher.
func (p *pod) otherNode() *pod {
	p.Helper()
	n := &pod{TB: p.TB, dir: p.dir, vmi: p.vmi, srcs: p.srcs, starts: p.starts, node: "target", aside: "/run/aside"}
	n.mount("private", n.aside+"/private", "-t", "tmpfs")
	n.run("mkdir", "-p", n.aside+"/sockets")
	// Querying QEMU's capabilities takes seconds.
	n.run("cp", "-a", layout.LibvirtCacheDir, n.aside+"/private/")
	n.give(n.aside+"/private", n.aside+"/sockets")
	return n
}

var migrationToken = bytes.Repeat([]byte{7}, 32)

// prepare makes the launcher the target of a migration.
func (p *pod) prepare(uid string, token []byte) error {
	p.Helper()
	data, err := json.Marshal(p.vmi)
	if err != nil {
		p.Fatal(err)
	}
	_, err = p.client.PrepareMigration(p.Context(), &pb.PrepareMigrationRequest{
		Uid: uid, Token: token,
		Start: &pb.StartRequest{Instance: data, UseEmulation: true, ChangedBlockTracking: true, Disks: p.srcs},
	}, grpc.WaitForReady(true))
	return err
}

func (p *pod) migrate(req *pb.MigrateRequest) {
	p.Helper()
	req.Address, req.Token = fmt.Sprint("127.0.0.1:", layout.MigrationPort), migrationToken
	if _, err := p.client.Migrate(p.Context(), req); err != nil {
		p.Fatal(err)
	}
}

// migrationFails waits for a migration to fail and checks that the guest goes on.
func (p *pod) migrationFails(uid string) string {
	p.Helper()
	s := p.await("migration "+uid+" fails", func(s *pb.State) bool {
		return s.Migration.GetUid() == uid && s.Migration.Phase == pb.Migration_FAILED
	})
	p.await("the guest runs", func(s *pb.State) bool { return s.Phase == pb.State_RUNNING && s.AgentConnected })
	p.guest("true")
	p.Logf("migration %s: %s", uid, s.Migration.Message)
	return s.Migration.Message
}

// checkpoint says what the handler tells a launcher of the checkpoint of a backup.
func checkpoint(b *pb.Backup) *pb.RedefineCheckpointsRequest {
	return &pb.RedefineCheckpointsRequest{Checkpoints: []*pb.Checkpoint{
		{Name: "cp-" + b.Uid, CreationTime: b.PointInTime, Volumes: []string{"fs", "data"}},
	}}
}

// The guest moves while it writes, and what it wrote since its last backup, before and after, is what the next one
// moves.
func TestMigration_bringsGuestAndBitmaps(t *testing.T) {
	p := newPod(t, 64*mib)
	p.vmi.Spec.Domain.Devices.Interfaces = []kubevirtv1.Interface{{Name: "default"}}
	p.vmi.Spec.Domain.Devices.Rng = &kubevirtv1.Rng{}
	target := p.target("backup-1", 512*mib)
	p.up()
	p.begin(p.request("full", "backup-1"))
	full := p.done("full")
	p.guest("echo before >/disks/fs/file; sync; dd if=/dev/urandom of=/dev/vdb bs=64k count=16 seek=77 oflag=direct " +
		"2>/dev/null")
	boot := p.guest("cat /proc/sys/kernel/random/boot_id")
	p.fire("while [ ! -e /tmp/stop ]; do dd if=/dev/urandom of=/dev/vdb bs=64k count=4 seek=200 oflag=direct " +
		"2>/dev/null; echo turn >>/tmp/turns; done; touch /tmp/stopped")

	n := p.neighbour()
	for range 2 { // it can be repeated
		if err := n.prepare("m", migrationToken); err != nil {
			t.Fatal(err)
		}
	}
	n.await("the target listens", func(s *pb.State) bool {
		return s.Phase == pb.State_IDLE && s.Migration.GetPhase() == pb.Migration_LISTENING
	})
	if err := n.start(true); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a target starts a guest of its own: %v", err)
	}
	begun := time.Now()
	p.migrate(&pb.MigrateRequest{Uid: "m", ProgressTimeoutSeconds: 150, CompletionTimeoutSeconds: 150})
	p.await("the guest has left", func(s *pb.State) bool {
		return s.Phase == pb.State_ENDED && s.End == pb.State_MIGRATED
	})
	t.Logf("moved in %v", time.Since(begun))
	s := n.await("the guest goes on", func(s *pb.State) bool {
		return s.Phase == pb.State_RUNNING && s.AgentConnected && len(s.Disks) == 2 && s.Migration.Phase == pb.Migration_ENDED
	})
	if !s.Disks[0].Tracked || !s.Disks[1].Tracked || len(s.Checkpoints) != 0 || len(s.StrayBitmaps) != 1 {
		t.Errorf("on the target: %v", s)
	}
	p.exit()
	if code := p.wait(); code != 0 || p.termination().End != "MIGRATED" {
		t.Errorf("the source's exit code %d, %+v", code, p.termination())
	}
	if now := n.guest("cat /proc/sys/kernel/random/boot_id"); now != boot {
		t.Errorf("the guest was booted: %s, then %s", boot, now)
	}
	turns := n.guest("wc -l </tmp/turns")
	n.guest("while [ $(wc -l </tmp/turns) -le " + strings.TrimSpace(turns) + " ]; do sleep 0.1; done; touch /tmp/stop; " +
		"while [ ! -e /tmp/stopped ]; do sleep 0.1; done; sync")

	redefined, err := n.client.RedefineCheckpoints(t.Context(), checkpoint(full))
	if err != nil || len(redefined.Results[0].Valid) != 2 {
		t.Fatalf("%v, %v", redefined, err)
	}
	n.guest("echo after >/disks/fs/file; sync; dd if=/dev/urandom of=/dev/vdb bs=64k count=16 seek=500 oflag=direct " +
		"2>/dev/null")
	reference := n.reference("second")
	n.begin(n.continuing(n.request("second", "backup-1"), target, "full"))
	second := n.done("second")
	n.sameBytes(reference, target+"/vm/backup-second")
	n.fileSystemHas(target+"/vm/backup-second", "/file", "after\n")
	if moved := second.Volumes[1].MovedBytes; !second.Volumes[1].Incremental || moved < 36*64<<10 ||
		moved > uint64(40*64<<10)+uint64(mib) {
		t.Errorf("36 clusters changed, %d bytes moved (%v)", moved, second.Volumes[1])
	}

	// The target's end is the run's end: the overlays are good for the next.
	if _, err := n.client.Shutdown(t.Context(), &pb.ShutdownRequest{GraceSeconds: 60}); err != nil {
		t.Fatal(err)
	}
	n.await("the guest obeys", func(s *pb.State) bool { return s.End == pb.State_REQUESTED_SHUTDOWN })
	n.exit()
	if code := n.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	p.starts = n.starts - 1 // what was refused was no run
	if s := p.up(); s.Disks[0].OverlayRenewed != "" || s.Disks[1].OverlayRenewed != "" {
		t.Errorf("the next start: %v", s.Disks)
	}
}

// Whatever ends a migration before its end leaves the guest where it is, with its bitmaps.
func TestMigration_failuresLeaveTheGuest(t *testing.T) {
	p := newPod(t, 64*mib)
	target := p.target("backup-1", 512*mib)
	p.up()
	p.begin(p.request("full", "backup-1"))
	p.done("full")
	const slowly = uint64(mib)

	p.migrate(&pb.MigrateRequest{Uid: "nobody"})
	p.migrationFails("nobody")

	n := p.neighbour()
	if err := n.prepare("token", bytes.Repeat([]byte{8}, 32)); err != nil {
		t.Fatal(err)
	}
	p.migrate(&pb.MigrateRequest{Uid: "token"})
	if message := p.migrationFails("token"); !strings.Contains(message, "proof") {
		t.Errorf("the wrong token: %s", message)
	}
	n.cancelled("token")

	n = p.neighbour()
	if err := n.prepare("slow", migrationToken); err != nil {
		t.Fatal(err)
	}
	p.migrate(&pb.MigrateRequest{Uid: "slow", BandwidthBytes: slowly, CompletionTimeoutSeconds: 5})
	p.await("memory moves", func(s *pb.State) bool { return s.Migration.TotalBytes > 0 && s.Migration.RemainingBytes > 0 })
	if _, err := p.client.BeginBackup(t.Context(), p.request("meanwhile", "backup-1")); status.Code(err) != codes.Aborted {
		t.Errorf("a backup meanwhile: %v", err)
	}
	if message := p.migrationFails("slow"); !strings.Contains(message, "completed in 5s") {
		t.Errorf("too slow: %s", message)
	}
	if s := n.await("the target waits for the next try",
		func(s *pb.State) bool { return true }); s.Phase != pb.State_IDLE {
		t.Errorf("the target: %v", s)
	}
	p.migrate(&pb.MigrateRequest{Uid: "slow"}) // the same again is the same
	p.migrationFails("slow")
	n.cancelled("slow")

	n = p.neighbour()
	if err := n.prepare("cancelled", migrationToken); err != nil {
		t.Fatal(err)
	}
	p.migrate(&pb.MigrateRequest{Uid: "cancelled", BandwidthBytes: slowly})
	p.await("memory moves", func(s *pb.State) bool { return s.Migration.RemainingBytes > 0 })
	for _, uid := range []string{"unknown", "cancelled", "cancelled"} {
		if _, err := p.client.CancelMigration(t.Context(), &pb.CancelMigrationRequest{
			Uid:    uid,
			Reason: "the migration was deleted",
		}); err != nil {
			t.Error(err)
		}
	}
	if message := p.migrationFails("cancelled"); message != "the migration was deleted" {
		t.Error(message)
	}
	n.cancelled("cancelled")

	n = p.neighbour()
	if err := n.prepare("dies", migrationToken); err != nil {
		t.Fatal(err)
	}
	p.migrate(&pb.MigrateRequest{Uid: "dies", BandwidthBytes: slowly})
	p.await("memory moves", func(s *pb.State) bool { return s.Migration.RemainingBytes > 0 })
	n.end()
	p.migrationFails("dies")

	p.guest("dd if=/dev/urandom of=/dev/vdb bs=64k count=16 seek=77 oflag=direct 2>/dev/null")
	reference := p.reference("second")
	p.begin(p.continuing(p.request("second", "backup-1"), target, "full"))
	second := p.done("second")
	p.sameBytes(reference, target+"/vm/backup-second")
	if moved := second.Volumes[1].MovedBytes; !second.Volumes[1].Incremental || moved > uint64(17*64<<10)+uint64(mib) {
		t.Errorf("16 clusters changed, %d bytes moved", moved)
	}

	// The source's libvirtd dies: the guest is lost, and the target never runs it.
	n = p.neighbour()
	if err := n.prepare("lost", migrationToken); err != nil {
		t.Fatal(err)
	}
	p.migrate(&pb.MigrateRequest{Uid: "lost", BandwidthBytes: slowly})
	p.await("memory moves", func(s *pb.State) bool { return s.Migration.RemainingBytes > 0 })
	p.killLibvirtd()
	p.await("the guest crashed", func(s *pb.State) bool { return s.End == pb.State_CRASHED })
	p.exit()
	if code := p.wait(); code != 1 {
		t.Errorf("exit code %d", code)
	}
	if _, err := n.client.FinishMigration(t.Context(),
		&pb.FinishMigrationRequest{Uid: "lost"}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a guest that has not arrived goes on: %v", err)
	}
	n.cancelled("lost")
}

// cancelled ends a target that has no guest.
func (p *pod) cancelled(uid string) {
	p.Helper()
	if _, err := p.client.CancelMigration(p.Context(), &pb.CancelMigrationRequest{Uid: uid}); err != nil {
		p.Fatal(err)
	}
	if code := p.wait(); code != 0 || !p.termination().NeverStarted {
		p.Errorf("the target's exit code %d, %+v", code, p.termination())
	}
}

// breaker is the network between two launchers, which breaks.
type breaker struct {
	listener net.Listener
	mu       sync.Mutex
	conns    []net.Conn
}

func newBreaker(t *testing.T) *breaker {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &breaker{listener: listener}
	go func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			to, err := new(net.Dialer).DialContext(t.Context(), "tcp", fmt.Sprint("127.0.0.1:", layout.MigrationPort))
			if err != nil {
				_ = from.Close()
				continue
			}
			b.mu.Lock()
			b.conns = append(b.conns, from, to)
			b.mu.Unlock()
			for _, way := range [][2]net.Conn{{from, to}, {to, from}} {
				go func() {
					_, _ = io.Copy(way[0], way[1]) // it breaks
					_ = way[0].(*net.TCPConn).CloseWrite()
				}()
			}
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		b.cut()
	})
	return b
}

// cut breaks all connections that there are.
func (b *breaker) cut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.conns {
		_ = c.Close()
	}
	b.conns = nil
}

// brokenAfter is how long after the guest has stopped on the source the network breaks. Within about 200 ms it
// changes sides.
var brokenAfter = []time.Duration{
	0, 60 * time.Millisecond, 120 * time.Millisecond, 180 * time.Millisecond,
	240 * time.Millisecond,
}

// The network breaks when the guest changes sides, where libvirt cannot know what the other side does. The guest runs
// on exactly one of them, and writes what it wrote.
func TestMigration_networkBreaksAtTheSwitch(t *testing.T) {
	here := newPod(t, 64*mib)
	target := here.target("backup-1", 512*mib)
	here.up()
	here.begin(here.request("full", "backup-1"))
	full := here.done("full")
	there := here.otherNode()
	moved := 0
	for i, delay := range brokenAfter {
		uid := fmt.Sprint("m-", i)
		network := newBreaker(t)
		there.launch()
		if err := there.prepare(uid, migrationToken); err != nil {
			t.Fatal(err)
		}
		request := &pb.MigrateRequest{Uid: uid, Address: network.listener.Addr().String(), Token: migrationToken}
		domain := here.domain()
		_, err := here.client.Migrate(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}
		tick := time.NewTicker(time.Millisecond)
		for state := libvirt.DOMAIN_RUNNING; err == nil && state == libvirt.DOMAIN_RUNNING; <-tick.C {
			state, _, err = domain.GetState()
		}
		tick.Stop()
		broken := time.AfterFunc(delay, network.cut)
		s := here.await("it ends", func(s *pb.State) bool {
			return s.Migration.Uid == uid && (s.Migration.Phase == pb.Migration_FAILED || s.Phase == pb.State_ENDED)
		})
		broken.Stop()
		t.Logf("broken after %v: %v (%s)", delay, s.Migration.Phase, s.Migration.Message)
		if s.Phase == pb.State_ENDED {
			moved++
			if s.End != pb.State_MIGRATED {
				t.Fatalf("the guest is lost: %v", s)
			}
			there.await("the guest goes on", func(s *pb.State) bool { return s.Phase == pb.State_RUNNING && s.AgentConnected })
			here.exit()
			here.wait()
			here, there = there, here
		} else {
			there.cancelled(uid) // as the target's handler does: until then it may have the disks
			here.await("the guest goes on", func(s *pb.State) bool { return s.Phase == pb.State_RUNNING && s.AgentConnected })
		}
		here.guest(fmt.Sprintf("dd if=/dev/urandom of=/dev/vdb bs=64k count=4 seek=%d oflag=direct 2>/dev/null", 100+20*i))
	}
	if moved > 0 {
		redefined, err := here.client.RedefineCheckpoints(t.Context(), checkpoint(full))
		if err != nil || len(redefined.Results[0].Valid) != 2 {
			t.Fatalf("%v, %v", redefined, err)
		}
	}
	reference := here.reference("second")
	here.begin(here.continuing(here.request("second", "backup-1"), target, "full"))
	second := here.done("second")
	here.sameBytes(reference, target+"/vm/backup-second")
	changed := uint64(4*len(brokenAfter)) * 64 << 10
	if bytes := second.Volumes[1].MovedBytes; !second.Volumes[1].Incremental || bytes < changed ||
		bytes > changed+uint64(mib) {
		t.Errorf("%d bytes changed, %d moved", changed, bytes)
	}
}
