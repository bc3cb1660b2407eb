//go:build controlplane

package keep

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	varvev1 "github.com/varvebackup/varve/api/varve/v1alpha1"
	"github.com/varvebackup/varve/internal/controller/datamove/pointdeletion"
	"github.com/varvebackup/varve/internal/schedule"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
)

// TestPolicies runs the controllers with the rights that they have in a cluster.
func TestPolicies(t *testing.T) { //nolint:paralleltest,tparallel // as TestControlPlane
	policyScenarios(t)
}

// TestPolicies_dieAtEachWrite is TestPolicies with controllers that die after a third of their writes.
func TestPolicies_dieAtEachWrite(t *testing.T) { //nolint:paralleltest,tparallel // see above
	policyScenarios(t, controlplane.LoseAnswers(t))
}

func policyScenarios(t *testing.T, edit ...func(*ctrl.Options)) {
	t.Helper()
	if err := errors.Join(cluster.InstallRoles(t.Context()), cluster.InstallSnapshotKinds(t.Context())); err != nil {
		t.Fatal(err)
	}
	mgr := cluster.Manager(t, controlplane.Controller.Restrict(),
		append(edit, func(o *ctrl.Options) { o.Cache.ByObject = pointdeletion.CachedObjects() })...)
	if err := Setup(mgr, Options{Namespace: controlplane.SystemNamespace}); err != nil {
		t.Fatal(err)
	}
	controlplane.StartManager(t, mgr)
	for name, run := range map[string]func(*protected){
		"machines that come and go":      machinesComeAndGo,
		"a template that changes":        templateChanges,
		"a schedule of somebody else":    scheduleOfSomebodyElse,
		"a schedule that is not allowed": scheduleRefused,
		"a policy that is deleted":       policyDeleted,
		"a policy that cannot be read":   policyUnreadable,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &protected{world: world{T: t, ns: cluster.Namespace(t), admin: cluster.Client(t, controlplane.Admin)}}
			p.policy = gen.Policy(p.meta("gold"), metav1.LabelSelector{MatchLabels: map[string]string{"tier": "gold"}})
			run(p)
		})
	}
}

// protected is a namespace with a policy for the machines with the label tier=gold.
type protected struct {
	world
	policy *varvev1.BackupPolicy
}

func (p *protected) addMachine(name, tier string) *kubevirtv1.VirtualMachine {
	p.Helper()
	vm := gen.VirtualMachine(p.meta(name), gen.Guest())
	vm.Labels = map[string]string{"tier": tier}
	p.create(vm)
	return vm
}

func (p *protected) setTier(vm *kubevirtv1.VirtualMachine, tier string) {
	p.Helper()
	controlplane.Update(p.T, p.admin, vm, false, func(vm *kubevirtv1.VirtualMachine) { vm.Labels["tier"] = tier })
}

func (p *protected) changeTemplate(edit func(*varvev1.ScheduleTemplate)) {
	p.Helper()
	controlplane.Update(p.T, p.admin, p.policy, false, func(o *varvev1.BackupPolicy) { edit(&o.Spec.Template) })
}

// has waits until these are the machines with schedules of the policy, and the policy says so.
func (p *protected) has(machines ...string) {
	p.Helper()
	controlplane.Eventually(p, func() error {
		var list harvesterv1.ScheduleVMBackupList
		if err := p.admin.List(p.Context(), &list, client.InNamespace(p.ns),
			client.MatchingLabels{varvev1.LabelPolicy: string(p.policy.UID)}); err != nil {
			return err
		}
		var have []string
		for i := range list.Items {
			have = append(have, list.Items[i].Spec.VMBackupSpec.Source.Name)
		}
		if diff := cmp.Diff(machines, have); diff != "" {
			return fmt.Errorf("machines with a schedule: %s", diff)
		}
		return nil
	})
	wait(&p.world, p.policy, func(o *varvev1.BackupPolicy) error {
		if int(o.Status.Machines) != len(machines) || o.Status.ObservedGeneration != o.Generation {
			return fmt.Errorf("want %d machines, and the status is %+v", len(machines), o.Status)
		}
		return nil
	})
}

// says waits until the condition Ready of the policy is so, with these words.
func (p *protected) says(status metav1.ConditionStatus, reason, words string) {
	p.Helper()
	wait(&p.world, p.policy, func(o *varvev1.BackupPolicy) error {
		c := meta.FindStatusCondition(o.Status.Conditions, varvev1.ConditionReady)
		if c == nil || c.Status != status || c.Reason != reason || !strings.Contains(c.Message, words) ||
			o.Status.ObservedGeneration != o.Generation {
			return fmt.Errorf("condition %+v, want %s %s %q", c, status, reason, words)
		}
		return nil
	})
}

// schedule waits until the schedule of a machine is as check wants it.
func (p *protected) schedule(
	machine string, check func(*harvesterv1.ScheduleVMBackup) error,
) *harvesterv1.ScheduleVMBackup {
	p.Helper()
	return wait(&p.world, &harvesterv1.ScheduleVMBackup{ObjectMeta: p.meta("gold-" + machine)}, check)
}

// addBackup makes a backup as the controller of schedules makes it.
func (p *protected) addBackup(of *harvesterv1.ScheduleVMBackup) *harvesterv1.VirtualMachineBackup {
	p.Helper()
	due := of.CreationTimestamp.Time
	b := &harvesterv1.VirtualMachineBackup{
		ObjectMeta: p.meta(schedule.BackupName(of, due)), Spec: of.Spec.VMBackupSpec,
	}
	b.Annotations = map[string]string{harvesterv1.AnnotationSchedule: of.Namespace + "/" + of.Name}
	b.Labels = map[string]string{
		harvesterv1.LabelSchedule:      string(of.UID),
		harvesterv1.LabelScheduledTime: due.UTC().Format(harvesterv1.ScheduledTimeLayout),
	}
	p.create(b)
	return b
}

func machinesComeAndGo(p *protected) {
	web, db := p.addMachine("web", "gold"), p.addMachine("db", "silver")
	p.create(p.policy)
	p.has("web")
	first := p.schedule("web", exists)
	if !metav1.IsControlledBy(first, p.policy) || first.Annotations[harvesterv1.AnnotationAdopt] != "true" ||
		first.Spec.Cron != "0 1 * * *" || first.Spec.Retain != 8 || first.Spec.VMBackupSpec.Type != harvesterv1.Backup {
		p.Errorf("the schedule: %+v", first)
	}
	p.addMachine("later", "gold")
	p.has("later", "web")
	p.setTier(db, "gold")
	p.has("db", "later", "web")
	p.setTier(db, "bronze")
	p.has("later", "web")
	p.says(metav1.ConditionTrue, varvev1.ReasonScheduled, "machines with a schedule: 2")

	backup := p.addBackup(first)
	p.must(p.admin.Delete(p.Context(), web))
	p.has("later")
	p.addMachine("web", "gold")
	p.has("later", "web")
	again := p.schedule("web", exists)
	if again.UID == first.UID {
		p.Error("the schedule of the deleted machine was not deleted")
	}
	wait(&p.world, backup, func(b *harvesterv1.VirtualMachineBackup) error {
		if of := b.Labels[harvesterv1.LabelSchedule]; of != string(again.UID) {
			return fmt.Errorf("the backup is that of schedule %s, want %s", of, again.UID)
		}
		return nil
	})
	controlplane.Update(p.T, p.admin, p.policy, false, func(o *varvev1.BackupPolicy) {
		o.Spec.Selector = metav1.LabelSelector{}
	})
	p.has("db", "later", "web")
}

func templateChanges(p *protected) {
	p.addMachine("web", "gold")
	p.create(p.policy)
	o := p.schedule("web", exists)
	controlplane.Update(p.T, p.admin, o, false, func(o *harvesterv1.ScheduleVMBackup) {
		o.Spec.Suspend, o.Spec.Cron = true, "0 5 * * *" // the first is the schedule's own, the second is not
	})
	isSuspended := func(want bool, cron string) func(*harvesterv1.ScheduleVMBackup) error {
		return func(o *harvesterv1.ScheduleVMBackup) error {
			if o.Spec.Suspend != want || o.Spec.Cron != cron {
				return fmt.Errorf("suspended %v, cron %s", o.Spec.Suspend, o.Spec.Cron)
			}
			return nil
		}
	}
	p.schedule("web", isSuspended(true, "0 1 * * *"))
	p.changeTemplate(func(t *varvev1.ScheduleTemplate) { t.Spec.Cron, t.Spec.Suspend = "0 2 * * *", false })
	p.schedule("web", isSuspended(true, "0 2 * * *"))
	p.changeTemplate(func(t *varvev1.ScheduleTemplate) { t.Spec.Suspend = true })
	p.schedule("web", func(o *harvesterv1.ScheduleVMBackup) error {
		if o.Annotations[varvev1.AnnotationPolicySuspend] != "true" {
			return fmt.Errorf("the suspension of the template was not seen: %v", o.Annotations)
		}
		return nil
	})
	p.changeTemplate(func(t *varvev1.ScheduleTemplate) { t.Spec.Suspend, t.Annotations = false, nil })
	p.schedule("web", isSuspended(false, "0 2 * * *"))
	p.schedule("web", func(o *harvesterv1.ScheduleVMBackup) error {
		if l, has := o.Annotations[harvesterv1.AnnotationLocation]; has {
			return fmt.Errorf("it has the location %s", l)
		}
		return nil
	})
	p.changeTemplate(func(t *varvev1.ScheduleTemplate) { t.Spec.Type = string(harvesterv1.Snapshot) })
	again := p.schedule("web", func(o *harvesterv1.ScheduleVMBackup) error {
		if o.Spec.VMBackupSpec.Type != harvesterv1.Snapshot {
			return fmt.Errorf("type %s", o.Spec.VMBackupSpec.Type)
		}
		return nil
	})
	if again.UID == o.UID {
		p.Error("the schedule was not made again")
	}
	p.has("web")
}

func scheduleOfSomebodyElse(p *protected) {
	p.addMachine("web", "gold")
	p.addMachine("db", "gold")
	theirs := gen.Schedule(p.meta("gold-web"), "web", func(o *harvesterv1.ScheduleVMBackup) { o.Spec.Cron = "0 7 * * *" })
	p.create(theirs)
	p.create(p.policy)
	p.has("db")
	p.says(metav1.ConditionFalse, varvev1.ReasonNameTaken, "machines without a schedule, or with an old one: 1")
	want := []varvev1.FailedMachine{{
		Name: "web", Reason: varvev1.ReasonNameTaken,
		Message: "ScheduleVMBackup gold-web is there, and this policy has not made it: delete it, or give the policy " +
			"another name",
	}}
	if diff := cmp.Diff(want, p.policy.Status.Failed); diff != "" {
		p.Error(diff)
	}
	p.schedule("web", func(o *harvesterv1.ScheduleVMBackup) error {
		if o.Spec.Cron != "0 7 * * *" || len(o.OwnerReferences) > 0 {
			p.Errorf("it was changed: %+v", o)
		}
		return nil
	})
	p.must(p.admin.Delete(p.Context(), theirs))
	p.has("db", "web")
	p.says(metav1.ConditionTrue, varvev1.ReasonScheduled, "machines with a schedule: 2")
}

// scheduleRefused has a quota that allows no schedule.
func scheduleRefused(p *protected) {
	quota := &corev1.ResourceQuota{
		ObjectMeta: p.meta("few"),
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{
			"count/schedulevmbackups.harvesterhci.io": resource.MustParse("0"),
		}},
	}
	p.create(quota)
	controlplane.Update(p.T, p.admin, quota, true, func(q *corev1.ResourceQuota) { q.Status.Hard = q.Spec.Hard })
	p.addMachine("web", "gold")
	p.create(p.policy)
	p.says(metav1.ConditionFalse, varvev1.ReasonRefused, "machines without a schedule, or with an old one: 1")
	if f := p.policy.Status.Failed; len(f) != 1 || !strings.Contains(f[0].Message, "create ScheduleVMBackup gold-web: ") {
		p.Errorf("failed: %+v", f)
	}
	p.has()
}

// policyDeleted leaves the deletion of the schedules to the garbage collector, which is not here.
func policyDeleted(p *protected) {
	vm := p.addMachine("web", "gold")
	p.create(p.policy)
	p.has("web")
	p.must(p.admin.Delete(p.Context(), p.policy))
	p.gone(p.policy)
	o := p.schedule("web", exists)
	if owners := o.OwnerReferences; len(owners) != 1 || owners[0].UID != p.policy.UID ||
		owners[0].APIVersion != "varvebackup.io/v1alpha1" || owners[0].Kind != "BackupPolicy" {
		p.Errorf("owners %+v", owners)
	}
	// One of the same name is another one: it has its schedule when the collector has taken the old one away.
	p.policy = gen.Policy(p.meta("gold"), p.policy.Spec.Selector)
	p.create(p.policy)
	p.says(metav1.ConditionFalse, varvev1.ReasonNameTaken, "")
	p.must(p.admin.Delete(p.Context(), o))
	p.has("web")
	p.must(p.admin.Delete(p.Context(), vm))
	p.has()
}

func policyUnreadable(p *protected) {
	p.addMachine("web", "gold")
	p.create(p.policy)
	p.has("web")
	p.changeTemplate(func(t *varvev1.ScheduleTemplate) { t.Spec.Cron = "*/5 * * * *" })
	p.says(metav1.ConditionFalse, varvev1.ReasonInvalidTemplate,
		`spec.template: spec.cron: "*/5 * * * *" is due 5m0s apart`)
	p.addMachine("db", "gold")
	p.has("web")
	p.changeTemplate(func(t *varvev1.ScheduleTemplate) { t.Annotations[harvesterv1.AnnotationSkipCronCheck] = "enable" })
	p.has("db", "web")
	p.says(metav1.ConditionTrue, varvev1.ReasonScheduled, "")
	p.schedule("web", func(o *harvesterv1.ScheduleVMBackup) error {
		if o.Spec.Cron != "*/5 * * * *" || o.Annotations[harvesterv1.AnnotationJitter] != "5m" {
			return fmt.Errorf("%s %v", o.Spec.Cron, o.Annotations)
		}
		return nil
	})
}
