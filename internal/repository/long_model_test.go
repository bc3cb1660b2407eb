package repository

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/maintenance"
	"github.com/kopia/kopia/snapshot/policy"
	"github.com/kopia/kopia/snapshot/snapshotmaintenance"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/test/verdict"
)

// Backups of an hour to a month, full and incremental, of one disk or two, run beside maintenance of every kind, by Varve and by
// kopia, and beside kopia's expire. What they find again is deleted meanwhile, their machine sleeps, and they are interrupted.
// Backups, maintenance and deletions are killed. They are started again, on the same machine or another one, at once or days
// later. Every restore point that was published is read back as a whole, what was reported as success or failure is one, and
// nothing is uploaded again that an interrupted backup has named.
func TestLongBackups_areReadBackWhole(t *testing.T) {
	t.Parallel()
	count, longest := 2, 24*time.Hour
	if soak {
		count, longest = 24, 30*24*time.Hour
	}
	count = int(setting(t, "VARVE_TEST_LONG", int64(count)))
	seed := setting(t, "VARVE_TEST_SEED", time.Now().UnixNano())
	only := setting(t, "VARVE_TEST_ONLY", -1)
	for i := range count {
		if only >= 0 && int64(i) != only {
			continue
		}
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			t.Logf("again: VARVE_TEST_SOAK=%s VARVE_TEST_ONLY=%d VARVE_TEST_SEED=%d", os.Getenv("VARVE_TEST_SOAK"), i, seed)
			newLongModel(t, rand.New(rand.NewPCG(uint64(seed), uint64(i)))).run(longest)
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
	// made is how many restore points were made, and names the moment of the last one.
	made int
	// mover and maintainer are the machines of r and others. reader is the configuration of a connection.
	mover, maintainer, reader string
	// deaths is how many more processes of others may be killed.
	deaths int
	// running says that a backup is at work. dead is when one was killed. locked and exclusive are the times until which
	// maintenance that was killed, or was exclusive and killed, keeps others out.
	running                 bool
	dead, locked, exclusive time.Time
	// named is when a session manifest has last named a block that no restore point has had.
	named map[blockPlace]time.Time
}

func newLongModel(t *testing.T, random *rand.Rand) *longModel {
	t.Helper()
	s := newSite(t)
	s.inMemory(t)
	m := &longModel{
		longSite: &longSite{site: s, t: t, random: random}, held: map[string][][]byte{}, did: map[string]int{}, named: map[blockPlace]time.Time{},
		reader: s.connect(t, "reader", !cached), deaths: 3,
	}
	t.Cleanup(func() { clear(m.held) })
	for _, name := range []string{"mover", "standby", "maintainer", "second maintainer"} {
		s.connect(t, name, m.chance(4)) // kopia also lists a cache's files.
	}
	m.r, m.others = m.opens("mover"), m.opens("maintainer")
	m.mover, m.maintainer = "mover", "maintainer"
	t.Cleanup(func() {
		m.closes(m.r)
		m.closes(m.others)
	})
	return m
}

func (m *longModel) chance(oneOf int) bool { return m.random.IntN(oneOf) == 0 }

// upTo returns a random duration below d.
func (m *longModel) upTo(d time.Duration) time.Duration {
	return time.Duration(m.random.Int64N(int64(d)))
}

func (m *longModel) run(longest time.Duration) {
	for range 1 + m.random.IntN(2) {
		m.disks = append(m.disks, m.disk(1+m.random.Int64N(2)))
	}
	for range 3 {
		lasts := time.Hour + m.upTo(longest)
		if m.chance(3) {
			lasts = time.Hour + m.upTo(48*time.Hour)
		}
		m.backUp(lasts)
		m.move(m.upTo(72 * time.Hour))
		for _, d := range m.disks {
			at := m.random.Int64N(int64(len(d.data)) - mib)
			d.write(m.random, extent.Extent{Offset: at, Length: min(int64(len(d.data))-at, 10*mib)}, false)
		}
	}
	m.move(engine.LockLife)
	for range 4 { // Maintenance gets days to free what it wants to.
		m.move(30 * time.Hour)
		m.maintain()
	}
	m.look()
	m.t.Logf("%v", m.did)
}

// backUp makes a restore point, however often that is interrupted.
func (m *longModel) backUp(lasts time.Duration) {
	id := engine.NewPointID()
	for attempt := 0; ; attempt++ {
		p, err := m.attempt(id, lasts, attempt < 4)
		killed := m.process(m.mover).wasKilled()
		there := m.told(id, err)
		if killed {
			m.did["backup killed"]++
			m.dead = m.now()
			m.restart(&m.r, &m.mover, "mover", "standby")
		}
		if there && err != nil { // Repeating it tells.
			m.did["backup found"]++
			p, err = m.r.Backup(m.t.Context(), m.request(id, false))
		}
		switch {
		case err == nil:
			if p.ID != id {
				verdict.Fatalf(m.t, "restore point %s, want %s", p.ID, id)
			}
			m.published(p)
		case errors.Is(err, errclass.Conflict) && m.now().Before(m.exclusive):
			m.did["kept out"]++
			m.move(engine.LockLife)
		case !killed && !errors.Is(err, context.Canceled):
			m.t.Fatal(err)
		}
		if killed {
			m.look()
		}
		if err == nil {
			return
		}
		m.move(m.upTo([]time.Duration{time.Minute, 5 * time.Hour, 5 * 24 * time.Hour, 20 * 24 * time.Hour}[m.random.IntN(4)]))
		for range m.random.IntN(4) {
			m.somebodyActs()
		}
	}
}

// published notes that a restore point exists.
func (m *longModel) published(p *RestorePoint) {
	m.points = append(m.points, p)
	m.made++
	clear(m.named)
	for _, d := range m.disks {
		m.held[p.ID] = append(m.held[p.ID], append([]byte(nil), d.data...))
		d.changed = extent.Set{}
	}
}

// request returns a request for a restore point of the disks as they are now.
func (m *longModel) request(id string, known bool) Request {
	q := Request{ID: id, Source: testSource}
	for i, d := range m.disks {
		s := DiskSource{Name: fmt.Sprint("disk", i), Bytes: int64(len(d.data)), Reader: d, Identity: "a", Change: fmt.Sprint(m.made + 1)}
		if known {
			s.Changes = &Changes{Since: fmt.Sprint(m.made), Set: d.changed}
		}
		q.Disks = append(q.Disks, s)
	}
	return q
}

// attempt is one backup, which may be interrupted or killed.
func (m *longModel) attempt(id string, lasts time.Duration, mayEnd bool) (*RestorePoint, error) {
	ctx, cancel := context.WithCancel(m.t.Context())
	defer cancel()
	known := m.made > 0 && !m.chance(3)
	q := m.request(id, known)
	if !known && m.chance(2) {
		q.Parent = ParentNone
	}
	every := []time.Duration{time.Hour, 5 * time.Hour, 7 * time.Hour, 24 * time.Hour}[m.random.IntN(4)]
	every = max(every, lasts/20) // Each of these costs this test time.
	blocks := 8 << m.random.IntN(4)
	long := newLongBackup(m.site, 0, blocks, every, m.somebodyActs)
	long.look = max(flushCheckInterval<<m.random.IntN(3), lasts/600) // So does each of these.
	read := &readings{longModel: m, began: m.now(), uploaded: m.process(m.mover).uploaded()}
	var reads int64
	for i, d := range m.disks {
		reads += int64(len(d.data)) / DefaultBlockBytes
		if known {
			reads += (d.changed.Bytes() - int64(len(d.data))) / DefaultBlockBytes
		}
		q.Disks[i].Reader = &longReader{Reader: &countedReader{Reader: d, all: read, disk: i}, long: long}
	}
	long.pause = lasts / time.Duration(max(1, reads/int64(blocks)))
	end := m.end(&q, mayEnd, cancel)
	wakes := m.random.Int64N(max(1, reads))
	for i := range q.Disks {
		q.Disks[i].Reader = &hookedReader{Reader: q.Disks[i].Reader, call: func(int64) {
			if wakes--; wakes != 0 {
				return
			}
			if end != nil {
				end()
			} else if m.chance(2) {
				read.sleeps(id)
				m.sleeps()
			}
		}}
	}
	m.did[fmt.Sprintf("incremental: %t", known)]++
	m.running = true
	p, err := long.backUp(ctx, m.r, q)
	m.running = false
	read.ended(id)
	return p, err
}

// sleeps lets hours or days pass in which the machine does nothing and others do.
func (m *longModel) sleeps() {
	m.did["slept"]++
	for range 1 + m.random.IntN(8) {
		m.move(time.Duration(1+m.random.IntN(12)) * time.Hour)
		m.somebodyActs()
	}
}

// somebodyActs does what others do at some moment.
func (m *longModel) somebodyActs() {
	ctx := m.t.Context()
	what := []string{"quick", "full", "full", "exclusive", "kopia's full", "kopia's quick", "kopia's expire", "delete"}[m.random.IntN(8)]
	m.did[what]++
	var err error
	switch what {
	case "quick", "full", "exclusive":
		m.maintains(what)
	case "delete":
		m.deletes()
	case "kopia's full", "kopia's quick":
		mode := map[string]maintenance.Mode{"kopia's full": maintenance.ModeFull, "kopia's quick": maintenance.ModeQuick}[what]
		err = repo.DirectWriteSession(ctx, m.others.conn.Kopia, repo.WriteSessionOptions{}, func(ctx context.Context, w repo.DirectRepositoryWriter) error {
			return snapshotmaintenance.Run(ctx, kopiaWriter{w, m.others.conn.Access.ConfigFile}, mode, true, maintenance.SafetyFull)
		})
	case "kopia's expire":
		err = repo.DirectWriteSession(ctx, m.others.conn.Kopia, repo.WriteSessionOptions{}, func(ctx context.Context, w repo.DirectRepositoryWriter) error {
			if err := w.Refresh(ctx); err != nil {
				return err
			}
			// Restore points and session manifests are pinned, so it deletes nothing.
			_, err := policy.ApplyRetentionPolicy(ctx, w, testSource.KopiaSource(), true)
			return err
		})
	}
	if err != nil {
		m.t.Errorf("%s: %v", what, err)
	}
}

// kopiaWriter is a writer as the kopia CLI has it, which makes its lock file beside the file of the connection.
type kopiaWriter struct {
	repo.DirectRepositoryWriter

	configFile string
}

func (w kopiaWriter) ConfigFilename() string { return w.configFile }
