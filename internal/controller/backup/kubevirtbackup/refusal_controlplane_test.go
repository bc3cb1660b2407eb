//go:build controlplane

package kubevirtbackup

import (
	"errors"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/test/controlplane"
)

// breakWebhook plays a controller whose webhook is down, only for the lab's namespace. The returned function
// repairs it.
func (l *lab) breakWebhook() (mend func()) {
	l.Helper()
	return l.refuse("virtualmachineinstances", "has(object.spec.utilityVolumes)")
}

// refuse makes the API server refuse updates of a resource of kubevirt.io if a CEL expression is true, until the
// returned function is called.
func (l *lab) refuse(resource, when string) (stop func()) {
	l.Helper()
	nobody := "https://127.0.0.1:1/"
	webhook := func(name, group, resource string, conditions ...admissionv1.MatchCondition) admissionv1.ValidatingWebhook {
		return admissionv1.ValidatingWebhook{
			Name: name + ".varvebackup.io", AdmissionReviewVersions: []string{"v1"},
			SideEffects: ptr.To(admissionv1.SideEffectClassNone), FailurePolicy: ptr.To(admissionv1.Fail),
			ClientConfig:      admissionv1.WebhookClientConfig{URL: &nobody},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: l.ns}},
			MatchConditions:   conditions,
			Rules: []admissionv1.RuleWithOperations{{
				Operations: []admissionv1.OperationType{admissionv1.Update},
				Rule:       admissionv1.Rule{APIGroups: []string{group}, APIVersions: []string{"v1"}, Resources: []string{resource}},
			}},
		}
	}
	configuration := &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "test-" + l.ns},
		Webhooks: []admissionv1.ValidatingWebhook{
			webhook("utility-volumes", "kubevirt.io", resource, admissionv1.MatchCondition{Name: "refused", Expression: when}),
			webhook("probe", "", "configmaps"), // shows when the API server has them
		},
	}
	admin := cluster.Client(l.T, controlplane.Admin)
	probe := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: l.ns, GenerateName: "probe-"}}
	l.must(errors.Join(admin.Create(l.Context(), probe), admin.Create(l.Context(), configuration)))
	controlplane.Eventually(l.T, func() error { // the API server takes its time to notice
		if err := admin.Update(l.Context(), probe, client.DryRunAll); err == nil {
			return errors.New("nothing is refused yet")
		}
		return nil
	})
	return func() { l.Helper(); l.must(admin.Delete(l.Context(), configuration)) }
}

// A refused attach says why, ends at its deadline, and then lets the machine's next backup have its turn.
func TestRefusal_isShownAndEnds(t *testing.T) {
	t.Parallel()
	l := newLab(t, Limits{Attaching: 8 * time.Second})
	mend := l.breakWebhook()
	l.claim("target", corev1.PersistentVolumeFilesystem)
	first := l.backup("first", "")
	l.reaches(first, backupv1.BackupAttaching, backupv1.ReasonRequestRefused)
	if !strings.Contains(first.Status.Message, "utility-volumes.varvebackup.io") || first.Status.PhaseDeadline == nil {
		t.Errorf("deadline %v, message: %s", first.Status.PhaseDeadline, first.Status.Message)
	}
	l.event(first.UID, EventRefused)
	second := l.backup("second", "")
	l.reaches(second, backupv1.BackupPending, backupv1.ReasonOtherBackup)
	l.reaches(first, backupv1.BackupFailed, backupv1.ReasonDeadlineExceeded)
	if !strings.Contains(first.Status.Message, "utility-volumes.varvebackup.io") {
		t.Errorf("message: %s", first.Status.Message)
	}
	l.reaches(second, backupv1.BackupAttaching, backupv1.ReasonRequestRefused)
	mend()
	l.mount(1)
	l.reaches(second, backupv1.BackupStarting, "")
}

// A lock that cannot be removed does not keep the backup from ending. It is reported, and removed when the API
// server allows it.
func TestRefusal_ofTheUnlockingEnds(t *testing.T) {
	t.Parallel()
	l := newLab(t, Limits{Detaching: 3 * time.Second})
	l.claim("target", corev1.PersistentVolumeFilesystem)
	first := l.backup("first", "")
	l.toStarting(first)
	l.node(first, copying)
	l.node(first, copied)
	l.reaches(first, backupv1.BackupPruning, "")
	allow := l.refuse("virtualmachineinstances/status",
		"has(oldObject.status.changedBlockTracking.backupStatus) && !has(object.status.changedBlockTracking.backupStatus)")
	l.node(first, pruned)
	l.mount(0)
	l.event(first.UID, EventRefused)
	l.reaches(first, backupv1.BackupDone, backupv1.ReasonCompleted)
	if !strings.Contains(first.Status.Message, "VirtualMachineInstance vm is still locked") || l.locked() != "first" {
		t.Errorf("locked by %q, message: %s", l.locked(), first.Status.Message)
	}
	l.event(l.vmi.UID, EventRefused)
	second := l.backup("second", "")
	l.reaches(second, backupv1.BackupPending, backupv1.ReasonOtherBackup)
	allow()
	l.event(l.vmi.UID, EventLockReleased)
	l.toStarting(second)
}
