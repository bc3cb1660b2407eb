package launcherclient

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/test/wait"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeLauncher sends one state on each stream and counts the streams. mute streams send nothing.
type fakeLauncher struct {
	pb.UnimplementedLauncherServer
	listener *bufconn.Listener
	streams  atomic.Int64
	mute     atomic.Bool
}

func serve(t *testing.T) *fakeLauncher {
	t.Helper()
	f := &fakeLauncher{listener: bufconn.Listen(1 << 16)}
	server := grpc.NewServer()
	pb.RegisterLauncherServer(server, f)
	done := make(chan error, 1)
	go func() { done <- server.Serve(f.listener) }()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	return f
}

func (f *fakeLauncher) Dial(ctx context.Context, _ types.UID) (net.Conn, error) {
	return f.listener.DialContext(ctx)
}

func (f *fakeLauncher) Watch(_ *pb.WatchRequest, stream grpc.ServerStreamingServer[pb.State]) error {
	f.streams.Add(1)
	if !f.mute.Load() {
		if err := stream.Send(&pb.State{Phase: pb.State_RUNNING}); err != nil {
			return err
		}
	}
	<-stream.Context().Done()
	return nil
}

func (f *fakeLauncher) Shutdown(ctx context.Context, _ *pb.ShutdownRequest) (*pb.ShutdownResponse, error) {
	if _, ok := ctx.Deadline(); !ok {
		return nil, errors.New("the call has no deadline")
	}
	return &pb.ShutdownResponse{}, nil
}

var fast = Timing{First: 2 * time.Second, Idle: 50 * time.Millisecond, Retry: 10 * time.Millisecond}

func TestClient_reopensASilentStreamAndNoticesAHang(t *testing.T) {
	f := serve(t)
	clients := New(f, fast, clock.RealClock{})
	defer clients.Close()
	var changes atomic.Int64
	clients.Subscribe(func(types.NamespacedName) { changes.Add(1) })
	c, err := clients.Ensure("pod", types.NamespacedName{Name: "vm"})
	if err != nil {
		t.Fatal(err)
	}
	wait.Until(t, 10*time.Second, "three streams", func() bool { return f.streams.Load() >= 3 })
	if s := c.Snapshot(); s.Err != nil || s.State.GetPhase() != pb.State_RUNNING {
		t.Fatalf("silence alone is no failure: %+v", s)
	}
	if n := changes.Load(); n != 1 {
		t.Errorf("told of %d changes, there was one", n)
	}
	if _, err := c.RPC().Shutdown(context.Background(), &pb.ShutdownRequest{}); err != nil {
		t.Error(err)
	}
	f.mute.Store(true)
	wait.Until(t, 30*time.Second, "the hang is seen and told", func() bool { return errors.Is(c.Snapshot().Err, errSilent) && changes.Load() > 1 })
	if c.Snapshot().State == nil || changes.Load() != 2 {
		t.Errorf("the last state is kept, and the failure told once: %+v, %d", c.Snapshot(), changes.Load())
	}
	if _, err := c.Fresh(context.Background()); err == nil {
		t.Error("a fresh state came from a mute launcher")
	}
	f.mute.Store(false)
	wait.Until(t, 10*time.Second, "it answers again", func() bool { return c.Snapshot().Err == nil })
}

func TestClients_areKeptForOnePodOnly(t *testing.T) {
	f := serve(t)
	clients := New(f, fast, clock.RealClock{})
	vm := types.NamespacedName{Name: "vm"}
	for _, pod := range []types.UID{"old", "new", "other"} {
		instance := vm
		if pod == "other" {
			instance.Name = "other"
		}
		if _, err := clients.Ensure(pod, instance); err != nil {
			t.Fatal(err)
		}
	}
	clients.Retain(vm, "new")
	if clients.Get("old") != nil || clients.Get("new") == nil || clients.Get("other") == nil {
		t.Error("the wrong clients are left")
	}
	clients.Close()
	if _, err := clients.Ensure("late", vm); err == nil {
		t.Error("a client was made after Close")
	}
}
