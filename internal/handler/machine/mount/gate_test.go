package mount

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"
)

// A call that does not come back is left behind once, and holds up nobody who wants another volume.
func TestGate_leavesOneCallBehindForEachVolume(t *testing.T) {
	t.Parallel()
	g := newGate(time.Second)
	answer := make(chan struct{})
	var running atomic.Int32
	hang := func(*gateCall) error {
		running.Add(1)
		defer running.Add(-1)
		<-answer
		return nil
	}
	for range 20 {
		if err := g.run("hung", hang); !errors.Is(err, ErrNotResponding) {
			t.Fatalf("got %v", err)
		}
	}
	if n := running.Load(); n != 1 {
		t.Errorf("%d calls are stuck, want 1", n)
	}
	if err := g.run("other", func(*gateCall) error { return errors.New("its own") }); err == nil || err.Error() != "its own" {
		t.Errorf("another volume: %v", err)
	}
	close(answer)
	deadline := time.Now().Add(10 * time.Second)
	for {
		err := g.run("hung", func(*gateCall) error { return nil })
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the storage answers again: %v", err)
		}
		time.Sleep(time.Millisecond)
	}
}

// A slow volume serves its callers one after another.
func TestGate_callsAboutAVolumeTakeTurns(t *testing.T) {
	t.Parallel()
	g := newGate(time.Minute)
	var running, most atomic.Int32
	errs := make(chan error, 10)
	for range cap(errs) {
		go func() {
			errs <- g.run("slow", func(*gateCall) error {
				most.Store(max(most.Load(), running.Add(1)))
				time.Sleep(time.Millisecond)
				running.Add(-1)
				return nil
			})
		}()
	}
	for range cap(errs) {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if most.Load() != 1 {
		t.Errorf("%d calls at a time", most.Load())
	}
}

// What comes too late must not have an effect.
func TestGate_tellsALateCallThatNobodyWaits(t *testing.T) {
	t.Parallel()
	g := newGate(10 * time.Millisecond)
	answer, proceeds := make(chan struct{}), make(chan bool, 1)
	err := g.run("hung", func(call *gateCall) error {
		<-answer
		proceeds <- call.mayProceed()
		return nil
	})
	close(answer)
	if !errors.Is(err, ErrNotResponding) || <-proceeds {
		t.Errorf("got %v, and the call went on", err)
	}
}
