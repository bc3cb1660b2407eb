package launcher

import (
	"context"
	"math"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/varvebackup/varve/internal/errclass"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
)

// watchEvery is the minimum time between two states of one Watch.
const watchEvery = 250 * time.Millisecond

// Register registers the launcher on a gRPC server.
func (l *Launcher) Register(s grpc.ServiceRegistrar) { pb.RegisterLauncherServer(s, l) }

// Start implements launcher.proto.
func (l *Launcher) Start(ctx context.Context, req *pb.StartRequest) (*pb.StartResponse, error) {
	s := l.beginStart(req)
	if l.isTarget() {
		return nil, status.Error(codes.FailedPrecondition, "start: a migration brings the guest here")
	}
	if s == nil { // stopped before the start
		return &pb.StartResponse{}, nil
	}
	select {
	case <-s.done:
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	if s.err != nil {
		return nil, status.Error(codes.FailedPrecondition, s.err.Error())
	}
	return &pb.StartResponse{}, nil
}

// Watch implements launcher.proto. It ends with the launcher, after it has sent the last state.
func (l *Launcher) Watch(_ *pb.WatchRequest, stream grpc.ServerStreamingServer[pb.State]) error {
	ctx := stream.Context()
	var sent *pb.State
	for {
		state, changed := l.State()
		if sent == nil || !proto.Equal(sent, state) {
			if err := stream.Send(state); err != nil {
				return err
			}
			sent = state
			if done := l.awaitSendTime(ctx); done {
				return status.FromContextError(ctx.Err()).Err()
			}
		}
		select {
		case <-changed:
		case <-l.leave:
			return l.lastState(stream, sent)
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

// awaitSendTime waits until the next state may be sent, and says whether the caller is gone.
func (l *Launcher) awaitSendTime(ctx context.Context) bool {
	timer := l.cfg.Clock.NewTimer(watchEvery)
	defer timer.Stop()
	select {
	case <-timer.C():
		return false
	case <-l.leave:
		return false
	case <-ctx.Done():
		return true
	}
}

func (l *Launcher) lastState(stream grpc.ServerStreamingServer[pb.State], sent *pb.State) error {
	if state, _ := l.State(); !proto.Equal(sent, state) {
		return stream.Send(state)
	}
	return nil
}

// Shutdown implements launcher.proto.
func (l *Launcher) Shutdown(_ context.Context, req *pb.ShutdownRequest) (*pb.ShutdownResponse, error) {
	const most = int64(math.MaxInt64 / time.Second)
	l.Stop(time.Duration(max(0, min(req.GraceSeconds, most/2))) * time.Second)
	return &pb.ShutdownResponse{}, nil
}

// Exit implements launcher.proto.
func (l *Launcher) Exit(context.Context, *pb.ExitRequest) (*pb.ExitResponse, error) {
	l.exitOnce.Do(func() { close(l.exit) })
	return &pb.ExitResponse{}, nil
}

func grpcError(err error) error {
	if err == nil {
		return nil
	}
	return status.Error(errclass.GRPCCode(err), err.Error())
}
