package proxy

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/test/verdict"
)

// endless sends until its client is gone.
func endless(sent *atomic.Int64, ended chan<- struct{}) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		for piece := make([]byte, 64<<10); r.Context().Err() == nil; {
			n, err := w.Write(piece)
			sent.Add(int64(n))
			if err != nil {
				return
			}
		}
	}
}

func TestClient_thatGoesEndsTheRequest(t *testing.T) {
	t.Parallel()
	for _, http2 := range []bool{false, true} {
		s := open(t, Limits{})
		var sent atomic.Int64
		ended := make(chan struct{})
		s.serve("ns", "web", endless(&sent, ended))
		response, err := s.newClient(http2).Do(s.request(http.MethodGet, pathOf("ns", "web", "/x")))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(response.Body, make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			t.Errorf("the export goes on (HTTP/2: %t)", http2)
		}
	}
}

// A client that reads nothing stops the export: what is under way is bounded. It is cut in the end.
func TestClient_thatReadsNothingIsCut(t *testing.T) {
	t.Parallel()
	s := open(t, Limits{Stall: time.Second})
	var sent atomic.Int64
	ended := make(chan struct{})
	s.serve("ns", "web", endless(&sent, ended))
	conn := s.dial()
	if _, err := conn.Write([]byte("GET " + pathOf("ns", "web", "/x") + " HTTP/1.1\r\nHost: x\r\nX-Kubevirt-Export-Token: " + token + "\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Fatal("the client keeps its place")
	}
	if n := sent.Load(); n > 32<<20 {
		t.Errorf("%d bytes were taken for a client that read nothing", n)
	}
}

// What an export sends reaches the client before the answer's end.
func TestAnswer_isNotHeldBack(t *testing.T) {
	t.Parallel()
	for _, http2 := range []bool{false, true} {
		s := open(t, Limits{})
		goOn := make(chan struct{})
		s.serve("ns", "web", func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, "first")
			http.NewResponseController(w).Flush()
			<-goOn
			io.WriteString(w, " second")
		})
		response, err := s.newClient(http2).Do(s.request(http.MethodGet, pathOf("ns", "web", "/x")))
		if err != nil {
			t.Fatal(err)
		}
		first := make([]byte, 5)
		if _, err := io.ReadFull(response.Body, first); err != nil || string(first) != "first" {
			verdict.JudgeErrorf(t, err == nil, "%q: %v", first, err)
		}
		close(goOn)
		rest, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || string(rest) != " second" {
			verdict.JudgeErrorf(t, err == nil, "%q: %v", rest, err)
		}
	}
}

// An export that breaks off breaks the client's answer off, whether its length is known or not.
func TestAnswer_thatBreaksOffIsNotWhole(t *testing.T) {
	t.Parallel()
	for _, length := range []string{"", "1000000"} {
		for _, http2 := range []bool{false, true} {
			s := open(t, Limits{})
			s.serve("ns", "web", func(w http.ResponseWriter, r *http.Request) {
				if length != "" {
					w.Header().Set("Content-Length", length)
				}
				w.Write(make([]byte, 100<<10))
				http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			})
			if got := s.do(s.newClient(http2), s.request(http.MethodGet, pathOf("ns", "web", "/x"))); got.cut == nil {
				t.Errorf("length %q, HTTP/2 %t: %d bytes end well", length, http2, len(got.body))
			}
		}
	}
}

// A header that comes slowly, and a connection that says nothing.
func TestSlowClients_areCut(t *testing.T) {
	t.Parallel()
	s := open(t, Limits{HeaderTime: 3 * time.Second, IdleTime: 3 * time.Second})
	s.serve("ns", "web", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "ok") })
	silent, err := net.Dial("tcp", s.address)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	slow := s.dial()
	go func() {
		for _, b := range []byte("GET " + strings.Repeat("x", 1000)) {
			if _, err := slow.Write([]byte{b}); err != nil {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	}()
	for what, conn := range map[string]net.Conn{"silent": silent, "slow": slow} {
		conn.SetReadDeadline(time.Now().Add(30 * time.Second))
		if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the %s connection stays open", what)
		}
	}
	if got := s.ask(http.MethodGet, pathOf("ns", "web", "/"+strings.Repeat("x", 40<<10))); got.status != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a long header: %d", got.status)
	}
}

// A crowd without a token costs a client that downloads nothing.
func TestStrangers_doNotCutADownload(t *testing.T) {
	t.Parallel()
	s := open(t, Limits{Connections: 5, HeaderTime: time.Minute})
	content := bytes.Repeat([]byte("varve"), 1<<20)
	goOn := make(chan struct{})
	s.serve("ns", "web", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(podspec.TokenHeader) != token {
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		w.Write(content[:1<<20])
		http.NewResponseController(w).Flush()
		<-goOn
		w.Write(content[1<<20:])
	})
	response, err := s.client.Do(s.request(http.MethodGet, pathOf("ns", "web", "/x")))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var crowd sync.WaitGroup
	for i := range 40 {
		crowd.Go(func() {
			if i%2 == 0 {
				if conn, err := net.Dial("tcp", s.address); err == nil {
					t.Cleanup(func() { conn.Close() })
				}
				return
			}
			// One with a wrong token is a stranger even after its answer. It may be closed before that.
			if answer, err := s.newClient(false).Do(s.request(http.MethodGet, pathOf("ns", "web", "/x"), podspec.TokenHeader, "wrong")); err == nil {
				answer.Body.Close()
			}
		})
	}
	crowd.Wait()
	close(goOn)
	if got, err := io.ReadAll(response.Body); err != nil || !bytes.Equal(got, content) {
		verdict.JudgeErrorf(t, err == nil, "%d bytes: %v", len(got), err)
	}
}

// Exports of one namespace that do not answer, or many downloads from it, leave room for those of another one.
func TestNamespaces_leaveEachOtherRoom(t *testing.T) {
	t.Parallel()
	s := open(t, Limits{Pending: 4, PendingPerNamespace: 2, Requests: 4, RequestsPerNamespace: 2})
	hang := make(chan struct{})
	silent := s.serve("greedy", "silent", func(w http.ResponseWriter, r *http.Request) { <-hang })
	busy := s.serve("busy", "busy", func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "x")
		http.NewResponseController(w).Flush()
		<-hang
	})
	s.serve("calm", "web", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "ok") })
	var under sync.WaitGroup
	for _, path := range []string{pathOf("greedy", "silent", "/x"), pathOf("busy", "busy", "/x")} {
		for range 2 {
			under.Go(func() {
				response, err := s.newClient(false).Do(s.request(http.MethodGet, path))
				if err != nil {
					t.Error(err)
					return
				}
				defer response.Body.Close()
				io.Copy(io.Discard, response.Body)
			})
		}
	}
	until(t, "the requests' arrival", func() bool { return silent.asked.Load() == 2 && busy.asked.Load() == 2 })
	for _, path := range []string{pathOf("greedy", "silent", "/x"), pathOf("busy", "busy", "/x")} {
		until(t, "a refusal of "+path, func() bool {
			answer, err := s.client.Do(s.request(http.MethodGet, path))
			if err != nil {
				return false
			}
			defer answer.Body.Close()
			return answer.StatusCode == http.StatusServiceUnavailable && answer.Header.Get("Retry-After") != ""
		})
	}
	if got := s.ask(http.MethodGet, pathOf("calm", "web", "/x")); got.status != http.StatusOK || string(got.body) != "ok" {
		t.Errorf("another namespace: %d", got.status)
	}
	close(hang)
	under.Wait()
	until(t, "the places' return", func() bool { return s.ask(http.MethodGet, pathOf("busy", "busy", "/x")).status == http.StatusOK })
}

// An export that accepts connections and says nothing ends in time.
func TestExport_thatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	s := open(t, Limits{DialTime: 300 * time.Millisecond, AnswerTime: 300 * time.Millisecond})
	l := s.listen()
	t.Cleanup(func() { l.Close() })
	s.lead("ns", "mute", l.Addr().String()) // no handshake
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	s.serve("ns", "silent", func(w http.ResponseWriter, r *http.Request) { <-hang })
	closed := s.listen()
	closed.Close()
	s.lead("ns", "closed", closed.Addr().String())
	for _, export := range []string{"mute", "silent", "closed"} {
		began := time.Now()
		if got := s.ask(http.MethodGet, pathOf("ns", export, "/x")); got.status != http.StatusServiceUnavailable || got.header.Get("Retry-After") == "" || time.Since(began) > 10*time.Second {
			t.Errorf("%s: %d after %s", export, got.status, time.Since(began))
		}
	}
}

// A client that goes while its export is silent leaves nothing behind.
func TestClient_thatGoesBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	s := open(t, Limits{})
	asked, ended := make(chan struct{}), make(chan struct{})
	s.serve("ns", "web", func(w http.ResponseWriter, r *http.Request) {
		close(asked)
		<-r.Context().Done()
		close(ended)
	})
	conn := s.dial()
	if _, err := conn.Write([]byte("GET " + pathOf("ns", "web", "/x") + " HTTP/1.1\r\nHost: x\r\nX-Kubevirt-Export-Token: " + token + "\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	<-asked
	conn.Close()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Error("the export goes on")
	}
}

// Whoever has a wrong token is a stranger after the answer as before.
func TestStrangers_goBeforeKnownClients(t *testing.T) {
	t.Parallel()
	s := open(t, Limits{Connections: 2, HeaderTime: time.Minute})
	s.serve("ns", "web", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(podspec.TokenHeader) != token {
			w.WriteHeader(http.StatusUnauthorized)
		}
	})
	ask := func(conn net.Conn, token string) error {
		conn.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := conn.Write([]byte("HEAD " + pathOf("ns", "web", "/x") + " HTTP/1.1\r\nHost: x\r\nX-Kubevirt-Export-Token: " + token + "\r\n\r\n")); err != nil {
			return err
		}
		_, err := conn.Read(make([]byte, 4096))
		return err
	}
	known, stranger := s.dial(), s.dial()
	for conn, token := range map[net.Conn]string{known: token, stranger: "wrong"} {
		if err := ask(conn, token); err != nil {
			t.Fatal(err)
		}
	}
	s.dial()
	if err := ask(known, token); err != nil {
		t.Errorf("the known client's connection is gone: %v", err)
	}
	if err := ask(stranger, "wrong"); err == nil {
		t.Error("the stranger's connection is open")
	}
}
