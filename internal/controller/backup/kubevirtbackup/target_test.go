package kubevirtbackup

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/layout"
)

// lossesOfClaim is what may happen to a target claim at any moment.
var lossesOfClaim = map[string]func(*world){
	"deleted":                        func(w *world) { w.claim = nil },
	"deleted, and held by a pod":     func(w *world) { w.claim.DeletionTimestamp = &metav1.Time{Time: w.now} },
	"made anew under the same name":  func(w *world) { w.claim = w.newClaim() },
	"made anew, and deleted as well": func(w *world) { w.claim = w.newClaim(); w.claim.DeletionTimestamp = &metav1.Time{Time: w.now} },
}

// The files go with the claim that they were written to. The backup fails, and the tracker keeps its base.
func TestTarget_claimThatGoesFailsTheBackup(t *testing.T) {
	t.Parallel()
	moments := map[string]func(*world, *backupv1.VirtualMachineBackup){
		"Starting": func(*world, *backupv1.VirtualMachineBackup) {},
		"Copying":  func(_ *world, b *backupv1.VirtualMachineBackup) { b.Status.Phase = backupv1.BackupCopying },
		"Copied":   func(w *world, b *backupv1.VirtualMachineBackup) { w.copied(b) },
	}
	for moment, reach := range moments {
		for loss, lose := range lossesOfClaim {
			for _, tracked := range []bool{true, false} {
				w := newWorld()
				w.track()
				b := w.create("b", tracked)
				w.starting(b)
				reach(w, b)
				lose(w)
				w.settle(b)
				if b.Status.Phase == backupv1.BackupCopyFailed {
					w.settle(b)
				}
				if s := b.Status; s.Result != backupv1.BackupUnsuccessful || s.Reason != backupv1.ReasonTargetGone || !strings.Contains(s.Message, "PersistentVolumeClaim target was") {
					t.Errorf("%s in %s (tracker %v): %s, %s, %q", loss, moment, tracked, s.Phase, s.Reason, s.Message)
				}
				if w.tracker.Status.LatestCheckpoint != nil {
					t.Errorf("%s in %s: the tracker moved", loss, moment)
				}
			}
		}
	}
}

// A tracker that has moved stays where it is. Its next backup finds another claim, and is full.
func TestTarget_claimThatGoesAfterTheTrackerMoved(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.track()
	b := w.create("b", true)
	w.starting(b)
	w.copied(b)
	if d := w.step(b); d.Step != stepMoveTracker {
		t.Fatalf("%+v", d)
	}
	w.claim = nil
	w.settle(b)
	if b.Status.Result != backupv1.BackupSucceeded {
		t.Errorf("%+v", b.Status)
	}
}

// Before the lock is taken, a replaced claim costs nothing: the volume is given back and the new claim is attached.
func TestTarget_claimReplacedWhileAttaching(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.track()
	b := w.create("b", true)
	w.settle(b)
	w.mount()
	first := b.Status.PVCUID
	if first != w.claim.UID || b.Status.PVCName != "target" {
		t.Fatalf("claim %s %q is recorded", b.Status.PVCName, first)
	}
	w.claim = w.newClaim()
	if d := w.step(b); b.Status.Phase != backupv1.BackupPending || b.Status.PVCUID != "" {
		t.Fatalf("%+v", d)
	}
	if d := w.step(b); d.Step != stepDetach {
		t.Fatalf("%+v", d)
	}
	w.mount()
	w.starting(b)
	if b.Status.PVCUID != w.claim.UID {
		t.Errorf("claim %s is recorded, want %s", b.Status.PVCUID, w.claim.UID)
	}
}

// What was attached before the backup was planned again is another attachment, perhaps of another claim, so it goes
// first. A handler that unmounted it later would end the backup that relies on it.
func TestTarget_isAttachedAnewWhenPlannedAgain(t *testing.T) {
	t.Parallel()
	for name, replace := range map[string]func(*world){
		"the claim":   func(w *world) { w.claim = w.newClaim() },
		"the tracker": func(w *world) { w.track() },
	} {
		w := newWorld()
		w.track()
		b := w.create("b", true)
		w.settle(b)
		w.mount()
		replace(w)
		w.settle(b) // the handler has not unmounted the volume yet
		if b.Status.Phase != backupv1.BackupPending || !strings.Contains(b.Status.Message, "to be detached") || w.locked() != "" {
			t.Errorf("%s was replaced: %s, %q, lock %q", name, b.Status.Phase, b.Status.Message, w.locked())
		}
		w.mount()
		w.starting(b)
		if b.Status.Phase != backupv1.BackupStarting {
			t.Errorf("%s was replaced, and the volume detached: %s, %s", name, b.Status.Phase, b.Status.Message)
		}
	}
}

// What the launcher does not prove is not recorded, so the tracker's next backup is full.
func TestTarget_notRecordedWithoutAManifest(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.track()
	b := w.create("b", true)
	w.starting(b)
	w.copied(b)
	b.Status.ManifestSHA256 = ""
	w.now = w.now.Add(time.Second)
	w.step(b)
	if c := w.tracker.Status.LatestCheckpoint; c == nil || c.Target != nil {
		t.Errorf("%+v", c)
	}
}

// A claim that belongs to a machine is refused while nothing is attached yet, and again before the lock is taken.
func TestTarget_claimOfAMachineIsRefused(t *testing.T) {
	t.Parallel()
	for name, belong := range map[string]func(*world){
		"a disk of a machine that is stopped": func(w *world) { w.users = []claimUser{{machine: "other", disk: "data"}} },
		"a disk of a machine that runs":       func(w *world) { w.users = []claimUser{{machine: "other", disk: "data", running: true}} },
		"a state claim, by its label":         func(w *world) { w.claim.Labels = map[string]string{layout.LabelState: "other"} },
		"a state claim, by its owner": func(w *world) {
			vm := &kubevirtv1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "other", UID: "other"}}
			w.claim.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(vm, kubevirtv1.GroupVersion.WithKind("VirtualMachine"))}
		},
		"a state claim, by its name":        func(w *world) { w.claim.Name = layout.StatePVC("other") },
		"a state claim, by its second name": func(w *world) { w.claim.Name = layout.SecondStatePVC("other") },
	} {
		for _, attached := range []bool{false, true} {
			w := newWorld()
			w.track()
			b := w.create("b", true)
			if attached {
				w.settle(b)
				w.mount()
			}
			belong(w)
			w.settle(b)
			w.mount()
			w.settle(b)
			if s := b.Status; s.Phase != backupv1.BackupFailed || s.Reason != backupv1.ReasonTargetInUse || !strings.Contains(s.Message, "another claim") {
				t.Errorf("%s (attached %v): %s, %s, %q", name, attached, s.Phase, s.Reason, s.Message)
			}
			if w.locked() != "" || len(w.instance.Spec.UtilityVolumes) > 0 {
				t.Errorf("%s (attached %v): the lock or the volume is left", name, attached)
			}
		}
	}
}

// While data moves, only a guest that starts on the target ends the backup.
func TestTarget_guestThatStartsOnItGoesFirst(t *testing.T) {
	t.Parallel()
	for running, want := range map[bool]string{true: backupv1.ReasonTargetInUse, false: backupv1.ReasonCopying} {
		w := newWorld()
		w.track()
		b := w.create("b", true)
		w.starting(b)
		b.Status.Phase, b.Status.Reason = backupv1.BackupCopying, backupv1.ReasonCopying
		w.users = []claimUser{{machine: "other", disk: "data", running: running}}
		w.step(b)
		if b.Status.Reason != want {
			t.Errorf("running %v: %s, %s", running, b.Status.Phase, b.Status.Reason)
		}
	}
}
