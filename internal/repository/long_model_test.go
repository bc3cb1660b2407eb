package repository

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/maintenance"
	"github.com/kopia/kopia/snapshot/policy"
	"github.com/kopia/kopia/snapshot/snapshotmaintenance"

	"github.com/varvebackup/varve/internal/extent"
)

// Backups of an hour to a month, full and incremental, of one disk or two, run beside maintenance of every kind, by Varve and by kopia, and
// beside kopia's expire; what they find again is deleted meanwhile, their machine sleeps, and they are interrupted and begun again. Every
// restore point that was published is read back whole.
func TestLongBackups_areReadBackWhole(t *testing.T) {
	t.Parallel()
	count, longest := 1, 24*time.Hour
	if soak {
		count, longest = 40, 30*24*time.Hour
	}
	count = int(setting(t, "VARVE_TEST_LONG", int64(count)))
	seed := setting(t, "VARVE_TEST_SEED", time.Now().UnixNano())
	for i := range count {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			t.Logf("again: VARVE_TEST_LONG=%d VARVE_TEST_SEED=%d", count, seed)
			m := &longModel{longSite: newLongSite(t), held: map[string][][]byte{}}
			m.random = rand.New(rand.NewPCG(uint64(seed), uint64(i)))
			m.run(longest)
		})
	}
}

// longModel is a machine with long backups, and what it held at each of its restore points.
type longModel struct {
	*longSite
	disks  []*memory
	points []*RestorePoint
	held   map[string][][]byte
	did    map[string]int
	// made is how many restore points were made, and the name of the last one's moment.
	made int
}

func (m *longModel) chance(oneOf int) bool { return m.random.IntN(oneOf) == 0 }

func (m *longModel) run(longest time.Duration) {
	m.did = map[string]int{}
	for range 1 + m.random.IntN(2) {
		m.disks = append(m.disks, m.disk(1+m.random.Int64N(2)))
	}
	for range 3 {
		lasts := time.Hour + time.Duration(m.random.Int64N(int64(longest)))
		if m.chance(3) {
			lasts = time.Hour + time.Duration(m.random.Int64N(int64(48*time.Hour)))
		}
		m.backUp(lasts)
		m.move(time.Duration(m.random.Int64N(int64(72 * time.Hour))))
		for _, d := range m.disks {
			at := m.random.Int64N(int64(len(d.data)) - mib)
			d.write(m.random, extent.Extent{Offset: at, Length: min(int64(len(d.data))-at, 10*mib)}, false)
		}
	}
	for _, p := range m.points {
		m.settled(p, m.held[p.ID]...)
	}
	m.t.Logf("%v", m.did)
}

// backUp makes a restore point, however often that is interrupted.
func (m *longModel) backUp(lasts time.Duration) {
	for attempt := 0; ; attempt++ {
		p, err := m.attempt(lasts, attempt < 3 && m.chance(3))
		if errors.Is(err, context.Canceled) {
			m.did["interrupted"]++
			m.move(time.Duration(m.random.Int64N(int64(5 * 24 * time.Hour))))
			m.somebodyActs()
			continue
		}
		if err != nil {
			m.t.Fatal(err)
		}
		m.points = append(m.points, p)
		m.made++
		for _, d := range m.disks {
			m.held[p.ID] = append(m.held[p.ID], append([]byte(nil), d.data...))
			d.changed = extent.Set{}
		}
		return
	}
}

func (m *longModel) attempt(lasts time.Duration, interrupted bool) (*RestorePoint, error) {
	ctx, cancel := context.WithCancel(m.t.Context())
	defer cancel()
	known := m.made > 0 && !m.chance(3)
	q := Request{Source: testSource}
	if !known && m.chance(2) {
		q.Parent = ParentNone
	}
	every := []time.Duration{time.Hour, 5 * time.Hour, 7 * time.Hour, 24 * time.Hour}[m.random.IntN(4)]
	every = max(every, lasts/20) // Each costs this test its time.
	blocks := 8 << m.random.IntN(4)
	long := newLongBackup(m.site, 0, blocks, every, m.somebodyActs)
	var reads int64
	for i, d := range m.disks {
		s := DiskSource{Name: fmt.Sprint("disk", i), Bytes: int64(len(d.data)), Reader: &longReader{Reader: d, long: long}, Identity: "a", Change: fmt.Sprint(m.made + 1)}
		if known {
			s.Changes = &Changes{Since: fmt.Sprint(m.made), Set: d.changed}
			reads += d.changed.Bytes() / DefaultBlockBytes
		} else {
			reads += s.Bytes / DefaultBlockBytes
		}
		q.Disks = append(q.Disks, s)
	}
	long.pause = lasts / time.Duration(max(1, reads/int64(blocks)))
	wakes := m.random.Int64N(max(1, reads))
	for i := range q.Disks {
		q.Disks[i].Reader = &hookedReader{Reader: q.Disks[i].Reader, call: func(int64) {
			if wakes--; wakes != 0 {
				return
			}
			if interrupted {
				cancel()
			} else if m.chance(2) {
				m.sleeps()
			}
		}}
	}
	m.did[fmt.Sprintf("incremental: %t", known)]++
	return long.backUp(ctx, m.r, q)
}

// sleeps lets hours or days pass in which the machine does nothing and others do.
func (m *longModel) sleeps() {
	m.did["slept"]++
	for range 1 + m.random.IntN(8) {
		m.move(time.Duration(1+m.random.IntN(12)) * time.Hour)
		m.somebodyActs()
	}
}

// somebodyActs is what others do at one time.
func (m *longModel) somebodyActs() {
	ctx := m.t.Context()
	what := []string{"quick", "full", "full", "kopia's full", "kopia's quick", "kopia's expire", "delete"}[m.random.IntN(7)]
	m.did[what]++
	var err error
	switch what {
	case "quick", "full":
		err = m.others.Maintain(ctx, MaintenanceOptions{Mode: map[string]MaintenanceMode{"quick": QuickMaintenance, "full": FullMaintenance}[what]})
	case "kopia's full", "kopia's quick":
		mode := map[string]maintenance.Mode{"kopia's full": maintenance.ModeFull, "kopia's quick": maintenance.ModeQuick}[what]
		err = repo.DirectWriteSession(ctx, m.others.rep, repo.WriteSessionOptions{}, func(ctx context.Context, w repo.DirectRepositoryWriter) error {
			return snapshotmaintenance.Run(ctx, w, mode, true, maintenance.SafetyFull)
		})
	case "kopia's expire":
		err = repo.DirectWriteSession(ctx, m.others.rep, repo.WriteSessionOptions{}, func(ctx context.Context, w repo.DirectRepositoryWriter) error {
			if err := w.Refresh(ctx); err != nil {
				return err
			}
			// Restore points and session manifests are pinned: it deletes nothing.
			_, err := policy.ApplyRetentionPolicy(ctx, w, testSource.info(), true)
			return err
		})
	case "delete":
		if len(m.points) > 0 {
			i := m.random.IntN(len(m.points))
			if err = m.others.rep.Refresh(ctx); err == nil {
				err = m.others.Delete(ctx, m.points[i].ID)
			}
			delete(m.held, m.points[i].ID)
			m.points = append(m.points[:i:i], m.points[i+1:]...)
		}
	}
	if err != nil {
		m.t.Errorf("%s: %v", what, err)
	}
}
