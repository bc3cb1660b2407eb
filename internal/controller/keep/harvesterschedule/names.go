package harvesterschedule

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
)

// passedOn are the annotations of a schedule that its backups get.
var passedOn = []string{
	harvesterv1.AnnotationLocation, harvesterv1.AnnotationExcludeVolumes, harvesterv1.AnnotationScratchClass,
	harvesterv1.AnnotationScratchSize, harvesterv1.AnnotationFreeze,
}

// backupName returns the name of the backup of one run.
func backupName(o *harvesterv1.ScheduleVMBackup, due time.Time) string {
	return namePrefix(o) + due.UTC().Format(harvesterv1.ScheduledTimeLayout)
}

// namePrefix is what the names of a schedule's backups begin with.
func namePrefix(o *harvesterv1.ScheduleVMBackup) string { return "svmbackup-" + string(o.UID) + "-" }

// newBackup returns the backup of one run. It has to begin until startBy.
func newBackup(o *harvesterv1.ScheduleVMBackup, due, startBy time.Time) *harvesterv1.VirtualMachineBackup {
	annotations := map[string]string{
		harvesterv1.AnnotationSchedule: o.Namespace + "/" + o.Name,
		harvesterv1.AnnotationStartBy:  startBy.UTC().Format(time.RFC3339),
	}
	for _, key := range passedOn {
		if value := o.Annotations[key]; value != "" {
			annotations[key] = value
		}
	}
	return &harvesterv1.VirtualMachineBackup{
		TypeMeta: metav1.TypeMeta{APIVersion: harvesterv1.GroupVersion.String(), Kind: "VirtualMachineBackup"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: o.Namespace, Name: backupName(o, due), Annotations: annotations,
			Labels: map[string]string{harvesterv1.LabelScheduledTime: due.UTC().Format(harvesterv1.ScheduledTimeLayout)},
		},
		Spec: *o.Spec.VMBackupSpec.DeepCopy(),
	}
}

// dueTime returns when the run was due that a backup is of. One whose label somebody has changed counts as of when it
// was made.
func dueTime(b *harvesterv1.VirtualMachineBackup) time.Time {
	due, err := time.Parse(harvesterv1.ScheduledTimeLayout, b.Labels[harvesterv1.LabelScheduledTime])
	if err != nil {
		return b.CreationTimestamp.UTC()
	}
	return due
}
