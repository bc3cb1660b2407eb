//go:build controlplane

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/diskset"
	"github.com/varvebackup/varve/internal/store/names"
	"github.com/varvebackup/varve/internal/store/peer"
	"github.com/varvebackup/varve/test/authority"
	"github.com/varvebackup/varve/test/controlplane"
)

var apiServer *controlplane.Cluster

func TestMain(m *testing.M) { controlplane.Main(m, &apiServer) }

// The store's account may record events on images, as the recorder of its manager does.
func TestEvents_mayBeRecorded(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"account", "role"} {
		if err := apiServer.Apply(t.Context(), "deploy/store/"+file+".yaml"); err != nil {
			t.Fatal(err)
		}
	}
	store := controlplane.ServiceAccount(controlplane.SystemNamespace, "varve-store").Restrict()
	c, err := kubernetes.NewForConfig(apiServer.ConfigFor(store))
	if err != nil {
		t.Fatal(err)
	}
	event := &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: controlplane.SystemNamespace, GenerateName: "debian-"},
		EventTime:  metav1.NowMicro(), ReportingController: "varve-store", ReportingInstance: "varve-store-1",
		Action: "Repair", Reason: reasonCopyRepaired, Type: corev1.EventTypeNormal,
		Regarding: corev1.ObjectReference{
			APIVersion: longhornv1.GroupVersion.String(), Kind: "BackingImage", Namespace: controlplane.SystemNamespace,
			Name: "debian",
		},
	}
	event, err = c.EventsV1().Events(event.Namespace).Create(t.Context(), event, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	again := []byte(`{"series":{"count":2,"lastObservedTime":"2026-11-30T12:00:00.000000Z"}}`)
	_, err = c.EventsV1().Events(event.Namespace).Patch(t.Context(), event.Name, types.MergePatchType, again,
		metav1.PatchOptions{})
	if err != nil {
		t.Error(err)
	}
}

// Run makes its objects, says why a disk cannot be used, and sees at once what changes in spec.disks.
func TestRun_reportsAndWatches(t *testing.T) {
	t.Parallel()
	const ns = controlplane.SystemNamespace // admission allows no other one
	address := newAddress()
	scheme := runtime.NewScheme()
	if err := longhornv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(apiServer.ConfigFor(controlplane.Admin), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"account", "role", "admission"} {
		if err := apiServer.Apply(t.Context(), "deploy/store/"+file+".yaml"); err != nil {
			t.Fatal(err)
		}
	}
	store := controlplane.ServiceAccount(ns, "varve-store").Restrict()
	store.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {"node-1"}}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	var runErr error // valid when ended is closed
	var looks atomic.Int32
	served := make(chan bool, 1)
	stop := func() {
		cancel()
		<-ended
	}
	t.Cleanup(stop)
	go func() {
		defer close(ended)
		runErr = Run(ctx, Options{
			Node: "node-1", Namespace: ns, HostRoot: t.TempDir(), DefaultDisk: "/missing", Disks: &diskset.Set{},
			Config: apiServer.ConfigFor(store), PodIP: address, Looked: func() { looks.Add(1) },
			ServeUsers: func(ctx context.Context, noteDamage func(context.Context, peer.Copy, string)) error {
				served <- noteDamage != nil
				<-ctx.Done()
				return nil
			},
			TLSDir: authority.New(t).ServiceFiles(t, names.StoreHost), Clock: clock.RealClock{},
			Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		})
	}()
	key := client.ObjectKey{Namespace: ns, Name: "node-1"}
	var node longhornv1.Node
	wantDisk := func(name, words string) {
		t.Helper()
		controlplane.Eventually(t, func() error {
			select {
			case <-ended:
				t.Fatalf("Run has ended: %v", runErr)
			default:
			}
			if err := c.Get(ctx, key, &node); err != nil {
				return err
			}
			d := node.Status.DiskStatus[name]
			if d == nil || len(d.Conditions) != 1 || d.Conditions[0].Reason != longhornv1.ReasonDiskUnusable ||
				!strings.Contains(d.Conditions[0].Message, words) {
				return fmt.Errorf("%+v", d)
			}
			return nil
		})
	}
	wantDisk(defaultDiskName, "/missing does not exist")
	if !node.Spec.Disks[defaultDiskName].AllowScheduling || !node.Spec.AllowScheduling {
		t.Errorf("%+v", node.Spec)
	}
	controlplane.Eventually(t, func() error {
		var im longhornv1.InstanceManager
		err := c.Get(ctx, key, &im)
		if err == nil && (im.Status.CurrentState != "running" || im.Status.IP != address ||
			im.Status.HeartbeatTime == nil || im.Spec.NodeID != "node-1") {
			err = fmt.Errorf("%+v", im)
		}
		return err
	})
	controlplane.Eventually(t, func() error {
		if looks.Load() == 0 {
			return errors.New("nobody was told that the disks were looked at")
		}
		return nil
	})
	if !<-served {
		t.Error("damage that users find is not noted")
	}
	live, err := client.New(apiServer.ConfigFor(store), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	a := newAgent(Options{Node: "node-1", Namespace: ns, DefaultDisk: "/missing", Clock: clock.RealClock{}}, live, live)
	opened := &diskState{name: defaultDiskName, wanted: true, open: &openDisk{}, usage: disk.Usage{Capacity: 1000}}
	if err := a.reserveSpace(ctx, &node, []*diskState{opened}); err != nil {
		t.Fatal(err)
	}
	if err := c.Get(ctx, key, &node); err != nil {
		t.Fatal(err)
	}
	if got := node.Spec.Disks[defaultDiskName].StorageReserved; got != 100 || opened.spec.StorageReserved != 100 {
		t.Errorf("%d bytes are reserved", got)
	}
	node.Spec.Disks["second"] = longhornv1.DiskSpec{Type: longhornv1.DiskTypeFilesystem, Path: "/also-missing"}
	if err := c.Update(ctx, &node); err != nil {
		t.Fatal(err)
	}
	wantDisk("second", "/also-missing does not exist")
	stop()
	if runErr != nil {
		t.Errorf("the end that was asked for: %v", runErr)
	}
}
