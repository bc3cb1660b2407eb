package launcherclient

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"

	"github.com/varvebackup/varve/internal/launcher/launcherpb"
)

// maxMessage is the most that a message from a launcher may have, in bytes.
const maxMessage = 1 << 20

var (
	errIdle   = errors.New("the stream was silent")
	errSilent = errors.New("the launcher does not answer")
)

// Link is the connection to one launcher.
type Link struct {
	// Checkpoints is held by whoever changes the guest's checkpoints or begins a backup, from the decision until it
	// has taken effect. Otherwise a checkpoint that one is about to use could look unreferenced to another.
	Checkpoints sync.Mutex

	links    *Links
	launcher types.UID
	instance types.NamespacedName
	conn     *grpc.ClientConn
	client   launcherpb.LauncherClient
	ctx      context.Context //nolint:containedctx // the link's lifetime, not a call's
	cancel   context.CancelFunc

	mu   sync.Mutex
	seen Snapshot
}

// Snapshot is what is known about a launcher.
type Snapshot struct {
	// State is the last state that the launcher sent, or nil if it has sent none. It must not be changed.
	State *launcherpb.State
	// Err is why the launcher does not answer now. It is nil if the launcher answers, or if the first attempt has
	// not ended.
	Err error
	// Since is when Err first appeared.
	Since time.Time
}

func newLink(links *Links, launcher types.UID, instance types.NamespacedName) (*Link, error) {
	dial := func(ctx context.Context, _ string) (net.Conn, error) { return links.dialer.Dial(ctx, launcher) }
	retry := backoff.Config{BaseDelay: links.timing.Retry, Multiplier: 1, MaxDelay: links.timing.Retry}
	conn, err := grpc.NewClient("passthrough:///launcher",
		grpc.WithContextDialer(dial),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: links.timing.First}),
		grpc.WithUnaryInterceptor(deadline))
	if err != nil {
		return nil, fmt.Errorf("connect to launcher pod %s: %w", launcher, err)
	}
	k := &Link{links: links, launcher: launcher, instance: instance, conn: conn, client: launcherpb.NewLauncherClient(conn)}
	k.ctx, k.cancel = context.WithCancel(context.Background())
	return k, nil
}

// callTimeout returns how long a launcher may take for one call. Start makes overlays and waits for libvirt.
func callTimeout(method string) time.Duration {
	switch method {
	case launcherpb.Launcher_Start_FullMethodName:
		return 2 * time.Minute
	case launcherpb.Launcher_RedefineCheckpoints_FullMethodName, launcherpb.Launcher_DeleteCheckpoints_FullMethodName,
		launcherpb.Launcher_BeginBackup_FullMethodName:
		return time.Minute
	}
	return 15 * time.Second
}

func deadline(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout(method))
	defer cancel()
	return invoke(ctx, method, req, reply, conn, opts...)
}

// Client returns the client that calls the launcher. Every call has a deadline.
func (k *Link) Client() launcherpb.LauncherClient { return k.client }

// Launcher returns the launcher pod's UID.
func (k *Link) Launcher() types.UID { return k.launcher }

// Snapshot returns what is known now, without waiting.
func (k *Link) Snapshot() Snapshot {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.seen
}

// Fresh asks the launcher for its state. The state that it returns was sent after Fresh was called.
func (k *Link) Fresh(ctx context.Context) (*launcherpb.State, error) {
	ctx, cancel := context.WithTimeout(ctx, k.links.timing.First)
	defer cancel()
	stream, err := k.client.Watch(ctx, &launcherpb.WatchRequest{})
	if err != nil {
		return nil, fmt.Errorf("ask launcher pod %s for its state: %w", k.launcher, err)
	}
	state, err := stream.Recv()
	if err != nil {
		return nil, fmt.Errorf("ask launcher pod %s for its state: %w", k.launcher, err)
	}
	return bound(state), nil
}

// run follows the launcher until the link is closed.
func (k *Link) run() {
	defer k.conn.Close() //nolint:errcheck // nothing is lost with it
	for {
		err := k.follow(k.ctx)
		if k.ctx.Err() != nil {
			return
		}
		if errors.Is(err, errIdle) {
			continue
		}
		k.failed(err)
		retry := time.NewTimer(k.links.timing.Retry)
		select {
		case <-k.ctx.Done():
			retry.Stop()
			return
		case <-retry.C:
		}
	}
}

// follow opens one stream and reads it until it fails or is silent.
func (k *Link) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(k.links.timing.First, func() { cancel(errSilent) })
	defer silent.Stop()
	stream, err := k.client.Watch(ctx, &launcherpb.WatchRequest{})
	if err != nil {
		return reason(ctx, err)
	}
	var idle *time.Timer
	for {
		state, err := stream.Recv()
		if err != nil {
			return reason(ctx, err)
		}
		if idle == nil {
			silent.Stop()
			idle = time.AfterFunc(k.links.timing.Idle, func() { cancel(errIdle) })
			defer idle.Stop()
		}
		idle.Reset(k.links.timing.Idle)
		k.heard(bound(state))
	}
}

// reason returns why this side ended the stream, if it did, and otherwise what the transport reports.
func reason(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, errIdle) || errors.Is(cause, errSilent) {
		return cause
	}
	return err
}

func (k *Link) heard(state *launcherpb.State) {
	k.mu.Lock()
	same := k.seen.Err == nil && proto.Equal(k.seen.State, state)
	k.seen = Snapshot{State: state}
	k.mu.Unlock()
	if !same {
		k.links.changed(k.instance)
	}
}

func (k *Link) failed(err error) {
	k.mu.Lock()
	first := k.seen.Err == nil
	k.seen.Err = err
	if first {
		k.seen.Since = k.links.clock.Now()
	}
	k.mu.Unlock()
	if first {
		k.links.changed(k.instance)
	}
}
