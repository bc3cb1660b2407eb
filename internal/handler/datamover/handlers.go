package datamover

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/layout"
)

// handlerWatch remembers since when nodes have no handler: no pod of the handler's account on them is Ready. It counts by this handler's own
// clock, from when this handler saw it first, so that clocks need not agree. A handler that starts begins anew.
type handlerWatch struct {
	mu        sync.Mutex
	awaySince handlersAway
}

// handlersAway says since when nodes have no handler.
type handlersAway map[string]time.Time

// away returns what lookForHandlers found last.
func (w *handlerWatch) away() handlersAway {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.awaySince
}

// lookForHandlers finds out which nodes have no handler: each time that the pod of one changes, and every now and then, as nodes join.
//
// As long as this handler's own pod is not Ready it finds none away: either something is wrong with what makes pods Ready, or the handlers run as
// something else than pods. Handlers that all believe the others dead would take objects from each other for ever. From when it is Ready on,
// the others have a minute: what was wrong may have been so for all.
func (m *Mover) lookForHandlers(ctx context.Context) error {
	w := &m.handlers
	w.mu.Lock()
	defer w.mu.Unlock()
	nodes, err := m.listNodes(ctx)
	if err != nil {
		return err
	}
	var pods corev1.PodList
	if err := m.Cached.List(ctx, &pods, client.InNamespace(m.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list the pods of handlers: %w", err)
	}
	present := map[string]bool{}
	for i := range pods.Items {
		if p := &pods.Items[i]; runsHandler(p) {
			present[p.Spec.NodeName] = true
		}
	}
	if !present[m.NodeName] {
		w.awaySince = nil
		return nil
	}
	now := m.Clock.Now()
	away := handlersAway{}
	for _, n := range nodes {
		since, known := w.awaySince[n.Name]
		switch {
		case present[n.Name]:
		case known:
			away[n.Name] = since
		default:
			away[n.Name] = now
		}
	}
	w.awaySince = away // a new map each time, which nobody changes
	return nil
}

// driverIsBack says that a change would take an object from a handler that runs, as only the API server knows: what a cache has may be old, as
// after this process was stopped for a while. The cache will know, and tell.
func (p *pass) driverIsBack(ctx context.Context, c *Change) (bool, error) {
	driver := &p.in.DriverNode
	if p.in.Object.Driver == "" || c.Driver == p.in.Object.Driver || driver.Gone || !driver.NotReadySince.IsZero() {
		return false, nil
	}
	var pods corev1.PodList
	if err := p.Live.List(ctx, &pods, client.InNamespace(p.Namespace), client.MatchingFields{"spec.nodeName": driver.Name}); err != nil {
		return false, fmt.Errorf("look whether a handler runs on node %s: %w", driver.Name, err)
	}
	return slices.ContainsFunc(pods.Items, func(pod corev1.Pod) bool { return runsHandler(&pod) }), nil
}

// lost says that a node has had no handler for so long that others act for it.
func (a handlersAway) lost(node string, now time.Time) bool {
	since, away := a[node]
	return away && now.Sub(since) >= lostAfter
}

// nextLoss returns how long it takes until another node's handler counts as lost; 0: none is away, or all that are count already.
func (a handlersAway) nextLoss(now time.Time) time.Duration {
	var next time.Duration
	for _, since := range a {
		if wait := lostAfter - now.Sub(since); wait > 0 && (next == 0 || wait < next) {
			next = wait
		}
	}
	return next
}

// absence says that no handler runs on any node that a mover pod may run on, or "".
func (a handlersAway) absence(pod *corev1.Pod, nodes []*corev1.Node, now time.Time) string {
	const enough = 3
	var names []string
	for _, n := range nodes {
		if !mayRunOn(pod, n) {
			continue
		}
		if !a.lost(n.Name, now) {
			return ""
		}
		names = append(names, n.Name)
	}
	slices.Sort(names)
	switch {
	case len(names) == 0:
		return ""
	case len(names) == 1:
		return "no handler runs on node " + names[0]
	case len(names) <= enough:
		return "no handler runs on nodes " + strings.Join(names, ", ")
	default:
		return fmt.Sprintf("no handler runs on any of the %d nodes that it may run on", len(names))
	}
}

// mayRunOn says that a mover pod is on a node, or may be scheduled to it by its affinity.
func mayRunOn(pod *corev1.Pod, node *corev1.Node) bool {
	if pod.Spec.NodeName != "" {
		return pod.Spec.NodeName == node.Name
	}
	a := pod.Spec.Affinity
	return a == nil || a.NodeAffinity == nil || selects(a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution, node)
}

// isHandlerPod says that a pod in Varve's namespace is a handler's. Handlers themselves cannot make such pods (deploy/admission).
func isHandlerPod(p *corev1.Pod) bool {
	return p.Spec.ServiceAccountName == layout.HandlerAccount && p.Spec.NodeName != ""
}

// runsHandler says that a pod is a handler's, and Ready.
func runsHandler(p *corev1.Pod) bool {
	return isHandlerPod(p) && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// shrinkPod keeps of a pod that is not a mover's, such as a handler's, what says that a handler runs.
func shrinkPod(o any) (any, error) {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil
	}
	if pod.Labels[datamove.LabelObject] != "" {
		pod.ManagedFields = nil
		return pod, nil
	}
	small := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion}}
	small.Spec.NodeName, small.Spec.ServiceAccountName = pod.Spec.NodeName, pod.Spec.ServiceAccountName
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			small.Status.Conditions = []corev1.PodCondition{{Type: c.Type, Status: c.Status}}
		}
	}
	return small, nil
}
