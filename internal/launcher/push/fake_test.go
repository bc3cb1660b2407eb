package push

import (
	"context"
	"crypto/sha256"
	"errors"
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
	"github.com/varvebackup/varve/internal/launcher/freeze"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/launcher/target"
)

// fakeGuest is a fake of the domain, to test the order of calls and failures that are rare with a real one.
// Everything that depends on libvirt's behavior is tested with the real one (cmd/varve-launcher).
type fakeGuest struct {
	mu    sync.Mutex
	calls []string
	// fail maps a call to its error.
	fail map[string]error
	// on maps a call to a function that runs when the call is made.
	on map[string]func()

	info   domain.Info
	job    domain.JobInfo
	dirty  map[string]uint64
	frozen bool
	// fileSystems is how many the agent can freeze.
	fileSystems int
	// thawedBefore is how many file systems somebody thaws without the agent.
	thawedBefore int
	targets      []string
	// begun is the last backup that began.
	begun domain.Backup
	// beginTakes is how long libvirt takes to begin. libvirt continues when its caller has given up, and refuses an
	// abort until it has begun.
	beginTakes time.Duration
}

func (f *fakeGuest) call(name string) error {
	f.mu.Lock()
	f.calls = append(f.calls, name)
	err, on := f.fail[name], f.on[name]
	f.mu.Unlock()
	if on != nil {
		on()
	}
	return err
}

func (f *fakeGuest) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fakeGuest) Info(context.Context) (domain.Info, error) {
	err := f.call("Info")
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.info, err
}

func (f *fakeGuest) Resume(context.Context) error { return f.call("Resume") }

func (f *fakeGuest) FSFrozen(context.Context, time.Duration) (bool, error) {
	err := f.call("FSFrozen")
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.frozen, err
}

func (f *fakeGuest) Freeze(context.Context, time.Duration) (int, error) {
	err := f.call("Freeze")
	f.set(func() { f.frozen = true }) // a failed freeze may have frozen something
	return f.fileSystems, err
}

func (f *fakeGuest) Thaw(context.Context) (thawed int, err error) {
	if err = f.call("Thaw"); err != nil {
		return 0, err
	}
	f.set(func() {
		if f.frozen {
			thawed = f.fileSystems - f.thawedBefore
		}
		f.frozen = false
	})
	return thawed, nil
}

func (f *fakeGuest) PrepareBackup(_ context.Context, b domain.Backup) (domain.BeginFunc, error) {
	if err := f.call("PrepareBackup"); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		if err := f.call("BeginBackup"); err != nil {
			return err
		}
		if err := f.takeTime(ctx); err != nil {
			return err
		}
		f.set(func() {
			f.job, f.begun = domain.JobInfo{Active: true, Known: true, TotalBytes: 100}, b
			for _, d := range b.Disks {
				f.targets = append(f.targets, d.Target)
			}
		})
		return nil
	}, nil
}

// takeTime waits until libvirt has begun or the caller gives up.
func (f *fakeGuest) takeTime(ctx context.Context) error {
	if f.beginTakes == 0 {
		return nil
	}
	f.set(func() { f.job, f.fail["AbortBackup"] = domain.JobInfo{Active: true, Known: true}, domain.ErrBusy })
	begun := time.After(f.beginTakes)
	time.AfterFunc(f.beginTakes, func() { f.set(func() { delete(f.fail, "AbortBackup") }) })
	select {
	case <-begun:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *fakeGuest) BackupJob(context.Context) (domain.JobInfo, error) {
	err := f.call("BackupJob")
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.job, err
}

func (f *fakeGuest) AbortBackup(context.Context) error {
	err := f.call("AbortBackup")
	if err == nil {
		f.set(func() { f.job = domain.JobInfo{Known: true, Err: errors.New("canceled")} })
	}
	return err
}

func (f *fakeGuest) DirtyBytes(context.Context, string) (map[string]uint64, error) {
	err := f.call("DirtyBytes")
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.dirty, err
}

func (f *fakeGuest) DeleteCheckpoint(_ context.Context, name string) error {
	return f.call("DeleteCheckpoint " + name)
}

func (f *fakeGuest) count(name string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, c := range f.calls {
		if c == name {
			n++
		}
	}
	return n
}

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
	guest   *fakeGuest
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
	b.guest = &fakeGuest{
		fileSystems: 2, fail: map[string]error{}, on: map[string]func(){},
		info:  domain.Info{State: domain.StateRunning},
		dirty: map[string]uint64{"root": 64 << 10, "data": 128 << 10},
	}
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
	b.guest.on["BeginBackup"] = func() {
		go func() {
			time.Sleep(time.Second)
			b.guest.set(func() { b.guest.job = domain.JobInfo{Known: true, TotalBytes: 200, ProcessedBytes: 200} })
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
