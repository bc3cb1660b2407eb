package disk

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/varvebackup/varve/internal/nbd"
)

// goodbyeTimeout bounds how long an NBD server may take to answer what is in flight at the end.
const goodbyeTimeout = 30 * time.Second

// crowdTimeout is how long each of several connections may take, before one alone is tried.
const crowdTimeout = 5 * time.Second

// export is an NBD export with the server behind it, if it is ours.
type export struct {
	// name is the disk for people: the path or the URI.
	name   string
	client *nbd.Client
	server *server
}

// dialURI opens an export of somebody else's server.
func dialURI(ctx context.Context, uri string, t nbd.Target, config *tls.Config, contexts []string) (*export, error) {
	o := nbd.Options{TLS: config, Contexts: contexts, Connections: connections, HandshakeTimeout: crowdTimeout}
	client, err := nbd.Dial(ctx, t, o)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil { // It may let in fewer, and leave the others waiting.
		o.Connections, o.HandshakeTimeout = 1, 0
		client, err = nbd.Dial(ctx, t, o)
	}
	var dial *net.OpError
	switch {
	case errors.As(err, &dial) && dial.Op == "dial", errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
		return nil, errorf(ErrUnreachable, "%s: %w", uri, err)
	case errors.Is(err, nbd.ErrUnknownExport):
		return nil, errorf(ErrNotFound, "%s: %w", uri, err)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", uri, err)
	}
	return &export{name: uri, client: client}, nil
}

// explain names the disk in an error of the client, and says what happened to the server.
func (x *export) explain(err error) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("disk %s: %w", x.name, err)
	if x.server != nil && x.client.Err() != nil {
		return x.server.explain(err)
	}
	return err
}

// disconnect ends the connections when what is in flight has been answered.
func (x *export) disconnect() error {
	ctx, cancel := context.WithTimeout(context.Background(), goodbyeTimeout)
	defer cancel()
	if err := x.client.Disconnect(ctx); err != nil {
		return fmt.Errorf("disk %s: %w", x.name, err)
	}
	return nil
}

// end ends the server if it is ours.
func (x *export) end() error {
	if x.server == nil {
		return nil
	}
	return x.server.end()
}
