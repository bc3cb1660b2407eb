package vmsnapshot

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	vmsnapshotv1 "github.com/varvebackup/varve/api/snapshot/v1beta1"
)

func TestOutcome(t *testing.T) {
	t.Parallel()
	done, skipped := answer{}, answer{skipped: "no guest agent is connected"}
	refused := answer{err: status.Error(codes.FailedPrecondition, "it was frozen for 30s")}
	old := answer{err: status.Error(codes.Unimplemented, "unknown method FreezeGuest")}
	for name, c := range map[string]struct {
		answer                              answer
		freeze, thawOfFrozen, thawOfNothing vmsnapshotv1.QuiesceState
		words                               string
	}{
		"done": {done, vmsnapshotv1.Frozen, vmsnapshotv1.Thawed, vmsnapshotv1.NotFrozen, ""},
		"skipped": {
			skipped, vmsnapshotv1.NotFrozen, vmsnapshotv1.ThawedEarly, vmsnapshotv1.NotFrozen,
			"no guest agent is connected",
		},
		"refused": {
			refused, vmsnapshotv1.NotFrozen, vmsnapshotv1.ThawedEarly, vmsnapshotv1.NotFrozen,
			"it was frozen for 30s",
		},
		"an old version": {
			old, vmsnapshotv1.NotFrozen, vmsnapshotv1.ThawedEarly, vmsnapshotv1.NotFrozen,
			"unknown method",
		},
	} {
		if c.answer.isLost() {
			t.Errorf("%s: it is asked again", name)
		}
		state, why := afterFreeze(c.answer)
		if state != c.freeze || !strings.Contains(why, c.words) {
			t.Errorf("%s: freeze: %s, %q", name, state, why)
		}
		state, why = afterThaw(vmsnapshotv1.Frozen, c.answer)
		if state != c.thawOfFrozen || !strings.Contains(why, c.words) {
			t.Errorf("%s: thaw of a frozen guest: %s, %q", name, state, why)
		}
		state, why = afterThaw("", c.answer)
		if state != c.thawOfNothing || !strings.Contains(why, c.words) || why == "" {
			t.Errorf("%s: thaw: %s, %q", name, state, why)
		}
	}
	for _, err := range []error{context.DeadlineExceeded, status.Error(codes.Unavailable, ""), status.Error(codes.DeadlineExceeded, "")} {
		if a := (answer{err: err}); !a.isLost() {
			t.Errorf("%v is taken for an answer", err)
		}
	}
	if a := (answer{skipped: strings.Repeat("x", 1<<20)}); len(a.refusal()) > maxMessage {
		t.Error("a launcher fills up the snapshot")
	}
}
