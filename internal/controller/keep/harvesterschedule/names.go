package harvesterschedule

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/schedule"
)

const (
	// annotationRetryOf is on a backup that was made because an earlier one of the same run had failed: when the run was
	// due, RFC 3339.
	annotationRetryOf = "varvebackup.io/retry-of"
	// annotationRequested is on a backup of a run that harvesterv1.AnnotationRunAt asked for: what that said, RFC 3339.
	annotationRequested = "varvebackup.io/requested-run"
)

// newBackup returns the backup of one run. It has to begin until startBy.
func newBackup(o *harvesterv1.ScheduleVMBackup, due, startBy time.Time) *harvesterv1.VirtualMachineBackup {
	annotations := map[string]string{
		harvesterv1.AnnotationSchedule: o.Namespace + "/" + o.Name,
		harvesterv1.AnnotationStartBy:  startBy.UTC().Format(time.RFC3339),
	}
	for _, key := range schedule.PassedOn() {
		if value := o.Annotations[key]; value != "" {
			annotations[key] = value
		}
	}
	return &harvesterv1.VirtualMachineBackup{
		TypeMeta: metav1.TypeMeta{APIVersion: harvesterv1.GroupVersion.String(), Kind: "VirtualMachineBackup"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: o.Namespace, Name: schedule.BackupName(o, due), Annotations: annotations,
			Labels: map[string]string{harvesterv1.LabelScheduledTime: due.UTC().Format(harvesterv1.ScheduledTimeLayout)},
		},
		Spec: *o.Spec.VMBackupSpec.DeepCopy(),
	}
}
