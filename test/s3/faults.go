package s3

import (
	"context"
	"crypto/tls"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
)

// Rule is a fault and the requests that it applies to: those that match all of Method, Key and Match, except the
// first Skip of them, with the given Probability, and at most Times in total. So Skip: n-1, Times: 1 selects only the nth match.
type Rule struct {
	Fault Fault

	// Method is an HTTP method; "" matches every method.
	Method string
	// Key is the prefix of the object's key; "" matches every key, and every request without an object (a list, for example).
	Key string
	// Match decides on anything else, such as the query; nil matches every request. It is called with a lock held.
	Match func(*http.Request) bool

	// Skip is how many matches pass before the rule applies.
	Skip int
	// Times is how often the fault happens at most; 0 means without limit.
	Times int
	// Probability is between 0 and 1; 0 means always.
	Probability float64
}

// Faults is a proxy in front of a server. Signatures stay valid: the server sees the Host that the client signed, and
// S3 servers with path-style addresses accept any Host. The proxy passes a request without a fault on unchanged. If
// the server is dead, the request ends like a fault: the connection is closed without a reply.
type Faults struct {
	Endpoint

	tb      testing.TB
	forward http.Handler

	mu     sync.Mutex
	rules  []Rule
	seen   []int // matches of each rule
	fired  []int // faults of each rule
	random *rand.Rand
}

// StartFaults starts a proxy in front of server that ends with the test. The first rule that has a fault for a
// request decides; the rules after it neither see nor count that request. The seed decides all cases with a
// Probability; 0 chooses a seed. It is logged: with one connection at a time the same seed repeats a run.
func StartFaults(tb testing.TB, server *Server, seed uint64, rules ...Rule) *Faults {
	tb.Helper()
	if seed == 0 {
		seed = rand.Uint64()
	}
	tb.Logf("faults: seed %d", seed)
	upstream, err := url.Parse(server.URL())
	if err != nil {
		tb.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("start a proxy: %v", err)
	}
	transport := server.transport()
	// A request must not fail or be retried because a connection is left over from before the server was killed.
	transport.DisableKeepAlives = true
	f := &Faults{
		Endpoint: server.Endpoint,
		tb:       tb,
		forward: &httputil.ReverseProxy{
			Rewrite: func(r *httputil.ProxyRequest) {
				r.SetURL(upstream)
				r.Out.Host = r.In.Host
			},
			Transport:    transport,
			ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
			ErrorLog:     log.New(io.Discard, "", 0),
		},
		random: rand.New(rand.NewPCG(seed, 0)),
	}
	f.Address = listener.Addr().String()
	f.Set(rules...)
	f.serve(listener, server.certificate)
	return f
}

// serve serves until the test ends. The cleanup returns when every request has ended.
func (f *Faults) serve(listener net.Listener, certificate tls.Certificate) {
	ctx, cancel := context.WithCancel(context.Background())
	var connections sync.WaitGroup
	proxy := &http.Server{
		Handler:      f,
		BaseContext:  func(net.Listener) context.Context { return ctx },
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){}, // no HTTP/2: a fault affects a whole connection
		ErrorLog:     log.New(io.Discard, "", 0),
		ConnState: func(_ net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				connections.Add(1)
			case http.StateClosed, http.StateHijacked:
				connections.Done()
			default:
			}
		},
	}
	if f.Authority != nil {
		listener = tls.NewListener(listener, &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = proxy.Serve(listener) // returns an error after Close
	}()
	f.tb.Cleanup(func() {
		cancel()
		_ = proxy.Close()
		<-done
		connections.Wait()
	})
}

// Set replaces the rules and resets all counts.
func (f *Faults) Set(rules ...Rule) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules, f.seen, f.fired = rules, make([]int, len(rules)), make([]int, len(rules))
}

// Fired returns how many faults the rule with this index has caused.
func (f *Faults) Fired(rule int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fired[rule]
}

// ServeHTTP passes a request on, or applies a fault to it.
func (f *Faults) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rule, fault := f.choose(r)
	if fault == nil {
		f.forward.ServeHTTP(w, r)
		return
	}
	f.tb.Logf("faults: rule %d, %s %s", rule, r.Method, r.URL)
	fault(w, r, f.forward)
}

// choose counts a request and returns the fault that applies to it, or nil.
func (f *Faults) choose(r *http.Request) (rule int, fault Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, rule := range f.rules {
		if !rule.matches(r) {
			continue
		}
		f.seen[i]++
		if f.seen[i] <= rule.Skip || (rule.Times > 0 && f.fired[i] >= rule.Times) {
			continue
		}
		if rule.Probability > 0 && f.random.Float64() >= rule.Probability {
			continue
		}
		f.fired[i]++
		return i, rule.Fault
	}
	return 0, nil
}

func (r Rule) matches(request *http.Request) bool {
	_, key, _ := strings.Cut(strings.TrimPrefix(request.URL.Path, "/"), "/")
	return (r.Method == "" || r.Method == request.Method) &&
		strings.HasPrefix(key, r.Key) &&
		(r.Match == nil || r.Match(request))
}
