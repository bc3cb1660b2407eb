package backingimage

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// A source that was written counts as lost only if its store has reported for a minute since, and does not have it.
func TestSeals_isOverdue(t *testing.T) {
	t.Parallel()
	type look struct {
		after     time.Duration // since the last look
		heartbeat int           // which one the InstanceManager has
		want      bool
	}
	for name, looks := range map[string][]look{
		"no report is new":           {{0, 1, false}, {time.Hour, 1, false}},
		"the first one is new":       {{0, 1, false}, {time.Hour, 2, false}, {30 * time.Second, 2, false}},
		"none came after the minute": {{0, 1, false}, {time.Second, 2, false}, {time.Hour, 2, false}},
		"one came after the minute": {
			{0, 1, false}, {time.Second, 2, false}, {30 * time.Second, 3, false}, {30 * time.Second, 4, true},
		},
		"it stays so":            {{0, 1, false}, {time.Second, 2, false}, {time.Minute, 3, true}, {time.Second, 3, true}},
		"the clock goes back":    {{0, 9, false}, {time.Second, 5, false}, {time.Minute, 4, true}},
		"one came much too soon": {{0, 1, false}, {time.Second, 2, false}, {59 * time.Second, 3, false}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var s seals
			key, at := types.NamespacedName{Name: "golden"}, now
			for i, l := range looks {
				at = at.Add(l.after)
				if got := s.isOverdue(key, "u", "disk-a", now.Add(time.Duration(l.heartbeat)*time.Second), at); got != l.want {
					t.Errorf("look %d: %t", i, got)
				}
			}
		})
	}
}

// What was seen of one attempt says nothing about the next.
func TestSeals_beginAnew(t *testing.T) {
	t.Parallel()
	key := types.NamespacedName{Name: "golden"}
	for name, again := range map[string]func(*seals, time.Time) bool{
		"another image": func(s *seals, at time.Time) bool { return s.isOverdue(key, "v", "disk-a", at, at) },
		"another disk":  func(s *seals, at time.Time) bool { return s.isOverdue(key, "u", "disk-b", at, at) },
		"another attempt": func(s *seals, at time.Time) bool {
			s.forget(key)
			return s.isOverdue(key, "u", "disk-a", at, at)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var s seals
			for i, want := range []bool{false, false, true} {
				at := now.Add(time.Duration(i) * time.Minute)
				if got := s.isOverdue(key, "u", "disk-a", at, at); got != want {
					t.Fatalf("look %d: %t", i, got)
				}
			}
			if again(&s, now.Add(3*time.Minute)) {
				t.Error("it is overdue at once")
			}
		})
	}
}

// The controller counts from what it wrote itself, and forgets it with the attempt.
func TestSeals_ofAnImage(t *testing.T) {
	t.Parallel()
	f := newFixture()
	f.begun("a", inProgress)
	f.reports("a", inProgress)
	r := &reconciler{}
	at := now
	look := func(passed time.Duration) bool {
		at = at.Add(passed)
		f.managers["a"].Status.HeartbeatTime = ptr.To(metav1.NewMicroTime(at))
		in := f.input()
		in.now = at
		r.noteSeal(in)
		return in.sealOverdue
	}
	for i := range 3 {
		if look(time.Minute) {
			t.Errorf("look %d: nothing is written, and it is overdue", i)
		}
	}
	f.image.Status.FirstCopyWrittenTime = ptr.To(metav1.NewTime(at))
	for i, want := range []bool{false, false, true} {
		if got := look(time.Minute); got != want {
			t.Errorf("look %d after it was written: %t", i, got)
		}
	}
	f.image.Status.FirstCopyWrittenTime = nil
	look(time.Minute)
	f.image.Status.FirstCopyWrittenTime = ptr.To(metav1.NewTime(at))
	if look(time.Minute) {
		t.Error("another attempt is overdue at once")
	}
}
