package backuppolicy

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	varvev1 "github.com/varvebackup/varve/api/varve/v1alpha1"
	"github.com/varvebackup/varve/internal/definition"
	"github.com/varvebackup/varve/internal/schedule"
)

// defaultJitter is over how long the backups of many machines spread that are due at the same time, if the template
// does not say it.
const defaultJitter = 30 * time.Minute

// scheduleName returns the name of a machine's schedule. It begins with the policy's name and a dash.
func scheduleName(policy, machine string) string {
	name := policy + "-" + machine
	if len(name) <= validation.DNS1123SubdomainMaxLength {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	suffix := "-" + hex.EncodeToString(sum[:])[:10]
	return strings.TrimRight(name[:validation.DNS1123SubdomainMaxLength-len(suffix)], "-.") + suffix
}

// isOurs says whether a schedule was made by the policy, and is not a copy that somebody made of one.
func isOurs(policy *varvev1.BackupPolicy, o *harvesterv1.ScheduleVMBackup) bool {
	return o.Labels[varvev1.LabelPolicy] == string(policy.UID) &&
		o.Name == scheduleName(policy.Name, o.Spec.VMBackupSpec.Source.Name)
}

// template is what all schedules of a policy have in common.
type template struct {
	policy      *varvev1.BackupPolicy
	annotations map[string]string
}

// readTemplate returns what the schedules of a policy are made from. An error says what is wrong with the template.
func readTemplate(policy *varvev1.BackupPolicy) (*template, error) {
	from := &policy.Spec.Template
	for _, name := range slices.Sorted(maps.Keys(from.Annotations)) {
		if !schedule.HasMeaning(name) {
			return nil, fmt.Errorf("spec.template.annotations: a schedule knows no annotation %.80q: correct its name, or "+
				"leave it out", name)
		}
	}
	probe := &harvesterv1.ScheduleVMBackup{
		ObjectMeta: metav1.ObjectMeta{Annotations: from.Annotations},
		Spec: harvesterv1.ScheduleVMBackupSpec{
			Cron: from.Spec.Cron, Retain: from.Spec.Retain, MaxFailure: from.Spec.MaxFailure,
		},
	}
	times, err := schedule.ReadTimes(probe)
	if err != nil {
		return nil, fmt.Errorf("spec.template: %w", err)
	}
	if _, err := schedule.ReadPolicy(probe, times.Location()); err != nil {
		return nil, fmt.Errorf("spec.template: %w", err)
	}
	annotations := map[string]string{
		harvesterv1.AnnotationAdopt: "true",
		// A duration writes 30 minutes as 30m0s.
		harvesterv1.AnnotationJitter: strings.TrimSuffix(min(defaultJitter, times.Granularity()).String(), "0s"),
	}
	maps.Copy(annotations, from.Annotations)
	// The template was checked for all schedules at once, and jitter keeps them apart.
	annotations[harvesterv1.AnnotationSkipCronCheck] = "enable"
	annotations[varvev1.AnnotationPolicyAnnotations] = strings.Join(slices.Sorted(maps.Keys(annotations)), ",")
	annotations[varvev1.AnnotationPolicySuspend] = strconv.FormatBool(from.Spec.Suspend)
	return &template{policy: policy, annotations: annotations}, nil
}

// newSchedule returns the schedule of a machine.
func (t *template) newSchedule(machine string) *harvesterv1.ScheduleVMBackup {
	from := &t.policy.Spec.Template.Spec
	return &harvesterv1.ScheduleVMBackup{
		TypeMeta: metav1.TypeMeta{APIVersion: harvesterv1.GroupVersion.String(), Kind: "ScheduleVMBackup"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: t.policy.Namespace, Name: scheduleName(t.policy.Name, machine),
			Labels:      map[string]string{varvev1.LabelPolicy: string(t.policy.UID)},
			Annotations: maps.Clone(t.annotations),
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(t.policy, varvev1.GroupVersion.WithKind(varvev1.KindPolicy)),
			},
		},
		Spec: harvesterv1.ScheduleVMBackupSpec{
			Cron: from.Cron, Retain: from.Retain, MaxFailure: from.MaxFailure, Suspend: from.Suspend,
			VMBackupSpec: harvesterv1.VirtualMachineBackupSpec{
				Source: corev1.TypedLocalObjectReference{
					APIGroup: ptr.To(definition.MachineKind.Group), Kind: harvesterv1.SourceKind, Name: machine,
				},
				Type:             cmp.Or(harvesterv1.BackupType(from.Type), harvesterv1.Backup),
				FSFreezeDeadline: from.FSFreezeDeadline,
			},
		},
	}
}

// adjustSchedule returns a schedule as the template wants it, or nil if it has to be made again: what is backed up
// cannot be changed.
func (t *template) adjustSchedule(have *harvesterv1.ScheduleVMBackup) *harvesterv1.ScheduleVMBackup {
	want := t.newSchedule(have.Spec.VMBackupSpec.Source.Name)
	if !equality.Semantic.DeepEqual(have.Spec.VMBackupSpec, want.Spec.VMBackupSpec) {
		return nil
	}
	o := have.DeepCopy()
	o.Spec.Cron, o.Spec.Retain, o.Spec.MaxFailure = want.Spec.Cron, want.Spec.Retain, want.Spec.MaxFailure
	remembered, known := have.Annotations[varvev1.AnnotationPolicySuspend]
	if known && remembered != want.Annotations[varvev1.AnnotationPolicySuspend] {
		o.Spec.Suspend = want.Spec.Suspend
	}
	for name := range strings.SplitSeq(have.Annotations[varvev1.AnnotationPolicyAnnotations], ",") {
		delete(o.Annotations, name)
	}
	if o.Annotations == nil {
		o.Annotations = map[string]string{}
	}
	maps.Copy(o.Annotations, want.Annotations)
	if metav1.GetControllerOf(o) == nil {
		o.OwnerReferences = append(o.OwnerReferences, want.OwnerReferences...)
	}
	return o
}
