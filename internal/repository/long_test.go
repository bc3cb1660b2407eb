package repository

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/extent"
)

// flushCheckInterval is how often a long backup looks whether a flush is due, in the site's time, unless something else is set.
const flushCheckInterval = 20 * time.Minute

// longBackup is a backup in the site's time. It is slow, and others act while it runs.
type longBackup struct {
	site *site
	// pause is how long it waits before it reads the first of this many blocks.
	pause  time.Duration
	blocks int
	// others act each time this much time has passed; 0: never.
	every  time.Duration
	others func()
	// look is how often it looks whether a flush is due.
	look   time.Duration
	ticks  chan time.Time
	ended  chan struct{}
	passed time.Duration
	read   int
}

func newLongBackup(s *site, pause time.Duration, blocks int, every time.Duration, others func()) *longBackup {
	return &longBackup{
		site: s, pause: pause, blocks: blocks, every: every, others: others, look: flushCheckInterval, passed: every / 2, ticks: make(chan time.Time), ended: make(chan struct{}),
	}
}

// backUp makes a restore point. It uses one worker, so that blocks are read one after the other, and each is stored before the next one
// is read.
func (l *longBackup) backUp(ctx context.Context, r *Repository, q Request) (*RestorePoint, error) {
	defer close(l.ended)
	q.Workers, q.ticks, q.blockwise = 1, l.ticks, true
	return r.Backup(ctx, q)
}

// source is a disk that is slow to read.
func (l *longBackup) source(m *memory, known bool) DiskSource {
	d := m.source(known)
	d.Reader = &longReader{Reader: m, long: l}
	return d
}

type longReader struct {
	Reader
	long *longBackup
}

func (r *longReader) ReadAt(ctx context.Context, p []byte, offset int64) error {
	if r.long.read++; r.long.read%r.long.blocks == 0 {
		r.long.pass(ctx, r.long.pause)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return r.Reader.ReadAt(ctx, p, offset)
}

// pass lets time pass, in which flushes happen and others act.
func (l *longBackup) pass(ctx context.Context, d time.Duration) {
	for d > 0 && ctx.Err() == nil {
		step := min(d, l.look)
		d -= step
		l.site.move(step)
		l.tick(ctx)
		if before := l.passed; l.every > 0 && (before+step)/l.every > before/l.every {
			l.others()
		}
		l.passed += step
	}
}

// tick makes the backup look whether a flush is due, and returns when it is done.
func (l *longBackup) tick(ctx context.Context) {
	for range 2 { // The second tick is taken once the work of the first one is done.
		select {
		case l.ticks <- time.Time{}:
		case <-l.ended:
		case <-ctx.Done():
		}
	}
}

// longSite is a repository with one machine that backs up and another one that maintains.
type longSite struct {
	*site
	t         *testing.T
	r, others *Repository
	random    *rand.Rand
}

func newLongSite(t *testing.T) *longSite {
	t.Helper()
	s := newMemorySite(t)
	return &longSite{
		site: s, t: t, r: s.opened(t, s.connect(t, "mover", cached)), others: s.opened(t, s.connect(t, "maintainer", cached)),
		random: rand.New(rand.NewPCG(8, 9)),
	}
}

// packBlocks are enough blocks for a pack that maintenance does not rewrite. Rewriting would make its contents young again.
const packBlocks = 64

// disk returns a disk full of noise.
func (s *longSite) disk(packs int64) *memory {
	m := &memory{data: make([]byte, packs*packBlocks*DefaultBlockBytes)}
	m.write(s.random, extent.Extent{Length: int64(len(m.data))}, false)
	return m
}

func (s *longSite) maintain() {
	s.t.Helper()
	if err := s.others.Maintain(s.t.Context(), MaintenanceOptions{Mode: FullMaintenance}); err != nil {
		s.t.Error(err)
	}
}

// settled checks a restore point on a fresh connection, after maintenance had days to free what it wants to.
func (s *longSite) settled(p *RestorePoint, want ...[]byte) {
	s.t.Helper()
	for range 4 {
		s.move(30 * time.Hour)
		s.maintain()
	}
	fresh := s.opened(s.t, s.connect(s.t, fmt.Sprintf("fresh%d", s.random.Uint32()), !cached))
	for i, data := range want {
		one := *p
		one.Disks = p.Disks[i : i+1]
		same(s.t, fresh, &one, data)
	}
}

// A first full backup takes longer than garbage collection waits, however often that runs.
func TestLongFull_survivesMaintenance(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ lasts, every time.Duration }{
		"4 days, daily maintenance":           {96 * time.Hour, 24 * time.Hour},
		"42 hours, maintenance every 6 hours": {42 * time.Hour, 6 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newLongSite(t)
			disk := s.disk(6)
			long := newLongBackup(s.site, c.lasts/6, packBlocks, c.every, s.maintain)
			d := long.source(disk, false)
			p, err := long.backUp(t.Context(), s.r, Request{Source: testSource, Disks: []DiskSource{d}})
			if err != nil {
				t.Fatal(err)
			}
			s.settled(p, disk.data)
		})
	}
}

// A full backup finds its blocks in the repository. The restore point that had them was deleted just before.
func TestLongFull_keepsWhatItFindsAgain(t *testing.T) {
	t.Parallel()
	s := newLongSite(t)
	disk := s.disk(6)
	first, err := s.r.Backup(t.Context(), Request{Source: testSource, Disks: []DiskSource{disk.source(false)}})
	if err != nil {
		t.Fatal(err)
	}
	s.move(48 * time.Hour)
	s.maintain()
	if err := s.others.Delete(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	long := newLongBackup(s.site, 18*time.Hour/6, packBlocks, 6*time.Hour, s.maintain)
	d := long.source(disk, false)
	p, err := long.backUp(t.Context(), s.r, Request{Source: testSource, Parent: ParentNone, Disks: []DiskSource{d}})
	if err != nil {
		t.Fatal(err)
	}
	s.settled(p, disk.data)
}

// The first disk of an incremental is done and verified, and the second one takes days.
func TestLongIncremental_keepsTheFirstDisk(t *testing.T) {
	t.Parallel()
	s := newLongSite(t)
	one, two := s.disk(3), s.disk(1)
	sources := func(known bool) []DiskSource {
		a, b := one.source(known), two.source(known)
		b.Name = "data"
		return []DiskSource{a, b}
	}
	if _, err := s.r.Backup(t.Context(), Request{Source: testSource, Disks: sources(false)}); err != nil {
		t.Fatal(err)
	}
	one.write(s.random, extent.Extent{Offset: 16 * mib, Length: 17 * mib}, false)
	two.write(s.random, extent.Extent{Length: 2560 * kib}, false)
	long := newLongBackup(s.site, 12*time.Hour, 1, 24*time.Hour, s.maintain)
	disks := sources(true)
	disks[1].Changes.Exclusive = true // Each block that is read takes half a day.
	disks[1].Reader = &longReader{Reader: two, long: long}
	p, err := long.backUp(t.Context(), s.r, Request{Source: testSource, Disks: disks})
	if err != nil {
		t.Fatal(err)
	}
	if p.Disks[0].FullReason != "" || p.Disks[1].FullReason != "" {
		t.Errorf("full: %q, %q", p.Disks[0].FullReason, p.Disks[1].FullReason)
	}
	s.settled(p, one.data, two.data)
}

// A first full backup gets a few hours each night, is interrupted every morning, and days pass. It ends after as many nights as
// its disk needs.
func TestNightlyWindows_end(t *testing.T) {
	t.Parallel()
	s := newLongSite(t)
	disk := s.disk(3)
	const perNight = 16 * mib
	gates := []int64{perNight, 2 * perNight, 3 * perNight}
	var p *RestorePoint
	for night := range gates {
		uploads := s.stored.Load()
		ctx, cancel := context.WithCancel(t.Context())
		long := newLongBackup(s.site, 0, 1, 0, nil)
		d := long.source(disk, false)
		d.Reader = &gatedReader{Reader: d.Reader, gate: gates[night], reached: func(context.Context) error {
			cancel()
			return ctx.Err()
		}}
		var err error
		p, err = long.backUp(ctx, s.r, Request{Source: testSource, Disks: []DiskSource{d}})
		cancel()
		if uploaded := s.stored.Load() - uploads; uploaded > perNight+mib {
			t.Fatalf("night %d: %d bytes were uploaded, of which %d were new", night, uploaded, perNight)
		}
		if (err == nil) != (night == len(gates)-1) {
			t.Fatalf("night %d: %v", night, err)
		}
		for range 6 {
			s.move(20 * time.Hour) // five days and nights without a backup
			s.maintain()
		}
	}
	s.settled(p, disk.data)
}
