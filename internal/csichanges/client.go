package csichanges

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/kubernetes-csi/external-snapshot-metadata/pkg/api"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
)

// Limits bound how long a server is waited for. The zero value has the defaults.
type Limits struct {
	// Idle is how long a stream may bring nothing new. Default: 2 minutes, because a driver may have to compute its answer.
	Idle time.Duration
	// Patience is how long all streams together may bring nothing new. Default: 3 minutes, in which a pod of a driver is replaced.
	Patience time.Duration
	// Total is how long an answer may take, however much comes. Default: an hour, in which a mover reads hundreds of GiB.
	Total time.Duration
	// Attempts is how many streams in a row may end without anything new. Default: 10, which takes most of the patience.
	Attempts int
	// Pause is the time before the second attempt. It doubles each time, up to half a minute. Default: 1 second.
	Pause time.Duration
}

// maxPause is the longest time between two attempts, and maxConnectPause that between two attempts to connect. An attempt to connect takes
// at most connectTimeout, which is gRPC's default.
const (
	maxPause        = 30 * time.Second
	maxConnectPause = 15 * time.Second
	connectTimeout  = 20 * time.Second
)

func (l Limits) orDefaults() Limits {
	if l.Idle <= 0 {
		l.Idle = 2 * time.Minute
	}
	if l.Patience <= 0 {
		l.Patience = 3 * time.Minute
	}
	if l.Total <= 0 {
		l.Total = time.Hour
	}
	if l.Attempts <= 0 {
		l.Attempts = 10
	}
	if l.Pause <= 0 {
		l.Pause = time.Second
	}
	return l
}

// Client asks one service. It is safe for concurrent use.
type Client struct {
	conn     *grpc.ClientConn
	api      api.SnapshotMetadataClient
	token    TokenSource
	audience string
	limits   Limits
}

// NewClient returns a client of a service. It connects when it is asked something. The caller must call Close.
func NewClient(s *Service, token TokenSource, limits Limits) (*Client, error) {
	if err := s.validate(); err != nil {
		return nil, errclass.Errorf(errclass.Invalid, "snapshot metadata service: %w", err)
	}
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(s.CA) {
		return nil, errclass.Errorf(errclass.Invalid, "snapshot metadata service %s: the CA has no certificate", s.Address)
	}
	connecting := grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: connectTimeout}
	connecting.Backoff.MaxDelay = maxConnectPause // By default an attempt could meet a connection that waits for minutes before it tries again.
	// The address is looked up as a host, whatever scheme it may look like.
	conn, err := grpc.NewClient("dns:///"+s.Address, grpc.WithDisableServiceConfig(), grpc.WithNoProxy(), grpc.WithConnectParams(connecting),
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: authorities, MinVersion: tls.VersionTLS12})))
	if err != nil {
		return nil, fmt.Errorf("connect to snapshot metadata service %s: %w", s.Address, err)
	}
	return &Client{conn: conn, api: api.NewSnapshotMetadataClient(conn), token: token, audience: s.Audience, limits: limits.orDefaults()}, nil
}

// Close ends the connection, and with it what is being asked.
func (c *Client) Close() error { return c.conn.Close() }

// Snapshot is a VolumeSnapshot.
type Snapshot struct {
	Namespace, Name string
	// Bytes is the size of its volume. An answer for another size is none for this snapshot.
	Bytes int64
}

// Allocated returns where a snapshot has data. All the rest is zero.
func (c *Client) Allocated(ctx context.Context, s Snapshot) (extent.Set, error) {
	set, err := c.collect(ctx, s.Bytes, func(ctx context.Context, token string, from int64) (receiver, error) {
		stream, err := c.api.GetMetadataAllocated(ctx, &api.GetMetadataAllocatedRequest{
			SecurityToken: token, Namespace: s.Namespace, SnapshotName: s.Name, StartingOffset: from,
		})
		return func() (message, error) { return stream.Recv() }, err
	})
	if err != nil {
		return extent.Set{}, fmt.Errorf("ask where snapshot %s/%s has data: %w", s.Namespace, s.Name, err)
	}
	return set, nil
}

// Changed returns where a snapshot may differ from an earlier one of the same volume. base is the earlier one's CSI handle, the
// status.snapshotHandle of its VolumeSnapshotContent. Whether that snapshot must still exist is the driver's to say.
func (c *Client) Changed(ctx context.Context, base string, s Snapshot) (extent.Set, error) {
	set, err := c.collect(ctx, s.Bytes, func(ctx context.Context, token string, from int64) (receiver, error) {
		stream, err := c.api.GetMetadataDelta(ctx, &api.GetMetadataDeltaRequest{
			SecurityToken: token, Namespace: s.Namespace, BaseSnapshotId: base, TargetSnapshotName: s.Name, StartingOffset: from,
		})
		return func() (message, error) { return stream.Recv() }, err
	})
	if err != nil {
		return extent.Set{}, fmt.Errorf("ask what of snapshot %s/%s has changed since %s: %w", s.Namespace, s.Name, base, err)
	}
	return set, nil
}

// receiver returns the next message of a stream, or io.EOF at its end.
type receiver func() (message, error)

// opener opens a stream of what is at or behind an offset.
type opener func(ctx context.Context, token string, from int64) (receiver, error)

// collect reads a whole answer, from as many streams as that takes.
func (c *Client) collect(ctx context.Context, bytes int64, open opener) (extent.Set, error) {
	ctx, giveUp := withoutDeadline(ctx)
	defer giveUp(nil)
	total := time.AfterFunc(c.limits.Total, func() {
		giveUp(errclass.Errorf(errclass.Expired, "the answer is not complete after %s", c.limits.Total))
	})
	defer total.Stop()
	patience := time.AfterFunc(c.limits.Patience, func() {
		giveUp(errclass.Errorf(errclass.Transient, "the service has brought nothing new for %s", c.limits.Patience))
	})
	defer patience.Stop()
	a := &answer{bytes: bytes}
	failures, pause := 0, c.limits.Pause
	var last error // of the streams before
	for {
		before := a.next
		err := c.readStream(ctx, a, open, func() { patience.Reset(c.limits.Patience) })
		switch {
		case err == nil:
			return a.set, nil
		case ctx.Err() != nil:
			return extent.Set{}, withLastWords(context.Cause(ctx), last)
		case !errors.Is(err, errclass.Transient):
			return extent.Set{}, err
		}
		last = err
		if a.next > before {
			failures, pause = 0, c.limits.Pause
		}
		if failures++; failures >= c.limits.Attempts {
			return extent.Set{}, fmt.Errorf("%d attempts brought nothing new: %w", failures, err)
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return extent.Set{}, withLastWords(context.Cause(ctx), last)
		case <-timer.C:
			pause = min(2*pause, maxPause)
		}
	}
}

// withoutDeadline returns a context that ends when ctx does, or by the function, and tells a server no deadline. A driver that knew one could
// end its stream in good order when that has come, as it ends a whole answer, before this side's own clock strikes.
func withoutDeadline(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	free, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	return free, func(cause error) {
		stop()
		cancel(cause)
	}
}

// withLastWords returns why something has ended, with the error that was seen last, if there is one.
func withLastWords(why, last error) error {
	if last == nil {
		return why
	}
	return fmt.Errorf("%w; at last: %w", why, last)
}

// readStream adds one stream to an answer, and calls progressed for what is new. It returns nil if the answer is complete. What may succeed
// later is errclass.Transient.
func (c *Client) readStream(ctx context.Context, a *answer, open opener, progressed func()) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	idle := time.AfterFunc(c.limits.Idle, func() {
		cancel(errclass.Errorf(errclass.Transient, "a stream has brought nothing new for %s", c.limits.Idle))
	})
	defer idle.Stop()
	token, err := c.token(ctx, c.audience)
	switch {
	case err != nil:
		return err
	case token == "":
		return errclass.Errorf(errclass.Denied, "the token is empty")
	}
	receive, err := open(ctx, token, a.next)
	if err != nil {
		return cmp.Or(context.Cause(ctx), classify(err, token))
	}
	a.resumed = true
	for {
		m, err := receive()
		if errors.Is(err, io.EOF) {
			if ctx.Err() != nil { // The server may have ended because it was given up.
				return context.Cause(ctx)
			}
			if a.kind == api.BlockMetadataType_UNKNOWN {
				return errclass.Errorf(errclass.Corrupt, "the answer has no message, so that nothing says that it is about this volume")
			}
			return nil
		}
		if err != nil {
			return cmp.Or(context.Cause(ctx), classify(err, token))
		}
		before := a.next
		if err := a.add(m); err != nil {
			return err
		}
		if a.next > before {
			idle.Reset(c.limits.Idle)
			progressed()
		}
	}
}

// classify returns the error of a call with its class, and without the token, which a server could send back.
func classify(err error, token string) error {
	var class error
	switch status.Code(err) {
	case codes.NotFound:
		class = errclass.NotFound
	case codes.Unauthenticated, codes.PermissionDenied:
		class = errclass.Denied
	case codes.InvalidArgument, codes.OutOfRange, codes.Unimplemented, codes.FailedPrecondition, codes.AlreadyExists:
		class = errclass.Invalid
	case codes.DataLoss:
		class = errclass.Corrupt
	default: // the connection broke, the service is busy
		class = errclass.Transient
	}
	said := status.Convert(err)
	return errclass.Errorf(class, "%s: %s", said.Code(), strings.ReplaceAll(said.Message(), token, "(token)"))
}
