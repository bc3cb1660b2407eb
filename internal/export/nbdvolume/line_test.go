package nbdvolume

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/exporttest"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/guard"
	"github.com/varvebackup/varve/internal/nbd"
	"github.com/varvebackup/varve/test/verdict"
	"github.com/varvebackup/varve/test/wait"
)

// serve serves a backend on a socket until stop is called.
func serve(t *testing.T, socket string, b nbd.Backend) (stop func()) {
	t.Helper()
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	served := make(chan error, 1)
	go func() { served <- (&nbd.Server{Exports: exports{"disk": b}}).Serve(ctx, listener) }()
	return func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
}

func openAt(t *testing.T, socket string, o Options) *Volume {
	t.Helper()
	o.Name, o.PointInTime = "root", "now"
	v, err := Open(t.Context(), nbd.Target{Network: "unix", Address: socket, Export: "disk"}, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
	return v
}

// What is under way when the connections break fails as something to try again, and what comes later finds the same disk.
func TestVolume_connectsAgain(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "nbd")
	b := &backend{Volume: exporttest.NewVolume("root", 8<<20, false, 3)}
	stop := serve(t, socket, b)
	v := openAt(t, socket, Options{})
	whole := extent.Extent{Length: 8 << 20}
	first := true
	err := v.Read(t.Context(), whole, export.Everything, func(export.Chunk) error {
		if first {
			first = false
			stop()
			client, _ := v.line.now()
			<-client.Done()
		}
		return nil
	})
	if !errors.Is(err, errclass.Transient) {
		t.Errorf("a read that was under way: %v", err)
	}
	if err := v.Lost(); err != nil {
		t.Errorf("given up at once: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := v.Regions(ctx, whole, func(export.Region) bool { return true }); err == nil {
		t.Error("a map while nobody serves")
	}
	defer serve(t, socket, b)()
	if data, _ := readAll(t, v, whole, export.Everything); !bytes.Equal(data, b.Content) {
		verdict.Errorf(t, "other bytes on the new connections")
	}
	if got := regionsOf(t, v, whole); len(got) == 0 {
		t.Error("no map on the new connections")
	}
}

// A call that is cancelled can end the connections, and with them other calls. Theirs is no cancellation.
func TestVolume_endOfTheConnectionsIsNobodysCancellation(t *testing.T) {
	t.Parallel()
	dead := deadClient(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		ctx       context.Context
		transient bool
	}{"another": {t.Context(), true}, "the cancelled one": {ended, false}} {
		err := transientIfDead(c.ctx, dead, context.Canceled)
		if errors.Is(err, errclass.Transient) != c.transient || errors.Is(err, context.Canceled) == c.transient {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// deadClient returns a client whose server has gone.
func deadClient(t *testing.T) *nbd.Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "nbd")
	stop := serve(t, socket, &backend{Volume: exporttest.NewVolume("root", 1<<20, false, 3)})
	client, err := nbd.Dial(t.Context(), nbd.Target{Network: "unix", Address: socket, Export: "disk"}, nbd.Options{})
	if err != nil {
		t.Fatal(err)
	}
	stop()
	<-client.Done()
	return client
}

func TestVolume_isLostWhenNobodyServesIt(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "nbd")
	b := &backend{Volume: exporttest.NewVolume("root", 1<<20, false, 3)}
	stop := serve(t, socket, b)
	now := testclock.NewFakePassiveClock(time.Now())
	v := openAt(t, socket, Options{Clock: now})
	stop()
	broken := func() time.Time {
		v.line.mu.Lock()
		defer v.line.mu.Unlock()
		return v.line.broken
	}
	wait.Until(t, time.Minute, "the end of the connections", func() bool { return !broken().IsZero() })
	now.SetTime(broken().Add(LostAfter - 1))
	if err := v.Lost(); err != nil {
		t.Errorf("given up too early: %v", err)
	}
	now.SetTime(broken().Add(LostAfter))
	if v.Lost() == nil {
		t.Error("nobody is told that the volume cannot be read")
	}
	// Another disk in its place is not the volume.
	other := &backend{Volume: exporttest.NewVolume("root", 2<<20, false, 3)}
	stop = serve(t, socket, other)
	wait.Until(t, time.Minute, "a refusal of the other disk", func() bool { return errors.Is(v.Lost(), errclass.Expired) })
	stop()
	defer serve(t, socket, b)()
	wait.Until(t, time.Minute, "new connections", func() bool { return v.Lost() == nil })
}

// A mistake in one of the volume's goroutines is an error, and the volume is of no use any more.
func TestVolume_survivesPanics(t *testing.T) {
	t.Parallel()
	v := open(t, &backend{Volume: exporttest.NewVolume("root", 1<<20, false, 3)}, "")
	var panicked *guard.PanicError
	if err := v.line.guard(func() error { panic("a mistake") }); !errors.As(err, &panicked) {
		t.Errorf("%v", err)
	}
	if err := v.Lost(); !errors.As(err, &panicked) {
		t.Errorf("nobody is told: %v", err)
	}
}
