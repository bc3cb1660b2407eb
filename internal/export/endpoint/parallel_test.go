package endpoint_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export/endpoint"
	"github.com/varvebackup/varve/test/authority"
	"github.com/varvebackup/varve/test/exportsite"
	"github.com/varvebackup/varve/test/verdict"
)

// readers read pieces of a disk at the same time, as the workers of a repository do.
const (
	readers    = 8
	pieceBytes = 64 << 10
	pieces     = 16 * readers
)

// fakeDisk is the content of a disk, and serves it as KubeVirt 1.8 does. answer answers the requests for pieces; nil: as
// they are.
type fakeDisk struct {
	content []byte
	answer  func(w http.ResponseWriter, r *http.Request, piece []byte)
}

func newFakeDisk(seed byte) *fakeDisk {
	d := &fakeDisk{content: make([]byte, pieces*pieceBytes)}
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(d.content)
	return d
}

func (d *fakeDisk) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasSuffix(r.URL.Path, "/map") {
		const page = `{"extents":[{"offset":0,"length":%d,"type":0,"description":"data"}],"next_offset":null}`
		fmt.Fprintf(w, page, len(d.content))
		return
	}
	offset, _ := strconv.Atoi(r.URL.Query().Get("offset"))
	length, _ := strconv.Atoi(r.URL.Query().Get("length"))
	if offset >= len(d.content) {
		panic(http.ErrAbortHandler)
	}
	piece := d.content[offset:min(offset+length, len(d.content))]
	if d.answer == nil {
		_, _ = w.Write(piece)
		return
	}
	d.answer(w, r, piece)
}

// open opens the disk. change may change the client's options; it may be nil.
func (d *fakeDisk) open(t *testing.T, s *httptest.Server, change func(*endpoint.Options)) *endpoint.Disk {
	t.Helper()
	o := endpoint.Options{FirstPause: time.Millisecond, LongestPause: 5 * time.Millisecond, Patience: 10 * time.Second}
	useServer(&o, s, exportsite.Token)
	if change != nil {
		change(&o)
	}
	disk, err := exportsite.NewClient(t, o).OpenDisk(t.Context(), endpoint.Volume{
		Name: "disk", Map: s.URL + "/exports/disk/map", Data: s.URL + "/exports/disk/data", Dialect: endpoint.KubeVirt,
	}, "id")
	if err != nil {
		t.Fatal(err)
	}
	return disk
}

func (d *fakeDisk) serve(t *testing.T) *httptest.Server {
	t.Helper()
	s := httptest.NewTLSServer(d)
	t.Cleanup(s.Close)
	return s
}

// readAll reads the disk in pieces, several at a time. It returns what came, and where reading succeeded.
func readAll(ctx context.Context, disk *endpoint.Disk) (got []byte, done []bool, err error) {
	got, done = make([]byte, pieces*pieceBytes), make([]bool, pieces)
	group, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range readers {
		group.Go(func() error {
			for i := next.Add(1) - 1; i < pieces; i = next.Add(1) - 1 {
				if err := disk.ReadAt(ctx, got[i*pieceBytes:(i+1)*pieceBytes], i*pieceBytes); err != nil {
					return err
				}
				done[i] = true
			}
			return nil
		})
	}
	return got, done, group.Wait()
}

// The requests of all readers are under way at once, over connections that are used again. The server answers the
// latest one first.
func TestDisk_keepsRequestsInFlight(t *testing.T) {
	t.Parallel()
	d := newFakeDisk(1)
	type request struct {
		turn   chan struct{}
		before *request
	}
	var mu sync.Mutex
	var latest *request
	waiting := 0
	d.answer = func(w http.ResponseWriter, r *http.Request, piece []byte) {
		mu.Lock()
		mine := &request{turn: make(chan struct{}), before: latest}
		latest, waiting = mine, waiting+1
		if waiting == readers {
			close(mine.turn)
			latest, waiting = nil, 0
		}
		mu.Unlock()
		select {
		case <-mine.turn:
		case <-r.Context().Done():
			return
		}
		sendPart(w, piece)
		if mine.before != nil {
			close(mine.before.turn)
		}
	}
	var dialed atomic.Int64
	disk := d.open(t, d.serve(t), func(o *endpoint.Options) {
		o.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			dialed.Add(1)
			return new(net.Dialer).DialContext(ctx, network, address)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	got, _, err := readAll(ctx, disk)
	if err != nil || !bytes.Equal(got, d.content) {
		verdict.JudgeErrorf(t, err == nil, "other bytes, or none: %v", err)
	}
	// On a busy machine, package net/http gives up a connection now and then.
	if n := dialed.Load(); n > 3*readers {
		t.Errorf("%d connections for %d requests of %d readers", n, pieces, readers)
	}
}

// Of the requests in flight, one fails here and there, comes short, or breaks, also in the middle of an answer. The
// others go on, and no byte is wrong.
func TestDisk_mendsOneOfManyRequests(t *testing.T) {
	t.Parallel()
	answerWith := func(status int) func(http.ResponseWriter, []byte) {
		return func(w http.ResponseWriter, _ []byte) { http.Error(w, "no", status) }
	}
	for name, fault := range map[string]func(w http.ResponseWriter, piece []byte){
		"an error":           answerWith(http.StatusInternalServerError),
		"a missing launcher": answerWith(http.StatusServiceUnavailable),
		"nothing":            func(http.ResponseWriter, []byte) {},
		"a short answer":     func(w http.ResponseWriter, piece []byte) { _, _ = w.Write(piece[:len(piece)/3]) },
		"a cut before it":    func(http.ResponseWriter, []byte) { panic(http.ErrAbortHandler) },
		"a broken answer": func(w http.ResponseWriter, piece []byte) {
			sendPart(w, piece[:len(piece)/2])
			panic(http.ErrAbortHandler)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newFakeDisk(2)
			var requests, faults atomic.Int64
			d.answer = func(w http.ResponseWriter, _ *http.Request, piece []byte) {
				if n := requests.Add(1); n%5 == 3 {
					faults.Add(1)
					fault(w, piece)
					return
				}
				_, _ = w.Write(piece)
			}
			got, _, err := readAll(t.Context(), d.open(t, d.serve(t), nil))
			if err != nil || !bytes.Equal(got, d.content) {
				verdict.JudgeErrorf(t, err == nil, "other bytes, or none: %v", err)
			}
			if faults.Load() < pieces/5 {
				t.Errorf("%d faults", faults.Load())
			}
		})
	}
}

// sendPart sends a part of an answer at once.
func sendPart(w http.ResponseWriter, part []byte) {
	_, _ = w.Write(part)
	_ = http.NewResponseController(w).Flush()
}

// One request in flight is refused for good: all reading ends, with that reason, and nothing wrong was handed on.
func TestDisk_oneRefusalEndsAll(t *testing.T) {
	t.Parallel()
	d := newFakeDisk(3)
	d.answer = func(w http.ResponseWriter, r *http.Request, piece []byte) {
		if r.URL.Query().Get("offset") == strconv.Itoa(40*pieceBytes) {
			http.Error(w, "the backup is over", http.StatusGone)
			return
		}
		_, _ = w.Write(piece)
	}
	got, done, err := readAll(t.Context(), d.open(t, d.serve(t), nil))
	var reading *endpoint.Error
	if errclass.Of(err) != errclass.Expired || !errors.As(err, &reading) {
		t.Error(err)
	}
	d.checkDone(t, got, done)
}

// checkDone compares the pieces whose reading succeeded.
func (d *fakeDisk) checkDone(t *testing.T, got []byte, done []bool) {
	t.Helper()
	for i, ok := range done {
		if at := i * pieceBytes; ok && !bytes.Equal(got[at:at+pieceBytes], d.content[at:at+pieceBytes]) {
			verdict.Errorf(t, "piece %d has other bytes", i)
		}
	}
}

// Another server, with another certificate of the same authority and another disk, comes to the same address while
// requests are in flight. Nothing of it is taken, whichever connection it answers on.
func TestDisk_anotherServerInFlightIsRefused(t *testing.T) {
	t.Parallel()
	ca := authority.New(t)
	mine, other := newFakeDisk(4), newFakeDisk(5)
	start := func(d *fakeDisk) *httptest.Server {
		s := httptest.NewUnstartedServer(d)
		s.TLS = &tls.Config{Certificates: []tls.Certificate{ca.Issue(t, "server", "localhost")}, MinVersion: tls.VersionTLS12}
		s.StartTLS()
		t.Cleanup(s.Close)
		return s
	}
	first, second := start(mine), start(other)
	var address atomic.Pointer[string]
	at := func(s *httptest.Server) { address.Store(new(s.Listener.Addr().String())) }
	at(first)
	var requests atomic.Int64
	mine.answer = func(w http.ResponseWriter, _ *http.Request, piece []byte) {
		if requests.Add(1) > pieces/2 {
			at(second)
			sendPart(w, piece[:len(piece)/2]) // The rest would come from the other one.
			panic(http.ErrAbortHandler)
		}
		_, _ = w.Write(piece)
	}
	disk := mine.open(t, first, func(o *endpoint.Options) {
		certificate := filepath.Join(ca.Files(t), "ca-cert.pem")
		o.Authorities = func(context.Context) ([]byte, error) { return os.ReadFile(certificate) }
		o.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, *address.Load())
		}
	})
	got, done, err := readAll(t.Context(), disk)
	if !errors.Is(err, endpoint.ErrOtherPoint) {
		t.Errorf("it was read as the same disk: %v", err)
	}
	mine.checkDone(t, got, done)
}

// Whoever cancels ends all requests in flight at once, at the server, too.
func TestDisk_cancelEndsAllRequests(t *testing.T) {
	t.Parallel()
	d := newFakeDisk(6)
	var arrived, ended sync.WaitGroup
	arrived.Add(readers)
	ended.Add(readers)
	d.answer = func(w http.ResponseWriter, r *http.Request, piece []byte) {
		sendPart(w, piece[:len(piece)/2])
		arrived.Done()
		<-r.Context().Done()
		ended.Done()
	}
	disk := d.open(t, d.serve(t), func(o *endpoint.Options) { o.Stall = time.Hour })
	ctx, cancel := context.WithCancel(t.Context())
	go func() { arrived.Wait(); cancel() }()
	got, done, err := readAll(ctx, disk)
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	ended.Wait()
	d.checkDone(t, got, done)
}
