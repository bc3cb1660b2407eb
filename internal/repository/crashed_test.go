package repository

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/snapshot"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/test/verdict"
)

// crashed is a repository with the history of one disk of two regions, in which processes die.
type crashed struct {
	site   *site
	config string
	// now is the disk. held is what it held at the restore points that exist, by their second; ids and pins are theirs.
	now  *sparse
	held map[int64]*sparse
	ids  map[int64]string
	pins map[int64]int
}

// newCrashed makes two restore points, and garbage that only a deleted third one referred to.
func newCrashed(tb testing.TB) *crashed {
	tb.Helper()
	s := newSite(tb)
	c := &crashed{site: s, config: s.connect(tb, "host", cached), now: newSparse(100*mib + 777), held: map[int64]*sparse{}, ids: map[int64]string{}, pins: map[int64]int{}}
	r := c.open(tb)
	for _, second := range []int64{1000, 2000, 3000} {
		c.write(uint64(second))
		c.does(tb, r, c.backUp(second))
	}
	c.does(tb, r, &job{Do: "remove", IDs: []string{c.ids[1000]}})
	c.check(tb, r)
	c.write(4000)
	return c
}

// copy makes a copy in another directory.
func (c *crashed) copy(tb testing.TB) *crashed {
	tb.Helper()
	return c.copyTo(tb, tb.TempDir())
}

func (c *crashed) copyTo(tb testing.TB, dir string) *crashed {
	tb.Helper()
	s := &site{dir: dir}
	sites.Store(s.dir, s)
	tb.Cleanup(func() { sites.Delete(s.dir) })
	if err := os.CopyFS(filepath.Join(s.dir, "blobs"), os.DirFS(filepath.Join(c.site.dir, "blobs"))); err != nil {
		tb.Fatal(err)
	}
	config, err := os.ReadFile(c.config)
	if err != nil {
		tb.Fatal(err)
	}
	name := filepath.Join(s.dir, filepath.Base(c.config))
	if err := os.WriteFile(name, []byte(strings.ReplaceAll(string(config), c.site.dir, s.dir)), 0o600); err != nil {
		tb.Fatal(err)
	}
	return &crashed{site: s, config: name, now: c.now.clone(), held: maps.Clone(c.held), ids: maps.Clone(c.ids), pins: maps.Clone(c.pins)}
}

func (c *crashed) open(tb testing.TB) *Repository {
	tb.Helper()
	return c.site.opened(tb, c.config)
}

func refresh(tb testing.TB, r *Repository) {
	tb.Helper()
	if err := r.conn.Kopia.Refresh(tb.Context()); err != nil {
		tb.Fatal(err)
	}
}

// write changes both regions, and what is around their border.
func (c *crashed) write(seed uint64) {
	random := rand.New(rand.NewPCG(seed, seed))
	places := []int64{0, 30 * mib, 63 * mib, 64 * mib, 90 * mib}
	for _, at := range places {
		c.now.write(noise(random, 300_000), at+random.Int64N(2*mib))
	}
	c.now.zero(extent.Extent{Offset: places[random.IntN(len(places))], Length: 700_000})
}

// latest returns the second of the last restore point.
func (c *crashed) latest() int64 { return slices.Max(slices.Collect(maps.Keys(c.held))) }

// backUp returns the job for the restore point of a second, starting from the latest one if there is any.
func (c *crashed) backUp(second int64) *job {
	d := jobDisk{Name: "root", Identity: "a", Change: fmt.Sprint(second), Bytes: c.now.bytes, disk: c.now.clone()}
	if len(c.held) > 0 {
		set := slices.AppendSeq([]extent.Extent{}, c.now.changed(c.held[c.latest()]).All())
		d.Since, d.Set = fmt.Sprint(c.latest()), &set
	}
	return &job{Config: c.config, Do: "backUp", Source: testSource, Time: time.Unix(second, 0), Disks: []jobDisk{d}, Workers: 2}
}

// job returns a job for a process that dies.
func (c *crashed) job(t *testing.T, do string) *job {
	t.Helper()
	j := &job{Config: c.config, Do: do}
	switch do {
	case "next", "full", "asleep", "gated":
		j = c.backUp(5000)
	case "remove", "pin", "read":
		j.IDs, j.Pin = []string{c.ids[2000]}, "forever"
	case "maintain", "maintain after another":
		j.Do, j.Mode, j.Exclusive = "maintain", FullMaintenance, true
	case "maintain with others":
		j.Do, j.Mode = "maintain", FullMaintenance
	case "quick":
		j.Do, j.Mode = "maintain", QuickMaintenance
	}
	switch do {
	case "full":
		j.Parent = ParentNone
	case "asleep":
		j.Slept, j.Every = engine.LeaseRenewal+time.Minute, 20*time.Millisecond
	case "gated":
		j.Gate, j.Every = 64*mib, 20*time.Millisecond
	}
	if strings.HasSuffix(do, " after another") {
		dead := c.backUp(5000)
		dead.Failpoint, dead.Pass = "session stored", 1
		if o := dead.run(t, c.site, 0); !o.Killed {
			t.Fatalf("%+v", o)
		}
		c.site.move(engine.SessionLife + time.Minute)
	}
	return j
}

// does runs j, and notes what must exist afterwards.
func (c *crashed) does(tb testing.TB, r *Repository, j *job) {
	tb.Helper()
	refresh(tb, r)
	if o := j.do(tb.Context(), r); o.Error != "" {
		tb.Fatal(o.Error)
	}
	c.done(j)
	refresh(tb, r)
	c.check(tb, r)
}

// done notes what j has done.
func (c *crashed) done(j *job) {
	switch j.Do {
	case "backUp":
		c.held[j.Time.Unix()] = j.Disks[0].disk
	case "remove":
		maps.DeleteFunc(c.ids, func(_ int64, id string) bool { return id == j.IDs[0] })
		maps.DeleteFunc(c.held, func(second int64, _ *sparse) bool { return c.ids[second] == "" })
	case "pin":
		for second, id := range c.ids {
			if id == j.IDs[0] {
				c.pins[second]++
			}
		}
	}
}

// settle finds out whether j, which may have died, was done.
func (c *crashed) settle(t *testing.T, r *Repository, j *job) {
	t.Helper()
	points, err := r.List(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	at := j.Time.Unix()
	for second, id := range c.ids {
		if len(j.IDs) > 0 && id == j.IDs[0] {
			at = second
		}
	}
	i := slices.IndexFunc(points, func(p *RestorePoint) bool { return p.Time.Unix() == at })
	switch {
	case j.Do == "backUp" && i >= 0, j.Do == "remove" && i < 0, j.Do == "pin" && i >= 0 && points[i].Pinned():
		c.done(j)
	}
}

// check compares what exists with what must exist, and notes the IDs.
func (c *crashed) check(tb testing.TB, r *Repository) {
	tb.Helper()
	points, err := r.List(tb.Context(), nil)
	if err != nil {
		tb.Fatal(err)
	}
	clear(c.ids)
	compared := compare(r, rand.New(rand.NewPCG(1, 1)))
	for _, p := range points {
		second := p.Time.Unix()
		c.ids[second] = p.ID
		want := c.held[second]
		if want == nil || len(p.Disks) != 1 || len(p.Pins) != c.pins[second] {
			verdict.Fatalf(tb, "restore point %d should be there: %t; pins %v, want %d", second, want != nil, p.Pins, c.pins[second])
		}
		if err := compared.whole(tb.Context(), p.Disks[0], want, true); err != nil {
			tb.Fatalf("restore point %d: %v", second, err)
		}
		sameDefinition(tb, r, p, testDefinition)
	}
	if len(points) != len(c.held) {
		verdict.Fatalf(tb, "%d restore points, want those of %v", len(points), slices.Sorted(maps.Keys(c.held)))
	}
}

// recovers checks what a process left that died doing j (exactly, if d is given), and that everything goes on from there.
func (c *crashed) recovers(t *testing.T, j *job, d *death) {
	t.Helper()
	r := c.open(t)
	switch {
	case d == nil:
		c.settle(t, r, j)
	case d.done:
		c.done(j)
	}
	c.site.move(j.Slept)
	c.check(t, r)
	if n := leases(t, r); d != nil && (n == 1) != d.lease {
		t.Errorf("%d leases are left", n)
	}

	c.write(6000)
	next := c.backUp(30_000)
	o := next.do(t.Context(), r)
	refused := o.Conflict // Exclusive maintenance has died.
	if refused {
		c.site.move(engine.LockLife + time.Second)
		o = next.do(t.Context(), r)
	}
	if o.Error != "" {
		t.Fatalf("the next backup: %s", o.Error)
	}
	if p, err := r.Get(t.Context(), o.ID); err != nil || p.Disks[0].FullReason != "" {
		t.Errorf("the next backup: %+v, %v", p, err)
	}
	c.done(next)
	c.check(t, r)

	c.site.move(engine.LockContest + time.Second) // so that nobody waits for the dead to withdraw
	quick := &job{Do: "maintain", Mode: QuickMaintenance}
	o = quick.do(t.Context(), r)
	if (o.Error != "" && !o.Conflict) || (d != nil && (o.Conflict || refused) != d.lock) {
		t.Errorf("the next maintenance: %+v", o)
	}
	if o.Conflict {
		c.site.move(engine.LockLife)
		c.does(t, r, quick)
	}

	c.site.move(engine.SessionLife)
	for range 2 { // The first run rewrites packs that are not full. The second finds their old contents to be garbage.
		c.site.move(time.Minute)
		c.does(t, r, &job{Do: "maintain", Mode: FullMaintenance, Exclusive: true})
	}
	if n := leases(t, r); n > 0 {
		t.Errorf("%d leases are left for ever", n)
	}
	noGarbage(t, r)
}

// leases counts leases and session manifests.
func leases(tb testing.TB, r *Repository) int {
	tb.Helper()
	return len(leaseIDs(tb, r))
}

func leaseIDs(tb testing.TB, r *Repository) (out []manifest.ID) {
	tb.Helper()
	ids, err := snapshot.ListSnapshotManifests(tb.Context(), r.conn.Kopia, nil, nil)
	if err != nil {
		tb.Fatal(err)
	}
	for _, id := range ids {
		m, err := snapshot.LoadSnapshot(tb.Context(), r.conn.Kopia, id)
		if err != nil {
			tb.Fatal(err)
		}
		if engine.LifeOf(m) > 0 {
			out = append(out, id)
		}
	}
	return out
}

// indexed returns how many bytes of packs the index has.
func indexed(tb testing.TB, r *Repository) (n int64) {
	tb.Helper()
	err := r.conn.Kopia.ContentReader().IterateContents(tb.Context(), content.IterateOptions{}, func(info content.Info) error {
		n += int64(info.PackedLength)
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

// noGarbage checks that there is no content that nobody refers to, no pack that the index does not know, and no session.
func noGarbage(tb testing.TB, r *Repository) {
	tb.Helper()
	left, err := unreferenced(tb.Context(), r)
	if err != nil || len(left) > 0 {
		tb.Errorf("%d contents that nobody refers to are left: %v, %v", len(left), left[:min(5, len(left))], err)
	}
	packs := map[blob.ID]bool{}
	err = r.conn.Kopia.ContentReader().IterateContents(tb.Context(), content.IterateOptions{IncludeDeleted: true}, func(info content.Info) error {
		packs[info.PackBlobID] = true
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	err = r.conn.Kopia.BlobReader().ListBlobs(tb.Context(), "", func(b blob.Metadata) error {
		if strings.ContainsRune("pqs", rune(b.BlobID[0])) && !packs[b.BlobID] {
			tb.Errorf("blob %s of %d bytes is left", b.BlobID, b.Length)
		}
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
}
