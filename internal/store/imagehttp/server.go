// Package imagehttp serves the images on a node's disks to users who download them (package download).
//
// It listens on the loopback interface of the store's pod, which only the API server's port forwarding reaches. Users of
// that reach every port there, so each request shows a token of the service account download.ServiceAccount: whoever may
// make such a token may read every image. A token is for this alone, and lasts minutes; the credentials of the user stay
// with the user.
//
// A piece is compared with its hash before it is sent. A wrong one ends the response, and the copy is damaged from then
// on. A request keeps the copy from being deleted, lasts an hour at most, and ends if its reader takes nothing for a
// minute.
package imagehttp

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/diskset"
	"github.com/varvebackup/varve/internal/store/download"
	"github.com/varvebackup/varve/internal/store/handover"
	"github.com/varvebackup/varve/internal/store/peer"
)

const (
	// maxRequests is how many are answered at once for the images of a disk: one that hangs keeps them.
	maxRequests = 4
	// maxPieces is of how many pieces the hashes are in memory at once: 32 MiB for an image of a TiB.
	maxPieces = handover.MaxImageBytes / disk.PieceBytes / 2
	// maxReviews is how many tokens are reviewed at once.
	maxReviews = 4
	// maxConnections is how many are open at once.
	maxConnections = 64
	// longestRequest is how long one lasts by default. The reader goes on with another one, and another token.
	longestRequest = time.Hour
	// writePatience is how long a reader may take nothing.
	writePatience  = time.Minute
	headerPatience = 10 * time.Second
	idlePatience   = 30 * time.Second
	reviewPatience = 10 * time.Second
	maxHeaderBytes = 16 << 10
)

// Options are what Run needs.
type Options struct {
	// Namespace is that of the store and of download.ServiceAccount.
	Namespace string
	Disks     *diskset.Set
	// NoteDamage is told that the data of a copy is not what was sealed.
	NoteDamage func(ctx context.Context, c peer.Copy, why string)
	Kubernetes kubernetes.Interface
	// RequestTime is how long a request may last: an hour if it is 0.
	RequestTime time.Duration
	Clock       clock.WithTicker
	Logger      *slog.Logger
}

type server struct {
	o       Options
	reviews *semaphore.Weighted
	pieces  *semaphore.Weighted

	mu     sync.Mutex
	ofDisk map[string]int // how many requests are being answered for each disk
}

// Run serves until ctx ends, and then returns nil.
func Run(ctx context.Context, o Options) error {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(download.Port)))
	if err != nil {
		return fmt.Errorf("serve images to users: %w", err)
	}
	return serveUsers(ctx, o, l)
}

// serveUsers serves on a listener, and closes it.
func serveUsers(ctx context.Context, o Options, l net.Listener) error {
	h := &http.Server{
		Handler:           newHandler(o),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: headerPatience, IdleTimeout: idlePatience, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog: slog.NewLogLogger(o.Logger.Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(ctx, func() { _ = h.Close() })
	defer stop()
	if err := h.Serve(newLimitedListener(l, maxConnections)); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve images to users: %w", err)
	}
	return nil
}

func newHandler(o Options) http.Handler {
	s := &server{
		o: o, reviews: semaphore.NewWeighted(maxReviews), pieces: semaphore.NewWeighted(maxPieces), ofDisk: map[string]int{},
	}
	mux := http.NewServeMux()
	mux.HandleFunc(download.HashesPath, s.admitRequest(s.sendHashes))
	mux.HandleFunc(download.DataPath, s.admitRequest(s.sendData))
	return mux
}

// admitRequest calls answer for requests with a token, a few at a time. An error of answer is the response, unless a part of
// the response is on its way: then the connection breaks.
func (s *server) admitRequest(answer func(http.ResponseWriter, *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		on := r.PathValue("disk")
		err := s.checkToken(r)
		if err == nil {
			err = s.beginRequest(on)
		}
		if err != nil {
			http.Error(w, err.Error(), errclass.HTTPStatus(err))
			return
		}
		defer s.endRequest(on)
		ctx, cancel := context.WithTimeout(r.Context(), cmp.Or(s.o.RequestTime, longestRequest))
		defer cancel()
		sent := &response{ResponseWriter: w}
		err = answer(sent, r.WithContext(ctx))
		if err == nil {
			return
		}
		s.o.Logger.Info("an image was not sent whole", "path", r.URL.Path, "error", err)
		if sent.begun {
			panic(http.ErrAbortHandler) // so that the reader does not take it for whole
		}
		http.Error(w, err.Error(), errclass.HTTPStatus(err))
	}
}

// beginRequest returns an error of class Transient if too much is read from a disk. Otherwise endRequest must follow.
func (s *server) beginRequest(on string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ofDisk[on] >= maxRequests {
		return errclass.Errorf(errclass.Transient, "%d requests for images of disk %s are being answered: try again later",
			maxRequests, on)
	}
	s.ofDisk[on]++
	return nil
}

func (s *server) endRequest(on string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ofDisk[on]--; s.ofDisk[on] == 0 {
		delete(s.ofDisk, on)
	}
}

// response knows whether it has begun.
type response struct {
	http.ResponseWriter

	begun bool
}

func (r *response) Write(p []byte) (int, error) {
	r.begun = true
	return r.ResponseWriter.Write(p)
}

// Unwrap is for [http.ResponseController].
func (r *response) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// checkToken returns an error unless the request shows a token for downloads. No message has the token.
func (s *server) checkToken(r *http.Request) error {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || token == "" {
		return errclass.Errorf(errclass.Denied, "the request has no token: use `varve image download`")
	}
	if !s.reviews.TryAcquire(1) {
		return errclass.Errorf(errclass.Transient, "%d tokens are being reviewed: try again later", maxReviews)
	}
	defer s.reviews.Release(1)
	ctx, cancel := context.WithTimeout(r.Context(), reviewPatience)
	defer cancel()
	review, err := s.o.Kubernetes.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{download.Audience}},
	}, metav1.CreateOptions{})
	if err != nil {
		return errclass.Errorf(errclass.Transient, "have the API server review the token: %w", err)
	}
	want := "system:serviceaccount:" + s.o.Namespace + ":" + download.ServiceAccount
	switch status := &review.Status; {
	case !status.Authenticated || !slices.Contains(status.Audiences, download.Audience):
		return errclass.Errorf(errclass.Denied, "the token is not valid for the audience %s", download.Audience)
	case status.User.Username != want:
		return errclass.Errorf(errclass.Denied, "the token is of %s: make one of the service account %s",
			status.User.Username, download.ServiceAccount)
	}
	return nil
}
