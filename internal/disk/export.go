package disk

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/nbd"
)

// goodbyeTimeout bounds how long an NBD server may take at the end to answer the requests in flight.
const goodbyeTimeout = 30 * time.Second

// crowdTimeout is how long each of several connections may take before a single one is tried.
const crowdTimeout = 5 * time.Second

// export is an NBD export, with the server behind it if this package has started that.
type export struct {
	// name is the disk's name for people: its path or URI.
	name   string
	client *nbd.Client
	server *server
}

// dialURI opens an export of a server that this package has not started.
func dialURI(ctx context.Context, uri string, t nbd.Target, config *tls.Config, contexts []string) (*export, error) {
	o := nbd.Options{TLS: config, Contexts: contexts, Connections: connections, HandshakeTimeout: crowdTimeout}
	client, err := nbd.Dial(ctx, t, o)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil { // The server may accept fewer connections, and leave the others waiting.
		o.Connections, o.HandshakeTimeout = 1, 0
		client, err = nbd.Dial(ctx, t, o)
	}
	var dial *net.OpError
	switch {
	case errors.As(err, &dial) && dial.Op == "dial", errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
		return nil, errclass.Errorf(ErrUnreachable, "%s: %w", uri, err)
	case errors.Is(err, nbd.ErrUnknownExport):
		return nil, errclass.Errorf(ErrNotFound, "%s: %w", uri, err)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", uri, err)
	}
	return &export{name: uri, client: client}, nil
}

// explainError names the disk in an error of the client, and adds what happened to the server.
func (x *export) explainError(err error) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("disk %s: %w", x.name, err)
	if x.server != nil && x.client.Err() != nil {
		return x.server.explainError(err)
	}
	return err
}

// disconnect ends the connections after the requests in flight are answered.
func (x *export) disconnect() error {
	ctx, cancel := context.WithTimeout(context.Background(), goodbyeTimeout)
	defer cancel()
	if err := x.client.Disconnect(ctx); err != nil {
		return fmt.Errorf("disk %s: %w", x.name, err)
	}
	return nil
}

// endServer ends the server if this package has started it.
func (x *export) endServer() error {
	if x.server == nil {
		return nil
	}
	return x.server.shutDown()
}
