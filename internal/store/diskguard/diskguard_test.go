package diskguard_test

import (
	"context"
	"errors"
	"iter"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/diskguard"
)

// stuck is a disk whose calls do not return before it is freed.
type stuck struct {
	disk.Disk
	free   chan struct{}
	calls  atomic.Int32
	closed atomic.Int32
}

func (s *stuck) List(context.Context) ([]disk.Object, error) {
	s.calls.Add(1)
	<-s.free
	return []disk.Object{{Name: "image"}}, nil
}

func (s *stuck) Snapshot(context.Context, disk.Name, disk.Name, disk.Seal) error {
	return s.hang()
}

func (s *stuck) Delete(context.Context, disk.Name) error { return s.hang() }

func (s *stuck) Create(context.Context, disk.Name, disk.Source) error { return s.hang() }

func (s *stuck) MarkDamaged(context.Context, disk.Name, disk.UID, string) error { return s.hang() }

func (s *stuck) hang() error {
	<-s.free
	return nil
}

func (s *stuck) Changed(context.Context, disk.Name, disk.Name) iter.Seq2[extent.Extent, error] {
	return func(yield func(extent.Extent, error) bool) {
		if yield(extent.Extent{Length: 1}, nil) {
			<-s.free
			yield(extent.Extent{Offset: 5, Length: 1}, nil)
		}
	}
}

func (s *stuck) Open(context.Context, disk.Name) (disk.Lease, error) {
	<-s.free
	return s, nil
}

func (s *stuck) Path() string { return "" }

func (s *stuck) Close() error {
	s.closed.Add(1)
	return nil
}

func newStuck() (*stuck, *diskguard.Guard, disk.Disk) {
	s, g := &stuck{free: make(chan struct{})}, diskguard.New(clock.RealClock{})
	return s, g, g.Wrap(s)
}

// A disk that hangs fails each call in time, also one that may take long, and starts no further one.
func TestGuard_givesUpADiskThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, g, d := newStuck()
		begin := time.Now()
		sealed := make(chan error)
		go func() { sealed <- d.Snapshot(t.Context(), "head", "image", disk.Seal{}) }()
		time.Sleep(time.Hour) // of the bubble: a long call alone is no reason
		if err := g.Check(); err != nil {
			t.Fatalf("a call that may take long: %v", err)
		}
		_, err := d.List(t.Context())
		for what, err := range map[string]error{"the call": err, "the long call": <-sealed, "check": g.Check()} {
			if !errors.Is(err, diskguard.ErrSilent) || errclass.Of(err) != errclass.Transient ||
				!strings.Contains(err.Error(), "when it was to list its objects") {
				t.Errorf("%s: %v", what, err)
			}
		}
		if took := time.Since(begin) - time.Hour; took != diskguard.Patience {
			t.Errorf("it takes %s", took)
		}
		for range 10 {
			if _, err := d.List(t.Context()); !errors.Is(err, diskguard.ErrSilent) {
				t.Errorf("a later call: %v", err)
			}
		}
		if took := time.Since(begin) - time.Hour; s.calls.Load() != 1 || took != diskguard.Patience {
			t.Errorf("%d calls, after %s", s.calls.Load(), took)
		}
		close(s.free)
		synctest.Wait()
		if err := g.Check(); err != nil {
			t.Errorf("the disk answers again: %v", err)
		}
		if all, err := d.List(t.Context()); err != nil || len(all) != 1 {
			t.Errorf("%v, %v", all, err)
		}
	})
}

// A call that writes metadata has more time than one that only reads.
func TestGuard_waitsLongerForWrites(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		call func(context.Context, disk.Disk) error
		want time.Duration
	}{
		"delete": {func(ctx context.Context, d disk.Disk) error { return d.Delete(ctx, "image") }, time.Minute},
		"create": {func(ctx context.Context, d disk.Disk) error {
			return d.Create(ctx, "head", disk.Source{})
		}, 5 * time.Minute},
		"mark": {func(ctx context.Context, d disk.Disk) error {
			return d.MarkDamaged(ctx, "image", "uid", "a bit has changed")
		}, diskguard.Patience},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, g, d := newStuck()
				begin := time.Now()
				err := c.call(t.Context(), d)
				if took := time.Since(begin); !errors.Is(err, diskguard.ErrSilent) || g.Check() == nil || took != c.want {
					t.Errorf("%v after %s", err, took)
				}
				close(s.free)
				synctest.Wait()
				if err := c.call(t.Context(), d); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Nobody keeps a lease that comes too late.
func TestGuard_endsALeaseThatComesTooLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, _, d := newStuck()
		if _, err := d.Open(t.Context(), "image"); !errors.Is(err, diskguard.ErrSilent) {
			t.Errorf("open: %v", err)
		}
		close(s.free)
		synctest.Wait()
		if s.closed.Load() != 1 {
			t.Errorf("the lease was closed %d times", s.closed.Load())
		}
		lease, err := d.Open(t.Context(), "image")
		if err != nil || s.closed.Load() != 1 {
			t.Errorf("%v, %v, closed %d times", lease, err, s.closed.Load())
		}
	})
}

// Extents that were listed before the disk hung do not count as the whole list.
func TestGuard_listsAllExtentsOrFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, _, d := newStuck()
		hang := make(chan struct{})
		go func() {
			defer close(hang)
			_, _ = d.List(t.Context())
		}()
		var found int
		var failed error
		for e, err := range d.Changed(t.Context(), "image", "") {
			if failed = err; err == nil {
				found += int(e.Length)
			}
		}
		if !errors.Is(failed, diskguard.ErrSilent) || found > 1 {
			t.Errorf("%d extents, %v", found, failed)
		}
		<-hang
		close(s.free)
		synctest.Wait()
		found = 0
		for e, err := range d.Changed(t.Context(), "image", "") {
			if err != nil {
				t.Error(err)
			}
			found += int(e.Length)
		}
		if found != 2 {
			t.Errorf("%d extents", found)
		}
		for range d.Changed(t.Context(), "image", "") {
			break
		}
	})
}

// A call that its starter gives up counts like any other.
func TestCall_isGivenUpOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := diskguard.New(clock.RealClock{})
		first, second := g.Start("look at it"), g.Start("look at it again")
		time.Sleep(diskguard.Patience - time.Second)
		if first.IsLate() {
			t.Error("it is late too early")
		}
		time.Sleep(time.Second)
		if !first.IsLate() || g.Check() != nil {
			t.Errorf("late %t, %v", first.IsLate(), g.Check())
		}
		for range 2 {
			if err := first.GiveUp(); !errors.Is(err, diskguard.ErrSilent) {
				t.Error(err)
			}
		}
		if second.End() || second.GiveUp() != nil || g.Check() == nil {
			t.Error("a call that has returned counts")
		}
		if !first.End() || g.Check() != nil {
			t.Errorf("after the end: %v", g.Check())
		}
	})
}
