package repository

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kopia/kopia/repo"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/test/verdict"
)

func filesRequest(root string, at int64) FilesRequest {
	return FilesRequest{Source: testSource, Root: root, Identity: "claim", Time: time.Unix(at, 0)}
}

func mustBackUpFiles(tb testing.TB, r *Repository, q FilesRequest) *RestorePoint {
	tb.Helper()
	p, err := r.BackupFiles(tb.Context(), q)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

func mustRestoreFiles(tb testing.TB, r *Repository, p *RestorePoint) string {
	tb.Helper()
	to := tb.TempDir()
	if err := r.RestoreFiles(tb.Context(), FilesRestoreRequest{ID: p.ID, Directory: to}); err != nil {
		tb.Fatal(err)
	}
	return to
}

func compareTrees(tb verdict.TB, want, got map[string]treeEntry) {
	tb.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		verdict.Errorf(tb, "the tree came back otherwise (-want +got):\n%s", diff)
	}
}

func TestBackupFiles_bringsBackEverything(t *testing.T) {
	t.Parallel()
	r, _ := newRepository(t)
	m := newTree(t)
	m.everything()
	want := readTree(t, m.root)
	var last FilesProgress
	q := filesRequest(m.root, 1)
	q.Progress = func(p FilesProgress) { last = p }
	p := mustBackUpFiles(t, r, q)
	if last.DoneBytes != last.TotalBytes || last.DoneFiles != last.TotalFiles || !last.TotalKnown {
		t.Errorf("progress ended with %+v", last)
	}
	if p.Files.Sockets != 1 || p.Files.Specials != 5 || len(p.Disks) != 0 {
		t.Errorf("the restore point says %+v", p.Files)
	}
	if p.Files.Stats.ReadBytes > 40<<20 {
		t.Errorf("%d bytes were read: holes were", p.Files.Stats.ReadBytes)
	}
	to := t.TempDir()
	rq := FilesRestoreRequest{ID: p.ID, Directory: to, Progress: func(p FilesProgress) { last = p }}
	if err := os.Mkdir(filepath.Join(to, "lost+found"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := r.RestoreFiles(t.Context(), rq); err != nil {
		t.Fatal(err)
	}
	if last.DoneBytes != last.TotalBytes || last.DoneFiles != last.TotalFiles {
		t.Errorf("progress of the restore ended with %+v", last)
	}
	if err := os.Remove(filepath.Join(to, "lost+found")); err != nil {
		t.Fatal(err)
	}
	(&treeMaker{tb: t, root: to}).age(".", time.Unix(1e9, 7))
	compareTrees(t, want, readTree(t, to))
	for _, name := range []string{"sparse", "all hole"} {
		if was, is := allocated(t, m.path(name)), allocated(t, filepath.Join(to, name)); is > was {
			t.Errorf("%s takes %d bytes and took %d", name, is, was)
		}
	}
}

func TestBackupFiles_storesAnEmptyVolume(t *testing.T) {
	t.Parallel()
	r, _ := newRepository(t)
	m := newTree(t)
	m.age(".", time.Unix(5, 5))
	p := mustBackUpFiles(t, r, filesRequest(m.root, 1))
	compareTrees(t, readTree(t, m.root), readTree(t, mustRestoreFiles(t, r, p)))
}

func TestBackupFiles_storesPathsOfAnyLength(t *testing.T) {
	t.Parallel()
	r, _ := newRepository(t)
	m := newTree(t)
	t.Logf("a path of %d bytes", m.deep("far down"))
	p := mustBackUpFiles(t, r, filesRequest(m.root, 1))
	if got := readDeep(t, mustRestoreFiles(t, r, p)); got != "far down" {
		verdict.Errorf(t, "the file has %q", got)
	}
}

func TestBackupFiles_readsOnlyWhatChanged(t *testing.T) {
	t.Parallel()
	r, _ := newRepository(t)
	m := newTree(t)
	for _, name := range []string{"a", "dir/b", "dir/c", "d"} {
		m.file(name, []byte("the content of "+name), 0o644)
		m.age(name, time.Unix(1000, 0))
	}
	m.sparse("holes", 1<<30, map[int64]string{1 << 20: "x"})
	m.check(os.Link(m.path("a"), m.path("hard")))
	m.pass()
	m.file("newest", nil, 0o644)
	first := mustBackUpFiles(t, r, filesRequest(m.root, 1))
	m.pass()
	m.file("dir/c", []byte("the c0ntent of dir/c"), 0o644) // the same size and time, as rsync or tar leave it
	m.age("dir/c", time.Unix(1000, 0))
	second := mustBackUpFiles(t, r, filesRequest(m.root, 2))
	if s := second.Files; s.Parent != first.ID || s.FullReason != "" || s.Stats.ReadFiles != 2 || s.Stats.KeptFiles != 5 || s.Stats.ReadBytes != int64(len("the content of dir/c")) {
		t.Errorf("the second backup: %+v", s)
	}
	compareTrees(t, readTree(t, m.root), readTree(t, mustRestoreFiles(t, r, second)))

	q := filesRequest(m.root, 3)
	q.Identity = "another claim"
	third := mustBackUpFiles(t, r, q)
	if s := third.Files; s.Parent != "" || s.FullReason != FullOtherIdentity || s.Stats.KeptFiles != 0 {
		t.Errorf("the backup of another claim: %+v", s)
	}
	q.Parent = ParentNone
	if s := mustBackUpFiles(t, r, q).Files; s.FullReason != FullAsked || s.Stats.KeptFiles != 0 {
		t.Errorf("the full backup: %+v", s)
	}
}

// Two snapshots of a volume are stored in the wrong order, because the first had to wait. A program was replaced in between by one of the
// same size, with the time of modification that its package has.
func TestBackupFiles_takesNothingFromALaterParent(t *testing.T) {
	t.Parallel()
	r, _ := newRepository(t)
	var snapshots []*treeMaker
	for _, program := range []string{"version 1", "version 2"} {
		m := newTree(t)
		m.file("program", []byte(program), 0o755)
		m.age("program", time.Unix(1, 0))
		m.pass()
		m.file("newest", []byte(program), 0o644)
		m.pass()
		snapshots = append(snapshots, m)
	}
	later := mustBackUpFiles(t, r, filesRequest(snapshots[1].root, 1))
	earlier := mustBackUpFiles(t, r, filesRequest(snapshots[0].root, 2))
	compareTrees(t, readTree(t, snapshots[0].root), readTree(t, mustRestoreFiles(t, r, earlier)))
	if f := earlier.Files; f.Parent != "" || f.FullReason != FullParentLater || f.Stats.KeptFiles != 0 {
		t.Errorf("%+v", f)
	}
	// The next one can go on from any of them.
	next := mustBackUpFiles(t, r, filesRequest(snapshots[1].root, 3))
	compareTrees(t, readTree(t, snapshots[1].root), readTree(t, mustRestoreFiles(t, r, next)))
	if later.Files.Tree != next.Files.Tree {
		verdict.Errorf(t, "the same files are another tree")
	}
}

// A clock that was ahead has left a file that was changed in the future. What is changed from now on is older, and is read all the same.
func TestBackupFiles_trustsNoTimeInTheFuture(t *testing.T) {
	t.Parallel()
	r, _ := newRepository(t)
	m := newTree(t)
	m.file("program", []byte("version 1"), 0o755)
	m.age("program", time.Unix(1, 0))
	begun := time.Now()
	r.conn.Kopia = stoppedClock{r.conn.Kopia, begun.Add(-time.Hour)}
	p := mustBackUpFiles(t, r, filesRequest(m.root, 1))
	if at := time.Unix(0, p.Files.Changed); at.After(begun.Add(-time.Hour)) {
		t.Errorf("what was changed before %s is trusted, and it was %s", at, begun.Add(-time.Hour))
	}
}

// stoppedClock is a repository on a machine with another time.
type stoppedClock struct {
	repo.DirectRepository
	now time.Time
}

func (c stoppedClock) Time() time.Time { return c.now }

func TestBackupFiles_repeatedWithItsIDReadsNothing(t *testing.T) {
	t.Parallel()
	r, _ := newRepository(t)
	m := newTree(t)
	m.file("a", []byte("a"), 0o644)
	q := filesRequest(m.root, 1)
	q.ID = strings.Repeat("ab", 16)
	first := mustBackUpFiles(t, r, q)
	q.Root = "/does/not/exist"
	again := mustBackUpFiles(t, r, q)
	if first.ID != q.ID || again.ID != q.ID || again.Files.Tree != first.Files.Tree {
		t.Errorf("%+v and then %+v", first, again)
	}
	q.Source.Path = "/other"
	if _, err := r.BackupFiles(t.Context(), q); !errors.Is(err, errclass.Conflict) {
		t.Errorf("the ID for another source: %v", err)
	}
}

func TestRestoreFiles_refusesADirectoryWithSomethingElse(t *testing.T) {
	t.Parallel()
	r, _ := newRepository(t)
	m := newTree(t)
	m.file("a", []byte("a"), 0o644)
	p := mustBackUpFiles(t, r, filesRequest(m.root, 1))
	to := newTree(t)
	to.file("b", []byte("precious"), 0o644)
	before := readTree(t, to.root)
	err := r.RestoreFiles(t.Context(), FilesRestoreRequest{ID: p.ID, Directory: to.root})
	if !errors.Is(err, errclass.Conflict) || !strings.Contains(err.Error(), `"b"`) {
		t.Errorf("%v", err)
	}
	compareTrees(t, before, readTree(t, to.root))
	to = newTree(t)
	to.dir(".varve-restore-"+strings.Repeat("cd", 16), 0o700)
	if err := r.RestoreFiles(t.Context(), FilesRestoreRequest{ID: p.ID, Directory: to.root}); !errors.Is(err, errclass.Conflict) || !strings.Contains(err.Error(), "cdcd") {
		t.Errorf("what another restore has left: %v", err)
	}
}
