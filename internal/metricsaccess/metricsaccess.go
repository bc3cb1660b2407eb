// Package metricsaccess lets only those read a component's metrics whom the API server lets read them.
//
// Metrics name machines, their namespaces and what becomes of their backups. So they are served over TLS, to clients
// with a bearer token. The API server says whose token it is (TokenReview), and whether that user may get the path
// (SubjectAccessReview, a nonResourceURL). It is what controller-runtime's filters.WithAuthenticationAndAuthorization
// does; that one needs the API server's own libraries, and these are not for a privileged process that needs nothing
// else of them.
//
// An answer of the API server counts for a minute, so that a scraper costs it two requests a minute, and a token that is
// withdrawn is good for a minute at most. Whoever sends tokens that nobody knows can make a bounded number of requests to
// the API server at a time, and none of its answers is kept for them.
//
// The server's certificate is its own, made at its start: it keeps tokens from those who only listen. A client cannot
// tell by it who the server is.
package metricsaccess

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

const (
	// answerCounts is how long an answer of the API server counts.
	answerCounts = time.Minute
	// reviewTimeout is how long the API server may take for one answer.
	reviewTimeout = 10 * time.Second
	// maxReviews is how many requests are reviewed at a time. Others are told to come back.
	maxReviews = 8
	// maxAnswers is how many answers are kept.
	maxAnswers = 64
	// maxToken is the longest token that is reviewed, in bytes.
	maxToken = 16 << 10
)

// ServerOptions returns how a manager serves its metrics. If address is "0", it does not.
func ServerOptions(address string) metricsserver.Options {
	return metricsserver.Options{
		BindAddress: address, SecureServing: true, FilterProvider: newFilter,
		TLSOpts: []func(*tls.Config){func(c *tls.Config) {
			c.MinVersion = tls.VersionTLS12
			c.NextProtos = []string{"http/1.1"} // one scraper needs no streams, and an attacker gets none to open
		}},
	}
}

func newFilter(config *rest.Config, httpClient *http.Client) (metricsserver.Filter, error) {
	client, err := kubernetes.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, fmt.Errorf("guard the metrics: %w", err)
	}
	g := newGuard(client, clock.RealClock{})
	return func(log logr.Logger, next http.Handler) (http.Handler, error) { return g.protect(log, next), nil }, nil
}

// answer is what the API server said about a token and a request.
type answer struct {
	status int
	until  time.Time
}

// question identifies a request that was reviewed. It has no token that could be read.
type question struct {
	token      [sha256.Size]byte
	verb, path string
}

// guard asks the API server who may read. It is safe for concurrent use.
type guard struct {
	client  kubernetes.Interface
	clock   clock.PassiveClock
	reviews chan struct{}

	mu      sync.Mutex
	answers map[question]answer
}

func newGuard(client kubernetes.Interface, clock clock.PassiveClock) *guard {
	return &guard{client: client, clock: clock, reviews: make(chan struct{}, maxReviews), answers: map[question]answer{}}
}

// protect returns next for those who may read it.
func (g *guard) protect(log logr.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, err := g.judge(r)
		if err != nil {
			log.Error(err, "review a request for metrics")
		}
		if status != http.StatusOK {
			http.Error(w, http.StatusText(status), status)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// judge returns the status of the answer to a request: 200 if the client may read.
func (g *guard) judge(r *http.Request) (int, error) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return http.StatusMethodNotAllowed, nil
	}
	token, ok := bearerToken(r)
	if !ok {
		return http.StatusUnauthorized, nil
	}
	q := question{token: sha256.Sum256([]byte(token)), verb: strings.ToLower(r.Method), path: r.URL.Path}
	if status, known := g.recallAnswer(q); known {
		return status, nil
	}
	select {
	case g.reviews <- struct{}{}:
		defer func() { <-g.reviews }()
	default:
		return http.StatusTooManyRequests, nil
	}
	ctx, cancel := context.WithTimeout(r.Context(), reviewTimeout)
	defer cancel()
	status, err := g.askServer(ctx, token, q)
	if err == nil && status != http.StatusUnauthorized {
		g.keepAnswer(q, status)
	}
	return status, err
}

// bearerToken returns the token of a request.
func bearerToken(r *http.Request) (string, bool) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	token = strings.TrimSpace(token)
	return token, strings.EqualFold(scheme, "Bearer") && token != "" && len(token) <= maxToken
}

// askServer asks the API server whose token it is, and whether its user may read.
func (g *guard) askServer(ctx context.Context, token string, q question) (int, error) {
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
	review, err := g.client.AuthenticationV1().TokenReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return http.StatusInternalServerError, fmt.Errorf("review a token: %w", err)
	}
	if review.Status.Error != "" && !review.Status.Authenticated {
		err = errors.New(review.Status.Error)
	}
	user := review.Status.User
	if !review.Status.Authenticated || user.Username == "" {
		return http.StatusUnauthorized, err
	}
	extra := map[string]authorizationv1.ExtraValue{}
	for k, v := range user.Extra {
		extra[k] = authorizationv1.ExtraValue(v)
	}
	access := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, Groups: user.Groups, UID: user.UID, Extra: extra,
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: q.path, Verb: q.verb},
	}}
	access, err = g.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, access, metav1.CreateOptions{})
	if err != nil {
		return http.StatusInternalServerError, fmt.Errorf("review the access of %s: %w", user.Username, err)
	}
	if !access.Status.Allowed || access.Status.Denied {
		return http.StatusForbidden, nil
	}
	return http.StatusOK, nil
}

func (g *guard) recallAnswer(q question) (int, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	a, ok := g.answers[q]
	return a.status, ok && g.clock.Now().Before(a.until)
}

func (g *guard) keepAnswer(q question, status int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.clock.Now()
	if len(g.answers) >= maxAnswers {
		for other, a := range g.answers {
			if !now.Before(a.until) {
				delete(g.answers, other)
			}
		}
	}
	// Only users that the API server knows get here. If there are so many, some of them are asked about more often.
	if len(g.answers) < maxAnswers {
		g.answers[q] = answer{status: status, until: now.Add(answerCounts)}
	}
}
