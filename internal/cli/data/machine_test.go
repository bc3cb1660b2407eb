package data

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/resource"
	"github.com/varvebackup/varve/internal/datamove"
)

// world has the machine web in namespace app: two disks, and one that is shared.
type world struct {
	vm       *kubevirtv1.VirtualMachine
	instance *kubevirtv1.VirtualMachineInstance
	tracker  *backupv1.VirtualMachineBackupTracker
	scratch  *corev1.PersistentVolumeClaim
	others   []client.Object
}

func newWorld() *world {
	in := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "app", Name: name} }
	w := &world{
		vm: &kubevirtv1.VirtualMachine{ObjectMeta: in("web")}, instance: &kubevirtv1.VirtualMachineInstance{ObjectMeta: in("web")},
		tracker: &backupv1.VirtualMachineBackupTracker{ObjectMeta: in("t"), Spec: backupv1.VirtualMachineBackupTrackerSpec{Source: *resource.VirtualMachineReference("web")}},
		scratch: &corev1.PersistentVolumeClaim{ObjectMeta: in("scratch")},
	}
	for _, name := range []string{"root", "shared", "data"} {
		claim := corev1.PersistentVolumeClaimVolumeSource{ClaimName: name + "-claim"}
		w.instance.Spec.Volumes = append(w.instance.Spec.Volumes, kubevirtv1.Volume{Name: name, PersistentVolumeClaim: &kubevirtv1.PersistentVolumeClaimVolumeSource{PersistentVolumeClaimVolumeSource: claim}})
		w.instance.Spec.Domain.Devices.Disks = append(w.instance.Spec.Domain.Devices.Disks, kubevirtv1.Disk{Name: name, Disk: &kubevirtv1.DiskTarget{}, Shareable: ptr.To(name == "shared")})
	}
	w.instance.Status.Phase = kubevirtv1.PhaseRunning
	w.instance.Status.ChangedBlockTracking = &kubevirtv1.ChangedBlockTrackingStatus{State: kubevirtv1.ChangedBlockTrackingEnabled}
	return w
}

func (w *world) client(t *testing.T, calls interceptor.Funcs) *cluster.Client {
	t.Helper()
	scheme, err := cluster.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	objects := append([]client.Object{w.vm}, w.others...)
	if w.instance != nil {
		objects = append(objects, w.instance)
	}
	if w.tracker != nil {
		objects = append(objects, w.tracker)
	}
	if w.scratch != nil {
		objects = append(objects, w.scratch)
	}
	return &cluster.Client{Namespace: "varve", WithWatch: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(calls).Build()}
}

func newMachineRequest() *uploadRequest {
	return &uploadRequest{machine: "web", namespace: "app", tracker: "t", scratchClaim: "scratch", location: "default", timeout: time.Minute, labels: map[string]string{"tier": "1"}}
}

// Each tracked disk has an upload, and all of them are one group.
func TestMachineUploads(t *testing.T) {
	t.Parallel()
	want := func(volumes ...string) (all []*velerov2.DataUpload) {
		for _, v := range volumes {
			disk := datamove.MachineDisk{Machine: "web", Volume: v, Tracker: "t", ScratchClaim: "scratch", Group: "monday", Disks: len(volumes)}
			all = append(all, &velerov2.DataUpload{
				ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: "monday-" + v, Labels: map[string]string{"tier": "1", datamove.LabelGroup: "monday"}},
				Spec: velerov2.DataUploadSpec{
					SnapshotType: velerov2.SnapshotMachineBackup, SourceNamespace: "app", SourcePVC: v + "-claim", DataMover: datamove.Mover, BackupStorageLocation: "default",
					OperationTimeout: velerov1.Duration{Duration: time.Minute}, DataMoverConfig: disk.Config(),
				},
			})
		}
		return all
	}
	for _, c := range []struct{ asked, want []string }{
		{nil, []string{"root", "data"}},
		{[]string{"data", "root", "data"}, []string{"root", "data"}},
		{[]string{"data"}, []string{"data"}},
	} {
		r := newMachineRequest()
		r.volumes = c.asked
		got, err := r.newMachineUploads(t.Context(), newWorld().client(t, interceptor.Funcs{}), "monday")
		if err != nil {
			t.Fatalf("--volume %v: %v", c.asked, err)
		}
		if diff := cmp.Diff(want(c.want...), got); diff != "" {
			t.Errorf("--volume %v: %s", c.asked, diff)
		}
	}
}

func TestMachineUploads_refuse(t *testing.T) {
	t.Parallel()
	elsewhere := datamove.MachineDisk{Machine: "db", Volume: "root", ScratchClaim: "s", Group: "monday", Disks: 1}
	for name, c := range map[string]struct {
		change func(*world, *uploadRequest)
		want   string
	}{
		"no machine":        {func(_ *world, r *uploadRequest) { r.machine = "other" }, "get virtual machine app/other"},
		"halted":            {func(w *world, _ *uploadRequest) { w.instance = nil }, "virtual machine app/web does not run"},
		"starting":          {func(w *world, _ *uploadRequest) { w.instance.Status.Phase = kubevirtv1.PhaseScheduled }, "does not run"},
		"untracked":         {func(w *world, _ *uploadRequest) { w.instance.Status.ChangedBlockTracking = nil }, "are not tracked: it is not selected"},
		"no tracked disk":   {func(w *world, _ *uploadRequest) { w.instance.Spec.Volumes = nil }, "has no disk whose changes can be tracked"},
		"unknown volume":    {func(_ *world, r *uploadRequest) { r.volumes = []string{"root", "rot"} }, "--volume rot: virtual machine app/web has no such disk"},
		"shared volume":     {func(_ *world, r *uploadRequest) { r.volumes = []string{"shared"} }, "--volume shared"},
		"no tracker":        {func(w *world, _ *uploadRequest) { w.tracker = nil }, "get tracker app/t"},
		"another's tracker": {func(w *world, _ *uploadRequest) { w.tracker.Spec.Source.Name = "db" }, "tracker app/t is of virtual machine db, not of web"},
		"no scratch claim":  {func(w *world, _ *uploadRequest) { w.scratch = nil }, "get scratch claim app/scratch"},
		"block": {func(w *world, _ *uploadRequest) {
			w.scratch.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
		}, "scratch claim app/scratch has volumeMode Block"},
		"backup of that name": {func(w *world, _ *uploadRequest) {
			w.others = append(w.others, &backupv1.VirtualMachineBackup{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "monday"}})
		}, "backup app/monday exists"},
		"group of that name": {func(w *world, _ *uploadRequest) {
			w.others = append(w.others, &velerov2.DataUpload{
				ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: "old"},
				Spec:       velerov2.DataUploadSpec{SnapshotType: velerov2.SnapshotMachineBackup, DataMoverConfig: elsewhere.Config()},
			})
		}, "upload varve/old is of a group monday already"},
	} {
		w, r := newWorld(), newMachineRequest()
		c.change(w, r)
		if _, err := r.newMachineUploads(t.Context(), w.client(t, interceptor.Funcs{}), "monday"); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// A group is complete, or it is not there.
func TestCreateUploads_leavesNoHalfGroup(t *testing.T) {
	t.Parallel()
	full := errors.New("quota exceeded")
	c := newWorld().client(t, interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
		if o.GetName() == "monday-data" {
			return full
		}
		return c.Create(ctx, o, options...)
	}})
	all, err := newMachineRequest().newMachineUploads(t.Context(), c, "monday")
	if err != nil {
		t.Fatal(err)
	}
	err = createUploads(t.Context(), c, all)
	if !errors.Is(err, full) || !strings.Contains(err.Error(), "create upload monday-data: quota exceeded; deleted again: monday-root") {
		t.Errorf("error %v", err)
	}
	left := &velerov2.DataUploadList{}
	if err := c.List(t.Context(), left); err != nil || len(left.Items) != 0 {
		t.Errorf("%d uploads are left: %v", len(left.Items), err)
	}
}

// An upload from the endpoints of a backup has the same snapshot type, and names no machine.
func TestMovement_namesTheDisk(t *testing.T) {
	t.Parallel()
	disk := datamove.MachineDisk{Machine: "web", Volume: "root", ScratchClaim: "s", Group: "monday", Disks: 2}
	for want, config := range map[string]map[string]string{
		"app/web:root": disk.Config(),
		"app/claim":    {datamove.ConfigSource: datamove.SourceEndpoints, datamove.ConfigVolume: "root"},
	} {
		m := newMovement(&velerov2.DataUpload{Spec: velerov2.DataUploadSpec{
			SnapshotType: velerov2.SnapshotMachineBackup, SourceNamespace: "app", SourcePVC: "claim", DataMoverConfig: config,
		}})
		if got := m.source(); got != want {
			t.Errorf("%v is shown as %s, want %s", config, got, want)
		}
	}
}
