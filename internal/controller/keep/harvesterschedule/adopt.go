package harvesterschedule

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"sigs.k8s.io/controller-runtime/pkg/client"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/reconcile"
	"github.com/varvebackup/varve/internal/schedule"
)

// adoptBackups gives the schedule the backups of deleted schedules of its name, if it is to have them: of the same
// machine, and of the same type. Only one schedule of a name exists, so those with another UID are deleted ones.
func (r *reconciler) adoptBackups(ctx context.Context, o *harvesterv1.ScheduleVMBackup) error {
	if o.Annotations[harvesterv1.AnnotationAdopt] != "true" {
		return nil
	}
	others, err := labels.NewRequirement(harvesterv1.LabelSchedule, selection.NotIn, []string{string(o.UID), ""})
	if err != nil {
		return fmt.Errorf("select the backups of other schedules: %w", err)
	}
	has, err := labels.NewRequirement(harvesterv1.LabelSchedule, selection.Exists, nil)
	if err != nil {
		return fmt.Errorf("select the backups of schedules: %w", err)
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(harvesterv1.GroupVersion.WithKind("VirtualMachineBackupList"))
	if err := r.cached.List(ctx, list, client.InNamespace(o.Namespace),
		client.MatchingLabelsSelector{Selector: labels.NewSelector().Add(*has, *others)}); err != nil {
		return fmt.Errorf("list the backups of other schedules: %w", err)
	}
	for i := range list.Items {
		if list.Items[i].Annotations[harvesterv1.AnnotationSchedule] != o.Namespace+"/"+o.Name {
			continue
		}
		if err := r.adoptBackup(ctx, o, client.ObjectKeyFromObject(&list.Items[i])); err != nil {
			return err
		}
	}
	return nil
}

func (r *reconciler) adoptBackup(
	ctx context.Context, o *harvesterv1.ScheduleVMBackup, key client.ObjectKey,
) error {
	b, err := reconcile.Find(ctx, r.live, key, &harvesterv1.VirtualMachineBackup{})
	if err != nil || b == nil || b.DeletionTimestamp != nil || !schedule.IsScheduled(b) ||
		b.Spec.Source.Name != o.Spec.VMBackupSpec.Source.Name || b.Spec.Type != o.Spec.VMBackupSpec.Type {
		return err
	}
	base := b.DeepCopy()
	b.Labels[harvesterv1.LabelSchedule] = string(o.UID)
	if err := r.cached.Patch(ctx, b, reconcile.MergeFrom(base)); err != nil {
		return fmt.Errorf("adopt VirtualMachineBackup %s: %w", key, err)
	}
	return nil
}
