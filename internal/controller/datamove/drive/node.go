package drive

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/varvebackup/varve/internal/nodeselector"
)

// lostAfter is how long a node is not ready until its objects are taken elsewhere, or fail.
const lostAfter = time.Minute

// NodeState is what is known about a node.
type NodeState struct {
	Name string
	// Gone: there is no such Node, or its administrator says that it is out of service. Nothing runs on it.
	Gone bool
	// NotReadySince is since when the node is not ready; zero: it is.
	NotReadySince time.Time
	// Closed: no mover pod can be scheduled to it, such as while it is drained. Pods that are there go on.
	Closed bool
}

// lostIn returns how long it takes from now until the node counts as lost: 0, if it is. A node that is ready is never lost.
func (n NodeState) lostIn(now time.Time) (wait time.Duration, ever bool) {
	switch {
	case n.Gone:
		return 0, true
	case n.NotReadySince.IsZero():
		return 0, false
	default:
		return max(0, n.NotReadySince.Add(lostAfter).Sub(now)), true
	}
}

func (n NodeState) isLost(now time.Time) bool {
	wait, ever := n.lostIn(now)
	return ever && wait == 0
}

// stateOfNode returns the state of a node; node is nil if there is none.
func stateOfNode(name string, node *corev1.Node) NodeState {
	s := NodeState{Name: name, Gone: node == nil}
	if node == nil {
		return s
	}
	if slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService }) {
		s.Gone = true
	}
	s.NotReadySince = node.CreationTimestamp.Time
	for _, c := range node.Status.Conditions {
		if c.Type != corev1.NodeReady {
			continue
		}
		s.NotReadySince = c.LastTransitionTime.Time
		if c.Status == corev1.ConditionTrue {
			s.NotReadySince = time.Time{}
		}
	}
	return s
}

// isReady says that the node is there and ready.
func isReady(node *corev1.Node) bool {
	s := stateOfNode(node.Name, node)
	return !s.Gone && s.NotReadySince.IsZero()
}

// takesPods says that a mover pod with these tolerations can be scheduled to the node.
func takesPods(node *corev1.Node, tolerations []corev1.Toleration) bool {
	return isReady(node) && !isClosed(node, tolerations)
}

// isClosed says that a node takes no mover pods, ready or not.
func isClosed(node *corev1.Node, tolerations []corev1.Toleration) bool {
	return nodeselector.ExplainClosed(node, tolerations) != ""
}

// choose returns the index of the object to take next: of the namespace that has the fewest running, the oldest. running has the numbers
// by namespace. It returns -1 if nobody waits.
func choose(waiting []candidate, running map[string]int) int {
	best := -1
	for i := range waiting {
		if best < 0 || before(&waiting[i].view, &waiting[best].view, running) {
			best = i
		}
	}
	return best
}

func before(a, b *Object, running map[string]int) bool {
	return cmp.Or(
		cmp.Compare(running[a.Tenant], running[b.Tenant]),
		a.Created.Compare(b.Created),
		cmp.Compare(a.UID, b.UID),
	) < 0
}
