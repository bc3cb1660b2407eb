// Package peer is how the stores of a cluster speak to each other: a gRPC service (store.proto) that says which copies
// of images a store has and leases one to a reader, and an NBD server from which the reader gets its data. On both,
// each side demands a certificate of the same authority from the other. Nothing can be written through them.
//
// A lease belongs to the call that made it. It ends with that call, so that a reader that is gone keeps nothing.
package peer

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	grpccredentials "google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"k8s.io/utils/clock"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/nbd"
	"github.com/varvebackup/varve/internal/store/diskset"
	"github.com/varvebackup/varve/internal/store/storepb"
)

const (
	// DefaultPort is the port of the gRPC service.
	DefaultPort = 8501
	// DefaultNBDPort is the port of the NBD server.
	DefaultNBDPort = 8502

	// idleLimit is how long a lease lasts whose export nobody opens.
	idleLimit = time.Minute
	// idleInterval is how often that is checked.
	idleInterval = 10 * time.Second
	// maxExposures is how many leases there are at once.
	maxExposures = 64
	// maxRequestBytes is the largest read, and maxMemoryBytes what all of them take together.
	maxRequestBytes = 4 << 20
	maxMemoryBytes  = 64 << 20
	// A client that does not answer for keepaliveTime and keepaliveTimeout is gone, and so are its leases.
	keepaliveTime    = 20 * time.Second
	keepaliveTimeout = 20 * time.Second
	// callTimeout bounds what BackingImageCreate and BackingImageDelete do.
	callTimeout = time.Minute
)

// Copy names the copy of an image on a disk.
type Copy struct{ Image, UUID, DiskUUID string }

// Copies are the copies of images on a node.
type Copies interface {
	// CreateCopy begins a copy, or returns how far it is.
	CreateCopy(ctx context.Context, c Copy) (longhornv1.BackingImageV2CopyInfo, error)
	// DeleteCopy deletes a copy. One that is not there is no error.
	DeleteCopy(ctx context.Context, c Copy) error
	// NoteDamage is told that the data of a copy is not what was sealed.
	NoteDamage(ctx context.Context, c Copy, why string)
	// ListCopies returns all copies, sorted by disk and name, and a channel that is closed when they change.
	ListCopies() (all []longhornv1.BackingImageV2CopyInfo, changed <-chan struct{})
}

// Options say how to serve.
type Options struct {
	// IP is the address to listen at.
	IP string
	// Port and NBDPort are DefaultPort and DefaultNBDPort if they are 0.
	Port, NBDPort int
	// TLSDir has tls.crt, tls.key and ca.crt, which are read again for each connection.
	TLSDir string
	Disks  *diskset.Set
	Copies Copies
	// Register adds services to the gRPC server, for stores alone. It may be nil.
	Register func(grpc.ServiceRegistrar)
	Clock    clock.WithTicker
	Logger   *slog.Logger
}

// server implements storepb.StoreServer and nbd.Exports.
type server struct {
	storepb.UnimplementedStoreServer

	o       Options
	nbdPort int
	// stopping is closed before the servers stop, so that calls that last end.
	stopping <-chan struct{}

	mu        sync.Mutex
	exposures map[string]*exposure
}

// Run serves until ctx ends, and then returns nil.
func Run(ctx context.Context, o Options) error {
	listen := func(port int) (net.Listener, error) {
		var c net.ListenConfig
		return c.Listen(ctx, "tcp", net.JoinHostPort(o.IP, strconv.Itoa(port)))
	}
	calls, err := listen(cmp.Or(o.Port, DefaultPort))
	if err != nil {
		return fmt.Errorf("serve other stores: %w", err)
	}
	data, err := listen(cmp.Or(o.NBDPort, DefaultNBDPort))
	if err != nil {
		return errors.Join(fmt.Errorf("serve images to other stores: %w", err), calls.Close())
	}
	return serve(ctx, o, calls, data)
}

// serve serves on two listeners, and closes them.
func serve(ctx context.Context, o Options, calls, data net.Listener) error {
	group, ctx := errgroup.WithContext(ctx)
	s := &server{
		o: o, nbdPort: data.Addr().(*net.TCPAddr).Port, stopping: ctx.Done(), exposures: map[string]*exposure{},
	}
	rpc := grpc.NewServer(
		grpc.Creds(grpccredentials.NewTLS(serverTLS(o.TLSDir, "h2"))),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveTime / 2}),
		grpc.MaxConcurrentStreams(maxExposures),
		grpc.MaxRecvMsgSize(64<<10),
	)
	storepb.RegisterStoreServer(rpc, s)
	if o.Register != nil {
		o.Register(rpc)
	}
	disks := &nbd.Server{Exports: s, TLS: serverTLS(o.TLSDir), Log: o.Logger, Limits: nbd.Limits{
		Connections: maxExposures * connections, MaxRequestBytes: maxRequestBytes, MaxInFlightBytes: 2 * maxRequestBytes,
		MaxMemoryBytes: maxMemoryBytes,
	}}
	group.Go(func() error { return rpc.Serve(calls) })
	group.Go(func() error { return disks.Serve(ctx, data) })
	group.Go(func() error {
		<-ctx.Done()
		rpc.Stop()
		return nil
	})
	if err := group.Wait(); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve other stores: %w", err)
	}
	return nil
}

// Open implements [nbd.Exports]. The name of an export is the ID of its lease.
func (s *server) Open(_ context.Context, name string) (nbd.Export, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x, ok := s.exposures[name]
	if !ok {
		return nbd.Export{}, nbd.ErrUnknownExport
	}
	x.addConnection()
	return nbd.Export{Backend: x, ReadOnly: true, MultiConn: true, Release: x.removeConnection}, nil
}

// List implements [nbd.Exports]. IDs of leases are secrets of their owners.
func (s *server) List(context.Context) ([]nbd.ListedExport, error) { return nil, nil }

// addExposure registers a lease, and removeExposure ends it.
func (s *server) addExposure(x *exposure) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.exposures) >= maxExposures {
		return errclass.Errorf(errclass.Exhausted, "%d images are being read: try again later", maxExposures)
	}
	s.exposures[x.id] = x
	return nil
}

func (s *server) removeExposure(x *exposure) error {
	s.mu.Lock()
	delete(s.exposures, x.id)
	s.mu.Unlock()
	return x.close()
}

// newID returns an ID that nobody can guess.
func newID() string { return rand.Text() }
