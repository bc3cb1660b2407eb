package harvesterschedule

import (
	"context"
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
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
		b := &list.Items[i]
		if b.Annotations[harvesterv1.AnnotationSchedule] != o.Namespace+"/"+o.Name || r.strangers.hasBackup(o, b.UID) {
			continue
		}
		if err := r.adoptBackup(ctx, o, client.ObjectKeyFromObject(b)); err != nil {
			return err
		}
	}
	return nil
}

func (r *reconciler) adoptBackup(
	ctx context.Context, o *harvesterv1.ScheduleVMBackup, key client.ObjectKey,
) error {
	b, err := reconcile.Find(ctx, r.live, key, &harvesterv1.VirtualMachineBackup{})
	switch {
	case err != nil || b == nil:
		return err
	case b.DeletionTimestamp != nil || !schedule.IsScheduled(b) ||
		b.Spec.Source.Name != o.Spec.VMBackupSpec.Source.Name || b.Spec.Type != o.Spec.VMBackupSpec.Type:
		r.strangers.addBackup(o, b.UID)
		return nil
	}
	base := b.DeepCopy()
	b.Labels[harvesterv1.LabelSchedule] = string(o.UID)
	if err := r.cached.Patch(ctx, b, reconcile.MergeFrom(base)); err != nil {
		return fmt.Errorf("adopt VirtualMachineBackup %s: %w", key, err)
	}
	return nil
}

// strangers are the backups that schedules were to adopt and never will, so that they are read once.
type strangers struct {
	mu sync.Mutex
	of map[types.NamespacedName]*strangersOf
}

// strangersOf are those of the schedule with that UID.
type strangersOf struct {
	schedule types.UID
	backups  sets.Set[types.UID]
}

func (s *strangers) hasBackup(o *harvesterv1.ScheduleVMBackup, backup types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.of[client.ObjectKeyFromObject(o)]
	return of != nil && of.schedule == o.UID && of.backups.Has(backup)
}

func (s *strangers) addBackup(o *harvesterv1.ScheduleVMBackup, backup types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := client.ObjectKeyFromObject(o)
	of := s.of[key]
	if of == nil || of.schedule != o.UID {
		of = &strangersOf{schedule: o.UID, backups: sets.Set[types.UID]{}}
		if s.of == nil {
			s.of = map[types.NamespacedName]*strangersOf{}
		}
		s.of[key] = of
	}
	of.backups.Insert(backup)
}

func (s *strangers) forgetSchedule(key types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of, key)
}
