package repository

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/kopia/kopia/repo/blob"
	"pgregory.net/rapid"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/test/verdict"
)

// heldPoint is a restore point with what its disks held.
type heldPoint struct {
	*RestorePoint
	data map[string][]byte
}

func (p *heldPoint) disk(name string) *Disk {
	d, _ := p.Disk(name)
	return d
}

// modelCopy is a repository that somebody has set aside.
type modelCopy struct {
	repository int
	blobs      map[blob.ID]memoryBlob
	// points are in the order of their time.
	points []*heldPoint
}

// modelPlace is where a repository is, with the machines that are connected to it.
type modelPlace struct {
	*site
	modelCopy
	connections map[string]*modelConnection
}

// modelConnection is a machine's connection, and which repository it has opened; r is nil if it is closed.
type modelConnection struct {
	r          *Repository
	repository int
}

// modelWorld is shared by consecutive histories, because making it takes longer than running them.
type modelWorld struct {
	places []*modelPlace
	// empty holds repositories as they were created: one for each place, and one more.
	empty []modelCopy
	// did counts what happened in the histories.
	did map[string]int
}

func newModelWorld(t *testing.T, places int) *modelWorld {
	t.Helper()
	w := &modelWorld{did: map[string]int{}}
	for i := range places + 1 {
		p := &modelPlace{site: newMemorySite(t), connections: map[string]*modelConnection{}}
		p.replaced = true
		w.empty = append(w.empty, modelCopy{repository: i, blobs: p.memory.now()})
		if i == places {
			break
		}
		for _, machine := range []string{"cached", "uncached", "reader"} {
			p.connect(t, machine, machine == "cached")
		}
		w.places = append(w.places, p)
	}
	return w
}

// become replaces the repository in this place.
func (p *modelPlace) become(c modelCopy) {
	p.memory.become(c.blobs)
	p.modelCopy = modelCopy{repository: c.repository, points: slices.Clone(c.points)}
}

// latest returns the latest restore point of a source that has a disk, or nil.
func (p *modelPlace) latest(source Source, disk string) (found *heldPoint) {
	for _, h := range p.points {
		if h.Source == source && h.disk(disk) != nil {
			found = h
		}
	}
	return found
}

// end closes all connections.
func (m *bitmapModel) end() {
	for _, p := range m.places {
		for _, c := range p.connections {
			c.close()
		}
	}
}

func (c *modelConnection) close() {
	if c.r != nil {
		_ = c.r.Close(context.Background()) // It may have been killed, and its repository may have been replaced.
		c.r = nil
	}
}

func (m *bitmapModel) place(rt *rapid.T) *modelPlace {
	return m.places[rapid.IntRange(0, len(m.places)-1).Draw(rt, "place")]
}

// opened returns a machine's connection to the repository, opened now or long ago.
func (m *bitmapModel) opened(rt *rapid.T, p *modelPlace, machine string) *modelConnection {
	c := p.connections[machine]
	if c == nil {
		c = &modelConnection{}
		p.connections[machine] = c
	}
	if c.r != nil && rapid.Bool().Draw(rt, "open again") {
		c.close()
	}
	if c.r == nil {
		r, err := p.open(context.Background(), filepath.Join(p.dir, machine+".config"))
		if err != nil {
			rt.Fatal(err)
		}
		c.r, c.repository = r, p.repository
	}
	return c
}

// current returns a connection to the repository that is there now.
func (m *bitmapModel) current(rt *rapid.T, p *modelPlace) *Repository {
	c := m.opened(rt, p, "uncached")
	if c.repository != p.repository {
		c.close()
		c = m.opened(rt, p, "uncached")
	}
	return c.r
}

func (m *bitmapModel) delete(rt *rapid.T) {
	at := m.place(rt)
	if len(at.points) == 0 {
		return
	}
	i := rapid.IntRange(0, len(at.points)-1).Draw(rt, "restore point")
	if err := m.current(rt, at).Delete(context.Background(), at.points[i].ID); err != nil {
		rt.Fatal(err)
	}
	at.points = slices.Delete(slices.Clone(at.points), i, i+1)
}

// maintain frees what deleted restore points had, once killed backups have been forgotten.
func (m *bitmapModel) maintain(rt *rapid.T) {
	at := m.place(rt)
	for _, p := range m.places { // All places move, so that the sessions of a copy are not in the future elsewhere.
		p.move(engine.SessionLife + engine.LockLife)
	}
	if err := m.current(rt, at).Maintain(context.Background(), MaintenanceOptions{Mode: FullMaintenance, Exclusive: true}); err != nil {
		rt.Fatal(err)
	}
	m.did["maintained"]++
}

func (m *bitmapModel) keepCopy(rt *rapid.T) {
	at := m.place(rt)
	if len(m.copies) > 1 {
		m.copies = slices.Clone(m.copies[1:])
	}
	m.copies = append(m.copies, at.copied())
}

func (p *modelPlace) copied() modelCopy {
	return modelCopy{repository: p.repository, blobs: p.memory.now(), points: slices.Clone(p.points)}
}

// replaceRepository replaces a repository by an older copy, a copy of another place's, or a new one.
func (m *bitmapModel) replaceRepository(rt *rapid.T) {
	to := m.place(rt)
	what := rapid.SampledFrom([]string{"an older copy", "an older copy", "a copy", "a new one"}).Draw(rt, "by")
	var by modelCopy
	switch {
	case what == "an older copy" && len(m.copies) > 0:
		by = m.copies[rapid.IntRange(0, len(m.copies)-1).Draw(rt, "copy")]
	case what != "a new one":
		what = "a copy"
		by = m.place(rt).copied()
	default:
		by = m.empty[rapid.IntRange(0, len(m.empty)-1).Draw(rt, "repository")]
	}
	to.become(by)
	m.did[what]++
}

// look reads back everything that should exist, and checks that nothing else does, except perhaps what maybe asked for.
func (m *bitmapModel) look(rt *rapid.T, at *modelPlace, maybe *Request) (found *RestorePoint) {
	r, err := at.open(context.Background(), filepath.Join(at.dir, "reader.config"))
	if err != nil {
		rt.Fatal(err)
	}
	defer r.Close(context.Background())
	points, err := r.List(context.Background(), nil)
	if err != nil {
		rt.Fatal(err)
	}
	known := 0
	for _, p := range points {
		i := slices.IndexFunc(at.points, func(h *heldPoint) bool { return h.ID == p.ID })
		switch {
		case i >= 0:
			known++
			if maybe == nil {
				m.compare(rt, r, p, at.points[i].data)
			}
		case found == nil && maybe != nil && maybe.Time.Equal(p.Time):
			found = p
			m.compare(rt, r, p, m.held(maybe))
		default:
			verdict.Fatalf(rt, "restore point %s of %s is there", p.ID, p.Time)
		}
	}
	if known != len(at.points) {
		verdict.Fatalf(rt, "%d of %d restore points are there", known, len(at.points))
	}
	return found
}

// held returns what the disks of a request hold.
func (m *bitmapModel) held(q *Request) map[string][]byte {
	out := map[string][]byte{}
	for _, d := range q.Disks {
		out[d.Name] = bytes.Clone(m.disks[d.Name].data)
	}
	return out
}

func (m *bitmapModel) compare(rt *rapid.T, r *Repository, p *RestorePoint, want map[string][]byte) {
	for _, d := range p.Disks {
		image, err := r.Image(context.Background(), d)
		if err != nil {
			rt.Fatal(err)
		}
		got := make([]byte, d.Bytes)
		if err := image.ReadAt(context.Background(), got, 0); err != nil {
			rt.Fatal(err)
		}
		if !bytes.Equal(got, want[d.Name]) {
			verdict.Fatalf(rt, "disk %s of restore point %s of %s differs (full: %q, parent %q, base %q)", d.Name, p.ID, p.Source, d.FullReason, d.Parent, d.Base)
		}
	}
}

// backUp makes a restore point, or tries to.
func (m *bitmapModel) backUp(rt *rapid.T) {
	if rapid.IntRange(0, 3).Draw(rt, "unchanged") > 0 {
		m.write(rt)
	}
	at := m.place(rt)
	c := m.opened(rt, at, rapid.SampledFrom([]string{"cached", "uncached"}).Draw(rt, "machine"))
	q := m.request(rt, at)
	full, class := expected(&q, at.points)
	if c.repository != at.repository {
		class = errclass.Conflict
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	trouble, over := m.trouble(rt, at, c, &q, cancel)
	p, err := c.r.Backup(ctx, q)
	killed := over()
	found := m.look(rt, at, &q)
	if killed {
		m.did["killed"]++
		if found != nil {
			m.did["killed, and published"]++
		}
	}
	switch {
	case found == nil && err == nil:
		verdict.Fatalf(rt, "restore point %s is not there", p.ID)
	case found != nil && err != nil && !errors.Is(err, errclass.Unknown):
		rt.Fatalf("restore point %s is there, and the backup said: %v", found.ID, err)
	case class == nil && (errors.Is(err, errclass.NotFound) || errors.Is(err, errclass.Corrupt) || errors.Is(err, errclass.Conflict)):
		rt.Fatalf("an error (trouble: %q) was told as what is not so: %v", trouble, err)
	case found != nil && class != nil:
		rt.Fatalf("restore point %s is there, where %v was due", found.ID, class)
	case found == nil && class != nil && trouble == "" && !errors.Is(err, class), found == nil && class == nil && trouble == "":
		rt.Fatalf("%v, want %v", err, class)
	}
	if killed || c.repository != at.repository {
		c.close()
	}
	if found == nil {
		m.did["failed: "+trouble]++
		return
	}
	for _, d := range found.Disks {
		if d.FullReason != full[d.Name] {
			rt.Fatalf("disk %s of restore point %s is full: %q, want %q (trouble: %q)", d.Name, found.ID, d.FullReason, full[d.Name], trouble)
		}
		m.did["full: "+string(d.FullReason)]++
	}
	m.did["published: "+trouble]++
	at.points = append(slices.Clone(at.points), &heldPoint{found, m.held(&q)})
}
