// Package agent is what `varve store` does with the disks of its node and with the copies of images on them. It opens
// the disks of its Node, makes the first copies of images out of what source pods have written, reads further copies
// from other stores, deletes those that nobody wants any more, and reports all of it in its Node and InstanceManager.
//
// What a disk holds is the only truth: after a restart at any moment the agent goes on from there. It never deletes
// what no BackingImage names, and never deletes because of an error. One goroutine decides and reports. What takes long
// (sealing and copying) runs beside it, one job at a time for each copy.
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/diskguard"
	"github.com/varvebackup/varve/internal/store/diskset"
	"github.com/varvebackup/varve/internal/store/metric"
	"github.com/varvebackup/varve/internal/store/peer"
	"github.com/varvebackup/varve/internal/store/scrub"
)

const (
	// heartbeatInterval is how often the agent checks its disks and reports, if nothing changes.
	heartbeatInterval = 30 * time.Second
	// progressInterval is how often it reports progress.
	progressInterval = 2 * time.Second
	// retryInterval is how long it waits after the API server or a disk has returned an error.
	retryInterval = 5 * time.Second
	// requestTimeout bounds a request to the API server.
	requestTimeout = time.Minute
	// shortestInterval is between two looks at everything, however much happens.
	shortestInterval = 200 * time.Millisecond
	// diskAnswers is how long a look at everything waits for a disk, which may then take until diskguard.Patience.
	diskAnswers = 5 * time.Second
	// closePatience is how long the end of a disk or of the process waits for what still works on the disk.
	closePatience = 10 * time.Second
)

// Options say what the agent works with.
type Options struct {
	// Node is the Kubernetes node, and Namespace that of the objects.
	Node, Namespace string
	// HostRoot is where this process sees the node's file system; empty for /.
	HostRoot string
	// DefaultDisk is the node's directory that becomes its first disk; empty for none.
	DefaultDisk string
	// Disks receives the disks that are open.
	Disks *diskset.Set
	// Opened is called with a disk before it is in Disks and before anything on it is deleted or sealed. Whoever has
	// attached volumes of the disk leases them there again. It may be nil.
	Opened func(context.Context, diskset.Disk) error
	// Orphans names what is on a disk beside images and volumes, and what nobody needs any more. It deletes what a user
	// allows, by UID. It may be nil.
	Orphans func(ctx context.Context, d diskset.Disk, deletable map[string]bool) []string
	// Looked is called whenever the agent has looked at all disks and copies, and reported them. It may be nil.
	Looked func()
	// Events receives events on images. It may be nil.
	Events events.EventRecorder
	// Measures are told what was found and reported, and what failed. They may be nil.
	Measures *metric.Set
	// CopyReady is called when a copy of an image has got ready on a disk of the node, and is reported. It may be nil.
	CopyReady func()
	// Config connects to the API server.
	Config *rest.Config
	// Scrub says how the agent reads the images on the disks now and then, to find damage. If Interval is 0, it does not.
	Scrub ScrubOptions
	// PodIP is the address for other stores. Port and NBDPort are the ports there: peer.DefaultPort and
	// peer.DefaultNBDPort if they are 0. Port is the same for all stores of a cluster.
	PodIP         string
	Port, NBDPort int
	// TLSDir has tls.crt, tls.key and ca.crt, with the name names.StoreHost.
	TLSDir string
	// Register adds services that other stores call. It may be nil.
	Register func(grpc.ServiceRegistrar)
	// ServeUsers serves the images to users until its context ends. It is given where to note damage. It may be nil.
	ServeUsers func(ctx context.Context, noteDamage func(context.Context, peer.Copy, string)) error
	Clock      clock.WithTicker
	Logger     *slog.Logger
}

// agent is the state of Run. Only the goroutine of its loop uses it, but for what mu protects.
type agent struct {
	Options

	// cached reads from the cache of BackingImages and of the node's own Node.
	cached client.Reader
	// live reads from the API server, and writes.
	live client.Client

	disks map[string]*openDisk // by their names in spec.disks
	// guards watch the disks, and looks are those at a disk that have begun: both by the disks' names in spec.disks.
	guards map[string]*diskguard.Guard
	looks  map[string]*look
	// openFiles opens the files of a disk. Tests replace it.
	openFiles func(ctx context.Context, dir string) (diskFiles, error)
	// diskClock measures how long disks take.
	diskClock clock.Clock
	// lookPatience is how long a look at everything waits for a disk that has not answered.
	lookPatience time.Duration
	// known are the disks that were at a name of spec.disks before: an empty directory there is not formatted.
	known map[string]disk.UID
	// copies remember attempts, by copy.
	copies map[copyKey]*copyState
	// withoutReplica says how often in a row volumes had a head and no Replica, and replicasFoundAt when that was.
	withoutReplica  map[string]int
	replicasFoundAt time.Time
	// otherNodes has the nodes of the volumes whose Replicas name another one than this.
	otherNodes map[string]string
	wake       chan struct{}
	// written is what the InstanceManager says, and writtenAt when it was told. Its ResourceVersion is empty if that is
	// not known.
	written   longhornv1.InstanceManager
	writtenAt time.Time
	// nodeWrittenAt is when the status of the Node was compared with the disks.
	nodeWrittenAt time.Time

	// scrubber is nil if images are not read now and then.
	scrubber *scrub.Scrubber
	// measured are the disks as the metrics have them, by their names.
	measured map[string]metric.Disk

	jobs      sync.WaitGroup
	mu        sync.Mutex
	reported  map[copyKey]longhornv1.BackingImageV2CopyInfo
	reportNew chan struct{} // closed when reported changes
	gotReady  bool          // a copy has, since the last report
	// reached is called after each step of a job, and may fail it. Tests crash there.
	reached func(step string) error
}

// Run works until ctx ends, and then returns nil. It also serves other stores. An error means that it cannot work.
func Run(ctx context.Context, o Options) error {
	scheme := runtime.NewScheme()
	if err := errors.Join(longhornv1.AddToScheme(scheme), corev1.AddToScheme(scheme)); err != nil {
		return err
	}
	bounded := rest.CopyConfig(o.Config)
	bounded.Timeout = requestTimeout
	live, err := client.New(bounded, client.Options{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("make a client for the store's agent: %w", err)
	}
	informers, err := cache.New(o.Config, cache.Options{
		Scheme:            scheme,
		DefaultNamespaces: map[string]cache.Config{o.Namespace: {}},
		DefaultTransform:  cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&longhornv1.Node{}: {Field: fields.OneTermEqualSelector("metadata.name", o.Node)},
		},
	})
	if err != nil {
		return fmt.Errorf("make a cache for the store's agent: %w", err)
	}
	a := newAgent(o, informers, live)
	for _, kind := range []client.Object{&longhornv1.Node{}, &longhornv1.BackingImage{}} {
		informer, err := informers.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watch %T: %w", kind, err)
		}
		handler := toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { a.wakeUp() },
			UpdateFunc: func(_, _ any) { a.wakeUp() },
			DeleteFunc: func(any) { a.wakeUp() },
		}
		if _, err := informer.AddEventHandler(handler); err != nil {
			return fmt.Errorf("watch %T: %w", kind, err)
		}
	}
	outer := ctx
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return informers.Start(ctx) })
	group.Go(func() error { return a.servePeers(ctx) })
	if a.ServeUsers != nil {
		group.Go(func() error { return a.ServeUsers(ctx, a.NoteDamage) })
	}
	group.Go(func() error {
		if !informers.WaitForCacheSync(ctx) {
			return ctx.Err()
		}
		return a.loop(ctx)
	})
	if err := group.Wait(); err != nil && outer.Err() == nil {
		return fmt.Errorf("run the store's agent: %w", err)
	}
	return nil
}

func newAgent(o Options, cached client.Reader, live client.Client) *agent {
	o.Port = cmp.Or(o.Port, peer.DefaultPort)
	a := &agent{
		Options: o, cached: cached, live: live, disks: map[string]*openDisk{}, guards: map[string]*diskguard.Guard{},
		looks: map[string]*look{}, openFiles: openReflink, diskClock: o.Clock, lookPatience: diskAnswers,
		known: map[string]disk.UID{}, copies: map[copyKey]*copyState{},
		wake: make(chan struct{}, 1), reported: map[copyKey]longhornv1.BackingImageV2CopyInfo{},
		reportNew: make(chan struct{}),
	}
	if o.Scrub.Interval > 0 && o.Scrub.BytesPerSecond > 0 {
		a.scrubber = scrub.New(scrub.Options{
			Disks: o.Disks, Copies: a, BytesPerSecond: o.Scrub.BytesPerSecond, Interval: o.Scrub.Interval, Clock: o.Clock,
			Logger: o.Logger, Changed: a.wakeUp,
		})
	}
	return a
}

func (a *agent) servePeers(ctx context.Context) error {
	return peer.Run(ctx, peer.Options{
		IP: a.PodIP, Port: a.Port, NBDPort: a.NBDPort, TLSDir: a.TLSDir, Disks: a.Disks, Copies: a, Clock: a.Clock,
		Logger: a.Logger, Register: a.Register,
	})
}

// wakeUp makes the loop look at everything soon.
func (a *agent) wakeUp() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// loop looks at everything whenever something has changed, and every heartbeatInterval. When ctx ends it waits for the
// jobs, and closes the disks.
func (a *agent) loop(ctx context.Context) error {
	defer a.closeAll()
	if a.scrubber != nil {
		a.jobs.Go(func() { a.scrubber.Run(ctx) })
	}
	for ctx.Err() == nil {
		next, err := a.lookAtAll(ctx)
		if err != nil && ctx.Err() == nil {
			a.Logger.Warn("the store's agent tries again", "after", retryInterval, "error", err)
			a.countFailure(metric.OperationLook)
			next = retryInterval
		}
		if err == nil && a.Looked != nil {
			a.Looked()
		}
		if a.waitFor(ctx, shortestInterval, nil) != nil || a.waitFor(ctx, next, a.wake) != nil {
			break
		}
	}
	return nil
}

// waitFor waits for a time, or until early has something.
func (a *agent) waitFor(ctx context.Context, d time.Duration, early <-chan struct{}) error {
	timer := a.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-early:
	case <-ctx.Done():
	}
	return ctx.Err()
}

// lookAtAll brings disks and copies nearer to what is wanted, and reports. It returns when to look again.
func (a *agent) lookAtAll(ctx context.Context) (time.Duration, error) {
	node, err := a.findNode(ctx)
	if err != nil {
		return 0, err
	}
	if err := a.recallReport(ctx); err != nil {
		return 0, err
	}
	states := a.lookAtDisks(ctx, node)
	if err := a.reserveSpace(ctx, node, states); err != nil {
		return 0, err
	}
	var images longhornv1.BackingImageList
	if err := a.cached.List(ctx, &images, client.InNamespace(a.Namespace)); err != nil {
		return 0, fmt.Errorf("list the images: %w", err)
	}
	busy, err := a.lookAtCopies(ctx, states, images.Items)
	if err != nil {
		return 0, err
	}
	if err := a.writeNode(ctx, node, states); err != nil {
		return 0, err
	}
	if err := a.writeReport(ctx); err != nil {
		return 0, err
	}
	a.updateMetrics(states)
	if a.takeReady() && a.CopyReady != nil {
		a.CopyReady()
	}
	slow := slices.ContainsFunc(states, func(s *diskState) bool { return s.slow })
	if busy || slow {
		return progressInterval, nil
	}
	return heartbeatInterval, nil
}

// closeAll waits for the jobs and the looks, whose context has ended, and closes the disks. Whatever still waits for a
// disk that hangs ends with the process.
func (a *agent) closeAll() {
	timer := a.diskClock.NewTimer(closePatience)
	defer timer.Stop()
	ended, looks := make(chan struct{}), slices.Collect(maps.Values(a.looks))
	go func() {
		defer close(ended)
		a.jobs.Wait()
		for _, l := range looks {
			<-l.done
		}
	}()
	select {
	case <-ended:
	case <-timer.C():
		a.Logger.Error("what works on the store's disks does not end, and ends with the process")
	}
	for name, l := range a.looks {
		if l.isDone() {
			a.adoptDisk(name, l)
		}
	}
	for name, d := range a.disks {
		a.Disks.Remove(d.UUID)
		if err := d.closeUnused(context.Background()); err != nil {
			a.Logger.Info("the store's disk stays open until the process ends", "disk", name, "error", err)
		}
	}
}
