package endpoint_test

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/endpoint"
	"github.com/varvebackup/varve/internal/export/exporttest"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/disksource"
	"github.com/varvebackup/varve/test/exportsite"
	"github.com/varvebackup/varve/test/verdict"
)

func encodeCertificate(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// regionsOf returns the regions of a volume as a map has them.
func regionsOf(t *testing.T, v *exporttest.Volume, clean, zeroes bool) (all []export.Region) {
	t.Helper()
	err := v.Regions(t.Context(), extent.Extent{Length: v.Description.Bytes}, func(r export.Region) bool {
		if r.Kind == export.Clean && !clean {
			return true
		}
		if r.Kind == export.Zero && !zeroes {
			r.Kind = export.Data
		}
		if n := len(all); n > 0 && all[n-1].Kind == r.Kind && all[n-1].End() == r.Offset {
			all[n-1].Length += r.Length
			return true
		}
		all = append(all, r)
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// newScattered returns a volume of many regions, most of whose bytes are zeroes.
func newScattered(size int64, incremental bool) *exporttest.Volume {
	random := rand.New(rand.NewPCG(5, 5))
	v := &exporttest.Volume{Description: export.Info{Name: "disk", Bytes: size, Incremental: incremental, PointInTime: "now"}, Content: make([]byte, size)}
	for offset := int64(0); offset < size; offset += exporttest.BlockBytes {
		if random.IntN(3) > 0 {
			v.Content[offset] = 1
		}
		v.Dirty = append(v.Dirty, incremental && random.IntN(2) == 0)
	}
	return v
}

func TestRegions_bothDialects(t *testing.T) {
	t.Parallel()
	for _, incremental := range []bool{false, true} {
		v := newScattered(800<<20+512, incremental) // more than a page of either
		s := exportsite.Open(t, v)
		client := exportsite.NewClient(t, exportsite.Cut(s.Options(), 3, 100<<10, 3))
		for _, dialect := range []endpoint.Dialect{endpoint.Spec, endpoint.KubeVirt} {
			for _, clean := range []bool{false, true} {
				var got []export.Region
				stats, err := client.Regions(t.Context(), endpoint.MapRequest{URL: s.URL("/exports/disk/map"), Dialect: dialect, Clean: clean}, func(r export.Region) bool {
					got = append(got, r)
					return true
				})
				// KubeVirt does not say of what has changed whether it is zero.
				want := regionsOf(t, v, clean, !incremental || dialect == endpoint.Spec)
				if err != nil || !slices.Equal(got, want) || stats.Bytes != v.Description.Bytes || stats.Tag == "" {
					verdict.JudgeErrorf(t, err == nil && !slices.Equal(got, want), "incremental %v, dialect %d, clean %v: %d regions instead of %d, %+v: %v", incremental, dialect, clean, len(got), len(want), stats, err)
				}
			}
		}
		first := 0
		if _, err := client.Regions(t.Context(), endpoint.MapRequest{URL: s.URL("/exports/disk/map")}, func(export.Region) bool { first++; return first < 3 }); err != nil || first != 3 {
			t.Errorf("ended early: %d regions, %v", first, err)
		}
		if _, err := client.Regions(t.Context(), endpoint.MapRequest{URL: s.URL("/exports/disk/map"), Tag: `"other"`}, func(export.Region) bool { return true }); !errors.Is(err, endpoint.ErrOtherPoint) {
			t.Errorf("another point in time: %v", err)
		}
	}
}

// Secrets that were made with an editor end with a line, and servers ignore that.
func TestClient_sendsTokenWithoutSpace(t *testing.T) {
	t.Parallel()
	s := exportsite.Open(t, exporttest.NewVolume("disk", 1<<20, false, 3))
	o := s.Options()
	o.Token = func(context.Context) (string, error) { return exportsite.Token + "\n", nil }
	if _, err := exportsite.NewClient(t, o).OpenDisk(t.Context(), endpoint.Volume{Name: "disk", Map: s.URL("/exports/disk/map"), Data: s.URL("/exports/disk/data")}, "id"); err != nil {
		t.Error(err)
	}
}

func TestRegions_refusesImpossibleMaps(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{"regions":[{"offset":0,"length":8,"type":"data"},{"offset":4,"length":8,"type":"zero"}],"next_offset":null,"size":16}`,
		`{"regions":[{"offset":0,"length":20,"type":"data"}],"next_offset":null,"size":16}`,
		`{"regions":[{"offset":-1,"length":2,"type":"data"}],"next_offset":null,"size":16}`,
		`{"regions":[{"offset":9223372036854775807,"length":2,"type":"data"}],"next_offset":null}`,
		`{"regions":[{"offset":0,"length":2,"type":"other"}],"next_offset":null,"size":16}`,
		`{"regions":[{"offset":0,"length":0,"type":"data"}],"next_offset":null,"size":16}`,
		`{"regions":[],"next_offset":0,"size":16}`,
		`{"regions":[],"next_offset":-4,"size":16}`,
		`{"regions":[],"next_offset":null,"size":-16}`,
		`{"regions":[{"offset":0,"length":8,"type":"data"}],"next_offset":4,"size":16}`,
		`not JSON`,
	} {
		hostile := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }))
		o := endpoint.Options{}
		useServer(&o, hostile, exportsite.Token)
		client := exportsite.NewClient(t, o)
		_, err := client.Regions(t.Context(), endpoint.MapRequest{URL: hostile.URL + "/map"}, func(export.Region) bool { return true })
		if errclass.Of(err) != errclass.Corrupt {
			t.Errorf("%s: %v", text, err)
		}
		client.Close()
		hostile.Close()
	}
}

func TestReadAt_bothDialectsThroughCuts(t *testing.T) {
	t.Parallel()
	v := exporttest.NewVolume("disk", 20<<20+17, true, 5)
	s := exportsite.Open(t, v)
	random := rand.New(rand.NewPCG(1, 2))
	for _, dialect := range []endpoint.Dialect{endpoint.Spec, endpoint.KubeVirt} {
		client := exportsite.NewClient(t, exportsite.Cut(s.Options(), 4, 2<<20, 10))
		disk, err := client.OpenDisk(t.Context(), endpoint.Volume{
			Name: "disk", Map: s.URL("/exports/disk/map"), Data: s.URL("/exports/disk/data"), Dialect: dialect, Incremental: true,
		}, "id")
		if err != nil {
			t.Fatal(err)
		}
		for range 30 {
			offset := random.Int64N(disk.Bytes())
			p := make([]byte, 1+random.Int64N(min(3<<20, disk.Bytes()-offset)))
			if err := disk.ReadAt(t.Context(), p, offset); err != nil || !bytes.Equal(p, v.Content[offset:offset+int64(len(p))]) {
				verdict.JudgeFatalf(t, err == nil, "dialect %d, %d bytes at %d: %v", dialect, len(p), offset, err)
			}
		}
		checkSets(t, v, disk)
	}
}

func TestOpenDisk_isADiskSource(t *testing.T) {
	t.Parallel()
	for name, incremental := range map[string]bool{"full": false, "incremental": true} {
		v := exporttest.NewVolume("disk", 6<<20+512, incremental, 8)
		s := exportsite.Open(t, v)
		want := disksource.Disk{Content: v.Content, Exact: true}
		if incremental {
			want.Changed = &extent.Set{}
			for _, r := range regionsOf(t, v, false, true) {
				want.Changed.Append(r.Extent)
			}
		}
		for dialect, called := range map[endpoint.Dialect]string{endpoint.Spec: "Spec", endpoint.KubeVirt: "KubeVirt"} {
			client := exportsite.NewClient(t, s.Options())
			t.Run(name+", "+called, func(t *testing.T) {
				t.Parallel()
				disksource.Run(t, want, func(t *testing.T) disksource.Source {
					t.Helper()
					d, err := client.OpenDisk(t.Context(), endpoint.Volume{
						Name: "disk", Map: s.URL("/exports/disk/map"), Data: s.URL("/exports/disk/data"), Dialect: dialect, Incremental: incremental,
					}, "id")
					if err != nil {
						t.Fatal(err)
					}
					return d
				})
			})
		}
	}
}

// checkSets compares what a disk says of its content with what it has.
func checkSets(t *testing.T, v *exporttest.Volume, disk *endpoint.Disk) {
	t.Helper()
	data, _ := disk.Data(t.Context())
	changed, _ := disk.Changes(t.Context())
	for _, r := range regionsOf(t, v, true, true) {
		if r.Kind == export.Clean == changed.Overlaps(r.Extent) {
			verdict.Errorf(t, "%v of kind %d: changed %v", r.Extent, r.Kind, changed.Contains(r.Extent))
		}
		if r.Kind == export.Data && !data.Contains(r.Extent) {
			verdict.Errorf(t, "%v of kind %d is no data", r.Extent, r.Kind)
		}
	}
}

func TestReadAt_refusesOtherRanges(t *testing.T) {
	t.Parallel()
	for _, answer := range []struct {
		status int
		header string
		body   string
	}{{200, "", "12345678"}, {206, "bytes 0-3/8", "1234"}, {206, "", "1234"}, {206, "bytes 4-7/8", "12345"}} {
		hostile := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if answer.header != "" {
				w.Header().Set("Content-Range", answer.header)
			}
			w.WriteHeader(answer.status)
			_, _ = io.WriteString(w, answer.body)
		}))
		o := endpoint.Options{}
		useServer(&o, hostile, exportsite.Token)
		client := exportsite.NewClient(t, o)
		if err := client.ReadAt(t.Context(), endpoint.DataRequest{URL: hostile.URL + "/data"}, make([]byte, 4), 4); errclass.Of(err) != errclass.Invalid {
			t.Errorf("%s: %v", fmt.Sprint(answer), err)
		}
		client.Close()
		hostile.Close()
	}
}
