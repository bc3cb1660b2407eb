package endpoint

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/source"
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
	// pageSize is how many extents to ask for in KubeVirt's dialect.
	pageSize = 4096
	// freePages is how many pages a map may have beside one for each granule that they are about, and maxPages how many in all.
	freePages = 1000
	maxPages  = 1 << 20
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
	// Server is the certificate of the server, as MapStats has it. It counts where there is no entity tag; "": any.
	Server string
}

// MapStats describe a map.
type MapStats struct {
	// Tag is the entity tag of the point in time; "" if the server has none.
	Tag string
	// Server is a hash of the certificate of the server, which an export has for itself.
	Server string
	// Bytes is the size of the disk; 0 if neither the request nor the server tells it, and the map has no end of its own.
	Bytes int64
	// Complete: the map leaves nothing out, so that it ends where the disk ends.
	Complete bool
}

// Regions calls report for the regions of a volume, in order. A neighbour of the same kind is part of the same region. A gap
// has not changed. It ends early when report returns false.
func (c *Client) Regions(ctx context.Context, q MapRequest, report func(export.Region) bool) (MapStats, error) {
	r := mapReader{client: c, request: q, stats: MapStats{Tag: q.Tag, Bytes: q.Bytes, Server: q.Server}, report: report}
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
	if r.ended {
		return r.stats, nil
	}
	if err := r.checkEnd(); err != nil {
		return r.stats, err
	}
	if !r.region.Empty() {
		report(r.region)
	}
	return r.stats, nil
}

// mapReader reads pages and joins their regions.
type mapReader struct {
	client  *Client
	request MapRequest
	url     *url.URL
	stats   MapStats
	report  func(export.Region) bool
	// next is where the next page begins, end the end of the last region, and pages how many have come.
	next, end, pages int64
	// gaps: something is left out. clean: there is a region that has not changed.
	gaps, clean bool
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
	if response.StatusCode != http.StatusOK {
		return p, errclass.Errorf(errPage, "the endpoint answers a request for a page of the map with status %d", response.StatusCode)
	}
	if p, err = decodePage(bodyReader{response.Body}, r.request.Dialect); err != nil {
		return p, classifyFailure(ctx, err)
	}
	if tag := response.Header.Get("ETag"); r.stats.Tag == "" {
		r.stats.Tag = tag
	} else if tag != "" && tag != r.stats.Tag {
		return p, errclass.Errorf(ErrOtherPoint, "the map went on with another point in time")
	}
	if r.stats.Tag == "" {
		if err := checkServer(response, r.stats.Server); err != nil {
			return p, err
		}
	}
	r.stats.Server = serverOf(response)
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
	r.pages++
	switch {
	case p.size > 0 && r.stats.Bytes > 0 && p.size != r.stats.Bytes:
		return false, errclass.Errorf(errclass.Corrupt, "the map is of a disk of %d bytes, not %d", p.size, r.stats.Bytes)
	case p.size > 0:
		r.stats.Bytes = p.size
	}
	if r.stats.Bytes > source.MaxBytes {
		return false, errclass.Errorf(errclass.Corrupt, "the map is of a disk of %d bytes, and no disk is larger than %d", r.stats.Bytes, int64(source.MaxBytes))
	}
	for _, region := range p.regions {
		if err := r.addRegion(region); err != nil {
			return false, err
		}
	}
	if r.ended || p.next < 0 || p.next == 0 && r.request.Dialect == KubeVirt {
		return false, nil
	}
	if p.next <= r.next || p.next < r.end || p.next > source.MaxBytes {
		return false, errclass.Errorf(errclass.Corrupt, "the page of the map at %d is followed by one at %d", r.next, p.next)
	}
	r.next = p.next
	if r.pages > maxPages || r.pages > freePages+r.next/source.GranuleBytes {
		return false, errclass.Errorf(errclass.Corrupt, "the map does not end: it has %d pages about the first %d bytes", r.pages, r.next)
	}
	return r.stats.Bytes == 0 || r.next < r.stats.Bytes, nil
}

// addRegion joins a region with its neighbour, and reports what has no more neighbours. KubeVirt's dialect leaves nothing out.
func (r *mapReader) addRegion(next export.Region) error {
	switch {
	case next.Offset < r.end || next.End() > source.MaxBytes || r.stats.Bytes > 0 && next.End() > r.stats.Bytes:
		return errclass.Errorf(errclass.Corrupt, "the map has a region from %d to %d after %d, on a disk of %d bytes", next.Offset, next.End(), r.end, r.stats.Bytes)
	case next.Offset > r.end && r.request.Dialect == KubeVirt:
		return errclass.Errorf(errclass.Corrupt, "the map says nothing of what is from %d to %d", r.end, next.Offset)
	case r.ended:
		return nil
	}
	r.gaps = r.gaps || next.Offset > r.end
	r.clean = r.clean || next.Kind == export.Clean
	r.end = next.End()
	switch {
	case next.Kind == export.Clean && !r.request.Clean:
	case r.region.Kind == next.Kind && r.region.End() == next.Offset:
		r.region.Length += next.Length
	default:
		if !r.region.Empty() && !r.report(r.region) {
			r.ended = true
		}
		r.region = next
	}
	return nil
}

// checkEnd checks that nothing is missing from a map that leaves nothing out. What is missing would count as unchanged.
func (r *mapReader) checkEnd() error {
	if r.request.Dialect == KubeVirt && r.stats.Bytes == 0 {
		r.stats.Bytes = r.end
	}
	r.stats.Complete = r.request.Dialect == KubeVirt || r.clean
	if r.stats.Complete && (r.gaps || r.stats.Bytes > 0 && r.end != r.stats.Bytes) {
		return errclass.Errorf(errclass.Corrupt, "the map ends at %d of %d bytes, or leaves something out", r.end, r.stats.Bytes)
	}
	return nil
}
