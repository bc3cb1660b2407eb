//go:build controlplane

package catalogue

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/location"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/internal/repositoryaccess"
	"github.com/varvebackup/varve/test/controlplane"
)

var cluster *controlplane.Cluster

func TestMain(m *testing.M) {
	storage.Register()
	controlplane.Main(m, &cluster)
}

// lister counts the looks into what stands for the buckets: directories.
type lister struct {
	*repositoryaccess.Store

	looks atomic.Int64
}

func (l *lister) List(ctx context.Context, root datamove.Access, known []string, limit int) (repositoryaccess.Catalogue, error) {
	l.looks.Add(1)
	return l.Store.List(ctx, root, known, limit)
}

// world is a cluster with Varve and locations, and buckets that other clusters write to.
type world struct {
	*testing.T
	admin client.Client
	clock *testclock.FakePassiveClock
	store *lister
	ns    string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	if err := cluster.InstallRoles(t.Context()); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	w := &world{T: t, admin: cluster.Client(t, controlplane.Admin), clock: testclock.NewFakePassiveClock(time.Now()), ns: controlplane.SystemNamespace}
	w.store = &lister{Store: repositoryaccess.NewStore(time.Now, func(a datamove.Access) repository.Location {
		return repository.Location{Directory: filepath.Join(dir, a.S3.Bucket, a.S3.Prefix)}
	})}
	mgr := cluster.Manager(t, controlplane.Controller.Restrict(), func(o *ctrl.Options) {
		o.Cache.ByObject = map[client.Object]cache.ByObject{&velerov1.BackupRepository{}: {Namespaces: map[string]cache.Config{w.ns: {}}}} // as Run has it
	})
	served := func(context.Context) ([]string, error) { return []string{w.ns, datamove.VeleroNamespace}, nil }
	if err := Setup(mgr, Options{Namespace: w.ns, Namespaces: served, Lister: w.store, Clock: w.clock}); err != nil {
		t.Fatal(err)
	}
	controlplane.StartManager(t, mgr)
	return w
}

// stored makes a repository in a bucket, as another cluster does, and returns its unique ID.
func (w *world) stored(bucket, namespace string) string {
	w.Helper()
	place := location.Place{S3: &datamove.S3Access{Bucket: bucket}}
	a := place.Access(namespace)
	a.Password = "theirs"
	id, err := w.store.Prepare(w.Context(), a, location.Lock{})
	if err != nil {
		w.Fatal(err)
	}
	return id
}

func (w *world) location(name, bucket string, phase velerov1.BackupStorageLocationPhase) *velerov1.BackupStorageLocation {
	w.Helper()
	l := &velerov1.BackupStorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}}
	l.Spec.Provider, l.Spec.Credential = "aws", &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "keys"}, Key: "cloud"}
	l.Spec.ObjectStorage, l.Spec.AccessMode = &velerov1.ObjectStorageLocation{Bucket: bucket}, velerov1.AccessReadOnly
	l.Status.Phase = phase
	if err := w.admin.Create(w.Context(), l); err != nil {
		w.Fatal(err)
	}
	return l
}

// later moves the clock, and has the controller look at a location.
func (w *world) later(d time.Duration, l *velerov1.BackupStorageLocation) {
	w.Helper()
	w.clock.SetTime(w.clock.Now().Add(d))
	controlplane.Update(w.T, w.admin, l, false, func(l *velerov1.BackupStorageLocation) {
		metav1.SetMetaDataAnnotation(&l.ObjectMeta, "test", w.clock.Now().String())
	})
}

// shows waits until the objects of a location are those of these namespaces, with these unique IDs.
func (w *world) shows(l *velerov1.BackupStorageLocation, want map[string]string) {
	w.Helper()
	controlplane.Eventually(w.T, func() error {
		var list velerov1.BackupRepositoryList
		if err := w.admin.List(w.Context(), &list, client.InNamespace(w.ns)); err != nil {
			return err
		}
		var lines []string
		for _, r := range list.Items {
			if r.Spec.BackupStorageLocation != l.Name {
				continue
			}
			if id := want[r.Spec.VolumeNamespace]; id == "" || id != r.Annotations[datamove.AnnotationUniqueID] || r.Spec.RepositoryConfig[datamove.ConfigLocationNamespace] != l.Namespace ||
				r.Name != datamove.RepositoryName(r.Spec.VolumeNamespace, client.ObjectKeyFromObject(l)) {
				return fmt.Errorf("%s with %s", r.Name, r.Annotations)
			}
			lines = append(lines, r.Spec.VolumeNamespace)
		}
		if len(lines) != len(want) {
			slices.Sort(lines)
			return fmt.Errorf("objects of %s, want %v", strings.Join(lines, " "), want)
		}
		return nil
	})
}

func TestControlPlane(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	keys := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "keys"}, StringData: map[string]string{"cloud": "[default]\naws_access_key_id=A\naws_secret_access_key=s3cr3tTESTONLY"},
	}
	if err := w.admin.Create(t.Context(), keys); err != nil {
		t.Fatal(err)
	}
	shop, bank := w.stored("b1", "shop"), w.stored("b1", "bank")

	// A location that nobody has found available is not looked at.
	l := w.location("default", "b1", "")
	other := w.location("other", "b2", velerov1.LocationUnavailable)
	w.shows(l, nil)
	controlplane.Update(t, w.admin, l, false, func(l *velerov1.BackupStorageLocation) { l.Status.Phase = velerov1.LocationAvailable })
	w.shows(l, map[string]string{"shop": shop, "bank": bank})

	// What another cluster stores later comes with the next look, and what is known is neither made again nor changed.
	late := w.stored("b1", "late")
	looks := w.store.looks.Load()
	w.later(time.Second, l)
	w.later(defaultPeriod, l)
	w.shows(l, map[string]string{"shop": shop, "bank": bank, "late": late})
	if n := w.store.looks.Load() - looks; n > 2 {
		t.Errorf("%d looks for one period", n)
	}

	// The same namespace in another location is another repository.
	elsewhere := w.stored("b2", "shop")
	controlplane.Update(t, w.admin, other, false, func(l *velerov1.BackupStorageLocation) { l.Status.Phase = velerov1.LocationAvailable })
	w.shows(other, map[string]string{"shop": elsewhere})
	w.shows(l, map[string]string{"shop": shop, "bank": bank, "late": late})

	// An object that was deleted comes back for what is there, and one that stands for something else stays as it is.
	repo := &velerov1.BackupRepository{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: datamove.RepositoryName("shop", client.ObjectKeyFromObject(other))}}
	if err := w.admin.Delete(t.Context(), repo); err != nil {
		t.Fatal(err)
	}
	w.later(defaultPeriod, other)
	w.shows(other, map[string]string{"shop": elsewhere})

	// A period of 0 turns it off.
	controlplane.Update(t, w.admin, other, false, func(l *velerov1.BackupStorageLocation) { l.Spec.BackupSyncPeriod = &velerov1.Duration{} })
	w.stored("b2", "never")
	looks = w.store.looks.Load()
	w.later(2*defaultPeriod, other)
	w.later(defaultPeriod, l) // the controller has looked at both when this one's look has come
	controlplane.Eventually(t, func() error {
		if w.store.looks.Load() == looks {
			return fmt.Errorf("nobody looks")
		}
		return nil
	})
	w.shows(other, map[string]string{"shop": elsewhere})
}

// A look that ends when its location was deleted, or leads elsewhere, makes nothing.
func TestRecord_believesTheLocationAsItIsNow(t *testing.T) {
	t.Parallel()
	if err := cluster.InstallRoles(t.Context()); err != nil {
		t.Fatal(err)
	}
	admin, ns := cluster.Client(t, controlplane.Admin), cluster.Namespace(t)
	mgr := cluster.Manager(t, controlplane.Admin)
	r := NewRecorder(mgr, ns)
	r.Client, r.Live = admin, admin
	found := repositoryaccess.Catalogue{Found: []repositoryaccess.Found{{Namespace: "shop", UniqueID: "aa"}}}
	for name, change := range map[string]func(*velerov1.BackupStorageLocation){
		"elsewhere": func(l *velerov1.BackupStorageLocation) {
			controlplane.Update(t, admin, l, false, func(l *velerov1.BackupStorageLocation) { l.Spec.ObjectStorage.Bucket = "b2" })
		},
		"deleted": func(l *velerov1.BackupStorageLocation) {
			if err := admin.Delete(t.Context(), l); err != nil {
				t.Fatal(err)
			}
		},
		"same": func(*velerov1.BackupStorageLocation) {},
	} {
		l := &velerov1.BackupStorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
		l.Spec.Provider, l.Spec.ObjectStorage = "aws", &velerov1.ObjectStorageLocation{Bucket: "b1"}
		if err := admin.Create(t.Context(), l); err != nil {
			t.Fatal(err)
		}
		seen := l.DeepCopy()
		change(l)
		if err := r.Record(t.Context(), seen, found); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		known, err := r.Known(t.Context(), client.ObjectKeyFromObject(seen))
		if err != nil || (len(known) == 1) != (name == "same") {
			t.Errorf("%s: %v %v", name, known, err)
		}
	}
}
