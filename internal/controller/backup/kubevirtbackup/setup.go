package kubevirtbackup

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/reconcile"
)

// +kubebuilder:rbac:groups=backup.kubevirt.io,resources=virtualmachinebackups,verbs=get;list;watch;update;patch
// +kubebuilder:rbac:groups=backup.kubevirt.io,resources=virtualmachinebackups/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=backup.kubevirt.io,resources=virtualmachinebackups/finalizers,verbs=update
// +kubebuilder:rbac:groups=backup.kubevirt.io,resources=virtualmachinebackuptrackers,verbs=get;list;watch;update;patch
// +kubebuilder:rbac:groups=backup.kubevirt.io,resources=virtualmachinebackuptrackers/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=backup.kubevirt.io,resources=virtualmachinebackuptrackers/finalizers,verbs=update
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines,verbs=get;list;watch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=get;list;watch;update;patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstancemigrations,verbs=get;list;watch
// +kubebuilder:rbac:groups=kubevirt.io,resources=kubevirts,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get;list;watch
// +kubebuilder:rbac:groups=export.kubevirt.io,resources=virtualmachineexports,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;create;delete
// +kubebuilder:rbac:groups="",resources=services,verbs=get;list;watch
// +kubebuilder:rbac:groups="";events.k8s.io,resources=events,verbs=create;patch

// Limits bound every wait of a backup. Zero fields get the defaults of DefaultLimits.
type Limits struct {
	// Pending is how long after its creation a backup waits for what others must provide. The time in which it waits for a
	// place on its node does not count.
	Pending time.Duration
	// Place is how long a backup waits for a place on its node without a break.
	Place time.Duration
	// Attaching is how long it may take to mount the target volume into the launcher pod.
	Attaching time.Duration
	// Starting is how long the node may take to fix the point in time.
	Starting time.Duration
	// Stalled is how long a copy may go without progress.
	Stalled time.Duration
	// Aborting is how long the node may take to abort a deleted backup.
	Aborting time.Duration
	// Pruning is how long the node may take to delete checkpoints and partial files.
	Pruning time.Duration
	// Detaching is how long it may take to take the target volume out of the launcher pod.
	Detaching time.Duration
	// GuestGone is how long the node may take to report why the guest ended. After that the controller writes what
	// it sees itself.
	GuestGone time.Duration
	// PruneWithoutGuest is how long the node may take to remove partial files when the guest is gone.
	PruneWithoutGuest time.Duration
}

// DefaultLimits returns the limits that apply unless flags set others.
func DefaultLimits() Limits {
	return Limits{
		Pending:           24 * time.Hour,
		Place:             7 * 24 * time.Hour,
		Attaching:         10 * time.Minute,
		Starting:          5 * time.Minute,
		Stalled:           30 * time.Minute,
		Aborting:          2 * time.Minute,
		Pruning:           5 * time.Minute,
		Detaching:         10 * time.Minute,
		GuestGone:         15 * time.Second,
		PruneWithoutGuest: 30 * time.Second,
	}
}

func (l Limits) withDefaults() Limits {
	d := DefaultLimits()
	for _, f := range []struct{ have, def *time.Duration }{
		{&l.Pending, &d.Pending},
		{&l.Place, &d.Place},
		{&l.Attaching, &d.Attaching},
		{&l.Starting, &d.Starting},
		{&l.Stalled, &d.Stalled},
		{&l.Aborting, &d.Aborting},
		{&l.Pruning, &d.Pruning},
		{&l.Detaching, &d.Detaching},
		{&l.GuestGone, &d.GuestGone},
		{&l.PruneWithoutGuest, &d.PruneWithoutGuest},
	} {
		if *f.have <= 0 {
			*f.have = *f.def
		}
	}
	return l
}

// Options are what Setup needs besides the manager. The zero value is for production.
type Options struct {
	// Configuration is the KubeVirt object that has the feature gates. Default: varve/kubevirt.
	Configuration types.NamespacedName
	// Limits bound every wait; see DefaultLimits.
	Limits Limits
	// Clock tells the time. Default: the machine's.
	Clock clock.PassiveClock
	// Ended is called with each backup that reaches a final phase, after that is written. Default: nothing is called.
	Ended func(*backupv1.VirtualMachineBackup)
	// ControllerSuffix distinguishes the controllers of two managers in one process, for example in tests.
	ControllerSuffix string
}

// Setup adds three controllers to mgr: for backups, for the protection of their trackers, and for abandoned locks.
// The manager's scheme must know core/v1, kubevirt.io/v1 and backup.kubevirt.io/v1alpha1.
func Setup(mgr ctrl.Manager, opts Options) error {
	if opts.Clock == nil {
		opts.Clock = clock.RealClock{}
	}
	if opts.Configuration.Name == "" {
		opts.Configuration = types.NamespacedName{Namespace: layout.Namespace, Name: layout.Configuration}
	}
	if opts.Ended == nil {
		opts.Ended = func(*backupv1.VirtualMachineBackup) {}
	}
	recorder := reconcile.ShortenNotes(mgr.GetEventRecorder("varve-backup"))
	base := access{cached: mgr.GetClient(), live: mgr.GetAPIReader(), events: recorder}
	if err := setupBackups(mgr, opts, base); err != nil {
		return fmt.Errorf("set up the backup controller: %w", err)
	}
	if err := setupTrackers(mgr, opts, base); err != nil {
		return fmt.Errorf("set up the backup tracker controller: %w", err)
	}
	if err := setupTrackerCount(mgr, opts, base); err != nil {
		return fmt.Errorf("set up the controller that counts backup trackers: %w", err)
	}
	if err := setupLocks(mgr, opts, base); err != nil {
		return fmt.Errorf("set up the backup lock controller: %w", err)
	}
	return nil
}

// access is how a reconciler reaches the API server. Reads that lead to a write are repeated live, so that a
// decision on a stale cache does not reach the cluster.
type access struct {
	cached client.Client
	live   client.Reader
	events events.EventRecorder
}

// oneWorker keeps decisions about two backups of one machine from overlapping.
func oneWorker(o controller.Options) controller.Options {
	o.MaxConcurrentReconciles = 1
	return o
}

func setupBackups(mgr ctrl.Manager, opts Options, a access) error {
	if err := addIndexes(context.Background(), mgr.GetFieldIndexer()); err != nil {
		return err
	}
	if err := indexClaimUsers(context.Background(), mgr); err != nil {
		return fmt.Errorf("index machines by their claims: %w", err)
	}
	r := &reconciler{
		access: a, clock: opts.Clock, limits: opts.Limits.withDefaults(), configuration: opts.Configuration, ended: opts.Ended, watchdog: newWatchdog(),
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("backup"+opts.ControllerSuffix).
		For(&backupv1.VirtualMachineBackup{}).
		Owns(&exportv1.VirtualMachineExport{}).
		// Every object that a backup can wait for wakes it, so nothing is polled.
		Watches(&backupv1.VirtualMachineBackup{}, handler.EnqueueRequestsFromMapFunc(r.requestsForSameMachine), builder.WithPredicates(placeMoves())).
		Watches(&backupv1.VirtualMachineBackup{}, handler.EnqueueRequestsFromMapFunc(r.requestsForSameNode), builder.WithPredicates(queueMoves())).
		Watches(&backupv1.VirtualMachineBackupTracker{}, handler.EnqueueRequestsFromMapFunc(r.requestsForTracker), builder.WithPredicates(trackerComesOrGoes())).
		Watches(&backupv1.VirtualMachineBackupTracker{}, handler.EnqueueRequestsFromMapFunc(r.requestsForTrackerStatus)).
		Watches(&kubevirtv1.VirtualMachine{}, handler.EnqueueRequestsFromMapFunc(r.requestsForMachine)).
		Watches(&kubevirtv1.VirtualMachineInstance{}, handler.EnqueueRequestsFromMapFunc(r.requestsForMachine)).
		Watches(&kubevirtv1.KubeVirt{}, handler.EnqueueRequestsFromMapFunc(r.requestsForConfiguration)).
		Watches(&corev1.PersistentVolumeClaim{}, handler.EnqueueRequestsFromMapFunc(r.requestsForClaim)).
		WithOptions(oneWorker(reconcile.Options(reconcile.ControllerWorkers))).
		Complete(r)
}
