//go:build soak

package soak

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/lab"
	"github.com/varvebackup/varve/test/wait"
)

const (
	// perNode is how many uploads a node may drive at once.
	perNode = 3
	// manyDisks is how many volumes the big namespace has; of the three small ones each has smallDisks. A machine has two.
	manyDisks, smallDisks = 22, 6
)

// TestManyMoves_takeTurns stores the disks of 20 machines in four namespaces, of which one has more than half, at
// once from snapshots on two nodes with three places each, while the controller that leads is killed again and again.
// It follows every change of the DataUploads and of their pods, and looks for what is left, on the cluster and in
// memory.
func TestManyMoves_takeTurns(t *testing.T) {
	ctx := t.Context()
	big := open(t, "varve-soak-many-big", nil)
	tenants := []*soak{big}
	for i := range 3 {
		tenants = append(tenants, open(t, fmt.Sprintf("varve-soak-many-%d", i), nil))
	}
	at, err := big.BucketLocation(ctx, "soak-many", os.Getenv("VARVE_BOX_DIR"))
	big.must(err)
	t.Cleanup(func() { big.must(at.Remove(context.WithoutCancel(ctx))) })
	for _, s := range tenants {
		// An earlier run that was killed has left its DataUploads, which go ten minutes after their location.
		t.Cleanup(func() { s.must(s.DeleteUploads(context.WithoutCancel(ctx), 12*time.Minute)) })
	}
	big.must(big.SetMover(ctx, "concurrency: {nodes: [{nodeSelector: {}, perNode: 0}]}"))
	t.Cleanup(func() { big.must(big.ResetMover(context.WithoutCancel(ctx))) })
	for i, s := range tenants {
		s.makeDisks(map[bool]int{true: manyDisks, false: smallDisks}[i == 0])
	}
	before := big.census()
	memoryBefore := big.memory()
	h, movers, run := big.followUploads(), big.followMovers(), strconv.FormatInt(time.Now().Unix(), 36)
	var all []*velerov2.DataUpload
	for _, s := range tenants { // those of the big namespace are older
		all = append(all, s.uploadSnapshots(run, at)...)
	}
	big.must(big.SetMover(ctx, fmt.Sprintf("concurrency: {perNode: %d}", perNode)))
	began := time.Now()
	stop := big.killLeaders(ctx)
	for _, u := range all {
		big.must(big.WaitUpload(ctx, u, 30*time.Minute))
	}
	took := time.Since(began)
	checkLeaderKills(t, stop, began)
	big.waitNothingLeft(before)
	memoryAfter := big.memory()
	h.check(t, all, big.Namespace)
	movers.check(t, len(all), 0)
	t.Logf("%d uploads in %s, most at once on a node %d, order %s", len(all), took.Round(time.Second), h.mostDriven, h.order(all, big.Namespace))
	for name, m := range memoryAfter {
		t.Logf("%s: resident %d MiB before and %d MiB after, peak %d MiB", name, memoryBefore[name].resident/mib, m.resident/mib, m.peak/mib)
		if m.peak > memoryLimit {
			t.Errorf("%s took %d MiB", name, m.peak/mib)
		}
	}
}

// memoryLimit is what a handler and the controller may take at most, in bytes. Their containers have 512 MiB.
const memoryLimit = 384 * mib

// diskName is the name of the claim, the snapshot and the upload of the n-th disk of a namespace.
func diskName(n int) string { return fmt.Sprintf("machine-%02d-disk-%d", n/2, n%2) }

// makeDisks makes so many disks with some data, half of the machines on each node, and a snapshot of each.
func (s *soak) makeDisks(n int) {
	s.t.Helper()
	ctx := s.t.Context()
	var nodes corev1.NodeList
	s.must(s.List(ctx, &nodes))
	if len(nodes.Items) != 2 {
		s.t.Fatalf("the box has %d nodes, and needs 2: make box-up NODES=2", len(nodes.Items))
	}
	byNode := map[string][]string{}
	for i := range n {
		node := nodes.Items[i/2%2].Name
		byNode[node] = append(byNode[node], diskName(i))
		s.must(s.Create(ctx, &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: diskName(i), Annotations: map[string]string{"volume.kubernetes.io/selected-node": node}},
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("64Mi")}},
			},
		}))
	}
	for node, claims := range byNode {
		box, err := s.Toolbox(ctx, "fill-"+node, claims...)
		s.must(err)
		_, err = box.Run(ctx, `for d in /mnt/*; do truncate -s 32M $d/disk.img; dd if=/dev/urandom of=$d/disk.img bs=1M count=6 seek=5 conv=notrunc,fsync status=none; done`)
		s.must(err)
		s.must(box.Close(ctx))
	}
	for i := range n {
		s.must(s.Create(ctx, s.NewSnapshot(diskName(i), diskName(i), "box")))
	}
	s.must(wait.For(ctx, 3*time.Minute, "the snapshots to be ready", func(ctx context.Context) (bool, string, error) {
		var list snapshotv1.VolumeSnapshotList
		err := s.List(ctx, &list, client.InNamespace(s.Namespace))
		ready := 0
		for i := range list.Items {
			if st := list.Items[i].Status; st != nil && ptr.Deref(st.ReadyToUse, false) {
				ready++
			}
		}
		return ready == n, fmt.Sprintf("%d of %d are ready", ready, n), err
	}))
}

// uploadSnapshots creates a DataUpload for each snapshot of the namespace. Their names are not in the order of their ages.
func (s *soak) uploadSnapshots(run string, at *lab.Location) []*velerov2.DataUpload {
	s.t.Helper()
	var list snapshotv1.VolumeSnapshotList
	s.must(s.List(s.t.Context(), &list, client.InNamespace(s.Namespace)))
	var all []*velerov2.DataUpload
	for i := range list.Items {
		name := list.Items[i].Name
		upload := fmt.Sprintf("%s-%s-%02d-%s", s.Namespace, run, 99-i, name)
		u, err := s.UploadSnapshot(s.t.Context(), upload, name, name, "box", at, 10*time.Minute)
		s.must(err)
		all = append(all, u)
	}
	return all
}

// uploadHistory has what a watch of the DataUploads showed.
type uploadHistory struct {
	mu         sync.Mutex
	driven     map[string]string // by the upload's name: the node
	mostDriven int
	taken      []string
}

func (s *soak) followUploads() *uploadHistory {
	s.t.Helper()
	scheme, err := lab.Scheme()
	s.must(err)
	c, err := client.NewWithWatch(s.Config, client.Options{Scheme: scheme})
	s.must(err)
	changes, err := c.Watch(context.WithoutCancel(s.t.Context()), &velerov2.DataUploadList{}, client.InNamespace(layout.Namespace))
	s.must(err)
	h := &uploadHistory{driven: map[string]string{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range changes.ResultChan() {
			if u, ok := e.Object.(*velerov2.DataUpload); ok {
				h.note(e.Type, u)
			}
		}
	}()
	s.t.Cleanup(func() { changes.Stop(); <-done })
	return h
}

func (h *uploadHistory) note(change watch.EventType, u *velerov2.DataUpload) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p := u.Status.Phase; change == watch.Deleted || p == "" || p == velerov2.PhaseNew || p.Ended() {
		delete(h.driven, u.Name)
		return
	}
	if !slices.Contains(h.taken, u.Name) {
		h.taken = append(h.taken, u.Name)
	}
	h.driven[u.Name] = u.Status.AcceptedByNode
	count := map[string]int{}
	for _, node := range h.driven {
		count[node]++
		h.mostDriven = max(h.mostDriven, count[node])
	}
}

// order tells in which order the uploads were taken: B for the big namespace, s for the small ones.
func (h *uploadHistory) order(all []*velerov2.DataUpload, big string) (order string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range h.taken {
		u := all[slices.IndexFunc(all, func(u *velerov2.DataUpload) bool { return u.Name == name })]
		order += map[bool]string{true: "B", false: "s"}[u.Spec.SourceNamespace == big]
	}
	return order
}

// check checks that no node had more than its places, that all were taken once, and that the small namespaces did not wait for the big one.
func (h *uploadHistory) check(t *testing.T, all []*velerov2.DataUpload, big string) {
	t.Helper()
	order := h.order(all, big)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mostDriven != perNode || len(h.taken) != len(all) || len(h.driven) > 0 {
		t.Errorf("a node drove %d uploads at once, want %d; %d of %d were taken; %v are driven", h.mostDriven, perNode, len(h.taken), len(all), h.driven)
	}
	if before := strings.Count(order[:strings.LastIndex(order, "s")+1], "B"); before > manyDisks*5/6 {
		t.Errorf("%d of the big namespace were taken before the last of the small ones: %s", before, order)
	}
}

// waitNothingLeft waits until a census has nothing that one before did not have.
func (s *soak) waitNothingLeft(before []string) {
	s.t.Helper()
	s.must(wait.For(s.t.Context(), 3*time.Minute, "nothing to be left", func(context.Context) (bool, string, error) {
		left := slices.DeleteFunc(s.census(), func(name string) bool { return slices.Contains(before, name) })
		return len(left) == 0, strings.Join(left, ", "), nil
	}))
}

// census returns the names of everything that a movement could leave behind. The Secrets of repositories are not its
// own: they stay as long as the repository, and its password longer. Nor are the controller's pods, and the volumes
// of the namespace that it was made for.
func (s *soak) census() (names []string) {
	s.t.Helper()
	in := client.InNamespace(layout.Namespace)
	for list, options := range map[client.ObjectList][]client.ListOption{
		&corev1.PodList{}: {in}, &corev1.PersistentVolumeClaimList{}: {in}, &snapshotv1.VolumeSnapshotList{}: {in}, &corev1.SecretList{}: {in}, &coordinationv1.LeaseList{}: {in},
		&corev1.PersistentVolumeList{}: nil, &snapshotv1.VolumeSnapshotContentList{}: nil,
	} {
		s.must(s.List(s.t.Context(), list, options...))
		s.must(meta.EachListItem(list, func(o runtime.Object) error {
			name := o.(client.Object).GetName()
			if !strings.HasPrefix(name, "repo-") && !strings.HasPrefix(name, "repository-password-") && !s.isOthers(o) {
				names = append(names, fmt.Sprintf("%T %s", o, name))
			}
			return nil
		}))
	}
	return names
}

// isOthers says that an object is none of the data mover's.
func (s *soak) isOthers(o runtime.Object) bool {
	switch o := o.(type) {
	case *corev1.Pod:
		return o.Labels["app.kubernetes.io/component"] == "controller"
	case *corev1.PersistentVolume:
		return o.Status.Phase == corev1.VolumeBound && o.Spec.ClaimRef != nil &&
			o.Spec.ClaimRef.Namespace == s.Namespace
	}
	return false
}

// memoryUse is the memory of a process in bytes.
type memoryUse struct{ resident, peak int64 }

// memory returns what the controller and the handlers take, by the names of their pods.
func (s *soak) memory() map[string]memoryUse {
	s.t.Helper()
	var pods corev1.PodList
	s.must(s.List(s.t.Context(), &pods, client.InNamespace(layout.Namespace)))
	use := map[string]memoryUse{}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if component := pod.Labels["app.kubernetes.io/component"]; component != "controller" && component != "handler" {
			continue
		}
		found, err := processes(pod.UID)
		s.must(err)
		for _, pid := range found["varve"] {
			status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
			s.must(err)
			use[pod.Name] = memoryUse{resident: field(string(status), "VmRSS:"), peak: field(string(status), "VmHWM:")}
		}
	}
	return use
}

// field returns a size of /proc/PID/status in bytes.
func field(status, name string) int64 {
	_, rest, _ := strings.Cut(status, name)
	kib, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	n, _ := strconv.ParseInt(kib, 10, 64)
	return n << 10
}
