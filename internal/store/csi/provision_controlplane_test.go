//go:build controlplane

package csi_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	driver "github.com/varvebackup/varve/internal/store/csi"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/diskset"
	"github.com/varvebackup/varve/internal/store/names"
	"github.com/varvebackup/varve/test/controlplane"
)

var cluster *controlplane.Cluster

func TestMain(m *testing.M) { controlplane.Main(m, &cluster) }

const (
	selectedNode = "volume.kubernetes.io/selected-node"
	readyImage   = "ubuntu-22.04"
	lateImage    = "late"
)

// newProvisioner runs a driver, as a store's service account, with a disk that has readyImage.
func newProvisioner(tb testing.TB) (client.Client, *driver.Driver, *memory) {
	tb.Helper()
	if err := cluster.InstallSnapshotKinds(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	for _, file := range []string{"account", "role", "admission"} {
		if err := cluster.Apply(tb.Context(), "deploy/store/"+file+".yaml"); err != nil {
			tb.Fatal(err)
		}
	}
	admin := cluster.Client(tb, controlplane.Admin)
	mustMake(tb, admin, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}})
	mustMake(tb, admin, &longhornv1.Node{
		ObjectMeta: metav1.ObjectMeta{Namespace: controlplane.SystemNamespace, Name: nodeName},
		Spec: longhornv1.NodeSpec{AllowScheduling: true, Disks: map[string]longhornv1.DiskSpec{
			"default-disk": {Path: "/disk", AllowScheduling: true},
		}},
	})
	for _, name := range []string{readyImage, lateImage} {
		image := &longhornv1.BackingImage{
			ObjectMeta: metav1.ObjectMeta{Namespace: controlplane.SystemNamespace, Name: name},
			Spec: longhornv1.BackingImageSpec{
				SourceType: longhornv1.SourceDownload, SourceParameters: map[string]longhornv1.ParameterValue{
					longhornv1.ParameterURL: longhornv1.ParameterValue("http://images/" + name),
				},
			},
		}
		mustMake(tb, admin, image)
		image.Status = longhornv1.BackingImageStatus{UUID: "uuid-" + name, Size: mib}
		image.Status.DiskFileStatusMap = map[string]*longhornv1.BackingImageDiskFileStatus{
			diskUUID: {State: longhornv1.StateInProgress, Progress: 42},
		}
		controller := cluster.Client(tb, controlplane.Controller)
		if err := controller.Status().Update(tb.Context(), image); err != nil {
			tb.Fatal(err)
		}
	}
	store := controlplane.ServiceAccount(controlplane.SystemNamespace, "varve-store").Restrict()
	store.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {nodeName}}
	config := cluster.ConfigFor(store)
	dir, err := os.MkdirTemp("", "varve-csi") // the path of a socket must be short
	if err != nil {
		tb.Fatal(err)
	}
	files := &memory{objects: map[disk.Name]disk.Object{names.Image(readyImage, "uuid-"+readyImage): {
		Name: names.Image(readyImage, "uuid-"+readyImage), UID: "uuid-" + readyImage, Kind: disk.KindImage, Bytes: mib, State: disk.StateReady,
	}}}
	disks := &diskset.Set{}
	disks.Put(diskset.Disk{Disk: files, Name: "default-disk", UUID: diskUUID})
	d := driver.New(driver.Options{
		Node: nodeName, Namespace: controlplane.SystemNamespace, Disks: disks, Client: cluster.Client(tb, store),
		Kubernetes: kubernetes.NewForConfigOrDie(config), Snapshots: snapshotclient.NewForConfigOrDie(config),
		KubeletDir: dir,
		Logger:     slog.New(slog.NewTextHandler(tb.Output(), nil)),
	})
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	tb.Cleanup(func() {
		cancel()
		if err := errors.Join(<-done, os.RemoveAll(filepath.Clean(dir))); err != nil {
			tb.Error(err)
		}
	})
	return admin, d, files
}

func mustMake(tb testing.TB, c client.Client, o client.Object) {
	tb.Helper()
	if err := c.Create(tb.Context(), o); err != nil {
		tb.Fatal(err)
	}
}

// makeClaim makes a claim of a StorageClass of its own with the image.
func makeClaim(tb testing.TB, c client.Client, name, image string,
	edit func(*storagev1.StorageClass),
) *corev1.PersistentVolumeClaim {
	tb.Helper()
	class := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: names.Driver,
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
		Parameters:        map[string]string{"dataEngine": "v2", "backingImage": image},
	}
	if edit != nil {
		edit(class)
	}
	mustMake(tb, c, class)
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace(tb), Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &name, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			VolumeMode: ptr.To(corev1.PersistentVolumeBlock),
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Mi")},
			},
		},
	}
	// What Kubernetes' own controllers, which do not run here, would add.
	claim.Annotations = map[string]string{"volume.kubernetes.io/storage-provisioner": names.Driver}
	if *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer {
		claim.Annotations[selectedNode] = nodeName
	}
	mustMake(tb, c, claim)
	return claim
}

// waitForEvent waits until an event of a claim has a text.
func waitForEvent(tb testing.TB, c client.Client, claim *corev1.PersistentVolumeClaim, text string) {
	tb.Helper()
	controlplane.Eventually(tb, func() error {
		events := &corev1.EventList{}
		if err := c.List(tb.Context(), events, client.InNamespace(claim.Namespace)); err != nil {
			return err
		}
		var said []string
		for _, e := range events.Items {
			if said = append(said, e.Message); strings.Contains(e.Message, text) {
				return nil
			}
		}
		return fmt.Errorf("no event has %q: %q", text, said)
	})
}

// wantNothing waits until a volume has left nothing, neither in the API nor on the disk.
func wantNothing(tb testing.TB, c client.Client, files *memory, handle string) {
	tb.Helper()
	key := client.ObjectKey{Namespace: controlplane.SystemNamespace, Name: handle}
	controlplane.Eventually(tb, func() error {
		for _, o := range []client.Object{&longhornv1.Volume{}, &longhornv1.Replica{}, &corev1.PersistentVolume{}} {
			if err := c.Get(tb.Context(), key, o); !apierrors.IsNotFound(err) {
				return fmt.Errorf("%T %s is there: %w", o, handle, err)
			}
		}
		if objects, _ := files.List(tb.Context()); slices.ContainsFunc(objects, func(o disk.Object) bool {
			return o.Name == names.Head(handle)
		}) {
			return fmt.Errorf("the head of %s is there", handle)
		}
		return nil
	})
}

// The driver makes and deletes volumes of claims with no more rights than deploy/store grants.
func TestProvisioner(t *testing.T) {
	admin, d, files := newProvisioner(t)
	t.Run("a claim of a ready image", func(t *testing.T) {
		begun := time.Now()
		claim := makeClaim(t, admin, "ready", readyImage, nil)
		pv := &corev1.PersistentVolume{}
		handle := "pvc-" + string(claim.UID)
		controlplane.Eventually(t, func() error { return admin.Get(t.Context(), client.ObjectKey{Name: handle}, pv) })
		t.Logf("the claim has its volume %s after it was made", time.Since(begun))
		want := corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
			Driver: names.Driver, VolumeHandle: handle, VolumeAttributes: map[string]string{names.ContextDisk: diskUUID},
		}}
		if diff := cmp.Diff(want, pv.Spec.PersistentVolumeSource); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		terms := pv.Spec.NodeAffinity.Required.NodeSelectorTerms
		if len(terms) != 1 ||
			terms[0].MatchExpressions[0].Key != names.TopologyNode || terms[0].MatchExpressions[0].Values[0] != nodeName {
			t.Errorf("node affinity %v", terms)
		}
		controlplane.Eventually(t, func() error {
			v := &longhornv1.Volume{}
			err := admin.Get(t.Context(), client.ObjectKey{Namespace: controlplane.SystemNamespace, Name: handle}, v)
			want := longhornv1.VolumeStatus{
				State: longhornv1.VolumeDetached, Robustness: longhornv1.RobustnessHealthy,
				KubernetesStatus: longhornv1.KubernetesStatus{PVName: handle, Namespace: claim.Namespace, PVCName: claim.Name},
			}
			if diff := cmp.Diff(want, v.Status); diff != "" {
				return fmt.Errorf("status (-want +got), %w:\n%s", err, diff)
			}
			return err
		})
		controlplane.Update(t, admin, pv, false, func(pv *corev1.PersistentVolume) {
			pv.Finalizers = slices.DeleteFunc(pv.Finalizers, func(f string) bool { return f == "kubernetes.io/pv-protection" })
			if len(pv.Finalizers) != 1 {
				t.Errorf("finalizers %v", pv.Finalizers)
			}
		})
		controlplane.Update(t, admin, pv, true, func(pv *corev1.PersistentVolume) { pv.Status.Phase = corev1.VolumeReleased })
		wantNothing(t, admin, files, handle)
	})
	t.Run("a claim that waits for its image, and is deleted", func(t *testing.T) {
		claim := makeClaim(t, admin, "late", lateImage, nil)
		waitForEvent(t, admin, claim, "the copy is in-progress (42 %)")
		handle := "pvc-" + string(claim.UID)
		replica := &longhornv1.Replica{}
		controlplane.Eventually(t, func() error {
			err := admin.Get(t.Context(), client.ObjectKey{Namespace: controlplane.SystemNamespace, Name: handle}, replica)
			if err == nil && !strings.Contains(replica.Status.Message, "42 %") {
				err = fmt.Errorf("message %q", replica.Status.Message)
			}
			return err
		})
		if replica.Spec.DiskID != diskUUID || replica.Spec.BackingImage != lateImage || replica.Spec.NodeID != nodeName {
			t.Errorf("replica %+v", replica.Spec)
		}
		controlplane.Update(t, admin, claim, false, func(c *corev1.PersistentVolumeClaim) { c.Finalizers = nil })
		if err := client.IgnoreNotFound(admin.Delete(t.Context(), claim)); err != nil {
			t.Fatal(err)
		}
		wantNothing(t, admin, files, handle)
	})
	t.Run("snapshots and clones", func(t *testing.T) { checkSnapshotter(t, admin, files) })
	t.Run("growth", func(t *testing.T) { checkResizer(t, admin, files) })
	t.Run("contents that name a snapshot", func(t *testing.T) { checkNamedContents(t, admin, files) })
	t.Run("a snapshot without a content", func(t *testing.T) { checkOrphans(t, d, files) })
	t.Run("a claim without a node", func(t *testing.T) {
		claim := makeClaim(t, admin, "immediate", readyImage, func(class *storagev1.StorageClass) {
			class.VolumeBindingMode = ptr.To(storagev1.VolumeBindingImmediate)
		})
		waitForEvent(t, admin, claim, "use a StorageClass with volumeBindingMode WaitForFirstConsumer")
	})
	t.Run("a claim that no disk of the node suits", func(t *testing.T) {
		claim := makeClaim(t, admin, "unsuitable", readyImage, func(class *storagev1.StorageClass) {
			class.Parameters["diskSelector"] = "nvme"
		})
		waitForEvent(t, admin, claim, "tags of disk default-disk lacks nvme, which diskSelector asks for")
		controlplane.Eventually(t, func() error {
			err := admin.Get(t.Context(), client.ObjectKeyFromObject(claim), claim)
			if err == nil && claim.Annotations[selectedNode] != "" {
				err = errors.New("the scheduler is not asked for another node")
			}
			return err
		})
	})
	t.Run("a parameter that is not known", func(t *testing.T) {
		claim := makeClaim(t, admin, "unknown", readyImage, func(class *storagev1.StorageClass) {
			class.Parameters["staleReplicaTimeout"] = "30"
		})
		waitForEvent(t, admin, claim, "does not know the parameter staleReplicaTimeout of the StorageClass")
	})
}
