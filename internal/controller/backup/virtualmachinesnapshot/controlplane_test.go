//go:build controlplane

package virtualmachinesnapshot

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	vmsnapshotv1 "github.com/varvebackup/varve/api/snapshot/v1beta1"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
)

func annotate(value string) func(*vmsnapshotv1.VirtualMachineSnapshot) {
	return func(s *vmsnapshotv1.VirtualMachineSnapshot) {
		s.Annotations = map[string]string{vmsnapshotv1.AnnotationFreezeDeadline: value}
	}
}

func failAfter(d time.Duration) func(*vmsnapshotv1.VirtualMachineSnapshot) {
	return func(s *vmsnapshotv1.VirtualMachineSnapshot) { s.Spec.FailureDeadline = &metav1.Duration{Duration: d} }
}

func withoutKinds(w *world) {
	w.claim("root", driverOne)
	w.machine("root")
	w.fails(w.snapshot(), "does not have the kinds of snapshots (snapshot.storage.k8s.io)")
}

func frozen(w *world) {
	vm, vmi := w.running()
	s := w.snapshot()
	w.asked(s, vmsnapshotv1.FreezeRequest)
	if s.Status.InstanceUID != vmi.UID || *s.Status.SourceUID != vm.UID ||
		!slices.Equal(s.Status.SnapshotVolumes.IncludedVolumes, []string{"root", "data"}) {
		w.Errorf("%+v", s.Status)
	}
	// Nothing is taken of a guest that is not frozen yet.
	controlplane.Consistently(w, time.Second, func() error {
		if n := len(w.volumeSnapshots()); n > 0 {
			return fmt.Errorf("%d VolumeSnapshots", n)
		}
		return nil
	})
	w.answers(s, vmsnapshotv1.Frozen, "")
	all := w.made(s, "root", "data")
	content := w.content(s)
	w.must(w.admin.Get(w.Context(), client.ObjectKeyFromObject(content), content))
	for i, v := range all {
		class := map[string]string{"root": "one", "data": "default"}[*v.Spec.Source.PersistentVolumeClaimName]
		if *v.Spec.VolumeSnapshotClassName != class || !metav1.IsControlledBy(v, content) ||
			v.Labels[LabelSnapshot] != string(s.UID) {
			w.Errorf("VolumeSnapshot %d: %+v", i, v)
		}
	}
	machine := &kubevirtv1.VirtualMachine{}
	w.must(json.Unmarshal(content.Spec.Source.VirtualMachine.Raw, machine))
	if machine.UID != vm.UID || len(machine.Spec.Template.Spec.Volumes) != 2 ||
		!controllerutil.ContainsFinalizer(content, ContentFinalizer) {
		w.Errorf("%+v", content)
	}
	for _, b := range content.Spec.VolumeBackups {
		if *b.VolumeSnapshotName != "vmsnapshot-"+string(s.UID)+"-volume-"+b.VolumeName ||
			b.PersistentVolumeClaim.Name != b.VolumeName {
			w.Errorf("%+v", b)
		}
	}
	// The guest stays frozen until the last one is taken.
	first := time.Now().Truncate(time.Second)
	w.takes(all[0], first.Add(time.Second))
	controlplane.Consistently(w, time.Second, func() error {
		w.must(w.admin.Get(w.Context(), client.ObjectKeyFromObject(s), s))
		if s.Status.Quiesce.Request != vmsnapshotv1.FreezeRequest {
			return errors.New("thawed before the storage had all snapshots")
		}
		return nil
	})
	w.takes(all[1], first)
	w.asked(s, vmsnapshotv1.ThawRequest)
	if !s.Status.CreationTime.Time.Equal(first.Add(time.Second)) {
		w.Errorf("taken at %s", s.Status.CreationTime)
	}
	w.answers(s, vmsnapshotv1.Thawed, "")
	w.uploads(all[0])
	controlplane.Consistently(w, time.Second, func() error {
		w.must(w.admin.Get(w.Context(), client.ObjectKeyFromObject(s), s))
		if s.IsReady() {
			return errors.New("ready before all of it can be used")
		}
		return nil
	})
	w.uploads(all[1])
	w.succeeds(s, vmsnapshotv1.Online, vmsnapshotv1.GuestAgent)
	w.must(w.admin.Get(w.Context(), client.ObjectKeyFromObject(content), content))
	if c := content.Status; c == nil || !*c.ReadyToUse || len(c.VolumeSnapshotStatus) != 2 ||
		!c.CreationTime.Equal(s.Status.CreationTime) {
		w.Errorf("%+v", content.Status)
	}
	// What the machine does later is its own business.
	w.delete(vmi)
	w.delete(vm)
	w.restart()
	w.succeeds(s, vmsnapshotv1.Online, vmsnapshotv1.GuestAgent)
}

// finish plays the storage until the snapshot of two disks can be used, and the handler's answer to the thaw.
func (w *world) finish(s *vmsnapshotv1.VirtualMachineSnapshot, thaw vmsnapshotv1.QuiesceState, message string) {
	w.Helper()
	all := w.made(s, "root", "data")
	for _, v := range all {
		w.takes(v, time.Now())
	}
	if thaw != "" {
		w.asked(s, vmsnapshotv1.ThawRequest)
		w.answers(s, thaw, message)
	}
	for _, v := range all {
		w.uploads(v)
	}
}

func withoutAgent(w *world) {
	w.running()
	s := w.snapshot()
	w.asked(s, vmsnapshotv1.FreezeRequest)
	w.answers(s, vmsnapshotv1.NotFrozen, "no guest agent is connected")
	w.finish(s, "", "")
	w.succeeds(s, vmsnapshotv1.Online, vmsnapshotv1.NoGuestAgent)
	if m := s.Status.SourceIndications[1].Message; !strings.Contains(m, "no guest agent is connected") ||
		!strings.Contains(m, "not of exactly the same moment") {
		w.Error(m)
	}
}

func thawedEarly(w *world) {
	w.running()
	s := w.snapshot(annotate("5s"))
	w.asked(s, vmsnapshotv1.FreezeRequest)
	w.answers(s, vmsnapshotv1.Frozen, "")
	w.finish(s, vmsnapshotv1.ThawedEarly, "it was frozen for 5s, which is the limit")
	w.succeeds(s, vmsnapshotv1.Online, vmsnapshotv1.QuiesceTimeout)
}

func notToBeFrozen(w *world) {
	w.running()
	s := w.snapshot(annotate("false"))
	w.finish(s, "", "")
	w.succeeds(s, vmsnapshotv1.Online, vmsnapshotv1.NoGuestAgent)
	if s.Status.Quiesce != nil {
		w.Errorf("%+v", s.Status.Quiesce)
	}
	other := gen.MachineSnapshot(gen.Meta(w.ns, "other"), annotate("soon"))
	w.create(other)
	w.fails(other, `varvebackup.io/freeze-deadline is "soon"`)
}

// A handler that does not answer delays the snapshot, and does not keep it from being made.
func handlerSilent(w *world) {
	w.stop()
	w.freezePatience = 2 * time.Second
	w.start()
	w.running()
	s := w.snapshot()
	w.asked(s, vmsnapshotv1.FreezeRequest)
	w.asked(s, vmsnapshotv1.ThawRequest) // a handler that freezes the guest after all thaws it
	w.finish(s, "", "")
	w.succeeds(s, vmsnapshotv1.Online, vmsnapshotv1.NoGuestAgent)
	if m := s.Status.SourceIndications[1].Message; !strings.Contains(m, "the handler of node node-1 did not answer") {
		w.Error(m)
	}
}

func stopped(w *world) {
	w.claim("root", driverOne)
	w.claim("data", driverDefault)
	w.machine("root", "data")
	s := w.snapshot()
	w.finish(s, "", "")
	w.succeeds(s)
}

func startsMeanwhile(w *world) {
	w.claim("root", driverOne)
	vm := w.machine("root")
	s := w.snapshot()
	all := w.made(s, "root")
	w.run(vm)
	w.takes(all[0], time.Now())
	w.fails(s, "was started before the storage had all snapshots of it")
	w.nothingLeft(s)
}

func restartsMeanwhile(w *world) {
	w.thawPatience = time.Minute // a busy machine takes its time until somebody answers
	w.restart()
	vm, vmi := w.running()
	s := w.snapshot()
	w.asked(s, vmsnapshotv1.FreezeRequest)
	w.answers(s, vmsnapshotv1.Frozen, "")
	all := w.made(s, "root", "data")
	w.takes(all[0], time.Now())
	w.delete(vmi)
	w.run(vm)
	w.fails(s, "was stopped or restarted")
	w.nothingLeft(s)
	w.asked(s, vmsnapshotv1.ThawRequest)
	w.answers(s, vmsnapshotv1.ThawedEarly, "the guest has ended")
	w.until(s, func(st *vmsnapshotv1.VirtualMachineSnapshotStatus) bool {
		return st.NodeName == "" && st.VirtualMachineSnapshotContentName == nil
	})
}

// A disk that the guest can write to is never left out. One that it only reads may be.
func storageWithout(w *world) {
	w.claim("root", driverOne)
	w.claim("local", driverNone)
	vm := w.machine("root", "local")
	s := w.snapshot()
	w.fails(s, "cannot make a snapshot of volume local (PersistentVolumeClaim local): there is no "+
		"VolumeSnapshotClass of the driver none.csi.test")
	if s.Status.VirtualMachineSnapshotContentName != nil || len(s.Finalizers) > 0 {
		w.Errorf("%+v", s)
	}
	w.delete(vm)
	w.delete(s)
	w.gone(s)
	vm = gen.VirtualMachine(gen.Meta(w.ns, "vm"), gen.Guest(gen.Disk("root", "root"),
		gen.Disk("local", "local", func(d *kubevirtv1.Disk) { d.Disk.ReadOnly = true }),
		gen.Disk("shared", "shared",
			func(d *kubevirtv1.Disk) { d.Shareable = ptr.To(true) })), gen.SetRunStrategy(kubevirtv1.RunStrategyHalted))
	w.create(vm)
	s = w.snapshot()
	w.made(s, "root")
	w.until(s, func(st *vmsnapshotv1.VirtualMachineSnapshotStatus) bool {
		return slices.Equal(st.SnapshotVolumes.IncludedVolumes, []string{"root"}) &&
			slices.Equal(st.SnapshotVolumes.ExcludedVolumes, []string{"local", "shared"})
	})
}

func severalClasses(w *world) {
	w.claim("root", driverMany)
	w.machine("root")
	s := w.snapshot()
	w.fails(s, "the driver many.csi.test has the VolumeSnapshotClasses many-a, many-b, and none is the default one")
}

func deadline(w *world) {
	w.running()
	s := w.snapshot(failAfter(5 * time.Second))
	w.asked(s, vmsnapshotv1.FreezeRequest)
	w.answers(s, vmsnapshotv1.Frozen, "")
	all := w.made(s, "root", "data")
	w.takes(all[0], time.Now())
	w.fails(s, "snapshot deadline exceeded: waited 5s for the storage to take VolumeSnapshot")
	w.nothingLeft(s)
	w.asked(s, vmsnapshotv1.ThawRequest)
}

// The storage may report an error and succeed later.
func storageError(w *world) {
	w.claim("root", driverOne)
	w.machine("root")
	s := w.snapshot()
	v := w.made(s, "root")[0]
	controlplane.Update(w.T, w.admin, v, true, func(v *snapshotv1.VolumeSnapshot) {
		v.Status = &snapshotv1.VolumeSnapshotStatus{Error: &snapshotv1.VolumeSnapshotError{Message: ptr.To("no room in the pool"), Time: ptr.To(metav1.Now())}}
	})
	w.until(s, func(st *vmsnapshotv1.VirtualMachineSnapshotStatus) bool {
		return slices.ContainsFunc(st.Conditions, func(c vmsnapshotv1.Condition) bool {
			return c.Type == vmsnapshotv1.ConditionProgressing && strings.Contains(c.Message, "(no room in the pool)")
		})
	})
	w.takes(v, time.Now())
	w.uploads(v)
	w.succeeds(s)
}

// stoppedSnapshot makes a snapshot of a stopped machine that can be used.
func (w *world) stoppedSnapshot(changes ...func(*vmsnapshotv1.VirtualMachineSnapshot)) *vmsnapshotv1.VirtualMachineSnapshot {
	w.Helper()
	w.claim("root", driverOne)
	w.claim("data", driverDefault)
	w.machine("root", "data")
	s := w.snapshot(changes...)
	w.finish(s, "", "")
	w.succeeds(s)
	return s
}

func deletion(w *world) {
	s := w.stoppedSnapshot()
	// The storage takes its time.
	v := w.volumeSnapshots()[0]
	controlplane.Update(w.T, w.admin, v, false,
		func(v *snapshotv1.VolumeSnapshot) { v.Finalizers = []string{"example.com/storage"} })
	w.delete(s)
	w.until(s, func(st *vmsnapshotv1.VirtualMachineSnapshotStatus) bool { return st.Phase == vmsnapshotv1.Deleting })
	controlplane.Consistently(w, time.Second, func() error {
		return w.admin.Get(w.Context(),
			client.ObjectKeyFromObject(s), s)
	})
	controlplane.Update(w.T, w.admin, v, false, func(v *snapshotv1.VolumeSnapshot) { v.Finalizers = nil })
	w.gone(s)
	w.nothingLeft(s)
}

func retained(w *world) {
	s := w.stoppedSnapshot(func(s *vmsnapshotv1.VirtualMachineSnapshot) {
		s.Spec.DeletionPolicy = ptr.To(vmsnapshotv1.RetainContent)
	})
	content := w.content(s)
	// The content cannot be deleted from under its snapshot.
	w.must(w.user.Get(w.Context(), client.ObjectKeyFromObject(content), content))
	w.delete(s)
	w.gone(s)
	w.made(s, "root", "data")
	w.must(w.admin.Get(w.Context(), client.ObjectKeyFromObject(content), content))
	if content.DeletionTimestamp != nil {
		w.Error("the content is being deleted")
	}
	// Now it can, and the storage's snapshots go with it.
	w.delete(content)
	w.nothingLeft(s)
}

func deletedFrozen(w *world) {
	w.running()
	s := w.snapshot(func(s *vmsnapshotv1.VirtualMachineSnapshot) {
		s.Spec.DeletionPolicy = ptr.To(vmsnapshotv1.RetainContent)
	})
	w.asked(s, vmsnapshotv1.FreezeRequest)
	w.answers(s, vmsnapshotv1.Frozen, "")
	w.made(s, "root", "data")
	w.delete(s)
	w.asked(s, vmsnapshotv1.ThawRequest)
	w.answers(s, vmsnapshotv1.Thawed, "")
	w.gone(s)
	w.nothingLeft(s) // there was no snapshot yet that could be retained
}

// A controller that starts at any line goes on.
func restarted(w *world) {
	w.running()
	s := w.snapshot()
	w.asked(s, vmsnapshotv1.FreezeRequest)
	w.stop()
	w.answers(s, vmsnapshotv1.Frozen, "")
	w.start()
	all := w.made(s, "root", "data")
	w.takes(all[0], time.Now())
	w.stop()
	w.delete(all[1]) // as if the last controller had not made it
	w.start()
	for _, v := range w.made(s, "root", "data") {
		w.takes(v, time.Now())
	}
	w.asked(s, vmsnapshotv1.ThawRequest)
	w.stop()
	w.answers(s, vmsnapshotv1.Thawed, "")
	w.start()
	w.until(s, func(st *vmsnapshotv1.VirtualMachineSnapshotStatus) bool { return st.NodeName == "" })
	w.restart()
	for _, v := range w.volumeSnapshots() {
		w.uploads(v)
	}
	w.succeeds(s, vmsnapshotv1.Online, vmsnapshotv1.GuestAgent)
}

func foreign(w *world) {
	w.running()
	s := w.snapshot()
	w.asked(s, vmsnapshotv1.FreezeRequest)
	theirs := &snapshotv1.VolumeSnapshot{ObjectMeta: gen.Meta(w.ns, "vmsnapshot-"+string(s.UID)+"-volume-data")}
	theirs.Spec.Source.PersistentVolumeClaimName = ptr.To("data")
	w.create(theirs)
	w.answers(s, vmsnapshotv1.Frozen, "")
	w.fails(s, "is in the way, and was made by somebody else")
	w.asked(s, vmsnapshotv1.ThawRequest)
	w.gone(w.content(s))
	w.must(w.admin.Get(w.Context(), client.ObjectKeyFromObject(theirs), theirs))
}

func deletedMeanwhile(w *world) {
	w.claim("root", driverOne)
	w.machine("root")
	s := w.snapshot()
	v := w.made(s, "root")[0]
	w.takes(v, time.Now())
	w.until(s, func(st *vmsnapshotv1.VirtualMachineSnapshotStatus) bool { return st.CreationTime != nil })
	w.delete(v)
	w.fails(s, "of volume root was deleted")
	w.nothingLeft(s)
}

// A controller that ends between the content and the status leaves a content from which nothing was made.
func leftover(w *world) {
	w.claim("root", driverOne)
	w.stop()
	s := w.snapshot()
	content := w.content(s)
	content.Labels, content.Finalizers = map[string]string{LabelSnapshot: string(s.UID)}, []string{ContentFinalizer}
	content.Spec.VirtualMachineSnapshotName = &s.Name
	w.create(content)
	old := content.UID
	w.machine("root")
	w.start()
	w.made(s, "root")
	now := w.content(s)
	w.must(w.admin.Get(w.Context(), client.ObjectKeyFromObject(now), now))
	if now.UID == old || len(now.Spec.VolumeBackups) != 1 {
		w.Errorf("%+v", now)
	}
}

func missing(w *world) {
	s := w.snapshot()
	w.fails(s, "virtual machine "+w.ns+"/vm does not exist")
	w.delete(s)
	w.gone(s)
	// One that is about to start is waited for.
	w.claim("root", driverOne)
	vm := gen.VirtualMachine(gen.Meta(w.ns, "vm"), gen.Guest(gen.Disk("root", "root")))
	w.create(vm)
	s = w.snapshot()
	w.until(s, func(st *vmsnapshotv1.VirtualMachineSnapshotStatus) bool {
		return condition(s, vmsnapshotv1.ConditionProgressing) == "True/Source locked and operation in progress"
	})
	w.run(vm)
	w.asked(s, vmsnapshotv1.FreezeRequest)
}
