package proxy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/varvebackup/varve/internal/export/exporttest"
	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/internal/export/server"
	"github.com/varvebackup/varve/test/verdict"
)

// serveVolume starts the export server of one volume.
func (s *site) serveVolume(namespace, export string, size int64) *exporttest.Volume {
	s.Helper()
	disk := exporttest.NewVolume("root", size, true, 7)
	certificate := s.exports.Issue(s, export, podspec.ServiceHosts(namespace, export)...)
	srv, err := server.New(server.Config{
		Names: []string{"root"}, Volumes: exporttest.Volumes{"root": disk}, Token: func() ([]byte, error) { return []byte(token), nil },
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		s.Fatal(err)
	}
	s.serveAs(certificate, namespace, export, srv.ServeHTTP)
	return disk
}

func TestProxy_passesExportsOn(t *testing.T) {
	t.Parallel()
	s := open(t, Limits{})
	disk := s.serveVolume("ns", "web.1", 5<<20+512)
	for _, http2 := range []bool{false, true} {
		client := s.newClient(http2)
		ask := func(method, path string, header ...string) answer {
			t.Helper()
			return s.do(client, s.request(method, pathOf("ns", "web.1", path), header...))
		}
		whole := ask(http.MethodGet, "/exports/root/data")
		if whole.status != http.StatusOK || whole.cut != nil || !bytes.Equal(whole.body, disk.Content) || whole.header.Get("Content-Length") != fmt.Sprint(len(disk.Content)) {
			verdict.JudgeErrorf(t, whole.status == http.StatusOK && whole.cut == nil && !bytes.Equal(whole.body, disk.Content), "%d, %d bytes: %v", whole.status, len(whole.body), whole.cut)
		}
		tag := whole.header.Get("ETag")
		if part := ask(http.MethodGet, "/exports/root/data", "Range", "bytes=1000-1999999", "If-Range", tag); part.status != http.StatusPartialContent || !bytes.Equal(part.body, disk.Content[1000:2000000]) ||
			part.header.Get("Content-Range") != fmt.Sprintf("bytes 1000-1999999/%d", len(disk.Content)) {
			verdict.JudgeErrorf(t, part.status == http.StatusPartialContent && !bytes.Equal(part.body, disk.Content[1000:2000000]), "range: %d %v, %d bytes", part.status, part.header, len(part.body))
		}
		if queried := ask(http.MethodGet, "/exports/root/data?offset=4096&length=512"); !bytes.Equal(queried.body, disk.Content[4096:4608]) {
			verdict.JudgeErrorf(t, queried.status == http.StatusOK && queried.cut == nil, "query: %d, %d bytes", queried.status, len(queried.body))
		}
		if head := ask(http.MethodHead, "/exports/root/data"); head.status != http.StatusOK || head.header.Get("Content-Length") != whole.header.Get("Content-Length") || head.header.Get("Accept-Ranges") != "bytes" || len(head.body) > 0 {
			t.Errorf("HEAD: %d %v", head.status, head.header)
		}
		if page := ask(http.MethodGet, "/exports/root/map"); page.status != http.StatusOK || !bytes.Contains(page.body, []byte(`"regions"`)) || page.header.Get("Content-Type") != "application/json" {
			t.Errorf("map: %d %v %.200s", page.status, page.header, page.body)
		}
		if frames := ask(http.MethodGet, "/exports/stream"); frames.status != http.StatusOK || frames.cut != nil || len(frames.body) < 1<<20 || frames.header.Get("Content-Type") != "application/vnd.varve.export-stream" {
			t.Errorf("stream: %d %v, %d bytes: %v", frames.status, frames.header, len(frames.body), frames.cut)
		}
		for what, c := range map[string]struct {
			path   string
			header []string
			want   int
		}{
			"beyond the end":         {"/exports/root/data", []string{"Range", "bytes=99999999-"}, http.StatusRequestedRangeNotSatisfiable},
			"another point in time":  {"/exports/root/data", []string{"If-Match", `"other"`}, http.StatusPreconditionFailed},
			"the same point in time": {"/exports/root/data", []string{"If-None-Match", tag}, http.StatusNotModified},
			"another token":          {"/exports/root/data", []string{podspec.TokenHeader, "another"}, http.StatusUnauthorized},
			"no such volume":         {"/exports/other/data", nil, http.StatusNotFound},
			"an escaped slash":       {"/exports/root%2Fdata", nil, http.StatusNotFound},
			"upwards":                {"/exports/root/../root/data", nil, http.StatusNotFound},
		} {
			if got := ask(http.MethodGet, c.path, c.header...); got.status != c.want || bytes.Contains(got.body, disk.Content[:512]) {
				t.Errorf("%s: %d, want %d", what, got.status, c.want)
			}
		}
	}
}

func TestProxy_keepsConnectionsToExports(t *testing.T) {
	t.Parallel()
	s := open(t, Limits{})
	u := s.serve("ns", "web", func(w http.ResponseWriter, r *http.Request) { w.Write(make([]byte, 100<<10)) })
	for range 20 {
		if got := s.do(s.newClient(false), s.request(http.MethodGet, pathOf("ns", "web", "/x"))); len(got.body) != 100<<10 {
			t.Fatalf("%+v", got.status)
		}
	}
	if n := u.connections.Load(); n != 1 || u.asked.Load() != 20 {
		t.Errorf("%d connections for %d requests", n, u.asked.Load())
	}
}

// What the proxy refuses reaches no export, and no name server.
func TestProxy_refusesWithoutAskingAnybody(t *testing.T) {
	t.Parallel()
	s := open(t, Limits{})
	s.serve("ns", "web", func(w http.ResponseWriter, r *http.Request) {})
	good := pathOf("ns", "web", "/exports/root/data")
	for what, c := range map[string]struct {
		request *http.Request
		want    int
	}{
		"no token":               {s.request(http.MethodGet, good, podspec.TokenHeader, ""), 401},
		"a token in the query":   {s.request(http.MethodGet, good+"?x-kubevirt-export-token="+token, podspec.TokenHeader, ""), 401},
		"POST":                   {s.request(http.MethodPost, good), 405},
		"OPTIONS":                {s.request(http.MethodOptions, good), 405},
		"another path":           {s.request(http.MethodGet, "/"), 404},
		"another API":            {s.request(http.MethodGet, "/api/v1/namespaces/ns/secrets/web/x"), 404},
		"another kind":           {s.request(http.MethodGet, strings.Replace(good, "virtualmachineexports", "pods", 1)), 404},
		"another version":        {s.request(http.MethodGet, strings.Replace(good, "v1beta1", "v1", 1)), 404},
		"no path":                {s.request(http.MethodGet, pathOf("ns", "web", "")), 404},
		"the readiness path":     {s.request(http.MethodGet, pathOf("ns", "web", podspec.ReadinessPath)), 404},
		"no export":              {s.request(http.MethodGet, podspec.ProxyPrefix+"ns/virtualmachineexports//x"), 404},
		"a namespace with a dot": {s.request(http.MethodGet, podspec.ProxyPrefix+"a.b/virtualmachineexports/web/x"), 404},
		"an escaped slash":       {s.request(http.MethodGet, podspec.ProxyPrefix+"ns/virtualmachineexports/evil%2Fweb/x"), 404},
		"another host":           {s.request(http.MethodGet, podspec.ProxyPrefix+"ns/virtualmachineexports/web@evil.example:443/x"), 404},
		"upwards":                {s.request(http.MethodGet, podspec.ProxyPrefix+"../virtualmachineexports/web/x"), 404},
		"capitals":               {s.request(http.MethodGet, podspec.ProxyPrefix+"NS/virtualmachineexports/web/x"), 404},
	} {
		if got := s.do(s.client, c.request); got.status != c.want || got.header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %d, want %d: %s", what, got.status, c.want, got.body)
		}
	}
	twice := s.request(http.MethodGet, good)
	twice.Header.Add(podspec.TokenHeader, "another")
	body := s.request(http.MethodGet, good)
	body.Body, body.ContentLength = io.NopCloser(strings.NewReader("body")), 4
	for want, r := range map[int]*http.Request{http.StatusUnauthorized: twice, http.StatusBadRequest: body} {
		if got := s.do(s.client, r); got.status != want {
			t.Errorf("%d, want %d", got.status, want)
		}
	}
	if n := s.dials(); n > 0 {
		t.Errorf("%d connections: %v", n, s.dialled)
	}
	if got := s.ask(http.MethodGet, pathOf("ns", "other", "/x")); got.status != http.StatusNotFound || s.dials() != 1 {
		t.Errorf("an export that there is not: %d", got.status)
	}
}

// A token goes to its export alone. Whoever answers in its place gets nothing.
func TestProxy_givesATokenToItsExportAlone(t *testing.T) {
	t.Parallel()
	s := open(t, Limits{})
	secrets := func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "theirs") }
	another := s.serveAs(s.exports.Issue(t, "x", podspec.ServiceHosts("ns", "another")...), "ns", "web", secrets)
	foreign := s.serveAs(s.outside.Issue(t, "x", podspec.ServiceHosts("ns", "foreign")...), "ns", "foreign", secrets)
	for name, u := range map[string]*upstream{"web": another, "foreign": foreign} {
		if got := s.ask(http.MethodGet, pathOf("ns", name, "/x")); got.status != http.StatusBadGateway || u.asked.Load() > 0 || bytes.Contains(got.body, []byte("theirs")) {
			t.Errorf("%s: %d %s, %d requests", name, got.status, got.body, u.asked.Load())
		}
	}
	elsewhere := s.serve("ns", "elsewhere", secrets)
	redirects := s.serve("ns", "redirects", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://"+podspec.ServiceHosts("ns", "elsewhere")[0]+"/x", http.StatusFound)
	})
	if got := s.ask(http.MethodGet, pathOf("ns", "redirects", "/x")); got.status != http.StatusBadGateway || got.header.Get("Location") != "" || elsewhere.asked.Load() > 0 || redirects.asked.Load() != 1 {
		t.Errorf("a redirect: %d %v", got.status, got.header)
	}
}

func TestProxy_passesKnownHeadersAlone(t *testing.T) {
	t.Parallel()
	s := open(t, Limits{})
	var seen atomic.Pointer[http.Header]
	s.serve("ns", "web", func(w http.ResponseWriter, r *http.Request) {
		h := r.Header.Clone()
		seen.Store(&h)
		for name, value := range map[string]string{
			"Set-Cookie": "a=b", "Location": "https://evil.example", "Connection": "x-hop", "X-Hop": "1", "Strict-Transport-Security": "max-age=1",
			"Access-Control-Allow-Origin": "*", "Cache-Control": "public", "ETag": `"t"`, "Content-Type": "text/plain",
		} {
			w.Header().Set(name, value)
		}
		fmt.Fprint(w, "body")
	})
	got := s.ask(http.MethodGet, pathOf("ns", "web", "/x"), "Cookie", "a=b", "Authorization", "Bearer x", "X-Forwarded-For", "1.2.3.4", "Upgrade", "h2c", "Connection", "X-Mine, upgrade",
		"X-Mine", "1", "Te", "trailers", "Proxy-Authorization", "Basic x", "Accept", "application/yaml", "User-Agent", "mine")
	for _, name := range []string{"Cookie", "Authorization", "X-Forwarded-For", "Upgrade", "X-Mine", "Te", "Proxy-Authorization", "Accept-Encoding", "Connection"} {
		if v := seen.Load().Get(name); v != "" {
			t.Errorf("the export gets %s: %s", name, v)
		}
	}
	if h := *seen.Load(); h.Get("Accept") != "application/yaml" || h.Get("User-Agent") != "mine" || h.Get(podspec.TokenHeader) != token {
		t.Errorf("%v", h)
	}
	for _, name := range []string{"Set-Cookie", "Location", "X-Hop", "Strict-Transport-Security", "Access-Control-Allow-Origin"} {
		if v := got.header.Get(name); v != "" {
			t.Errorf("the client gets %s: %s", name, v)
		}
	}
	if string(got.body) != "body" || got.header.Get("ETag") != `"t"` || got.header.Get("Cache-Control") != "no-store" || got.header.Get("Content-Type") != "text/plain" {
		t.Errorf("%v %s", got.header, got.body)
	}
}

func TestProxy_logsNoTokenAndNoQuery(t *testing.T) {
	t.Parallel()
	s := open(t, Limits{})
	s.serve("ns", "web", func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) })
	s.serveAs(s.outside.Issue(t, "x", "localhost"), "ns", "foreign", func(http.ResponseWriter, *http.Request) {})
	for _, export := range []string{"web", "foreign", "none"} {
		s.ask(http.MethodGet, pathOf("ns", export, "/x?secret=query"))
	}
	text := s.log.String()
	if strings.Contains(text, token) || strings.Contains(text, "query") || strings.Count(text, "export not reached") != 3 {
		t.Errorf("%s", text)
	}
}

func TestReadiness_needsTheAuthorities(t *testing.T) {
	t.Parallel()
	s := open(t, Limits{})
	for path, want := range map[string]int{HealthPath: 200, ReadyPath: 200} {
		if got := s.ask(http.MethodGet, path, podspec.TokenHeader, ""); got.status != want {
			t.Errorf("%s: %d", path, got.status)
		}
	}
	p := New(Options{Files: Files{Authorities: "none"}, Log: slog.New(slog.DiscardHandler)})
	for path, want := range map[string]int{HealthPath: 200, ReadyPath: 503, pathOf("ns", "web", "/x"): 503} {
		w := &statusWriter{header: http.Header{}}
		p.ServeHTTP(w, s.request(http.MethodGet, path).WithContext(context.Background()))
		if w.status != want {
			t.Errorf("%s without authorities: %d, want %d", path, w.status, want)
		}
	}
}

// statusWriter is a http.ResponseWriter without a connection.
type statusWriter struct {
	header http.Header
	status int
}

func (w *statusWriter) Header() http.Header         { return w.header }
func (w *statusWriter) WriteHeader(status int)      { w.status = status }
func (w *statusWriter) Write(p []byte) (int, error) { return len(p), nil }
