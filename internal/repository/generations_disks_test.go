package repository

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/test/verdict"
)

const tib = 1 << 40

// size returns the size of a disk: from a sector to some GiB, or to 2 TiB if it may be large, both on the edges of blocks and
// regions and off them.
func (m *generations) size(large bool) int64 {
	r := m.random
	edge := []int64{-511, -1, 0, 0, 0, 1, 512, 4096}[r.IntN(8)]
	kinds := 11
	if soak {
		kinds = 13
	}
	switch k := r.IntN(kinds); {
	case large && k < 3:
		return 2*tib - max(0, edge)
	case large:
		return (1+r.Int64N(1000))*gib + r.Int64N(gib)
	case k < 1:
		return 512
	case k < 3:
		return 1 + r.Int64N(64*kib)
	case k < 7:
		return (1+r.Int64N(6))*2*mib + edge
	case k < 11:
		return (1+r.Int64N(4))*64*mib + edge
	default:
		return (1+r.Int64N(5))*gib + edge
	}
}

// place returns an extent of a disk, often where blocks, regions or the disk end.
func place(r *rand.Rand, bytes, longest int64) extent.Extent {
	length := 1 + r.Int64N(longest)
	at := r.Int64N(bytes)
	switch r.IntN(6) {
	case 0:
		at = bytes - length
	case 1:
		at = (at/(64*mib))*64*mib - length/2
	case 2:
		at = (at / (4 * mib)) * 4 * mib
	case 3:
		at %= 16 * mib
	}
	at = min(max(0, at), bytes-1)
	return extent.Extent{Offset: at, Length: min(length, bytes-at)}
}

// add gives the machine one more disk.
func (v *vm) add(m *generations) {
	v.disk++
	d := &vmDisk{name: fmt.Sprintf("disk%d", v.disk%4), identity: fmt.Sprint(v.disk), now: newSparse(m.size(v.large))}
	if slices.ContainsFunc(v.disks, func(o *vmDisk) bool { return o.name == d.name }) {
		return
	}
	v.disks = append(v.disks, d)
	d.write(m)
}

// change changes the machine as it may change between two backups.
func (v *vm) change(m *generations) {
	if len(v.disks) < 3 && !v.large && m.chance(10) {
		v.add(m)
	}
	if len(v.disks) > 1 && m.chance(12) {
		i := m.random.IntN(len(v.disks))
		v.disks = slices.Delete(v.disks, i, i+1)
	}
	for _, d := range v.disks {
		d.change(m, v.large)
	}
	if m.chance(8) { // as if a disk had been attached
		m.random.Shuffle(len(v.disks), func(i, j int) { v.disks[i], v.disks[j] = v.disks[j], v.disks[i] })
	}
}

func (d *vmDisk) change(m *generations, large bool) {
	switch m.random.IntN(16) {
	case 0:
		d.now.resize(m.size(large))
	case 1, 2:
		d.now.resize(max(1, d.now.bytes+m.random.Int64N(4*mib)-2*mib))
	case 3: // replaced by another disk of its name, with the same content or not; what tracks changes does not notice
		d.identity += "'"
		if m.chance(2) {
			d.now = newSparse(m.size(large))
		}
	case 4: // nothing happens
		return
	}
	d.write(m)
}

func (d *vmDisk) write(m *generations) {
	for range m.random.IntN(5) {
		longest := min(d.now.bytes, 1<<m.random.IntN(22))
		e := place(m.random, d.now.bytes, longest)
		d.now.write(noise(m.random, e.Length), e.Offset)
	}
	if m.chance(4) {
		d.now.zero(place(m.random, d.now.bytes, d.now.bytes))
	}
}

// wide returns at least s: whatever reports changes or data rounds, and errs on the safe side.
func (m *generations) wide(s extent.Set, bytes int64) []extent.Extent {
	s = s.Widen(int64(1)<<(9+m.random.IntN(10)), bytes)
	if m.chance(4) {
		s = s.Union(extent.NewSet(place(m.random, bytes, min(bytes, mib))))
	}
	return slices.AppendSeq([]extent.Extent{}, s.All())
}

// source returns what a backup is told of the disk.
func (d *vmDisk) source(m *generations) jobDisk {
	out := jobDisk{Name: d.name, Identity: d.identity, Change: fmt.Sprint("change-", m.attempt), Bytes: d.now.bytes, disk: d.now.clone()}
	if d.now.bytes > 300*mib || m.chance(2) {
		data := m.wide(d.now.data(), d.now.bytes)
		out.Data = &data
	}
	switch {
	case m.chance(10): // what changed is unknown
	case m.chance(10) || len(d.since) == 0:
		out.Since, out.Set = "never", &[]extent.Extent{}
	default:
		i := len(d.since) - 1
		if m.chance(5) {
			i = m.random.IntN(len(d.since))
		}
		set := m.wide(d.now.changed(d.since[i].disk), d.now.bytes)
		out.Since, out.Set = d.since[i].name, &set
	}
	d.since = append(d.since, tracked{out.Change, out.disk})
	d.since = d.since[max(0, len(d.since)-5):]
	return out
}

// backUp makes a restore point, or tries to.
func (m *generations) backUp(v *vm) {
	m.attempt++
	at := m.attempt * 1000
	j := &job{
		Do: "backUp", Source: v.source, Time: time.Unix(at, 0), BlockBytes: []int64{0, 256 * kib, mib, 4 * mib}[m.random.IntN(4)],
		Compression: []string{"", "s2", "zstd", "none"}[m.random.IntN(4)], Workers: 1 + m.random.IntN(4), Every: time.Duration(5+m.random.IntN(100)) * time.Millisecond,
	}
	h := &moment{source: v.source, large: v.large, disks: map[string]*sparse{}, pins: map[string]bool{}}
	for _, d := range v.disks {
		s := d.source(m)
		h.disks[d.name] = s.disk
		j.Disks = append(j.Disks, s)
	}
	var missing bool
	j.Parent, missing = m.parent(v)
	stale := m.chance(2) && (j.Parent == "" || j.Parent == ParentAuto || j.Parent == ParentNone)
	want := m.expected(j)
	x := m.on(stale)
	stale = x.stale
	m.note("back up", "%s, %d disks, on %s, stale: %t, parent %q, blocks of %d, %q", v.source.Path, len(j.Disks), x.name, stale, j.Parent, j.BlockBytes, j.Compression)
	o := m.perform(x, j)
	if missing && !o.Killed {
		if !o.NotFound {
			m.t.Fatalf("from a parent that does not exist: %+v", o)
		}
		m.check(false)
		return
	}
	if o.Conflict && m.site.now().Before(m.locked) {
		m.note("locked", "") // Exclusive maintenance has died.
		m.site.move(engine.LockLife)
		m.check(false)
		return
	}
	if o.Error != "" {
		m.t.Fatal(o.Error)
	}
	p := m.list()[at]
	if p == nil && !o.Killed {
		verdict.Fatalf(m.t, "restore point %s of %d is not there", o.ID, at)
	}
	if p == nil {
		m.check(true)
		return
	}
	if !o.Killed && p.ID != o.ID {
		verdict.Fatalf(m.t, "restore point %s is listed as %s", o.ID, p.ID)
	}
	m.made++
	h.point = p
	m.held[at] = h
	m.same(compare(m.machines[2].r, m.random), at, true)
	for i, d := range p.Disks {
		m.plausible(d, j.Disks[i], want[i], stale)
	}
	m.differs(at)
	m.check(o.Killed)
}

// parent returns what a backup is asked to start from, and whether that does not exist.
func (m *generations) parent(v *vm) (id string, missing bool) {
	switch m.random.IntN(10) {
	case 0:
		return ParentNone, false
	case 1, 2:
		times := m.times()
		if len(times) == 0 {
			return "0123456789abcdef", true
		}
		h := m.held[times[m.random.IntN(len(times))]]
		return h.point.ID, h.source != v.source
	case 3:
		return ParentAuto, false
	default:
		return "", false
	}
}

// expectation is how a disk should be backed up.
type expectation struct {
	full FullReason
	from *Disk
}

// expected returns for each disk why it is read as a whole, or which disk it starts from, according to what is known of the
// restore points.
func (m *generations) expected(j *job) (out []expectation) {
	var parent *RestorePoint
	for _, at := range m.times() {
		p := m.held[at].point
		if p.Source != j.Source {
			continue
		}
		asked := j.Parent == p.ID
		auto := (j.Parent == "" || j.Parent == ParentAuto) && slices.ContainsFunc(j.Disks, func(d jobDisk) bool { return p.HasDisk(d.Name) })
		if asked || auto {
			parent = p
		}
	}
	for _, d := range j.Disks {
		var previous *Disk
		if parent != nil {
			previous, _ = parent.Disk(d.Name)
		}
		e := expectation{from: previous}
		switch {
		case j.Parent == ParentNone:
			e.full = FullAsked
		case previous == nil:
			e.full = FullNoParent
		case previous.Identity != d.Identity:
			e.full = FullOtherIdentity
		case d.Set == nil:
			e.full = FullNoChanges
		case previous.Change != d.Since:
			e.full = FullOtherBase
		}
		out = append(out, e)
	}
	return out
}

// plausible checks what a restore point says about a disk. A machine with an old view may choose another parent.
func (m *generations) plausible(d Disk, j jobDisk, want expectation, stale bool) {
	m.t.Helper()
	m.did[fmt.Sprintf("disks full: %q", d.FullReason)]++
	for _, limit := range []int64{tib, gib, 64 * mib} {
		if d.Bytes >= limit {
			m.did[fmt.Sprintf("disks of %d MiB and more", limit/mib)]++
			break
		}
	}
	if !stale && d.FullReason != want.full {
		m.t.Fatalf("disk %s is full: %q, want %q", d.Name, d.FullReason, want.full)
	}
	if !stale && want.from != nil && want.full != FullAsked && d.BlockBytes != want.from.BlockBytes {
		m.t.Fatalf("disk %s has blocks of %d, its parent of %d", d.Name, d.BlockBytes, want.from.BlockBytes)
	}
	if d.FullReason == "" && !stale {
		// Only what changed was read, and what the parent's blocks do not cover.
		whole := min(want.from.Bytes, d.Bytes) / d.BlockBytes * d.BlockBytes
		may := extent.NewSet(*j.Set...).Union(extent.NewSet(extent.Extent{Offset: whole, Length: d.Bytes - whole})).Widen(d.BlockBytes, d.Bytes)
		if d.Stats.ReadBytes > may.Bytes() {
			m.t.Fatalf("disk %s: %d bytes were read, where %d may have changed", d.Name, d.Stats.ReadBytes, may.Bytes())
		}
	}
	// Disks with the same block size have the same digest exactly if they have the same content.
	key := digested{d.BlockBytes, j.disk.digest()}
	for other, digest := range m.digests {
		if other.block == key.block && (other.content == key.content) != (digest == d.Digest) {
			verdict.Fatalf(m.t, "disk %s has digest %s; content %s has %s, and this is %s", d.Name, d.Digest, other.content, digest, key.content)
		}
	}
	m.digests[key] = d.Digest
}

// differs compares the restore point's disks with those of another one by Diff.
func (m *generations) differs(at int64) {
	m.t.Helper()
	times := m.times()
	other := m.held[times[m.random.IntN(len(times))]]
	h := m.held[at]
	for _, a := range h.point.Disks {
		b, err := other.point.Disk(a.Name)
		if err != nil {
			continue
		}
		got, err := m.machines[2].r.Diff(m.ctx(), a, *b)
		if a.BlockBytes != b.BlockBytes {
			if !errors.Is(err, errclass.Invalid) {
				m.t.Fatalf("the difference of disks in other blocks: %v, %v", got, err)
			}
			continue
		}
		if err != nil {
			m.t.Fatal(err)
		}
		small, large := h.disks[a.Name].clone(), other.disks[a.Name].clone()
		if small.bytes > large.bytes {
			small, large = large, small
		}
		beyond := extent.Extent{Offset: small.bytes, Length: large.bytes - small.bytes}
		large.resize(small.bytes)
		want := small.changed(large).Widen(a.BlockBytes, small.bytes)
		want.Append(beyond)
		if !got.Subtract(want).Empty() || !want.Subtract(got).Empty() {
			verdict.Fatalf(m.t, "disk %s of %d and of another: they differ in %v, want %v", a.Name, at, got, want)
		}
	}
}
