package server

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"
)

const (
	// maxHeaderBytes is how long the header of a request is at most.
	maxHeaderBytes = 16 << 10
	// streamsPerConnection is how many requests of HTTP/2 share a connection.
	streamsPerConnection = 32
	// partingTime is how long requests have to end when the server does. Their clients go on elsewhere.
	partingTime = 5 * time.Second
)

// Serve answers HTTPS requests, over HTTP/1.1 and HTTP/2 with TLS 1.2 or later, until ctx is done. It closes l.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	if s.GetCertificate == nil {
		return errors.Join(errors.New("an export server needs a certificate"), l.Close())
	}
	all := &connections{most: s.Limits.Connections}
	server := &http.Server{
		Handler:           s,
		TLSConfig:         &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: s.GetCertificate},
		ReadHeaderTimeout: s.Limits.HeaderTime,
		IdleTimeout:       s.Limits.IdleTime,
		MaxHeaderBytes:    maxHeaderBytes,
		ConnContext:       withConnection,
		ErrorLog:          slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
		HTTP2: &http.HTTP2Config{
			// The answer to a ping waits behind what a slow client has not read yet.
			MaxConcurrentStreams: streamsPerConnection, SendPingTimeout: s.Limits.IdleTime, PingTimeout: s.Limits.Stall,
			WriteByteTimeout: s.Limits.Stall,
		},
	}
	done := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		parting, cancel := context.WithTimeout(context.WithoutCancel(ctx), partingTime)
		defer cancel()
		err := server.Shutdown(parting)
		if err != nil {
			err = server.Close()
		}
		done <- err
	})
	err := server.ServeTLS(all.listen(l), "", "")
	if !stop() {
		return <-done
	}
	return errors.Join(err, server.Close())
}
