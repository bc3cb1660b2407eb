package launcher

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/varvebackup/varve/internal/domain"
	"github.com/varvebackup/varve/internal/launcher/freeze"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
)

func (b *bench) freeze() (*pb.FreezeGuestResponse, error) {
	return b.FreezeGuest(b.t.Context(), &pb.FreezeGuestRequest{})
}

func (b *bench) thaw() (*pb.ThawGuestResponse, error) {
	return b.ThawGuest(b.t.Context(), &pb.ThawGuestRequest{})
}

// upWithAgent starts the guest and connects its agent.
func (b *bench) upWithAgent() {
	b.t.Helper()
	b.up()
	b.guest.agent(true)
	synctest.Wait()
}

// shutOff ends the guest and the launcher.
func (b *bench) shutOff() {
	b.guest.is(domain.StateShutOff, domain.ReasonShutdown)
	<-b.outcome
}

func TestFreezeGuest_lastsUntilTheThaw(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(t)
		b.upWithAgent()
		defer b.shutOff()
		if r, err := b.freeze(); err != nil || r.Skipped != "" {
			t.Fatalf("%v, %v", r, err)
		}
		if state, _ := b.State(); !state.Frozen {
			t.Error("the state does not say that the guest is frozen")
		}
		time.Sleep(freeze.Limit - time.Second)
		if n := b.guest.count("Thaw"); n > 0 {
			t.Fatalf("thawed %d times before it was asked for", n)
		}
		if r, err := b.thaw(); err != nil || r.Skipped != "" || b.guest.count("Thaw") != 1 {
			t.Errorf("%v, %v, thawed %d times", r, err, b.guest.count("Thaw"))
		}
		if r, err := b.thaw(); err != nil || r.Skipped == "" || b.guest.count("Thaw") != 1 {
			t.Errorf("a second thaw: %v, %v, thawed %d times", r, err, b.guest.count("Thaw"))
		}
	})
}

// A program that freezes the guest and then dies, or takes too long, costs it 30 seconds at most, and the thaw says so.
func TestFreezeGuest_endsByItself(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(t)
		b.upWithAgent()
		defer b.shutOff()
		if _, err := b.freeze(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(freeze.Limit + time.Second)
		if state, _ := b.State(); state.Frozen || b.guest.count("Thaw") != 1 {
			t.Errorf("frozen: %v, thawed %d times", state.Frozen, b.guest.count("Thaw"))
		}
		if _, err := b.thaw(); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "crash consistent") {
			t.Errorf("%v", err)
		}
		if _, err := b.freeze(); err != nil {
			t.Errorf("the next freeze: %v", err)
		}
	})
}

// A freeze of one program is never ended by the other's thaw.
func TestFreezeGuest_andBackupsLeaveEachOtherAlone(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(t)
		b.upWithAgent()
		defer b.shutOff()
		// A backup has frozen the guest.
		backup, err := b.freezer.Freeze(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.freeze(); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("frozen in the middle of a backup's freeze: %v", err)
		}
		if r, err := b.thaw(); err != nil || r.Skipped == "" || b.guest.count("Thaw") != 0 {
			t.Errorf("%v, %v, thawed %d times", r, err, b.guest.count("Thaw"))
		}
		backup.Thaw()
		// Somebody else has frozen the guest, and a backup begins.
		if _, err := b.freeze(); err != nil {
			t.Fatal(err)
		}
		before := b.guest.count("Thaw")
		if _, err := b.freezer.Freeze(t.Context()); err == nil {
			t.Error("a backup froze a frozen guest")
		}
		if _, err := b.freeze(); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("frozen twice: %v", err)
		}
		if n := b.guest.count("Thaw"); n != before {
			t.Errorf("thawed %d times", n-before)
		}
		if _, err := b.thaw(); err != nil {
			t.Error(err)
		}
	})
}

// A guest that somebody else had frozen, and has thawed before this thaw, was not frozen until then.
func TestThawGuest_doubtsWhatSomebodyElseFroze(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(t)
		b.upWithAgent()
		defer b.shutOff()
		for _, still := range []bool{true, false} {
			frozen := func(is bool) {
				b.guest.mu.Lock()
				defer b.guest.mu.Unlock()
				b.guest.frozen = is
			}
			frozen(true)
			if _, err := b.freeze(); err != nil {
				t.Fatal(err)
			}
			frozen(still)
			if _, err := b.thaw(); (err == nil) != still || b.guest.count("Thaw") != 0 {
				t.Errorf("still frozen: %v; %v", still, err)
			}
		}
	})
}

func TestFreezeGuest_leavesAGuestThatCannotBeFrozen(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(t)
		if r, err := b.freeze(); err != nil || r.Skipped == "" {
			t.Errorf("before the start: %v, %v", r, err)
		}
		b.up()
		if r, err := b.freeze(); err != nil || r.Skipped == "" {
			t.Errorf("without an agent: %v, %v", r, err)
		}
		b.shutOff()
		if r, err := b.freeze(); err != nil || r.Skipped == "" {
			t.Errorf("after the end: %v, %v", r, err)
		}
		if n := b.guest.count("Freeze"); n > 0 {
			t.Errorf("frozen %d times", n)
		}
	})
}

// The handler may lose an answer, or start anew, at any time. What it asks again has the same answer.
func TestFreezeGuest_ofAnOwnerMayBeRepeated(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(t)
		b.upWithAgent()
		defer b.shutOff()
		freezeFor := func(owner string, limit time.Duration) error {
			_, err := b.FreezeGuest(t.Context(), &pb.FreezeGuestRequest{
				Owner:       owner,
				LimitMillis: limit.Milliseconds(),
			})
			return err
		}
		thawFor := func(owner string) (string, error) {
			r, err := b.ThawGuest(t.Context(), &pb.ThawGuestRequest{Owner: owner})
			return r.GetSkipped(), err
		}
		for range 2 {
			if err := freezeFor("snapshot-1", 0); err != nil || b.guest.count("Freeze") != 1 {
				t.Fatalf("%v, frozen %d times", err, b.guest.count("Freeze"))
			}
		}
		// Nobody else begins, or ends, a freeze meanwhile. Another owner may ask again: a backup's freeze is short.
		if err := freezeFor("snapshot-2", 0); status.Code(err) != codes.Aborted {
			t.Errorf("frozen for two owners: %v", err)
		}
		if r, err := b.thaw(); err != nil || r.Skipped == "" || b.guest.count("Thaw") != 0 {
			t.Errorf("virt-freezer ends it: %v, %v", r, err)
		}
		if skipped, err := thawFor("snapshot-2"); err != nil || skipped == "" || b.guest.count("Thaw") != 0 {
			t.Errorf("another owner ends it: %q, %v", skipped, err)
		}
		for range 2 {
			if skipped, err := thawFor("snapshot-1"); err != nil || skipped != "" || b.guest.count("Thaw") != 1 {
				t.Errorf("%q, %v, thawed %d times", skipped, err, b.guest.count("Thaw"))
			}
		}
		if err := freezeFor("snapshot-1", 0); status.Code(err) != codes.FailedPrecondition ||
			b.guest.count("Freeze") != 1 {
			t.Errorf("frozen after the thaw: %v", err)
		}
		// A limit below 30 seconds holds, and the thaw says so each time.
		began := time.Now()
		if err := freezeFor("snapshot-3", 5*time.Second); err != nil {
			t.Fatal(err)
		}
		b.freezer.Wait()
		if state, _ := b.State(); state.Frozen || time.Since(began) > 6*time.Second {
			t.Errorf("frozen after the limit: %v, %s", state.Frozen, time.Since(began))
		}
		if err := freezeFor("snapshot-3", 0); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("a freeze that is over was said to last: %v", err)
		}
		for range 2 {
			if _, err := thawFor("snapshot-3"); status.Code(err) != codes.FailedPrecondition ||
				!strings.Contains(err.Error(), "frozen for 5s, which is the limit") {
				t.Errorf("%v", err)
			}
		}
	})
}
