package server

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/httpserver"
	"github.com/varvebackup/varve/internal/extent"
)

// serveData sends a disk, or a part of it.
func (s *Server) serveData(w *response, r *http.Request, v export.Volume) error {
	info := v.Info()
	query, err := parseQuery(r)
	if err != nil {
		return err
	}
	part, err := parsePart(w, query, info.Bytes)
	if err != nil {
		return err
	}
	tag := entityTag(info)
	w.Header().Set("ETag", tag)
	if err := checkConditions(r, tag); err != nil {
		return w.refuseCondition(err)
	}
	answer := dataAnswer{response: w, server: s, status: http.StatusOK, part: part}
	if err := answer.selectRange(r, tag); err != nil {
		return err
	}
	w.Header().Set("Accept-Ranges", "bytes")
	if r.Method == http.MethodHead || answer.part.Empty() {
		answer.begin()
		return nil
	}
	answer.next = answer.part.Offset
	begun := func() bool { return answer.next > answer.part.Offset }
	if err := s.readOn(r.Context(), v, answer.part, export.Everything, begun, answer.sendChunk); err != nil {
		return err
	}
	if answer.next != answer.part.End() {
		return errclass.Errorf(errclass.Corrupt, "volume %s was read up to %d of %v", info.Name, answer.next, answer.part)
	}
	return nil
}

// refuseCondition answers 304 with the tag, and leaves other errors to the caller.
func (w *response) refuseCondition(err error) error {
	if statusOf(err) != http.StatusNotModified {
		return err
	}
	w.WriteHeader(http.StatusNotModified)
	return nil
}

// dataAnswer sends the chunks of a part of a disk. The answer begins with the first one, so that a failure before it has
// a status.
type dataAnswer struct {
	*response
	server *Server
	status int
	part   extent.Extent
	next   int64
}

// selectRange evaluates Range and If-Range. Ranges are those of the part that the query names.
func (a *dataAnswer) selectRange(r *http.Request, tag string) error {
	header := r.Header.Get("Range")
	if header == "" || r.Method != http.MethodGet {
		return nil
	}
	if condition := r.Header.Get("If-Range"); condition != "" && condition != tag {
		return nil
	}
	selected, partial, err := parseRange(header, a.part.Length)
	if err != nil {
		return notInDisk(a, a.part.Length)
	}
	if partial {
		a.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", selected.Offset, selected.End()-1, a.part.Length))
		a.status = http.StatusPartialContent
		a.part = extent.Extent{Offset: a.part.Offset + selected.Offset, Length: selected.Length}
	}
	return nil
}

func (a *dataAnswer) begin() {
	a.Header().Set("Content-Type", "application/octet-stream")
	a.Header().Set("Content-Length", strconv.FormatInt(a.part.Length, 10))
	a.WriteHeader(a.status)
}

var zeroes [httpserver.PieceBytes]byte

// sendChunk is the sink of Read. It is the last place where the checksum of data can be looked at: HTTP has none.
func (a *dataAnswer) sendChunk(c export.Chunk) error {
	if c.Offset != a.next || c.Length < 0 || c.Length > a.part.End()-a.next || (c.Data != nil && int64(len(c.Data)) != c.Length) {
		return errclass.Errorf(errclass.Corrupt, "volume %s: chunk %v with %d bytes follows %d", a.volume, c.Extent, len(c.Data), a.next)
	}
	if sum := export.Checksum(c.Data); c.Data != nil && sum != c.Checksum {
		return errclass.Errorf(errclass.Corrupt, "volume %s: %v has checksum %08x, not %08x", a.volume, c.Extent, sum, c.Checksum)
	}
	if a.response.Status() == 0 {
		a.begin()
	}
	a.next += c.Length
	if c.Data != nil {
		return a.sendBytes(c.Data)
	}
	for left := c.Length; left > 0; left -= httpserver.PieceBytes {
		if err := a.sendBytes(zeroes[:min(left, httpserver.PieceBytes)]); err != nil {
			return err
		}
	}
	return nil
}

func (a *dataAnswer) sendBytes(p []byte) error {
	n, err := a.Write(p)
	a.server.Hooks.Sent(a.volume, dataEndpoint, int64(n))
	return err
}
