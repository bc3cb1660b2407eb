package endpoint

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/extent"
)

// Dialect says how endpoints are spoken to.
type Dialect int

const (
	// Spec is the dialect of VEP 25: start, limit and regions; ranges of data in a header.
	Spec Dialect = iota
	// KubeVirt is the dialect of KubeVirt 1.8: offset, length, page_size and extents; ranges of data in the query.
	KubeVirt
)

const (
	// maxPageBytes bounds the JSON of a page.
	maxPageBytes = 16 << 20
	// pageSize is how many extents to ask for in KubeVirt's dialect.
	pageSize = 4096
)

// MapRequest asks for the regions of a volume.
type MapRequest struct {
	// URL is that of the volume's map.
	URL     string
	Dialect Dialect
	// Clean asks for the regions of an incremental that have not changed, too. KubeVirt's dialect always has them; without
	// Clean they are left out.
	Clean bool
	// Bytes is the size of the disk. It may be 0 if the server tells it, which KubeVirt 1.8 does not.
	Bytes int64
	// Tag is the entity tag of the point in time; "": any.
	Tag string
}

// MapStats describe a map.
type MapStats struct {
	// Tag is the entity tag of the point in time; "" if the server has none.
	Tag string
	// Bytes is the size of the disk.
	Bytes int64
}

// Regions calls report for the regions of a volume, in order. A neighbour of the same kind is part of the same region. A gap
// has not changed. It ends early when report returns false.
func (c *Client) Regions(ctx context.Context, q MapRequest, report func(export.Region) bool) (MapStats, error) {
	r := mapReader{client: c, request: q, stats: MapStats{Tag: q.Tag, Bytes: q.Bytes}, report: report}
	var err error
	if r.url, err = parseURL(q.URL); err != nil {
		return r.stats, err
	}
	for more := true; more; {
		var page page
		err := c.retry(ctx, func() (bool, error) {
			var err error
			page, err = r.readPage(ctx)
			return false, err
		})
		if err != nil {
			return r.stats, err
		}
		if more, err = r.addPage(page); err != nil {
			return r.stats, err
		}
	}
	if !r.ended && !r.region.Empty() {
		report(r.region)
	}
	return r.stats, nil
}

// page is the JSON of a page in either dialect.
type page struct {
	Regions []struct {
		Offset int64  `json:"offset"`
		Length int64  `json:"length"`
		Type   string `json:"type"`
	} `json:"regions"`
	Extents []struct {
		Offset      int64  `json:"offset"`
		Length      int64  `json:"length"`
		Description string `json:"description"`
	} `json:"extents"`
	NextOffset *int64 `json:"next_offset"`
	Size       int64  `json:"size"`
}

// mapReader reads pages and joins their regions.
type mapReader struct {
	client  *Client
	request MapRequest
	url     *url.URL
	stats   MapStats
	report  func(export.Region) bool
	// next is where the next page begins, and end the end of the last region.
	next, end int64
	// region waits for its neighbour.
	region export.Region
	ended  bool
}

func (r *mapReader) readPage(ctx context.Context) (p page, err error) {
	header := http.Header{}
	if r.stats.Tag != "" {
		header.Set("If-Match", r.stats.Tag)
	}
	response, err := r.client.get(ctx, r.pageURL(), header)
	if err != nil {
		return p, err
	}
	defer response.Body.Close() //nolint:errcheck // it was only read
	text, err := io.ReadAll(io.LimitReader(response.Body, maxPageBytes+1))
	if err != nil {
		return p, classifyFailure(ctx, err)
	}
	if len(text) > maxPageBytes {
		return p, errclass.Errorf(errclass.Corrupt, "a page of the map has more than %d bytes", maxPageBytes)
	}
	if err := json.Unmarshal(text, &p); err != nil {
		return p, errclass.Errorf(errclass.Corrupt, "a page of the map: %w", err)
	}
	if tag := response.Header.Get("ETag"); r.stats.Tag == "" {
		r.stats.Tag = tag
	} else if tag != "" && tag != r.stats.Tag {
		return p, errclass.Errorf(ErrOtherPoint, "the map went on with another point in time")
	}
	return p, nil
}

func (r *mapReader) pageURL() *url.URL {
	u, query := *r.url, url.Values{}
	switch r.request.Dialect {
	case KubeVirt:
		query.Set("offset", strconv.FormatInt(r.next, 10))
		query.Set("page_size", strconv.Itoa(pageSize))
	default:
		query.Set("start", strconv.FormatInt(r.next, 10))
		if r.request.Clean {
			query.Set("clean", "true")
		}
	}
	u.RawQuery = query.Encode()
	return &u
}

// addPage reports the regions of a page, and whether there is another one.
func (r *mapReader) addPage(p page) (more bool, err error) {
	switch {
	case p.Size < 0 || p.Size > 0 && r.stats.Bytes > 0 && p.Size != r.stats.Bytes:
		return false, errclass.Errorf(errclass.Corrupt, "the map is of a disk of %d bytes, not %d", p.Size, r.stats.Bytes)
	case p.Size > 0:
		r.stats.Bytes = p.Size
	}
	if r.request.Dialect == KubeVirt {
		for _, e := range p.Extents {
			if err := r.addRegion(e.Offset, e.Length, e.Description); err != nil {
				return false, err
			}
		}
	} else {
		for _, e := range p.Regions {
			if err := r.addRegion(e.Offset, e.Length, e.Type); err != nil {
				return false, err
			}
		}
	}
	if r.ended || p.NextOffset == nil || *p.NextOffset == 0 && r.request.Dialect == KubeVirt {
		return false, nil
	}
	if *p.NextOffset <= r.next || *p.NextOffset < r.end {
		return false, errclass.Errorf(errclass.Corrupt, "the page of the map at %d is followed by one at %d", r.next, *p.NextOffset)
	}
	r.next = *p.NextOffset
	return r.stats.Bytes == 0 || r.next < r.stats.Bytes, nil
}

var regionKinds = map[string]export.Kind{
	"data": export.Data, "dirty": export.Data, "zero": export.Zero, "hole": export.Zero, "hole,zero": export.Zero, "clean": export.Clean,
}

// addRegion joins a region with its neighbour, and reports what has no more neighbours.
func (r *mapReader) addRegion(offset, length int64, kind string) error {
	next := export.Region{Extent: extent.Extent{Offset: offset, Length: length}, Kind: regionKinds[kind]}
	switch {
	case !next.Valid() || next.Empty() || next.Kind == 0 || offset < r.end || r.stats.Bytes > 0 && next.End() > r.stats.Bytes:
		return errclass.Errorf(errclass.Corrupt, "the map has a region %q from %d to %d after %d, on a disk of %d bytes", kind, offset, offset+length, r.end, r.stats.Bytes)
	case r.ended:
		return nil
	}
	r.end = next.End()
	switch {
	case next.Kind == export.Clean && !r.request.Clean:
	case r.region.Kind == next.Kind && r.region.End() == offset:
		r.region.Length += length
	default:
		if !r.region.Empty() && !r.report(r.region) {
			r.ended = true
		}
		r.region = next
	}
	return nil
}
