package push

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"k8s.io/utils/clock"

	"github.com/varvebackup/varve/internal/domain"
	"github.com/varvebackup/varve/internal/launcher/backupjob"
	"github.com/varvebackup/varve/internal/launcher/backupjob/backupjobtest"
	"github.com/varvebackup/varve/internal/launcher/freeze"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/launcher/target"
)

// fakeImages writes plain files instead of qcow2 files.
type fakeImages struct {
	mu      sync.Mutex
	fail    error
	backing map[string]string
}

func (f *fakeImages) CreateTarget(_ context.Context, path string, virtualBytes int64) error {
	if f.fail != nil {
		return f.fail
	}
	return os.WriteFile(path, fmt.Appendf(nil, "target of %d bytes", virtualBytes), 0o600)
}

func (f *fakeImages) SetBacking(_ context.Context, path, backing string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.backing[filepath.Base(path)] = backing
	return nil
}

// bench is a job with a fake environment.
type bench struct {
	*testing.T
	guest   *backupjobtest.Guest
	images  *fakeImages
	dir     string
	freezer *freeze.Freezer
	life    context.Context
	endLife context.CancelFunc
	cfg     Config
	agent   bool
	// changed is called after each change of the state.
	changed func()
	// gone: the guest ends in this test.
	gone bool
}

// newBench returns a bench with two tracked disks with 1 MiB of data each, and a target that counts as mounted.
func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{T: t, dir: t.TempDir(), agent: true, changed: func() {}}
	b.guest = backupjobtest.NewGuest()
	b.guest.Dirty = map[string]uint64{"root": 64 << 10, "data": 128 << 10}
	b.images = &fakeImages{backing: map[string]string{}}
	b.life, b.endLife = context.WithCancel(context.Background())
	t.Cleanup(b.endLife)
	mountInfo := filepath.Join(t.TempDir(), "mountinfo")
	line := fmt.Sprintf("1 2 3:4 / %s rw - ext4 /dev/x rw\n", b.dir)
	if err := os.WriteFile(mountInfo, []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	b.freezer = freeze.New(b.life, b.guest, clock.RealClock{}, log, func() {})
	b.cfg = Config{
		Config: backupjob.Config{
			Guest: b.guest, Freezer: b.freezer, Clock: clock.RealClock{}, Log: log,
			Disks:          map[string]backupjob.Disk{},
			AgentConnected: func() bool { return b.agent },
			Changed:        func() { b.changed() },
		},
		Images:     b.images,
		OpenTarget: func(string) (*target.Volume, error) { return target.Open(b.dir, mountInfo) },
	}
	for _, volume := range []string{"root", "data"} {
		raw := filepath.Join(t.TempDir(), volume)
		if err := os.WriteFile(raw, make([]byte, 1<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		b.cfg.Disks[volume] = backupjob.Disk{RawPath: raw, VirtualBytes: 1 << 20, Tracked: true}
	}
	return b
}

func request() *pb.BeginBackupRequest {
	return &pb.BeginBackupRequest{
		Uid: "u2", Name: "b2", Namespace: "ns", Vm: "vm", Tracker: "t", Checkpoint: "cp2",
		Volumes:      []*pb.BackupVolume{{Volume: "root", FullReason: "NoCheckpoint"}, {Volume: "data", FullReason: "NoCheckpoint"}},
		TargetVolume: "backup-1", Directory: "vm/b2",
	}
}

func incrementalRequest() *pb.BeginBackupRequest {
	req := request()
	req.BaseCheckpoint, req.BaseBackupUid = "cp1", "u1"
	req.BaseDirectory, req.BaseManifestSha256 = "vm/b1", fmt.Sprintf("%x", sha256.Sum256(parentManifest("root", "data")))
	for _, v := range req.Volumes {
		v.Incremental, v.FullReason = true, ""
	}
	return req
}

func (b *bench) job(req *pb.BeginBackupRequest) *job {
	b.Helper()
	j, err := newJob(context.Background(), b.cfg, req)
	if err != nil {
		b.Fatal(err)
	}
	return j
}

// complete makes libvirt's job succeed as soon as it has begun.
func (b *bench) complete(j *job) {
	b.guest.On["BeginBackup"] = func() {
		go func() {
			time.Sleep(time.Second)
			b.guest.Set(func() { b.guest.JobInfo = domain.JobInfo{Known: true, TotalBytes: 200, ProcessedBytes: 200} })
			j.Deliver(domain.Event{Kind: domain.EventBackupCompleted})
		}()
	}
}

// run runs the job to its end. When the guest ends, everything else must have ended with it.
func (b *bench) run(j *job) *pb.Backup {
	b.Helper()
	j.Run()
	<-j.Done()
	b.endLife()
	b.freezer.Wait()
	return j.Snapshot()
}
