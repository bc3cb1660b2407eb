package disk

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/nbd"
	"github.com/varvebackup/varve/test/verdict"
)

func newTestJournal(t *testing.T, o JournalOptions) *Journal {
	t.Helper()
	o.RegionBytes = 64 * kib
	j, err := NewJournal(o)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// restore writes the regions of content that the journal does not have, at most limit of them, and returns how many it
// wrote.
func restore(t *testing.T, target Target, j *Journal, content []byte, limit int) int {
	t.Helper()
	wrote := 0
	for at := int64(0); at < int64(len(content)); at += j.o.RegionBytes {
		region := int(at / j.o.RegionBytes)
		if j.Done(region) || wrote == limit {
			continue
		}
		wrote++
		part := content[at:min(at+j.o.RegionBytes, int64(len(content)))]
		var err error
		if isZero(part) {
			err = target.Zero(t.Context(), extent.Extent{Offset: at, Length: int64(len(part))})
		} else {
			err = target.WriteAt(t.Context(), part, at)
		}
		if err != nil {
			t.Fatal(err)
		}
		j.Finished(t.Context(), target, region)
	}
	return wrote
}

// wantFile checks the content of a file, which may be half of a restore and so cannot be a Source.
func wantFile(t *testing.T, path string, want []byte) {
	t.Helper()
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		verdict.Fatalf(t, "other bytes (%d, want %d): %v", len(got), len(want), err)
	}
}

func TestRestore_resumesWhereItEnded(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "disk.img")
	content := noise(mib+1000, 1)
	clear(content[300*kib : 600*kib])
	open := func(token string, overwrite bool) (Target, *Journal, error) {
		j := newTestJournal(t, JournalOptions{Token: token})
		target, err := OpenTarget(t.Context(), path, int64(len(content)), TargetOptions{Journal: j, Overwrite: overwrite})
		return target, j, err
	}
	target, j, err := open("a", false)
	if err != nil {
		t.Fatal(err)
	}
	restore(t, target, j, content, 7)
	if err := errors.Join(j.Save(t.Context(), target), target.Close()); err != nil {
		t.Fatal(err)
	}

	_, _, err = open("b", false)
	wantError(t, err, errclass.Conflict, path, "half of another restore (a)", "overwrite")

	if target, j, err = open("a", false); err != nil {
		t.Fatal(err)
	}
	if got := j.DoneBytes(); got != 7*64*kib {
		t.Errorf("%d bytes are done", got)
	}
	if got := restore(t, target, j, content, 100); got != 10 {
		t.Errorf("%d regions were written again, want 10", got)
	}
	if got := j.DoneBytes(); got != int64(len(content)) {
		t.Errorf("%d bytes are done", got)
	}
	if err := errors.Join(j.Save(t.Context(), target), target.Close()); err != nil {
		t.Fatal(err)
	}
	wantFile(t, path, content)

	// Another restore may replace it if it is told to. Nothing of the first one counts any more.
	if target, j, err = open("b", true); err != nil {
		t.Fatal(err)
	}
	if j.DoneBytes() != 0 {
		t.Error("the other restore's regions count")
	}
	restore(t, target, j, make([]byte, len(content)), 100)
	if err := errors.Join(target.Close(), j.Remove()); err != nil {
		t.Fatal(err)
	}
	wantBytes(t, openSource(t, path, SourceOptions{}), make([]byte, len(content)))
	if left, err := filepath.Glob(path + "*"); err != nil || len(left) != 1 {
		t.Errorf("left are %v (%v)", left, err)
	}
}

// TestRestore_inParallel has several workers write. Each of them may get to write the journal.
func TestRestore_inParallel(t *testing.T) {
	t.Parallel()
	path, content := filepath.Join(t.TempDir(), "disk.img"), noise(4*mib+5, 1)
	j := newTestJournal(t, JournalOptions{Token: "a", Every: time.Nanosecond})
	target, err := OpenTarget(t.Context(), path, int64(len(content)), TargetOptions{Journal: j})
	if err != nil {
		t.Fatal(err)
	}
	var workers sync.WaitGroup
	var next atomic.Int64
	for range 8 {
		workers.Go(func() {
			for {
				region := next.Add(1) - 1
				at := region * j.o.RegionBytes
				if at >= int64(len(content)) {
					return
				}
				if err := target.WriteAt(t.Context(), content[at:min(at+j.o.RegionBytes, int64(len(content)))], at); err != nil {
					t.Error(err)
				}
				j.Finished(t.Context(), target, int(region))
			}
		})
	}
	workers.Wait()
	if err := errors.Join(j.Save(t.Context(), target), target.Close()); err != nil {
		t.Fatal(err)
	}
	wantFile(t, path, content)
	data, err := os.ReadFile(path + JournalSuffix)
	if err != nil {
		t.Fatal(err)
	}
	if s, err := parseState(data); err != nil || s.finishedBytes() != int64(len(content)) {
		t.Errorf("the journal has %d bytes (%v)", s.finishedBytes(), err)
	}
}

// A restore to a file that is not the one in the journal starts from the beginning. If the file has content, it is
// refused.
func TestJournal_isOfOneTarget(t *testing.T) {
	t.Parallel()
	content := noise(mib, 1)
	for what, change := range map[string]func(path string) error{
		"removed":  os.Remove,
		"replaced": func(path string) error { return errors.Join(os.Remove(path), os.WriteFile(path, content[1:], 0o600)) },
		"shrunk":   func(path string) error { return os.Truncate(path, mib-1) },
		"damaged":  func(path string) error { return os.WriteFile(path+JournalSuffix, []byte("{"), 0o600) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "disk.img")
			j := newTestJournal(t, JournalOptions{Token: "a", Every: time.Nanosecond})
			target, err := OpenTarget(t.Context(), path, mib, TargetOptions{Journal: j})
			if err != nil {
				t.Fatal(err)
			}
			restore(t, target, j, content, 10)
			if err := errors.Join(target.Close(), change(path)); err != nil {
				t.Fatal(err)
			}
			j = newTestJournal(t, JournalOptions{Token: "a"})
			target, err = OpenTarget(t.Context(), path, mib, TargetOptions{Journal: j})
			if what != "removed" {
				wantError(t, err, errclass.Conflict, path, JournalSuffix)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if j.DoneBytes() != 0 {
				t.Errorf("%d bytes of a new file are done", j.DoneBytes())
			}
			restore(t, target, j, content, 100)
			if err := errors.Join(target.Close(), j.Remove()); err != nil {
				t.Fatal(err)
			}
			wantBytes(t, openSource(t, path, SourceOptions{}), content)
		})
	}
}

// The restore to an export goes on where it ended only if the caller says that it is the same export.
func TestJournal_goesOnAtATargetThatTheCallerIdentifies(t *testing.T) {
	t.Parallel()
	content := noise(mib, 1)
	uri := serveNBD(t, nbd.Export{Backend: &ram{data: make([]byte, mib)}})
	path := filepath.Join(t.TempDir(), "journal")
	open := func(identity string) (Target, *Journal) {
		t.Helper()
		j := newTestJournal(t, JournalOptions{Token: "a", Path: path, Target: identity})
		target, err := OpenTarget(t.Context(), uri, mib, TargetOptions{Journal: j, Overwrite: true})
		if err != nil {
			t.Fatal(err)
		}
		return target, j
	}
	for _, c := range []struct {
		identity string
		resumes  bool
	}{{"claim 1", true}, {"claim 1", true}, {"claim 2", false}, {"", false}} {
		target, j := open("claim 1")
		restore(t, target, j, content, 7)
		if err := errors.Join(j.Save(t.Context(), target), target.Close()); err != nil {
			t.Fatal(err)
		}
		target, j = open(c.identity)
		if got := j.DoneBytes() > 0; got != c.resumes {
			t.Errorf("identified as %q: %d bytes are done", c.identity, j.DoneBytes())
		}
		if err := errors.Join(target.Close(), j.Remove()); err != nil {
			t.Fatal(err)
		}
	}
}

// A caller's name for a file does not count: a file that was made anew has nothing of what was restored.
func TestJournal_identifiesAFileItself(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "disk.img")
	content := noise(mib, 1)
	j := newTestJournal(t, JournalOptions{Token: "a", Target: "claim 1"})
	target, err := OpenTarget(t.Context(), path, mib, TargetOptions{Journal: j})
	if err != nil {
		t.Fatal(err)
	}
	restore(t, target, j, content, 7)
	if err := errors.Join(j.Save(t.Context(), target), target.Close(), os.Remove(path)); err != nil {
		t.Fatal(err)
	}
	j = newTestJournal(t, JournalOptions{Token: "a", Target: "claim 1"})
	if target, err = OpenTarget(t.Context(), path, mib, TargetOptions{Journal: j}); err != nil {
		t.Fatal(err)
	}
	if j.DoneBytes() != 0 {
		t.Errorf("%d bytes of a new file are done", j.DoneBytes())
	}
	if err := errors.Join(target.Close(), j.Remove()); err != nil {
		t.Fatal(err)
	}
}

func TestJournal_refused(t *testing.T) {
	t.Parallel()
	for _, o := range []JournalOptions{{Token: "", RegionBytes: 1}, {Token: "a"}, {Token: "a", RegionBytes: -1}} {
		_, err := NewJournal(o)
		wantError(t, err, errclass.Invalid, "journal")
	}
	j, err := NewJournal(JournalOptions{Token: "a", RegionBytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	_, err = OpenTarget(t.Context(), filepath.Join(t.TempDir(), "d"), 1<<40, TargetOptions{Journal: j})
	wantError(t, err, errclass.Invalid, "regions")
}

// errCrash is what everything returns after the power has gone.
var errCrash = errors.New("power is gone")

// machine has files and a target. The power goes after some steps. Then anything that was not synced may be lost, or
// may survive.
type machine struct {
	mu    sync.Mutex
	steps int // left until the power goes
	// names and nodes are what running programs see; durable has the names that were synced.
	names    map[string]int
	nodes    map[int][]byte
	synced   map[int]bool
	durable  map[string]int
	disk     []byte
	diskSafe []byte
	// full: there is no room for the content of another file. torn has the earlier content of files that were
	// overwritten and not synced.
	full bool
	torn map[int][]byte
}

func newMachine(size int) *machine {
	return &machine{
		names: map[string]int{}, nodes: map[int][]byte{}, synced: map[int]bool{}, durable: map[string]int{},
		disk: make([]byte, size), diskSafe: make([]byte, size), torn: map[int][]byte{},
	}
}

// step is a moment at which the power may go.
func (m *machine) step() error {
	if m.steps--; m.steps < 0 {
		return errCrash
	}
	return nil
}

func (m *machine) Read(path string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.step(); err != nil {
		return nil, err
	}
	node, ok := m.names[path]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return bytes.Clone(m.nodes[node]), nil
}

func (m *machine) Write(path string, data []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.step(); err != nil {
		return err
	}
	if m.full {
		return unix.ENOSPC
	}
	node, ok := m.names[path]
	if !ok {
		node = len(m.nodes)
		m.names[path] = node
	}
	m.nodes[node], m.synced[node] = bytes.Clone(data), false
	return nil
}

func (m *machine) Overwrite(path string, data []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.step(); err != nil {
		return err
	}
	node, ok := m.names[path]
	if !ok || !m.synced[node] || len(m.nodes[node]) != len(data) {
		return errors.New("only what is durable and as long is written over")
	}
	m.torn[node] = m.nodes[node]
	m.nodes[node] = bytes.Clone(data)
	return nil
}

func (m *machine) Sync(path string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.step(); err != nil {
		return err
	}
	if node, ok := m.names[path]; ok {
		m.synced[node] = true
		delete(m.torn, node)
		return nil
	}
	m.durable = maps.Clone(m.names) // there is only one directory
	return nil
}

func (m *machine) Rename(from, to string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.step(); err != nil {
		return err
	}
	m.names[to] = m.names[from]
	delete(m.names, from)
	return nil
}

func (m *machine) Remove(path string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.step(); err != nil {
		return err
	}
	if _, ok := m.names[path]; !ok {
		return fs.ErrNotExist
	}
	delete(m.names, path)
	return nil
}

// power brings the power back. Each name is either its durable version or its last one; a file that was not synced has
// a part of what it had.
func (m *machine) power(r *rapid.T) {
	after := map[string]int{}
	all := maps.Clone(m.durable)
	maps.Copy(all, m.names)
	for _, path := range slices.Sorted(maps.Keys(all)) {
		from := m.durable
		if rapid.Bool().Draw(r, "the name "+path+" was written back") {
			from = m.names
		}
		if node, ok := from[path]; ok {
			after[path] = node
		}
	}
	for _, node := range slices.Sorted(maps.Values(after)) {
		if !m.synced[node] {
			m.nodes[node] = m.nodes[node][:rapid.IntRange(0, len(m.nodes[node])).Draw(r, "bytes of an unsynced file")]
			m.synced[node] = true
		}
	}
	for _, node := range slices.Sorted(maps.Keys(m.torn)) {
		was := m.torn[node]
		from := rapid.IntRange(0, len(was)).Draw(r, "first byte that was written over")
		to := rapid.IntRange(from, len(was)).Draw(r, "end of those")
		copy(was[from:to], m.nodes[node][from:to])
		m.nodes[node] = was
	}
	clear(m.torn)
	m.names, m.durable = after, maps.Clone(after)
	for i := range m.disk {
		if rapid.Bool().Draw(r, "region written back") {
			m.diskSafe[i] = m.disk[i]
		}
	}
	m.disk = bytes.Clone(m.diskSafe)
}

// The methods of the target. A byte stands for a region.

func (m *machine) Bytes() int64 { return int64(len(m.disk)) }

func (m *machine) WriteAt(_ context.Context, p []byte, at int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.step(); err != nil {
		return err
	}
	copy(m.disk[at:], p)
	return nil
}

// truncate frees the disk, durably at once: nothing guarantees that it takes effect any later.
func (m *machine) truncate() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.step(); err != nil {
		return err
	}
	clear(m.disk)
	clear(m.diskSafe)
	return nil
}

func (m *machine) Zero(context.Context, extent.Extent) error { return nil }

func (m *machine) target() Target { return syncTarget{m} }

// syncTarget has the target's methods whose names the machine's files already use.
type syncTarget struct{ *machine }

func (s syncTarget) Sync(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.step(); err != nil {
		return err
	}
	copy(s.diskSafe, s.disk)
	return nil
}

func (s syncTarget) Close() error { return nil }

// TestJournal_neverClaimsWhatIsNotThere cuts the power between any two steps of successive restores, each possibly with
// other content than the one before. What a journal says is finished must be on the disk, with the content of the
// journal's token.
func TestJournal_neverClaimsWhatIsNotThere(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		const regions = 11
		m := newMachine(regions)
		id := identity{name: "disk", certain: true}
		kept := map[string]int{} // regions that a checkpoint has promised, by token
		for range rapid.IntRange(1, 6).Draw(r, "runs") {
			m.steps = rapid.IntRange(0, 60).Draw(r, "steps")
			token := rapid.SampledFrom([]string{"1", "2"}).Draw(r, "token")
			j, err := NewJournal(JournalOptions{Path: "/d/j", Token: token, RegionBytes: 1, Every: time.Nanosecond})
			if err != nil {
				r.Fatal(err)
			}
			j.files = m
			full := rapid.Bool().Draw(r, "no space")
			if err := runOnce(m, j, id, kept, full); err != nil && !errors.Is(err, errCrash) {
				r.Fatal(err)
			}
			m.full = false
			m.power(r)
			m.steps = 1 << 30
			for _, token := range []string{"1", "2"} {
				n, err := claims(m, token, id)
				if err != nil {
					r.Fatal(err)
				}
				if n < kept[token] {
					r.Fatalf("of %d regions that a checkpoint of %s has kept, %d are left", kept[token], token, n)
				}
				kept[token] = n
			}
		}
	})
}

// runOnce restores until the power goes, or half of what is missing. With full, there is no space for a new journal
// once the restore has begun.
func runOnce(m *machine, j *Journal, id identity, kept map[string]int, full bool) error {
	resumed, _, err := j.resumeTarget("", Raw, id, m.Bytes())
	if err != nil {
		return err
	}
	if !resumed {
		clear(kept)
		if err := errors.Join(j.removeFile(), m.truncate(), j.beginTarget(id)); err != nil {
			return err
		}
	}
	ctx := context.Background()
	m.full = full
	for i := range len(m.disk) {
		if j.Done(i) || i%2 == m.steps%2 {
			continue
		}
		if err := m.WriteAt(ctx, []byte(j.o.Token), int64(i)); err != nil {
			return err
		}
		j.Finished(ctx, m.target(), i)
	}
	if err := j.Save(ctx, m.target()); err != nil {
		return err
	}
	kept[j.o.Token] = int(j.DoneBytes())
	if j.DoneBytes() < m.Bytes() {
		return nil
	}
	clear(kept)
	return j.Remove()
}

// claims returns how many regions a restore with this token would find done. Each of them must be.
func claims(m *machine, token string, id identity) (int, error) {
	j, err := NewJournal(JournalOptions{Path: "/d/j", Token: token, RegionBytes: 1})
	if err != nil {
		return 0, err
	}
	j.files = m
	if _, _, err := j.resumeTarget("", Raw, id, m.Bytes()); err != nil {
		return 0, err
	}
	for i, b := range m.diskSafe {
		if j.Done(i) && b != token[0] {
			return 0, verdict.Error("the journal says that region %d of %s is done, but it has %q", i, token, b)
		}
	}
	return int(j.DoneBytes()), nil
}

// Only an earlier state of the same restore is overwritten.
func TestJournal_isOverwrittenOnlyByItsOwn(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*journalState){
		"token": func(s *journalState) { s.Token = "b" }, "target": func(s *journalState) { s.Target = "y" }, "size": func(s *journalState) { s.Bytes = 8 },
		"more finished": func(s *journalState) { s.Finished.set(5) }, "nothing": func(*journalState) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(9)
			m.steps = 1 << 30
			j := &Journal{path: "/d/j", files: m}
			was := newState("a", "x", 9, 1)
			change(&was)
			if err := writeDurably(m, j.path, was.marshal()); err != nil {
				t.Fatal(err)
			}
			m.full = true
			now := newState("a", "x", 9, 1)
			now.Finished.set(3)
			err := j.replaceState(&now)
			got, read := m.Read(j.path)
			if read != nil {
				t.Fatal(read)
			}
			if want := now.marshal(); name == "nothing" && (err != nil || !bytes.Equal(got, want)) {
				t.Errorf("%s, %v", got, err)
			}
			if want := was.marshal(); name != "nothing" && (!errors.Is(err, errclass.Exhausted) || !bytes.Equal(got, want)) {
				t.Errorf("%s, %v", got, err)
			}
		})
	}
}

func TestJournal_failuresAreReported(t *testing.T) {
	t.Parallel()
	m := newMachine(3)
	m.steps = 1 << 30
	j, err := NewJournal(JournalOptions{Path: "/d/j", Token: "1", RegionBytes: 1, Every: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	j.files = m
	if err := j.beginTarget(identity{}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := j.resumeTarget("", Raw, identity{name: "x", certain: true}, 3); err != nil {
		t.Fatal(err)
	}
	j.Finished(t.Context(), m.target(), 1)
	m.steps = 0
	if err := j.Save(t.Context(), m.target()); !errors.Is(err, errCrash) {
		t.Errorf("%v, want that it failed", err)
	}
	m.steps = 1 << 30
	if err := j.Save(t.Context(), m.target()); err != nil {
		t.Error(err)
	}
	if s, err := parseState(m.nodes[m.names["/d/j"]]); err != nil || !s.Finished.has(1) || s.Finished.count() != 1 {
		t.Errorf("%+v, %v", s, err)
	}
}

// The next version must read what this one writes.
func TestJournal_format(t *testing.T) {
	t.Parallel()
	s := newState("restore point k1/disk vda", "file:254:1:42:1700000000.000000001", 20*mib+1, 2*mib)
	s.Format = QCOW2
	s.Finished.set(0)
	s.Finished.set(9)
	s.Finished.set(10)
	golden, err := os.ReadFile("testdata/journal-v2.json")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(golden), string(s.marshal())); diff != "" {
		t.Errorf(verdict.GoldenMark+"(-want +got) %s", diff)
	}
	if got, err := parseState(golden); err != nil || !cmp.Equal(got, s) {
		t.Errorf(verdict.GoldenMark+"%+v, %v", got, err)
	}
	if got := s.finishedBytes(); got != 4*mib+1 {
		t.Errorf("%d bytes are finished", got)
	}
}

func FuzzParseState(f *testing.F) {
	s := newState("t", "file:1:2", 100*mib+1, mib)
	s.Finished.set(100)
	f.Add(s.marshal())
	f.Add([]byte(`{"version":2,"token":"a","format":"raw","target":"b","bytes":9,"regionBytes":1,"finished":"//8="}`))
	f.Add([]byte(`{"version":3}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := parseState(data)
		if err != nil {
			return
		}
		for i := range int(min(s.regionCount()+9, 100)) {
			if s.Finished.has(i) && int64(i) >= s.regionCount() {
				t.Errorf("region %d of %d", i, s.regionCount())
			}
		}
		if n := s.finishedBytes(); n < 0 || n > s.Bytes {
			t.Errorf("%d of %d bytes are finished", n, s.Bytes)
		}
		if again, err := parseState(s.marshal()); err != nil || again.Token != s.Token || !bytes.Equal(again.Finished, s.Finished) {
			t.Errorf("%+v became %+v (%v)", s, again, err)
		}
	})
}
