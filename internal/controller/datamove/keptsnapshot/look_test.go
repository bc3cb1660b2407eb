package keptsnapshot

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/controller/metric"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/datamove/settings"
)

// apiServer is what the controller reads and deletes. It counts what is read from it, by kind.
type apiServer struct {
	client.Client

	asked map[string]int
	// failing has errors by kind, and listing is that of lists.
	failing map[string]error
	listing error
}

func (a *apiServer) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	kind := o.GetObjectKind().GroupVersionKind().Kind
	if kind == "" {
		kind = strings.TrimPrefix(fmt.Sprintf("%T", o), "*")
	}
	a.asked[kind]++
	if err := a.failing[kind]; err != nil {
		return err
	}
	return a.Client.Get(ctx, key, o, options...)
}

func (a *apiServer) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if a.listing != nil {
		return a.listing
	}
	return a.Client.List(ctx, list, options...)
}

// storage is a cluster with kept snapshots.
type storage struct {
	*testing.T

	live    *apiServer
	cached  client.Client
	minute  int
	claims  map[string]*corev1.PersistentVolumeClaim
	counted []map[metric.KeptSnapshots]int
}

func newStorage(t *testing.T) *storage {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, velerov2.AddToScheme, snapshotv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	s := &storage{T: t, live: &apiServer{asked: map[string]int{}, failing: map[string]error{}}, claims: map[string]*corev1.PersistentVolumeClaim{}}
	s.live.Client = fake.NewClientBuilder().WithScheme(scheme).Build()
	s.cached = s.live.Client
	s.create(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: settings.ConfigMap}, Data: map[string]string{settings.Key: "storageClasses: {fast: {keepSnapshot: true}}"},
	})
	return s
}

func (s *storage) create(o client.Object) {
	s.Helper()
	if err := s.live.Create(s.Context(), o); err != nil {
		s.Fatal(err)
	}
}

func (s *storage) remove(o client.Object) {
	s.Helper()
	if err := s.live.Delete(s.Context(), o); err != nil {
		s.Fatal(err)
	}
}

// announce has a driver announce a service.
func (s *storage) announce(driver string) {
	s.Helper()
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "cbt.storage.k8s.io/v1alpha1", "kind": "SnapshotMetadataService", "spec": map[string]any{"address": "a:1", "audience": "a", "caCert": "UEVN"},
	}}
	o.SetName(driver)
	s.create(o)
}

// keep makes a completed DataUpload of a claim, later than all before, and its kept snapshot.
func (s *storage) keep(name, driver, namespace, claim string) *velerov2.DataUpload {
	s.Helper()
	s.minute++
	at := metav1.NewTime(time.Date(2026, 11, 25, 10, s.minute, 0, 0, time.UTC))
	key := namespace + "/" + claim
	if s.claims[key] == nil {
		s.claims[key] = &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: claim, UID: types.UID(key)}}
		s.create(s.claims[key])
	}
	u := &velerov2.DataUpload{
		ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: name, UID: types.UID(name)},
		Spec:       velerov2.DataUploadSpec{SnapshotType: velerov2.SnapshotCSI, SourcePVC: claim, SourceNamespace: namespace},
		Status:     velerov2.DataUploadStatus{Phase: velerov2.PhaseCompleted, CompletionTimestamp: &at},
	}
	s.create(u)
	kept := datamove.KeptSnapshot{
		Upload: client.ObjectKeyFromObject(u), UploadUID: u.UID, Claim: client.ObjectKeyFromObject(s.claims[key]), ClaimUID: s.claims[key].UID,
		StorageClass: "fast", Driver: driver, Repository: "repo",
	}
	s.create(&snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "varve", Name: name, UID: types.UID("snapshot-of-" + name), CreationTimestamp: at,
			Labels: map[string]string{datamove.LabelKeptSnapshot: kept.Key()}, Annotations: map[string]string{datamove.AnnotationKeptSnapshot: kept.Encode()},
		},
		Spec: snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{VolumeSnapshotContentName: ptr.To(name)}},
	})
	return u
}

// look has the controller look once, and returns the snapshots that are left.
func (s *storage) look() (left []string, err error) {
	s.Helper()
	clear(s.live.asked)
	r := &reconciler{Options: Options{
		Namespace: "varve", Interval: time.Minute,
		Counted: func(counts map[metric.KeptSnapshots]int) {
			s.counted = append(s.counted,
				counts)
		},
	}, cached: s.cached, live: s.live}
	_, err = r.Reconcile(s.Context(), look)
	var list snapshotv1.VolumeSnapshotList
	if err := s.live.Client.List(s.Context(), &list, client.InNamespace("varve")); err != nil {
		s.Fatal(err)
	}
	for i := range list.Items {
		left = append(left, list.Items[i].Name)
	}
	return left, err
}

// wantLeft looks, and compares what is left.
func (s *storage) wantLeft(want ...string) {
	s.Helper()
	left, err := s.look()
	if diff := cmp.Diff(want, left); diff != "" || err != nil {
		s.Errorf("%s %v", diff, err)
	}
}

// A look happens each minute: what it costs is the requests of the claims, and one of each driver.
func TestLook_costsARequestAClaimAndADriver(t *testing.T) {
	t.Parallel()
	s := newStorage(t)
	s.announce("a")
	s.announce("b")
	var names []string
	for i := range 20 {
		name := fmt.Sprintf("snap-%02d", i)
		s.keep(name, []string{"a", "b"}[i%2], "app", name)
		names = append(names, name)
	}
	s.wantLeft(names...)
	want := map[string]int{"SnapshotMetadataService": 2, "v1.PersistentVolumeClaim": 20, "v1.ConfigMap": 1}
	if diff := cmp.Diff(want, s.live.asked); diff != "" {
		t.Error(diff)
	}
}

// While nobody says whether a driver has a service, everything else still decides.
func TestLook_doesWithoutAnAnswerAboutADriver(t *testing.T) {
	t.Parallel()
	s := newStorage(t)
	s.announce("a")
	s.keep("older", "a", "app", "data")
	s.keep("newer", "a", "app", "data")
	s.remove(s.keep("deleted", "a", "app", "other"))
	s.keep("claimless", "a", "app", "gone")
	s.remove(s.claims["app/gone"])
	s.live.failing["SnapshotMetadataService"] = apierrors.NewInternalError(errors.New("conversion webhook"))
	left, err := s.look()
	if diff := cmp.Diff([]string{"newer"}, left); diff != "" {
		t.Error(diff)
	}
	if err == nil || strings.Count(err.Error(), "conversion webhook") != 1 {
		t.Errorf("%v", err)
	}
	clear(s.live.failing)
	s.wantLeft("newer")
}

// A cache may not know yet what the API server knows.
func TestLook_believesNoCacheThatAnUploadIsGone(t *testing.T) {
	t.Parallel()
	s := newStorage(t)
	s.announce("a")
	old := fake.NewClientBuilder().WithScheme(s.live.Scheme()).Build()
	u := s.keep("monday", "a", "app", "data")
	other := u.DeepCopy()
	other.ResourceVersion, other.UID = "", "before"
	if err := old.Create(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	s.cached = &staleCache{s.live.Client, old}
	s.wantLeft("monday")
	if err := old.Delete(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	s.wantLeft("monday")
	s.remove(u)
	s.wantLeft()
}

// staleCache reads what there was, and writes to what there is.
type staleCache struct {
	client.Client

	before client.Client
}

func (c *staleCache) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	return c.before.Get(ctx, key, o, options...)
}

func (c *staleCache) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	return c.before.List(ctx, list, options...)
}

// What is counted is what there was at the last look; nothing if nobody could look.
func TestLook_countsWhatThereIs(t *testing.T) {
	t.Parallel()
	s := newStorage(t)
	s.announce("a")
	s.keep("one", "a", "app", "data")
	s.keep("two", "a", "app", "other")
	s.keep("three", "a", "web", "data")
	s.keep("four", "b", "web", "data") // whose driver has no service
	forged := &snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: "forged", Labels: map[string]string{datamove.LabelKeptSnapshot: "x"}}}
	s.create(forged)
	all := map[metric.KeptSnapshots]int{
		{Namespace: "app", Driver: "a"}: 2, {Namespace: "web", Driver: "a"}: 1,
		{Namespace: "web", Driver: "b"}: 1, {}: 1,
	}
	s.wantLeft("one", "three", "two")
	s.wantLeft("one", "three", "two")
	s.live.listing = apierrors.NewInternalError(errors.New("no"))
	if _, err := s.look(); err == nil {
		t.Error("it has seen something")
	}
	s.live.listing = &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: snapshotv1.GroupName, Kind: "VolumeSnapshot"}}
	if _, err := s.look(); err != nil {
		t.Error(err)
	}
	want := []map[metric.KeptSnapshots]int{all, {
		{Namespace: "app", Driver: "a"}: 2,
		{Namespace: "web", Driver: "a"}: 1,
	}, nil, {}}
	if diff := cmp.Diff(want, s.counted); diff != "" {
		t.Error(diff)
	}
}
