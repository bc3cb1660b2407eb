package repository

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/format"
	"pgregory.net/rapid"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/internal/repository/table"
	"github.com/varvebackup/varve/test/verdict"
)

// Machines with data in common back up, verify, repair, delete and maintain, while blobs of every kind are lost, cut or changed. Whatever
// the order: a restore point that is published gives back what the disk held, or the backup fails and names a blob. The one exception
// is a block in a pack that has other bytes than were written and that nobody has read since. What is good stays good until the next
// blob is harmed, and nothing ever restores wrong bytes.
func TestLosses_publishedPointsRestore(t *testing.T) {
	t.Parallel()
	var histories, beyond atomic.Int64
	total := map[string]int{}
	rapid.Check(t, func(rt *rapid.T) {
		m := newLossModel(t, rt)
		defer m.close()
		defer func() { beyond.Add(int64(m.did["beyond repair"])) }()
		rt.Repeat(map[string]func(*rapid.T){
			"write": m.write, "back up": m.backUp, "back up again": m.backUp, "back up once more": m.backUp, "harm": m.harm, "verify": m.verify, "repair": m.repair, "maintain": m.maintain,
			"delete": m.delete, "reopen": m.reopen, "pass": m.pass,
		})
		m.check(rt, "at the end")
		histories.Add(1)
		for what, n := range m.did {
			total[what] += n
		}
	})
	t.Logf("%d histories, %d more that came to their end before: %v", histories.Load(), beyond.Load(), total)
	// Those do not count. With random losses about every third history harms the format and its copy.
	if beyond.Load() > 2*histories.Load() {
		t.Errorf("%d histories could not be repaired, and only %d went on to their end", beyond.Load(), histories.Load())
	}
}

// lossModel is one history.
type lossModel struct {
	t        *testing.T
	site     *site
	machines []*lossMachine
	// made counts restore points, and points has those that should exist.
	made   int
	points map[string]*lossPoint
	// harmed are the blobs that were harmed, and rotten those of them that have other bytes of the same length.
	harmed, rotten map[blob.ID]bool
	// indexLost says that an index blob was lost.
	indexLost bool
	did       map[string]int
}

// lossMachine is a machine with one disk.
type lossMachine struct {
	name, config string
	r            *Repository
	data         []byte
	changed      extent.Set
	bitmap       string
}

// lossPoint is a restore point that was published. good says that it restored when somebody looked last, after all that was harmed.
type lossPoint struct {
	point *RestorePoint
	data  []byte
	good  bool
}

const lossBlock = 256 * kib

func newLossModel(t *testing.T, rt *rapid.T) *lossModel {
	t.Helper()
	m := &lossModel{t: t, site: newMemorySite(t), points: map[string]*lossPoint{}, harmed: map[blob.ID]bool{}, rotten: map[blob.ID]bool{}, did: map[string]int{}}
	for i, cache := range []bool{true, false, false} {
		x := &lossMachine{name: fmt.Sprint("machine", i), data: make([]byte, 3*lossBlock+lossBlock/2)}
		x.config = m.site.connect(t, x.name, cache)
		m.machines = append(m.machines, x)
		m.open(rt, x)
	}
	return m
}

func (m *lossModel) close() {
	for _, x := range m.machines {
		if x.r != nil {
			_ = x.r.Close(context.Background())
		}
	}
	m.site.memory.become(nil)
}

// open opens a machine's connection. If the repository cannot be opened, the error names a harmed blob, and repair mends that or ends the
// history.
func (m *lossModel) open(rt *rapid.T, x *lossMachine) bool {
	if x.r != nil {
		if err := x.r.Close(context.Background()); err != nil {
			rt.Fatal(err)
		}
		x.r = nil
	}
	r, err := m.site.open(context.Background(), x.config)
	if err != nil {
		m.did["not opened"]++
		return false
	}
	x.r = r
	return true
}

func (m *lossModel) machine(rt *rapid.T) *lossMachine {
	return m.machines[rapid.IntRange(0, len(m.machines)-1).Draw(rt, "machine")]
}

// write puts one of a few blocks, which all machines have in common, at a place of a disk.
func (m *lossModel) write(rt *rapid.T) {
	x := m.machine(rt)
	at := rapid.Int64Range(0, 3).Draw(rt, "at") * lossBlock
	value := rapid.ByteRange(0, 9).Draw(rt, "block")
	e := extent.Extent{Offset: at, Length: min(lossBlock, int64(len(x.data))-at)}
	copy(x.data[e.Offset:e.End()], lossBlocks[value])
	x.changed = x.changed.Union(extent.NewSet(e))
}

// lossBlocks are the blocks that there are; the first is zeroes.
var lossBlocks = func() (out [10][]byte) {
	for i := range out {
		out[i] = bytes.Repeat([]byte{byte(i)}, lossBlock)
		for j := 0; i > 0 && j < lossBlock; j++ {
			out[i][j] = byte(j * (i + j>>7))
		}
	}
	return out
}()

// undetected returns the packs that have other bytes than were written without anybody having recorded it.
func (m *lossModel) undetected() map[blob.ID]bool {
	out := map[blob.ID]bool{}
	now := m.site.memory.now()
	for id := range m.rotten {
		if _, known := now[storage.DamagedPrefix+id]; !known {
			out[id] = true
		}
	}
	return out
}

func (m *lossModel) backUp(rt *rapid.T) {
	x := m.machine(rt)
	if x.r == nil && !m.open(rt, x) {
		m.mustRepair(rt)
		return
	}
	m.made++
	d := DiskSource{Name: "root", Bytes: int64(len(x.data)), Reader: &memory{data: x.data}, Identity: x.name, Change: fmt.Sprint("c", m.made)}
	if x.bitmap != "" && rapid.IntRange(0, 3).Draw(rt, "incremental") > 0 {
		d.Changes = &Changes{Since: x.bitmap, Set: x.changed}
	}
	q := Request{
		Source: Source{Host: x.name, User: "varve", Path: "/vm"}, Time: m.site.now(), BlockBytes: lossBlock,
		Workers: 2, Disks: []DiskSource{d}, Definition: []byte(testDefinition),
	}
	undetected := m.undetected()
	p, err := x.r.Backup(context.Background(), q)
	if errors.Is(err, errclass.Conflict) && strings.Contains(err.Error(), "exclusive maintenance") {
		m.did["locked"]++ // Maintenance that ended at damage could not say so.
		m.site.move(2 * time.Hour)
		return
	}
	if err != nil {
		m.did["failed"]++
		m.names(rt, "backup", err)
		m.mustRepair(rt)
		return
	}
	m.did["full "+string(p.Disks[0].FullReason)]++
	x.bitmap, x.changed = d.Change, extent.Set{}
	point := &lossPoint{point: p, data: bytes.Clone(x.data)}
	m.points[p.ID] = point
	if r, err := m.site.open(context.Background(), m.machines[2].config); err != nil {
		m.mustRepair(rt) // The machine had read the indexes and the format before they were harmed. They are there twice.
	} else if err := r.Close(context.Background()); err != nil {
		rt.Fatal(err)
	}
	var wrong error
	m.restoreAll(rt, func(restored *lossPoint, why error) {
		if restored == point {
			wrong = why
		}
	})
	point.good = wrong == nil
	switch {
	case point.good:
	case m.indexLost && table.IsMissing(wrong):
		// kopia believes for some minutes in an index that it has written or read itself. Nothing but that index is lost.
		m.did["published on a lost index"]++
		if m.mustRepair(rt); !point.good {
			verdict.Fatalf(rt, "restore point %s does not restore after a repair: %v", p.ID, wrong)
		}
	default:
		m.did["published on undetected rot"]++
		m.explain(rt, p, wrong, undetected)
	}
}

// names fails unless an error names a harmed blob.
func (m *lossModel) names(rt *rapid.T, what string, err error) {
	for id := range m.harmed {
		if strings.Contains(err.Error(), string(id)) || id == format.KopiaBlobCfgBlobID && strings.Contains(err.Error(), "blobcfg blob") {
			return
		}
		if isFormat := slices.Contains(storage.FormatBlobs, id); isFormat && (errors.Is(err, storage.ErrReplaced) || errors.Is(err, errclass.Corrupt) || errors.Is(err, errclass.NotFound)) {
			return // Which of its fields a bit was in decides what it looks like. Without it, the repository may not be there at all.
		}
	}
	rt.Fatalf("%s: %v: that names none of %v", what, err, slices.Sorted(maps.Keys(m.harmed)))
}

// explain fails unless all that is wrong with a restore point is in packs whose damage nobody knew of.
func (m *lossModel) explain(rt *rapid.T, p *RestorePoint, restored error, undetected map[blob.ID]bool) {
	a := m.machines[1]
	if a.r == nil {
		verdict.Fatalf(rt, "restore point %s does not restore: %v", p.ID, restored)
	}
	report, err := a.r.Verify(context.Background(), VerifyOptions{Percent: 100})
	if err != nil {
		rt.Fatal(err)
	}
	found := false
	for _, x := range report.Damage {
		if x.Point.ID != p.ID {
			continue
		}
		found = true
		known := false
		for id := range undetected {
			known = known || strings.Contains(x.Err.Error(), "blob "+string(id)+" has other bytes")
		}
		if !known {
			verdict.Fatalf(rt, "restore point %s was published with damage: %s: %v (restored: %v; undetected was %v)", p.ID, x.Extent, x.Err, restored, undetected)
		}
	}
	if !found {
		verdict.Fatalf(rt, "restore point %s does not restore, and verify finds nothing wrong with it: %v; %v", p.ID, restored, report.Unlisted)
	}
}

// restoreAll restores all restore points through a connection of its own, and calls each with what was wrong.
func (m *lossModel) restoreAll(rt *rapid.T, each func(p *lossPoint, wrong error)) {
	r, err := m.site.open(context.Background(), m.machines[2].config)
	if err == nil {
		defer r.Close(context.Background())
	}
	for _, id := range slices.Sorted(maps.Keys(m.points)) {
		p, wrong := m.points[id], err
		if err == nil {
			wrong = restoreLossPoint(rt, r, p)
		}
		each(p, wrong)
	}
}

// restoreLossPoint restores a restore point. It never gives back wrong bytes.
func restoreLossPoint(rt *rapid.T, r *Repository, p *lossPoint) error {
	img, err := r.Image(context.Background(), p.point.Disks[0])
	if err != nil {
		return err
	}
	got := make([]byte, len(p.data))
	if err := img.ReadAt(context.Background(), got, 0); err != nil {
		return err
	}
	if !bytes.Equal(got, p.data) {
		verdict.Fatalf(rt, "restore point %s has other bytes", p.point.ID)
	}
	definition, err := r.Definition(context.Background(), p.point)
	if err == nil && string(definition) != testDefinition {
		verdict.Fatalf(rt, "restore point %s has another definition", p.point.ID)
	}
	return err
}

// check compares all restore points. Those that were good are good.
func (m *lossModel) check(rt *rapid.T, when string) {
	m.restoreAll(rt, func(p *lossPoint, wrong error) {
		if wrong != nil && p.good {
			verdict.Fatalf(rt, "%s: restore point %s was good: %v", when, p.point.ID, wrong)
		}
		if wrong == nil && !p.good {
			m.did["mended"]++
		}
		p.good = wrong == nil
	})
}

// harm removes, cuts or changes a blob.
func (m *lossModel) harm(rt *rapid.T) {
	m.check(rt, "before the next harm")
	kind := rapid.SampledFrom([]string{"p", "p", "p", "p", "q", "q", "q", "x", "varve.", "kopia.", "s", "_"}).Draw(rt, "kind")
	ids := m.site.memory.named(kind)
	if len(ids) == 0 {
		return
	}
	id := rapid.SampledFrom(ids).Draw(rt, "blob")
	how := rapid.SampledFrom([]string{"lose", "cut", "flip"}).Draw(rt, "how")
	share := rapid.Float64Range(0, 1).Draw(rt, "where")
	m.did[how+" "+kind]++
	m.harmed[id] = true
	m.site.memory.mu.Lock()
	b := m.site.memory.blobs[id]
	at := min(int(share*float64(len(b.data))), len(b.data)-1)
	switch {
	case how == "lose":
		delete(m.site.memory.blobs, id)
		m.indexLost = m.indexLost || storage.IsIndex(id)
	case at < 0:
	case how == "cut":
		b.data = b.data[:at]
		m.site.memory.blobs[id] = b
	default:
		b.data = bytes.Clone(b.data)
		b.data[at] ^= 0x10
		m.site.memory.blobs[id] = b
		m.rotten[id] = true
	}
	m.site.memory.mu.Unlock()
	m.restoreAll(rt, func(p *lossPoint, wrong error) { p.good = wrong == nil })
}

func (m *lossModel) verify(rt *rapid.T) {
	x := m.machine(rt)
	if x.r == nil && !m.open(rt, x) {
		m.mustRepair(rt)
		return
	}
	report, err := x.r.Verify(context.Background(), VerifyOptions{Percent: 100})
	if err != nil { // A format that is damaged together with its copy.
		m.mustRepair(rt)
		return
	}
	if report.Unrecorded != nil {
		rt.Fatal(report.Unrecorded)
	}
	m.did["verify"]++
	m.check(rt, "after verify")
}

func (m *lossModel) repair(rt *rapid.T) {
	m.did["repair"]++
	m.mustRepair(rt)
}

// mustRepair repairs, and has all machines open the repository again. If nothing can be repaired, the history ends.
func (m *lossModel) mustRepair(rt *rapid.T) {
	_, err := Repair(context.Background(), m.machines[2].config, testPassword, false)
	if err != nil {
		m.did["beyond repair"]++
		rt.Skip(err)
	}
	for _, x := range m.machines {
		if !m.open(rt, x) {
			m.did["beyond repair"]++
			rt.Skip("it cannot be opened after a repair")
		}
	}
	m.check(rt, "after repair")
}

func (m *lossModel) maintain(rt *rapid.T) {
	x := m.machine(rt)
	if x.r == nil && !m.open(rt, x) {
		m.mustRepair(rt)
		return
	}
	exclusive := rapid.Bool().Draw(rt, "exclusive")
	err := x.r.Maintain(context.Background(), MaintenanceOptions{Mode: FullMaintenance, Exclusive: exclusive})
	if err != nil {
		m.did["maintenance failed"]++
	} else {
		m.did["maintain"]++
	}
	m.check(rt, "after maintenance")
}

func (m *lossModel) delete(rt *rapid.T) {
	if len(m.points) == 0 {
		return
	}
	x := m.machine(rt)
	if x.r == nil {
		return
	}
	id := rapid.SampledFrom(slices.Sorted(maps.Keys(m.points))).Draw(rt, "point")
	_ = x.r.Delete(context.Background(), id) // It may be lost, or something else in its way.
	delete(m.points, id)
	m.did["delete"]++
	m.check(rt, "after a deletion")
}

func (m *lossModel) reopen(rt *rapid.T) {
	x := m.machine(rt)
	if !m.open(rt, x) {
		m.mustRepair(rt)
	}
}

func (m *lossModel) pass(rt *rapid.T) {
	m.site.move(rapid.SampledFrom([]time.Duration{time.Minute, 20 * time.Minute, 5 * time.Hour, 26 * time.Hour, 80 * time.Hour}).Draw(rt, "time"))
}
