// Package clustertest has a fake of what an API server does besides serving objects: it forwards ports of pods.
package clustertest

import (
	"io"
	"net"
	"net/http"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// Forwarding forwards ports of pods to addresses of this machine, with SPDY alone, as older API servers do.
type Forwarding struct {
	// To returns the address for a request's path. "" refuses.
	To func(path string) string

	mu sync.Mutex
	// forwards are those that are open, and paths those of all.
	forwards []httpstream.Connection
	paths    []string
}

// ServeHTTP implements http.Handler.
func (f *Forwarding) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		http.Error(w, "only SPDY", http.StatusBadRequest)
		return
	}
	to := f.To(r.URL.Path)
	if to == "" {
		http.Error(w, "no such pod", http.StatusNotFound)
		return
	}
	if _, err := httpstream.Handshake(r, w, []string{"portforward.k8s.io"}); err != nil {
		return // it has answered
	}
	streams := make(chan httpstream.Stream, 64)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
		streams <- s
		return nil
	})
	if conn == nil {
		return
	}
	defer func() { _ = conn.Close() }() // resets what nobody reads, which would keep the connection's goroutines
	f.mu.Lock()
	f.forwards, f.paths = append(f.forwards, conn), append(f.paths, r.URL.Path)
	f.mu.Unlock()
	for {
		select {
		case <-conn.CloseChan():
			return
		case s := <-streams:
			if s.Headers().Get(corev1.StreamType) == corev1.StreamTypeData {
				go forward(s, to)
			}
		}
	}
}

func forward(s httpstream.Stream, to string) {
	c, err := net.Dial("tcp", to) //nolint:noctx // it ends with its stream
	if err != nil {
		_ = s.Reset()
		return
	}
	go func() { _, _ = io.Copy(c, s); _ = c.Close() }()
	_, _ = io.Copy(s, c)
	_ = s.Close()
}

// Cut ends all forwards, as the end of their pod does.
func (f *Forwarding) Cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.forwards {
		_ = c.Close()
	}
	f.forwards = nil
}

// Paths returns the paths of the requests that were served.
func (f *Forwarding) Paths() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.paths)
}
