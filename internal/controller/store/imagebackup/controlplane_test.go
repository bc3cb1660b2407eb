//go:build controlplane

package imagebackup

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/controller/store/backingimage"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/store/names"
	"github.com/varvebackup/varve/test/controlplane"
)

var cluster *controlplane.Cluster

func TestMain(m *testing.M) { controlplane.Main(m, &cluster) }

// TestControlPlane runs the controller with the rights and the cache that it has in a cluster. The tests play the
// stores, the data mover and Kubernetes' own controllers of volumes.
func TestControlPlane(t *testing.T) { //nolint:paralleltest,tparallel // both serve Varve's namespace
	runScenarios(t)
}

// TestControlPlane_diesAtEachWrite is TestControlPlane with a controller that dies after a third of its writes.
func TestControlPlane_diesAtEachWrite(t *testing.T) { //nolint:paralleltest,tparallel // see above
	runScenarios(t, controlplane.LoseAnswers(t))
}

func runScenarios(t *testing.T, edit ...func(*ctrl.Options)) {
	t.Helper()
	if err := cluster.InstallRoles(t.Context()); err != nil {
		t.Fatal(err)
	}
	mgr := cluster.Manager(t, controlplane.Controller.Restrict(), append(edit, func(o *ctrl.Options) {
		o.Cache.ByObject = backingimage.CachedObjects(controlplane.SystemNamespace)
		o.Cache.ByObject[&velerov2.DataUpload{}] = cache.ByObject{Transform: shrinkUpload}
	})...)
	if err := Setup(mgr, Options{Namespace: controlplane.SystemNamespace}); err != nil {
		t.Fatal(err)
	}
	controlplane.StartManager(t, mgr)
	for name, run := range map[string]func(*world){
		"a whole life":              wholeLife,
		"a backup that fails":       backupFails,
		"deleted in the middle":     deletedInTheMiddle,
		"its DataUpload is deleted": uploadDeleted,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &world{
				T: t, admin: cluster.Client(t, controlplane.Admin), varve: cluster.Client(t, controlplane.Controller),
			}
			w.tag = cluster.Namespace(t) // a name that nobody else has
			t.Cleanup(w.leave)
			run(w)
		})
	}
}

// shrinkUpload leaves out what the cache of the controllers' manager does not have of DataUploads.
func shrinkUpload(o any) (any, error) {
	if u, ok := o.(*velerov2.DataUpload); ok {
		u.OwnerReferences, u.Labels, u.Status.Progress, u.Status.Message = nil, nil, velerov2.Progress{}, ""
	}
	return o, nil
}

// world has an image and a backup of its own.
type world struct {
	*testing.T
	tag string
	// varve writes statuses, which nobody else may.
	admin, varve client.Client
	backup       *longhornv1.BackupBackingImage
	made         []client.Object
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: controlplane.SystemNamespace, Name: w.tag + "-" + name}
}

func (w *world) create(o client.Object) {
	w.Helper()
	w.must(w.admin.Create(w.Context(), o))
	w.made = append(w.made, o)
}

// leave removes what the test has made, so that the next controller does not find it.
func (w *world) leave() {
	for _, o := range w.made {
		_ = w.admin.Patch(context.Background(), o, client.RawPatch("application/merge-patch+json",
			[]byte(`{"metadata":{"finalizers":null}}`)))
		if err := client.IgnoreNotFound(w.admin.Delete(context.Background(), o)); err != nil {
			w.Error(err)
		}
	}
}

// begin creates a backup, then its location, then its image, and plays the cluster until the DataUpload is there.
func (w *world) begin() *velerov2.DataUpload {
	w.Helper()
	location := &velerov1.BackupStorageLocation{ObjectMeta: w.meta("location")}
	location.Spec.Provider = "aws"
	location.Spec.ObjectStorage = &velerov1.ObjectStorageLocation{Bucket: "backups"}
	image := &longhornv1.BackingImage{ObjectMeta: w.meta("golden"), Spec: longhornv1.BackingImageSpec{
		SourceType:       longhornv1.SourceDownload,
		SourceParameters: map[string]longhornv1.ParameterValue{longhornv1.ParameterURL: "https://images.lan/golden"},
		DiskFileSpecMap:  map[string]*longhornv1.BackingImageDiskFileSpec{w.tag: {}},
	}}
	w.backup = &longhornv1.BackupBackingImage{
		ObjectMeta: w.meta("backup"),
		Spec:       longhornv1.BackupBackingImageSpec{BackingImage: image.Name, BackupTargetName: location.Name},
	}
	w.create(location)
	w.create(w.backup)
	w.says(longhornv1.BackupPending, "the image "+image.Name+" does not exist")
	node := &longhornv1.Node{ObjectMeta: w.meta("node"), Spec: longhornv1.NodeSpec{AllowScheduling: true}}
	manager := &longhornv1.InstanceManager{ObjectMeta: w.meta("node"), Spec: longhornv1.InstanceManagerSpec{NodeID: "n"}}
	kubeNode := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}
	w.create(kubeNode)
	controlplane.Update(w.T, w.admin, kubeNode, false, func(n *corev1.Node) { n.Spec.Taints = nil }) // by the API server
	controlplane.Update(w.T, w.admin, kubeNode, true, func(n *corev1.Node) {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	})
	w.create(node)
	w.create(manager)
	controlplane.Update(w.T, w.varve, node, true, func(n *longhornv1.Node) {
		n.Status.DiskStatus = map[string]*longhornv1.DiskStatus{"default-disk": {DiskUUID: w.tag}}
	})
	controlplane.Update(w.T, w.varve, manager, true, func(m *longhornv1.InstanceManager) {
		m.Status.CurrentState, m.Status.HeartbeatTime = longhornv1.ManagerRunning, ptr.To(metav1.NowMicro())
	})
	w.create(image)
	controlplane.Update(w.T, w.varve, image, true, func(i *longhornv1.BackingImage) {
		s := &i.Status
		s.UUID, s.Checksum, s.Size = w.tag, strings.Repeat("ab", 64), 1_000_001
		s.DiskFileStatusMap = map[string]*longhornv1.BackingImageDiskFileStatus{w.tag: {State: longhornv1.StateReady}}
	})
	return w.upload()
}

func (w *world) childMeta() metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: controlplane.SystemNamespace, Name: names.ReaderHandle(string(w.backup.UID))}
}

// upload binds the claim, before which there is no DataUpload, and takes the DataUpload as the data mover does.
func (w *world) upload() *velerov2.DataUpload {
	w.Helper()
	u, claim := &velerov2.DataUpload{ObjectMeta: w.childMeta()}, &corev1.PersistentVolumeClaim{ObjectMeta: w.childMeta()}
	controlplane.Eventually(w.T, func() error {
		err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(claim), claim)
		if err == nil && claim.Status.Phase != corev1.ClaimBound {
			if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(u), u); err == nil {
				w.Error("the DataUpload is made before its claim is bound")
			}
			claim.Status.Phase = corev1.ClaimBound
			err = w.admin.Status().Update(w.Context(), claim)
		}
		if err != nil {
			return err
		}
		return w.admin.Get(w.Context(), client.ObjectKeyFromObject(u), u)
	})
	controlplane.Update(w.T, w.varve, u, false, func(u *velerov2.DataUpload) {
		u.Finalizers = []string{datamove.Finalizer}
	})
	return u
}

// is plays the data mover.
func (w *world) is(u *velerov2.DataUpload, phase velerov2.Phase, edit func(*velerov2.DataUploadStatus)) {
	w.Helper()
	controlplane.Update(w.T, w.varve, u, false, func(u *velerov2.DataUpload) {
		u.Status.Phase = phase
		edit(&u.Status)
	})
}

// letGo plays the data mover, which lets a DataUpload go that is being deleted.
func (w *world) letGo(u *velerov2.DataUpload) {
	w.Helper()
	controlplane.Eventually(w.T, func() error {
		if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(u), u); err != nil {
			return err
		}
		if u.DeletionTimestamp == nil {
			return fmt.Errorf("DataUpload %s is not being deleted", u.Name)
		}
		return nil
	})
	controlplane.Update(w.T, w.varve, u, false, func(u *velerov2.DataUpload) { u.Finalizers = nil })
}

// gone waits until an object is away, and plays those who take it away.
func (w *world) gone(o client.Object) {
	w.Helper()
	controlplane.Eventually(w.T, func() error {
		err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(o), o)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil && o.GetDeletionTimestamp() != nil && len(o.GetFinalizers()) > 0 &&
			strings.HasPrefix(o.GetFinalizers()[0], "kubernetes.io/") {
			err = w.admin.Patch(w.Context(), o, client.RawPatch("application/merge-patch+json",
				[]byte(`{"metadata":{"finalizers":null}}`)))
		}
		return fmt.Errorf("%T %s is still there (%w)", o, o.GetName(), err)
	})
}

func (w *world) volumeGone() {
	w.Helper()
	w.gone(&corev1.PersistentVolumeClaim{ObjectMeta: w.childMeta()})
	w.gone(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: w.childMeta().Name}})
}

// says waits until the backup is in a state, with these words.
func (w *world) says(state longhornv1.BackupState, words string) {
	w.Helper()
	controlplane.Eventually(w.T, func() error {
		if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(w.backup), w.backup); err != nil {
			return err
		}
		if s := w.backup.Status; s.State != state || !strings.Contains(s.Message+s.Error, words) {
			return fmt.Errorf("%+v, want %s %q", s, state, words)
		}
		return nil
	})
}

func wholeLife(w *world) {
	u := w.begin()
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: w.childMeta().Name}}
	w.must(w.admin.Get(w.Context(), client.ObjectKeyFromObject(volume), volume))
	from := volume.Spec.CSI.VolumeAttributes
	if !metav1.IsControlledBy(u, w.backup) || u.Spec.SnapshotType != velerov2.SnapshotImage ||
		u.Spec.DataMoverConfig[datamove.ConfigDiskBytes] != "1000001" ||
		u.Spec.DataMoverConfig[datamove.ConfigDiskChecksum] != strings.Repeat("ab", 64) || u.Spec.SourcePVC != u.Name ||
		volume.Spec.CSI.VolumeHandle != u.Name || from[names.ContextDisk] != w.tag ||
		from[names.ContextImage] != w.meta("golden").Name || from[names.ContextImageUUID] != w.tag {
		w.Errorf("%+v, %+v", u, volume.Spec)
	}
	w.is(u, velerov2.PhaseInProgress, func(s *velerov2.DataUploadStatus) {
		s.Progress = velerov2.Progress{TotalBytes: 1_000_001, BytesDone: 500_001}
	})
	controlplane.Eventually(w.T, func() error {
		w.says(longhornv1.BackupInProgress, "")
		if w.backup.Status.Progress != 50 {
			return fmt.Errorf("%+v", w.backup.Status)
		}
		return nil
	})
	w.is(u, velerov2.PhaseCompleted, func(s *velerov2.DataUploadStatus) { s.SnapshotID = snapshotID })
	w.says(longhornv1.BackupCompleted, "")
	w.volumeGone()
	if s := w.backup.Status; s.SnapshotID != snapshotID || s.Checksum == "" || s.Size != 1_000_001 {
		w.Errorf("%+v", s)
	}
	w.must(w.admin.Delete(w.Context(), w.backup))
	w.says(longhornv1.BackupCompleted, "the restore point is being deleted")
	w.letGo(u)
	w.gone(u)
	w.gone(w.backup)
}

func backupFails(w *world) {
	u := w.begin()
	w.is(u, velerov2.PhaseFailed, func(s *velerov2.DataUploadStatus) { s.Message = "the bucket is full" })
	w.says(longhornv1.BackupError, "DataUpload "+u.Name+" is Failed, of the copy on disk "+w.tag+": the bucket is full")
	image := &longhornv1.BackingImage{ObjectMeta: w.meta("golden")}
	w.must(w.admin.Get(w.Context(), client.ObjectKeyFromObject(image), image))
	if got := image.Annotations[longhornv1.AnnotationCheckCopy+w.tag]; got != string(w.backup.UID) {
		w.Errorf("the copy is not checked: the annotations are %v", image.Annotations)
	}
	w.letGo(u)
	w.gone(u)
	w.volumeGone()
	w.must(w.admin.Delete(w.Context(), w.backup))
	w.gone(w.backup)
}

// deletedInTheMiddle: the DataUpload goes first, because its pod uses the volume.
func deletedInTheMiddle(w *world) {
	u := w.begin()
	w.is(u, velerov2.PhaseInProgress, func(*velerov2.DataUploadStatus) {})
	w.must(w.admin.Delete(w.Context(), w.backup))
	w.says(longhornv1.BackupInProgress, "is being deleted")
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: w.childMeta()}
	w.must(w.admin.Get(w.Context(), client.ObjectKeyFromObject(claim), claim))
	if claim.DeletionTimestamp != nil {
		w.Error("the claim is deleted while the DataUpload is there")
	}
	w.letGo(u)
	w.gone(u)
	w.volumeGone()
	w.gone(w.backup)
}

func uploadDeleted(w *world) {
	u := w.begin()
	w.is(u, velerov2.PhaseCompleted, func(s *velerov2.DataUploadStatus) { s.SnapshotID = snapshotID })
	w.says(longhornv1.BackupCompleted, "")
	w.must(w.admin.Delete(w.Context(), u))
	w.letGo(u)
	w.says(longhornv1.BackupError, "make another backup")
}
