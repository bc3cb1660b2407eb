//go:build controlplane

package expose

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/test/controlplane"
)

var cluster *controlplane.Cluster

func TestMain(m *testing.M) { controlplane.Main(m, &cluster) }

// TestControlPlane runs every test that needs the API server, after it has set up what they share.
func TestControlPlane(t *testing.T) {
	t.Parallel()
	if err := cluster.InstallSnapshotKinds(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := cluster.InstallRoles(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, tests := range map[string]map[string]func(*world){"CSI": csiTests, "Restore": restoreTests, "crash": crashTests, "metadata": metadataTests, "keep": keepTests, "Endpoints": endpointTests, "Exports": exportTests, "Tunnel": tunnelTests} {
		for test, run := range tests {
			t.Run(name+"/"+test, func(t *testing.T) {
				t.Parallel()
				run(newWorld(t))
			})
		}
	}
}

const (
	mebibyte = 1 << 20
	// system is Varve's namespace. All tests share it: names come from UIDs.
	system = controlplane.SystemNamespace
)

// world is one test's namespace with a storage of its own. The exposers act with the roles of deploy/rbac.
type world struct {
	*testing.T
	cluster *controlplane.Cluster
	ns      string
	admin   client.Client
	driver  client.Client
	clock   *testclock.FakePassiveClock
	storage *storage
	options Options
	// live and writer are what the exposers read and write with.
	live   client.Reader
	writer client.Writer
	// pause is how long the real controllers get before a test looks again.
	pause time.Duration
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldOn(t, cluster)
}

func newWorldOn(t *testing.T, cluster *controlplane.Cluster) *world {
	t.Helper()
	user := controlplane.Controller.Restrict()
	w := &world{
		T: t, cluster: cluster, ns: cluster.Namespace(t), admin: cluster.Client(t, controlplane.Admin),
		driver: cluster.Client(t, user),
		clock:  testclock.NewFakePassiveClock(time.Now()),
	}
	w.live, w.writer = w.driver, w.driver
	w.storage = &storage{
		world: w, client: w.admin, driver: "csi." + w.ns + ".test", snapshots: map[string]bool{},
		volumes: map[string]bool{},
	}
	w.class("immediate", storagev1.VolumeBindingImmediate, corev1.PersistentVolumeReclaimDelete)
	return w
}

func (w *world) access() Access {
	return Access{Live: w.live, Writer: w.writer, Namespace: system, Clock: w.clock, Options: func() Options { return w.options }}
}

func (w *world) csi() *CSI         { return &CSI{w.access()} }
func (w *world) restore() *Restore { return &Restore{w.access()} }

func (w *world) create(o client.Object) {
	w.Helper()
	if err := w.admin.Create(context.WithoutCancel(w.Context()), o); err != nil {
		w.Fatalf("create %s: %v", describe(o), err)
	}
}

// exists reads o and says whether it is there.
func (w *world) exists(o client.Object) bool {
	w.Helper()
	err := w.admin.Get(context.WithoutCancel(w.Context()), client.ObjectKeyFromObject(o), o)
	if client.IgnoreNotFound(err) != nil {
		w.Fatal(err)
	}
	return err == nil
}

func (w *world) read(o client.Object) {
	w.Helper()
	if !w.exists(o) {
		w.Fatalf("%s does not exist", describe(o))
	}
}

func (w *world) edit(o client.Object, edit func()) {
	w.Helper()
	w.read(o)
	edit()
	if err := w.admin.Update(w.Context(), o); err != nil {
		w.Fatalf("update %s: %v", describe(o), err)
	}
}

func (w *world) editStatus(o client.Object, edit func()) {
	w.Helper()
	w.read(o)
	edit()
	if err := w.admin.Status().Update(w.Context(), o); err != nil {
		w.Fatalf("update %s: %v", describe(o), err)
	}
}

func (w *world) delete(o client.Object) {
	w.Helper()
	if err := w.admin.Delete(w.Context(), o); err != nil {
		w.Fatalf("delete %s: %v", describe(o), err)
	}
}

func (w *world) className(name string) string { return w.ns + "-" + name }

func (w *world) class(name string, binding storagev1.VolumeBindingMode, policy corev1.PersistentVolumeReclaimPolicy) {
	w.create(&storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: w.className(name)}, Provisioner: w.storage.driver, VolumeBindingMode: &binding, ReclaimPolicy: &policy,
	})
}

func quantity(bytes int64) resource.Quantity { return *resource.NewQuantity(bytes, resource.BinarySI) }

func (w *world) claimOf(name, class string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: ptr.To(w.className(class)),
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: quantity(64 * mebibyte)}},
		},
	}
}

// upload is a DataUpload with the snapshot that Velero has made for it.
type upload struct {
	*velerov2.DataUpload
	claim   *corev1.PersistentVolumeClaim
	source  *snapshotv1.VolumeSnapshot
	content *snapshotv1.VolumeSnapshotContent
}

// upload makes a claim with a volume, a snapshot of it under a class with that policy, and a DataUpload, as Velero does.
func (w *world) upload(policy snapshotv1.DeletionPolicy, edit ...func(*upload)) *upload {
	w.Helper()
	u := &upload{claim: w.claimOf("data", "immediate")}
	w.create(u.claim)
	w.settle()
	w.read(u.claim)
	handle := "snap-" + w.ns
	u.source = &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: w.ns, Name: "velero-data-z2c4v", Labels: map[string]string{datamove.LabelBackupName: "b1"},
			Finalizers: []string{finalizerBound},
		},
		Spec: snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &u.claim.Name}},
	}
	u.content = &snapshotv1.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{
			Finalizers: []string{finalizerContent},
			Labels:     map[string]string{labelManagedBy: "node-1", "other": "label"},
			Annotations: map[string]string{
				annotationSecretName: "secret", annotationSecretNamespace: "storage", "other": "annotation",
			},
		},
		Spec: snapshotv1.VolumeSnapshotContentSpec{
			DeletionPolicy: policy, Driver: w.storage.driver, VolumeSnapshotClassName: ptr.To("snapshots"), SourceVolumeMode: ptr.To(corev1.PersistentVolumeFilesystem),
			Source: snapshotv1.VolumeSnapshotContentSource{VolumeHandle: ptr.To("volume-" + string(u.claim.UID))},
		},
	}
	u.DataUpload = &velerov2.DataUpload{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "b1-jg9wz", Labels: map[string]string{datamove.LabelBackupName: "b1", labelSourceUID: string(u.claim.UID)}},
		Spec: velerov2.DataUploadSpec{
			SnapshotType: velerov2.SnapshotCSI, SourcePVC: u.claim.Name, SourceNamespace: w.ns, BackupStorageLocation: "default", DataMover: datamove.Mover,
			CSISnapshot: &velerov2.CSISnapshotSpec{VolumeSnapshot: u.source.Name, StorageClass: w.className("immediate"), SnapshotClass: "snapshots", Driver: w.storage.driver},
		},
	}
	for _, f := range edit {
		f(u)
	}
	w.makeSnapshot(u, handle)
	w.create(u.DataUpload)
	return u
}

// makeSnapshot creates the source's objects as the snapshot controllers leave them.
func (w *world) makeSnapshot(u *upload, handle string) {
	w.Helper()
	size := quantity(128 * mebibyte)
	w.create(u.source)
	u.content.Name = "snapcontent-" + string(u.source.UID)
	if u.content.Spec.VolumeSnapshotRef.Name == "" {
		u.content.Spec.VolumeSnapshotRef = corev1.ObjectReference{Namespace: w.ns, Name: u.source.Name, UID: u.source.UID}
	}
	status := u.content.Status
	w.create(u.content)
	if status == nil {
		status = &snapshotv1.VolumeSnapshotContentStatus{ReadyToUse: ptr.To(true), RestoreSize: ptr.To(size.Value()), CreationTime: ptr.To[int64](takenAt)}
	}
	status.SnapshotHandle = &handle
	w.storage.snapshots[handle] = true
	w.editStatus(u.content, func() { u.content.Status = status })
	w.editStatus(u.source, func() {
		u.source.Status = &snapshotv1.VolumeSnapshotStatus{BoundVolumeSnapshotContentName: &u.content.Name, ReadyToUse: status.ReadyToUse}
		if status.RestoreSize != nil {
			u.source.Status.RestoreSize = &size
		}
	})
}

// takenAt is when the storage took every snapshot that upload makes, in nanoseconds since 1970.
const takenAt = 1234567890123456789

// download is a DataDownload with the claim that Velero has made for it.
type download struct {
	*velerov2.DataDownload
	target *corev1.PersistentVolumeClaim
}

func (w *world) download(edit ...func(*download)) *download {
	w.Helper()
	d := &download{target: w.claimOf("data", "immediate")}
	d.target.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{datamove.LabelRestoredVolume: w.ns + ".data.lbv55"}}
	d.DataDownload = &velerov2.DataDownload{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "r1-xjg5x"},
		Spec: velerov2.DataDownloadSpec{
			TargetVolume: velerov2.TargetVolumeSpec{Namespace: w.ns, PVC: "data"}, BackupStorageLocation: "default", DataMover: datamove.Mover, SourceNamespace: w.ns,
			SnapshotID:   datamove.SnapshotID{Form: datamove.Disk, Point: strings.Repeat("ab", 16), Namespace: w.ns}.String(),
			SnapshotSize: 64 * mebibyte,
		},
	}
	for _, f := range edit {
		f(d)
	}
	w.create(d.DataDownload)
	if d.target != nil {
		w.create(d.target)
	}
	return d
}

func childKey(kind datamove.Kind, uid types.UID) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: system, Name: datamove.ChildName(kind, uid)}
}

func (u *upload) childClaim() *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: childKey(datamove.Upload, u.UID)}
}

func (u *upload) childSnapshot() *snapshotv1.VolumeSnapshot {
	return &snapshotv1.VolumeSnapshot{ObjectMeta: childKey(datamove.Upload, u.UID)}
}

func (u *upload) childContent() *snapshotv1.VolumeSnapshotContent {
	return &snapshotv1.VolumeSnapshotContent{ObjectMeta: metav1.ObjectMeta{Name: datamove.ChildName(datamove.Upload, u.UID)}}
}

func (d *download) childClaim() *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: childKey(datamove.Download, d.UID)}
}

// refused fails the test unless err is a refusal that says what.
func (w *world) refused(err error, what string) {
	w.Helper()
	if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), what) {
		w.Fatalf("error %v, want a refusal that says %q", err, what)
	}
}

// steps is how many calls anything takes at most: 40 without pauses, and two minutes with them.
func (w *world) steps() int {
	if w.pause > 0 {
		return int(2 * time.Minute / w.pause)
	}
	return 40
}

// exposed calls Expose until there is a volume that a pod could mount.
func (w *world) exposed(u *upload) Exposure {
	w.Helper()
	var last Exposure
	for range w.steps() {
		exposure, err := w.csi().Expose(w.Context(), u.DataUpload)
		if err != nil {
			w.Fatalf("expose: %v", err)
		}
		if exposure.Volume != nil {
			return exposure
		}
		last = exposure
		w.settle()
	}
	w.Fatalf("no volume: %s", last.Waiting)
	return Exposure{}
}

// finished calls a Finish or Dispose until it is done.
func (w *world) finished(step func(context.Context) (Progress, error)) Progress {
	w.Helper()
	var last Progress
	for range w.steps() {
		progress, err := step(w.Context())
		if err != nil {
			w.Fatal(err)
		}
		if progress.Done {
			return progress
		}
		if progress.Waiting == "" {
			w.Fatal("neither done nor waiting")
		}
		last = progress
		w.settle()
	}
	w.Fatalf("not done: %s", last.Waiting)
	return Progress{}
}

func (w *world) disposed(u *upload) Progress {
	w.Helper()
	return w.finished(func(ctx context.Context) (Progress, error) { return w.csi().Dispose(ctx, u.DataUpload) })
}

// nothingLeft fails the test if anything of a DataUpload is left, on the storage too, but for the claim that was backed up.
func (w *world) nothingLeft(u *upload) {
	w.Helper()
	for _, o := range []client.Object{
		&snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: u.source.Name}},
		&snapshotv1.VolumeSnapshotContent{ObjectMeta: metav1.ObjectMeta{Name: u.content.Name}},
		u.childSnapshot(), u.childContent(), u.childClaim(),
	} {
		if w.exists(o) {
			w.Errorf("%s is left", describe(o))
		}
	}
	if len(w.storage.snapshots) != 0 {
		w.Errorf("snapshots %v are left on the storage", w.storage.snapshots)
	}
	if len(w.storage.volumes) != 1 || len(w.volumes()) != 1 {
		w.Errorf("volumes %v and %d PersistentVolumes are left, want those of the source", w.storage.volumes, len(w.volumes()))
	}
}

// volumes returns the PersistentVolumes of the test's driver.
func (w *world) volumes() []corev1.PersistentVolume {
	w.Helper()
	return w.volumesBy(w.admin)
}

// volumesBy is volumes by a reader.
func (w *world) volumesBy(c client.Reader) []corev1.PersistentVolume {
	w.Helper()
	var ours []corev1.PersistentVolume
	for _, name := range w.storage.made {
		volume := corev1.PersistentVolume{}
		err := c.Get(context.WithoutCancel(w.Context()), client.ObjectKey{Name: name}, &volume)
		if client.IgnoreNotFound(err) != nil {
			w.Fatal(err)
		}
		if err == nil {
			ours = append(ours, volume)
		}
	}
	return ours
}

func (w *world) settle() {
	w.Helper()
	time.Sleep(w.pause)
	if w.pause == 0 { // otherwise real controllers act meanwhile
		w.storage.client = &rememberingClient{Client: w.admin}
		defer func() { w.storage.client = w.admin }()
	}
	for range 20 {
		changed, err := w.storage.settle(context.WithoutCancel(w.Context()))
		if err != nil {
			w.Fatalf("the storage: %v", err)
		}
		if !changed {
			return
		}
	}
	w.Fatal("the storage does not come to rest")
}

func (w *world) same(what string, got, want any) {
	w.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		w.Errorf("%s: %v, want %v", what, got, want)
	}
}
