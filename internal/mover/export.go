package mover

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"time"

	"github.com/varvebackup/varve/internal/nbd"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/repository/serve"
)

// shutdownGrace is how long clients have to finish their requests after an export has been told to end.
const shutdownGrace = 10 * time.Second

// ExportOptions say how to export a disk of a restore point.
type ExportOptions struct {
	// CacheBytes is how much of the disk is kept in memory.
	CacheBytes int64
	// Overlay is the path of a file that takes what clients write; "" for a read-only export. A second file, with .map
	// after its name, belongs to it. The same overlay goes on where it was.
	Overlay string
	// Description is for people who list the server's exports.
	Description string
}

// Export is a disk of a restore point as an NBD export, under the disk's name. Use it under a lease (see WithLease).
type Export struct {
	served  singleExport
	cache   *serve.Disk
	overlay *serve.Overlay
}

// OpenExport opens a disk of a restore point to serve it. An overlay that cannot be used is an *OverlayError.
func OpenExport(ctx context.Context, r *repository.Repository, stored repository.Disk, o ExportOptions) (*Export, error) {
	image, err := r.Image(ctx, stored)
	if err != nil {
		return nil, err
	}
	e := &Export{cache: serve.New(image, serve.Options{CacheBytes: o.CacheBytes})}
	e.served = singleExport{name: stored.Name, export: nbd.Export{Backend: e.cache, MultiConn: true, Description: o.Description}}
	if o.Overlay != "" {
		if e.overlay, err = serve.OpenOverlay(o.Overlay, stored.Digest, e.cache); err != nil {
			e.cache.Close()
			return nil, &OverlayError{Err: err}
		}
		e.served.export.Backend = e.overlay
	}
	return e, nil
}

// Serve serves the export on l until ctx ends. Then it lets clients finish their requests, and cuts off those that take
// too long. It closes l.
func (e *Export) Serve(ctx context.Context, l net.Listener, config *tls.Config, log *slog.Logger) error {
	server := &nbd.Server{Exports: &e.served, TLS: config, Log: log}
	stop := context.AfterFunc(ctx, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
		defer cancel()
		_ = server.Shutdown(ctx) // clients that have not finished are cut off
	})
	defer stop()
	return server.Serve(context.WithoutCancel(ctx), l)
}

// Close releases the disk, and makes what the overlay has durable.
func (e *Export) Close() error {
	defer e.cache.Close()
	if e.overlay == nil {
		return nil
	}
	return e.overlay.Close()
}

// singleExport is the only export of a server.
type singleExport struct {
	name   string
	export nbd.Export
}

// Open returns the export for its name and for the default name, which is empty.
func (s *singleExport) Open(_ context.Context, name string) (nbd.Export, error) {
	if name != "" && name != s.name {
		return nbd.Export{}, nbd.ErrUnknownExport
	}
	return s.export, nil
}

// List returns the export.
func (s *singleExport) List(context.Context) ([]nbd.ListedExport, error) {
	return []nbd.ListedExport{{Name: s.name, Description: s.export.Description}}, nil
}
