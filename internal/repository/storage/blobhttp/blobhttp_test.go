package blobhttp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kopia/kopia/repo/blob"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/test/verdict"
)

// fakeStorage keeps blobs in memory. It fails with failure, if there is one.
type fakeStorage struct {
	blob.Storage

	failure error
	blobs   map[blob.ID][]byte
	puts    int
	// unreadable fails reads of blobs.
	unreadable error
	// shorter is how many bytes a blob has less than its metadata says.
	shorter int
}

func (s *fakeStorage) PutBlob(_ context.Context, id blob.ID, data blob.Bytes, _ blob.PutOptions) error {
	var b bytes.Buffer
	_, _ = data.WriteTo(&b)
	s.puts++
	if s.failure == nil {
		s.blobs[id] = b.Bytes()
	}
	return s.failure
}

func (s *fakeStorage) GetMetadata(_ context.Context, id blob.ID) (blob.Metadata, error) {
	return blob.Metadata{Length: int64(len(s.blobs[id]))}, s.failure
}

func (s *fakeStorage) GetCapacity(context.Context) (blob.Capacity, error) {
	return blob.Capacity{SizeB: 2, FreeB: 1}, s.failure
}

func (s *fakeStorage) GetBlob(_ context.Context, id blob.ID, _, _ int64, out blob.OutputBuffer) error {
	if s.unreadable != nil {
		return s.unreadable
	}
	_, err := out.Write(s.blobs[id][:max(len(s.blobs[id])-s.shorter, 0)])
	return errors.Join(err, s.failure)
}

func (s *fakeStorage) ListBlobs(_ context.Context, _ blob.ID, call func(blob.Metadata) error) error {
	for id := range s.blobs {
		if err := call(blob.Metadata{BlobID: id}); err != nil {
			return err
		}
	}
	return s.failure
}

// serve returns a client of a handler that wrap may stand before. It does not wait long.
func serve(t *testing.T, st blob.Storage, wrap func(http.Handler) http.Handler) *Client {
	t.Helper()
	var h http.Handler = NewHandler(func(context.Context) (blob.Storage, error) { return st, nil })
	if wrap != nil {
		h = wrap(h)
	}
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	c := NewClient("claim shelf", func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", server.Listener.Addr().String())
	})
	t.Cleanup(c.Shut)
	c.retries = wait.Backoff{Duration: time.Millisecond, Factor: 2, Steps: 3}
	return c
}

type bytesOut struct{ bytes.Buffer }

func (b *bytesOut) Length() int { return b.Len() }

// What callers act on arrives as it left, with the name of the storage.
func TestClient_keepsErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want []error
	}{
		{blob.ErrBlobNotFound, []error{blob.ErrBlobNotFound}},
		{fmt.Errorf("range: %w", blob.ErrInvalidRange), []error{blob.ErrInvalidRange}},
		{blob.ErrNotAVolume, []error{blob.ErrNotAVolume}},
		{&fs.PathError{Op: "write", Path: "/x", Err: syscall.ENOSPC}, []error{syscall.ENOSPC}},
		{syscall.EDQUOT, []error{syscall.EDQUOT}},
		{&fs.PathError{Op: "open", Path: "/x", Err: syscall.EROFS}, []error{syscall.EROFS}},
		{&fs.PathError{Op: "open", Path: "/x", Err: syscall.EACCES}, []error{fs.ErrPermission}},
		{&fs.PathError{Op: "stat", Path: "/x", Err: syscall.ENOENT}, []error{fs.ErrNotExist, errclass.NotFound}},
		{errclass.Errorf(errclass.Corrupt, "damaged"), []error{errclass.Corrupt}},
		{errors.New("input/output error"), nil},
	} {
		st := &fakeStorage{failure: c.err}
		client := serve(t, st, nil)
		_, metadata := client.GetMetadata(t.Context(), "x")
		_, capacity := client.GetCapacity(t.Context())
		var out bytesOut
		for what, err := range map[string]error{
			"metadata": metadata, "capacity": capacity, "get": client.GetBlob(t.Context(), "x", 0, -1, &out),
			"list": client.ListBlobs(t.Context(), "", func(blob.Metadata) error { return nil }),
			"put":  client.PutBlob(t.Context(), "x", content("x"), blob.PutOptions{}),
		} {
			if err == nil || !strings.Contains(err.Error(), "claim shelf: ") {
				t.Errorf("%s: %v: %v", what, c.err, err)
			}
			for _, want := range c.want {
				if !errors.Is(err, want) {
					t.Errorf("%s: %v: %v is no %v", what, c.err, err, want)
				}
			}
			if c.want == nil && (errclass.Of(err) != errclass.None || !strings.Contains(err.Error(), c.err.Error())) {
				t.Errorf("%s: %v: %v", what, c.err, err)
			}
		}
		if st.puts != 1 {
			t.Errorf("%v: %d attempts", c.err, st.puts)
		}
	}
}

// A storage that cannot be opened now says so, and is opened with the next request.
func TestHandler_opensForEachRequest(t *testing.T) {
	t.Parallel()
	var failure error = &fs.PathError{Op: "stat", Path: "/run/x", Err: syscall.ENOENT}
	h := NewHandler(func(context.Context) (blob.Storage, error) { return &fakeStorage{blobs: map[blob.ID][]byte{}}, failure })
	c := serve(t, nil, func(http.Handler) http.Handler { return h })
	if err := c.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := c.GetMetadata(t.Context(), "x"); !errors.Is(err, errclass.NotFound) || !strings.Contains(err.Error(), "/run/x") {
		t.Error(err)
	}
	failure = nil
	if _, err := c.GetMetadata(t.Context(), "x"); err != nil {
		t.Error(err)
	}
}

// Names that lead elsewhere, and blobs of no or too great a length, are refused.
func TestHandler_refuses(t *testing.T) {
	t.Parallel()
	st := &fakeStorage{blobs: map[blob.ID][]byte{}}
	c := serve(t, st, nil)
	for _, id := range []blob.ID{"../x", "a/b", "x\x00", `a\b`} {
		if err := c.PutBlob(t.Context(), id, content("x"), blob.PutOptions{}); !errors.Is(err, errclass.Invalid) {
			t.Errorf("%q: %v", id, err)
		}
	}
	for what, o := range map[string]blob.PutOptions{"retention": {RetentionMode: blob.Governance, RetentionPeriod: time.Hour}, "once": {DoNotRecreate: true}, "time": {SetModTime: time.Unix(1, 0)}} {
		if err := c.PutBlob(t.Context(), "x", content("x"), o); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
	for name, edit := range map[string]func(*http.Request){
		"no length": func(r *http.Request) { r.ContentLength = -1 },
		"too long":  func(r *http.Request) { r.ContentLength = maxBlobBytes + 1 },
	} {
		r := httptest.NewRequest(http.MethodPut, blobPath("x"), strings.NewReader("x"))
		edit(r)
		w := httptest.NewRecorder()
		NewHandler(func(context.Context) (blob.Storage, error) { return st, nil }).ServeHTTP(w, r)
		if w.Code != http.StatusBadRequest {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
	for _, query := range []string{"offset=-1&length=1", "offset=x&length=1", "offset=0&length=99999999999999999999"} {
		w := httptest.NewRecorder()
		NewHandler(func(context.Context) (blob.Storage, error) { return st, nil }).ServeHTTP(w, httptest.NewRequest(http.MethodGet, blobPath("x")+"?"+query, nil))
		if w.Code != http.StatusBadRequest {
			t.Errorf("%s: %d %s", query, w.Code, w.Body)
		}
	}
	if st.puts > 0 {
		t.Errorf("%d blobs were put", st.puts)
	}
}

// A blob whose client dies in the middle is not stored.
func TestHandler_storesWholeBlobsOnly(t *testing.T) {
	t.Parallel()
	st := &fakeStorage{blobs: map[blob.ID][]byte{}}
	r := httptest.NewRequest(http.MethodPut, blobPath("x"), strings.NewReader("half"))
	r.ContentLength = 8
	w := httptest.NewRecorder()
	NewHandler(func(context.Context) (blob.Storage, error) { return st, nil }).ServeHTTP(w, r)
	if w.Code != http.StatusServiceUnavailable || st.puts > 0 {
		t.Errorf("%d %s, %d puts", w.Code, w.Body, st.puts)
	}
}

// breakingStorage fails in the middle of a blob, and then reads it again as kopia's directories do, some times.
type breakingStorage struct {
	*fakeStorage

	times, gets int
}

func (s *breakingStorage) GetBlob(ctx context.Context, id blob.ID, offset, length int64, out blob.OutputBuffer) error {
	s.gets++
	if s.times--; s.times < 0 {
		return s.fakeStorage.GetBlob(ctx, id, offset, length, out)
	}
	if _, err := out.Write(s.blobs[id][:3]); err != nil {
		return err
	}
	out.Reset()
	return s.fakeStorage.GetBlob(ctx, id, offset, length, out)
}

// A blob is sent as it is read. One that the storage fails to read in its middle, or has meanwhile become shorter, is asked for again.
func TestHandler_sendsWholeBlobsOnly(t *testing.T) {
	t.Parallel()
	st := &breakingStorage{fakeStorage: &fakeStorage{blobs: map[blob.ID][]byte{"x": []byte("content")}}, times: 2}
	out := &bytesOut{}
	if err := serve(t, st, nil).GetBlob(t.Context(), "x", 0, -1, out); err != nil || out.String() != "content" || st.gets != 3 {
		t.Errorf("%q after %d attempts: %v", out, st.gets, err)
	}
	short := &fakeStorage{blobs: map[blob.ID][]byte{"x": []byte("content")}, shorter: 1}
	if err := serve(t, short, nil).GetBlob(t.Context(), "x", 0, -1, out); !errors.Is(err, errclass.Transient) {
		t.Errorf("%q: %v", out, err)
	}
	unreadable := &fakeStorage{blobs: map[blob.ID][]byte{"x": []byte("content")}, unreadable: fs.ErrPermission}
	if err := serve(t, unreadable, nil).GetBlob(t.Context(), "x", 0, -1, out); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("%q: %v", out, err)
	}
	if err := serve(t, st, nil).GetBlob(t.Context(), "x", 0, 8, out); !errors.Is(err, blob.ErrInvalidRange) {
		t.Errorf("%q: %v", out, err)
	}
}

// cut is a handler whose first answers break off after some bytes, or do not come.
func cut(times int64, after int) func(http.Handler) http.Handler {
	var seen atomic.Int64
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if seen.Add(1) > times {
				h.ServeHTTP(w, r)
				return
			}
			record := httptest.NewRecorder()
			h.ServeHTTP(record, r)
			if after > 0 {
				w.Header().Set("Content-Length", fmt.Sprint(record.Body.Len()))
				_, _ = w.Write(record.Body.Bytes()[:min(after, record.Body.Len()-1)])
				_ = http.NewResponseController(w).Flush()
			}
			panic(http.ErrAbortHandler)
		})
	}
}

// An API server that restarts is away for half a minute and more.
func TestRetries_lastAMinute(t *testing.T) {
	t.Parallel()
	var all time.Duration
	for pauses := retries; pauses.Steps > 0; {
		all += pauses.Step()
	}
	if all < 50*time.Second || all > 2*time.Minute {
		t.Error(all)
	}
}

// Whatever breaks off is asked for again: no half of an answer is taken for one.
func TestClient_asksAgain(t *testing.T) {
	t.Parallel()
	for name, wrap := range map[string]func() func(http.Handler) http.Handler{
		"no answer": func() func(http.Handler) http.Handler { return cut(2, 0) },
		"half":      func() func(http.Handler) http.Handler { return cut(2, 3) },
		"a proxy's error": func() func(http.Handler) http.Handler {
			var seen atomic.Int64
			return func(h http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if seen.Add(1) > 2 {
						h.ServeHTTP(w, r)
						return
					}
					http.Error(w, `{"message":"bad gateway"}`, http.StatusBadGateway)
				})
			}
		},
	} {
		for what, f := range map[string]func(*Client) error{
			"get": func(c *Client) error {
				out := &bytesOut{}
				err := c.GetBlob(t.Context(), "x", 0, -1, out)
				if err == nil && out.String() != "content" {
					err = verdict.Error("got %q", out)
				}
				return err
			},
			"put": func(c *Client) error {
				var at time.Time
				return c.PutBlob(t.Context(), "y", content("new"), blob.PutOptions{GetModTime: &at})
			},
			"metadata": func(c *Client) error { _, err := c.GetMetadata(t.Context(), "x"); return err },
			"list": func(c *Client) error {
				var told []string
				err := c.ListBlobs(t.Context(), "", func(m blob.Metadata) error { told = append(told, string(m.BlobID)); return nil })
				if err == nil && strings.Join(told, " ") != "x" {
					err = fmt.Errorf("told %q", told)
				}
				return err
			},
		} {
			st := &fakeStorage{blobs: map[blob.ID][]byte{"x": []byte("content")}}
			if err := f(serve(t, st, wrap())); err != nil {
				t.Errorf("%s, %s: %v", name, what, err)
			}
			if what == "put" && string(st.blobs["y"]) != "new" {
				verdict.Errorf(t, "%s: put %q", name, st.blobs["y"])
			}
		}
	}
}

// A list that breaks off when a blob was told of is an error: told of again, blobs would count twice, and those that follow are not absent.
func TestClient_doesNotTakeHalfAListForAList(t *testing.T) {
	t.Parallel()
	st := &fakeStorage{blobs: map[blob.ID][]byte{"x": nil}}
	c := serve(t, st, cut(1, 80))
	told := 0
	err := c.ListBlobs(t.Context(), "", func(blob.Metadata) error { told++; return nil })
	if !errors.Is(err, errclass.Transient) || told != 1 {
		t.Errorf("%v after %d", err, told)
	}
	stop := errors.New("stop")
	if err := c.ListBlobs(t.Context(), "", func(blob.Metadata) error { return stop }); !errors.Is(err, stop) {
		t.Error(err)
	}
}

// A handler that does not come back is given up on, and one that is known to be gone at once.
func TestClient_givesUp(t *testing.T) {
	t.Parallel()
	var dials atomic.Int64
	for _, c := range []struct {
		err   error
		want  error
		dials int64
	}{
		{syscall.ECONNREFUSED, errclass.Transient, 4},
		{errclass.Errorf(errclass.Expired, "the pod has ended"), errclass.Expired, 1},
		{errclass.Errorf(errclass.Transient, "the pod does not run now"), errclass.Transient, 4},
	} {
		dials.Store(0)
		client := NewClient("claim shelf", func(context.Context) (net.Conn, error) { dials.Add(1); return nil, c.err })
		client.retries = wait.Backoff{Duration: time.Millisecond, Factor: 2, Steps: 3}
		err := client.Ping(t.Context())
		if !errors.Is(err, c.want) || dials.Load() != c.dials {
			t.Errorf("%v: %v after %d attempts", c.err, err, dials.Load())
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	cancel(stop)
	if err := NewClient("x", func(context.Context) (net.Conn, error) { return nil, syscall.ECONNREFUSED }).Ping(ctx); !errors.Is(err, stop) {
		t.Error(err)
	}
}

// The escaping of names is undone.
func TestClient_escapesNames(t *testing.T) {
	t.Parallel()
	st := &fakeStorage{blobs: map[blob.ID][]byte{}}
	c := serve(t, st, nil)
	for _, id := range []blob.ID{"a b", "a%2Fb", "a?b#c", "ü", "_log_20261125"} {
		if err := c.PutBlob(t.Context(), id, content(id), blob.PutOptions{}); err != nil {
			t.Error(err)
		}
		out := &bytesOut{}
		if err := c.GetBlob(t.Context(), id, 0, -1, out); err != nil || out.String() != string(id) {
			verdict.JudgeErrorf(t, err == nil, "%q: %q %v", id, out, err)
		}
	}
}

// A connection is of this process, and says so when it was read from a file.
func TestConnection(t *testing.T) {
	t.Parallel()
	c := NewClient("claim shelf", nil)
	info := c.ConnectionInfo()
	text, err := info.MarshalJSON()
	if err != nil || strings.Contains(string(text), "shelf") {
		t.Errorf("%s %v", text, err)
	}
	if got, err := info.Config.(*Connection).Open(); got != c || err != nil {
		t.Error(err)
	}
	if _, err := new(Connection).Open(); !errors.Is(err, errclass.Invalid) {
		t.Error(err)
	}
}
