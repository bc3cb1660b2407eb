package repository

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/retention"
	"github.com/varvebackup/varve/test/verdict"
)

// atOnce is a repository that many users use at the same time, each with connections of its own.
type atOnce struct {
	t *testing.T
	// open makes a connection for the user called name.
	open func(name string) (*Repository, error)
	// held is what the disks of restore points held, by ID; gone holds the IDs of those that were pruned.
	held, gone sync.Map
	// back counts what was removed and came back: kopia forgets the deletion of a manifest if two processes merge manifests at
	// once.
	back atomic.Int64
	did  [5]atomic.Int64
}

// These are the users. Each does one thing again and again.
const (
	first = iota
	second
	restorer
	maintainer
	pruner
)

// TestEverythingAtOnce: two virtual machines are backed up, restore points are restored and pruned, and maintenance frees what
// nobody refers to, all at the same time. Ten minutes pass in a second, so that what was written meanwhile becomes old enough to
// be freed.
func TestEverythingAtOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	configs := map[string]string{}
	for i := range pruner + 1 {
		name := fmt.Sprint("user", i)
		configs[name] = s.connect(t, name, i%2 == 0) // Users without a cache read directly.
	}
	configs["last"] = s.connect(t, "last", cached)
	s.began, s.faster = time.Now(), 600
	a := &atOnce{t: t, open: func(name string) (*Repository, error) { return s.open(t.Context(), configs[name]) }}
	a.run(6 * time.Second)
	if verifiedByKopia != nil {
		verifiedByKopia(t, s.location())
	}
}

// verifiedByKopia makes the upstream kopia verify a repository; nil if there is no kopia.
var verifiedByKopia func(t *testing.T, at Location)

// run lets all users work for at least this long, or for minutes, and checks what they leave.
func (a *atOnce) run(least time.Duration) {
	t := a.t
	t.Helper()
	if soak {
		least = time.Duration(setting(t, "VARVE_TEST_MINUTES", 3)) * time.Minute
	}
	seed := setting(t, "VARVE_TEST_SEED", time.Now().UnixNano())
	t.Logf("again, but for the order of things: VARVE_TEST_SEED=%d", seed)
	ctx, cancel := context.WithTimeout(t.Context(), least)
	defer cancel()
	var users sync.WaitGroup
	for i, do := range []func(context.Context, *Repository, *rand.Rand) error{first: a.writes("/first"), second: a.writes("/second"), restorer: a.restores, maintainer: a.maintains, pruner: a.prunes} {
		random := rand.New(rand.NewPCG(uint64(seed), uint64(i)))
		users.Go(func() {
			for ctx.Err() == nil {
				if err := a.session(i, do, random); err != nil {
					t.Error(err)
					cancel()
				}
			}
		})
	}
	users.Wait()
	var did []int64
	for i := range a.did {
		did = append(did, a.did[i].Load())
		if did[i] == 0 {
			t.Errorf("user %d did nothing", i)
		}
	}
	t.Logf("backups, restores, maintenance runs and prunes: %v", did)
	a.settled()
}

// session runs what a user does with one connection.
func (a *atOnce) session(user int, do func(context.Context, *Repository, *rand.Rand) error, random *rand.Rand) (err error) {
	ctx := a.t.Context()
	r, err := a.open(fmt.Sprint("user", user))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close(context.WithoutCancel(ctx))) }()
	for range 1 + random.IntN(5) {
		if err := do(ctx, r, random); err != nil {
			return fmt.Errorf("user %d: %w", user, err)
		}
		a.did[user].Add(1)
	}
	return nil
}

// writes backs a machine up. Its disk has blocks that come and go, so that some are used again just before they are freed.
func (a *atOnce) writes(path string) func(context.Context, *Repository, *rand.Rand) error {
	disk, last, change := newSparse(80*mib), newSparse(80*mib), 0
	source := Source{Host: "host", User: "varve", Path: path}
	return func(ctx context.Context, r *Repository, random *rand.Rand) error {
		for range 4 {
			pool := rand.New(rand.NewPCG(random.Uint64N(40), 6))
			disk.write(noise(pool, DefaultBlockBytes), random.Int64N(disk.bytes/DefaultBlockBytes)*DefaultBlockBytes)
			disk.write(noise(random, 1000), random.Int64N(disk.bytes-1000))
			disk.zero(extent.Extent{Offset: random.Int64N(disk.bytes), Length: random.Int64N(8 * mib)})
		}
		now := disk.clone()
		change++
		d := DiskSource{Name: "root", Bytes: now.bytes, Reader: now, Identity: "a", Change: fmt.Sprint(change)}
		if change > 1 {
			d.Changes = &Changes{Since: fmt.Sprint(change - 1), Set: now.changed(last)}
		}
		p, err := r.Backup(ctx, Request{Source: source, Disks: []DiskSource{d}, Workers: 2, FlushEvery: 100 * time.Millisecond})
		if err != nil {
			return err
		}
		a.held.Store(p.ID, now)
		last = now
		return nil
	}
}

// restores compares a restore point, which may be pruned meanwhile, with what was backed up.
func (a *atOnce) restores(ctx context.Context, r *Repository, random *rand.Rand) error {
	points, err := a.list(ctx, r)
	if err != nil || len(points) == 0 {
		return err
	}
	p := points[random.IntN(len(points))]
	want, ok := a.held.Load(p.ID)
	if !ok {
		return nil // Its backup has not returned yet.
	}
	if err := compare(r, random).whole(ctx, p.Disks[0], want.(*sparse), true); err != nil {
		return fmt.Errorf("restore point %s: %w", p.ID, err)
	}
	return nil
}

func (a *atOnce) list(ctx context.Context, r *Repository) ([]*RestorePoint, error) {
	if err := r.conn.Kopia.Refresh(ctx); err != nil {
		return nil, err
	}
	return r.List(ctx, nil)
}

// maintains frees what is old, with the safety margins that are needed while others work.
func (a *atOnce) maintains(ctx context.Context, r *Repository, random *rand.Rand) error {
	mode := FullMaintenance
	if random.IntN(4) == 0 {
		mode = QuickMaintenance
	}
	err := r.Maintain(ctx, MaintenanceOptions{Mode: mode})
	switch {
	case err != nil && strings.Contains(err.Error(), "clock skew"):
		return nil // When minutes pass in a moment, kopia takes a busy machine for a wrong clock.
	case errors.Is(err, errclass.Conflict):
		a.back.Add(1) // This is its own lock from before, which lasts for an hour at most.
		return nil
	}
	return err
}

// prunes keeps a few restore points of each history, as the command does.
func (a *atOnce) prunes(ctx context.Context, r *Repository, random *rand.Rand) error {
	points, err := a.list(ctx, r)
	if err != nil {
		return err
	}
	report, err := r.Verify(ctx, VerifyOptions{})
	if err != nil {
		return err
	}
	if report.Damaged() {
		return verdict.Error("damaged: %+v", report)
	}
	histories := map[Source][]retention.Point{}
	for _, p := range points {
		histories[p.Source] = append(histories[p.Source], retention.Point{ID: p.ID, Time: p.Time, Pinned: p.Pinned(), Good: true})
	}
	var remove []string
	for _, h := range histories {
		decisions, err := retention.Decide(retention.Policy{Last: 1 + random.IntN(3), Daily: 2}, r.conn.Kopia.Time(), h)
		if err != nil {
			return err
		}
		for _, d := range decisions {
			if !d.Keep {
				remove = append(remove, d.Point.ID)
				a.gone.Store(d.Point.ID, true)
			}
		}
	}
	return r.Delete(ctx, remove...)
}

// settled checks that exactly the restore points exist that were not pruned, and that they are intact.
func (a *atOnce) settled() {
	t := a.t
	t.Helper()
	r, err := a.open("last")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	report, err := r.Verify(t.Context(), VerifyOptions{Percent: 100})
	if err != nil || report.Damaged() {
		verdict.JudgeErrorf(t, err == nil, "%+v, %v", report, err)
	}
	points, err := r.List(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	c := compare(r, rand.New(rand.NewPCG(1, 1)))
	for _, p := range points {
		listed[p.ID] = true
		want, ok := a.held.Load(p.ID)
		if !ok {
			verdict.Errorf(t, "restore point %s was never made", p.ID)
			continue
		}
		if err := c.whole(t.Context(), p.Disks[0], want.(*sparse), true); err != nil {
			t.Errorf("restore point %s: %v", p.ID, err)
		}
	}
	a.held.Range(func(id, _ any) bool {
		_, gone := a.gone.Load(id)
		switch there := listed[id.(string)]; {
		case !gone && !there:
			verdict.Errorf(t, "restore point %s is not there", id)
		case gone && there:
			a.back.Add(1)
		}
		return true
	})
	t.Logf("%d restore points or locks came back", a.back.Load())
}
