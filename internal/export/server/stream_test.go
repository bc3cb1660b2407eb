package server_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/exporttest"
	"github.com/varvebackup/varve/internal/export/server"
	"github.com/varvebackup/varve/internal/export/stream"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/verdict"
)

// received is what came of a stream: disks by name, and the regions that its frames are.
type received struct {
	disks   map[string][]byte
	regions map[string][]regionJSON
	next    []int64
	volumes []stream.Volume
	// turns counts how often a frame was of another volume than the one before.
	turns int
}

func newReceived(volumes ...*exporttest.Volume) *received {
	r := &received{disks: map[string][]byte{}, regions: map[string][]regionJSON{}}
	for _, v := range volumes {
		disk := bytes.Clone(v.Content)
		for i := range disk {
			if !v.Description.Incremental || v.Dirty[i/exporttest.BlockBytes] {
				disk[i] ^= 0xff
			}
		}
		r.disks[v.Description.Name] = disk
	}
	return r
}

func (r *received) take(body io.Reader) error {
	d, err := stream.NewDecoder(body)
	if err != nil {
		return err
	}
	r.volumes = d.Volumes()
	last := -1
	for {
		f, err := d.Next()
		r.next = d.Positions()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		v := d.Volumes()[f.Volume]
		if f.Volume != last {
			last = f.Volume
			r.turns++
		}
		kind := "data"
		switch {
		case f.Data == nil:
			kind = "zero"
			clear(r.disks[v.Name][f.Offset:f.End()])
		case v.Incremental:
			kind = "dirty"
		}
		copy(r.disks[v.Name][f.Offset:f.End()], f.Data)
		r.regions[v.Name] = append(r.regions[v.Name], regionJSON{f.Offset, f.Length, kind})
	}
}

func threeVolumes() []*exporttest.Volume {
	return []*exporttest.Volume{
		exporttest.NewVolume("root", 20<<20, false, 1), exporttest.NewVolume("data", 30<<20+512, true, 2), exporttest.NewVolume("log", 10<<20, false, 3),
	}
}

func asVolumes(volumes []*exporttest.Volume) (all []export.Volume) {
	for _, v := range volumes {
		all = append(all, v)
	}
	return all
}

func (r *received) check(t *testing.T, volumes ...*exporttest.Volume) {
	t.Helper()
	for _, v := range volumes {
		if !bytes.Equal(r.disks[v.Description.Name], v.Content) {
			verdict.Errorf(t, "volume %s has other bytes", v.Description.Name)
		}
	}
}

func TestStream_hasExactlyTheRegionsOfTheMap(t *testing.T) {
	t.Parallel()
	volumes := threeVolumes()
	s := openVolumes(t, server.Config{}, asVolumes(volumes)...)
	got := s.ask(t, http.MethodGet, "/exports/stream")
	if got.status != 200 || got.cut != nil || got.header.Get("Content-Type") != stream.ContentType {
		t.Fatalf("%d %v %v", got.status, got.cut, got.header)
	}
	all := newReceived(volumes...)
	if err := all.take(bytes.NewReader(got.body)); err != nil {
		t.Fatal(err)
	}
	all.check(t, volumes...)
	if all.turns < 6 {
		t.Errorf("the volumes came one after the other: %d turns", all.turns)
	}
	for i, v := range volumes {
		name := v.Description.Name
		want := s.askMap(t, name, url.Values{"start": {"0"}})
		if diff := cmp.Diff(want.Regions, mergeRegions(all.regions[name])); diff != "" {
			verdict.Errorf(t, "volume %s: %s", name, diff)
		}
		if diff := cmp.Diff(stream.Volume{Name: name, Bytes: v.Description.Bytes, Incremental: v.Description.Incremental, PointInTime: v.Description.PointInTime}, all.volumes[i]); diff != "" {
			t.Error(diff)
		}
		one := newReceived(v)
		if err := one.take(bytes.NewReader(s.ask(t, http.MethodGet, "/exports/"+name+"/stream").body)); err != nil {
			t.Fatal(err)
		}
		one.check(t, v)
		if diff := cmp.Diff(want.Regions, mergeRegions(one.regions[name])); diff != "" {
			verdict.Errorf(t, "volume %s alone: %s", name, diff)
		}
	}
}

// A client whose connection is cut again and again gets every byte, and no frame twice.
func TestStream_goesOnAfterACut(t *testing.T) {
	t.Parallel()
	volumes := threeVolumes()
	s := openVolumes(t, server.Config{}, asVolumes(volumes)...)
	all := newReceived(volumes...)
	query, tag := "", ""
	attempts := 0
	for ; ; attempts++ {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/exports/stream"+query, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set(server.TokenHeader, token)
		if tag != "" {
			r.Header.Set("If-Match", tag)
		}
		response, err := s.client.Do(r)
		if err != nil || response.StatusCode != http.StatusOK {
			t.Fatalf("%s: %v %v", query, err, response)
		}
		tag = response.Header.Get("Etag")
		err = all.take(io.LimitReader(response.Body, int64(3<<20+attempts)))
		response.Body.Close()
		if err == nil {
			break
		}
		if !errors.Is(err, errclass.Transient) || attempts > 100 {
			t.Fatal(err)
		}
		again := url.Values{}
		for i, v := range all.volumes {
			if all.next[i] < v.Bytes {
				again.Add("volume", v.Name)
				again.Add("from", fmt.Sprint(all.next[i]))
			}
		}
		query = "?" + again.Encode()
	}
	all.check(t, volumes...)
	if attempts < 5 {
		t.Errorf("only %d cuts", attempts)
	}
	for name, regions := range all.regions {
		for i := range regions[1:] {
			if regions[i+1].Offset < regions[i].Offset+regions[i].Length {
				verdict.Errorf(t, "volume %s: %+v came after %+v", name, regions[i+1], regions[i])
			}
		}
	}
}

func TestStream_refusesToGoOnElsewhere(t *testing.T) {
	t.Parallel()
	s := openVolumes(t, server.Config{}, exporttest.NewVolume("root", 1<<20, false, 1), exporttest.NewVolume("data", 1<<20, true, 2))
	for _, path := range []string{"/exports/root/stream?from=65536", "/exports/stream?volume=data&from=65536", "/exports/stream?volume=data&from=0&volume=root&from=1048576"} {
		endpoint, _, _ := bytes.Cut([]byte(path), []byte("?"))
		tag := s.ask(t, http.MethodHead, string(endpoint)).header.Get("Etag")
		if got := s.ask(t, http.MethodGet, path, "If-Match", `"another"`); got.status != 412 {
			t.Errorf("%s of another point in time: %d", path, got.status)
		}
		if got := s.ask(t, http.MethodGet, path); got.status != 428 {
			t.Errorf("%s without If-Match: %d", path, got.status)
		}
		if got := s.ask(t, http.MethodGet, path, "If-Match", tag); got.status != 200 || got.cut != nil {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
}

func chunk(offset int64, data []byte) export.Chunk {
	return export.Chunk{Extent: extent.Extent{Offset: offset, Length: int64(len(data))}, Data: data, Checksum: export.Checksum(data)}
}

// A failure before the first byte has its status. One after it ends the connection, with the reason as far as there is a place for it.
func TestFailures_neverLookLikeAnEnd(t *testing.T) {
	t.Parallel()
	half := chunk(0, make([]byte, 4096))
	damaged := chunk(4096, make([]byte, 4096))
	damaged.Checksum++
	twoMegabytes := export.Chunk{Extent: extent.Extent{Length: 8192}, Data: make([]byte, 4096)}
	for name, c := range map[string]struct {
		volume told
		// data and stream are the statuses; 0 is an answer that breaks off.
		data, stream int
	}{
		"no tunnel":     {told{err: errclass.Errorf(errclass.Transient, "no tunnel")}, 503, 503},
		"corrupt":       {told{err: errclass.Errorf(errclass.Corrupt, "bad")}, 500, 500},
		"invalid":       {told{err: errclass.Errorf(errclass.Invalid, "bad")}, 500, 500},
		"gone":          {told{err: errclass.Errorf(errclass.Expired, "the backup has ended")}, 410, 410},
		"unclassed":     {told{err: errors.New("bad")}, 500, 500},
		"nothing":       {told{}, 500, 500},
		"cut":           {told{chunks: []export.Chunk{half}, err: errclass.Errorf(errclass.Transient, "lost")}, 0, 503},
		"short":         {told{chunks: []export.Chunk{half}}, 0, 500},
		"damaged":       {told{chunks: []export.Chunk{half, damaged}}, 0, 200}, // the client of a stream has the checksum
		"repeated":      {told{chunks: []export.Chunk{half, half}}, 0, 500},
		"gap":           {told{chunks: []export.Chunk{chunk(4096, make([]byte, 4096))}}, 500, 500},
		"too long":      {told{chunks: []export.Chunk{half, chunk(4096, make([]byte, 8192))}}, 0, 500},
		"other length":  {told{chunks: []export.Chunk{twoMegabytes}}, 500, 500},
		"huge zeroes":   {told{chunks: []export.Chunk{{Extent: extent.Extent{Length: 1 << 62}}}}, 500, 500},
		"negative size": {told{chunks: []export.Chunk{{Extent: extent.Extent{Length: -1}}}}, 500, 500},
	} {
		s := openVolumes(t, server.Config{}, &c.volume)
		got := s.ask(t, http.MethodGet, "/exports/told/data")
		if c.data == 0 && (got.cut == nil || len(got.body) > 4096) {
			t.Errorf("%s: data ended with %d bytes and %v", name, len(got.body), got.cut)
		}
		if c.data != 0 && (got.status != c.data || got.header.Get("Accept-Ranges") != "" || got.header.Get("Etag") != "") {
			t.Errorf("%s: data %d %v", name, got.status, got.header)
		}
		if got = s.ask(t, http.MethodGet, "/exports/told/stream"); got.status != c.stream {
			t.Errorf("%s: stream %d %s", name, got.status, got.body)
		}
		if c.stream == 200 {
			disk := &received{disks: map[string][]byte{"told": make([]byte, 8192)}, regions: map[string][]regionJSON{}}
			if err := disk.take(bytes.NewReader(got.body)); !errors.Is(err, errclass.Corrupt) {
				t.Errorf("%s: %v", name, err)
			}
		}
		got = s.ask(t, http.MethodGet, "/exports/told/data", "Range", "bytes=0-1")
		if c.data == 503 && (got.status != 503 || got.header.Get("Content-Range") != "" || got.header.Get("Retry-After") == "") {
			t.Errorf("%s: range %d %v", name, got.status, got.header)
		}
	}
}

// A stream that has begun ends with the reason, and its connection breaks.
func TestStream_tellsWhyItEnds(t *testing.T) {
	t.Parallel()
	wait := make(chan struct{})
	s := openVolumes(t, server.Config{Limits: server.Limits{Keepalive: 10 * time.Millisecond}},
		&told{chunks: []export.Chunk{chunk(0, make([]byte, 4096))}, err: errclass.Errorf(errclass.Exhausted, "the scratch volume is full"), wait: wait})
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/exports/stream", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set(server.TokenHeader, token)
	response, err := s.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	d, err := stream.NewDecoder(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if f, err := d.Next(); err != nil || f.Length != 4096 {
		t.Fatalf("%v %v", f.Extent, err)
	}
	close(wait)
	if _, err = d.Next(); !errors.Is(err, errclass.Exhausted) {
		t.Errorf("%v", err)
	}
	if rest, err := io.ReadAll(response.Body); err == nil {
		t.Errorf("the answer ended as if it were whole, after %d bytes", len(rest))
	}
}

// While a volume has nothing to send, frames that say nothing come.
func TestStream_isNeverSilent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		wait := make(chan struct{})
		volume := &told{chunks: []export.Chunk{chunk(0, make([]byte, 4096))}, wait: wait}
		srv, err := server.New(server.Config{Volumes: exporttest.Volumes{"told": volume}, Names: []string{"told"}, Token: knownToken})
		if err != nil {
			t.Fatal(err)
		}
		reader, writer := io.Pipe()
		go func() {
			defer writer.Close()
			defer func() { recover() }() // the answer breaks off
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "/exports/stream", http.NoBody)
			if err != nil {
				t.Error(err)
				return
			}
			r.Header.Set(server.TokenHeader, token)
			srv.ServeHTTP(pipeWriter{Writer: writer, header: http.Header{}}, r)
		}()
		began := time.Now()
		var arrivals []time.Duration
		buffer := make([]byte, 1<<16)
		for len(arrivals) < 4 {
			if _, err := reader.Read(buffer); err != nil {
				t.Fatal(err)
			}
			arrivals = append(arrivals, time.Since(began))
		}
		// The frame leaves the buffer after a second, and then one that says nothing comes every ten.
		if diff := cmp.Diff([]time.Duration{1 * time.Second, 11 * time.Second, 21 * time.Second, 31 * time.Second}, arrivals); diff != "" {
			t.Error(diff)
		}
		close(wait)
		io.Copy(io.Discard, reader)
	})
}

type pipeWriter struct {
	io.Writer
	header http.Header
}

func (w pipeWriter) Header() http.Header { return w.header }
func (pipeWriter) WriteHeader(int)       {}
func (pipeWriter) Flush()                {}
