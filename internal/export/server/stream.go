package server

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/stream"
	"github.com/varvebackup/varve/internal/extent"
)

// flushEvery is how long a frame waits in the buffer for others.
const flushEvery = time.Second

// streamed is a volume of a stream, from an offset on.
type streamed struct {
	export.Volume
	info export.Info
	from int64
}

// serveVolumeStream sends one volume.
func (s *Server) serveVolumeStream(w *response, r *http.Request, v export.Volume) error {
	query, err := parseQuery(r)
	if err != nil {
		return err
	}
	info := v.Info()
	volumes := []streamed{{Volume: v, info: info}}
	if err := parsePositions(w, query["from"], volumes); err != nil {
		return err
	}
	return s.serveStream(w, r, entityTag(info), volumes)
}

// serveBackupStream sends the volumes that the query names, or all. Its entity tag is that of all volumes in either case, so
// that a client that still needs some of them can use it.
func (s *Server) serveBackupStream(w *response, r *http.Request) error {
	query, err := parseQuery(r)
	if err != nil {
		return err
	}
	var infos []export.Info
	opened := map[string]export.Volume{}
	for _, name := range s.Names {
		v, err := s.openVolume(r.Context(), name)
		if err != nil {
			return err
		}
		opened[name] = v
		infos = append(infos, v.Info())
	}
	volumes, err := selectVolumes(w, query, s.Names, opened)
	if err != nil {
		return err
	}
	return s.serveStream(w, r, entityTag(infos...), volumes)
}

// selectVolumes returns the volumes that the query names, each with the offset in the same place.
func selectVolumes(w http.ResponseWriter, query url.Values, all []string, opened map[string]export.Volume) (volumes []streamed, err error) {
	names := query["volume"]
	if len(names) == 0 {
		if query.Has("from") {
			return nil, refusef(http.StatusBadRequest, "from needs volume: name each volume to go on with, and then where")
		}
		names = all
	}
	for i, name := range names {
		v, known := opened[name]
		switch {
		case !known:
			return nil, refusef(http.StatusNotFound, "the backup has no such volume")
		case slices.Contains(names[:i], name):
			return nil, refusef(http.StatusBadRequest, "volume %s is there twice", name)
		}
		volumes = append(volumes, streamed{Volume: v, info: v.Info()})
	}
	return volumes, parsePositions(w, query["from"], volumes)
}

// parsePositions sets the offsets at which the volumes begin.
func parsePositions(w http.ResponseWriter, from []string, volumes []streamed) error {
	if len(from) == 0 {
		return nil
	}
	if len(from) != len(volumes) {
		return refusef(http.StatusBadRequest, "from is there %d times for %d volumes", len(from), len(volumes))
	}
	for i, text := range from {
		offset, err := parseDigits(text)
		if err != nil {
			return refusef(http.StatusBadRequest, "from is not a number of bytes")
		}
		if offset > volumes[i].info.Bytes {
			return notInDisk(w, volumes[i].info.Bytes)
		}
		volumes[i].from = offset
	}
	return nil
}

// serveStream sends volumes. A stream that does not begin at 0 needs If-Match: two points in time that are put together
// are a disk that never was.
func (s *Server) serveStream(w *response, r *http.Request, tag string, volumes []streamed) error {
	w.Header().Set("ETag", tag)
	if err := checkConditions(r, tag); err != nil {
		return w.refuseCondition(err)
	}
	if r.Header.Get("If-Match") == "" && slices.ContainsFunc(volumes, func(v streamed) bool { return v.from > 0 }) {
		return refusef(http.StatusPreconditionRequired, "from needs If-Match with the ETag of the first answer")
	}
	w.Header().Set("Content-Type", stream.ContentType)
	if r.Method == http.MethodHead {
		w.WriteHeader(http.StatusOK)
		return nil
	}
	header := make([]stream.Volume, len(volumes))
	for i, v := range volumes {
		header[i] = stream.Volume{Name: v.info.Name, Bytes: v.info.Bytes, Incremental: v.info.Incremental, PointInTime: v.info.PointInTime, From: v.from}
	}
	out := &watchedWriter{response: w}
	encoder, err := stream.NewEncoder(out, header)
	if err != nil {
		return err
	}
	failed, err := s.sendVolumes(r.Context(), encoder, out.begun.Load, volumes)
	if err == nil {
		err = encoder.Close()
	}
	if err != nil && w.Status() != 0 {
		// The client learns the reason if it still listens. That the stream has no end it learns in any case.
		encoder.WriteError(failed, err) //nolint:errcheck // the error before is the one that counts
	}
	return err
}

// sendVolumes reads the volumes side by side and sends their frames as they come. It holds one chunk of each volume that
// it reads. If it fails, it returns the volume's name as well.
func (s *Server) sendVolumes(ctx context.Context, encoder *stream.Encoder, begun func() bool, volumes []streamed) (failed string, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	more := s.slots.take(min(len(volumes), s.Limits.ParallelVolumes) - 1) // the request itself has one
	defer s.slots.release(more)
	readers, reading := errgroup.WithContext(ctx)
	readers.SetLimit(1 + more)
	beating, stop := context.WithCancel(ctx)
	var beats sync.WaitGroup
	before := encoder.Frames()
	beats.Go(func() {
		if err := s.keepAlive(beating, encoder, before); err != nil {
			cancel(err) // a client that takes nothing ends readers that wait for something to send
		}
	})
	names := make(chan string, len(volumes))
	for i, v := range volumes {
		readers.Go(func() error {
			if reading.Err() != nil {
				return context.Cause(reading)
			}
			part := extent.Extent{Offset: v.from, Length: v.info.Bytes - v.from}
			if part.Empty() {
				return nil
			}
			err := s.readOn(reading, v, part, export.Changed, begun, func(c export.Chunk) error {
				s.Hooks.Sent(v.info.Name, streamEndpoint, int64(len(c.Data)))
				return encoder.WriteChunk(i, c)
			})
			if err != nil {
				names <- v.info.Name
			}
			return err
		})
	}
	err = readers.Wait()
	stop()
	beats.Wait()
	if err != nil {
		select {
		case failed = <-names:
		default:
		}
	}
	return failed, err
}

// keepAlive sends what waits in the buffer, and a frame that says nothing when there has been none for a while. seen is how
// many frames there were when the volumes began.
func (s *Server) keepAlive(ctx context.Context, encoder *stream.Encoder, seen int64) error {
	ticker := s.Clock.NewTicker(min(flushEvery, s.Limits.Keepalive))
	defer ticker.Stop()
	last := s.Clock.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
		var err error
		switch frames, now := encoder.Frames(), s.Clock.Now(); {
		case frames != seen:
			seen, last, err = frames, now, encoder.Flush()
		case now.Sub(last) >= s.Limits.Keepalive:
			seen, last, err = frames+1, now, encoder.WriteKeepalive()
		}
		if err != nil {
			return err
		}
	}
}
