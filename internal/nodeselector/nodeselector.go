// Package nodeselector says which nodes a NodeSelector selects, such as those that reach a PersistentVolume, as the
// scheduler of Kubernetes does, and which nodes take pods.
package nodeselector

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// Selects says whether a node selector selects a node. Nil selects every node.
func Selects(selector *corev1.NodeSelector, node *corev1.Node) bool {
	if selector == nil {
		return true
	}
	return slices.ContainsFunc(selector.NodeSelectorTerms, func(term corev1.NodeSelectorTerm) bool {
		return !isEmptyTerm(term) && fitsAll(term.MatchExpressions, node.Labels) && isNamed(term.MatchFields, node.Name)
	})
}

// Both returns the selector of the nodes that both select.
func Both(a, b *corev1.NodeSelector) *corev1.NodeSelector {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	both := &corev1.NodeSelector{}
	for _, x := range a.NodeSelectorTerms {
		for _, y := range b.NodeSelectorTerms {
			if isEmptyTerm(x) || isEmptyTerm(y) {
				continue
			}
			both.NodeSelectorTerms = append(both.NodeSelectorTerms, corev1.NodeSelectorTerm{
				MatchExpressions: slices.Concat(x.MatchExpressions, y.MatchExpressions),
				MatchFields:      slices.Concat(x.MatchFields, y.MatchFields),
			})
		}
	}
	return both
}

// isEmptyTerm says whether a term is empty. Such a term selects no node, as the API has it.
func isEmptyTerm(t corev1.NodeSelectorTerm) bool {
	return len(t.MatchExpressions) == 0 && len(t.MatchFields) == 0
}

func fitsAll(expressions []corev1.NodeSelectorRequirement, set map[string]string) bool {
	for _, e := range expressions {
		operator, known := operators[e.Operator]
		if !known {
			return false
		}
		requirement, err := labels.NewRequirement(e.Key, operator, e.Values)
		if err != nil || !requirement.Matches(labels.Set(set)) {
			return false
		}
	}
	return true
}

// isNamed says whether a node's name fits, which is the only field that a term can name.
func isNamed(fields []corev1.NodeSelectorRequirement, name string) bool {
	for _, f := range fields {
		if f.Key != metav1.ObjectNameField || slices.Contains(f.Values, name) != (f.Operator == corev1.NodeSelectorOpIn) {
			return false
		}
	}
	return true
}

var operators = map[corev1.NodeSelectorOperator]selection.Operator{
	corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn,
	corev1.NodeSelectorOpExists: selection.Exists, corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
	corev1.NodeSelectorOpGt: selection.GreaterThan, corev1.NodeSelectorOpLt: selection.LessThan,
}
