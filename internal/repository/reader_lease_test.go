package repository

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kopia/kopia/repo/blob"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/test/verdict"
)

// reader is a machine that reads the oldest restore point. others delete and maintain.
type reader struct {
	*crashed
	r, others *Repository
	point     *RestorePoint
	want      *sparse
	image     *Image
}

func newReader(t *testing.T) *reader {
	t.Helper()
	c := newCrashed(t)
	d := &reader{crashed: c, r: c.open(t), want: c.held[2000]}
	others, err := c.site.open(t.Context(), c.site.connect(t, "other", cached))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := others.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	d.others = others
	if d.point, err = d.r.Get(t.Context(), c.ids[2000]); err != nil {
		t.Fatal(err)
	}
	if d.image, err = d.r.Image(t.Context(), d.point.Disks[0]); err != nil {
		t.Fatal(err)
	}
	return d
}

// remove deletes what is being read, and maintain frees at once what nobody refers to.
func (d *reader) remove(t *testing.T) {
	t.Helper()
	d.does(t, d.others, &job{Do: "remove", IDs: []string{d.point.ID}})
}

func (d *reader) maintain(t *testing.T) {
	t.Helper()
	for range 2 { // The first run rewrites packs that are not full. The second finds their old contents to be garbage.
		d.site.move(time.Minute)
		d.does(t, d.others, &job{Do: "maintain", Mode: FullMaintenance, Exclusive: true})
	}
}

// read restores what is being read, without what the reader has in its cache.
func (d *reader) read(t *testing.T) error {
	t.Helper()
	fresh, err := d.site.open(t.Context(), d.site.connect(t, "fresh", cached))
	if err != nil {
		t.Fatal(err)
	}
	defer fresh.Close(context.WithoutCancel(t.Context()))
	image, err := fresh.Image(t.Context(), d.image.Disk)
	if err == nil {
		err = d.same(t, image)
	}
	return errors.Join(d.same(t, d.image), err)
}

func (d *reader) same(t *testing.T, image *Image) error {
	t.Helper()
	target := &collect{data: make([]byte, d.want.bytes)}
	if err := image.Restore(t.Context(), target, RestoreOptions{}); err != nil {
		return err
	}
	for at := int64(0); at < d.want.bytes; at += mib {
		p := make([]byte, min(mib, d.want.bytes-at))
		if err := d.want.ReadAt(t.Context(), p, at); err != nil {
			return err
		}
		if string(p) != string(target.data[at:at+int64(len(p))]) {
			verdict.Errorf(t, "it differs at %d", at)
		}
	}
	return nil
}

// lease takes a lease. The returned function makes it look for renewal, and returns when that is done.
func (d *reader) lease(t *testing.T, lost func(error)) (l *Lease, look func()) {
	t.Helper()
	ticks := make(chan time.Time)
	l, err := d.r.conn.LeasePoint(t.Context(), d.point, ticks, lost)
	if err != nil {
		t.Fatal(err)
	}
	return l, func() {
		for range 2 { // The second tick is taken once the first one is done.
			select {
			case ticks <- time.Time{}:
			case <-l.Ended():
			}
		}
	}
}

func (d *reader) release(t *testing.T, l *Lease) {
	t.Helper()
	if err := l.Release(); err != nil {
		t.Error(err)
	}
	refresh(t, d.others)
	if n := leases(t, d.others); n > 0 {
		t.Errorf("%d leases are left", n)
	}
}

// What is being read stays, even though it was deleted and everything that nobody refers to goes at once. Afterwards it goes.
func TestLease_keepsWhatIsRead(t *testing.T) {
	t.Parallel()
	d := newReader(t)
	l, err := d.r.Lease(t.Context(), d.point.ID, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	d.remove(t)
	d.maintain(t)
	if err := d.read(t); err != nil {
		t.Error(err)
	}
	d.release(t, l)
	d.maintain(t)
	noGarbage(t, d.others)
	if err := d.read(t); !errors.Is(err, errclass.Corrupt) {
		t.Errorf("what nobody refers to is still there: %v", err)
	}
}

// A reader who takes weeks keeps what it reads.
func TestLease_isRenewed(t *testing.T) {
	t.Parallel()
	d := newReader(t)
	l, look := d.lease(t, func(err error) { t.Error(err) })
	d.remove(t)
	look()
	refresh(t, d.others)
	first := leaseIDs(t, d.others)
	for range 14 {
		d.site.move(engine.LeaseRenewal + time.Minute)
		look()
	}
	d.maintain(t)
	if err := d.read(t); err != nil {
		t.Error(err)
	}
	refresh(t, d.others)
	if now := leaseIDs(t, d.others); len(first) != 1 || len(now) != 1 || now[0] == first[0] {
		t.Errorf("leases %v at the beginning, %v at the end", first, now)
	}
	d.release(t, l)
}

// A lease that was not renewed for long, because the machine slept, is taken again if the restore point still exists. If not,
// that is reported once, and no lease on what is gone keeps others from maintenance.
func TestLease_afterALongSleep(t *testing.T) {
	t.Parallel()
	for name, gone := range map[string]bool{"and what it reads is there": false, "and what it reads is gone": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newReader(t)
			var lost []error
			l, look := d.lease(t, func(err error) { lost = append(lost, err) })
			if gone {
				d.remove(t)
			}
			d.site.move(engine.LeaseLife + time.Minute)
			d.maintain(t)
			look()
			look()
			if !gone {
				d.remove(t)
				d.maintain(t)
				if err := d.read(t); err != nil || len(lost) > 0 {
					t.Errorf("%v; told: %v", err, lost)
				}
			} else if len(lost) != 1 || !errors.Is(lost[0], errclass.NotFound) {
				t.Errorf("told: %v", lost)
			}
			d.maintain(t)
			d.release(t, l)
			d.maintain(t)
			noGarbage(t, d.others)
		})
	}
}

func TestLease_thatCannotBeHad(t *testing.T) {
	t.Parallel()
	d := newReader(t)
	d.remove(t)
	refresh(t, d.r)
	if _, err := d.r.Lease(t.Context(), d.point.ID, nil); !errors.Is(err, errclass.NotFound) {
		t.Errorf("of what is deleted: %v", err)
	}
	if _, err := d.r.conn.LeasePoint(t.Context(), d.point, nil, nil); !errors.Is(err, errclass.NotFound) {
		t.Errorf("of what was deleted meanwhile: %v", err)
	}
	config := d.site.dir + "/readonly.config"
	if err := Connect(t.Context(), config, d.site.location(), testPassword, ConnectOptions{ReadOnly: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := open(t, config).Lease(t.Context(), d.ids[3000], nil); !errors.Is(err, errclass.Invalid) {
		t.Errorf("on a connection for reading only: %v", err)
	}
	refresh(t, d.r)
	if n := leases(t, d.r); n > 0 {
		t.Errorf("%d leases", n)
	}
}

// Whoever interrupts the taking of a lease does not have to wait for it, and leaves none.
func TestLease_whenInterrupted(t *testing.T) {
	t.Parallel()
	d := newReader(t)
	ctx, cancel := context.WithCancel(t.Context())
	d.site.changed = func(op string, _ blob.ID) { // with the first blob of the lease
		if op == "put" {
			cancel()
		}
	}
	_, err := d.r.Lease(ctx, d.point.ID, nil)
	d.site.changed = nil
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	refresh(t, d.others)
	if n := leases(t, d.others); n > 0 {
		t.Errorf("%d leases", n)
	}
}
