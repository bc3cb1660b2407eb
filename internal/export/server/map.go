package server

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/extent"
)

const (
	// mostRegions is how many regions a page has at most, and defaultPageSize how many it has for upstream's clients.
	mostRegions     = 10_000
	defaultPageSize = 512
)

// mapRequest is a request for a page in either dialect, or in none: then the answer is in both.
type mapRequest struct {
	// scan is what the page is about, unless it has more than regions regions.
	scan    extent.Extent
	regions int
	clean   bool
	// asRegions is the spec's dialect: start, limit, clean; next_offset is null at the end of the disk.
	// asExtents is that of KubeVirt 1.8: offset, length, page_size; next_offset is null at the end of scan.
	asRegions, asExtents bool
	// changes says that the types of extents are those of a dirty bitmap; see describesChanges.
	changes bool
}

// page is a part of a map.
type page struct {
	regions []export.Region
	// covered is where the page ends: the end of what was asked for, or the first region that had no room.
	covered int64
}

// serveMap answers with a page of a volume's map.
func (s *Server) serveMap(w *response, r *http.Request, v export.Volume) error {
	info := v.Info()
	query, err := parseQuery(r)
	if err != nil {
		return err
	}
	request, err := parseMapRequest(w, query, info.Bytes)
	if err != nil {
		return err
	}
	tag := entityTag(info)
	w.Header().Set("ETag", tag)
	if err := checkConditions(r, tag); err != nil {
		return w.refuseCondition(err)
	}
	if request.asExtents {
		if request.changes, err = s.describesChanges(r.Context(), info); err != nil {
			return err
		}
	}
	found, err := readPage(r.Context(), v, request)
	if err != nil {
		return err
	}
	w.writeText(http.StatusOK, "application/json", encodePage(info, request, found))
	return nil
}

// describesChanges reports whether the extents of a volume tell what changed since a base, and not what is allocated.
// In the dialect of KubeVirt 1.8 that is a matter of the backup, not of the volume: its status has one type for all, and
// KubeVirt 1.8 has no backup in which some volumes are full. A client that reads the map of an incremental backup copies
// what is dirty and skips the rest, so a volume that is full in such a backup must be dirty as a whole.
func (s *Server) describesChanges(ctx context.Context, info export.Info) (bool, error) {
	if info.Incremental {
		return true, nil
	}
	for _, name := range s.Names {
		v, err := s.openVolume(ctx, name)
		if err != nil {
			return false, err
		}
		if v.Info().Incremental {
			return true, nil
		}
	}
	return false, nil
}

func parseMapRequest(w http.ResponseWriter, query url.Values, size int64) (m mapRequest, err error) {
	m.asRegions = query.Has("start") || query.Has("limit") || query.Has("clean")
	m.asExtents = query.Has("offset") || query.Has("length") || query.Has("page_size")
	switch {
	case m.asRegions && m.asExtents:
		return m, refusef(http.StatusBadRequest, "start, limit and clean do not go with offset, length and page_size")
	case m.asRegions:
		err = m.parseSpec(w, query, size)
	default:
		m.asRegions = !m.asExtents
		m.asExtents, m.clean = true, true
		if m.scan, err = parsePart(w, query, size); err == nil {
			m.regions, err = parsePageSize(query)
		}
	}
	return m, err
}

func (m *mapRequest) parseSpec(w http.ResponseWriter, query url.Values, size int64) error {
	start, err := parseNumber(query, "start", 0)
	if err != nil {
		return err
	}
	limit, err := parseNumber(query, "limit", size)
	if err != nil {
		return err
	}
	if limit == 0 && size > 0 {
		return refusef(http.StatusBadRequest, "limit is 0")
	}
	if text := query.Get("clean"); text != "" {
		if m.clean, err = strconv.ParseBool(text); err != nil {
			return refusef(http.StatusBadRequest, "clean is true or false")
		}
	}
	if start > size {
		return notInDisk(w, size)
	}
	m.scan, m.regions = extent.Extent{Offset: start, Length: min(limit, size-start)}, mostRegions
	return nil
}

func parsePageSize(query url.Values) (int, error) {
	n, err := parseNumber(query, "page_size", defaultPageSize)
	if err != nil || n == 0 {
		return 0, refusef(http.StatusBadRequest, "page_size is not a number of extents above 0")
	}
	return int(min(n, mostRegions)), nil
}

// kindFor returns the kind under which a page has a region. A dirty bitmap knows only that something changed, so extents
// that tell changes have zeroes as data, and neighbours become one extent.
func (m mapRequest) kindFor(kind export.Kind) export.Kind {
	if m.changes && kind == export.Zero && !m.asRegions {
		return export.Data
	}
	return kind
}

// readPage reads a page. A region ends where the scan ends, or where it ends on the disk, and nowhere else: neighbours of the
// same kind are one region even if the volume reports them apart.
func readPage(ctx context.Context, v export.Volume, m mapRequest) (page, error) {
	info, found := v.Info(), page{covered: m.scan.End()}
	if m.scan.Empty() {
		return found, nil
	}
	next := m.scan.Offset
	var broken error
	err := v.Regions(ctx, m.scan, func(r export.Region) bool {
		if r.Offset != next || r.Empty() || !m.scan.Contains(r.Extent) {
			broken = errclass.Errorf(errclass.Corrupt, "volume %s: region %v follows %d", info.Name, r.Extent, next)
			return false
		}
		next = r.End()
		if r.Kind == export.Clean && !m.clean {
			return true
		}
		r.Kind = m.kindFor(r.Kind)
		if last := len(found.regions) - 1; last >= 0 && found.regions[last].Kind == r.Kind && found.regions[last].End() == r.Offset {
			found.regions[last].Length += r.Length
			return true
		}
		if len(found.regions) == m.regions {
			found.covered = r.Offset
			return false
		}
		found.regions = append(found.regions, r)
		return true
	})
	switch {
	case err != nil:
		return page{}, err
	case broken != nil:
		return page{}, broken
	case found.covered == m.scan.End() && next != m.scan.End():
		return page{}, errclass.Errorf(errclass.Corrupt, "volume %s: the regions of %v end at %d", info.Name, m.scan, next)
	}
	return found, nil
}
