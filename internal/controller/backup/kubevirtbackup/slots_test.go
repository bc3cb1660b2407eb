package kubevirtbackup

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/test/gen"
)

// The next place goes to the namespace that has the fewest. Many old backups of one namespace keep nobody else waiting.
func TestPlaces_namespacesTakeTurns(t *testing.T) {
	t.Parallel()
	at := 0
	waits := func(namespace, name string) *backupv1.VirtualMachineBackup {
		at++
		return &backupv1.VirtualMachineBackup{ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: types.UID(namespace + name), CreationTimestamp: metav1.NewTime(epoch.Add(time.Duration(at) * time.Second)),
		}}
	}
	loud1, loud2, loud3 := waits("loud", "1"), waits("loud", "2"), waits("loud", "3")
	quiet, late := waits("quiet", "1"), waits("late", "1")
	all := []*backupv1.VirtualMachineBackup{loud1, loud2, loud3, quiet, late}
	for _, test := range []struct {
		b       *backupv1.VirtualMachineBackup
		copying []types.NamespacedName
		want    []types.NamespacedName
	}{
		{quiet, places("loud/0"), nil},
		{late, places("loud/0"), places("quiet/1")},
		{loud1, places("loud/0"), places("quiet/1", "late/1")},
		{loud2, places("loud/0"), places("loud/1", "quiet/1", "late/1")},
		{loud1, nil, nil},
		{quiet, nil, places("loud/1")},
		{quiet, places("quiet/0"), places("loud/1", "loud/2", "late/1")},
		{loud3, places("quiet/0", "late/0"), places("loud/1", "loud/2", "quiet/1", "late/1")},
	} {
		var others []*backupv1.VirtualMachineBackup
		for _, o := range all {
			if o != test.b {
				others = append(others, o)
			}
		}
		if diff := cmp.Diff(test.want, aheadForPlace(test.b, others, test.copying)); diff != "" {
			t.Errorf("before %s/%s, with %v: %s", test.b.Namespace, test.b.Name, test.copying, diff)
		}
	}
}

// Four first backups of large machines take all places of a node for days. Nothing is wrong with what waits behind
// them, so it does not fail after a day, whether or not the controller is restarted meanwhile. What it waited does not
// count against it afterwards.
func TestPlaces_waitingForOneIsNoFailure(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.track()
	b := w.create("nightly", true)
	full := nodeLoad{Copying: places("other/a", "other/b", "ns/c", "other/d")}
	w.load = full
	w.settle(b)
	if b.Status.Reason != backupv1.ReasonNodeBusy || !strings.Contains(b.Status.Message, "of this namespace c,") || strings.Contains(b.Status.Message, "other") && !strings.Contains(b.Status.Message, "0 others") {
		t.Fatalf("%s: %s", b.Status.Reason, b.Status.Message)
	}
	for range 3 {
		w.now = w.now.Add(24 * time.Hour)
		w.watchdog = newWatchdog()
		if w.settle(b); b.Status.Phase != backupv1.BackupPending || b.Status.Reason != backupv1.ReasonNodeBusy {
			t.Fatalf("%s, %s: %s", b.Status.Phase, b.Status.Reason, b.Status.Message)
		}
	}
	// There is a place, and the machine stops before it is taken: a day for others to put that right, less what went
	// before.
	w.load = nodeLoad{}
	guest := w.instance
	w.instance = nil
	if w.settle(b); b.Status.Reason != backupv1.ReasonVMNotRunning || b.Status.PlaceWait == nil || b.Status.PlaceWait.Since != nil || b.Status.PlaceWait.Seconds != 72*3600 {
		t.Fatalf("%s, place wait %+v", b.Status.Reason, b.Status.PlaceWait)
	}
	w.now = w.now.Add(23 * time.Hour)
	if w.settle(b); b.Status.Phase != backupv1.BackupPending {
		t.Fatalf("%s: %s", b.Status.Phase, b.Status.Message)
	}
	// A second wait for a place has a limit of its own, and the failure says who had the places.
	w.instance, w.load = guest, full
	if w.settle(b); b.Status.Reason != backupv1.ReasonNodeBusy || b.Status.PhaseDeadline == nil || b.Status.PhaseDeadline.Sub(w.now).Round(time.Minute) != 7*24*time.Hour {
		t.Fatalf("%s, until %v", b.Status.Reason, b.Status.PhaseDeadline)
	}
	w.now = w.now.Add(7 * 24 * time.Hour)
	if w.settle(b); b.Status.Phase != backupv1.BackupFailed || b.Status.Reason != backupv1.ReasonDeadlineExceeded || !strings.Contains(b.Status.Message, "Gave up after 168h0m0s; the last state was: Waiting for a place on node node") {
		t.Errorf("%s, %s: %s", b.Status.Phase, b.Status.Reason, b.Status.Message)
	}
}

// newPlaceWait returns a world with a backup that waits for a place on its node.
func newPlaceWait() (*world, *backupv1.VirtualMachineBackup) {
	w := newWorld()
	w.track()
	b := w.create("nightly", true)
	w.load = nodeLoad{Copying: places("ns/1", "ns/2", "ns/3", "ns/4")}
	w.settle(b)
	return w, b
}

// What a wait for a place took is known after the backup has had a place and lost it again.
func TestPlaces_theWaitIsKeptWhileAttaching(t *testing.T) {
	t.Parallel()
	w, b := newPlaceWait()
	w.now = w.now.Add(30 * time.Hour)
	w.load = nodeLoad{}
	if w.settle(b); b.Status.Phase != backupv1.BackupAttaching {
		t.Fatalf("%s: %s", b.Status.Phase, b.Status.Message)
	}
	w.claim = nil
	if w.settle(b); b.Status.Phase != backupv1.BackupPending || b.Status.Reason != backupv1.ReasonPVCNotFound {
		t.Fatalf("%s, %s: %s", b.Status.Phase, b.Status.Reason, b.Status.Message)
	}
	if left := b.Status.PhaseDeadline.Sub(w.now); left.Round(time.Minute) != 24*time.Hour {
		t.Errorf("%s are left", left)
	}
}

// A volume that the machine's template has, and its running guest does not, is named by its backups.
func TestNotAttached(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.vm = gen.VirtualMachine(metav1.ObjectMeta{Namespace: "ns", Name: "vm", UID: "vm-1"}, gen.Guest(gen.Disk("root", "root"), gen.Disk("added", "added")))
	b := w.create("b", false)
	w.starting(b)
	if len(b.Status.ExcludedVolumes) != 1 || b.Status.ExcludedVolumes[0].Name != "added" || b.Status.ExcludedVolumes[0].Reason != backupv1.ExcludedNotAttached {
		t.Fatalf("%+v", b.Status.ExcludedVolumes)
	}
	w.copied(b)
	w.settle(b)
	b.Status.Phase = backupv1.BackupPruned
	w.instance.Spec.UtilityVolumes = nil
	w.mount()
	if w.settle(b); !strings.Contains(b.Status.Message, "Not in the backup: added (RestartRequired)") {
		t.Errorf("%s: %s", b.Status.Phase, b.Status.Message)
	}
}

// A refusal after a wait for a place comes to an end. What the wait took is known, and does not grow any more.
func TestPlaces_refusalAfterTheWaitEnds(t *testing.T) {
	t.Parallel()
	w, b := newPlaceWait()
	w.now = w.now.Add(time.Hour)
	w.load = nodeLoad{}
	w.refuse(b, "the webhook does not answer")
	if b.Status.Reason != backupv1.ReasonRequestRefused || b.Status.PlaceWait == nil || b.Status.PlaceWait.Since != nil || b.Status.NodeName != "" {
		t.Fatalf("%s, node %q, place wait %+v", b.Status.Reason, b.Status.NodeName, b.Status.PlaceWait)
	}
	until := b.Status.PhaseDeadline.Time
	w.now = w.now.Add(24 * time.Hour)
	w.refuse(b, "the webhook does not answer")
	w.settle(b)
	if b.Status.Phase != backupv1.BackupFailed || !strings.Contains(b.Status.Message, "the webhook does not answer") || w.now.Before(until) {
		t.Errorf("%s until %s: %s", b.Status.Phase, until, b.Status.Message)
	}
}

// What has ended waits for nothing.
func TestPlaces_theWaitEndsWithTheBackup(t *testing.T) {
	t.Parallel()
	w := newWorld()
	b := w.create("nightly", false)
	w.load = nodeLoad{Copying: places("ns/1", "ns/2", "ns/3", "ns/4")}
	w.settle(b)
	w.now = w.now.Add(time.Hour)
	b.DeletionTimestamp = &metav1.Time{Time: w.now}
	if w.settle(b); b.Status.Phase != backupv1.BackupFailed || b.Status.PlaceWait == nil || b.Status.PlaceWait.Since != nil || b.Status.PlaceWait.Seconds != 3600 {
		t.Errorf("%s, place wait %+v", b.Status.Phase, b.Status.PlaceWait)
	}
}
