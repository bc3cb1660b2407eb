package virtualmachinesnapshot

import (
	"slices"
	"strings"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	vmsnapshotv1 "github.com/varvebackup/varve/api/snapshot/v1beta1"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/gen"
)

var now = time.Date(2027, 3, 1, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) *metav1.Time { return ptr.To(metav1.NewTime(now.Add(-d))) }

// planInput is a running machine with two disks, of which a snapshot was just asked for.
func planInput(t *testing.T) *input {
	t.Helper()
	guest := gen.Guest(gen.Disk("root", "root"), gen.Disk("data", "data"))
	vm := gen.VirtualMachine(gen.Meta("ns", "vm"), guest)
	vm.UID = "vm-1"
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(vm)
	if err != nil {
		t.Fatal(err)
	}
	vmi := gen.VirtualMachineInstance(gen.Meta("ns", "vm"), guest)
	vmi.UID = "vmi-1"
	vmi.Status = kubevirtv1.VirtualMachineInstanceStatus{Phase: kubevirtv1.PhaseRunning, NodeName: "node-1"}
	s := gen.MachineSnapshot(gen.Meta("ns", "s"))
	s.UID, s.CreationTimestamp = "1", *ago(time.Second)
	in := &input{
		now: now, freezePatience: 30 * time.Second, thawPatience: time.Minute, snapshot: s,
		machine: &unstructured.Unstructured{Object: object}, instance: vmi, claims: map[string]claim{},
		made: map[string]*snapshotv1.VolumeSnapshot{},
		classes: []snapshotv1.VolumeSnapshotClass{
			{ObjectMeta: metav1.ObjectMeta{Name: "class"}, Driver: "csi.test"},
		},
	}
	for _, name := range []string{"root", "data"} {
		c := gen.Claim(gen.Meta("ns", name))
		c.UID = types.UID(name + "-1")
		in.claims[name] = claim{PersistentVolumeClaim: c, bound: true, driver: "csi.test"}
	}
	return in
}

// cutInput is that snapshot after the plan.
func cutInput(t *testing.T) *input {
	t.Helper()
	in := planInput(t)
	d := decide(in)
	if d.status == nil || d.content == nil {
		t.Fatalf("no plan: %+v", d)
	}
	in.snapshot.Status, in.content, in.snapshot.Finalizers = d.status, d.content, []string{Finalizer}
	in.content.Labels = map[string]string{LabelSnapshot: "1"}
	return in
}

// madeInput is that snapshot when the guest is frozen and the VolumeSnapshots are made.
func madeInput(t *testing.T) *input {
	t.Helper()
	in := cutInput(t)
	in.snapshot.Status.Quiesce.State = vmsnapshotv1.Frozen
	missing, err := newVolumeSnapshots(in)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range missing {
		in.made[v.Name] = v
	}
	return in
}

// endInput is that snapshot when the storage has taken them and the guest is thawed.
func endInput(t *testing.T) *input {
	t.Helper()
	in := madeInput(t)
	for _, v := range in.made {
		v.Status = &snapshotv1.VolumeSnapshotStatus{CreationTime: ago(time.Second), ReadyToUse: ptr.To(true)}
	}
	in.snapshot.Status = decide(in).status
	in.snapshot.Status.Quiesce.State = vmsnapshotv1.Thawed
	return in
}

// stoppedInput is the snapshot of a machine that does not run, after the plan.
func stoppedInput(t *testing.T) *input {
	t.Helper()
	in := planInput(t)
	in.instance = nil
	if err := unstructured.SetNestedField(in.machine.Object, "Halted", "spec", "runStrategy"); err != nil {
		t.Fatal(err)
	}
	d := decide(in)
	in.snapshot.Status, in.content = d.status, d.content
	in.content.Labels = map[string]string{LabelSnapshot: "1"}
	return in
}

func (in *input) volume(name string) *snapshotv1.VolumeSnapshot {
	return in.made["vmsnapshot-1-volume-"+name]
}

func TestDecide(t *testing.T) {
	t.Parallel()
	const (
		freeze = 1 << iota
		thaw
		cut
		remove
		release
		waits // looks again
	)
	for name, c := range map[string]struct {
		in      func(*testing.T) *input
		edit    func(*input)
		phase   vmsnapshotv1.Phase
		words   string // of the error or of what is waited for
		actions int
	}{
		"a guest that runs": {planInput, func(*input) {}, "InProgress", "the freeze of the guest", freeze | waits},
		"a guest that starts": {
			planInput, func(in *input) { in.instance.Status.Phase = kubevirtv1.PhaseScheduled },
			"InProgress", "virtual machine ns/vm to run: its instance is Scheduled", waits,
		},
		"a guest that stops": {
			planInput, func(in *input) { in.instance.DeletionTimestamp = ago(0) }, "InProgress",
			"virtual machine ns/vm to have stopped", waits,
		},
		"a guest that moves": {planInput, func(in *input) {
			in.instance.Status.MigrationState = &kubevirtv1.MigrationState{MigrationUID: "m"}
		}, "InProgress", "the migration of virtual machine", waits},
		"a guest with two launcher pods": {planInput, func(in *input) {
			in.instance.Status.ActivePods = map[types.UID]string{"a": "node-1", "b": "node-2"}
		}, "InProgress", "one launcher pod", waits},
		"a guest that is about to start": {
			planInput, func(in *input) { in.instance = nil }, "InProgress",
			"its runStrategy is Always", waits,
		},
		"waited too long": {planInput, func(in *input) {
			in.instance, in.snapshot.CreationTimestamp = nil, *ago(5 * time.Minute)
		}, "Failed", "snapshot deadline exceeded: waited 5m0s for virtual machine ns/vm to run", waits},
		"no machine": {
			planInput, func(in *input) { in.machine, in.instance = nil, nil }, "Failed",
			"does not exist", waits,
		},
		"no kinds": {
			planInput, func(in *input) { in.notInstalled = true }, "Failed",
			"does not have the kinds of snapshots", waits,
		},
		"a claim is missing": {
			planInput, func(in *input) { delete(in.claims, "data") }, "InProgress",
			"PersistentVolumeClaim data of volume data", waits,
		},
		"a claim is unbound": {planInput, func(in *input) {
			in.claims["data"] = claim{PersistentVolumeClaim: in.claims["data"].PersistentVolumeClaim}
		}, "InProgress", "to be bound", waits},
		"no CSI": {planInput, func(in *input) {
			in.claims["data"] = claim{PersistentVolumeClaim: in.claims["data"].PersistentVolumeClaim, bound: true}
		}, "Failed", "volume data (PersistentVolumeClaim data): its volume has no CSI driver", waits},
		"no CSI, and left out": {planInput, func(in *input) {
			in.claims["data"] = claim{PersistentVolumeClaim: in.claims["data"].PersistentVolumeClaim, bound: true}
			in.snapshot.Annotations = map[string]string{vmsnapshotv1.AnnotationExcludeVolumes: "other, data"}
		}, "InProgress", "the freeze of the guest", freeze | waits},
		"a content of somebody else": {planInput, func(in *input) {
			in.content = &vmsnapshotv1.VirtualMachineSnapshotContent{ObjectMeta: gen.Meta("ns", "vmsnapshot-content-1")}
		}, "Failed", "is in the way", waits},

		"not frozen yet": {cutInput, func(*input) {}, "", "", waits},
		"never answered": {
			cutInput,
			func(in *input) { in.snapshot.Status.Quiesce.RequestTime = ago(30 * time.Second) }, "InProgress", "",
			thaw | waits,
		},
		"frozen": {
			cutInput,
			func(in *input) { in.snapshot.Status.Quiesce.State = vmsnapshotv1.Frozen }, "", "", cut | waits,
		},
		"cannot be frozen": {
			cutInput,
			func(in *input) { in.snapshot.Status.Quiesce.State = vmsnapshotv1.NotFrozen }, "", "", cut | waits,
		},
		"a restart": {
			cutInput, func(in *input) { in.instance.UID = "vmi-2" }, "Failed",
			"was stopped or restarted", thaw | waits,
		},
		"the guest ends": {
			cutInput, func(in *input) { in.instance.Status.Phase = kubevirtv1.PhaseSucceeded },
			"Failed", "was stopped or restarted", thaw | waits,
		},
		"another machine": {
			cutInput, func(in *input) { in.machine.SetUID("vm-2") }, "Failed",
			"was deleted before", thaw | waits,
		},
		"the content is deleted": {
			cutInput, func(in *input) { in.content = nil }, "Failed",
			"VirtualMachineSnapshotContent vmsnapshot-content-1 was deleted", thaw | waits,
		},
		"deleted while frozen": {
			cutInput, func(in *input) { in.snapshot.DeletionTimestamp = ago(0) }, "Deleting",
			"the handler of node node-1 to say that the guest is thawed", thaw | remove | waits,
		},
		"one is missing": {
			madeInput, func(in *input) { delete(in.made, "vmsnapshot-1-volume-data") }, "", "",
			cut | waits,
		},
		"one is refused for long": {madeInput, func(in *input) {
			delete(in.made, "vmsnapshot-1-volume-data")
			in.snapshot.CreationTimestamp = *ago(time.Hour)
		}, "Failed", "snapshot deadline exceeded: waited 5m0s for the API server to accept", thaw | waits},
		"not taken yet": {
			madeInput, func(*input) {}, "InProgress",
			"the storage to take VolumeSnapshot vmsnapshot-1-volume-root of volume root", waits,
		},
		"not all are taken": {endInput, func(in *input) {
			in.snapshot.Status.CreationTime,
				in.volume("data").Status = nil, nil
		}, "InProgress", "of volume data", waits},
		"one is deleted": {
			madeInput, func(in *input) { in.volume("data").DeletionTimestamp = ago(0) },
			"Failed", "of volume data was deleted", thaw | waits,
		},
		"the storage hangs": {
			madeInput, func(in *input) { in.snapshot.CreationTimestamp = *ago(time.Hour) },
			"Failed", "snapshot deadline exceeded", thaw | waits,
		},
		"a restart after the cut": {endInput, func(in *input) { in.instance.UID = "vmi-2" }, "Succeeded", "", 0},
		"ready":                   {endInput, func(*input) {}, "Succeeded", "", 0},
		"thawed, and not ready": {
			endInput, func(in *input) { in.volume("data").Status.ReadyToUse = nil },
			"InProgress", "of volume data to be ready to use", waits,
		},
		"ready, and not thawed": {
			endInput,
			func(in *input) { in.snapshot.Status.Quiesce.State = vmsnapshotv1.Frozen }, "InProgress",
			"the handler of node node-1 to say", waits,
		},
		"lost after the cut": {
			endInput, func(in *input) { delete(in.made, "vmsnapshot-1-volume-data") },
			"Failed", "of volume data was deleted", waits,
		},
		"a stopped machine": {stoppedInput, func(*input) {}, "", "", cut | waits},
		"a stopped machine starts": {
			stoppedInput,
			func(in *input) { in.instance = gen.VirtualMachineInstance(gen.Meta("ns", "vm"), gen.Guest()) }, "Failed",
			"was started before", waits,
		},
		"a stopped machine has run": {stoppedInput, func(in *input) {
			in.claims["data"].Annotations = map[string]string{layout.AnnotationRunEpoch: "another"}
		}, "Failed", "has run", waits},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := c.in(t)
			before := vmsnapshotv1.QuiesceRequest("")
			if q := in.status().Quiesce; q != nil {
				before = q.Request
			}
			c.edit(in)
			d := decide(in)
			actions := 0
			for flag, is := range map[int]bool{cut: d.cut, remove: d.remove, release: d.release, waits: d.again > 0} {
				if is {
					actions |= flag
				}
			}
			if d.status != nil && d.status.Quiesce != nil && d.status.Quiesce.Request != before {
				actions |= map[vmsnapshotv1.QuiesceRequest]int{
					vmsnapshotv1.FreezeRequest: freeze,
					vmsnapshotv1.ThawRequest:   thaw,
				}[d.status.Quiesce.Request]
			}
			if actions != c.actions {
				t.Errorf("actions %b, want %b: %+v", actions, c.actions, d)
			}
			var phase vmsnapshotv1.Phase
			if d.status != nil {
				phase = d.status.Phase
			}
			if phase != c.phase {
				t.Fatalf("phase %q, want %q", phase, c.phase)
			}
			if c.words != "" && !strings.Contains(wordsOf(d.status), c.words) {
				t.Errorf("%q does not have %q", wordsOf(d.status), c.words)
			}
		})
	}
}

// wordsOf returns the error of a snapshot, or what it waits for.
func wordsOf(s *vmsnapshotv1.VirtualMachineSnapshotStatus) string {
	if s.Error != nil {
		return *s.Error.Message
	}
	for _, c := range s.Conditions {
		if c.Type == vmsnapshotv1.ConditionProgressing {
			return c.Message
		}
	}
	return ""
}

// What the snapshot says of the guest follows from the handler's answers alone, and never says frozen without one.
func TestDecide_indications(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		state vmsnapshotv1.QuiesceState
		late  bool
		want  vmsnapshotv1.Indication // ""; it is waited for
	}{
		"thawed":                       {vmsnapshotv1.Thawed, false, vmsnapshotv1.GuestAgent},
		"thawed early":                 {vmsnapshotv1.ThawedEarly, false, vmsnapshotv1.QuiesceTimeout},
		"never frozen":                 {vmsnapshotv1.NotFrozen, false, vmsnapshotv1.NoGuestAgent},
		"frozen, and no more":          {vmsnapshotv1.Frozen, false, ""},
		"frozen, and no answer":        {vmsnapshotv1.Frozen, true, vmsnapshotv1.QuiesceTimeout},
		"nothing yet":                  {"", false, ""},
		"nothing":                      {"", true, vmsnapshotv1.NoGuestAgent},
		"a state of a version to come": {"Chilled", true, vmsnapshotv1.QuiesceTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := endInput(t)
			in.snapshot.Status.Quiesce.State = c.state
			if c.late {
				in.snapshot.Status.Quiesce.RequestTime = ago(time.Minute)
			}
			want := []vmsnapshotv1.Indication{vmsnapshotv1.Online}
			if c.want != "" {
				want = append(want, c.want)
			}
			if d := decide(in); !slices.Equal(d.status.Indications, want) ||
				(d.status.NodeName == "") != (c.want != "") {
				t.Errorf("%v, want %v: %+v", d.status.Indications, want, d.status)
			}
		})
	}
	in := planInput(t)
	in.instance.Status.Conditions = []kubevirtv1.Condition{{
		Type:   kubevirtv1.ConditionPaused,
		Status: corev1.ConditionTrue,
	}}
	if s := decide(in).status; s.Quiesce != nil || s.NodeName != "" ||
		!slices.Equal(s.Indications, []vmsnapshotv1.Indication{"Online", "Paused"}) {
		t.Errorf("a paused guest: %+v", s)
	}
}

// A snapshot that has ended is only looked at again when it is deleted.
func TestDecide_ends(t *testing.T) {
	t.Parallel()
	in := endInput(t)
	in.snapshot.Status = decide(in).status
	if d := decide(in); d != (decision{}) {
		t.Errorf("after the success: %+v", d)
	}
	in.snapshot.DeletionTimestamp = ago(0)
	if d := decide(in); !d.remove || d.release {
		t.Errorf("deleted: %+v", d)
	}
	in.snapshot.Spec.DeletionPolicy = ptr.To(vmsnapshotv1.RetainContent)
	if d := decide(in); d.remove || !d.release {
		t.Errorf("deleted, and retained: %+v", d)
	}

	in = madeInput(t)
	in.instance = nil
	in.snapshot.Status = decide(in).status
	if d := decide(in); !d.remove || d.again == 0 {
		t.Errorf("after the failure: %+v", d)
	}
	in.made, in.content = nil, nil
	in.snapshot.Status.Quiesce.State = vmsnapshotv1.ThawedEarly
	in.snapshot.Status = decide(in).status
	if d := decide(in); d != (decision{}) || in.snapshot.Status.NodeName != "" {
		t.Errorf("when nothing is left: %+v, %+v", d, in.snapshot.Status)
	}
}

func TestChooseClass(t *testing.T) {
	t.Parallel()
	class := func(name, driver, isDefault string) snapshotv1.VolumeSnapshotClass {
		return snapshotv1.VolumeSnapshotClass{
			ObjectMeta: metav1.ObjectMeta{
				Name:        name,
				Annotations: map[string]string{annotationDefaultClass: isDefault},
			}, Driver: driver,
		}
	}
	keeps := func(c snapshotv1.VolumeSnapshotClass) snapshotv1.VolumeSnapshotClass {
		c.DeletionPolicy = snapshotv1.VolumeSnapshotContentRetain
		return c
	}
	all := []snapshotv1.VolumeSnapshotClass{
		class("only", "only.test", ""), class("a", "default.test", "false"), class("b", "default.test", "true"),
		keeps(class("g", "kept.test", "true")), class("h", "kept.test", ""), keeps(class("i", "leaky.test", "")),
		class("c", "many.test", ""), class("d", "many.test", ""), class("e", "two.test", "true"),
		class("f", "two.test", "true"),
	}
	for driver, want := range map[string][2]string{
		"only.test":    {"only", ""},
		"default.test": {"b", ""},
		"many.test":    {"", "c, d, and none is the default one"},
		"two.test":     {"", "e, f are all the default one"},
		"kept.test":    {"h", ""},
		"leaky.test":   {"i", ""},
		"none.test":    {"", "no VolumeSnapshotClass of the driver none.test"},
		"":             {"", "no CSI driver"},
	} {
		name, why := chooseClass(all, driver)
		if name != want[0] || (why == "") != (want[1] == "") || !strings.Contains(why, want[1]) {
			t.Errorf("%s: %q, %q", driver, name, why)
		}
	}
}
