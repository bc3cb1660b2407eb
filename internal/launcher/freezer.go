package launcher

import (
	"cmp"
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/varvebackup/varve/internal/launcher/freeze"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
)

// FreezeGuest implements launcher.proto. The freeze is one of the freezer's like a backup's: its watchdog thaws the guest at
// the limit if nobody calls ThawGuest, and while it lasts no other one begins, nor is thawed for it.
func (l *Launcher) FreezeGuest(ctx context.Context, r *pb.FreezeGuestRequest) (*pb.FreezeGuestResponse, error) {
	life := l.currentLife()
	switch {
	case life.phase != pb.State_RUNNING || life.stop:
		return &pb.FreezeGuestResponse{Skipped: "the guest does not run"}, nil
	case !l.agentConnected():
		return &pb.FreezeGuestResponse{Skipped: "no guest agent is connected"}, nil
	}
	if earlier := l.frozenFor(r.GetOwner()); earlier != nil && r.GetOwner() != "" {
		if earlier.IsOver() {
			return nil, status.Error(codes.FailedPrecondition,
				"the guest was frozen for this owner before, and is thawed")
		}
		return &pb.FreezeGuestResponse{}, nil
	}
	l.freezing.Lock()
	defer l.freezing.Unlock()
	if err := l.errMigrating("freeze the guest"); err != nil {
		return nil, err
	}
	frozen, err := l.freezer.FreezeFor(ctx, time.Duration(r.GetLimitMillis())*time.Millisecond)
	switch {
	case errors.Is(err, freeze.ErrFrozen) && r.GetOwner() != "":
		return nil, status.Errorf(codes.Aborted, "the guest was not frozen: %v", err) // a backup freezes it for a moment: ask again
	case err != nil:
		return nil, status.Errorf(codes.FailedPrecondition, "the guest was not frozen: %v", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.frozenByCall, l.freezeOwner = frozen, r.GetOwner()
	return &pb.FreezeGuestResponse{}, nil
}

// frozenFor returns the last freeze if it is this owner's, or nil.
func (l *Launcher) frozenFor(owner string) *freeze.Frozen {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.freezeOwner != owner {
		return nil
	}
	return l.frozenByCall
}

// ThawGuest implements launcher.proto.
func (l *Launcher) ThawGuest(ctx context.Context, r *pb.ThawGuestRequest) (*pb.ThawGuestResponse, error) {
	frozen := l.frozenFor(r.GetOwner())
	if frozen == nil {
		by := "virt-freezer"
		if r.GetOwner() != "" {
			by = "this owner"
		}
		return &pb.ThawGuestResponse{Skipped: "the guest was not frozen by " + by}, nil
	}
	if r.GetOwner() == "" {
		l.mu.Lock()
		l.frozenByCall = nil
		l.mu.Unlock()
	}
	var early error
	if frozen.Foreign() && !frozen.IsOver() {
		early = l.freezer.StillFrozen(ctx)
	}
	frozen.AwaitThaw(ctx, freeze.AnswerPatience)
	if early = cmp.Or(early, frozen.ThawedEarly()); early != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "the guest may have been thawed before this call, so that a backup made meanwhile is crash consistent: %v", early)
	}
	return &pb.ThawGuestResponse{}, nil
}
