package nodeselector

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestBoth_selectsWhatBothSelect(t *testing.T) {
	t.Parallel()
	has := func(label string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{
			Key:      label,
			Operator: corev1.NodeSelectorOpExists,
		}}}
	}
	named := func(name string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{
			Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{name},
		}}}
	}
	node := func(name string, labels map[string]string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	}
	terms := func(t ...corev1.NodeSelectorTerm) *corev1.NodeSelector {
		return &corev1.NodeSelector{NodeSelectorTerms: t}
	}
	selectors := []*corev1.NodeSelector{
		nil, terms(), terms(corev1.NodeSelectorTerm{}), terms(has("x")), terms(has("x"), has("y")),
		terms(has("x"), corev1.NodeSelectorTerm{}),
		terms(named("a")), terms(has("y"), named("b")),
	}
	nodes := []*corev1.Node{
		node("a", nil), node("b", map[string]string{"x": ""}),
		node("c", map[string]string{"y": ""}), node("d", map[string]string{"x": "", "y": ""}),
	}
	for i, a := range selectors {
		for j, b := range selectors {
			for _, n := range nodes {
				got, want := Selects(Both(a, b), n), Selects(a, n) && Selects(b, n)
				if got != want {
					t.Errorf("%d and %d select %s: %v", i, j, n.Name, got)
				}
			}
		}
	}
}
