//go:build controlplane

package backup

import (
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/test/controlplane"
)

// breakWebhook plays a controller whose webhook is down, for the lab's namespace alone. The function that it returns mends it.
func (l *lab) breakWebhook() (mend func()) {
	l.Helper()
	nobody := "https://127.0.0.1:1/"
	configuration := &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "test-" + l.ns},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "utility-volumes.varvebackup.io", AdmissionReviewVersions: []string{"v1"},
			SideEffects: ptr.To(admissionv1.SideEffectClassNone), FailurePolicy: ptr.To(admissionv1.Fail),
			ClientConfig:      admissionv1.WebhookClientConfig{URL: &nobody},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: l.ns}},
			MatchConditions:   []admissionv1.MatchCondition{{Name: "adds", Expression: "has(object.spec.utilityVolumes)"}},
			Rules: []admissionv1.RuleWithOperations{{
				Operations: []admissionv1.OperationType{admissionv1.Update},
				Rule:       admissionv1.Rule{APIGroups: []string{"kubevirt.io"}, APIVersions: []string{"v1"}, Resources: []string{"virtualmachineinstances"}},
			}},
		}},
	}
	admin := cluster.Client(l.T, controlplane.Admin)
	l.must(admin.Create(l.Context(), configuration))
	return func() { l.Helper(); l.must(admin.Delete(l.Context(), configuration)) }
}

// A refused attach says why, ends at its deadline, and lets the machine's next backup have its turn.
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
