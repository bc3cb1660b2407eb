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
)

// TestLine_wakesWhomAChangeConcerns changes one backup of a machine in any way. Whoever has another one directly ahead after
// it is woken, and nobody else is but the first: a line of thousands costs two looks.
func TestLine_wakesWhomAChangeConcerns(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var line []backupv1.VirtualMachineBackup
		for i := range rapid.IntRange(1, 8).Draw(t, "backups") {
			line = append(line, drawInLine(t, fmt.Sprintf("b-%d", i)))
		}
		ahead := func(line []backupv1.VirtualMachineBackup) map[types.UID]types.UID {
			of := map[types.UID]types.UID{}
			for i := range line {
				if o := directlyAhead(&line[i], line); o != nil && isWaiting(&line[i]) {
					of[line[i].UID] = o.UID
				}
			}
			return of
		}
		before := ahead(line)
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
		if len(woken) > 2 {
			t.Fatalf("%d are woken", len(woken))
		}
		after := ahead(line)
		for j := range line {
			b := &line[j]
			if b.UID == changed.UID || !standsInLine(b) || before[b.UID] == after[b.UID] || slices.Contains(woken, b.UID) {
				continue
			}
			t.Fatalf("%s had %q ahead, and has %q now, and nobody tells it: woken are %v", b.Name, before[b.UID], after[b.UID], woken)
		}
	})
}

// drawInLine draws a backup as a line may have it.
func drawInLine(t *rapid.T, name string) backupv1.VirtualMachineBackup {
	b := backupv1.VirtualMachineBackup{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid of " + name)}}
	b.CreationTimestamp = metav1.NewTime(epoch.Add(time.Duration(rapid.IntRange(0, 3).Draw(t, "age")) * time.Second))
	b.Status.Phase = rapid.SampledFrom([]backupv1.BackupPhase{"", backupv1.BackupPending, backupv1.BackupPending, backupv1.BackupPending, backupv1.BackupDone}).Draw(t, "phase")
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
