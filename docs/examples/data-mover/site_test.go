//go:build controlplane

package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/test/controlplane"
)

var cluster *controlplane.Cluster

func TestMain(m *testing.M) {
	dir, err := slowCopies()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer os.RemoveAll(dir)
	controlplane.Main(m, &cluster)
}

// slowCopies puts a cp before the system's that waits while a file <source>.hold exists.
func slowCopies() (string, error) {
	dir, err := os.MkdirTemp("", "data-mover-")
	if err != nil {
		return "", err
	}
	const script = "#!/bin/sh\nwhile [ -e \"${3%/.}.hold\" ]; do sleep 0.1; done\nPATH=${PATH#*:} exec cp \"$@\"\n"
	if err := os.WriteFile(filepath.Join(dir, "cp"), []byte(script), 0o755); err != nil {
		return "", err
	}
	return dir, os.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

var installSnapshotKinds = sync.OnceValue(func() error {
	paths, err := controlplane.SnapshotCRDs(context.Background())
	if err != nil {
		return err
	}
	return cluster.InstallCRDs(paths)
})

// site is what one test has: Velero's namespace, an application's, and a node's directories. The test plays Velero, the snapshot
// controller and the controller of persistent volumes.
type site struct {
	t                         *testing.T
	api                       client.Client
	velero, app               string
	snapshots, store, volumes string
}

func newSite(t *testing.T) *site {
	t.Helper()
	if err := installSnapshotKinds(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	s := &site{
		t: t, api: cluster.Client(t, controlplane.Admin), velero: cluster.Namespace(t), app: cluster.Namespace(t),
		snapshots: filepath.Join(dir, "snapshots"), store: filepath.Join(dir, "store"), volumes: filepath.Join(dir, "volumes"),
	}
	for _, d := range []string{s.snapshots, s.store, s.volumes} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s *site) newMover(node string) *mover {
	return &mover{Client: s.api, node: node, snapshots: s.snapshots, store: s.store, volumes: s.volumes}
}

// start runs a mover until the test ends or calls stop.
func (s *site) start(node string) (stop func()) {
	s.t.Helper()
	mgr, err := s.newMover(node).newManager(cluster.ConfigFor(controlplane.Admin), ctrl.Options{
		Cache:      cache.Options{DefaultNamespaces: map[string]cache.Config{s.velero: {}}},
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: ptr.To(true)},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return controlplane.StartManager(s.t, mgr)
}

// upload returns a DataUpload as Velero makes it.
func (s *site) upload(snapshot, datamover string) *velerov2.DataUpload {
	return &velerov2.DataUpload{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.velero, GenerateName: "b1-", Finalizers: []string{"test.example/theirs"},
			Labels:          map[string]string{"velero.io/backup-name": "b1", "velero.io/async-operation-id": "du-e2a5e7c3"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "velero.io/v1", Kind: "Backup", Name: "b1", UID: "e2a5e7c3", Controller: ptr.To(true)}},
		},
		Spec: velerov2.DataUploadSpec{
			SnapshotType: velerov2.SnapshotCSI, CSISnapshot: &velerov2.CSISnapshotSpec{VolumeSnapshot: snapshot, StorageClass: "plain", SnapshotClass: "plain", Driver: "plain.example.com"},
			SourcePVC: "data", SourceNamespace: s.app, DataMover: datamover, BackupStorageLocation: "default", OperationTimeout: velerov1.Duration{Duration: 10 * time.Minute},
		},
	}
}

// download returns a DataDownload as Velero makes it.
func (s *site) download(claim *corev1.PersistentVolumeClaim, snapshotID, datamover string) *velerov2.DataDownload {
	return &velerov2.DataDownload{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.velero, GenerateName: "r1-", Labels: map[string]string{"velero.io/restore-name": "r1"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "velero.io/v1", Kind: "Restore", Name: "r1", UID: "ea096a45", Controller: ptr.To(true)}},
		},
		Spec: velerov2.DataDownloadSpec{
			TargetVolume: velerov2.TargetVolumeSpec{Namespace: claim.Namespace, PVC: claim.Name}, SnapshotID: snapshotID, SnapshotSize: 10,
			SourceNamespace: s.app, DataMover: datamover, BackupStorageLocation: "default", OperationTimeout: velerov1.Duration{Duration: 10 * time.Minute},
			DataMoverConfig: map[string]string{"WriteSparseFiles": "false"},
		},
	}
}

// impatient gives an upload a second for each wait.
func (s *site) impatient(du *velerov2.DataUpload) *velerov2.DataUpload {
	du.Spec.OperationTimeout = velerov1.Duration{Duration: time.Second}
	return du
}

// snapshot makes a snapshot with files, by a class with Retain, and returns its name. The name ".." is that of the handle alone.
func (s *site) snapshot(name string, ready bool, mode ...corev1.PersistentVolumeMode) string {
	s.t.Helper()
	handle := name
	if name == ".." {
		name = "dots"
	} else {
		writeFiles(s.t, filepath.Join(s.snapshots, name))
	}
	vs := &snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: s.app, Name: name}}
	vs.Spec.Source.PersistentVolumeClaimName = ptr.To("data")
	if err := s.api.Create(s.t.Context(), vs); apierrors.IsAlreadyExists(err) {
		s.t.Fatalf("snapshot %s is there", name)
	} else if err != nil {
		s.t.Fatal(err)
	}
	content := &snapshotv1.VolumeSnapshotContent{ObjectMeta: metav1.ObjectMeta{Name: "snapcontent-" + string(vs.UID)}}
	content.Spec = snapshotv1.VolumeSnapshotContentSpec{
		DeletionPolicy: snapshotv1.VolumeSnapshotContentRetain, Driver: "plain.example.com",
		Source:            snapshotv1.VolumeSnapshotContentSource{VolumeHandle: ptr.To("pvc-1")},
		VolumeSnapshotRef: corev1.ObjectReference{Kind: "VolumeSnapshot", Namespace: vs.Namespace, Name: vs.Name, UID: vs.UID},
	}
	if len(mode) > 0 {
		content.Spec.SourceVolumeMode = &mode[0]
	}
	s.create(content)
	content.Status = &snapshotv1.VolumeSnapshotContentStatus{SnapshotHandle: &handle, ReadyToUse: &ready}
	vs.Status = &snapshotv1.VolumeSnapshotStatus{BoundVolumeSnapshotContentName: &content.Name, ReadyToUse: &ready}
	for _, o := range []client.Object{content, vs} {
		if err := s.api.Status().Update(s.t.Context(), o); err != nil {
			s.t.Fatal(err)
		}
	}
	return name
}

// snapshotIsGone fails the test unless the snapshot was deleted in a way that also deletes what the storage has.
func (s *site) snapshotIsGone(name string) {
	s.t.Helper()
	vs := &snapshotv1.VolumeSnapshot{}
	if err := s.api.Get(s.t.Context(), types.NamespacedName{Namespace: s.app, Name: name}, vs); !apierrors.IsNotFound(err) {
		s.t.Errorf("VolumeSnapshot %s: %v", name, err)
	}
	if policy := s.contentOf(name).Spec.DeletionPolicy; policy != snapshotv1.VolumeSnapshotContentDelete {
		s.t.Errorf("the content of %s has the policy %s", name, policy)
	}
}

func (s *site) snapshotIsThere(name string) {
	s.t.Helper()
	vs := &snapshotv1.VolumeSnapshot{}
	if err := s.api.Get(s.t.Context(), types.NamespacedName{Namespace: s.app, Name: name}, vs); err != nil {
		s.t.Error(err)
	}
	if policy := s.contentOf(name).Spec.DeletionPolicy; policy != snapshotv1.VolumeSnapshotContentRetain {
		s.t.Errorf("the content of %s has the policy %s", name, policy)
	}
}

func (s *site) contentOf(snapshot string) *snapshotv1.VolumeSnapshotContent {
	s.t.Helper()
	var list snapshotv1.VolumeSnapshotContentList
	if err := s.api.List(s.t.Context(), &list); err != nil {
		s.t.Fatal(err)
	}
	for i := range list.Items {
		if ref := list.Items[i].Spec.VolumeSnapshotRef; ref.Namespace == s.app && ref.Name == snapshot {
			return &list.Items[i]
		}
	}
	s.t.Fatalf("no content of %s", snapshot)
	return nil
}

// claim makes a claim that waits for a restored volume, as Velero leaves it.
func (s *site) claim(name string) *corev1.PersistentVolumeClaim {
	s.t.Helper()
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: s.app, Name: name}}
	c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("64Mi")}
	c.Spec.StorageClassName = ptr.To("plain")
	c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{restoredVolume: s.app + "." + name + ".lbv55"}}
	s.create(c)
	return c
}

// volumeFor waits for the volume that a DataDownload makes.
func (s *site) volumeFor(dd *velerov2.DataDownload) *corev1.PersistentVolume {
	s.t.Helper()
	volume := &corev1.PersistentVolume{}
	controlplane.Eventually(s.t, func() error {
		return s.api.Get(s.t.Context(), types.NamespacedName{Name: moverName + "-" + string(dd.UID)}, volume)
	})
	return volume
}

// bind does what Kubernetes does with a volume that was made for a claim.
func (s *site) bind(volume *corev1.PersistentVolume) {
	s.t.Helper()
	controlplane.Update(s.t, s.api, volume, true, func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeBound })
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: s.app, Name: volume.Spec.ClaimRef.Name}}
	controlplane.Update(s.t, s.api, claim, false, func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = volume.Name })
}

// hold makes the copy of a snapshot wait for release.
func (s *site) hold(snapshot string) {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.snapshots, snapshot+".hold"), nil, 0o644); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) release(snapshot string) {
	s.t.Helper()
	if err := os.Remove(filepath.Join(s.snapshots, snapshot+".hold")); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) create(o client.Object) {
	s.t.Helper()
	if err := s.api.Create(s.t.Context(), o); err != nil {
		s.t.Fatalf("create a %T: %v", o, err)
	}
}

func (s *site) delete(o client.Object) {
	s.t.Helper()
	if err := s.api.Delete(s.t.Context(), o); err != nil {
		s.t.Fatalf("delete %T %s: %v", o, o.GetName(), err)
	}
}

func (s *site) read(o client.Object) {
	s.t.Helper()
	if err := s.api.Get(s.t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
		s.t.Fatal(err)
	}
}

// untyped reads an object with all fields that the API server has.
func (s *site) untyped(o client.Object) *unstructured.Unstructured {
	s.t.Helper()
	kind, err := apiutil.GVKForObject(o, cluster.Scheme)
	if err != nil {
		s.t.Fatal(err)
	}
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(kind)
	u.SetNamespace(o.GetNamespace())
	u.SetName(o.GetName())
	s.read(u)
	return u
}

func status(o client.Object) (velerov2.Phase, string) {
	if dd, ok := o.(*velerov2.DataDownload); ok {
		return dd.Status.Phase, dd.Status.Message
	}
	du := o.(*velerov2.DataUpload)
	return du.Status.Phase, du.Status.Message
}

// reaches waits until an object has a phase, and fails the test if it ends in another one.
func (s *site) reaches(o client.Object, want velerov2.Phase) {
	s.t.Helper()
	controlplane.Eventually(s.t, func() error {
		s.read(o)
		phase, message := status(o)
		if phase == want {
			return nil
		}
		err := fmt.Errorf("%T %s is %s (%s), want %s", o, o.GetName(), phase, message, want)
		if phase.Ended() {
			s.t.Fatal(err)
		}
		return err
	})
}

// goesAway waits until an object is gone.
func (s *site) goesAway(o client.Object) {
	s.t.Helper()
	controlplane.Eventually(s.t, func() error {
		err := s.api.Get(s.t.Context(), client.ObjectKeyFromObject(o), o)
		if apierrors.IsNotFound(err) {
			return nil
		}
		// Kubernetes takes this finalizer from a volume that no claim has.
		if o.GetDeletionTimestamp() != nil && err == nil && len(o.GetFinalizers()) == 1 && o.GetFinalizers()[0] == "kubernetes.io/pv-protection" {
			o.SetFinalizers(nil)
			err = s.api.Update(s.t.Context(), o)
		}
		return fmt.Errorf("%T %s is there: %w", o, o.GetName(), err)
	})
}

// writeFiles makes a volume of 10 bytes in two files, with links.
func writeFiles(t *testing.T, dir string) {
	t.Helper()
	for _, err := range []error{
		os.MkdirAll(filepath.Join(dir, "sub", "empty"), 0o750),
		os.WriteFile(filepath.Join(dir, "sub", "one"), []byte("1234"), 0o600),
		os.WriteFile(filepath.Join(dir, "two"), []byte("123456"), 0o640),
		os.Symlink("/etc/hostname", filepath.Join(dir, "link")),
	} {
		if err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
	}
}

// listing describes the files below a directory.
func listing(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		content := ""
		switch entry.Type() {
		case 0:
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			content = string(b)
		case fs.ModeSymlink:
			if content, err = os.Readlink(path); err != nil {
				return err
			}
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		files[name] = fmt.Sprint(info.Mode(), " ", info.ModTime().UnixNano(), " ", content)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 5 {
		t.Fatalf("only %v", files)
	}
	return files
}
