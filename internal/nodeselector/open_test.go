package nodeselector

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestExplainClosed(t *testing.T) {
	t.Parallel()
	tainted := []corev1.Taint{{Key: "k", Value: "v", Effect: corev1.TaintEffectNoSchedule}}
	windows := map[string]string{corev1.LabelOSStable: "windows"}
	for name, c := range map[string]struct {
		labels map[string]string
		spec   corev1.NodeSpec
		with   []corev1.Toleration
		want   string
	}{
		"open":     {nil, corev1.NodeSpec{}, nil, ""},
		"cordoned": {nil, corev1.NodeSpec{Unschedulable: true}, nil, "it is cordoned"},
		"windows":  {windows, corev1.NodeSpec{}, nil, "it runs windows"},
		"tainted":  {nil, corev1.NodeSpec{Taints: tainted}, nil, "it has the taint k=v:NoSchedule"},
		"tainted, tolerated": {
			nil, corev1.NodeSpec{Taints: tainted}, []corev1.Toleration{{Key: "k", Value: "v"}}, "",
		},
		"a taint that is only a wish": {
			nil, corev1.NodeSpec{Taints: []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectPreferNoSchedule}}}, nil, "",
		},
	} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: c.labels}, Spec: c.spec}
		if got := ExplainClosed(n, c.with); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestIsReady(t *testing.T) {
	t.Parallel()
	n := &corev1.Node{}
	if IsReady(n) {
		t.Error("a node without a condition is ready")
	}
	for _, status := range []corev1.ConditionStatus{corev1.ConditionFalse, corev1.ConditionUnknown, corev1.ConditionTrue} {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
		if IsReady(n) != (status == corev1.ConditionTrue) {
			t.Errorf("%s", status)
		}
	}
}
