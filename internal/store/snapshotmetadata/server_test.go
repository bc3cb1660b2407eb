package snapshotmetadata

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/external-snapshot-metadata/pkg/api"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotfake "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/fake"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubernetesfake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/csichanges"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/diskset"
	"github.com/varvebackup/varve/internal/store/names"
	"github.com/varvebackup/varve/internal/store/peer"
	"github.com/varvebackup/varve/test/authority"
	"github.com/varvebackup/varve/test/wait"
)

const (
	namespace = "varve"
	mib       = 1 << 20
	goodToken = "good"
)

// snapshots is a disk with snapshots, which knows what changed between them.
type snapshots struct {
	disk.Disk
	objects []disk.Object
	changed map[[2]disk.Name][]extent.Extent
}

func (s *snapshots) List(context.Context) ([]disk.Object, error) { return s.objects, nil }

func (s *snapshots) Changed(_ context.Context, name, since disk.Name) iter.Seq2[extent.Extent, error] {
	return func(yield func(extent.Extent, error) bool) {
		found, ok := s.changed[[2]disk.Name{name, since}]
		if !ok {
			yield(extent.Extent{}, errclass.Errorf(errclass.NotFound, "%s since %s", name, since))
		}
		for _, e := range found {
			if !yield(e, nil) {
				return
			}
		}
	}
}

// newDisk returns a disk with two snapshots of one volume, and one of another.
func newDisk() *snapshots {
	s := &snapshots{}
	for volume, uids := range map[string][]disk.UID{"pvc-1": {"snapshot-1", "snapshot-2"}, "pvc-2": {"snapshot-3"}} {
		for _, uid := range uids {
			s.objects = append(s.objects, disk.Object{
				Name: names.Snapshot(volume, uid), UID: uid, Volume: disk.UID(volume), Kind: disk.KindSnapshot, Bytes: 64 * mib,
				State: disk.StateReady,
			})
		}
	}
	var many []extent.Extent // more than a message has
	for i := range int64(3 * maxRanges / 2) {
		many = append(many, extent.Extent{Offset: i * 8192, Length: 4096})
	}
	second := names.Snapshot("pvc-1", "snapshot-2")
	s.changed = map[[2]disk.Name][]extent.Extent{
		{second, ""}: many, {second, names.Snapshot("pvc-1", "snapshot-1")}: {{Offset: mib, Length: mib}},
		{second, second}: nil,
	}
	return s
}

// newFakes returns what the API server has: the VolumeSnapshot app/s of a disk's snapshot, and node2 with disk-2.
func newFakes(tb testing.TB, handle, peerIP string) Options {
	tb.Helper()
	scheme := runtime.NewScheme()
	if err := longhornv1.AddToScheme(scheme); err != nil {
		tb.Fatal(err)
	}
	core := kubernetesfake.NewClientset()
	core.PrependReactor("create", "tokenreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		review := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview).DeepCopy()
		review.Status.Authenticated = review.Spec.Token != "bad"
		review.Status.Audiences = review.Spec.Audiences
		review.Status.User.Username = review.Spec.Token
		return true, review, nil
	})
	core.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		review := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
		r := review.Spec.ResourceAttributes
		review.Status.Allowed = strings.HasPrefix(review.Spec.User, goodToken) && r.Namespace == "app" && r.Verb == "get" &&
			r.Resource == "volumesnapshots"
		return true, review, nil
	})
	return Options{
		Node: "node1", Namespace: namespace, Kubernetes: core, Logger: slog.New(slog.NewTextHandler(tb.Output(), nil)),
		Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(
			&longhornv1.Node{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "node2"},
				Status:     longhornv1.NodeStatus{DiskStatus: map[string]*longhornv1.DiskStatus{"d": {DiskUUID: "disk-2"}}},
			},
			&longhornv1.InstanceManager{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "node2"},
				Status:     longhornv1.InstanceManagerStatus{IP: peerIP},
			},
		).Build(),
		Snapshots: snapshotfake.NewSimpleClientset(
			&snapshotv1.VolumeSnapshot{
				ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "s", UID: "uid"},
				Status:     &snapshotv1.VolumeSnapshotStatus{BoundVolumeSnapshotContentName: ptr.To("content")},
			},
			&snapshotv1.VolumeSnapshot{
				ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "thief", UID: "other"},
				Status:     &snapshotv1.VolumeSnapshotStatus{BoundVolumeSnapshotContentName: ptr.To("content")},
			},
			&snapshotv1.VolumeSnapshotContent{
				ObjectMeta: metav1.ObjectMeta{Name: "content"},
				Spec: snapshotv1.VolumeSnapshotContentSpec{
					Driver: names.Driver, VolumeSnapshotRef: corev1.ObjectReference{Namespace: "app", Name: "s", UID: "uid"},
				},
				Status: &snapshotv1.VolumeSnapshotContentStatus{SnapshotHandle: &handle, ReadyToUse: ptr.To(true)},
			},
		),
	}
}

// run runs until the test ends.
func run(tb testing.TB, serve func(context.Context) error) {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx) }()
	tb.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			tb.Error(err)
		}
	})
}

// newClient serves on node1, whose disk is local, with another store that has disk-2. It returns a client whose token
// is given.
func newClient(tb testing.TB, local, handle, token, peerIP string) *csichanges.Client {
	tb.Helper()
	files := authority.New(tb).ServiceFiles(tb, names.StoreHost) // and for 127.0.0.1
	other := &diskset.Set{}
	other.Put(diskset.Disk{Disk: newDisk(), Name: "d", UUID: "disk-2"})
	run(tb, func(ctx context.Context) error {
		return peer.Run(ctx, peer.Options{
			IP: peerIP, TLSDir: files, Disks: other, Clock: clock.RealClock{}, Logger: slog.New(slog.DiscardHandler),
			Register: func(r grpc.ServiceRegistrar) {
				csispec.RegisterSnapshotMetadataServer(r, &Local{Disks: other})
			},
		})
	})
	awaitListener(tb, net.JoinHostPort(peerIP, strconv.Itoa(peer.DefaultPort)))
	o := newFakes(tb, handle, peerIP)
	disks := &diskset.Set{}
	disks.Put(diskset.Disk{Disk: newDisk(), Name: "d", UUID: disk.UID(local)})
	o.TLSDir, o.Local = files, &Local{Disks: disks}
	var config net.ListenConfig
	listener, err := config.Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	run(tb, func(ctx context.Context) error { return serve(ctx, o, listener) })
	ca, err := os.ReadFile(filepath.Join(files, "ca.crt"))
	if err != nil {
		tb.Fatal(err)
	}
	c, err := csichanges.NewClient(&csichanges.Service{Address: listener.Addr().String(), CA: ca, Audience: names.Driver},
		func(context.Context, string) (string, error) { return token, nil }, csichanges.Limits{Attempts: 1})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = c.Close() })
	return c
}

// awaitListener waits until a server takes connections.
func awaitListener(tb testing.TB, address string) {
	tb.Helper()
	wait.Succeeds(tb, time.Minute, "a listener at "+address, func() error {
		var d net.Dialer
		c, err := d.DialContext(tb.Context(), "tcp", address)
		if err != nil {
			return err
		}
		return c.Close()
	})
}

// Varve's own client gets the same answers of the store that has the disk and of any other one.
func TestServer_answersForTheDisksOfAllStores(t *testing.T) {
	t.Parallel()
	for i, on := range []string{"disk-1", "disk-2"} {
		t.Run(on, func(t *testing.T) {
			t.Parallel()
			c := newClient(t, "disk-1", on+"/snapshot-2", goodToken, fmt.Sprintf("127.%d.%d.1", 90+i, os.Getpid()%250))
			s := csichanges.Snapshot{Namespace: "app", Name: "s", Bytes: 64 * mib}
			all, err := c.Allocated(t.Context(), s)
			if err != nil || all.Len() != 3*maxRanges/2 || !all.Contains(extent.Extent{Offset: 8192, Length: 4096}) {
				t.Errorf("allocated: %d ranges, %v", all.Len(), err)
			}
			changed, err := c.Changed(t.Context(), on+"/snapshot-1", s)
			want := []extent.Extent{{Offset: mib, Length: mib}}
			if got := slices.Collect(changed.All()); err != nil || !slices.Equal(got, want) {
				t.Errorf("changed: %v, %v", changed, err)
			}
			changed, err = c.Changed(t.Context(), on+"/snapshot-2", s)
			if err != nil || changed.Len() != 0 {
				t.Errorf("changed since itself: %v, %v", changed, err)
			}
			for base, class := range map[string]error{
				on + "/snapshot-3":       errclass.Invalid, // of another volume
				on + "/snapshot-9":       errclass.NotFound,
				"disk-9/snapshot-1":      errclass.NotFound,
				"anything":               errclass.NotFound,
				on + "/pvc-1/snapshot-1": errclass.NotFound,
			} {
				if _, err := c.Changed(t.Context(), base, s); !errors.Is(err, class) {
					t.Errorf("changed since %s: %v, want %v", base, err, class)
				}
			}
		})
	}
}

// A client that may not get the VolumeSnapshot learns nothing.
func TestServer_refusesStrangers(t *testing.T) {
	t.Parallel()
	for i, x := range []struct {
		token string
		asked csichanges.Snapshot
		class error
	}{
		{"bad", csichanges.Snapshot{Namespace: "app", Name: "s"}, errclass.Denied},
		{"somebody", csichanges.Snapshot{Namespace: "app", Name: "s"}, errclass.Denied},
		{goodToken, csichanges.Snapshot{Namespace: "other", Name: "s"}, errclass.Denied},
		{goodToken, csichanges.Snapshot{Namespace: "app", Name: "missing"}, errclass.NotFound},
		{goodToken, csichanges.Snapshot{Namespace: "app", Name: "thief"}, errclass.Invalid},
		{goodToken, csichanges.Snapshot{Namespace: "app"}, errclass.Invalid},
	} {
		t.Run(fmt.Sprint(x.token, " ", x.asked.Namespace, " ", x.asked.Name), func(t *testing.T) {
			t.Parallel()
			c := newClient(t, "disk-1", "disk-1/snapshot-2", x.token, fmt.Sprintf("127.%d.%d.2", 90+i, os.Getpid()%250))
			x.asked.Bytes = 64 * mib
			if got, err := c.Allocated(t.Context(), x.asked); !errors.Is(err, x.class) || got.Len() != 0 {
				t.Errorf("%v, %v, want %v", got, err, x.class)
			}
		})
	}
}

// newLongAnswer returns a disk with a snapshot of which an answer has more messages than gRPC keeps for a client.
func newLongAnswer() *snapshots {
	d := newDisk()
	var many []extent.Extent
	for i := range int64(1 << 20) {
		many = append(many, extent.Extent{Offset: i * 8192, Length: 4096})
	}
	for i := range d.objects {
		d.objects[i].Bytes = 1 << 40
	}
	d.changed[[2]disk.Name{names.Snapshot("pvc-1", "snapshot-2"), ""}] = many
	return d
}

// Clients that read nothing keep nobody from an answer: each user has some of the places, and each answer its time.
func TestServer_survivesClientsThatDoNotRead(t *testing.T) {
	t.Parallel()
	files := authority.New(t).ServiceFiles(t, names.StoreHost)
	o := newFakes(t, "disk-1/snapshot-2", "127.0.0.1")
	o.TLSDir, o.Local, o.AnswerTime = files, &Local{Disks: &diskset.Set{}}, 2*time.Second
	o.Local.Disks.Put(diskset.Disk{Disk: newLongAnswer(), Name: "d", UUID: "disk-1"})
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	run(t, func(ctx context.Context) error { return serve(ctx, o, listener) })
	roots := x509.NewCertPool()
	ca, err := os.ReadFile(filepath.Join(files, "ca.crt"))
	if err != nil || !roots.AppendCertsFromPEM(ca) {
		t.Fatal(err)
	}
	// ask returns an answer of which the first message was read.
	ask := func(user string) (grpc.ServerStreamingClient[api.GetMetadataAllocatedResponse], error) {
		connection, err := grpc.NewClient(listener.Addr().String(),
			grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13})))
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { _ = connection.Close() })
		stream, err := api.NewSnapshotMetadataClient(connection).GetMetadataAllocated(t.Context(),
			&api.GetMetadataAllocatedRequest{SecurityToken: user, Namespace: "app", SnapshotName: "s"})
		if err == nil {
			_, err = stream.Recv()
		}
		return stream, err
	}
	var stalled []grpc.ServerStreamingClient[api.GetMetadataAllocatedResponse]
	for i := range maxAnswersOfUser {
		stream, err := ask(goodToken)
		if err != nil {
			t.Fatalf("question %d: %v", i, err)
		}
		stalled = append(stalled, stream)
	}
	_, err = ask(goodToken)
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), goodToken) {
		t.Errorf("one question too many: %v", err)
	}
	if _, err := ask(goodToken + "-2"); err != nil {
		t.Errorf("a question of another user: %v", err)
	}
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for later := 0; later < maxAnswersOfUser; { // each of them has a place that one of the others had
		if _, err := ask(goodToken); err == nil {
			later++
			continue
		}
		select {
		case <-again.C:
		case <-t.Context().Done():
			t.Fatalf("%d questions were answered after the first ones: %v", later, t.Context().Err())
		}
	}
	for _, stream := range stalled { // what the connections have can be read, and then the answer ends
		for err = nil; err == nil; {
			_, err = stream.Recv()
		}
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "2s") {
			t.Errorf("an answer that was not read in time: %v", err)
		}
	}
}

// A stream that broke off goes on where it was.
func TestLocal_continuesAtAnOffset(t *testing.T) {
	t.Parallel()
	disks := &diskset.Set{}
	disks.Put(diskset.Disk{Disk: newDisk(), Name: "d", UUID: "disk-1"})
	l := &Local{Disks: disks}
	var found []extent.Extent
	messages := 0
	ask := func(start int64, most int32) error {
		found, messages = nil, 0
		q := query{target: "disk-1/snapshot-2", start: start, most: most}
		return l.answer(t.Context(), q, func(_ int64, ranges []*csispec.BlockMetadata) error {
			messages++
			for _, r := range ranges {
				found = append(found, extent.Extent{Offset: r.GetByteOffset(), Length: r.GetSizeBytes()})
			}
			return nil
		})
	}
	if err := ask(8192+1024, 1000); err != nil || found[0] != (extent.Extent{Offset: 8192 + 1024, Length: 3072}) ||
		len(found) != 3*maxRanges/2-1 || messages != 4 {
		t.Errorf("%v, %d messages with %d ranges, the first %v", err, messages, len(found), found[0])
	}
	if err := ask(64*mib, 0); err != nil || messages != 1 || len(found) != 0 {
		t.Errorf("at the end: %v, %d messages with %v", err, messages, found)
	}
	if err := ask(64*mib+1, 0); !errors.Is(err, errOffset) {
		t.Errorf("behind the end: %v", err)
	}
}
