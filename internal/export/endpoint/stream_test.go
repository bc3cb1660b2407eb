package endpoint_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/endpoint"
	"github.com/varvebackup/varve/internal/export/exporttest"
	"github.com/varvebackup/varve/internal/export/stream"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/exportsite"
	"github.com/varvebackup/varve/test/verdict"
)

// copied is what a stream brought of a volume.
type copied struct {
	content []byte
	got     extent.Set
}

// collect is a request that keeps what comes, and fails when a byte comes twice.
func collect(t *testing.T, q *endpoint.StreamRequest, volumes ...*exporttest.Volume) []*copied {
	t.Helper()
	var all []*copied
	for _, v := range volumes {
		all = append(all, &copied{content: bytes.Repeat([]byte{0xee}, int(v.Description.Bytes))})
	}
	q.Chunk = func(volume int, c export.Chunk) error {
		to := all[volume]
		if to.got.Overlaps(c.Extent) {
			t.Errorf("%v of volume %d came twice", c.Extent, volume)
		}
		to.got = to.got.Union(extent.NewSet(c.Extent))
		if c.Data == nil {
			clear(to.content[c.Offset:c.End()])
		}
		copy(to.content[c.Offset:], c.Data)
		return nil
	}
	return all
}

// check compares what came with the volume: all that has changed, and nothing else.
func (c *copied) check(t *testing.T, v *exporttest.Volume) {
	t.Helper()
	err := v.Regions(t.Context(), extent.Extent{Length: v.Description.Bytes}, func(r export.Region) bool {
		switch {
		case r.Kind == export.Clean && c.got.Overlaps(r.Extent):
			verdict.Errorf(t, "volume %s: %v has not changed, and came", v.Description.Name, r.Extent)
		case r.Kind != export.Clean && !c.got.Contains(r.Extent):
			verdict.Errorf(t, "volume %s: %v did not come", v.Description.Name, r.Extent)
		case r.Kind != export.Clean && !bytes.Equal(c.content[r.Offset:r.End()], v.Content[r.Offset:r.End()]):
			verdict.Errorf(t, "volume %s: other bytes at %v", v.Description.Name, r.Extent)
		}
		return true
	})
	if err != nil {
		t.Error(err)
	}
}

func TestStream_cutsAtRandomOffsets(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			full := exporttest.NewVolume("root disk", 9<<20+4096, false, seed)
			incremental := exporttest.NewVolume("data", 7<<20, true, seed+100)
			s := exportsite.Open(t, full, incremental)
			client := exportsite.NewClient(t, exportsite.Cut(s.Options(), seed, 3<<20, 12))
			for _, v := range []*exporttest.Volume{full, incremental} {
				address, err := endpoint.StreamURL(s.URL("/exports/" + strings.ReplaceAll(v.Description.Name, " ", "%20") + "/data"))
				if err != nil {
					t.Fatal(err)
				}
				q := endpoint.StreamRequest{URL: address}
				got := collect(t, &q, v)
				stats, err := client.Stream(t.Context(), q)
				if err != nil {
					t.Fatal(err)
				}
				got[0].check(t, v)
				checkWaste(t, stats)
			}
			q := endpoint.StreamRequest{URL: s.URL("/exports/stream"), Backup: true}
			got := collect(t, &q, full, incremental)
			stats, err := exportsite.NewClient(t, exportsite.Cut(s.Options(), seed+7, 3<<20, 12)).Stream(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			if stats.Attempts < 3 {
				t.Errorf("%d attempts: nothing was cut", stats.Attempts)
			}
			got[0].check(t, full)
			got[1].check(t, incremental)
			checkWaste(t, stats)
		})
	}
}

// checkWaste allows a frame in flight for each cut.
func checkWaste(t *testing.T, s endpoint.StreamStats) {
	t.Helper()
	const heads = 256 << 10
	if waste := s.ReceivedBytes - s.UsefulBytes; waste > int64(s.Attempts-1)*export.MaxChunkBytes+heads {
		t.Errorf("%d bytes came in %d attempts, and %d were of use", s.ReceivedBytes, s.Attempts, s.UsefulBytes)
	}
}

func TestStream_goesOnAfterServerRestart(t *testing.T) {
	t.Parallel()
	v := exporttest.NewVolume("disk", 16<<20, false, 3)
	s := exportsite.Open(t, v)
	q := endpoint.StreamRequest{URL: s.URL("/exports/disk/stream")}
	got := collect(t, &q, v)
	keep, chunks := q.Chunk, 0
	q.Chunk = func(volume int, c export.Chunk) error {
		if chunks++; chunks == 5 {
			s.Kill()
			time.AfterFunc(50*time.Millisecond, s.Start)
		}
		return keep(volume, c)
	}
	stats, err := exportsite.NewClient(t, s.Options()).Stream(t.Context(), q)
	if err != nil || stats.Attempts < 2 {
		t.Fatalf("%d attempts: %v", stats.Attempts, err)
	}
	got[0].check(t, v)
}

// Two points in time that are put together are a disk that never was.
func TestStream_refusesAnotherPointInTime(t *testing.T) {
	t.Parallel()
	v := exporttest.NewVolume("disk", 16<<20, false, 3)
	other := exporttest.NewVolume("disk", 16<<20, false, 4)
	s := exportsite.Open(t, v)
	q := endpoint.StreamRequest{URL: s.URL("/exports/disk/stream")}
	chunks := 0
	q.Chunk = func(int, export.Chunk) error {
		if chunks++; chunks == 5 {
			s.Kill()
			s.Serve(other)
			s.Start()
		}
		return nil
	}
	client := exportsite.NewClient(t, s.Options())
	if _, err := client.Stream(t.Context(), q); !errors.Is(err, endpoint.ErrOtherPoint) || errclass.Of(err) != errclass.Conflict {
		t.Errorf("after a restart with another point in time: %v", err)
	}
	q = endpoint.StreamRequest{URL: s.URL("/exports/disk/stream"), Volumes: []endpoint.Position{{Volume: "disk", From: 1 << 20}}, Tag: `"of before"`}
	if _, err := client.Stream(t.Context(), q); !errors.Is(err, endpoint.ErrOtherPoint) {
		t.Errorf("with the tag of another point in time: %v", err)
	}
}

func TestStream_continuesWhereCallerSays(t *testing.T) {
	t.Parallel()
	v := exporttest.NewVolume("disk", 16<<20, true, 3)
	s := exportsite.Open(t, v)
	client := exportsite.NewClient(t, s.Options())
	var tag string
	q := endpoint.StreamRequest{URL: s.URL("/exports/disk/stream")}
	q.Begin = func(t string, _ []stream.Volume) error { tag = t; return nil }
	got := collect(t, &q, v)
	keep, end := q.Chunk, int64(0)
	enough := errors.New("enough")
	q.Chunk = func(volume int, c export.Chunk) error {
		if c.Offset > 6<<20 {
			return enough
		}
		end = c.End()
		return keep(volume, c)
	}
	if _, err := client.Stream(t.Context(), q); err != enough { //nolint:errorlint // as it is
		t.Fatal(err)
	}
	q.Chunk, q.Begin = keep, nil
	q.Tag, q.Volumes = tag, []endpoint.Position{{Volume: "disk", From: end}}
	if _, err := client.Stream(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	got[0].check(t, v)
}

// badChecksum is a volume whose bytes are not those that were read.
type badChecksum struct{ *exporttest.Volume }

func (v badChecksum) Read(ctx context.Context, e extent.Extent, scope export.Scope, sink func(export.Chunk) error) error {
	return v.Volume.Read(ctx, e, scope, func(c export.Chunk) error {
		if c.Data != nil && c.Offset > 1<<20 {
			c.Checksum++
		}
		return sink(c)
	})
}

func TestStream_checksumIsFinal(t *testing.T) {
	t.Parallel()
	s := exportsite.Open(t, badChecksum{exporttest.NewVolume("disk", 4<<20, false, 3)})
	q := endpoint.StreamRequest{URL: s.URL("/exports/disk/stream"), Chunk: func(_ int, c export.Chunk) error {
		if c.Data != nil && export.Checksum(c.Data) != c.Checksum {
			verdict.Errorf(t, "%v was handed on", c.Extent)
		}
		return nil
	}}
	stats, err := exportsite.NewClient(t, s.Options()).Stream(t.Context(), q)
	if !errors.Is(err, errclass.Corrupt) || stats.Attempts != 1 {
		t.Errorf("%d attempts: %v", stats.Attempts, err)
	}
}

func TestClient_refusalsAreFinal(t *testing.T) {
	t.Parallel()
	s := exportsite.Open(t, exporttest.NewVolume("disk", 1<<20, false, 3))
	echo := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/elsewhere" {
			http.Redirect(w, r, "https://example.com/", http.StatusTemporaryRedirect)
			return
		}
		http.Error(w, "no: "+r.Header.Get("x-kubevirt-export-token"), http.StatusForbidden)
	}))
	t.Cleanup(echo.Close)
	const secret = "a-secret-token"
	for _, c := range []struct {
		name string
		url  string
		want errclass.Class
		set  func(*endpoint.Options)
	}{
		{"token", s.URL("/exports/disk/stream"), errclass.Denied, func(o *endpoint.Options) {
			o.Token = func(context.Context) (string, error) { return secret, nil }
		}},
		{"authority", s.URL("/exports/disk/stream"), errclass.Denied, func(o *endpoint.Options) {
			o.Authorities = func(context.Context) ([]byte, error) { return exportsite.Open(t).CA, nil }
		}},
		{"no authority", s.URL("/exports/disk/stream"), errclass.Invalid, func(o *endpoint.Options) {
			o.Authorities = func(context.Context) ([]byte, error) { return []byte("none"), nil }
		}},
		{"name", "https://example.com/exports/disk/stream", errclass.Denied, nil},
		{"volume", s.URL("/exports/other/stream"), errclass.NotFound, nil},
		{"plain", "http://localhost/exports/disk/stream", errclass.Invalid, nil},
		{"map", s.URL("/exports/disk/map"), errclass.Invalid, nil},
		{"echo", echo.URL, errclass.Denied, func(o *endpoint.Options) { useServer(o, echo, secret) }},
		{"redirection", echo.URL + "/elsewhere", errclass.Invalid, func(o *endpoint.Options) { useServer(o, echo, secret) }},
	} {
		o := s.Options()
		if c.set != nil {
			c.set(&o)
		}
		retried := 0
		o.Retrying = func(err error) { retried++; t.Logf("%s: %v", c.name, err) }
		_, err := exportsite.NewClient(t, o).Stream(t.Context(), endpoint.StreamRequest{URL: c.url})
		if errclass.Of(err) != c.want || retried > 0 {
			t.Errorf("%s: %d retries: %v", c.name, retried, err)
		}
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("%s: the token is in %q", c.name, err)
		}
	}
}

// useServer reaches a server of httptest.
func useServer(o *endpoint.Options, s *httptest.Server, secret string) {
	o.Dial = nil
	o.Token = func(context.Context) (string, error) { return secret, nil }
	o.Authorities = func(context.Context) ([]byte, error) { return encodeCertificate(s.Certificate().Raw), nil }
}

func TestStream_silenceEnds(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() // nothing was accepted
	s := exportsite.Open(t, exporttest.NewVolume("disk", 1<<20, false, 3))
	o := s.Options()
	o.Stall = 20 * time.Millisecond
	countHours(&o)
	retried := 0
	o.Retrying = func(error) { retried++ }
	s.Kill()
	s.Address = l.Addr().String()
	if _, err := exportsite.NewClient(t, o).Stream(t.Context(), endpoint.StreamRequest{URL: s.URL("/exports/disk/stream")}); !errors.Is(err, errclass.Transient) || retried == 0 {
		t.Errorf("%d retries: %v", retried, err)
	}
	o.Stall = time.Hour
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	time.AfterFunc(20*time.Millisecond, func() { cancel(why) })
	if _, err := exportsite.NewClient(t, o).Stream(ctx, endpoint.StreamRequest{URL: s.URL("/exports/disk/stream")}); !errors.Is(err, why) {
		t.Errorf("cancelled: %v", err)
	}
}

// A server that is slow, but sends, is waited for.
func TestStream_slowServerIsNoStall(t *testing.T) {
	t.Parallel()
	v := exporttest.NewVolume("disk", 4<<20, false, 3)
	s := exportsite.Open(t, slowVolume{v})
	o := s.Options()
	o.Stall = 10 * time.Second
	q := endpoint.StreamRequest{URL: s.URL("/exports/disk/stream")}
	got := collect(t, &q, v)
	stats, err := exportsite.NewClient(t, o).Stream(t.Context(), q)
	if err != nil || stats.Attempts != 1 {
		t.Fatalf("%d attempts: %v", stats.Attempts, err)
	}
	got[0].check(t, v)
}

type slowVolume struct{ *exporttest.Volume }

func (v slowVolume) Read(ctx context.Context, e extent.Extent, scope export.Scope, sink func(export.Chunk) error) error {
	return v.Volume.Read(ctx, e, scope, func(c export.Chunk) error {
		time.Sleep(20 * time.Millisecond)
		return sink(c)
	})
}
