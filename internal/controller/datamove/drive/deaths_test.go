package drive

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
)

// dies plays a death of the mover in its pod when so much was moved, and says whether the object ends by that.
func dies(in *Input, done int64) bool {
	in.Pod.Deaths++
	in.Object.Done = done
	d := decide(*in)
	in.Object.Memory = d.Change.Memory
	in.Object.Done = 0 // the mover starts again, and counts anew
	if d.Change.Memory.Ending == nil {
		d = decide(*in)
		in.Object.Memory = d.Change.Memory
	}
	return d.Change.Memory.Ending != nil
}

// A movement of days with an outage a day goes on, as long as each of them finds it further than all before.
func TestDeaths_areForgottenWithProgress(t *testing.T) {
	t.Parallel()
	in := base(velerov2.PhaseInProgress)
	in.Object.Started = now.Add(-30 * 24 * time.Hour)
	done := int64(0)
	for day := range 30 {
		done += 1 << 40
		if dies(&in, done) {
			t.Fatalf("it ends on day %d: %s", day, in.Object.Memory.Ending.Message)
		}
	}
	// It gets no further than that: what it moves again is no progress.
	for again := range maxDeaths - 2 {
		if dies(&in, done) {
			t.Fatalf("death %d: it ends", again+2)
		}
	}
	if !dies(&in, done-1) {
		t.Error("it dies at the same place again and again, and does not end")
	}
}

// A mover that dies at once is no less dead for what it counts before.
func TestDeaths_atOnePlaceEnd(t *testing.T) {
	t.Parallel()
	in := base(velerov2.PhaseInProgress)
	for n := range maxDeaths {
		if ends := dies(&in, 5000); ends != (n == maxDeaths-1) {
			t.Errorf("death %d: ends %v", n+1, ends)
		}
	}
}

// Pods that are lost count as before: each of them once, and in a row.
func TestDeaths_ofLostPods(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		further int64
		ends    bool
	}{"no progress": {0, true}, "progress": {1 << 30, false}} {
		in := base(velerov2.PhaseInProgress)
		done, ended := int64(0), false
		for n := range maxDeaths {
			done += c.further
			in.Object.Done = done
			in.Object.Memory.Pod, in.Object.Memory.Stalled = types.UID("p"+string(rune('1'+n))), at(0)
			in.Pod, in.PodNode = nil, NodeState{}
			d := decide(in)
			if at := d.Change.Memory.RetryAt; at != nil && at.Sub(now) > firstRetry<<(maxDeaths-1) {
				t.Errorf("%s: the next one starts at %s", name, at)
			}
			in.Object.Memory = d.Change.Memory
			ended = in.Object.Memory.Ending != nil
		}
		if ended != c.ends {
			t.Errorf("%s: ends %v, %+v", name, ended, in.Object.Memory)
		}
	}
}
