package server_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/exporttest"
	"github.com/varvebackup/varve/internal/export/server"
	"github.com/varvebackup/varve/test/verdict"
)

// raw sends bytes over TLS and returns the status of the answer; 0 if the server closed the connection without one.
func (s *site) raw(t *testing.T, request string) int {
	t.Helper()
	conn, err := tls.Dial("tcp", s.address, &tls.Config{RootCAs: s.roots, ServerName: "localhost"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := conn.Write([]byte(request)); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			t.Errorf("no answer to %.80q", request)
		}
		return 0
	}
	response.Body.Close()
	return response.StatusCode
}

// wrongRequests are requests that get no content, each with the status that it gets.
func wrongRequests() map[string]int {
	const good = "Host: x\r\nX-Kubevirt-Export-Token: " + token + "\r\n"
	wrong := map[string]int{}
	get := func(status int, target string, headers ...string) {
		wrong["GET "+target+" HTTP/1.1\r\n"+good+strings.Join(append(headers, ""), "\r\n")+"\r\n"] = status
	}
	plain := func(status int, request string) { wrong[request] = status }

	// Tokens.
	for _, endpoint := range []string{"/exports/root/data", "/exports/root/map", "/exports/root/stream", "/exports/stream", "/exports/nothing/data", "/nothing", "/", "/exports/../exportready"} {
		plain(401, "GET "+endpoint+" HTTP/1.1\r\nHost: x\r\n\r\n")
		plain(401, "GET "+endpoint+" HTTP/1.1\r\nHost: x\r\nX-Kubevirt-Export-Token: another-export-token\r\n\r\n")
		plain(401, "GET "+endpoint+"?x-kubevirt-export-token="+token+" HTTP/1.1\r\nHost: x\r\n\r\n")
	}
	for _, header := range []string{
		"X-Kubevirt-Export-Token:", "X-Kubevirt-Export-Token: " + token[:14], "X-Kubevirt-Export-Token: " + token + "n", "X-Kubevirt-Export-Token: " + strings.ToUpper(token),
		"X-Kubevirt-Export-Token: " + token + "\r\nX-Kubevirt-Export-Token: " + token, "Authorization: Bearer " + token, "Cookie: x-kubevirt-export-token=" + token,
	} {
		plain(401, "GET /exports/root/data HTTP/1.1\r\nHost: x\r\n"+header+"\r\n\r\n")
	}
	plain(401, "POST /exports/root/data HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello")
	// Paths.
	for _, path := range []string{
		"/", "/exports", "/exports/", "/exports//data", "/exports/root", "/exports/root/", "/exports/root/data/", "/exports/root/other", "/exports/root/data/more",
		"/exports/nothing/data", "/exports/nothing/map", "/exports/nothing/stream", "/exports/ROOT/data", "/exports/%2e%2e/data", "/exports/../etc/passwd", "/exports/root%2fdata",
		"/exports/root%00/data", "/exports/" + strings.Repeat("a", 4000) + "/data", "/Exports/root/data", "//exports/root/data", "/exports/stream/", "/exports/stream?volume=nothing", "/exportready/", "/metrics", "/debug/pprof/",
	} {
		get(404, path)
	}
	get(400, "/exports/%zz/data")
	get(400, "exports/root/data")
	// Methods.
	for _, method := range []string{"POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "get"} {
		for _, path := range []string{"/exports/root/data", "/exports/root/map", "/exports/stream"} {
			plain(405, method+" "+path+" HTTP/1.1\r\n"+good+"\r\n")
		}
	}
	plain(405, "POST /exports/root/data HTTP/1.1\r\n"+good+"Content-Length: 100000\r\n\r\nnot all of it")
	plain(405, "POST /exportready HTTP/1.1\r\nHost: x\r\n\r\n")
	plain(400, "GET /exports/root/data HTTP/1.1\r\n"+good+"Content-Length: 5\r\n\r\nhello")
	plain(400, "GET /exports/root/data HTTP/1.1\r\n"+good+"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
	// Ranges.
	for _, value := range []string{
		"bytes=4194304-", "bytes=4194304-4194305", "bytes=9223372036854775807-", "bytes=99999999999999999999-", "bytes=5-4", "bytes=-0", "bytes=-", "bytes=", "bytes=x-y",
		"bytes=-1-5", "bytes=+1-5", "bytes=0x10-0x20", "bytes=1", "bytes=1 -5", "bytes=--5",
	} {
		get(416, "/exports/root/data", "Range: "+value)
	}
	// Parameters.
	for _, query := range []string{"offset=x", "offset=-1", "offset=1.5", "offset=1e3", "offset=0x10", "offset=%2b1", "length=-1", "length=x", "offset=1&offset=1", "offset=%zz", "offset=1;length=2"} {
		get(400, "/exports/root/data?"+query)
		get(400, "/exports/root/map?"+query)
	}
	for _, query := range []string{
		"start=x", "start=-1", "limit=0", "limit=-5", "limit=x", "start=0&start=0", "clean=maybe", "page_size=0", "page_size=-5", "page_size=x", "start=0&offset=0", "limit=5&page_size=5", "clean=true&length=5",
	} {
		get(400, "/exports/root/map?"+query)
	}
	get(416, "/exports/root/data?offset=4194305")
	get(416, "/exports/root/data?offset=99999999999999999999")
	get(416, "/exports/root/map?start=4194305")
	get(416, "/exports/root/map?start=9223372036854775807&limit=9223372036854775807")
	get(416, "/exports/root/map?offset=99999999999999999999")
	for _, query := range []string{"from=1", "volume=root&volume=root", "volume=root&from=1&from=2", "volume=root&from=x", "volume=root&from=-1", "volume=root&from="} {
		get(400, "/exports/stream?"+query, "If-Match: *")
	}
	get(416, "/exports/root/stream?from=4194305", "If-Match: *")
	get(416, "/exports/root/stream?from=99999999999999999999", "If-Match: *")
	get(400, "/exports/root/stream?from=1&from=2", "If-Match: *")
	get(428, "/exports/root/stream?from=1")
	get(412, "/exports/root/data", `If-Match: "another"`)
	// What is no request.
	plain(431, "GET /exports/root/data HTTP/1.1\r\n"+good+"X: "+strings.Repeat("x", 64<<10)+"\r\n\r\n")
	plain(400, "GET /exports/root/data HTTP/1.1\r\nX-Kubevirt-Export-Token: "+token+"\r\n\r\n")
	plain(400, "GET /exports/root/data HTTP/1.1\r\n"+good+"Content-Length: -1\r\n\r\n")
	plain(400, "GET /exports/root/data\r\n\r\n")
	plain(400, "\x00\x01\x02\r\n\r\n")
	plain(505, "GET /exports/root/data HTTP/9.9\r\n"+good+"\r\n")
	return wrong
}

// It measures memory, so nothing runs beside it.
func TestWrongRequests_haveTheRightStatus(t *testing.T) {
	disk := exporttest.NewVolume("root", 4<<20, false, 1)
	s := openVolumes(t, server.Config{Limits: server.Limits{HeaderTime: 2 * time.Second}}, disk)
	wrong := wrongRequests()
	if len(wrong) < 100 {
		t.Errorf("only %d requests", len(wrong))
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for request, want := range wrong {
		if got := s.raw(t, request); got != want {
			t.Errorf("%d instead of %d: %.200q", got, want, request)
		}
	}
	s.client.CloseIdleConnections()
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 16<<20 {
		t.Errorf("%d requests left %d bytes", len(wrong), grown)
	}
	if log := s.log.String(); strings.Contains(log, token) || strings.Contains(log, "panic") || !strings.Contains(log, "token refused") {
		t.Errorf("the log has the token, or a panic, or nothing of refused tokens:\n%.4000s", log)
	}
	if got := s.ask(t, http.MethodGet, "/exports/root/data"); got.status != 200 || string(got.body) != string(disk.Content) {
		verdict.JudgeErrorf(t, got.status == 200 && got.cut == nil, "a good client then got %d", got.status)
	}
}

// A path cannot write lines of its own into the log.
func TestToken_refusalsAreLoggedWithoutQueries(t *testing.T) {
	t.Parallel()
	s := openVolumes(t, server.Config{}, exporttest.NewVolume("root", 4096, false, 1))
	s.ask(t, http.MethodGet, "/exports/a%0alevel=INFO/data?x-kubevirt-export-token=secret-in-query", server.TokenHeader, "secret-in-header")
	log := s.log.String()
	for range 100 {
		s.ask(t, http.MethodGet, "/", server.TokenHeader, "wrong")
	}
	if n := strings.Count(s.log.String(), "token refused"); n < 20 || n > 60 {
		t.Errorf("%d of 101 refusals are logged", n)
	}
	if strings.Contains(log, "secret") || strings.Count(log, "\n") != 1 || !strings.Contains(log, "reason=wrong") {
		t.Error(log)
	}
}

func TestToken_isReadForEachRequest(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	var mu sync.Mutex
	refused := map[string]int{}
	s := openVolumes(t, server.Config{Token: server.ReadTokenFile(file), Hooks: server.Hooks{TokenRefused: func(reason string) {
		mu.Lock()
		defer mu.Unlock()
		refused[reason]++
	}}}, exporttest.NewVolume("root", 4096, false, 1))
	status := func(given string) int {
		return s.ask(t, http.MethodGet, "/exports/root/data", server.TokenHeader, given).status
	}
	if got := status(token); got != 500 {
		t.Errorf("without a file: %d", got)
	}
	for _, c := range []struct{ secret, given, want string }{
		{"", token, "500"},
		{"", "", "500"},
		{" \n", token, "500"},
		{token, token, "200"},
		{token + "\n", token, "200"},
		{token, "", "401"},
		{"another", token, "401"},
		{"another", "another", "200"},
	} {
		if err := os.WriteFile(file, []byte(c.secret), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(status(c.given)); got != c.want {
			t.Errorf("secret %q, given %q: %s", c.secret, c.given, got)
		}
	}
	if diff := cmp.Diff(map[string]int{"unreadable": 4, "missing": 1, "wrong": 1}, refused); diff != "" {
		t.Error(diff)
	}
	if got := s.ask(t, http.MethodGet, "/exports/root/data"); got.status != 401 || got.header.Get("Www-Authenticate") == "" {
		t.Errorf("%d %v", got.status, got.header)
	}
}

// Who has no token does not learn which volumes there are.
func TestToken_comesBeforeTheVolume(t *testing.T) {
	t.Parallel()
	s := open(t, server.Config{Names: []string{"root"}, Volumes: unreachable{t}})
	for _, path := range []string{"/exports/root/data", "/exports/nothing/data"} {
		if got := s.ask(t, http.MethodGet, path, server.TokenHeader, "wrong"); got.status != 401 {
			t.Errorf("%s: %d", path, got.status)
		}
	}
}

type unreachable struct{ t *testing.T }

func (u unreachable) Open(context.Context, string) (export.Volume, error) {
	u.t.Error("a volume was opened")
	return nil, errclass.Transient
}

func TestReadiness_isTheFunctions(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	ready := errors.New("no tunnel yet: secret detail")
	s := openVolumes(t, server.Config{Ready: func(context.Context) error {
		mu.Lock()
		defer mu.Unlock()
		return ready
	}})
	if got := s.ask(t, http.MethodGet, server.ReadyPath, server.TokenHeader, ""); got.status != 503 || strings.Contains(string(got.body), "secret") {
		t.Errorf("%d %s", got.status, got.body)
	}
	mu.Lock()
	ready = nil
	mu.Unlock()
	if got := s.ask(t, http.MethodGet, server.ReadyPath, server.TokenHeader, ""); got.status != 200 {
		t.Errorf("%d", got.status)
	}
}

func TestHandle_isBehindTheTokenToo(t *testing.T) {
	t.Parallel()
	srv, err := server.New(server.Config{Token: knownToken})
	if err != nil {
		t.Fatal(err)
	}
	srv.Handle("/volumes/", "volume", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "content") }))
	srv.Handle("/volumes/broken/", "broken", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("a bug") }))
	for _, c := range []struct {
		path, token string
		status      int
	}{{"/volumes/claim/disk.img", token, 200}, {"/volumes/claim/disk.img", "", 401}, {"/exports/root/data", token, 404}, {"/volume", token, 404}} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set(server.TokenHeader, c.token)
		w := &statusWriter{header: http.Header{}}
		srv.ServeHTTP(w, r)
		if w.status != c.status {
			t.Errorf("%s: %d", c.path, w.status)
		}
	}
}

type statusWriter struct {
	header http.Header
	status int
}

func (w *statusWriter) Header() http.Header         { return w.header }
func (w *statusWriter) WriteHeader(status int)      { w.status = status }
func (w *statusWriter) Write(p []byte) (int, error) { return len(p), nil }
