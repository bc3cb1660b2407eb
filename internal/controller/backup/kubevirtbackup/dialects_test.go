package kubevirtbackup

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
)

// dialects are clients as each version of the API has them. Each says what it has seen: "", ready, succeeded or failed.
var dialects = map[string]func(*backupv1.VirtualMachineBackup) string{
	"the proposal": func(b *backupv1.VirtualMachineBackup) string {
		switch c := b.Status.Conditions; {
		case meta.IsStatusConditionTrue(c, "Failed"):
			return "failed"
		case meta.IsStatusConditionTrue(c, "Done"):
			return "succeeded"
		case meta.IsStatusConditionTrue(c, "Ready"):
			return "ready"
		}
		return ""
	},
	"KubeVirt 1.8": func(b *backupv1.VirtualMachineBackup) string {
		done := meta.FindStatusCondition(b.Status.Conditions, "Done")
		switch {
		case done == nil || done.Status != metav1.ConditionTrue:
		case strings.Contains(done.Reason, "Backup has failed"):
			return "failed"
		case strings.Contains(done.Reason, "Successfully completed VirtualMachineBackup"):
			return "succeeded"
		default:
			return "what is " + done.Reason
		}
		if meta.IsStatusConditionTrue(b.Status.Conditions, "ExportReady") {
			return "ready"
		}
		return ""
	},
	"KubeVirt 1.9": func(b *backupv1.VirtualMachineBackup) string {
		switch c := b.Status.Conditions; {
		case meta.IsStatusConditionTrue(c, "Complete"):
			return "succeeded"
		case meta.IsStatusConditionTrue(c, "Failed"):
			return "failed"
		}
		if c := meta.FindStatusCondition(b.Status.Conditions, "Progressing"); c != nil && c.Status == metav1.ConditionTrue && c.Reason == "ExportReady" {
			return "ready"
		}
		return ""
	},
}

// A client of any version of the API sees that a backup can be read, that it has succeeded and that it has failed, and
// waits for nothing that never comes.
func TestDialects_everyClientSeesTheEnd(t *testing.T) {
	t.Parallel()
	for name, see := range dialects {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sees := func(when string, b *backupv1.VirtualMachineBackup, want string) {
				t.Helper()
				if got := see(b); got != want {
					t.Errorf("%s: the client sees %q, want %q: %+v", when, got, want, b.Status.Conditions)
				}
			}
			w := newWorld()
			w.track()
			pushed := w.create("pushed", true)
			w.starting(pushed)
			sees("starting", pushed, "")
			w.copied(pushed)
			w.settle(pushed)
			pushed.Status.Phase = backupv1.BackupPruned
			w.instance.Spec.UtilityVolumes = nil
			w.mount()
			w.settle(pushed)
			sees("pushed", pushed, "succeeded")

			failed := w.create("failed", true)
			w.claim = nil
			w.settle(failed)
			sees("waiting", failed, "")
			w.now = w.now.Add(25 * time.Hour)
			w.settle(failed)
			sees("given up", failed, "failed")
			w.claim = w.newClaim()

			pulled := w.createPull("pulled")
			w.serving(pulled)
			sees("not served yet", pulled, "")
			w.exportServes(pulled)
			w.settle(pulled)
			sees("served", pulled, "ready")
			w.exports["backup-export-pulled"].DeletionTimestamp = &metav1.Time{Time: w.now}
			w.settle(pulled)
			sees("the export goes", pulled, "")
		})
	}
}

// The reason of Done has at most as many bytes as the API takes, and whole characters.
func TestDialects_aLongReasonIsCut(t *testing.T) {
	t.Parallel()
	s := &backupv1.VirtualMachineBackupStatus{Phase: backupv1.BackupFailed, Reason: backupv1.ReasonHypervisorError, Message: strings.Repeat("ä", 2000)}
	c := doneCondition(s)
	if len(c.Reason) > maxReasonBytes || len(c.Reason) < maxReasonBytes-2 || strings.ToValidUTF8(c.Reason, "?") != c.Reason || c.Message != s.Message {
		t.Errorf("%d bytes: %s", len(c.Reason), c.Reason)
	}
}
