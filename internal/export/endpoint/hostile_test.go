package endpoint_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export/endpoint"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/exportsite"
	"github.com/varvebackup/varve/test/verdict"
)

// openHostile starts a server, and returns a client of it and the volume that it serves.
func openHostile(t *testing.T, dialect endpoint.Dialect, serve http.HandlerFunc) (*endpoint.Client, endpoint.Volume) {
	t.Helper()
	s := httptest.NewTLSServer(serve)
	t.Cleanup(s.Close)
	o := endpoint.Options{FirstPause: time.Millisecond, LongestPause: 10 * time.Millisecond, Patience: 5 * time.Second}
	useServer(&o, s, exportsite.Token)
	return exportsite.NewClient(t, o), endpoint.Volume{Name: "disk", Map: s.URL + "/exports/disk/map", Data: s.URL + "/exports/disk/data", Dialect: dialect}
}

// pages answers with one page after the other, each at its URL's start or offset.
func pages(texts map[string]string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/map") {
			http.Error(w, "not in the disk", http.StatusRequestedRangeNotSatisfiable)
			return
		}
		q := r.URL.Query()
		_, _ = io.WriteString(w, texts[q.Get("start")+q.Get("offset")])
	}
}

func TestOpenDisk_refusesHostileMaps(t *testing.T) {
	t.Parallel()
	spec, kubeVirt := endpoint.Spec, endpoint.KubeVirt
	for name, c := range map[string]struct {
		dialect     endpoint.Dialect
		incremental bool
		pages       map[string]string
		want        errclass.Class
	}{
		"no list":                       {spec, true, map[string]string{"0": `{"next_offset":null,"size":65536}`}, errclass.Corrupt},
		"the list of another dialect":   {spec, true, map[string]string{"0": `{"extents":[],"next_offset":null,"size":65536}`}, errclass.Corrupt},
		"null in place of the list":     {spec, true, map[string]string{"0": `{"regions":null,"next_offset":null,"size":65536}`}, errclass.Corrupt},
		"two lists":                     {spec, true, map[string]string{"0": `{"regions":[{"offset":0,"length":512,"type":"dirty"}],"regions":[],"next_offset":null,"size":65536}`}, errclass.Corrupt},
		"nothing of what follows":       {spec, true, map[string]string{"0": `{"regions":[],"size":65536}`}, errclass.Corrupt},
		"something behind the page":     {spec, true, map[string]string{"0": `{"regions":[],"next_offset":null,"size":65536}{}`}, errclass.Corrupt},
		"an array":                      {spec, true, map[string]string{"0": `[]`}, errclass.Corrupt},
		"a page that is not complete":   {spec, true, map[string]string{"0": `{"regions":[],"next_offset":nu`}, errclass.Corrupt},
		"no offset":                     {spec, true, map[string]string{"0": `{"regions":[{"length":512,"type":"dirty"}],"next_offset":null,"size":65536}`}, errclass.Corrupt},
		"fractions":                     {spec, true, map[string]string{"0": `{"regions":[{"offset":0.5,"length":512,"type":"dirty"}],"next_offset":null,"size":65536}`}, errclass.Corrupt},
		"a disk that is too large":      {spec, false, map[string]string{"0": `{"regions":[],"next_offset":null,"size":9223372036854775807}`}, errclass.Corrupt},
		"a next page beyond all disks":  {kubeVirt, false, map[string]string{"0": `{"extents":[],"next_offset":9223372036854775807}`}, errclass.Corrupt},
		"a size that changes":           {spec, false, map[string]string{"0": `{"regions":[],"next_offset":512,"size":1024}`, "512": `{"regions":[],"next_offset":null,"size":2048}`}, errclass.Corrupt},
		"a region of the page before":   {spec, false, map[string]string{"0": `{"regions":[{"offset":0,"length":512,"type":"data"}],"next_offset":512,"size":1024}`, "512": `{"regions":[{"offset":0,"length":512,"type":"zero"}],"next_offset":null,"size":1024}`}, errclass.Corrupt},
		"clean, and then nothing":       {spec, true, map[string]string{"0": `{"regions":[{"offset":0,"length":512,"type":"clean"}],"next_offset":null,"size":65536}`}, errclass.Corrupt},
		"clean with a gap":              {spec, true, map[string]string{"0": `{"regions":[{"offset":0,"length":512,"type":"clean"},{"offset":1024,"length":512,"type":"clean"}],"next_offset":null,"size":1536}`}, errclass.Corrupt},
		"extents with a gap":            {kubeVirt, false, map[string]string{"0": `{"extents":[{"offset":0,"length":512,"type":0,"description":"data"},{"offset":1024,"length":512,"type":0,"description":"data"}],"next_offset":null}`}, errclass.Corrupt},
		"extents that begin late":       {kubeVirt, false, map[string]string{"0": `{"extents":[{"offset":512,"length":512,"type":0,"description":"data"}],"next_offset":null}`}, errclass.Corrupt},
		"extents that end early":        {kubeVirt, false, map[string]string{"0": `{"extents":[{"offset":0,"length":512,"type":0,"description":"data"}],"next_offset":null,"size":1024}`}, errclass.Corrupt},
		"a type that is not what it is": {kubeVirt, true, map[string]string{"0": `{"extents":[{"offset":0,"length":512,"type":1,"description":"clean"}],"next_offset":null}`}, errclass.Corrupt},
		"no extents":                    {kubeVirt, true, map[string]string{"0": `{"extents":[],"next_offset":null}`}, errclass.Invalid},
		"an unknown size":               {spec, false, map[string]string{"0": `{"regions":[],"next_offset":null}`}, errclass.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, v := openHostile(t, c.dialect, pages(c.pages))
			v.Incremental = c.incremental
			if _, err := client.OpenDisk(t.Context(), v, "id"); errclass.Of(err) != c.want {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestOpenDisk_refusesEndlessMaps(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(start int64) string{
		"steps of a byte": func(start int64) string { return fmt.Sprintf(`{"regions":[],"next_offset":%d}`, start+1) },
		"regions of a byte": func(start int64) string {
			return fmt.Sprintf(`{"regions":[{"offset":%d,"length":1,"type":"data"}],"next_offset":%d}`, start, start+1)
		},
		"one endless page":   func(int64) string { return `{"regions":[` + strings.Repeat(" ", 17<<20) },
		"one endless field":  func(int64) string { return `{"other":"` + strings.Repeat("x", 17<<20) },
		"a list of nothings": func(int64) string { return `{"regions":[` + strings.Repeat("{},", 5<<20) },
		"a deep nest":        func(int64) string { return `{"other":` + strings.Repeat("[", 1<<20) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requests := 0
			client, v := openHostile(t, endpoint.Spec, func(w http.ResponseWriter, r *http.Request) {
				requests++
				start, _ := strconv.ParseInt(r.URL.Query().Get("start"), 10, 64)
				_, _ = io.WriteString(w, answer(start))
			})
			if _, err := client.OpenDisk(t.Context(), v, "id"); errclass.Of(err) != errclass.Corrupt || requests > 1100 {
				t.Errorf("%d requests: %v", requests, err)
			}
		})
	}
}

func TestEndpoints_refuseWhatNobodyAskedFor(t *testing.T) {
	t.Parallel()
	const good = `{"regions":[{"offset":0,"length":8,"type":"data"}],"next_offset":null,"size":8}`
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = io.WriteString(z, good)
	_ = z.Close()
	for name, serve := range map[string]http.HandlerFunc{
		"a compressed answer": func(w http.ResponseWriter, r *http.Request) {
			if got := r.Header.Get("Accept-Encoding"); got != "" {
				t.Errorf("the client accepts %s", got)
			}
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(packed.Bytes())
		},
		"a partial map": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusPartialContent)
			_, _ = io.WriteString(w, good)
		},
		"another map": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/map", http.StatusFound) },
		"no content":  func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) },
		"endless refusals": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, strings.Repeat("no ", 1<<20), http.StatusTeapot)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var requests atomic.Int64
			client, v := openHostile(t, endpoint.Spec, func(w http.ResponseWriter, r *http.Request) { requests.Add(1); serve(w, r) })
			_, err := client.OpenDisk(t.Context(), v, "id")
			if class := errclass.Of(err); class != errclass.Invalid && class != errclass.Corrupt || requests.Load() != 1 || len(err.Error()) > 2048 {
				t.Errorf("%d requests: %v", requests.Load(), err)
			}
		})
	}
}

// A whole disk in place of a part of it is not that part, also where no header says so.
func TestReadAt_refusesIgnoredParameters(t *testing.T) {
	t.Parallel()
	client, v := openHostile(t, endpoint.KubeVirt, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 8)) })
	err := client.ReadAt(t.Context(), endpoint.DataRequest{URL: v.Data, Dialect: endpoint.KubeVirt}, make([]byte, 4), 4)
	if errclass.Of(err) != errclass.Invalid {
		t.Error(err)
	}
	client, v = openHostile(t, endpoint.Spec, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Range", "bytes 4-7/12")
		w.WriteHeader(http.StatusPartialContent)
		_, _ = w.Write(make([]byte, 4))
	})
	if err := client.ReadAt(t.Context(), endpoint.DataRequest{URL: v.Data, Bytes: 8}, make([]byte, 4), 4); errclass.Of(err) != errclass.Invalid {
		t.Errorf("a disk of another size: %v", err)
	}
}

// A server may leave out what has not changed, even if it was asked not to. Its content is not zero.
func TestOpenDisk_gapsAreData(t *testing.T) {
	t.Parallel()
	const granule = 64 << 10
	for _, incremental := range []bool{false, true} {
		client, v := openHostile(t, endpoint.Spec, pages(map[string]string{"0": fmt.Sprintf(
			`{"regions":[{"offset":%d,"length":%d,"type":"dirty"},{"offset":%d,"length":%d,"type":"zero"}],"next_offset":null,"size":%d}`,
			2*granule, granule, 4*granule, granule, 8*granule)}))
		v.Incremental = incremental
		disk, err := client.OpenDisk(t.Context(), v, "id")
		if err != nil {
			t.Fatal(err)
		}
		data, _ := disk.Data(t.Context())
		if want := extent.NewSet(extent.Extent{Length: 4 * granule}, extent.Extent{Offset: 5 * granule, Length: 3 * granule}); !equalSets(*data, want) {
			verdict.Errorf(t, "incremental %v: data %v", incremental, data)
		}
		changed, _ := disk.Changes(t.Context())
		if want := extent.NewSet(extent.Extent{Offset: 2 * granule, Length: granule}, extent.Extent{Offset: 4 * granule, Length: granule}); incremental != (changed != nil) || incremental && !equalSets(*changed, want) {
			verdict.Errorf(t, "incremental %v: changed %v", incremental, changed)
		}
	}
}

func equalSets(a, b extent.Set) bool { return a.Subtract(b).Empty() && b.Subtract(a).Empty() }

// untagged is KubeVirt 1.8: it has no entity tags, and tells no sizes. dataBytes is how large the disk is.
func untagged(mapBytes, dataBytes int64) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		offset, _ := strconv.ParseInt(q.Get("offset"), 10, 64)
		length, _ := strconv.ParseInt(q.Get("length"), 10, 64)
		switch {
		case strings.HasSuffix(r.URL.Path, "/map"):
			fmt.Fprintf(w, `{"extents":[{"offset":0,"length":%d,"type":0,"description":"data"}],"next_offset":null}`, mapBytes)
		case offset >= dataBytes:
			panic(http.ErrAbortHandler) // as it does
		default:
			_, _ = w.Write(make([]byte, min(length, dataBytes-offset)))
		}
	}
}

func TestOpenDisk_endOfMapIsEndOfDisk(t *testing.T) {
	t.Parallel()
	client, v := openHostile(t, endpoint.KubeVirt, untagged(3<<16, 3<<16))
	if disk, err := client.OpenDisk(t.Context(), v, "id"); err != nil || disk.Bytes() != 3<<16 {
		t.Errorf("%v, %v", disk, err)
	}
	// A map that was cut would make a smaller disk.
	client, v = openHostile(t, endpoint.KubeVirt, untagged(2<<16, 3<<16))
	if _, err := client.OpenDisk(t.Context(), v, "id"); errclass.Of(err) != errclass.Corrupt {
		t.Error(err)
	}
}

func TestOpenDisk_dataTellsSize(t *testing.T) {
	t.Parallel()
	for regions, want := range map[string]errclass.Class{
		``: errclass.None,
		`{"offset":0,"length":65536,"type":"clean"},{"offset":65536,"length":65536,"type":"dirty"}`: errclass.None,
		// What has not changed is there up to the end, or not at all.
		`{"offset":0,"length":65536,"type":"clean"}`: errclass.Corrupt,
	} {
		client, v := openHostile(t, endpoint.Spec, func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/map") {
				fmt.Fprintf(w, `{"regions":[%s],"next_offset":null}`, regions)
				return
			}
			w.Header().Set("Content-Range", "bytes 0-0/131072")
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write([]byte{1})
		})
		if disk, err := client.OpenDisk(t.Context(), v, "id"); errclass.Of(err) != want || err == nil && disk.Bytes() != 128<<10 {
			t.Errorf("regions %s: %v, %v", regions, disk, err)
		}
	}
}

// Without entity tags, a backup that was made again under the same name, with the same token, is told by its server alone.
func TestDisk_withoutTagRefusesAnotherServer(t *testing.T) {
	t.Parallel()
	client, v := openHostile(t, endpoint.KubeVirt, untagged(1<<16, 1<<16))
	disk, err := client.OpenDisk(t.Context(), v, "id")
	if err != nil || disk.Tag() != "" || disk.Server() == "" {
		t.Fatalf("%v, %v", disk, err)
	}
	v.Server = disk.Server()
	if _, err := client.OpenDisk(t.Context(), v, "id"); err != nil {
		t.Errorf("the same server: %v", err)
	}
	v.Server = strings.Repeat("0", 64)
	if _, err := client.OpenDisk(t.Context(), v, "id"); !errors.Is(err, endpoint.ErrOtherPoint) {
		t.Errorf("the map of another server: %v", err)
	}
	q := endpoint.DataRequest{URL: v.Data, Dialect: endpoint.KubeVirt, Server: v.Server}
	if err := client.ReadAt(t.Context(), q, make([]byte, 4), 0); !errors.Is(err, endpoint.ErrOtherPoint) {
		t.Errorf("the data of another server: %v", err)
	}
}

// KubeVirt 1.8 answers with 500 while its launcher is away.
func TestReadAt_comesAgainAfterServerErrors(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64
	client, v := openHostile(t, endpoint.Spec, func(w http.ResponseWriter, r *http.Request) {
		switch requests.Add(1) {
		case 1:
			http.Error(w, "rpc error", http.StatusInternalServerError)
		case 2:
			w.Header().Set("Retry-After", "1")
			http.Error(w, "later", http.StatusServiceUnavailable)
		default:
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader([]byte("0123456789")))
		}
	})
	p := make([]byte, 4)
	if err := client.ReadAt(t.Context(), endpoint.DataRequest{URL: v.Data}, p, 3); err != nil || string(p) != "3456" || requests.Load() != 3 {
		verdict.JudgeErrorf(t, err == nil && string(p) != "3456", "%q after %d requests: %v", p, requests.Load(), err)
	}
}

// A server that sends its header byte by byte is silent, and one that is silent in the middle of a body is as well.
func TestReadAt_silenceIsCut(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Range") == "bytes=0-3" {
			w.Header().Set("Content-Range", "bytes 0-3/8")
			w.WriteHeader(http.StatusPartialContent)
			_, _ = io.WriteString(w, "0")
			w.(http.Flusher).Flush()
		}
		<-release
	}))
	t.Cleanup(s.Close)
	t.Cleanup(func() { close(release) })
	for _, offset := range []int64{0, 4} {
		o := endpoint.Options{Stall: 50 * time.Millisecond}
		useServer(&o, s, exportsite.Token)
		countHours(&o)
		err := exportsite.NewClient(t, o).ReadAt(t.Context(), endpoint.DataRequest{URL: s.URL}, make([]byte, 4), offset)
		if errclass.Of(err) != errclass.Transient {
			t.Errorf("at %d: %v", offset, err)
		}
		// Whoever cancels does not wait for the server.
		o.Stall = time.Hour
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(30*time.Millisecond, cancel)
		if err := exportsite.NewClient(t, o).ReadAt(ctx, endpoint.DataRequest{URL: s.URL}, make([]byte, 4), offset); !errors.Is(err, context.Canceled) {
			t.Errorf("canceled at %d: %v", offset, err)
		}
	}
}
