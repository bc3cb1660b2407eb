package harvesterbackup

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
)

// An incremental backup that KubeVirt does not begin is made again once, as a full one.
func TestJudgePull(t *testing.T) {
	t.Parallel()
	made := time.Date(2026, 12, 1, 2, 0, 0, 0, time.UTC)
	progressing := func(status metav1.ConditionStatus, reason, message string) []metav1.Condition {
		return []metav1.Condition{{Type: backupv1.ConditionProgressing, Status: status, Reason: reason, Message: message}}
	}
	failed := []metav1.Condition{{Type: backupv1.ConditionFailed, Status: metav1.ConditionTrue}}
	const (
		name  = "VirtualMachineBackup g of backup.kubevirt.io"
		goes  = "the first " + name + " to go"
		begin = "KubeVirt to begin " + name
		never = "KubeVirt did not begin " + name
	)
	for what, c := range map[string]struct {
		full, deleted           bool
		madeAgain               string
		conditions              []metav1.Condition
		after                   time.Duration
		waiting, refused, again string
	}{
		"just made": {after: time.Second, waiting: begin},
		"KubeVirt 1.8 attaches the claim": {
			conditions: progressing("False", "backup target PVC s is being attached", ""), after: time.Minute,
			waiting: begin + " (backup target PVC s is being attached)",
		},
		"KubeVirt 1.9 has not begun": {
			conditions: progressing("True", "Initializing", "the machine migrates"), after: time.Minute,
			waiting: begin + " (the machine migrates)",
		},
		"KubeVirt 1.8 has begun":  {conditions: progressing("True", "Backup is in progress", ""), after: time.Hour},
		"KubeVirt 1.9 has begun":  {conditions: progressing("True", "Initiated", ""), after: time.Hour},
		"KubeVirt 1.9 has failed": {conditions: failed, after: time.Hour},
		"it does not begin":       {after: 5 * time.Minute, waiting: goes, again: never + " in 5m0s, as if a disk"},
		"it is going":             {after: 6 * time.Minute, deleted: true, madeAgain: "why", waiting: goes},
		"noted, and not deleted":  {after: time.Minute, madeAgain: "why", waiting: goes, again: "why"},
		"full, and late":          {after: 24 * time.Minute, full: true, madeAgain: "why", waiting: begin},
		"full, and much too late": {
			after: 25 * time.Minute, full: true,
			refused: never + " in 25m0s: look at the log of virt-controller",
		},
		"full from the first time": {after: 6 * time.Minute, full: true, waiting: begin},
	} {
		job := &backupv1.VirtualMachineBackup{}
		job.Name, job.CreationTimestamp, job.Spec.ForceFullBackup = "g", metav1.NewTime(made), c.full
		job.Status.Conditions = c.conditions
		if c.deleted {
			job.DeletionTimestamp = &metav1.Time{Time: made}
		}
		v := judgePull(job, c.madeAgain, made.Add(c.after))
		if v.waiting != c.waiting || !strings.HasPrefix(v.refused, c.refused) || (v.refused == "") != (c.refused == "") ||
			!strings.HasPrefix(v.again, c.again) || (v.again == "") != (c.again == "") {
			t.Errorf("%s: %+v", what, v)
		}
	}
}
