package backuppolicy

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	varvev1 "github.com/varvebackup/varve/api/varve/v1alpha1"
)

// input is what a decision follows from. The objects are not modified.
type input struct {
	policy *varvev1.BackupPolicy
	// machines are all virtual machines of the namespace.
	machines []metav1.PartialObjectMetadata
	// schedules are those that have the policy's label.
	schedules []*harvesterv1.ScheduleVMBackup
	// others are the names of the namespace's other schedules.
	others map[string]bool
}

// decision is what is to be done for a policy.
type decision struct {
	create []*harvesterv1.ScheduleVMBackup
	update []update
	// remove are schedules of machines that are not selected any more, and those that have to be made again.
	remove []*harvesterv1.ScheduleVMBackup
	// scheduled is how many machines keep their schedules, with those of update.
	scheduled int
	// failed are machines that can have no schedule.
	failed []varvev1.FailedMachine
	// invalid is why the policy cannot be carried out, and reason its reason.
	reason  string
	invalid error
}

// update is a schedule as it is, and as it is to be.
type update struct{ have, want *harvesterv1.ScheduleVMBackup }

// decide returns what is to be done for a policy. While the policy cannot be read, its schedules stay as they are.
func decide(in *input) *decision {
	d := &decision{}
	have, taken := map[string]*harvesterv1.ScheduleVMBackup{}, maps.Clone(in.others)
	for _, o := range in.schedules {
		if isOurs(in.policy, o) {
			have[o.Name] = o
		} else {
			taken[o.Name] = true
		}
	}
	selector, err := metav1.LabelSelectorAsSelector(&in.policy.Spec.Selector)
	if err != nil {
		return d.leaveAll(have, varvev1.ReasonInvalidSelector, fmt.Errorf("spec.selector: %w", err))
	}
	t, err := readTemplate(in.policy)
	if err != nil {
		return d.leaveAll(have, varvev1.ReasonInvalidTemplate, err)
	}
	for i := range in.machines {
		if m := &in.machines[i]; selects(selector, m) {
			d.addMachine(t, m.Name, have, taken)
		}
	}
	if in.deselectsAll(selector, have) {
		return (&decision{}).leaveAll(have, varvev1.ReasonSelectsNothing, errors.New("spec.selector selects no machine "+
			"that exists: correct it, or delete the policy"))
	}
	for _, o := range have { // of machines that are gone, or not selected any more
		d.removeSchedule(o)
	}
	d.sortByName()
	return d
}

// selects says whether a machine is to have a schedule.
func selects(selector labels.Selector, m *metav1.PartialObjectMetadata) bool {
	return m.DeletionTimestamp == nil && selector.Matches(labels.Set(m.Labels))
}

// deselectsAll says whether no machine is selected, although there are schedules of machines that exist: more likely by
// a mistake in the selector than on purpose.
func (in *input) deselectsAll(selector labels.Selector, have map[string]*harvesterv1.ScheduleVMBackup) bool {
	exist := false
	for i := range in.machines {
		m := &in.machines[i]
		if selects(selector, m) {
			return false
		}
		exist = exist || m.DeletionTimestamp == nil && have[scheduleName(in.policy.Name, m.Name)] != nil
	}
	return exist && in.policy.Status.ObservedGeneration != in.policy.Generation || exist && in.refusedBefore()
}

// refusedBefore says whether the policy selected nothing when it was looked at before, as it is now.
func (in *input) refusedBefore() bool {
	c := meta.FindStatusCondition(in.policy.Status.Conditions, varvev1.ConditionReady)
	return c != nil && c.Reason == varvev1.ReasonSelectsNothing
}

// leaveAll leaves all schedules as they are.
func (d *decision) leaveAll(have map[string]*harvesterv1.ScheduleVMBackup, reason string, why error) *decision {
	d.scheduled, d.reason, d.invalid = len(have), reason, why
	return d
}

// addMachine decides for a machine that is selected, and takes its schedule out of have.
func (d *decision) addMachine(
	t *template, machine string, have map[string]*harvesterv1.ScheduleVMBackup, taken map[string]bool,
) {
	name := scheduleName(t.policy.Name, machine)
	o := have[name]
	delete(have, name)
	switch {
	case o == nil && taken[name]:
		d.failed = append(d.failed, varvev1.FailedMachine{
			Name: machine, Reason: varvev1.ReasonNameTaken,
			Message: fmt.Sprintf("ScheduleVMBackup %s is there, and this policy has not made it: delete it, or give "+
				"the policy another name", name),
		})
	case o == nil:
		d.create = append(d.create, t.newSchedule(machine))
	case o.DeletionTimestamp != nil: // it is made again when it is gone
	default:
		want := t.adjustSchedule(o)
		if want == nil {
			d.removeSchedule(o)
			return
		}
		d.scheduled++
		if !equality.Semantic.DeepEqual(o, want) {
			d.update = append(d.update, update{o, want})
		}
	}
}

func (d *decision) removeSchedule(o *harvesterv1.ScheduleVMBackup) {
	if o.DeletionTimestamp == nil {
		d.remove = append(d.remove, o)
	}
}

// sortByName makes the order certain: maps and caches have no order.
func (d *decision) sortByName() {
	byName := func(a, b *harvesterv1.ScheduleVMBackup) int { return strings.Compare(a.Name, b.Name) }
	slices.SortFunc(d.create, byName)
	slices.SortFunc(d.update, func(a, b update) int { return byName(a.have, b.have) })
	slices.SortFunc(d.remove, byName)
}
