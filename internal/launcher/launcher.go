package launcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/varvebackup/varve/internal/domain"
	"github.com/varvebackup/varve/internal/launcher/backupjob"
	"github.com/varvebackup/varve/internal/launcher/freeze"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/launcher/pull"
	"github.com/varvebackup/varve/internal/launcher/push"
	"github.com/varvebackup/varve/internal/launcher/target"
	"github.com/varvebackup/varve/internal/layout"
)

const (
	// lingerTime is how long an ended guest's state can be read before the launcher ends.
	lingerTime = 10 * time.Second
	// connectTimeout bounds how long libvirtd may take to answer for the first time.
	connectTimeout = 2 * time.Minute
	// jobEndTimeout bounds how long a backup may take to end after its guest has ended.
	jobEndTimeout = time.Minute
	// emulatorGrace is how long QEMU may take to close its disks after libvirt was lost.
	emulatorGrace = 20 * time.Second
)

// Guest is what the launcher needs of the guest's domain. domain.Session implements it.
type Guest interface {
	backupjob.Guest
	Start(ctx context.Context, xml string) error
	ShutdownRequest(ctx context.Context) error
	Destroy(ctx context.Context) error
	Events() <-chan domain.Event
	Checkpoints(ctx context.Context) (known []domain.Checkpoint, stray []string, err error)
	Redefine(ctx context.Context, cp domain.Checkpoint) (valid []string, lost map[string]string, err error)
	Migrate(ctx context.Context, m domain.Migration) error
	MigrationJob(ctx context.Context) (domain.MigrationJob, error)
	AbortMigration(ctx context.Context) error
	Close() error
}

// Overlays keeps the files that track the disks. domain.Overlays implements it.
type Overlays interface {
	Prepare(ctx context.Context, volume, rawPath string, id domain.Identity, run domain.Run) (domain.Renewed, error)
	MoveFrom(ctx context.Context, dir string, owners map[string]domain.Owner) (lost map[string]error, err error)
	HandOn(volume, claimUID string, run domain.Run) error
	LetGo(volume string) error
	DiskOf(claimUID, contentGeneration string) (int64, error)
	MarkStarted(volumes []string) error
	MarkNotStarted(volumes map[string]domain.Opened) error
	MarkClean(volumes map[string]domain.Opened) error
	Path(volume string) string
	Retain(volumes []string) error
}

// Paths says where the launcher finds its files.
type Paths struct {
	DiskFile, DiskDevice func(volume string) string
	Kernel, Initrd       string
	// OverlayDir is a directory that the launcher creates on the state volume.
	OverlayDir string
	// PreviousOverlayDir is the same directory on the claim that the overlays move away from. It exists only while there is
	// such a claim.
	PreviousOverlayDir string
	// NBDSocket is where QEMU serves the disks of a pull backup.
	NBDSocket string
	// MigrationDir has the sockets of a migration. It is the same on both sides. LibvirtSocket is where libvirtd listens.
	MigrationDir, LibvirtSocket string
}

// PodPaths returns the paths in a launcher pod.
func PodPaths() Paths {
	return Paths{
		DiskFile: layout.DiskFile, DiskDevice: layout.DiskDevice,
		Kernel: layout.KernelFile, Initrd: layout.InitrdFile, OverlayDir: layout.OverlayDir, PreviousOverlayDir: layout.PreviousOverlayDir, NBDSocket: layout.NBDSocket,
		MigrationDir: layout.MigrationDir, LibvirtSocket: layout.LibvirtSocket,
	}
}

// Config is the configuration of a launcher.
type Config struct {
	// Connect opens the session with libvirt. It is called until it succeeds.
	Connect  func() (Guest, error)
	Overlays Overlays
	Images   push.Images
	// OpenTarget opens a utility volume.
	OpenTarget func(name string) (*target.Volume, error)
	// ListenMigration listens for the source's launcher of a migration.
	ListenMigration func(ctx context.Context) (net.Listener, error)
	Paths           Paths
	// SerialLog receives the output of the guest's serial console. Empty: the output is not logged.
	SerialLog string
	// LibvirtGone is closed when libvirtd has ended.
	LibvirtGone <-chan struct{}
	// EndEmulators ends QEMU without libvirt.
	EndEmulators func(ctx context.Context) error
	Clock        clock.WithTicker
	Log          *slog.Logger
}

// Launcher runs one guest. Create it with New, serve it with Register, and Run it.
type Launcher struct {
	pb.UnimplementedLauncherServer
	cfg Config

	// connected is closed when guest is set or connecting has failed for good.
	connected chan struct{}
	guest     Guest
	freezer   *freeze.Freezer
	// guestLife ends with the guest.
	guestLife    context.Context //nolint:containedctx // the guest's life, not a call's
	endGuestLife context.CancelFunc
	// ended is closed when the guest has ended.
	ended chan struct{}
	// exit is closed when the launcher may end at once; leave is closed when it ends.
	exit     chan struct{}
	exitOnce sync.Once
	leave    chan struct{}
	// refresh wakes the refresher.
	refresh chan struct{}
	// work tracks the goroutines that Run waits for.
	work sync.WaitGroup
	// operations is held by every call that changes checkpoints or begins a backup.
	operations sync.Mutex
	// freezing is held while FreezeGuest freezes the guest, and by a migration that begins.
	freezing sync.Mutex

	mu      sync.Mutex
	changed chan struct{} // closed at the next change
	life    life
	start   *start
	stop    *stop
	job     *backupjob.Job
	// pull is the job if that is a pull backup, or nil.
	pull *pull.Job
	// migration is the one that runs, or the last one.
	migration *migration
	// frozenByCall is what FreezeGuest froze last, for freezeOwner. It is nil when virt-freezer has thawed it.
	frozenByCall *freeze.Frozen
	freezeOwner  string
	info         domain.Info
	checkpoints  []domain.Checkpoint
	// strayBitmaps are the overlays' bitmaps that belong to none of the checkpoints.
	strayBitmaps []string
}

// New returns a launcher without a guest.
func New(cfg Config) *Launcher {
	l := &Launcher{
		cfg:       cfg,
		connected: make(chan struct{}), ended: make(chan struct{}), exit: make(chan struct{}), leave: make(chan struct{}),
		refresh: make(chan struct{}, 1), changed: make(chan struct{}),
	}
	l.guestLife, l.endGuestLife = context.WithCancel(context.Background())
	return l
}

// Outcome says how a launcher ended.
type Outcome struct {
	// ExitCode is 0 after a shutdown and 1 after a crash or a failed start.
	ExitCode int
	End      pb.State_End
	Message  string
	// NeverStarted says that Start was never called, so that no disk and no overlay was touched.
	NeverStarted bool
}

// Run connects to libvirt. It returns when the guest has ended and its state was seen. When ctx ends, Run shuts the
// guest down within the guest's own grace period.
func (l *Launcher) Run(ctx context.Context) Outcome {
	watch, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	l.work.Go(func() { l.connectSession(watch) })
	l.work.Go(func() { l.watchLibvirt(watch) })
	select {
	case <-l.ended:
	case <-ctx.Done():
		l.Stop(l.gracePeriod())
		<-l.ended
	}
	l.afterEnd()
	l.lingerAtEnd()
	close(l.leave)
	cancel()
	l.work.Wait()
	l.freezerWait()
	return l.finalOutcome()
}

func (l *Launcher) finalOutcome() Outcome {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Outcome{ExitCode: l.life.exitCode(), End: l.life.end, Message: l.life.message, NeverStarted: l.start == nil}
}

// afterEnd finishes the work that the guest's end leaves, before anyone waiting is released.
func (l *Launcher) afterEnd() {
	if job := l.currentJob(); job != nil {
		timer := l.cfg.Clock.NewTimer(jobEndTimeout)
		defer timer.Stop()
		select {
		case <-job.Done():
		case <-timer.C():
			l.cfg.Log.Error("backup does not end", "uid", job.UID())
		}
	}
	if err := l.markClean(); err != nil {
		// The overlays stay marked as not clean. The next backup is full, and nothing is wrong.
		l.cfg.Log.Error("overlays not marked as clean", "error", err)
	}
}

func (l *Launcher) lingerAtEnd() {
	timer := l.cfg.Clock.NewTimer(lingerTime)
	defer timer.Stop()
	select {
	case <-l.exit:
	case <-timer.C():
	}
}

func (l *Launcher) freezerWait() {
	if l.freezer != nil {
		l.freezer.Wait()
	}
}

// connectSession opens the session and then follows the domain's events until ctx ends or the channel is closed.
func (l *Launcher) connectSession(ctx context.Context) {
	guest, err := l.dialUntilAnswered(ctx)
	if err != nil {
		l.changeState(func() { l.life = l.life.afterLoss(err.Error()) })
		close(l.connected)
		return
	}
	l.guest = guest
	l.freezer = freeze.New(l.guestLife, guest, l.cfg.Clock, l.cfg.Log, func() { l.changeState(func() {}) })
	close(l.connected)
	l.work.Go(func() { l.refreshLoop(ctx) })
	l.followEvents(ctx, guest.Events())
	if err := guest.Close(); err != nil {
		l.cfg.Log.Debug("connection to libvirt", "error", err)
	}
}

// dialUntilAnswered retries until libvirtd answers.
func (l *Launcher) dialUntilAnswered(ctx context.Context) (Guest, error) {
	const every = 100 * time.Millisecond
	deadline := l.cfg.Clock.Now().Add(connectTimeout)
	for {
		guest, err := l.cfg.Connect()
		if err == nil {
			return guest, nil
		}
		if l.cfg.Clock.Now().After(deadline) {
			return nil, fmt.Errorf("libvirt did not come up: %w", err)
		}
		timer := l.cfg.Clock.NewTimer(every)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return nil, errors.Join(err, ctx.Err())
		case <-l.cfg.LibvirtGone:
			timer.Stop()
			return nil, errors.New("libvirtd ended before it could be reached")
		}
	}
}

// changeState runs f, which changes the state, with the mutex held, and wakes everyone who waits for a change. If f ends
// the guest, everything that lives with the guest ends.
func (l *Launcher) changeState(f func()) {
	l.mu.Lock()
	wasEnded := l.life.hasEnded()
	f()
	ended := l.life.hasEnded() && !wasEnded
	state, job := l.life, l.job
	close(l.changed)
	l.changed = make(chan struct{})
	l.mu.Unlock()
	if !ended {
		return
	}
	l.cfg.Log.Info("guest ended", "end", state.end.String(), "message", state.message)
	if job != nil {
		job.GuestEnded(guestEnd(state))
	}
	l.endGuestLife()
	close(l.ended)
}

func guestEnd(state life) backupjob.GuestEnd {
	if state.endedClean() {
		return backupjob.GuestShutDown
	}
	return backupjob.GuestCrashed
}

func (l *Launcher) currentLife() life {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.life
}

func (l *Launcher) currentJob() *backupjob.Job {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.job
}
