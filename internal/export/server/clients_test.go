package server_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/exporttest"
	"github.com/varvebackup/varve/internal/export/server"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/verdict"
)

// dial opens a connection with TLS and a receive buffer of 256 KiB. One below the segments of the loopback interface
// would make every connection slow.
func (s *site) dial(t *testing.T) *tls.Conn {
	t.Helper()
	plain, err := net.Dial("tcp", s.address)
	if err != nil {
		t.Fatal(err)
	}
	if err := plain.(*net.TCPConn).SetReadBuffer(256 << 10); err != nil {
		t.Fatal(err)
	}
	conn := tls.Client(plain, &tls.Config{RootCAs: s.roots, ServerName: "localhost"})
	t.Cleanup(func() { conn.Close() })
	return conn
}

const goodRequest = "GET /exports/root/data HTTP/1.1\r\nHost: x\r\nX-Kubevirt-Export-Token: " + token + "\r\n\r\n"

// readClosed reads until the server closes the connection, and returns how long that took.
func readClosed(t *testing.T, conn net.Conn) time.Duration {
	t.Helper()
	began := time.Now()
	conn.SetReadDeadline(began.Add(30 * time.Second))
	if _, err := io.Copy(io.Discard, conn); err != nil && strings.Contains(err.Error(), "timeout") {
		t.Error("the connection stays open")
	}
	return time.Since(began)
}

// endless is a volume whose reading ends only with its sink or its request.
type endless struct {
	*exporttest.Volume
	reading atomic.Int64
	most    atomic.Int64
}

func (e *endless) Read(ctx context.Context, part extent.Extent, scope export.Scope, sink func(export.Chunk) error) error {
	e.most.Store(max(e.most.Load(), e.reading.Add(1)))
	defer e.reading.Add(-1)
	return e.Volume.Read(ctx, part, scope, sink)
}

func (e *endless) awaitIdle(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); e.reading.Load() > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d reads go on", e.reading.Load())
		}
	}
}

func TestClients_thatTakeNothingAreCut(t *testing.T) {
	t.Parallel()
	disk := &endless{Volume: exporttest.NewVolume("root", 32<<20, false, 1)}
	s := openVolumes(t, server.Config{Limits: server.Limits{Stall: 2 * time.Second, Keepalive: 50 * time.Millisecond}}, disk)
	for _, request := range []string{goodRequest, strings.Replace(goodRequest, "root/data", "stream", 1)} {
		conn := s.dial(t)
		if _, err := conn.Write([]byte(request)); err != nil {
			t.Fatal(err)
		}
		for disk.most.Swap(0) == 0 {
			time.Sleep(time.Millisecond)
		}
		disk.awaitIdle(t)
	}
	// A stalled stream of HTTP/2 ends as well, and the connection's other requests go on.
	client := s.newClient(t, true)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/exports/root/data", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set(server.TokenHeader, token)
	response, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	disk.awaitIdle(t)
	if got := askWith(t, client, http.MethodGet, s.url+"/exports/root/data?length=512"); got.status != 200 || len(got.body) != 512 {
		t.Errorf("%d, %d bytes", got.status, len(got.body))
	}
	if n, err := io.Copy(io.Discard, response.Body); err == nil {
		t.Errorf("%d bytes and no error", n)
	}
}

// A client that is slow, but takes something within the limit for each piece, gets everything.
func TestClients_thatAreSlowGetEverything(t *testing.T) {
	t.Parallel()
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("http2=%t", http2), func(t *testing.T) {
			t.Parallel()
			disk := exporttest.NewVolume("root", 16<<20, false, 1)
			s := openVolumes(t, server.Config{Limits: server.Limits{Stall: 2 * time.Second}}, disk)
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/exports/root/data", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set(server.TokenHeader, token)
			began := time.Now()
			response, err := s.newClient(t, http2).Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			var body bytes.Buffer
			for err == nil {
				time.Sleep(60 * time.Millisecond) // at most 4 MiB/s: the buffers are full most of the time
				_, err = io.CopyN(&body, response.Body, 256<<10)
			}
			if !errors.Is(err, io.EOF) || !bytes.Equal(body.Bytes(), disk.Content) {
				verdict.JudgeErrorf(t, errors.Is(err, io.EOF), "%d bytes: %v", body.Len(), err)
			}
			if took := time.Since(began); took < 3*time.Second {
				t.Errorf("it took only %s: that is no slow client", took)
			}
		})
	}
}

func TestClients_thatSendTheirRequestSlowlyAreCut(t *testing.T) {
	t.Parallel()
	s := openVolumes(t, server.Config{Limits: server.Limits{HeaderTime: 2 * time.Second, IdleTime: 2 * time.Second}}, exporttest.NewVolume("root", 4096, false, 1))
	begin := func() net.Conn {
		conn := s.dial(t)
		if err := conn.Handshake(); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	var group sync.WaitGroup
	for name, open := range map[string]func() net.Conn{
		"no handshake": func() net.Conn {
			conn, err := net.Dial("tcp", s.address)
			if err != nil {
				t.Error(err)
			}
			return conn
		},
		"no request": begin,
		"drip": func() net.Conn {
			conn := begin()
			group.Go(func() {
				for _, b := range goodRequest {
					if _, err := conn.Write([]byte(string(b))); err != nil {
						return
					}
					time.Sleep(50 * time.Millisecond)
				}
			})
			return conn
		},
		"no body": func() net.Conn {
			conn := begin()
			conn.Write([]byte("POST /exports/root/data HTTP/1.1\r\nHost: x\r\nX-Kubevirt-Export-Token: " + token + "\r\nContent-Length: 1000\r\n\r\n"))
			return conn
		},
		"idle": func() net.Conn {
			conn := begin()
			conn.Write([]byte(goodRequest))
			return conn
		},
	} {
		group.Go(func() {
			conn := open()
			defer conn.Close()
			if took := readClosed(t, conn); took > 10*time.Second {
				t.Errorf("%s: open for %s", name, took)
			}
		})
	}
	group.Wait()
}

// A client that closes its half of the connection has gone: nothing goes on for it, and nobody else notices.
func TestClients_thatCloseTheirHalfAreGone(t *testing.T) {
	t.Parallel()
	disk := &endless{Volume: exporttest.NewVolume("root", 32<<20, false, 1)}
	s := openVolumes(t, server.Config{}, disk)
	for range 10 {
		conn := s.dial(t)
		if _, err := conn.Write([]byte(goodRequest)); err != nil {
			t.Fatal(err)
		}
		if err := conn.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if err := conn.NetConn().(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		readClosed(t, conn)
	}
	disk.awaitIdle(t)
	if got := s.ask(t, http.MethodGet, "/exports/root/data"); got.status != 200 || !bytes.Equal(got.body, disk.Content) {
		verdict.JudgeErrorf(t, got.status == 200 && got.cut == nil, "%d", got.status)
	}
}

func TestLimits_oneRequestTooManyIsToldToComeAgain(t *testing.T) {
	t.Parallel()
	var limited atomic.Int64
	wait, begun := make(chan struct{}), make(chan struct{})
	volume := &told{chunks: []export.Chunk{chunk(0, make([]byte, 4096))}, wait: wait, begun: begun}
	s := openVolumes(t, server.Config{Limits: server.Limits{Requests: 2}, Hooks: server.Hooks{Limited: func() { limited.Add(1) }}}, volume)
	var group sync.WaitGroup
	for range 2 {
		group.Go(func() { s.ask(t, http.MethodGet, "/exports/told/data") })
		<-begun
	}
	if got := s.ask(t, http.MethodGet, "/exports/told/map?start=8192"); got.status != 503 || got.header.Get("Retry-After") != "1" {
		t.Errorf("a third request: %d %v", got.status, got.header)
	}
	if got := s.ask(t, http.MethodGet, server.ReadyPath); got.status != 200 {
		t.Errorf("readiness: %d", got.status)
	}
	if got := s.ask(t, http.MethodGet, "/exports/told/data", server.TokenHeader, "wrong"); got.status != 401 {
		t.Errorf("without the token: %d", got.status)
	}
	close(wait)
	group.Wait()
	if got := s.ask(t, http.MethodGet, "/exports/told/map?start=8192"); got.status != 200 || limited.Load() == 0 {
		t.Errorf("afterwards: %d", got.status)
	}
}

// Streams of many volumes read fewer at once when there is no room, and leave room when they end.
func TestLimits_volumesOfStreamsCountAsRequests(t *testing.T) {
	t.Parallel()
	var volumes []export.Volume
	var reading, most atomic.Int64
	for i := range 6 {
		volumes = append(volumes, &counted{Volume: exporttest.NewVolume(string(rune('a'+i)), 4<<20, false, 1), reading: &reading, most: &most})
	}
	s := openVolumes(t, server.Config{Limits: server.Limits{Requests: 4}}, volumes...)
	for range 3 {
		var group sync.WaitGroup
		for range 2 {
			group.Go(func() {
				if got := s.ask(t, http.MethodGet, "/exports/stream"); got.status != 503 && (got.status != 200 || got.cut != nil) {
					t.Errorf("%d %v", got.status, got.cut)
				}
			})
		}
		group.Wait()
	}
	if got := most.Load(); got > 4 || got < 2 {
		t.Errorf("%d volumes were read at once", got)
	}
	for deadline := time.Now().Add(10 * time.Second); s.ask(t, http.MethodGet, "/exports/stream").status != 200; {
		if time.Now().After(deadline) {
			t.Fatal("no room is left")
		}
	}
	most.Store(0)
	if s.ask(t, http.MethodGet, "/exports/stream"); most.Load() < 2 {
		t.Error("a stream alone reads its volumes one after the other")
	}
}

// counted counts how many of some volumes are read at once.
type counted struct {
	*exporttest.Volume
	reading, most *atomic.Int64
}

func (c *counted) Read(ctx context.Context, part extent.Extent, scope export.Scope, sink func(export.Chunk) error) error {
	n := c.reading.Add(1)
	defer c.reading.Add(-1)
	for most := c.most.Load(); n > most && !c.most.CompareAndSwap(most, n); most = c.most.Load() {
	}
	return c.Volume.Read(ctx, part, scope, sink)
}

// crowd opens n connections side by side of which each does one thing that keeps a connection, and returns a function that closes them.
func crowd(t *testing.T, s *site, n int) (closeAll func()) {
	t.Helper()
	conns := make(chan net.Conn, n)
	var group sync.WaitGroup
	for worker := range 8 {
		group.Go(func() {
			for i := worker; i < n; i += 8 {
				plain, err := net.Dial("tcp", s.address)
				if err != nil {
					t.Errorf("connection %d: %v", i, err)
					return
				}
				conns <- plain
				if i%50 == 0 {
					conn := tls.Client(plain, &tls.Config{RootCAs: s.roots, ServerName: "localhost"})
					conn.SetDeadline(time.Now().Add(5 * time.Second))
					conn.Write([]byte("GET /exports/root/data HTTP/1.1\r\nHost: x\r\nX-Kubevirt")) // it may be closed already
				}
			}
		})
	}
	group.Wait()
	return func() {
		for range len(conns) {
			(<-conns).Close()
		}
	}
}

// beside runs a good client beside a crowd: a download that goes on all the time, and new connections.
func beside(t *testing.T, s *site, disk *exporttest.Volume, n int) {
	t.Helper()
	slow := s.dial(t)
	if _, err := slow.Write([]byte(strings.Replace(goodRequest, "\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1))); err != nil {
		t.Fatal(err)
	}
	head := make([]byte, 64<<10)
	if _, err := io.ReadFull(slow, head); err != nil {
		t.Fatal(err)
	}
	closeAll := crowd(t, s, n)
	defer closeAll()
	for range 10 {
		client := s.newClient(t, false)
		if got := askWith(t, client, http.MethodGet, s.url+"/exports/root/data?offset=65536&length=100000"); got.status != 200 || !bytes.Equal(got.body, disk.Content[65536:165536]) {
			verdict.JudgeErrorf(t, got.status == 200 && got.cut == nil, "a new connection: %d", got.status)
		}
		client.CloseIdleConnections()
	}
	rest, err := io.ReadAll(slow)
	if err != nil {
		t.Errorf("the download that was there first: %v", err)
	}
	_, body, _ := bytes.Cut(slices.Concat(head, rest), []byte("\r\n\r\n"))
	if !bytes.Equal(body, disk.Content) {
		verdict.JudgeErrorf(t, err == nil, "the download that was there first has %d bytes", len(body))
	}
}

func TestLimits_aCrowdDoesNotHarmAGoodClient(t *testing.T) {
	t.Parallel()
	disk := exporttest.NewVolume("root", 16<<20, false, 1)
	s := openVolumes(t, server.Config{Limits: server.Limits{Connections: 20}}, disk)
	beside(t, s, disk, 300)
}

func TestHooks_countWhatIsServed(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	sent, answered := map[string]int64{}, map[string]int{}
	done := make(chan struct{}, 10)
	volumes := threeVolumes()[:2]
	s := openVolumes(t, server.Config{Hooks: server.Hooks{
		Sent: func(volume, endpoint string, bytes int64) {
			mu.Lock()
			defer mu.Unlock()
			sent[volume+" "+endpoint] += bytes
		},
		Answered: func(volume, endpoint string, status int, took time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			if took < 0 {
				t.Errorf("%s took %s", endpoint, took)
			}
			answered[volume+" "+endpoint+" "+http.StatusText(status)]++
			done <- struct{}{}
		},
	}}, asVolumes(volumes)...)
	for _, path := range []string{"/exports/root/data?length=1000", "/exports/data/map", "/exports/stream", "/exports/nothing/data", "/nothing"} {
		s.ask(t, http.MethodGet, path)
		<-done
	}
	var dirty, data int64
	for _, r := range wantRegions(volumes[1], extent.Extent{Length: volumes[1].Description.Bytes}, false) {
		if r.Type == "dirty" {
			dirty += r.Length
		}
	}
	for _, r := range wantRegions(volumes[0], extent.Extent{Length: volumes[0].Description.Bytes}, false) {
		if r.Type == "data" {
			data += r.Length
		}
	}
	mu.Lock()
	defer mu.Unlock()
	for key, want := range map[string]int64{"root data": 1000, "root stream": data, "data stream": dirty} {
		if sent[key] != want {
			t.Errorf("%s: %d bytes, not %d", key, sent[key], want)
		}
	}
	for _, key := range []string{"root data OK", "data map OK", " stream OK", " data Not Found", "  Not Found"} {
		if answered[key] != 1 {
			t.Errorf("%q: %v", key, answered)
		}
	}
}

// What the server holds does not depend on how much there is to send, nor on how slow clients are. It measures memory, so nothing
// runs beside it.
func TestStream_memoryIsBounded(t *testing.T) {
	const clients = 24
	s := openVolumes(t, server.Config{}, newScattered(1<<42))
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	for range clients {
		conn := s.dial(t)
		if _, err := conn.Write([]byte(strings.Replace(goodRequest, "root/data", "stream", 1))); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	if grown := heap() - before; grown > clients<<20 {
		t.Errorf("%d clients hold %d bytes", clients, grown)
	} else {
		t.Logf("%d KiB a client", grown/clients>>10)
	}
}
