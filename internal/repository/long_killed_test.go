package repository

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"time"

	"github.com/kopia/kopia/snapshot"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/test/verdict"
)

// opens connects to the repository, as a process on this machine.
func (m *longModel) opens(machine string) *Repository {
	m.t.Helper()
	r, err := m.site.open(m.t.Context(), filepath.Join(m.site.dir, machine+".config"))
	if err != nil {
		m.t.Fatal(err)
	}
	return r
}

func (m *longModel) closes(r *Repository) {
	m.t.Helper()
	if err := r.Close(context.WithoutCancel(m.t.Context())); err != nil && !errors.Is(err, errKilled) {
		m.t.Error(err)
	}
}

// restart replaces a killed process by a new one, on the same machine or another one.
func (m *longModel) restart(r **Repository, machine *string, machines ...string) {
	m.t.Helper()
	m.closes(*r)
	if m.chance(2) {
		*machine = machines[m.random.IntN(len(machines))]
	}
	*r = m.opens(*machine)
}

// end prepares how a backup ends early, if it does. It returns the function that does so in the middle of it, or nil.
func (m *longModel) end(q *Request, mayEnd bool, cancel func()) func() {
	switch {
	case !mayEnd || !m.chance(2):
		return nil
	case m.chance(3):
		return func() {
			m.did["interrupted"]++
			cancel()
		}
	}
	p := m.process(m.mover)
	p.killed = cancel // Time stops.
	changes, last := 1+m.random.IntN(8), m.chance(2)
	dies := once(func() { p.dies(changes, last) })
	switch m.random.IntN(5) {
	case 0:
		dies()
	case 1:
		q.settled = dies
	case 2:
		changes = 1 + m.random.IntN(3)
		q.flushing = dies
	case 3:
		return p.kill
	case 4:
		return dies
	}
	return nil
}

// told compares what a backup has reported with what exists.
func (m *longModel) told(id string, err error) (there bool) {
	m.t.Helper()
	r := m.opens("reader")
	defer m.closes(r)
	points, listed := r.List(m.t.Context(), nil)
	if listed != nil {
		m.t.Fatal(listed)
	}
	there = slices.ContainsFunc(points, func(p *RestorePoint) bool { return p.ID == id })
	if there != (err == nil) && !errors.Is(err, errclass.Unknown) {
		m.t.Errorf("the backup has said %v, and its restore point is there: %t", err, there)
	}
	return there
}

// look reads back everything that should exist, and checks that nothing else does.
func (m *longModel) look() {
	m.t.Helper()
	r := m.opens("reader")
	defer m.closes(r)
	points, err := r.List(m.t.Context(), nil)
	if err != nil {
		m.t.Fatal(err)
	}
	if len(points) != len(m.points) {
		verdict.Fatalf(m.t, "%d restore points, want %d", len(points), len(m.points))
	}
	for _, p := range points {
		if m.held[p.ID] == nil {
			verdict.Fatalf(m.t, "restore point %s is there", p.ID)
		}
		for i, data := range m.held[p.ID] {
			one := *p
			one.Disks = p.Disks[i : i+1]
			same(m.t, r, &one, data)
		}
	}
}

// killed does what others do, in a process that may be killed while it does.
func (m *longModel) killed(what string, do func() error) (killed bool, err error) {
	m.t.Helper()
	p := m.process(m.maintainer)
	if m.deaths > 0 && m.chance(6) {
		m.deaths--
		p.dies(1+m.random.IntN(25), m.chance(2))
	}
	if err := m.others.conn.Kopia.Refresh(m.t.Context()); err != nil {
		m.t.Fatal(err)
	}
	err = do()
	if killed = p.wasKilled(); killed {
		m.did[what+" killed"]++
		m.restart(&m.others, &m.maintainer, "maintainer", "second maintainer")
	}
	return killed, err
}

// maintains runs maintenance by Varve.
func (m *longModel) maintains(what string) {
	m.t.Helper()
	o := MaintenanceOptions{Mode: FullMaintenance, Exclusive: what == "exclusive"}
	if what == "quick" {
		o.Mode = QuickMaintenance
	}
	locked := m.now().Before(m.locked)
	killed, err := m.killed(what, func() error { return m.others.Maintain(m.t.Context(), o) })
	switch {
	case killed:
		m.locked = m.now().Add(engine.LockLife + time.Minute)
		if o.Exclusive {
			m.exclusive = m.locked
		}
		m.move(engine.LockContest + time.Second) // so that nobody waits for the dead to withdraw
		m.look()
	case errors.Is(err, errclass.Conflict) && locked:
		m.did["locked"]++
	case errors.Is(err, errclass.Conflict) && o.Exclusive && (m.running || m.now().Sub(m.dead) < engine.SessionLive):
		m.did["exclusive refused"]++
	case err != nil:
		m.t.Errorf("%s: %v", what, err)
	}
}

// deletes removes a restore point, in one attempt or two.
func (m *longModel) deletes() {
	m.t.Helper()
	if len(m.points) == 0 {
		return
	}
	i := m.random.IntN(len(m.points))
	id := m.points[i].ID
	remove := func() error { return m.others.Delete(m.t.Context(), id) }
	killed, err := m.killed("delete", remove)
	gone := err == nil
	if killed {
		if !gone && m.chance(2) {
			err = remove()
			if gone = err == nil || errors.Is(err, errclass.NotFound); !gone {
				m.t.Errorf("delete again: %v", err)
			}
		}
		if _, err := m.others.Get(m.t.Context(), id); gone != errors.Is(err, errclass.NotFound) && gone {
			m.t.Errorf("it is there although it was deleted: %v", err)
		} else if errors.Is(err, errclass.NotFound) {
			gone = true
		}
	} else if err != nil {
		m.t.Errorf("delete: %v", err)
	}
	if gone {
		delete(m.held, id)
		m.points = slices.Delete(slices.Clone(m.points), i, i+1)
	}
	if killed {
		m.look()
	}
}

// blockPlace is where a block is.
type blockPlace struct {
	disk   int
	offset int64
}

// readings are the blocks that a backup has read, in order.
type readings struct {
	*longModel
	began time.Time
	// uploaded is how much the machine had uploaded before. missing is how much neither a session manifest nor a restore point
	// has named.
	uploaded, missing int64
	// slept says that nobody knows what still existed when a session manifest was stored.
	slept bool
	read  []timedRead
}

type timedRead struct {
	blockPlace
	at time.Time
}

// countedReader reads a disk.
type countedReader struct {
	Reader
	all  *readings
	disk int
}

func (r *countedReader) ReadAt(ctx context.Context, p []byte, offset int64) error {
	b := timedRead{blockPlace{r.disk, offset}, r.all.now()}
	if at, ok := r.all.named[b.blockPlace]; !ok || b.at.Sub(at) > engine.SessionLife-time.Hour {
		r.all.missing += int64(len(p))
	}
	r.all.read = append(r.all.read, b)
	return r.Reader.ReadAt(ctx, p, offset)
}

// reuploaded is how much of what was named may be uploaded again: tables, and what surrounds blocks.
const reuploaded = 2 * mib

// sleeps notes that days may pass. What the backup has found and not named yet may lose what kept it, be marked as garbage, and
// be uploaded again.
func (r *readings) sleeps(id string) {
	r.t.Helper()
	r.slept = true
	named := r.lastNamed(id)
	for _, b := range r.read {
		if !b.at.Before(named) {
			r.missing += DefaultBlockBytes
		}
	}
}

// ended checks how much was uploaded, and notes what can be found again.
func (r *readings) ended(id string) {
	r.t.Helper()
	if n := r.process(r.mover).uploaded() - r.uploaded; n > r.missing+reuploaded {
		r.t.Errorf("%d bytes were uploaded, of which %d were not in the repository", n, r.missing)
	}
	if r.slept {
		return
	}
	named := r.lastNamed(id)
	for _, b := range r.read {
		d := r.disks[b.disk]
		// What a restore point had may have been marked as garbage when it was found.
		fresh := r.made == 0 || d.changed.Overlaps(extent.Extent{Offset: b.offset, Length: DefaultBlockBytes})
		if fresh && b.at.Before(named) {
			r.named[b.blockPlace] = named
		}
	}
}

// lastNamed returns when the session last stored its manifest.
func (r *readings) lastNamed(id string) (at time.Time) {
	r.t.Helper()
	reader := r.opens("reader")
	defer r.closes(reader)
	ids, err := snapshot.ListSnapshotManifests(r.t.Context(), reader.conn.Kopia, nil, map[string]string{engine.TagSession: id})
	if err != nil {
		r.t.Fatal(err)
	}
	for _, id := range ids {
		m, err := snapshot.LoadSnapshot(r.t.Context(), reader.conn.Kopia, id)
		if err != nil {
			r.t.Fatal(err)
		}
		if t := m.EndTime.ToTime(); t.After(at) && t.After(r.began) {
			at = t
		}
	}
	return at
}
