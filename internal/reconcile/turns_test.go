package reconcile

import (
	"fmt"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
)

func request(namespace string, n int) ctrl.Request {
	return ctrl.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: fmt.Sprint(n)}}
}

// A tenant with 5,000 objects keeps nobody waiting, and each namespace is served in the order of its own requests.
func TestTurns_namespacesTakeTurns(t *testing.T) {
	t.Parallel()
	o := Options(1)
	q := o.NewQueue("turns", o.RateLimiter)
	defer q.ShutDown()
	for n := range 5000 {
		q.Add(request("loud", n))
	}
	q.Add(request("quiet", 0))
	q.Add(request("quiet", 1))
	q.Add(request("other", 0))
	q.Add(request("loud", 0)) // waits already
	if q.Len() != 5003 {
		t.Errorf("%d requests wait", q.Len())
	}
	want := []ctrl.Request{
		request("loud", 0), request("quiet", 0), request("other", 0), request("loud", 1), request("quiet", 1), request("loud", 2), request("loud", 3),
	}
	var got []ctrl.Request
	for range want {
		next, _ := q.Get()
		got = append(got, next)
		q.Done(next)
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

// A request that comes back while another one of its namespace waits goes behind that one.
func TestTurns_emptiesAndFills(t *testing.T) {
	t.Parallel()
	q := &turns{requests: map[string][]ctrl.Request{}}
	for round := range 3 {
		q.Push(request("a", round))
		q.Push(request("b", round))
		for _, namespace := range []string{"a", "b"} {
			if got := q.Pop(); got != request(namespace, round) {
				t.Errorf("round %d: got %v, want %v", round, got, request(namespace, round))
			}
		}
		if q.Len() != 0 || len(q.requests) != 0 || len(q.namespaces) != 0 {
			t.Errorf("round %d: left %+v", round, q)
		}
	}
}
