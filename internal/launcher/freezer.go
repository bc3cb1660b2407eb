package launcher

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/varvebackup/varve/internal/launcher/freeze"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
)

// FreezeGuest implements launcher.proto. The freeze is one of the freezer's like a backup's: its watchdog thaws the guest at
// freeze.Limit if nobody calls ThawGuest, and while it lasts no other one begins, nor is thawed for it.
func (l *Launcher) FreezeGuest(ctx context.Context, _ *pb.FreezeGuestRequest) (*pb.FreezeGuestResponse, error) {
	life := l.currentLife()
	switch {
	case life.phase != pb.State_RUNNING || life.stop:
		return &pb.FreezeGuestResponse{Skipped: "the guest does not run"}, nil
	case !l.agentConnected():
		return &pb.FreezeGuestResponse{Skipped: "no guest agent is connected"}, nil
	}
	frozen, err := l.freezer.Freeze(ctx)
	if err != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "the guest was not frozen: %v", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.frozenByCall = frozen
	return &pb.FreezeGuestResponse{}, nil
}

// ThawGuest implements launcher.proto.
func (l *Launcher) ThawGuest(ctx context.Context, _ *pb.ThawGuestRequest) (*pb.ThawGuestResponse, error) {
	l.mu.Lock()
	frozen := l.frozenByCall
	l.frozenByCall = nil
	l.mu.Unlock()
	if frozen == nil {
		return &pb.ThawGuestResponse{Skipped: "the guest was not frozen by virt-freezer"}, nil
	}
	frozen.AwaitThaw(ctx, freeze.AnswerPatience)
	if early := frozen.ThawedEarly(); early != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "the guest may have been thawed before this call, so that a backup made meanwhile is crash consistent: %v", early)
	}
	return &pb.ThawGuestResponse{}, nil
}
