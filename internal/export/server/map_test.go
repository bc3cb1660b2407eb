package server_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/exporttest"
	"github.com/varvebackup/varve/internal/export/server"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/verdict"
)

type regionJSON struct {
	Offset int64  `json:"offset"`
	Length int64  `json:"length"`
	Type   string `json:"type"`
}

type extentJSON struct {
	Offset      int64  `json:"offset"`
	Length      int64  `json:"length"`
	Type        uint64 `json:"type"`
	Description string `json:"description"`
}

type pageJSON struct {
	Regions    []regionJSON `json:"regions"`
	Extents    []extentJSON `json:"extents"`
	NextOffset *int64       `json:"next_offset"`
	Size       int64        `json:"size"`
}

func (s *site) askMap(t *testing.T, volume string, query url.Values) pageJSON {
	t.Helper()
	got := s.ask(t, http.MethodGet, "/exports/"+volume+"/map?"+query.Encode())
	var page pageJSON
	if err := json.Unmarshal(got.body, &page); err != nil || got.status != 200 || got.header.Get("Content-Type") != "application/json" {
		t.Fatalf("%v: %d %s %v", query, got.status, got.body, err)
	}
	return page
}

// wantRegions is the map of a part of a volume, from its content.
func wantRegions(v *exporttest.Volume, part extent.Extent, clean bool) (regions []regionJSON) {
	add := func(offset, length int64, kind string) {
		if last := len(regions) - 1; last >= 0 && regions[last].Type == kind && regions[last].Offset+regions[last].Length == offset {
			regions[last].Length += length
			return
		}
		regions = append(regions, regionJSON{offset, length, kind})
	}
	for offset := part.Offset; offset < part.End(); {
		length := min(exporttest.BlockBytes-offset%exporttest.BlockBytes, part.End()-offset)
		zero := true
		for _, b := range v.Content[offset : offset+length] {
			zero = zero && b == 0
		}
		switch {
		case v.Description.Incremental && !v.Dirty[offset/exporttest.BlockBytes]:
			if clean {
				add(offset, length, "clean")
			}
		case zero:
			add(offset, length, "zero")
		case v.Description.Incremental:
			add(offset, length, "dirty")
		default:
			add(offset, length, "data")
		}
		offset += length
	}
	return regions
}

// mergeRegions joins neighbours of the same type, which are apart only because a page ended between them.
func mergeRegions(regions []regionJSON) (merged []regionJSON) {
	for _, r := range regions {
		if last := len(merged) - 1; last >= 0 && merged[last].Type == r.Type && merged[last].Offset+merged[last].Length == r.Offset {
			merged[last].Length += r.Length
			continue
		}
		merged = append(merged, r)
	}
	return merged
}

func TestMap_pagesOfAnySizeAreTheWholeMap(t *testing.T) {
	t.Parallel()
	const size = 8<<20 + 4096
	random := rand.New(rand.NewPCG(1, 2))
	for _, incremental := range []bool{false, true} {
		disk := exporttest.NewVolume("root", size, incremental, 3)
		s := openVolumes(t, server.Config{}, disk)
		for _, clean := range []bool{false, true} {
			want := wantRegions(disk, extent.Extent{Length: size}, clean)
			whole := s.askMap(t, "root", url.Values{"start": {"0"}, "clean": {fmt.Sprint(clean)}})
			if diff := cmp.Diff(want, whole.Regions); diff != "" || whole.NextOffset != nil || whole.Size != size || whole.Extents != nil {
				verdict.Fatalf(t, "one page: %v %s", whole.NextOffset, diff)
			}
			for range 8 {
				limit := 1 + random.Int64N(1<<random.IntN(24))
				limit = max(limit, size/200)
				var all []regionJSON
				pages := 0
				for start := int64(0); ; pages++ {
					page := s.askMap(t, "root", url.Values{"start": {fmt.Sprint(start)}, "limit": {fmt.Sprint(limit)}, "clean": {fmt.Sprint(clean)}})
					part := extent.Extent{Offset: start, Length: min(limit, size-start)}
					if diff := cmp.Diff(wantRegions(disk, part, clean), page.Regions, cmp.Transformer("nil", func(r []regionJSON) []regionJSON { return append([]regionJSON{}, r...) })); diff != "" {
						verdict.Fatalf(t, "page %v: %s", part, diff)
					}
					all = append(all, page.Regions...)
					if page.NextOffset == nil {
						if part.End() != size {
							t.Fatalf("the map ends at %d", part.End())
						}
						break
					}
					if *page.NextOffset != part.End() {
						t.Fatalf("after %v the next page is at %d", part, *page.NextOffset)
					}
					start = *page.NextOffset
				}
				if diff := cmp.Diff(want, mergeRegions(all)); diff != "" {
					verdict.Fatalf(t, "%d pages of %d bytes: %s", pages, limit, diff)
				}
			}
		}
	}
}

func extentKind(kind string, incremental bool) (uint64, string) {
	switch {
	case kind == "clean":
		return 0, "clean"
	case incremental:
		return 1, "dirty"
	case kind == "zero":
		return 3, "hole,zero"
	}
	return 0, "data"
}

func wantExtents(v *exporttest.Volume, part extent.Extent) (extents []extentJSON) {
	for _, r := range wantRegions(v, part, true) {
		number, description := extentKind(r.Type, v.Description.Incremental)
		if last := len(extents) - 1; last >= 0 && extents[last].Description == description {
			extents[last].Length += r.Length
			continue
		}
		extents = append(extents, extentJSON{r.Offset, r.Length, number, description})
	}
	return extents
}

func TestMap_upstreamsDialect(t *testing.T) {
	t.Parallel()
	const size = 8<<20 + 4096
	for _, incremental := range []bool{false, true} {
		disk := exporttest.NewVolume("root", size, incremental, 4)
		s := openVolumes(t, server.Config{}, disk)
		part := extent.Extent{Offset: 100_000, Length: 5_000_000}
		whole := s.askMap(t, "root", url.Values{"offset": {"100000"}, "length": {"5000000"}})
		if diff := cmp.Diff(wantExtents(disk, part), whole.Extents); diff != "" || whole.NextOffset != nil || whole.Regions != nil {
			verdict.Errorf(t, "one page: %v %s", whole.NextOffset, diff)
		}
		if toEnd := s.askMap(t, "root", url.Values{"offset": {"100000"}, "length": {"0"}}); toEnd.Extents[len(toEnd.Extents)-1].Offset+toEnd.Extents[len(toEnd.Extents)-1].Length != size {
			t.Errorf("length 0 ends at %+v", toEnd.Extents[len(toEnd.Extents)-1])
		}
		var all []extentJSON
		for next := int64(0); ; {
			page := s.askMap(t, "root", url.Values{"offset": {fmt.Sprint(next)}, "page_size": {"3"}})
			all = append(all, page.Extents...)
			if page.NextOffset == nil {
				break
			}
			if last := page.Extents[2]; len(page.Extents) != 3 || *page.NextOffset != last.Offset+last.Length {
				t.Fatalf("after %+v the next page is at %d", page.Extents, *page.NextOffset)
			}
			next = *page.NextOffset
		}
		if diff := cmp.Diff(wantExtents(disk, extent.Extent{Length: size}), all); diff != "" {
			verdict.Errorf(t, "%s", diff)
		}
	}
}

// A page without parameters is in both dialects, and both go on at the same offset.
func TestMap_withoutParametersIsInBothDialects(t *testing.T) {
	t.Parallel()
	const size = 80 << 20
	disk := exporttest.NewVolume("root", size, true, 9)
	s := openVolumes(t, server.Config{}, disk)
	page := s.askMap(t, "root", url.Values{"x-kubevirt-export-token": {"ignored"}})
	if page.NextOffset == nil || len(page.Extents) == 0 || len(page.Regions) == 0 {
		t.Fatalf("%d regions, %d extents, next %v", len(page.Regions), len(page.Extents), page.NextOffset)
	}
	part := extent.Extent{Length: *page.NextOffset}
	if diff := cmp.Diff(wantRegions(disk, part, false), page.Regions); diff != "" {
		verdict.Errorf(t, "%s", diff)
	}
	if diff := cmp.Diff(wantExtents(disk, part), page.Extents); diff != "" {
		verdict.Errorf(t, "%s", diff)
	}
	if n := len(wantRegions(disk, part, true)); n != 512 {
		t.Errorf("a page of %d regions", n)
	}
	rest := s.askMap(t, "root", url.Values{"start": {strconv.FormatInt(*page.NextOffset, 10)}})
	if diff := cmp.Diff(wantRegions(disk, extent.Extent{Length: size}, false), mergeRegions(append(page.Regions, rest.Regions...))); diff != "" || rest.NextOffset != nil {
		verdict.Errorf(t, "%v %s", rest.NextOffset, diff)
	}
}

func TestMap_aPageHasAtMostTenThousandRegions(t *testing.T) {
	t.Parallel()
	disk := newScattered(1 << 40)
	s := openVolumes(t, server.Config{}, disk)
	count, pages := 0, 0
	for start := int64(0); ; pages++ {
		page := s.askMap(t, "huge", url.Values{"start": {fmt.Sprint(start)}, "limit": {fmt.Sprint(64 << 30)}})
		if len(page.Regions) > 10_000 {
			t.Fatalf("%d regions", len(page.Regions))
		}
		for _, r := range page.Regions {
			if r.Offset != int64(count)*scatterBytes || r.Length != 64<<10 {
				verdict.Fatalf(t, "region %d is %+v", count, r)
			}
			count++
		}
		if page.NextOffset == nil || pages > 40 {
			break
		}
		start = *page.NextOffset
	}
	if want := (1 << 40) / scatterBytes; count != want {
		verdict.Errorf(t, "%d regions on %d pages, not %d", count, pages, want)
	}
}

// A volume that reports neighbours of one kind apart, or something that cannot be, is not handed on.
func TestMap_doesNotTrustTheVolume(t *testing.T) {
	t.Parallel()
	region := func(offset, length int64, kind export.Kind) export.Region {
		return export.Region{Extent: extent.Extent{Offset: offset, Length: length}, Kind: kind}
	}
	for name, c := range map[string]struct {
		regions []export.Region
		status  int
	}{
		"apart":       {[]export.Region{region(0, 4096, export.Data), region(4096, 4096, export.Data)}, 200},
		"gap":         {[]export.Region{region(0, 4096, export.Data), region(4097, 4095, export.Zero)}, 500},
		"overlap":     {[]export.Region{region(0, 4097, export.Data), region(4096, 4096, export.Zero)}, 500},
		"too long":    {[]export.Region{region(0, 8193, export.Data)}, 500},
		"negative":    {[]export.Region{region(0, -1, export.Data)}, 500},
		"empty":       {[]export.Region{region(0, 0, export.Data), region(0, 8192, export.Data)}, 500},
		"ends early":  {[]export.Region{region(0, 4096, export.Data)}, 500},
		"has nothing": {nil, 500},
	} {
		s := openVolumes(t, server.Config{}, &told{regions: c.regions})
		got := s.ask(t, http.MethodGet, "/exports/told/map")
		if got.status != c.status {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
		if want := `{"regions":[{"offset":0,"length":8192,"type":"data"}],"extents":[{"offset":0,"length":8192,"type":0,"description":"data"}],"next_offset":null,"size":8192}` + "\n"; c.status == 200 && string(got.body) != want {
			t.Errorf("%s: %s", name, got.body)
		}
	}
}
