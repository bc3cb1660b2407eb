package mover

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository"
)

// cancelTimeout is how long a cancelled job may take to end, with a grace that is much shorter.
const (
	cancelTimeout = 10 * time.Second
	testGrace     = 200 * time.Millisecond
)

// endsInTime cancels a job once it hangs, and checks that it ends all the same.
func endsInTime(t *testing.T, s *stall, job func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- job(ctx) }()
	select {
	case <-s.reached:
	case err := <-ended:
		t.Fatalf("it ended before it could hang: %v", err)
	}
	began := time.Now()
	cancel()
	select {
	case err := <-ended:
		if !errors.Is(err, ErrAbandoned) || !errors.Is(err, context.Canceled) || !errors.Is(err, errclass.Unknown) {
			t.Error(err)
		}
		if took := time.Since(began); took < testGrace {
			t.Errorf("it had only %s", took)
		}
	case <-time.After(cancelTimeout):
		t.Errorf("it has not ended after %s", cancelTimeout)
	}
}

// awaitEnd waits for the end of a job that was abandoned.
func awaitEnd(t *testing.T, ended <-chan struct{}) {
	t.Helper()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the abandoned job has not ended")
	}
}

// A backup ends soon after it was cancelled, although the storage answers nothing and heeds no context. What goes on
// alone does no harm: the same request makes the restore point later.
func TestBackup_endsWhenStorageStalls(t *testing.T) {
	t.Parallel()
	r, s := newStallingRepository(t)
	ended := make(chan struct{})
	d := &memoryDisk{content: noise(1, 32<<20), reading: func(context.Context) error { s.on.Store(true); return nil }}
	q := BackupRequest{
		ID: "0123456789abcdef0123456789abcdef", History: r.Source("", "", "/web"), Sources: []Source{{Name: "root", Open: d.open}},
		CancelGrace: testGrace, abandoned: func() { close(ended) },
	}
	endsInTime(t, s, func(ctx context.Context) error { _, err := Backup(ctx, r, q); return err })
	close(s.released)
	awaitEnd(t, ended)
	if !d.closed.Load() {
		t.Error("the source is still open")
	}
	if p, err := Backup(t.Context(), r, q); err != nil || p.ID != q.ID {
		t.Errorf("%+v: %v", p, err)
	}
}

func TestBackup_endsWhenASourceStalls(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	s, ended := newStall(), make(chan struct{})
	s.on.Store(true)
	d := &memoryDisk{content: noise(1, 1<<20), reading: func(context.Context) error { s.wait(); return nil }}
	q := BackupRequest{
		History: r.Source("", "", "/web"), Sources: []Source{{Name: "root", Open: d.open}}, CancelGrace: testGrace, abandoned: func() { close(ended) },
	}
	endsInTime(t, s, func(ctx context.Context) error { _, err := Backup(ctx, r, q); return err })
	close(s.released)
	awaitEnd(t, ended)
}

// stallingTarget is a target whose writes hang.
type stallingTarget struct {
	disk.Target

	stall *stall
}

func (s *stallingTarget) WriteAt(ctx context.Context, p []byte, offset int64) error {
	s.stall.wait()
	return s.Target.WriteAt(ctx, p, offset)
}

func TestRestore_endsWhenItsDestinationStalls(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	d := &memoryDisk{content: noise(1, 1<<20)}
	p, err := Backup(t.Context(), r, BackupRequest{History: r.Source("", "", "/web"), Sources: []Source{{Name: "root", Open: d.open}}})
	if err != nil {
		t.Fatal(err)
	}
	s, ended := newStall(), make(chan struct{})
	s.on.Store(true)
	q := RestoreRequest{Disk: p.Disks[0], Destination: Destination{Location: writeFile(t, nil)}, CancelGrace: testGrace, abandoned: func() { close(ended) }}
	q.Destination.wrap = func(target disk.Target) disk.Target { return &stallingTarget{Target: target, stall: s} }
	endsInTime(t, s, func(ctx context.Context) error { _, err := Restore(ctx, r, q); return err })
	close(s.released)
	awaitEnd(t, ended)
}

// backUpNoise makes a restore point of a disk without holes.
func backUpNoise(t *testing.T, r *repository.Repository) *repository.RestorePoint {
	t.Helper()
	d := &memoryDisk{content: noise(1, 1<<20)}
	p, err := Backup(t.Context(), r, BackupRequest{History: r.Source("", "", "/web"), Sources: []Source{{Name: "root", Open: d.open}}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestRestore_endsWhenStorageStalls(t *testing.T) {
	t.Parallel()
	r, s := newStallingRepository(t)
	p := backUpNoise(t, r)
	s.on.Store(true)
	ended := make(chan struct{})
	q := RestoreRequest{Disk: p.Disks[0], Destination: Destination{Location: writeFile(t, nil), Overwrite: true}, CancelGrace: testGrace, abandoned: func() { close(ended) }}
	endsInTime(t, s, func(ctx context.Context) error { _, err := Restore(ctx, r, q); return err })
	close(s.released)
	awaitEnd(t, ended)
}

func TestVerify_endsWhenStorageStalls(t *testing.T) {
	t.Parallel()
	r, s := newStallingRepository(t)
	backUpNoise(t, r)
	s.on.Store(true)
	ended := make(chan struct{})
	q := VerifyRequest{Percent: 100, CancelGrace: testGrace, abandoned: func() { close(ended) }}
	endsInTime(t, s, func(ctx context.Context) error { _, err := Verify(ctx, r, q); return err })
	close(s.released)
	awaitEnd(t, ended)
}

// The lease of a job that cannot be ended is left to end by itself, whether the job was cancelled or has succeeded.
func TestWithLease_endsWhenStorageStalls(t *testing.T) {
	t.Parallel()
	for name, canceled := range map[string]bool{"cancelled": true, "done": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			endsLeaseWhenStorageStalls(t, canceled)
		})
	}
}

func endsLeaseWhenStorageStalls(t *testing.T, canceled bool) {
	t.Helper()
	r, s := newStallingRepository(t)
	p := backUpNoise(t, r)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var warnings []error
	ended, released := make(chan error, 1), make(chan struct{})
	go func() {
		ended <- withLease(ctx, r, p.ID, leaseLimits{grace: testGrace, end: testGrace}, func() { close(released) },
			func(err error) { warnings = append(warnings, err) }, func() error {
				s.on.Store(true)
				if canceled {
					cancel()
				}
				return ctx.Err()
			})
	}()
	select {
	case err := <-ended:
		if errors.Is(err, context.Canceled) != canceled || len(warnings) != 1 || !errors.Is(warnings[0], ErrAbandoned) {
			t.Errorf("%v, warnings %v", err, warnings)
		}
	case <-time.After(cancelTimeout):
		t.Errorf("it has not ended after %s", cancelTimeout)
	}
	close(s.released)
	awaitEnd(t, released)
}

func TestAbandonAfter(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		// grace is the grace, and takes is how long the job takes after it was cancelled.
		grace, takes time.Duration
		abandoned    bool
	}{
		"in time":   {grace: 10 * time.Second, takes: 9 * time.Second},
		"too late":  {grace: 10 * time.Second, takes: 11 * time.Second, abandoned: true},
		"any time":  {grace: 0, takes: time.Hour},
		"no effort": {grace: 10 * time.Second, takes: 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				began := time.Now()
				got, err := abandonAfter(ctx, c.grace, nil, func() (int, error) { time.Sleep(c.takes); return 1, nil })
				defer time.Sleep(c.takes) // until a job that was abandoned has ended
				took, want := time.Since(began), c.takes
				if c.abandoned {
					want = c.grace
				}
				if took != want || c.abandoned != errors.Is(err, ErrAbandoned) || c.abandoned == (got == 1) {
					t.Errorf("%d after %s: %v", got, took, err)
				}
			})
		})
	}
	if got, err := abandonAfter(t.Context(), time.Second, nil, func() (int, error) { return 1, nil }); got != 1 || err != nil {
		t.Errorf("%d: %v", got, err)
	}
}
