package metricsaccess

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	testingclock "k8s.io/utils/clock/testing"
)

// apiServer knows two tokens: "scraper", whose user may get /metrics, and "tenant", whose user may not.
type apiServer struct {
	*fake.Clientset
	reviews atomic.Int32
	broken  error
	wait    chan struct{}
}

func newAPIServer() *apiServer {
	s := &apiServer{Clientset: fake.NewClientset()}
	s.PrependReactor("create", "tokenreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		s.reviews.Add(1)
		if s.wait != nil {
			<-s.wait
		}
		review := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview).DeepCopy()
		if token := review.Spec.Token; token == "scraper" || token == "tenant" {
			review.Status.Authenticated = true
			review.Status.User = authenticationv1.UserInfo{Username: token, Groups: []string{"g"}}
		}
		return true, review, s.broken
	})
	s.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		review := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
		n := review.Spec.NonResourceAttributes
		review.Status.Allowed = review.Spec.User == "scraper" && n.Path == "/metrics" && n.Verb == "get" && len(review.Spec.Groups) == 1
		return true, review, nil
	})
	return s
}

// ask returns the status of a request with that Authorization header.
func ask(g *guard, method, path, authorization string) int {
	r := httptest.NewRequest(method, path, nil)
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	w := httptest.NewRecorder()
	served := false
	g.protect(logr.Discard(), http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served = true })).ServeHTTP(w, r)
	if served != (w.Code == http.StatusOK) {
		return -w.Code
	}
	return w.Code
}

func TestGuard_asksTheAPIServer(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, method, path, authorization string
		status                            int
	}{
		{"a scraper", "GET", "/metrics", "Bearer scraper", http.StatusOK},
		{"another spelling", "GET", "/metrics", "bearer  scraper", http.StatusOK},
		{"a user without the right", "GET", "/metrics", "Bearer tenant", http.StatusForbidden},
		{"another verb", "HEAD", "/metrics", "Bearer scraper", http.StatusForbidden},
		{"a verb that metrics do not have", "POST", "/metrics", "Bearer scraper", http.StatusMethodNotAllowed},
		{"another path", "GET", "/debug", "Bearer scraper", http.StatusForbidden},
		{"nobody", "GET", "/metrics", "", http.StatusUnauthorized},
		{"an empty token", "GET", "/metrics", "Bearer ", http.StatusUnauthorized},
		{"a password", "GET", "/metrics", "Basic scraper", http.StatusUnauthorized},
		{"an unknown token", "GET", "/metrics", "Bearer other", http.StatusUnauthorized},
		{"a huge token", "GET", "/metrics", "Bearer " + strings.Repeat("x", maxToken+1), http.StatusUnauthorized},
	} {
		g := newGuard(newAPIServer(), testingclock.NewFakePassiveClock(time.Now()))
		for range 2 { // the second time from memory
			if status := ask(g, c.method, c.path, c.authorization); status != c.status {
				t.Errorf("%s: %d, want %d", c.name, status, c.status)
			}
		}
	}
}

func TestGuard_answersCountForAMinute(t *testing.T) {
	t.Parallel()
	server, clock := newAPIServer(), testingclock.NewFakePassiveClock(time.Now())
	g := newGuard(server, clock)
	for _, c := range []struct {
		token   string
		step    time.Duration
		status  int
		reviews int32
	}{
		{"scraper", 0, http.StatusOK, 1},
		{"scraper", answerCounts - 1, http.StatusOK, 1},
		{"scraper", 1, http.StatusOK, 2},
		{"tenant", 0, http.StatusForbidden, 3},
		{"tenant", 0, http.StatusForbidden, 3},
		{"other", 0, http.StatusUnauthorized, 4},
		{"other", 0, http.StatusUnauthorized, 5},
	} {
		clock.SetTime(clock.Now().Add(c.step))
		if status := ask(g, "GET", "/metrics", "Bearer "+c.token); status != c.status || server.reviews.Load() != c.reviews {
			t.Errorf("%s after %s: %d with %d reviews, want %d with %d", c.token, c.step, status, server.reviews.Load(), c.status, c.reviews)
		}
	}
}

// While the API server cannot be asked, nobody may read, and the answer is not kept.
func TestGuard_failsClosed(t *testing.T) {
	t.Parallel()
	server := newAPIServer()
	server.broken = errors.New("away")
	g := newGuard(server, testingclock.NewFakePassiveClock(time.Now()))
	if status := ask(g, "GET", "/metrics", "Bearer scraper"); status != http.StatusInternalServerError {
		t.Errorf("while it is away: %d", status)
	}
	server.broken = nil
	if status := ask(g, "GET", "/metrics", "Bearer scraper"); status != http.StatusOK {
		t.Errorf("when it is back: %d", status)
	}
}

// Tokens that nobody knows cost a bounded number of requests at a time and no memory, and do not lock out a scraper that
// the API server has vouched for.
func TestGuard_strangersAreBounded(t *testing.T) {
	t.Parallel()
	server := newAPIServer()
	g := newGuard(server, testingclock.NewFakePassiveClock(time.Now()))
	if status := ask(g, "GET", "/metrics", "Bearer scraper"); status != http.StatusOK {
		t.Fatalf("the scraper: %d", status)
	}
	server.wait = make(chan struct{})
	statuses := make(chan int, 100)
	for i := range cap(statuses) {
		go func() { statuses <- ask(g, "GET", "/metrics", fmt.Sprintf("Bearer stranger-%d", i)) }()
	}
	for range cap(statuses) - maxReviews {
		if status := <-statuses; status != http.StatusTooManyRequests {
			t.Errorf("one too many: %d", status)
		}
	}
	if status := ask(g, "GET", "/metrics", "Bearer scraper"); status != http.StatusOK {
		t.Errorf("the scraper beside them: %d", status)
	}
	close(server.wait)
	for range maxReviews {
		if status := <-statuses; status != http.StatusUnauthorized {
			t.Errorf("a stranger: %d", status)
		}
	}
	if n := server.reviews.Load(); n != 1+maxReviews || len(g.answers) != 1 {
		t.Errorf("%d reviews and %d answers kept", n, len(g.answers))
	}
}
