package kubevirtbackup

import (
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
)

// TestLine_wakesWhomAChangeConcerns changes one backup of a machine in any way. The first that waits is woken, and
// whoever waits behind one that is not ahead any more.
func TestLine_wakesWhomAChangeConcerns(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var line []backupv1.VirtualMachineBackup
		for i := range rapid.IntRange(1, 8).Draw(t, "backups") {
			line = append(line, drawInLine(t, fmt.Sprintf("b-%d", i)))
		}
		for i := range line {
			if b := &line[i]; b.Status.Reason == backupv1.ReasonOtherBackup {
				// As a rule it names the one directly ahead, and after a change perhaps another one that is still ahead.
				others := slices.DeleteFunc(slices.Clone(line), func(o backupv1.VirtualMachineBackup) bool { return rapid.IntRange(0, 9).Draw(t, "not that") == 0 })
				if o := directlyAhead(b, others); o != nil {
					b.Status.WaitsBehind = o.Name
				}
			}
		}
		i := rapid.IntRange(0, len(line)-1).Draw(t, "changed")
		changed := line[i]
		if rapid.Bool().Draw(t, "vanishes") {
			line = slices.Delete(line, i, i+1)
		} else {
			next := drawInLine(t, changed.Name)
			next.CreationTimestamp = changed.CreationTimestamp
			line[i], changed = next, next
		}
		var woken []types.UID
		for _, b := range concernedByLine(&changed, line) {
			woken = append(woken, b.UID)
		}
		for i := range line {
			b := &line[i]
			behind := slices.ContainsFunc(line, func(o backupv1.VirtualMachineBackup) bool { return o.Name == b.Status.WaitsBehind && goesBefore(&o, b) })
			if b.UID == changed.UID || b.Status.WaitsBehind == "" || behind || slices.Contains(woken, b.UID) {
				continue
			}
			t.Fatalf("%s waits behind %s, which is not ahead any more, and nobody tells it: woken are %v", b.Name, b.Status.WaitsBehind, woken)
		}
		if first := firstInLine(line); first != nil && first.UID != changed.UID && !slices.Contains(woken, first.UID) {
			t.Fatalf("nobody tells the first, %s", first.Name)
		}
	})
}

// drawInLine draws a backup as a line may have it.
func drawInLine(t *rapid.T, name string) backupv1.VirtualMachineBackup {
	b := backupv1.VirtualMachineBackup{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid of " + name)}}
	b.CreationTimestamp = metav1.NewTime(epoch.Add(time.Duration(rapid.IntRange(0, 3).Draw(t, "age")) * time.Second))
	b.Status.Phase = rapid.SampledFrom([]backupv1.BackupPhase{"", backupv1.BackupPending, backupv1.BackupPending, backupv1.BackupPending, backupv1.BackupCopying, backupv1.BackupDone}).Draw(t, "phase")
	if b.Status.Phase == backupv1.BackupPending {
		b.Status.Reason = rapid.SampledFrom([]string{
			backupv1.ReasonOtherBackup, backupv1.ReasonOtherBackup, backupv1.ReasonVMNotRunning, backupv1.ReasonNodeBusy, backupv1.ReasonPVCNotFound,
		}).Draw(t, "reason")
	}
	if rapid.IntRange(0, 5).Draw(t, "deleted") == 0 {
		b.DeletionTimestamp = &metav1.Time{Time: epoch}
	}
	return b
}

// A backup that runs concerns the first that waits alone: when it ends, that one is next.
func TestLine_theEndOfOneConcernsTheNext(t *testing.T) {
	t.Parallel()
	w := newWorld()
	running := w.create("b-0", false)
	running.Status.Phase = backupv1.BackupCopying
	line := []backupv1.VirtualMachineBackup{*running}
	for i := range 5000 {
		w.now = w.now.Add(time.Second)
		b := w.create(fmt.Sprintf("b-%d", i+1), false)
		b.Status.Phase, b.Status.Reason = backupv1.BackupPending, backupv1.ReasonOtherBackup
		line = append(line, *b)
	}
	line[0].Status.Phase = backupv1.BackupDone
	if woken := concernedByLine(&line[0], line[1:]); len(woken) != 1 || woken[0].Name != "b-1" {
		t.Errorf("the end of the first wakes %d", len(woken))
	}
	if ahead := directlyAhead(&line[2500], line); ahead == nil || ahead.Name != line[2499].Name {
		t.Errorf("%s waits for %v", line[2500].Name, ahead)
	}
	if woken := concernedByMachine(slices.Clone(line[1:])); len(woken) != 1 || woken[0].Name != "b-1" {
		t.Errorf("a change of the machine wakes %d", len(woken))
	}
}

// A backup that is pulled needs a gate more than one that is pushed, and holds up none of those.
func TestLine_aGateOfItsOwnLetsOthersPass(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.configuration.Spec.Configuration.DeveloperConfiguration.FeatureGates = []string{kubevirtv1.IncrementalBackup, kubevirtv1.UtilityVolumes}
	pulled := w.createPull("a")
	w.settle(pulled)
	pushed := w.create("b", false)
	if w.settle(pushed); pulled.Status.Reason != backupv1.ReasonGateDisabled || pushed.Status.Phase != backupv1.BackupAttaching {
		t.Errorf("pulled: %s, pushed: %s: %s", pulled.Status.Reason, pushed.Status.Phase, pushed.Status.Message)
	}
}
