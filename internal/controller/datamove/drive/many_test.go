//go:build controlplane

package drive

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/controller/datamove/expose"
	"github.com/varvebackup/varve/test/controlplane"
)

// 13 machines with two disks each, in four namespaces of which one has more than half, are backed up at once by two nodes with three places
// each, which are taken four times over. The exposer is the real one.
func TestManyUploads_takeTurnsAndLeaveNothing(t *testing.T) {
	t.Parallel()
	const limit, small, smallEach, bigs, waves = 3, 3, 4, 14, 2
	w := newWorld(t, "concurrency: {nodes: [{nodeSelector: {}, perNode: 0}]}")
	d := w.drive()
	w.wrap = func(c client.Client) client.Client { return driveClient{c, d} }
	w.csi = func(a expose.Access) Exposer[*velerov2.DataUpload] { return &expose.CSI{Access: a} }
	h := w.follow()
	w.node()
	w.nodeAndDriver()
	big := cluster.Namespace(t)
	tenants := []string{big}
	for range small {
		tenants = append(tenants, cluster.Namespace(t))
	}
	var all []*velerov2.DataUpload
	upload := func(tenant string, n int) {
		t.Helper()
		claim := fmt.Sprintf("machine-%d-disk-%d", n/2, n%2)
		d.claim(tenant, claim)
		source := d.source(tenant, claim)
		all = append(all, w.upload(fmt.Sprintf("b1-%02d", 99-len(all)), func(o *velerov2.DataUpload) { // names are not in the order of ages
			o.Spec.CSISnapshot, o.Spec.SourcePVC, o.Spec.SourceNamespace = source, claim, tenant
		}))
	}
	for wave := range 2 * waves { // those of the big namespace are older
		for n := range bigs / waves {
			if wave < waves {
				upload(big, wave*bigs/waves+n)
			}
		}
		for n := range small * smallEach / waves {
			if wave >= waves {
				upload(tenants[1+n%small], (wave-waves)*smallEach/waves+n/small)
			}
		}
		time.Sleep(1100 * time.Millisecond) // creation times have seconds
	}
	for _, o := range all {
		w.until(o, func(v *Object) bool { return v.Finalizer })
	}
	w.until(all[0], func(v *Object) bool { return strings.Contains(v.Message, "that may take any (concurrency in") })
	controlplane.Update(t, w.admin, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.varve, Name: "varve"}}, false, func(m *corev1.ConfigMap) {
		m.Data["config.yaml"] = w.config(fmt.Sprintf("concurrency: {perNode: %d}", limit))
	})
	for _, o := range all {
		w.untilPhase(o, velerov2.PhaseCompleted)
	}
	h.end(t, len(all))
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mostDriven != limit || h.mostPods > limit {
		t.Errorf("a node drove %d uploads and had %d pods, want %d", h.mostDriven, h.mostPods, limit)
	}
	checkTurns(t, h.taken, all, big)
	w.nothingButClaims(d, tenants, all)
}

// checkTurns checks that within each namespace the older uploads were taken first, and that the small namespaces did not wait for the big
// one: of its 14, 6 are taken before the last of the others, and without turns all would be: they are older.
func checkTurns(t *testing.T, taken []string, all []*velerov2.DataUpload, big string) {
	t.Helper()
	byName := map[string]*velerov2.DataUpload{}
	left := 0 // of the small namespaces
	for _, o := range all {
		byName[o.Name] = o
		if o.Spec.SourceNamespace != big {
			left++
		}
	}
	latest := map[string]*velerov2.DataUpload{}
	bigBefore, sequence := 0, ""
	for _, name := range taken {
		o := byName[name]
		tenant := o.Spec.SourceNamespace
		if l := latest[tenant]; l != nil && o.CreationTimestamp.Before(&l.CreationTimestamp) {
			t.Errorf("%s of %s was taken after %s, which is younger", name, tenant, l.Name)
		}
		latest[tenant] = o
		sequence += map[bool]string{true: "B", false: "s"}[tenant == big]
		if tenant != big {
			left--
		} else if left > 0 {
			bigBefore++
		}
	}
	t.Logf("%d of the big namespace were taken before the last of the small ones: %s", bigBefore, sequence)
	if bigBefore > uploadsOf(all, big)/2 {
		t.Errorf("%d of the big namespace were taken before the last of the small ones: %s", bigBefore, sequence)
	}
}

func uploadsOf(all []*velerov2.DataUpload, tenant string) int {
	n := 0
	for _, o := range all {
		if o.Spec.SourceNamespace == tenant {
			n++
		}
	}
	return n
}

// nothingButClaims checks that nothing is left but the claims of the machines, the uploads and their repositories; and of the uploads nothing
// when they are deleted.
func (w *world) nothingButClaims(d *drive, tenants []string, all []*velerov2.DataUpload) {
	w.t.Helper()
	w.nothingLeft()
	for _, list := range []client.ObjectList{
		&corev1.PodList{}, &corev1.PersistentVolumeClaimList{}, &snapshotv1.VolumeSnapshotList{}, &corev1.SecretList{},
	} {
		w.empty(list, client.InNamespace(w.varve))
	}
	for _, tenant := range tenants {
		w.empty(&snapshotv1.VolumeSnapshotList{}, client.InNamespace(tenant))
		var claims corev1.PersistentVolumeClaimList
		if err := w.admin.List(w.t.Context(), &claims, client.InNamespace(tenant)); err != nil ||
			len(claims.Items) != uploadsOf(all, tenant) {
			w.t.Errorf("%d claims in %s, %v", len(claims.Items), tenant, err)
		}
	}
	var contents snapshotv1.VolumeSnapshotContentList
	var volumes corev1.PersistentVolumeList
	if err := errors.Join(w.admin.List(w.t.Context(), &contents), w.admin.List(w.t.Context(), &volumes)); err != nil {
		w.t.Fatal(err)
	}
	for i := range contents.Items {
		if contents.Items[i].Spec.Driver == d.driver {
			w.t.Errorf("VolumeSnapshotContent %s is left", contents.Items[i].Name)
		}
	}
	for i := range volumes.Items {
		if volumes.Items[i].Spec.StorageClassName == d.driver {
			w.t.Errorf("PersistentVolume %s is left", volumes.Items[i].Name)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.snapshots) > 0 || len(d.volumes) > 0 || len(d.faults) > 0 {
		w.t.Errorf("on the storage: snapshots %v, volumes %v; faults %v", d.snapshots, d.volumes, d.faults)
	}
	for _, o := range all {
		w.delete(o)
	}
	for _, o := range all {
		w.untilGone(o)
	}
}

// empty checks that there are no objects of a kind.
func (w *world) empty(list client.ObjectList, in client.InNamespace) {
	w.t.Helper()
	if err := w.admin.List(w.t.Context(), list, in); err != nil {
		w.t.Fatal(err)
	}
	if n := meta.LenList(list); n > 0 {
		w.t.Errorf("%d are left: %+v", n, list)
	}
}
