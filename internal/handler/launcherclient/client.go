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

	"github.com/varvebackup/varve/internal/handler/turns"
	"github.com/varvebackup/varve/internal/launcher/launcherpb"
)

// maxMessage is the most that a message from a launcher may have, in bytes.
const maxMessage = 1 << 20

var (
	errIdle   = errors.New("the stream was silent")
	errSilent = errors.New("the launcher does not answer")
)

// Client is the connection to one launcher.
type Client struct {
	// checkpoints is for LockCheckpoints.
	checkpoints sync.Mutex

	clients  *Clients
	launcher types.UID
	instance types.NamespacedName
	conn     *grpc.ClientConn
	rpc      launcherpb.LauncherClient
	ctx      context.Context //nolint:containedctx // the client's lifetime, not a call's
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

func newClient(clients *Clients, launcher types.UID, instance types.NamespacedName) (*Client, error) {
	dial := func(ctx context.Context, _ string) (net.Conn, error) { return clients.dialer.Dial(ctx, launcher) }
	retry := backoff.Config{BaseDelay: clients.timing.Retry, Multiplier: 1, MaxDelay: clients.timing.Retry}
	conn, err := grpc.NewClient("passthrough:///launcher",
		grpc.WithContextDialer(dial),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.ForceCodecV2(newBoundedCodec())),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: clients.timing.First}),
		grpc.WithUnaryInterceptor(withCallTimeout))
	if err != nil {
		return nil, fmt.Errorf("connect to launcher pod %s: %w", launcher, err)
	}
	c := &Client{clients: clients, launcher: launcher, instance: instance, conn: conn, rpc: launcherpb.NewLauncherClient(conn)}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c, nil
}

// callTimeout returns how long a launcher may take for one call. Start makes overlays and waits for libvirt; the guest agent
// takes its time for a freeze and a thaw.
func callTimeout(method string) time.Duration {
	switch method {
	case launcherpb.Launcher_Start_FullMethodName:
		return 2 * time.Minute
	case launcherpb.Launcher_RedefineCheckpoints_FullMethodName, launcherpb.Launcher_DeleteCheckpoints_FullMethodName,
		launcherpb.Launcher_BeginBackup_FullMethodName:
		return time.Minute
	case launcherpb.Launcher_PrepareMigration_FullMethodName, launcherpb.Launcher_FinishMigration_FullMethodName:
		return time.Minute
	case launcherpb.Launcher_FreezeGuest_FullMethodName, launcherpb.Launcher_ThawGuest_FullMethodName:
		return 30 * time.Second
	}
	return 15 * time.Second
}

func withCallTimeout(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout(method))
	defer cancel()
	var err error
	turns.Outside(ctx, func() { err = invoke(ctx, method, req, reply, conn, opts...) })
	return err
}

// LockCheckpoints waits until nobody else changes the guest's checkpoints or begins a backup. Whoever does that holds
// the lock from the decision until it has taken effect. Otherwise a checkpoint that one is about to use could look
// unreferenced to another.
func (c *Client) LockCheckpoints(ctx context.Context) (unlock func()) {
	if !c.checkpoints.TryLock() {
		// Whoever has it may wait for the launcher.
		turns.Outside(ctx, c.checkpoints.Lock)
	}
	return c.checkpoints.Unlock
}

// RPC returns the client that calls the launcher. Every call has a deadline.
func (c *Client) RPC() launcherpb.LauncherClient { return c.rpc }

// Launcher returns the launcher pod's UID.
func (c *Client) Launcher() types.UID { return c.launcher }

// Snapshot returns what is known now, without waiting.
func (c *Client) Snapshot() Snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen
}

// Fresh asks the launcher for its state. The state that it returns was sent after Fresh was called.
func (c *Client) Fresh(ctx context.Context) (state *launcherpb.State, err error) {
	turns.Outside(ctx, func() { state, err = c.askState(ctx) })
	return state, err
}

func (c *Client) askState(ctx context.Context) (*launcherpb.State, error) {
	ctx, cancel := context.WithTimeout(ctx, c.clients.timing.First)
	defer cancel()
	stream, err := c.rpc.Watch(ctx, &launcherpb.WatchRequest{})
	if err != nil {
		return nil, fmt.Errorf("ask launcher pod %s for its state: %w", c.launcher, err)
	}
	state, err := stream.Recv()
	if err != nil {
		return nil, fmt.Errorf("ask launcher pod %s for its state: %w", c.launcher, err)
	}
	return boundState(state), nil
}

// followUntilClosed follows the launcher until the client is closed.
func (c *Client) followUntilClosed() {
	defer c.conn.Close() //nolint:errcheck // nothing is lost with it
	for {
		err := c.followStream(c.ctx)
		if c.ctx.Err() != nil {
			return
		}
		if errors.Is(err, errIdle) {
			continue
		}
		c.recordFailure(err)
		retry := time.NewTimer(c.clients.timing.Retry)
		select {
		case <-c.ctx.Done():
			retry.Stop()
			return
		case <-retry.C:
		}
	}
}

// followStream opens one stream and reads it until it fails or is silent.
func (c *Client) followStream(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(c.clients.timing.First, func() { cancel(errSilent) })
	defer silent.Stop()
	stream, err := c.rpc.Watch(ctx, &launcherpb.WatchRequest{})
	if err != nil {
		return streamEndCause(ctx, err)
	}
	var idle *time.Timer
	for {
		state, err := stream.Recv()
		if err != nil {
			return streamEndCause(ctx, err)
		}
		if idle == nil {
			silent.Stop()
			idle = time.AfterFunc(c.clients.timing.Idle, func() { cancel(errIdle) })
			defer idle.Stop()
		}
		idle.Reset(c.clients.timing.Idle)
		c.recordState(boundState(state))
	}
}

// streamEndCause returns why this side ended the stream, if it did, and otherwise what the transport reports.
func streamEndCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, errIdle) || errors.Is(cause, errSilent) {
		return cause
	}
	return err
}

func (c *Client) recordState(state *launcherpb.State) {
	c.mu.Lock()
	same := c.seen.Err == nil && proto.Equal(c.seen.State, state)
	c.seen = Snapshot{State: state}
	c.mu.Unlock()
	if !same {
		c.clients.notifySubscribers(c.instance)
	}
}

func (c *Client) recordFailure(err error) {
	c.mu.Lock()
	first := c.seen.Err == nil
	c.seen.Err = err
	if first {
		c.seen.Since = c.clients.clock.Now()
	}
	c.mu.Unlock()
	if first {
		c.clients.notifySubscribers(c.instance)
	}
}

// GuestRuns reports whether a launcher has a guest that runs, or is paused.
func GuestRuns(state *launcherpb.State) bool {
	return state.GetPhase() == launcherpb.State_RUNNING || state.GetPhase() == launcherpb.State_PAUSED
}
