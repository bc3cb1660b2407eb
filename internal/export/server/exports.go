package server

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
)

// The endpoints of a volume, as they stand in paths and metrics.
const (
	dataEndpoint   = "data"
	mapEndpoint    = "map"
	streamEndpoint = "stream"
)

// serveExports serves /exports/stream and /exports/<volume>/<endpoint>.
func (s *Server) serveExports(plain http.ResponseWriter, r *http.Request) {
	w := plain.(*response)
	volume, endpoint, err := splitPath(r.URL)
	if err != nil {
		w.refuse(err)
		return
	}
	w.endpoint = endpoint
	if err := allowMethods(w, r); err != nil {
		w.refuse(err)
		return
	}
	var opened export.Volume
	if volume != "" {
		if opened, err = s.openVolume(r.Context(), volume); err != nil {
			s.fail(w, r, err)
			return
		}
		w.volume = volume
	}
	switch {
	case volume == "":
		err = s.serveBackupStream(w, r)
	case endpoint == dataEndpoint:
		err = s.serveData(w, r, opened)
	case endpoint == mapEndpoint:
		err = s.serveMap(w, r, opened)
	default:
		err = s.serveVolumeStream(w, r, opened)
	}
	if err != nil {
		s.fail(w, r, err)
	}
}

// splitPath returns the volume and the endpoint of a path. The volume is empty for the stream of all.
func splitPath(u *url.URL) (volume, endpoint string, err error) {
	notFound := refusef(http.StatusNotFound, "no such path")
	segments := strings.Split(strings.TrimPrefix(u.EscapedPath(), ExportsPath), "/")
	if len(segments) == 1 && segments[0] == streamEndpoint {
		return "", streamEndpoint, nil
	}
	if len(segments) != 2 || !slices.Contains([]string{dataEndpoint, mapEndpoint, streamEndpoint}, segments[1]) {
		return "", "", notFound
	}
	volume, err = url.PathUnescape(segments[0])
	if err != nil || volume == "" {
		return "", "", notFound
	}
	return volume, segments[1], nil
}

// openVolume opens one of the volumes that the server is for.
func (s *Server) openVolume(ctx context.Context, name string) (export.Volume, error) {
	if !slices.Contains(s.Names, name) {
		return nil, refusef(http.StatusNotFound, "the backup has no such volume")
	}
	v, err := s.Volumes.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	if v.Info().Bytes < 0 {
		return nil, errclass.Errorf(errclass.Corrupt, "volume %s has %d bytes", name, v.Info().Bytes)
	}
	return v, nil
}

// fail refuses a request, and logs what is not the client's doing.
func (s *Server) fail(w *response, r *http.Request, err error) {
	if status := statusOf(err); r.Context().Err() == nil && (status >= http.StatusInternalServerError || w.Status() != 0) {
		s.Log.Error("request failed", "volume", w.volume, "endpoint", w.endpoint, "client", r.RemoteAddr, "status", status, "begun", w.Status() != 0, "error", err)
	}
	w.refuse(err)
}
