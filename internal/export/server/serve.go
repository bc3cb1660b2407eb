package server

import (
	"context"
	"net"
	"time"

	"github.com/varvebackup/varve/internal/export/httpserver"
)

// partingTime is how long requests have to end when the server does. Their clients go on elsewhere.
const partingTime = 5 * time.Second

// Serve answers HTTPS requests, over HTTP/1.1 and HTTP/2 with TLS 1.2 or later, until ctx is done. It closes l.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	return httpserver.Serve(ctx, l, httpserver.Options{
		Handler: s, GetCertificate: s.GetCertificate, Connections: s.Limits.Connections, HeaderTime: s.Limits.HeaderTime,
		IdleTime: s.Limits.IdleTime, Stall: s.Limits.Stall, PartingTime: partingTime, Log: s.Log,
	})
}
