package launcher

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/domain"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/launcher/target"
)

// fakeGuest is a fake of the domain, to test what the launcher does around it: a guest that obeys when it is told to.
// The behavior of libvirt itself is tested with the real one (cmd/varve-launcher).
type fakeGuest struct {
	mu     sync.Mutex
	calls  []string
	info   domain.Info
	events chan domain.Event
	// obeys: ShutdownRequest works. startErr: Start fails. destroyTakes: how long Destroy needs.
	obeys        bool
	startErr     error
	destroyTakes time.Duration
	job          domain.JobInfo
	checkpoints  []domain.Checkpoint
	// migration is what MigrationJob returns, and moved the end of Migrate.
	migration domain.MigrationJob
	moved     chan error
	resumeErr error
	// frozen: somebody else has frozen it.
	frozen bool
}

func (f *fakeGuest) call(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, name)
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

// is puts the domain into a state and sends the event.
func (f *fakeGuest) is(state domain.State, reason domain.Reason) {
	f.mu.Lock()
	f.info.State, f.info.Reason = state, reason
	f.mu.Unlock()
	f.events <- domain.Event{Kind: domain.EventLifecycle, State: state, Reason: reason}
}

// agent connects or disconnects the guest agent and sends the event.
func (f *fakeGuest) agent(connected bool) {
	f.mu.Lock()
	f.info.AgentConnected = connected
	f.mu.Unlock()
	f.events <- domain.Event{Kind: domain.EventAgent, Connected: connected}
}

func (f *fakeGuest) Start(context.Context, string) error {
	f.call("Start")
	if f.startErr != nil {
		return f.startErr
	}
	f.is(domain.StateRunning, "")
	return nil
}

func (f *fakeGuest) ShutdownRequest(context.Context) error {
	f.call("ShutdownRequest")
	if f.obeys {
		f.is(domain.StateShutOff, domain.ReasonShutdown)
	}
	return nil
}

func (f *fakeGuest) Destroy(context.Context) error {
	f.call("Destroy")
	time.Sleep(f.destroyTakes)
	f.is(domain.StateShutOff, domain.ReasonDestroyed)
	return nil
}

func (f *fakeGuest) Info(context.Context) (domain.Info, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.info, nil
}

func (f *fakeGuest) PrepareBackup(context.Context, domain.Backup) (domain.BeginFunc, error) {
	return func(context.Context) error {
		f.call("BeginBackup")
		f.mu.Lock()
		defer f.mu.Unlock()
		f.job = domain.JobInfo{Active: true, Known: true}
		return nil
	}, nil
}

func (f *fakeGuest) BackupJob(context.Context) (domain.JobInfo, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.job, nil
}

func (f *fakeGuest) AbortBackup(context.Context) error {
	f.call("AbortBackup")
	f.mu.Lock()
	defer f.mu.Unlock()
	f.job = domain.JobInfo{Known: true, Err: errors.New("canceled")}
	return nil
}

func (f *fakeGuest) Checkpoints(context.Context) ([]domain.Checkpoint, []string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.checkpoints, nil, nil
}

func (f *fakeGuest) Redefine(_ context.Context, cp domain.Checkpoint) ([]string, map[string]string, error) {
	f.call("Redefine " + cp.Name)
	return cp.Volumes[:1], map[string]string{cp.Volumes[1]: "missing"}, nil
}

// Migrate returns what the test sends to moved, or libvirt's error after AbortMigration.
func (f *fakeGuest) Migrate(context.Context, domain.Migration) error {
	f.call("Migrate")
	return <-f.moved
}

func (f *fakeGuest) MigrationJob(context.Context) (domain.MigrationJob, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.migration, nil
}

func (f *fakeGuest) AbortMigration(context.Context) error {
	f.call("AbortMigration")
	select {
	case f.moved <- errors.New("canceled"):
	default:
	}
	return nil
}

func (f *fakeGuest) DeleteCheckpoint(_ context.Context, name string) error {
	f.call("DeleteCheckpoint " + name)
	return nil
}

func (f *fakeGuest) Resume(context.Context) error {
	f.call("Resume")
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.info.State == domain.StatePaused && f.resumeErr == nil {
		f.info.State, f.info.Reason = domain.StateRunning, ""
	}
	return f.resumeErr
}

func (f *fakeGuest) FSFrozen(context.Context, time.Duration) (bool, error) {
	f.call("FSFrozen")
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.frozen, nil
}

func (f *fakeGuest) Freeze(context.Context, time.Duration) (int, error) {
	f.call("Freeze")
	return 1, nil
}

func (f *fakeGuest) Thaw(context.Context) (int, error) {
	f.call("Thaw")
	return 1, nil
}
func (f *fakeGuest) Events() <-chan domain.Event { return f.events }
func (f *fakeGuest) Close() error                { f.call("Close"); return nil }

func (f *fakeGuest) DirtyBytes(context.Context, string) (map[string]uint64, error) {
	return map[string]uint64{}, nil
}

// fakeOverlays records its calls.
type fakeOverlays struct {
	mu              sync.Mutex
	started, clean  []string
	retained        []string
	notStarted      []string
	letGo           []string
	movedFrom       string
	owners          map[string]domain.Owner
	lost            map[string]error
	moveErr         error
	handedOn        map[string]domain.Run
	diskOf          int64
	prepared        map[string]domain.Identity
	runs            map[string]domain.Run
	renewed         domain.Renewed
	overlayDir      string
	prepareErr      error
	markStartedFail error
}

func (f *fakeOverlays) Path(volume string) string { return filepath.Join(f.overlayDir, volume) }

func (f *fakeOverlays) Prepare(_ context.Context, volume, _ string, id domain.Identity, run domain.Run) (domain.Renewed, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.prepared[volume], f.runs[volume] = id, run
	return f.renewed, f.prepareErr
}

func (f *fakeOverlays) Retain(volumes []string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.retained = append(f.retained, volumes...)
	return nil
}

func (f *fakeOverlays) MarkStarted(volumes []string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.started = append(f.started, volumes...)
	return f.markStartedFail
}

func (f *fakeOverlays) MarkNotStarted(volumes map[string]domain.Opened) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for v := range volumes {
		f.notStarted = append(f.notStarted, v)
	}
	return nil
}

func (f *fakeOverlays) HandOn(volume, _ string, run domain.Run) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.handedOn[volume] = run
	return nil
}

func (f *fakeOverlays) MoveFrom(_ context.Context, dir string, owners map[string]domain.Owner) (map[string]error, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.handedOn)+len(f.prepared)+len(f.retained)+len(f.started) > 0 {
		return nil, errors.New("the overlays were used before they moved")
	}
	f.movedFrom, f.owners = dir, owners
	return f.lost, f.moveErr
}

func (f *fakeOverlays) LetGo(volume string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.letGo = append(f.letGo, volume)
	return nil
}

func (f *fakeOverlays) DiskOf(_, generation string) (int64, error) {
	if generation != "7" {
		return 0, nil
	}
	return f.diskOf, nil
}

func (f *fakeOverlays) MarkClean(volumes map[string]domain.Opened) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for v := range volumes {
		f.clean = append(f.clean, v)
	}
	return nil
}

// bench is a launcher with a fake environment.
type bench struct {
	*Launcher
	t        *testing.T
	guest    *fakeGuest
	overlays *fakeOverlays
	gone     chan struct{}
	ended    int // how often EndEmulators was called
	cancel   context.CancelFunc
	outcome  chan Outcome
	began    time.Time
	// address is where the launcher listens as the target of a migration.
	address string
}

// newBench runs a launcher for a guest with one 1 MiB disk, "root".
func newBench(t *testing.T) *bench {
	t.Helper()
	dir := t.TempDir()
	b := &bench{
		t: t, guest: &fakeGuest{events: make(chan domain.Event, 100), obeys: true, moved: make(chan error, 1)},
		overlays: &fakeOverlays{overlayDir: dir, prepared: map[string]domain.Identity{}, runs: map[string]domain.Run{}, handedOn: map[string]domain.Run{}},
		gone:     make(chan struct{}), outcome: make(chan Outcome, 1), began: time.Now(),
	}
	if err := os.WriteFile(filepath.Join(dir, "root"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	b.Launcher = New(Config{
		Connect:  func() (Guest, error) { return b.guest, nil },
		Overlays: b.overlays, Images: plainImages{},
		OpenTarget: func(string) (*target.Volume, error) { return target.Open(dir, mountInfo(t, dir)) },
		Paths: Paths{
			DiskFile: in, DiskDevice: in, Kernel: "/kernel", Initrd: "/initrd", OverlayDir: in("cbt"),
			PreviousOverlayDir: in("previous"), MigrationDir: in("migration"), LibvirtSocket: in("libvirtd"),
		},
		ListenMigration: func(ctx context.Context) (net.Listener, error) {
			listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
			if err == nil {
				b.address = listener.Addr().String()
			}
			return listener, err
		},
		LibvirtGone:  b.gone,
		EndEmulators: func(context.Context) error { b.ended++; return nil },
		Clock:        clock.RealClock{}, Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(context.Background())
	b.cancel = cancel
	go func() { b.outcome <- b.Run(ctx) }()
	return b
}

func mountInfo(t *testing.T, dir string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "mountinfo")
	if err := os.WriteFile(file, []byte("1 2 3:4 / "+dir+" rw - ext4 x rw\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

type plainImages struct{}

func (plainImages) CreateTarget(_ context.Context, path string, _ int64) error {
	return os.WriteFile(path, []byte("x"), 0o600)
}
func (plainImages) SetBacking(context.Context, string, string) error { return nil }

func startRequest(t *testing.T) *pb.StartRequest {
	t.Helper()
	vmi := &kubevirtv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vm"}}
	vmi.Spec.TerminationGracePeriodSeconds = ptr.To(int64(60))
	vmi.Spec.Domain.Memory = &kubevirtv1.Memory{Guest: ptr.To(resource.MustParse("64Mi"))}
	vmi.Spec.Domain.Devices.Disks = []kubevirtv1.Disk{{Name: "root", Disk: &kubevirtv1.DiskTarget{Bus: "virtio"}}}
	vmi.Spec.Volumes = []kubevirtv1.Volume{{Name: "root", PersistentVolumeClaim: &kubevirtv1.PersistentVolumeClaimVolumeSource{}}}
	data, err := json.Marshal(vmi)
	if err != nil {
		t.Fatal(err)
	}
	return &pb.StartRequest{
		Instance: data, UseEmulation: true, ChangedBlockTracking: true,
		Disks: []*pb.DiskSource{{Volume: "root", ClaimUid: "claim", ContentGeneration: "7", Run: "this", PreviousRun: "last"}},
	}
}

// up starts the guest.
func (b *bench) up() {
	b.t.Helper()
	if _, err := b.Start(b.t.Context(), startRequest(b.t)); err != nil {
		b.t.Fatal(err)
	}
}
