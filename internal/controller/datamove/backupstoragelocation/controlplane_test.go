//go:build controlplane

package backupstoragelocation

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/controller/datamove/storagepod/storagepodtest"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/location"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/internal/repositoryaccess"
	"github.com/varvebackup/varve/test/controlplane"
)

var cluster *controlplane.Cluster

// cached restricts the cache as Run does.
func cached(o *ctrl.Options) {
	o.Cache.ByObject = map[client.Object]cache.ByObject{&velerov1.BackupRepository{}: {Namespaces: map[string]cache.Config{controlplane.SystemNamespace: {}}}}
}

func TestMain(m *testing.M) {
	storage.Register()
	controlplane.Main(m, &cluster)
}

// trier counts how often it is asked to write, and fails on demand. It stands for a bucket.
type trier struct {
	mu      sync.Mutex
	failure error
	tries   int
	writes  int
}

func (f *trier) Try(_ context.Context, root datamove.Access, write bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tries++
	if write {
		f.writes++
	}
	if f.failure != nil {
		return fmt.Errorf("%w: %s", f.failure, root.S3.SecretKey)
	}
	return nil
}

func (f *trier) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failure = err
}

// A location of Varve's namespace is tried, with the controller's own rights, and one of another namespace keeps the status that Velero gave it.
func TestControlPlane(t *testing.T) {
	t.Parallel()
	if err := cluster.InstallRoles(t.Context()); err != nil {
		t.Fatal(err)
	}
	admin := cluster.Client(t, controlplane.Admin)
	const secretKey = "s3cr3tTESTONLY"
	add := func(namespace string) *velerov1.BackupStorageLocation {
		t.Helper()
		l := &velerov1.BackupStorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}}
		l.Spec.Provider, l.Spec.Credential = "aws", &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "keys"}, Key: "cloud"}
		l.Spec.ObjectStorage = &velerov1.ObjectStorageLocation{Bucket: "b"}
		if err := admin.Create(t.Context(), l); err != nil {
			t.Fatal(err)
		}
		return l
	}
	ours, theirs := add(controlplane.SystemNamespace), add(cluster.Namespace(t))
	clock, store := testclock.NewFakePassiveClock(time.Now()), &trier{}
	mgr := cluster.Manager(t, controlplane.Controller.Restrict(), cached)
	if err := Setup(mgr, Options{Namespace: controlplane.SystemNamespace, Trier: store, Clock: clock}); err != nil {
		t.Fatal(err)
	}
	controlplane.StartManager(t, mgr)
	becomes := func(phase velerov1.BackupStorageLocationPhase, says string) {
		t.Helper()
		controlplane.Eventually(t, func() error {
			if err := admin.Get(t.Context(), client.ObjectKeyFromObject(ours), ours); err != nil {
				return err
			}
			if ours.Status.Phase != phase || !strings.Contains(ours.Status.Message, says) || strings.Contains(ours.Status.Message, secretKey) {
				return fmt.Errorf("%s %q, want %s %q", ours.Status.Phase, ours.Status.Message, phase, says)
			}
			return nil
		})
	}
	later := func(d time.Duration) {
		t.Helper()
		clock.SetTime(clock.Now().Add(d))
		controlplane.Update(t, admin, ours, false, func(l *velerov1.BackupStorageLocation) {
			metav1.SetMetaDataAnnotation(&l.ObjectMeta, "test", clock.Now().String())
		})
	}
	becomes(velerov1.LocationUnavailable, "spec.credential: there is no Secret varve/keys")
	// Who asks is answered at once, though the answer is the same, and only once.
	for _, asked := range []string{"1", "2"} {
		before := ours.Status.LastValidationTime.DeepCopy()
		controlplane.Update(t, admin, ours, false, func(l *velerov1.BackupStorageLocation) {
			metav1.SetMetaDataAnnotation(&l.ObjectMeta, location.AnnotationCheck, asked)
		})
		controlplane.Eventually(t, func() error {
			if err := admin.Get(t.Context(), client.ObjectKeyFromObject(ours), ours); err != nil {
				return err
			}
			if !before.Before(ours.Status.LastValidationTime) {
				return errors.New("nobody answers")
			}
			return nil
		})
	}
	keys := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: controlplane.SystemNamespace, Name: "keys"},
		StringData: map[string]string{"cloud": "[default]\naws_access_key_id=AKIDTESTONLY\naws_secret_access_key=" + secretKey},
	}
	if err := admin.Create(t.Context(), keys); err != nil {
		t.Fatal(err)
	}
	later(defaultFrequency)
	becomes(velerov1.LocationAvailable, "")
	store.fail(repository.ErrUnreachable)
	later(defaultFrequency)
	becomes(velerov1.LocationUnavailable, "does not answer")
	before := ours.Status.LastValidationTime
	store.fail(nil)
	later(defaultFrequency)
	becomes(velerov1.LocationAvailable, "")
	if !before.Before(ours.Status.LastValidationTime) {
		t.Errorf("lastValidationTime %s, before %s", ours.Status.LastValidationTime, before)
	}
	store.fail(errors.New("broken"))
	later(defaultFrequency)
	becomes(velerov1.LocationUnavailable, "broken")
	if err := admin.Get(t.Context(), client.ObjectKeyFromObject(theirs), theirs); err != nil || theirs.Status.LastValidationTime != nil || theirs.Status.Message != "" {
		t.Errorf("Velero's location got a status: %+v %v", theirs.Status, err)
	}
}

// A claim is tried by a pod, with the controller's own rights.
func TestControlPlane_claim(t *testing.T) { //nolint:paralleltest // TestControlPlane's controller would try the claim, too
	if err := cluster.InstallRoles(t.Context()); err != nil {
		t.Fatal(err)
	}
	admin, dir, clock := cluster.Client(t, controlplane.Admin), t.TempDir(), testclock.NewFakePassiveClock(time.Now())
	storagepodtest.Start(t, admin, controlplane.SystemNamespace, dir)
	l := &velerov1.BackupStorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: controlplane.SystemNamespace, Name: "shelf"}}
	l.Spec.Provider, l.Spec.ObjectStorage = location.ProviderClaim, &velerov1.ObjectStorageLocation{Bucket: "shelf", Prefix: "deep/down"}
	if err := admin.Create(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	mgr := cluster.Manager(t, controlplane.Controller.Restrict(), cached)
	if err := Setup(mgr, Options{Namespace: controlplane.SystemNamespace, Image: datamove.PodImage{Name: "varve:test"}, Clock: clock}); err != nil {
		t.Fatal(err)
	}
	controlplane.StartManager(t, mgr)
	becomes := func(phase velerov1.BackupStorageLocationPhase, says string) {
		t.Helper()
		controlplane.Eventually(t, func() error {
			if err := admin.Get(t.Context(), client.ObjectKeyFromObject(l), l); err != nil {
				return err
			}
			if l.Status.Phase != phase || !strings.Contains(l.Status.Message, says) {
				return fmt.Errorf("%s %q, want %s %q", l.Status.Phase, l.Status.Message, phase, says)
			}
			return nil
		})
	}
	later := func(d time.Duration) {
		t.Helper()
		clock.SetTime(clock.Now().Add(d))
		controlplane.Update(t, admin, l, false, func(l *velerov1.BackupStorageLocation) {
			metav1.SetMetaDataAnnotation(&l.ObjectMeta, "test", clock.Now().String())
		})
	}
	becomes(velerov1.LocationUnavailable, "spec.objectStorage.bucket: there is no claim varve/shelf")
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: controlplane.SystemNamespace, Name: "shelf"}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
	}}
	if err := admin.Create(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	later(defaultFrequency)
	becomes(velerov1.LocationAvailable, "only one node can use it at a time")
	root := filepath.Join(dir, "deep", "down", "plugins", "varve")
	if err := os.RemoveAll(root); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(root, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	later(directoryFrequency)
	becomes(velerov1.LocationUnavailable, "claim shelf/deep/down: ")
	if err := os.Remove(root); err != nil {
		t.Fatal(err)
	}
	later(directoryFrequency)
	becomes(velerov1.LocationAvailable, "only one node")

	// The pod that tries the claim finds what other clusters have stored there, in several looks if that is much.
	want := map[string]string{}
	for i := range 23 {
		place, name := location.Place{Volume: &corev1.VolumeSource{}, Prefix: "deep/down"}, fmt.Sprintf("shop-%02d", i)
		a := place.Access(name)
		a.Directory, a.Password = filepath.Join(dir, strings.TrimPrefix(a.Directory, datamove.StorageDirectory)), "theirs"
		id, err := repositoryaccess.NewStore(time.Now, nil).Prepare(t.Context(), a, location.Lock{})
		if err != nil {
			t.Fatal(err)
		}
		want[name] = id
	}
	later(directoryFrequency)
	for _, n := range []int{20, 23} {
		var list velerov1.BackupRepositoryList
		controlplane.Eventually(t, func() error {
			if err := admin.List(t.Context(), &list, client.InNamespace(controlplane.SystemNamespace)); err != nil {
				return err
			}
			if len(list.Items) != n {
				return fmt.Errorf("%d objects, want %d", len(list.Items), n)
			}
			return nil
		})
		for _, r := range list.Items {
			if id := want[r.Spec.VolumeNamespace]; id == "" || id != r.Annotations[datamove.AnnotationUniqueID] || r.Spec.BackupStorageLocation != "shelf" {
				t.Errorf("%+v", r.ObjectMeta)
			}
		}
		later(moreEvery)
	}
}
