package httpserver

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
)

// Options are what Serve needs. All of them are required but PartingTime.
type Options struct {
	// Handler answers requests. It tells with BeginRequest which ones are of clients that it knows, and writes with a Writer.
	Handler http.Handler
	// GetCertificate is called for each handshake, so that the certificate may change.
	GetCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// Connections is how many connections are open. One more closes the oldest that serves no known client's request.
	Connections int
	// HeaderTime is how long a client has for the TLS handshake, and for the header of a request.
	HeaderTime time.Duration
	// IdleTime is how long a connection stays open without a request.
	IdleTime time.Duration
	// Stall is how long a client may take nothing of what is written to it.
	Stall time.Duration
	// PartingTime is how long requests have to end when the server does.
	PartingTime time.Duration
	// Log gets what the HTTP server says, for debugging.
	Log *slog.Logger
}

// Serve answers HTTPS requests, over HTTP/1.1 and HTTP/2 with TLS 1.2 or later, until ctx is done. It closes l.
func Serve(ctx context.Context, l net.Listener, o Options) error {
	if o.GetCertificate == nil {
		return errors.Join(errors.New("an HTTPS server needs a certificate"), l.Close())
	}
	all := &connections{most: o.Connections}
	server := &http.Server{
		Handler:           o.Handler,
		TLSConfig:         &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: o.GetCertificate},
		ReadHeaderTimeout: o.HeaderTime,
		IdleTimeout:       o.IdleTime,
		MaxHeaderBytes:    maxHeaderBytes,
		ConnContext:       withConnection,
		ErrorLog:          slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
		HTTP2: &http.HTTP2Config{
			// The answer to a ping waits behind what a slow client has not read yet.
			MaxConcurrentStreams: streamsPerConnection, SendPingTimeout: o.IdleTime, PingTimeout: o.Stall,
			WriteByteTimeout: o.Stall,
		},
	}
	done := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		parting, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.PartingTime)
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
