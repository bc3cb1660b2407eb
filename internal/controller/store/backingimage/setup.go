package backingimage

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove/settings"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/reconcile"
)

// Options are what Setup needs besides the manager. Namespace and LauncherImage have no default.
type Options struct {
	// Namespace is Varve's own. Only its images are served.
	Namespace string
	// LauncherImage is what source pods are made of: it has qemu-img.
	LauncherImage   string
	ImagePullPolicy corev1.PullPolicy
	// GiveUpUnknown is how long a first copy may be unknown, and another one may not have begun, before another disk is
	// chosen. At least a minute. Default: 5 minutes.
	GiveUpUnknown time.Duration
	// RemoveUnused is how long a copy above spec.minNumberOfCopies stays that no replica uses. At least a minute. Default:
	// 60 minutes.
	RemoveUnused time.Duration
	// SourceDeadline is how long a source pod may run. At least a minute. Default: 24 hours.
	SourceDeadline time.Duration
	// ParallelCopies is how many copies of an image are made at a time for spec.minNumberOfCopies. At most
	// MaxParallelCopies. Default: 1.
	ParallelCopies int
	// Clock tells the time. Default: the machine's.
	Clock clock.PassiveClock
	// ControllerSuffix distinguishes the controllers of two managers in one process, for example in tests.
	ControllerSuffix string
}

const (
	// shortestWait is the least that Options may wait for anything.
	shortestWait = time.Minute
	// MaxParallelCopies bounds Options.ParallelCopies.
	MaxParallelCopies = 100
)

// AddFlags adds the flags that set the options.
func (o *Options) AddFlags(f *pflag.FlagSet) {
	f.DurationVar(&o.GiveUpUnknown, "image-recovery-wait", 0, "how long the first copy of an image may be unknown, and "+
		"another one may not have begun, before another disk is chosen; 0: 5 minutes")
	f.DurationVar(&o.RemoveUnused, "image-cleanup-wait", 0, "how long a copy of an image stays that no volume uses, if "+
		"there are more than spec.minNumberOfCopies; 0: 1 hour")
	f.DurationVar(&o.SourceDeadline, "image-source-deadline", 0, "how long a pod may take that downloads an image; "+
		"0: 24 hours")
	f.IntVar(&o.ParallelCopies, "image-parallel-copies", 0, "how many copies of an image are made at a time for "+
		"spec.minNumberOfCopies, at most "+strconv.Itoa(MaxParallelCopies)+"; 0: 1")
}

// Validate returns an error of class Invalid that names a flag whose value is out of range. 0 stands for the default.
func (o *Options) Validate() error {
	for _, f := range []struct {
		flag  string
		value time.Duration
	}{
		{"image-recovery-wait", o.GiveUpUnknown},
		{"image-cleanup-wait", o.RemoveUnused},
		{"image-source-deadline", o.SourceDeadline},
	} {
		if f.value != 0 && f.value < shortestWait {
			return errclass.Errorf(errclass.Invalid, "--%s is %s: use %s or more, or 0 for the default", f.flag, f.value,
				shortestWait)
		}
	}
	if o.ParallelCopies < 0 || o.ParallelCopies > MaxParallelCopies {
		return errclass.Errorf(errclass.Invalid, "--image-parallel-copies is %d: use 1 to %d, or 0 for the default",
			o.ParallelCopies, MaxParallelCopies)
	}
	return nil
}

func (o Options) withDefaults() Options {
	for _, f := range []struct {
		have *time.Duration
		def  time.Duration
	}{{&o.GiveUpUnknown, 5 * time.Minute}, {&o.RemoveUnused, time.Hour}, {&o.SourceDeadline, 24 * time.Hour}} {
		if *f.have <= 0 {
			*f.have = f.def
		}
	}
	o.ParallelCopies = max(o.ParallelCopies, 1)
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	return o
}

type reconciler struct {
	Options
	cached client.Client
	live   client.Reader
	events events.EventRecorder
	// settings are those of the data mover, whose pods restore images.
	settings settings.LastGood
	// deletions remember what stores had reported when images were deleted.
	deletions deletions
	// seals remember what stores have reported since sources were written.
	seals seals
}

// CachedObjects limits the cache of the controllers' manager to a namespace, for the kinds that only the controllers of
// images read. Where Longhorn is installed, objects in other namespaces are Longhorn's.
func CachedObjects(namespace string) map[client.Object]cache.ByObject {
	own := cache.ByObject{Namespaces: map[string]cache.Config{namespace: {}}}
	return map[client.Object]cache.ByObject{
		&longhornv1.BackingImage{}: own, &longhornv1.Node{}: own, &longhornv1.InstanceManager{}: own,
		&longhornv1.Volume{}: own, &longhornv1.Replica{}: own, &longhornv1.BackupBackingImage{}: own,
		&velerov2.DataDownload{}: own,
	}
}

// Setup adds the controller to mgr.
func Setup(mgr ctrl.Manager, o Options) error {
	if err := o.Validate(); err != nil {
		return err
	}
	r := &reconciler{
		Options: o.withDefaults(), cached: mgr.GetClient(), live: mgr.GetAPIReader(),
		events: reconcile.ShortenNotes(mgr.GetEventRecorder("varve-images")),
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("backingimage"+o.ControllerSuffix).
		For(&longhornv1.BackingImage{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Owns(&corev1.Pod{}).
		Owns(&corev1.PersistentVolumeClaim{}).
		Owns(&velerov2.DataDownload{}).
		Watches(&longhornv1.Node{}, handler.EnqueueRequestsFromMapFunc(r.allImages),
			builder.WithPredicates(changesDisks())).
		Watches(&longhornv1.InstanceManager{}, r.managerHandler()).
		Watches(&longhornv1.Replica{}, handler.EnqueueRequestsFromMapFunc(imageOfReplica)).
		Watches(&longhornv1.Volume{}, handler.EnqueueRequestsFromMapFunc(imageOfVolume),
			builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&longhornv1.Volume{}, handler.EnqueueRequestsFromMapFunc(r.imagesFrom(longhornv1.SourceExport)),
			builder.WithPredicates(changesState())).
		Watches(&longhornv1.BackingImage{}, handler.EnqueueRequestsFromMapFunc(r.imagesFrom(longhornv1.SourceClone)),
			builder.WithPredicates(changesReadiness())).
		WithOptions(reconcile.Options(reconcile.ControllerWorkers)).
		Complete(r)
}

// changesDisks leaves out updates of Nodes that only say how much space is free.
func changesDisks() predicate.Predicate {
	return predicate.Or(predicate.GenerationChangedPredicate{}, predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			return !maps.Equal(describeDisks(e.ObjectOld), describeDisks(e.ObjectNew))
		},
	})
}

// describeDisks returns what a Node says about its disks without their space, as texts by the disks' names.
func describeDisks(o client.Object) map[string]string {
	texts := map[string]string{}
	n, ok := o.(*longhornv1.Node)
	if !ok {
		return texts
	}
	for name, status := range n.Status.DiskStatus {
		if status == nil {
			continue
		}
		d := newDiskView(n, name, status, store{})
		d.available = 0
		texts[name] = fmt.Sprintf("%+v", *d)
	}
	return texts
}

// managerHandler asks for the images of which a store reports something else than before, and for all of them when a
// store comes or goes, or falls silent. A heartbeat alone changes nothing.
func (r *reconciler) managerHandler() handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[ctrl.Request]
	all := func(ctx context.Context, o client.Object, q queue) {
		for _, request := range r.allImages(ctx, o) {
			q.Add(request)
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { all(ctx, e.Object, q) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { all(ctx, e.Object, q) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			before, ok := e.ObjectOld.(*longhornv1.InstanceManager)
			after, ok2 := e.ObjectNew.(*longhornv1.InstanceManager)
			if !ok || !ok2 {
				return
			}
			if fallsSilent(before, after) {
				all(ctx, after, q)
				return
			}
			for image := range changedImages(before, after) {
				q.Add(ctrl.Request{NamespacedName: types.NamespacedName{Namespace: after.Namespace, Name: image}})
			}
		},
	}
}

// fallsSilent says whether a store's report is missing from now on, or is there again.
func fallsSilent(before, after *longhornv1.InstanceManager) bool {
	return before.Status.CurrentState != after.Status.CurrentState
}

// changedImages returns the images of which after says something else than before.
func changedImages(before, after *longhornv1.InstanceManager) map[string]bool {
	changed := map[string]bool{}
	for key, info := range before.Status.BackingImages {
		if after.Status.BackingImages[key] != info {
			changed[info.Name] = true
		}
	}
	for key, info := range after.Status.BackingImages {
		if before.Status.BackingImages[key] != info {
			changed[info.Name] = true
		}
	}
	maps.DeleteFunc(changed, func(name string, _ bool) bool { return name == "" })
	return changed
}

func imageOfReplica(_ context.Context, o client.Object) []ctrl.Request {
	replica, ok := o.(*longhornv1.Replica)
	if !ok {
		return nil
	}
	return requestFor(o.GetNamespace(), replica.Spec.BackingImage)
}

func imageOfVolume(_ context.Context, o client.Object) []ctrl.Request {
	volume, ok := o.(*longhornv1.Volume)
	if !ok {
		return nil
	}
	return requestFor(o.GetNamespace(), volume.Spec.BackingImage)
}

func requestFor(namespace, image string) []ctrl.Request {
	if image == "" {
		return nil
	}
	return []ctrl.Request{{NamespacedName: types.NamespacedName{Namespace: namespace, Name: image}}}
}

func (r *reconciler) allImages(ctx context.Context, _ client.Object) []ctrl.Request {
	var list longhornv1.BackingImageList
	if err := r.cached.List(ctx, &list, client.InNamespace(r.Namespace)); err != nil {
		log.FromContext(ctx).Error(fmt.Errorf("list the BackingImages: %w", err), "a change of a disk or a store is not seen")
		return nil
	}
	var requests []ctrl.Request
	for i := range list.Items {
		requests = append(requests, requestFor(r.Namespace, list.Items[i].Name)...)
	}
	return requests
}
