package nodeselector

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Linux is the value of the label for the operating system of nodes that run Varve's pods.
const Linux = "linux"

// ExplainClosed says why no pod with these tolerations can be scheduled to a node, ready or not, or "": it is cordoned,
// has a taint that is not tolerated, or runs something else than Linux.
func ExplainClosed(node *corev1.Node, tolerations []corev1.Toleration) string {
	if node.Spec.Unschedulable {
		return "it is cordoned"
	}
	if system := node.Labels[corev1.LabelOSStable]; system != "" && system != Linux {
		return fmt.Sprintf("it runs %.40s", system)
	}
	for i := range node.Spec.Taints {
		taint := &node.Spec.Taints[i]
		if taint.Effect == corev1.TaintEffectPreferNoSchedule {
			continue
		}
		if !slices.ContainsFunc(tolerations, func(t corev1.Toleration) bool { return tolerates(t, taint) }) {
			return "it has the taint " + taint.ToString()
		}
	}
	return ""
}

func tolerates(t corev1.Toleration, taint *corev1.Taint) bool {
	if t.Effect != "" && t.Effect != taint.Effect || t.Key != "" && t.Key != taint.Key {
		return false
	}
	return t.Operator == corev1.TolerationOpExists || t.Key != "" && t.Value == taint.Value
}

// ExplainUnusable says why no new pod with tolerations runs on the node with a name, or "".
func ExplainUnusable(nodes []corev1.Node, name string, tolerations []corev1.Toleration) string {
	i := slices.IndexFunc(nodes, func(n corev1.Node) bool { return n.Name == name })
	switch {
	case i < 0:
		return "the cluster does not have it"
	case !IsReady(&nodes[i]):
		return "it is not ready"
	}
	return ExplainClosed(&nodes[i], tolerations)
}

// IsReady says whether the kubelet of a node reports that it is ready.
func IsReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}
