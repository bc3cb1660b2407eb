//go:build controlplane

package drive

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/controller/datamove/expose"
	"github.com/varvebackup/varve/internal/controller/metric"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/datamove/settings"
	"github.com/varvebackup/varve/test/controlplane"
)

var (
	cluster *controlplane.Cluster
	serial  atomic.Int64
)

func TestMain(m *testing.M) { controlplane.Main(m, &cluster) }

// fakeExposer plays the storage: what is exposed is in memory, for all drivers of a test.
type fakeExposer struct {
	mu sync.Mutex
	// waits is what Expose waits for, by the object's name; "*": for all. Likewise refuses and stuck, for Dispose.
	waits    map[string]string
	refuses  map[string]error
	stuck    map[string]bool
	unbound  map[string]error // what Finish answers
	exposed  map[types.UID]bool
	finished map[types.UID]bool
	disposed map[types.UID]int
	pods     func(types.UID) bool // whether there is a pod of the object
	faults   []string
	// affinity is where the volumes can be reached; nil: everywhere.
	affinity *corev1.NodeSelector
}

func (f *fakeExposer) expose(o client.Object) (Exposure, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.refuses[o.GetName()]; err != nil {
		return Exposure{}, err
	}
	for _, key := range []string{o.GetName(), "*"} {
		if what := f.waits[key]; what != "" {
			return Exposure{Waiting: what}, nil
		}
	}
	f.exposed[o.GetUID()] = true
	return Exposure{Volume: &Volume{Claim: "claim", VolumeMode: corev1.PersistentVolumeBlock, Bytes: 1 << 20, NodeAffinity: f.affinity}}, nil
}

func (f *fakeExposer) finish(o client.Object) (Progress, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pods(o.GetUID()) {
		f.faults = append(f.faults, "finished while there is a pod")
	}
	if err := f.unbound[o.GetName()]; err != nil {
		return Progress{}, err
	}
	f.finished[o.GetUID()] = true
	return Progress{Done: true}, nil
}

func (f *fakeExposer) dispose(o client.Object) (Progress, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pods(o.GetUID()) {
		f.faults = append(f.faults, "disposed while there is a pod")
	}
	if f.stuck[o.GetName()] {
		return Progress{Waiting: "the claim to be gone"}, nil
	}
	delete(f.exposed, o.GetUID())
	f.disposed[o.GetUID()]++
	return Progress{Done: true}, nil
}

func (f *fakeExposer) change(edit func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	edit()
}

type uploads struct{ *fakeExposer }

func (f uploads) Expose(_ context.Context, o *velerov2.DataUpload) (Exposure, error) {
	return f.expose(o)
}

func (f uploads) Finish(_ context.Context, o *velerov2.DataUpload) (Progress, error) {
	return f.finish(o)
}

func (f uploads) Dispose(_ context.Context, o *velerov2.DataUpload) (Progress, error) {
	return f.dispose(o)
}

type downloads struct{ *fakeExposer }

func (f downloads) Expose(_ context.Context, o *velerov2.DataDownload) (Exposure, error) {
	return f.expose(o)
}

func (f downloads) Finish(_ context.Context, o *velerov2.DataDownload) (Progress, error) {
	return f.finish(o)
}

func (f downloads) Dispose(_ context.Context, o *velerov2.DataDownload) (Progress, error) {
	return f.dispose(o)
}

// world is an installation of its own: Varve's namespace, one with objects, nodes. The test plays the kubelets, the movers, and the
// controller of repositories.
type world struct {
	t         *testing.T
	admin     client.Client
	varve, ns string
	exposer   *fakeExposer
	clock     clock.PassiveClock
	// changed wakes those whom the test plays.
	changed chan struct{}
	// frozen: the kubelets and movers do nothing. deadNodes have no kubelet.
	mu        sync.Mutex
	frozen    bool
	deadNodes map[string]bool
	// storage is that of the repositories that are made; nil: a bucket.
	storage *datamove.Storage
	// report is what a mover reports for its object; nil: it goes on moving.
	report func(o client.Object) *datamove.Report
	// most has how many objects had a place on each node, and in the cluster (""), at once.
	most map[string]int
	// restricted: the driver has the controller's own roles, which are for Varve's own namespace alone.
	restricted bool
	// deleter is the driver's.
	deleter Deleter
	// wrap changes the writer of the drivers that are started.
	wrap func(client.Client) client.Client
	// csi exposes the snapshots of the drivers that are started; nil: the fake exposer does.
	csi func(expose.Access) Exposer[*velerov2.DataUpload]
	// registry has the metrics of the driver that was started last.
	registry *prometheus.Registry
}

func newWorld(t *testing.T, config string) *world {
	t.Helper()
	return newWorldIn(t, cluster.Namespace(t), config)
}

// newWorldIn is newWorld with Varve installed in a namespace that is there.
func newWorldIn(t *testing.T, varve, config string) *world {
	t.Helper()
	w := &world{
		t: t, admin: cluster.Client(t, controlplane.Admin), varve: varve, ns: cluster.Namespace(t), clock: clock.RealClock{},
		changed: make(chan struct{}, 1), deadNodes: map[string]bool{}, most: map[string]int{},
		wrap: func(c client.Client) client.Client { return c },
	}
	w.exposer = &fakeExposer{
		waits: map[string]string{}, refuses: map[string]error{}, stuck: map[string]bool{}, unbound: map[string]error{},
		exposed: map[types.UID]bool{}, finished: map[types.UID]bool{}, disposed: map[types.UID]int{}, pods: w.hasPod,
	}
	w.report = func(o client.Object) *datamove.Report {
		return &datamove.Report{Outcome: datamove.Succeeded, SnapshotID: pointOf(o), Repository: "r1", IncrementalBytes: 7}
	}
	w.create(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.varve, Name: settings.ConfigMap},
		Data:       map[string]string{settings.Key: w.config(config)},
	})
	w.create(&velerov1.BackupStorageLocation{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "default"},
		Spec:       velerov1.BackupStorageLocationSpec{Provider: "aws", StorageType: velerov1.StorageType{ObjectStorage: &velerov1.ObjectStorageLocation{Bucket: "b"}}},
	})
	w.startPlaying()
	return w
}

// startPlaying has the kubelets, the movers and the controller of repositories act after each change, and once a second, until the test ends.
func (w *world) startPlaying() {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	w.t.Cleanup(func() { cancel(); group.Wait() })
	watcher := cluster.WatchingClient(w.t, controlplane.Admin)
	for list, namespace := range map[client.ObjectList]string{
		&velerov1.BackupRepositoryList{}: w.varve, &corev1.PodList{}: w.varve, &velerov2.DataUploadList{}: w.ns,
		&velerov2.DataDownloadList{}: w.ns,
	} {
		changes, err := watcher.Watch(ctx, list, client.InNamespace(namespace))
		if err != nil {
			w.t.Fatal(err)
		}
		group.Go(func() {
			for range changes.ResultChan() {
				w.wake()
			}
		})
		context.AfterFunc(ctx, changes.Stop)
	}
	group.Go(func() {
		again := time.NewTicker(time.Second) // what failed, and what a watch missed that the API server ended
		defer again.Stop()
		round := time.NewTicker(30 * time.Millisecond) // at most: changes come in bursts
		defer round.Stop()
		for ctx.Err() == nil {
			w.play(ctx)
			select {
			case <-w.changed:
			case <-again.C:
			case <-ctx.Done():
			}
			select {
			case <-round.C:
			case <-ctx.Done():
			}
		}
	})
}

// wake has the kubelets and movers act.
func (w *world) wake() {
	select {
	case w.changed <- struct{}{}:
	default: // they will
	}
}

// pointOf returns the snapshotID that the mover of a DataUpload reports.
func pointOf(o client.Object) string {
	point, _ := datamove.PointID(o.GetUID())
	v, _ := viewOf(o)
	return datamove.SnapshotID{Form: datamove.Disk, Point: point, Namespace: v.Tenant}.String()
}

func (w *world) create(o client.Object) {
	w.t.Helper()
	if err := w.admin.Create(w.t.Context(), o); err != nil {
		w.t.Fatal(err)
	}
}

// play is one round of the kubelets, the movers and the controller of repositories. What fails is tried again in the next round.
func (w *world) play(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var repositories velerov1.BackupRepositoryList
	_ = w.admin.List(ctx, &repositories, client.InNamespace(w.varve))
	for i := range repositories.Items {
		if r := &repositories.Items[i]; r.Status.Phase == "" {
			r.Status.Phase = velerov1.RepositoryReady
			if w.storage != nil {
				metav1.SetMetaDataAnnotation(&r.ObjectMeta, datamove.AnnotationStorage, w.storage.Encode())
			}
			_ = w.admin.Update(ctx, r)
		}
	}
	w.observeLimits(ctx)
	var pods corev1.PodList
	_ = w.admin.List(ctx, &pods, client.InNamespace(w.varve))
	for i := range pods.Items {
		if p := &pods.Items[i]; p.Labels[datamove.LabelObject] != "" && !w.frozen && !w.deadNodes[p.Spec.NodeName] {
			w.playPod(ctx, p)
		}
	}
}

func (w *world) observeLimits(ctx context.Context) {
	var list velerov2.DataUploadList
	_ = w.admin.List(ctx, &list, client.InNamespace(w.ns))
	count := map[string]int{}
	for i := range list.Items {
		if v, err := viewOf(&list.Items[i]); err == nil && isRunning(&v) {
			count[v.Driver]++
			count[""]++
		}
	}
	for node, n := range count {
		w.most[node] = max(w.most[node], n)
	}
}

func (w *world) playPod(ctx context.Context, p *corev1.Pod) {
	switch {
	case p.DeletionTimestamp != nil:
		_ = w.admin.Delete(ctx, p, client.GracePeriodSeconds(0))
	case p.Spec.NodeName == "":
		node := p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields[0].Values[0]
		_ = w.admin.SubResource("binding").Create(ctx, p, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name}, Target: corev1.ObjectReference{Kind: "Node", Name: node},
		})
	case p.Status.Phase == corev1.PodPending || p.Status.Phase == "":
		p.Status.Phase = corev1.PodRunning
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: containerName, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
		_ = w.admin.Status().Update(ctx, p)
	case p.Status.Phase == corev1.PodRunning:
		w.playMover(ctx, p)
	}
}

func (w *world) playMover(ctx context.Context, p *corev1.Pod) {
	parts := strings.Split(p.Annotations[datamove.AnnotationOwner], "/")
	var o client.Object = &velerov2.DataUpload{}
	if parts[0] == string(datamove.Download) {
		o = &velerov2.DataDownload{}
	}
	if w.admin.Get(ctx, types.NamespacedName{Namespace: parts[1], Name: parts[2]}, o) != nil {
		return
	}
	v, err := viewOf(o)
	if err != nil || v.Phase != velerov2.PhaseInProgress || v.Report != nil && v.Report.Pod == p.UID {
		return
	}
	r := w.report(o)
	if r == nil {
		return
	}
	changed := o.DeepCopyObject().(client.Object)
	r.Pod = p.UID
	annotations := merged(o.GetAnnotations(), map[string]string{datamove.AnnotationReport: r.Encode()})
	changed.SetAnnotations(annotations)
	_ = w.admin.Patch(ctx, changed, client.MergeFromWithOptions(o, client.MergeFromWithOptimisticLock{}))
}

func (w *world) set(edit func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	edit()
	w.wake()
}

func (w *world) hasPod(uid types.UID) bool {
	var pods corev1.PodList
	err := w.admin.List(context.Background(), &pods, client.InNamespace(w.varve), client.MatchingLabels{datamove.LabelObject: string(uid)})
	return err != nil || len(pods.Items) > 0
}

// node makes a node that is ready.
func (w *world) node() string {
	w.t.Helper()
	n := node(fmt.Sprintf("mover-node-%d", serial.Add(1)), nil, w.taint())
	w.create(n)
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
	if err := w.admin.Status().Update(w.t.Context(), n); err != nil {
		w.t.Fatal(err)
	}
	controlplane.Update(w.t, w.admin, n, false, func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{w.taint()} })
	w.t.Cleanup(func() { _ = w.admin.Delete(context.Background(), n) })
	return n.Name
}

// silence makes a node not ready, since two minutes.
func (w *world) silence(name string) {
	w.t.Helper()
	w.set(func() { w.deadNodes[name] = true })
	controlplane.Update(w.t, w.admin, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, true, func(n *corev1.Node) {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, LastTransitionTime: metav1.NewTime(time.Now().Add(-2 * time.Minute))}}
	})
}

// config returns settings by which the nodes of other worlds take no pods of this one.
func (w *world) config(more string) string {
	return fmt.Sprintf("namespaces: [%s]\npod: {tolerations: [{key: world, value: %s}]}\n%s", w.ns, w.ns, more)
}

// taint is on every node of the world.
func (w *world) taint() corev1.Taint {
	return corev1.Taint{Key: "world", Value: w.ns, Effect: corev1.TaintEffectNoSchedule}
}

// driver starts the data mover. stop kills it.
func (w *world) driver() (stop func()) {
	w.t.Helper()
	user := controlplane.Controller
	user.Restricted = w.restricted
	mgr := cluster.Manager(w.t, user)
	if err := addMover(mgr, w.mover(mgr)); err != nil {
		w.t.Fatal(err)
	}
	return controlplane.StartManager(w.t, mgr)
}

// nodeAndDriver makes a node, and starts the data mover.
func (w *world) nodeAndDriver() {
	w.t.Helper()
	w.node()
	w.driver()
}

func (w *world) mover(mgr ctrl.Manager) *Mover {
	w.registry = prometheus.NewRegistry()
	measures := metric.NewMovements()
	w.registry.MustRegister(measures)
	recorder := events.NewFakeRecorder(10000)
	access := expose.Access{
		Live: mgr.GetAPIReader(), Writer: w.wrap(mgr.GetClient()), Namespace: w.varve,
		Clock: w.clock,
	}
	var csi Exposer[*velerov2.DataUpload] = uploads{w.exposer}
	if w.csi != nil {
		csi = w.csi(access)
	}
	return &Mover{
		Namespace: w.varve, ObjectNamespaces: []string{w.ns}, Image: datamove.PodImage{Name: "varve"},
		Live: mgr.GetAPIReader(), Writer: w.wrap(mgr.GetClient()),
		Uploads: map[string]Exposer[*velerov2.DataUpload]{
			velerov2.SnapshotCSI: csi, velerov2.SnapshotMachineBackup: &expose.MachineBackups{
				Tunnel: &expose.Tunnel{Access: access}, Endpoints: &expose.Endpoints{Access: access},
				Exports: &expose.Exports{Access: access},
			},
		}, Downloads: downloads{w.exposer},
		Deleter:  w.deleter,
		Settings: &CurrentSettings{Namespace: w.varve, Events: recorder, Log: logr.Discard()},
		Events:   recorder, Measures: measures, Clock: w.clock, Log: logr.Discard(),
	}
}

func (w *world) upload(name string, edit ...func(*velerov2.DataUpload)) *velerov2.DataUpload {
	w.t.Helper()
	o := &velerov2.DataUpload{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name},
		Spec: velerov2.DataUploadSpec{
			SnapshotType: velerov2.SnapshotCSI, CSISnapshot: &velerov2.CSISnapshotSpec{VolumeSnapshot: "s", StorageClass: "c"}, SourcePVC: "data", DataMover: "varve",
			BackupStorageLocation: "default", SourceNamespace: "app", OperationTimeout: velerov1.Duration{Duration: time.Minute},
		},
	}
	for _, e := range edit {
		e(o)
	}
	w.create(o)
	return o
}

func (w *world) download(name string, edit ...func(*velerov2.DataDownload)) *velerov2.DataDownload {
	w.t.Helper()
	o := &velerov2.DataDownload{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name},
		Spec: velerov2.DataDownloadSpec{
			TargetVolume: velerov2.TargetVolumeSpec{PVC: "data", Namespace: w.ns}, DataMover: "varve", BackupStorageLocation: "default", SourceNamespace: "app",
			SnapshotID: datamove.SnapshotID{Form: datamove.Disk, Point: strings.Repeat("0a", 16), Namespace: "app"}.String(), OperationTimeout: velerov1.Duration{Duration: time.Minute},
		},
	}
	for _, e := range edit {
		e(o)
	}
	w.create(o)
	return o
}

// target makes the claim that downloads wait for.
func (w *world) target() {
	w.t.Helper()
	w.targetOn("data", nil)
}

// targetOn makes a claim with annotations, which may say on which node the pod is that uses it.
func (w *world) targetOn(name string, annotations map[string]string) {
	w.t.Helper()
	w.create(&corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name, Annotations: annotations},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: ptr.To("c"),
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: baseScratch}},
		},
	})
}

// until waits until an object fits, and returns its view.
func (w *world) until(o client.Object, fits func(*Object) bool) *Object {
	w.t.Helper()
	var v Object
	controlplane.Eventually(w.t, func() error {
		if err := w.admin.Get(w.t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		var err error
		if v, err = viewOf(o); err == nil && !fits(&v) {
			err = fmt.Errorf("%s of %s: %q, %+v", v.Phase, v.Driver, v.Message, v.Memory)
		}
		return err
	})
	return &v
}

func (w *world) untilPhase(o client.Object, phase velerov2.Phase) *Object {
	w.t.Helper()
	return w.until(o, func(v *Object) bool { return v.Phase == phase })
}

func (w *world) untilSays(o client.Object, text string) *Object {
	w.t.Helper()
	return w.until(o, func(v *Object) bool { return strings.Contains(v.Message, text) })
}

func (w *world) untilGone(o client.Object) {
	w.t.Helper()
	controlplane.Eventually(w.t, func() error {
		if err := w.admin.Get(w.t.Context(), client.ObjectKeyFromObject(o), o); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is still there: %w", err)
		}
		return nil
	})
}

// untilPod waits for the pod of an object, as far as it fits.
func (w *world) untilPod(o client.Object, fits func(*corev1.Pod) bool) *corev1.Pod {
	w.t.Helper()
	kind := datamove.Upload
	if _, ok := o.(*velerov2.DataDownload); ok {
		kind = datamove.Download
	}
	pod := &corev1.Pod{}
	controlplane.Eventually(w.t, func() error {
		if err := w.admin.Get(w.t.Context(), types.NamespacedName{Namespace: w.varve, Name: datamove.ChildName(kind, o.GetUID())}, pod); err != nil {
			return err
		}
		if !fits(pod) {
			return fmt.Errorf("pod: %+v", pod.Status)
		}
		return nil
	})
	return pod
}

func (w *world) cancel(o client.Object) {
	w.t.Helper()
	if err := w.admin.Patch(w.t.Context(), o, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"cancel":true}}`))); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) delete(o client.Object) {
	w.t.Helper()
	if err := w.admin.Delete(w.t.Context(), o); err != nil {
		w.t.Fatal(err)
	}
}

// nothingLeft checks that nothing is left of any object.
func (w *world) nothingLeft() {
	w.t.Helper()
	controlplane.Eventually(w.t, func() error {
		var pods corev1.PodList
		if err := w.admin.List(w.t.Context(), &pods, client.InNamespace(w.varve), client.HasLabels{datamove.LabelObject}); err != nil {
			return err
		}
		w.exposer.mu.Lock()
		defer w.exposer.mu.Unlock()
		if len(pods.Items) > 0 || len(w.exposer.exposed) > 0 {
			return fmt.Errorf("%d pods, %d volumes", len(pods.Items), len(w.exposer.exposed))
		}
		return nil
	})
	w.exposer.mu.Lock()
	defer w.exposer.mu.Unlock()
	if len(w.exposer.faults) > 0 {
		w.t.Error(w.exposer.faults)
	}
}

// crashing is a client that does not survive its n-th write: that one is made, and its answer never arrives; or it is not made.
type crashing struct {
	client.Client
	left  *atomic.Int64
	made  bool
	crash func()
}

var errCrashed = errors.New("the process is dead")

func (c crashing) write(do func() error) error {
	left := c.left.Add(-1)
	if left < 0 {
		return errCrashed
	}
	if left > 0 {
		return do()
	}
	if c.made {
		_ = do()
	}
	c.crash()
	return errCrashed
}

func (c crashing) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	return c.write(func() error { return c.Client.Create(ctx, o, opts...) })
}

func (c crashing) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	return c.write(func() error { return c.Client.Patch(ctx, o, p, opts...) })
}

func (c crashing) Delete(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	return c.write(func() error { return c.Client.Delete(ctx, o, opts...) })
}
