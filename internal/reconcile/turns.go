package reconcile

import (
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
)

// turns is a queue in which namespaces take turns: the next request is the oldest one of the namespace that was served
// longest ago. However many objects a tenant has, those of another one wait for one request of each namespace at most.
type turns struct {
	// namespaces that have requests, in the order of their turns.
	namespaces []string
	requests   map[string][]ctrl.Request
	total      int
}

var _ workqueue.Queue[ctrl.Request] = (*turns)(nil)

// newTurnsQueue returns the queue of a reconciler, for controller.Options.NewQueue.
func newTurnsQueue(name string, limiter workqueue.TypedRateLimiter[ctrl.Request]) workqueue.TypedRateLimitingInterface[ctrl.Request] {
	queue := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[ctrl.Request]{Name: name, Queue: &turns{requests: map[string][]ctrl.Request{}}})
	return workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[ctrl.Request]{
		Name: name, DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[ctrl.Request]{Name: name, Queue: queue}),
	})
}

// Touch implements workqueue.Queue. A request that waits keeps its place.
func (t *turns) Touch(ctrl.Request) {}

// Push implements workqueue.Queue.
func (t *turns) Push(r ctrl.Request) {
	waiting := t.requests[r.Namespace]
	if len(waiting) == 0 {
		t.namespaces = append(t.namespaces, r.Namespace)
	}
	t.requests[r.Namespace] = append(waiting, r)
	t.total++
}

// Len implements workqueue.Queue.
func (t *turns) Len() int { return t.total }

// Pop implements workqueue.Queue.
func (t *turns) Pop() ctrl.Request {
	namespace := t.namespaces[0]
	t.namespaces = t.namespaces[1:]
	waiting := t.requests[namespace]
	next := waiting[0]
	if waiting = waiting[1:]; len(waiting) > 0 {
		t.requests[namespace] = waiting
		t.namespaces = append(t.namespaces, namespace)
	} else {
		delete(t.requests, namespace)
	}
	t.total--
	return next
}
