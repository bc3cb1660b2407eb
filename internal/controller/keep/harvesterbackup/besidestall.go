package harvesterbackup

import (
	"cmp"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
)

// KubeVirt asks the hypervisor for the changes of all disks since its tracker's checkpoint. If a disk has lost its
// bitmap, for example because it was detached and attached again, the hypervisor refuses, and KubeVirt asks again
// without end and does not say why. A backup that asks for no changes begins.

const (
	// beginPatience is how long KubeVirt may take to begin a backup by changed blocks.
	beginPatience = 5 * time.Minute
	// beginDeadline is how long it may take to begin one that asks for no changes.
	beginDeadline = 25 * time.Minute
)

// pullVerdict is what becomes of KubeVirt's backup. It is empty if that has begun, or has ended.
type pullVerdict struct {
	// waiting is what the backup waits for, and refused is why it fails.
	waiting, refused string
	// again is why KubeVirt's backup is to be made again, as a full one, or "".
	again string
}

// judgePull says what becomes of KubeVirt's backup. madeAgain is why an earlier one was deleted, or "".
func judgePull(job *backupv1.VirtualMachineBackup, madeAgain string, now time.Time) pullVerdict {
	name := "VirtualMachineBackup " + job.Name + " of backup.kubevirt.io"
	waited := now.Sub(job.CreationTimestamp.Time)
	says := describeStart(job)
	switch {
	case job.DeletionTimestamp != nil:
		return pullVerdict{waiting: "the first " + name + " to go"}
	case hasBegun(job):
		return pullVerdict{}
	case madeAgain != "" && !job.Spec.ForceFullBackup:
		return pullVerdict{waiting: "the first " + name + " to go", again: madeAgain}
	case !job.Spec.ForceFullBackup && waited >= beginPatience:
		return pullVerdict{waiting: "the first " + name + " to go", again: fmt.Sprintf("KubeVirt did not begin %s in %s%s, "+
			"as if a disk was detached and attached again since the last backup: it is made again, and reads all disks as "+
			"a whole", name, beginPatience, says)}
	case waited >= beginDeadline:
		return pullVerdict{refused: fmt.Sprintf("KubeVirt did not begin %s in %s%s: look at the log of virt-controller, and "+
			"create another backup", name, beginDeadline, says)}
	}
	return pullVerdict{waiting: fmt.Sprintf("KubeVirt to begin %s%s", name, says)}
}

// hasBegun says whether the moment of KubeVirt's backup is fixed, or whether it has ended, in the dialects of 1.8 and
// 1.9.
func hasBegun(job *backupv1.VirtualMachineBackup) bool {
	if _, ended := job.Ended(); ended || job.Readable() {
		return true
	}
	c := meta.FindStatusCondition(job.Status.Conditions, backupv1.ConditionProgressing)
	return c != nil && c.Status == metav1.ConditionTrue && c.Reason != backupv1.ConditionInitializing
}

// describeStart returns in brackets what KubeVirt says of a backup that has not begun, or "". KubeVirt 1.8 has text in
// the reasons of conditions.
func describeStart(job *backupv1.VirtualMachineBackup) string {
	c := meta.FindStatusCondition(job.Status.Conditions, backupv1.ConditionProgressing)
	if c == nil || cmp.Or(c.Message, c.Reason) == "" {
		return ""
	}
	return " (" + cmp.Or(c.Message, c.Reason) + ")"
}
