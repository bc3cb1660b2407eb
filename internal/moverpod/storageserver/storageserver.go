// Package storageserver is the program of the pods that serve a directory of a claim or an NFS export to one command of a user, `varve mover
// serve-storage`.
//
// The pod listens on its loopback alone, which a forwarded port reaches, and answers only the command, which sends its key.
// It serves blobs that are encrypted, has no password, and ends when nobody asks any more.
package storageserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/kopia/kopia/repo/blob"
	"k8s.io/utils/clock"

	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/internal/repository/storage/blobhttp"
)

const (
	// shutdownTimeout is how long requests that are being served may take when the server ends.
	shutdownTimeout = 5 * time.Second
	// transferTimeout is how long a request may take: that of a user whose machine sleeps keeps the server from ending.
	transferTimeout = time.Hour
)

// Options are what Run needs. None has a default.
type Options struct {
	// Directory is where the blobs are. It may appear, or become readable, while the server runs.
	Directory string
	// KeyDigest is the digest of the command's blobhttp.Key. The server refuses requests with another key or without one,
	// and they do not keep it running.
	KeyDigest string
	// Listener is closed when Run returns.
	Listener net.Listener
	// Idle is how long nobody may ask before the server ends.
	Idle  time.Duration
	Clock clock.WithTicker
	Log   *slog.Logger
}

// Run serves until ctx ends, or nobody has asked for a while; neither is an error.
func Run(ctx context.Context, o Options) (err error) {
	s := &server{Options: o, asked: o.Clock.Now()}
	defer func() { err = errors.Join(err, s.close(context.WithoutCancel(ctx))) }()
	listener := &http.Server{
		Handler: s.handler(), ReadHeaderTimeout: o.Idle, ReadTimeout: transferTimeout, WriteTimeout: transferTimeout,
		BaseContext: func(net.Listener) context.Context { return context.WithoutCancel(ctx) }, ErrorLog: slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
	}
	ended := make(chan error, 1)
	go func() { ended <- listener.Serve(o.Listener) }()
	o.Log.Info("serving", "directory", o.Directory, "address", o.Listener.Addr().String(), "ends when nobody has asked for", o.Idle.String())
	ticker := o.Clock.NewTicker(o.Idle / 4)
	defer ticker.Stop()
	for {
		select {
		case err := <-ended:
			return fmt.Errorf("serve %s: %w", o.Directory, err)
		case <-ctx.Done():
		case <-ticker.C():
			if !s.isIdle() {
				continue
			}
		}
		s.logEnd()
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		if err := listener.Shutdown(within); err != nil {
			return fmt.Errorf("end requests: %w", errors.Join(err, listener.Close()))
		}
		return nil
	}
}

type server struct {
	Options

	// opening is for storage. Opening takes as long as a server of files is away, and nothing else waits for that.
	opening sync.Mutex
	storage blob.Storage

	mu sync.Mutex
	// asked is when the last request ended, and running how many there are now.
	asked             time.Time
	running, requests int
}

// open opens the directory when it is first asked for.
func (s *server) open(ctx context.Context) (blob.Storage, error) {
	s.opening.Lock()
	defer s.opening.Unlock()
	if s.storage != nil {
		return s.storage, nil
	}
	st, err := storage.Location{Directory: s.Directory}.Open(context.WithoutCancel(ctx), false)
	if err != nil {
		return nil, err
	}
	s.storage = st
	return st, nil
}

func (s *server) close(ctx context.Context) error {
	s.opening.Lock()
	defer s.opening.Unlock()
	if s.storage == nil {
		return nil
	}
	return s.storage.Close(ctx)
}

// handler serves the requests that have the key.
func (s *server) handler() http.Handler {
	return blobhttp.Protect(s.KeyDigest, s.watch(blobhttp.NewHandler(s.open)))
}

// watch counts requests.
func (s *server) watch(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.count(1)
		defer s.count(-1)
		h.ServeHTTP(w, r)
	})
}

func (s *server) count(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running += n
	s.requests += max(n, 0)
	s.asked = s.Clock.Now()
}

func (s *server) isIdle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running == 0 && s.Clock.Since(s.asked) >= s.Idle
}

func (s *server) logEnd() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Log.Info("ending", "requests served", s.requests, "last one", s.Clock.Since(s.asked).Round(time.Second).String()+" ago")
}
