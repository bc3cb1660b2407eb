package virtualmachineexport

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	"github.com/varvebackup/varve/internal/export/podspec"
)

// statusWith returns the export's status with an obstacle, or, if it is nil, of an export that is served.
func statusWith(in *input, o *obstacle, links *exportv1.VirtualMachineExportLinks) *exportv1.VirtualMachineExportStatus {
	s := in.Export.Status.DeepCopy()
	s.Phase = exportv1.ExportReady
	if o != nil {
		s.Phase = o.phase
	}
	s.Links = links
	token, _ := tokenSecretName(in.Export)
	s.TokenSecretRef = &token
	// The API has whole seconds. An export does not end before its time.
	s.TTLExpirationTime = &metav1.Time{Time: expirationTime(in.Export).Add(time.Second - 1).Truncate(time.Second)}
	s.ServiceName = podspec.Service(in.Export.Name)
	s.VirtualMachineName = nil
	if vm := in.Source.machine(); vm != "" {
		s.VirtualMachineName = ptr.To(vm)
	}
	setConditions(in, s, o)
	return s
}

func setConditions(in *input, s *exportv1.VirtualMachineExportStatus, o *obstacle) {
	before := s.Conditions
	s.Conditions = []exportv1.Condition{newCondition(in, before, exportv1.ConditionReady, o, exportv1.ReasonPodReady)}
	if claims, has := in.Source.claimsReady(); has {
		s.Conditions = append(s.Conditions, newCondition(in, before, exportv1.ConditionPVC, claims, exportv1.ReasonClaimBound))
	}
}

// newCondition returns a condition that is True with reason unless there is an obstacle.
func newCondition(in *input, before []exportv1.Condition, kind exportv1.ConditionType, o *obstacle, reason string) exportv1.Condition {
	c := exportv1.Condition{Type: kind, Status: corev1.ConditionTrue, Reason: reason, LastTransitionTime: metav1.NewTime(in.Now.Truncate(time.Second))}
	if o != nil {
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, o.reason, o.message
	}
	for i := range before {
		if before[i].Type == kind && before[i].Status == c.Status {
			c.LastTransitionTime = before[i].LastTransitionTime
		}
	}
	return c
}
