package repository

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/test/verdict"
)

// Two machines back up virtual machines whose disks change in every way. They prune, pin and maintain; some of that is killed;
// days pass. Whatever the order: exactly the restore points that were completed exist, and each holds what the disks held.
func TestGenerations(t *testing.T) {
	t.Parallel()
	few := int64(25)
	if soak {
		few = 200
	}
	count := setting(t, "VARVE_TEST_GENERATIONS", few)
	seed := setting(t, "VARVE_TEST_SEED", time.Now().UnixNano())
	t.Logf("again: VARVE_TEST_GENERATIONS=%d VARVE_TEST_SEED=%d", count, seed)
	m := newGenerations(t, uint64(seed))
	for m.made < count {
		m.step()
	}
	m.end()
	t.Logf("%d generations of %d attempts; %s", m.made, m.attempt, m.counts())
}

// generations is a repository, with everything that should be in it.
type generations struct {
	t      *testing.T
	random *rand.Rand
	site   *site
	// machines are those that use the repository. The last one is an observer that only reads.
	machines []*machine
	vms      []*vm
	// large has disks of up to 2 TiB and few restore points, because for each of them every full maintenance walks over all of
	// its tables.
	large *vm
	// held is what the disks of each restore point held, by its time.
	held    map[int64]*moment
	digests map[digested]string
	// attempt counts the backups that were tried, and made those that became restore points.
	attempt, made int64
	// locked is the time until which killed maintenance keeps others out.
	locked time.Time
	// running is the time until which a killed backup keeps exclusive maintenance out.
	running time.Time
	did     map[string]int
}

// digested is what a digest depends on.
type digested struct {
	block   int64
	content string
}

// machine is a connection. It is stale if others have changed something since it last looked. After exclusive maintenance it must
// look.
type machine struct {
	name, config string
	r            *Repository
	stale, must  bool
}

// vm is a history.
type vm struct {
	source Source
	disks  []*vmDisk
	disk   int
	large  bool
}

// vmDisk is a disk as it is now, and as it was whenever its tracking started again.
type vmDisk struct {
	name, identity string
	now            *sparse
	since          []tracked
}

// tracked is a point in time of a disk's own change tracking.
type tracked struct {
	name string
	disk *sparse
}

// moment is a restore point that should exist.
type moment struct {
	source Source
	large  bool
	disks  map[string]*sparse
	point  *RestorePoint
	pins   map[string]bool
}

func newGenerations(t *testing.T, seed uint64) *generations {
	t.Helper()
	m := &generations{
		t: t, random: rand.New(rand.NewPCG(seed, 1)), site: newSite(t), held: map[int64]*moment{}, digests: map[digested]string{}, did: map[string]int{},
	}
	for i := range 3 {
		name := fmt.Sprintf("machine%d", i)
		m.machines = append(m.machines, &machine{name: name, config: m.site.connect(t, name, i == 1)}) // Machines without a cache read directly.
	}
	for i := range 2 {
		v := &vm{source: Source{Host: "host", User: "varve", Path: fmt.Sprintf("/vm-%d", i)}}
		v.add(m)
		m.vms = append(m.vms, v)
	}
	if soak {
		m.large = &vm{source: Source{Host: "host", User: "varve", Path: "/vm-large"}, large: true}
		m.large.add(m)
		m.large.disks[0].now.resize(2 * tib)
	}
	t.Cleanup(func() {
		for _, x := range m.machines {
			x.close(t)
		}
	})
	return m
}

func (m *generations) ctx() context.Context { return m.t.Context() }

func (x *machine) close(tb testing.TB) {
	tb.Helper()
	if x.r == nil {
		return
	}
	if err := x.r.Close(context.WithoutCancel(tb.Context())); err != nil {
		tb.Error(err)
	}
	x.r = nil
}

// chance is true once in n times.
func (m *generations) chance(n int) bool { return m.random.IntN(n) == 0 }

// note counts and logs what is done.
func (m *generations) note(what, format string, args ...any) {
	m.did[what]++
	m.t.Logf("%3d %s %s", m.attempt, what, fmt.Sprintf(format, args...))
}

func (m *generations) counts() (out string) {
	for _, what := range slices.Sorted(maps.Keys(m.did)) {
		out += fmt.Sprintf("%s %d, ", what, m.did[what])
	}
	return out
}

// on picks a machine that knows what the others did. If stale is allowed, its view may be as old as it happens to be.
func (m *generations) on(stale bool) *machine {
	x := m.machines[m.random.IntN(2)]
	switch {
	case x.r == nil || m.chance(8):
		m.reopen(x)
	case stale && m.chance(2) && !x.must:
	case x.stale:
		m.refresh(x)
	}
	return x
}

func (m *generations) reopen(x *machine) {
	x.close(m.t)
	if m.chance(4) { // another machine takes its place
		if err := os.RemoveAll(filepath.Join(m.site.dir, x.name+".cache")); err != nil {
			m.t.Fatal(err)
		}
	}
	r, err := m.site.open(m.ctx(), x.config)
	if err != nil {
		m.t.Fatal(err)
	}
	x.r, x.stale, x.must = r, false, false
}

func (m *generations) refresh(x *machine) {
	if err := x.r.conn.Kopia.Refresh(m.ctx()); err != nil {
		m.t.Fatal(err)
	}
	x.stale, x.must = false, false
}

// changedBy makes the views of all machines but x stale.
func (m *generations) changedBy(x *machine) {
	for _, o := range m.machines {
		o.stale = o.stale || o != x
	}
}

// step makes a backup, and lets other things happen around it.
func (m *generations) step() {
	v := m.vms[m.random.IntN(len(m.vms))]
	if m.large != nil && (m.attempt == 0 || m.chance(10)) {
		v = m.large
	}
	v.change(m)
	m.backUp(v)
	for range m.random.IntN(3) {
		switch m.random.IntN(6) {
		case 0, 1:
			m.pass()
		case 2:
			m.pin()
		case 3:
			m.remove(m.times()...)
		default:
			m.maintain()
		}
	}
	if len(m.held) > 10 {
		m.remove(m.times()...)
	}
	if large := slices.DeleteFunc(m.times(), func(at int64) bool { return !m.held[at].large }); len(large) > 1 || m.chance(4) {
		m.remove(large...)
	}
}

// times returns those of the restore points that should exist.
func (m *generations) times() []int64 { return slices.Sorted(maps.Keys(m.held)) }

// pass lets time pass.
func (m *generations) pass() {
	d := []time.Duration{time.Minute, 20 * time.Minute, 5 * time.Hour, 25 * time.Hour, 80 * time.Hour}[m.random.IntN(5)]
	m.note("pass", "%s", d)
	m.site.move(d)
}

// perform does a job on x, or in a child that may be killed.
func (m *generations) perform(x *machine, j *job) outcome {
	j.Config = x.config
	var o outcome
	if m.chance(4) {
		var after time.Duration
		if m.chance(2) {
			j.Dies = 1 + m.random.Int64N(14)
		} else {
			after = time.Millisecond + time.Duration(m.random.Int64N(int64(400*time.Millisecond)))
			j.Slow = time.Duration(m.random.Int64N(int64(10 * time.Millisecond)))
		}
		o = j.run(m.t, m.site, after)
		m.changedBy(nil)
	} else {
		o = j.do(m.ctx(), x.r)
		m.changedBy(x)
	}
	if o.Killed {
		m.note(j.Do+" killed", "on %s", x.name)
		if j.Do == "backUp" {
			m.running = m.site.now().Add(engine.SessionLive)
		}
	}
	return o
}

// remove deletes some of these restore points, except those that somebody has pinned.
func (m *generations) remove(times ...int64) {
	times = slices.DeleteFunc(slices.Clone(times), func(at int64) bool { return len(m.pins(at)) > 0 })
	if len(times) == 0 {
		return
	}
	m.random.Shuffle(len(times), func(i, j int) { times[i], times[j] = times[j], times[i] })
	times = times[:min(len(times), 1+m.random.IntN(3))]
	j := &job{Do: "remove"}
	for _, at := range times {
		j.IDs = append(j.IDs, m.held[at].point.ID)
	}
	m.note("remove", "%v", times)
	o := m.perform(m.on(false), j)
	if o.Error != "" {
		m.t.Fatal(o.Error)
	}
	if o.Killed && m.list()[times[0]] != nil {
		m.check(false)
		return // then none is gone
	}
	for _, at := range times {
		delete(m.held, at)
	}
	m.check(false)
}

// pin adds a pin to a restore point, or takes it away.
func (m *generations) pin() {
	times := m.times()
	if len(times) == 0 {
		return
	}
	at := times[m.random.IntN(len(times))]
	h := m.held[at]
	name := fmt.Sprint("pin-", m.random.IntN(2))
	j := &job{Do: "pin", IDs: []string{h.point.ID}, Pin: name, Unpin: h.pins[name]}
	m.note("pin", "%d %s: %t", at, name, !j.Unpin)
	o := m.perform(m.on(false), j)
	if o.Error != "" {
		m.t.Fatal(o.Error)
	}
	now := m.list()[at]
	if now == nil {
		verdict.Fatalf(m.t, "restore point %d is gone", at)
		return
	}
	if done := slices.Contains(now.Pins, name) != j.Unpin; !done && !o.Killed {
		verdict.Fatalf(m.t, "restore point %d has pins %v", at, now.Pins)
	} else if done {
		h.pins[name] = !j.Unpin
	}
	m.check(false)
}

// maintain runs maintenance of any kind. Afterwards everything that is left is compared.
func (m *generations) maintain() {
	j := &job{Do: "maintain", Mode: FullMaintenance, Exclusive: m.chance(2)}
	if m.chance(3) {
		j.Mode = QuickMaintenance
	}
	m.note("maintain", "%s, exclusive: %t", j.Mode, j.Exclusive)
	m.site.move(time.Minute) // kopia knows times to the second, and never gives a content the same one twice
	x := m.on(!j.Exclusive)
	o := m.perform(x, j)
	locked := m.site.now().Before(m.locked)
	switch {
	case o.Conflict && j.Exclusive && m.site.now().Before(m.running):
		m.note("running", "")
		m.site.move(engine.SessionLive)
	case o.Conflict && locked:
		m.note("locked", "")
		m.site.move(engine.LockLife)
	case o.Error != "":
		m.t.Fatalf("%s (locked: %t)", o.Error, locked)
	case o.Killed:
		m.locked = m.site.now().Add(engine.LockLife + time.Second)
		m.site.move(engine.LockContest + time.Second) // so that nobody waits for the dead to withdraw
	default:
		if j.Exclusive && j.Mode == FullMaintenance {
			m.noGarbage()
		}
	}
	if j.Exclusive {
		for _, o := range m.machines {
			o.stale, o.must = true, true
		}
	}
	m.check(true)
}

// noGarbage checks that there is nothing that nobody refers to.
func (m *generations) noGarbage() {
	m.t.Helper()
	x := m.observer()
	left, err := unreferenced(m.ctx(), x.r)
	if err != nil {
		m.t.Fatal(err)
	}
	if len(left) > 0 {
		m.t.Fatalf("maintenance has left %d contents that nobody refers to: %v", len(left), left[:min(5, len(left))])
	}
}

func (m *generations) observer() *machine {
	x := m.machines[2]
	if x.r == nil || m.chance(20) {
		m.reopen(x)
	} else {
		m.refresh(x)
	}
	return x
}

// list returns the restore points that exist, by their time.
func (m *generations) list() map[int64]*RestorePoint {
	m.t.Helper()
	points, err := m.observer().r.List(m.ctx(), nil)
	if err != nil {
		m.t.Fatal(err)
	}
	out := map[int64]*RestorePoint{}
	for _, p := range points {
		out[p.Time.Unix()] = p
	}
	if len(out) != len(points) {
		verdict.Fatalf(m.t, "%d restore points of %d moments", len(points), len(out))
	}
	return out
}

// check compares what exists with what should exist: the list, and one restore point, or each. A single one is also restored and
// compared.
func (m *generations) check(each bool) {
	m.t.Helper()
	points := m.list()
	times := m.times()
	if got := slices.Sorted(maps.Keys(points)); !slices.Equal(got, times) {
		verdict.Fatalf(m.t, "restore points %v, want %v", got, times)
	}
	if len(times) == 0 {
		return
	}
	whole := times[m.random.IntN(len(times))]
	c := compare(m.machines[2].r, m.random)
	for _, at := range times {
		p := points[at]
		m.held[at].point = p
		if p.Source != m.held[at].source || len(p.Disks) != len(m.held[at].disks) || len(p.Pins) != len(m.pins(at)) {
			verdict.Fatalf(m.t, "restore point %d is %+v", at, p)
		}
		if each || at == whole {
			m.same(c, at, at == whole)
		}
	}
}

func (m *generations) pins(at int64) (out []string) {
	for name, there := range m.held[at].pins {
		if there {
			out = append(out, name)
		}
	}
	return out
}

// same compares a restore point with what was held then.
func (m *generations) same(c *comparison, at int64, whole bool) {
	m.t.Helper()
	sameDefinition(m.t, c.r, m.held[at].point, testDefinition)
	for _, d := range m.held[at].point.Disks {
		want := m.held[at].disks[d.Name]
		if want == nil {
			verdict.Fatalf(m.t, "restore point %d has a disk %s", at, d.Name)
		}
		// A table of 2 TiB in blocks of 256 KiB has 32768 regions, too many for each time.
		restore := d.Bytes/d.BlockBytes < 100_000 || m.chance(8)
		var err error
		if whole {
			err = c.whole(m.ctx(), d, want, restore)
		} else {
			err = c.blocks(m.ctx(), d, want)
		}
		if err != nil {
			m.t.Fatalf("restore point %d, %s of %d bytes in blocks of %d, parent %q, full: %q: %v", at, d.Name, d.Bytes, d.BlockBytes, d.Parent, d.FullReason, err)
		}
	}
}

// end removes all restore points but one, and then that one.
func (m *generations) end() {
	for len(m.held) == 0 {
		m.backUp(m.vms[0])
	}
	m.check(true)
	m.site.move(engine.SessionLife + time.Hour)
	times := m.times()
	last := times[m.random.IntN(len(times))]
	for _, keep := range []int{1, 0} {
		j := &job{Do: "remove"}
		for at, h := range m.held {
			if keep == 0 || at != last {
				for _, pin := range m.pins(at) {
					if o := (&job{Do: "pin", IDs: []string{h.point.ID}, Pin: pin, Unpin: true}).do(m.ctx(), m.on(false).r); o.Error != "" {
						m.t.Fatal(o.Error)
					}
					m.changedBy(nil)
				}
				j.IDs = append(j.IDs, h.point.ID)
				delete(m.held, at)
			}
		}
		// The first run rewrites packs that are not full. The second finds their old contents to be garbage.
		free := &job{Do: "maintain", Mode: FullMaintenance, Exclusive: true}
		for _, j := range []*job{j, free, free} {
			m.site.move(time.Minute)
			if o := j.do(m.ctx(), m.on(false).r); o.Error != "" {
				m.t.Fatal(o.Error)
			}
			m.changedBy(nil)
		}
		m.noGarbage()
		m.check(true)
	}
	blobs, err := m.observer().r.Stored(m.ctx())
	if err != nil {
		m.t.Fatal(err)
	}
	for _, b := range blobs {
		if b.Kind == DataBlobs && b.Blobs > 0 {
			m.t.Errorf("%d blobs of data, %d bytes, are left of nothing", b.Blobs, b.Bytes)
		}
	}
}
