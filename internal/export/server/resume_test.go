package server_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/exporttest"
	"github.com/varvebackup/varve/internal/export/server"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/verdict"
)

// flaky is a volume behind a tunnel that breaks now and then.
type flaky struct {
	*exporttest.Volume

	mu sync.Mutex
	// seen counts the chunks of the second half, of which every other one breaks the tunnel. breaks is how often it breaks. Each
	// time, the volume is out of reach for some requests.
	seen, breaks, away int
	// lostFor is why it cannot be read after the last time, or nil.
	lostFor error
	// broke is closed when the tunnel has broken for the first time.
	broke chan struct{}
}

func newFlaky(incremental bool, breaks int, lostFor error) *flaky {
	return &flaky{
		Volume: exporttest.NewVolume("root", diskBytes, incremental, 7),
		breaks: breaks, lostFor: lostFor, broke: make(chan struct{}),
	}
}

func (f *flaky) Read(ctx context.Context, e extent.Extent, scope export.Scope, sink func(export.Chunk) error) error {
	f.mu.Lock()
	away, lost := f.away > 0, f.breaks == 0 && f.lostFor != nil
	f.away = max(0, f.away-1)
	f.mu.Unlock()
	switch {
	case lost:
		return f.lostFor
	case away:
		return errclass.Errorf(errclass.Transient, "no launcher is connected")
	}
	return f.Volume.Read(ctx, e, scope, func(c export.Chunk) error {
		if f.breakNow(c) {
			return errclass.Errorf(errclass.Transient, "the connection broke")
		}
		return sink(c)
	})
}

// breakNow decides about a chunk that is not the first of the disk: the client has something of the answer then.
func (f *flaky) breakNow(c export.Chunk) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.breaks == 0 || c.Offset < diskBytes/2 {
		return false
	}
	if f.seen++; f.seen%2 > 0 {
		return false
	}
	if f.breaks--; f.broke != nil {
		close(f.broke)
		f.broke = nil
	}
	f.away = f.breaks % 3
	return true
}

// An answer that has begun goes on where it stopped when the launcher is connected again.
func TestResume_goesOnWhereTheTunnelBroke(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		endpoint    string
		incremental bool
	}{{"data", false}, {"data", true}, {"stream", false}, {"stream", true}} {
		t.Run(fmt.Sprintf("%s, incremental %v", c.endpoint, c.incremental), func(t *testing.T) {
			t.Parallel()
			v := newFlaky(c.incremental, 4, nil)
			s := openVolumes(t, server.Config{}, v)
			got := s.ask(t, http.MethodGet, "/exports/root/"+c.endpoint)
			if got.status != 200 || got.cut != nil || v.breaks > 0 {
				t.Fatalf("%d, %d bytes, %v, %d breaks are left", got.status, len(got.body), got.cut, v.breaks)
			}
			if c.endpoint == "data" {
				if !bytes.Equal(got.body, v.Content) {
					verdict.Errorf(t, "other bytes: %d", len(got.body))
				}
				return
			}
			all := newReceived(v.Volume)
			if err := all.take(bytes.NewReader(got.body)); err != nil {
				t.Fatal(err)
			}
			all.check(t, v.Volume)
		})
	}
}

// An answer whose volume does not come back, or comes back as another one, is cut: no client takes a part for the whole.
func TestResume_givesUp(t *testing.T) {
	t.Parallel()
	for name, lostFor := range map[string]error{
		"out of reach":            errclass.Errorf(errclass.Transient, "no launcher is connected"),
		"another volume instead":  errclass.Errorf(errclass.Expired, "no longer offered as it was"),
		"other bytes than before": errclass.Errorf(errclass.Corrupt, "differs"),
	} {
		for _, endpoint := range []string{"data", "stream"} {
			t.Run(name+"/"+endpoint, func(t *testing.T) {
				t.Parallel()
				v := newFlaky(false, 1, lostFor)
				s := openVolumes(t, server.Config{Limits: server.Limits{Resume: time.Second}}, v)
				got := s.ask(t, http.MethodGet, "/exports/root/"+endpoint)
				if got.status != 200 || got.cut == nil {
					t.Errorf("%d, %d bytes, %v", got.status, len(got.body), got.cut)
				}
			})
		}
	}
}

// Nobody goes on with an answer whose client has left.
func TestResume_endsWithTheClient(t *testing.T) {
	t.Parallel()
	v := newFlaky(false, 1, errclass.Errorf(errclass.Transient, "no launcher is connected"))
	answered := make(chan struct{}, 1)
	broke := v.broke
	s := openVolumes(t, server.Config{
		Limits: server.Limits{Resume: time.Hour},
		Hooks:  server.Hooks{Answered: func(string, string, int, time.Duration) { answered <- struct{}{} }},
	}, v)
	ctx, leave := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/exports/root/data", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set(server.TokenHeader, token)
	response, err := s.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	<-broke
	leave()
	select {
	case <-answered:
	case <-time.After(time.Minute):
		t.Error("the request goes on without its client")
	}
}
