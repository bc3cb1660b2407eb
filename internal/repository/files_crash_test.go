package repository

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/errclass"
)

var testFilesID = strings.Repeat("f1", 16)

// manyFiles fills a tree with n files in 20 directories.
func (m *treeMaker) manyFiles(n int) {
	m.tb.Helper()
	for i := range n {
		m.file(fmt.Sprintf("d%02d/f%05d", i%20, i), []byte(fmt.Sprintf("content %d of %s", i, m.root)), 0o644)
	}
}

// ownFilesSteps are the failpoints that only a backup of files has.
var ownFilesSteps = []string{"tree put", "tree stored"}

func TestBackupFiles_killedAtEveryStep(t *testing.T) {
	t.Parallel()
	for _, step := range append([]string{"session put", "session stored", "description put", "directory put", "restore point put", "restore point stored", "restore point recorded"}, ownFilesSteps...) {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			config := s.connect(t, "host", !cached)
			m := newTree(t)
			m.manyFiles(100)
			j := job{Config: config, Do: "backUpFiles", Source: testSource, Time: time.Unix(1000, 0), Root: m.root, IDs: []string{testFilesID}, Failpoint: step, Pass: 1}
			if o := j.run(t, s, 0); !o.Killed {
				t.Fatalf("it did not die: %+v", o)
			}
			r := s.opened(t, config)
			listed, err := r.List(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if there := strings.HasPrefix(step, "restore point") && step != "restore point put"; there != (len(listed) == 1) {
				t.Errorf("%d restore points are listed", len(listed))
			}
			j.Failpoint = ""
			if o := j.run(t, s, 0); o.Error != "" || o.ID != testFilesID {
				t.Fatalf("repeated: %+v", o)
			}
			refresh(t, r)
			if listed, err = r.List(t.Context(), nil); err != nil || len(listed) != 1 {
				t.Fatalf("%d restore points, %v", len(listed), err)
			}
			compareTrees(t, readTree(t, m.root), readTree(t, mustRestoreFiles(t, r, listed[0])))
		})
	}
}

// An attempt that was cancelled, or whose files could not be read, is continued.
func TestBackupFiles_continuesAnInterruptedAttempt(t *testing.T) {
	t.Parallel()
	r, _ := newRepository(t)
	m := newTree(t)
	m.manyFiles(5000)
	ctx, cancel := context.WithCancel(t.Context())
	q := filesRequest(m.root, 1)
	q.ID, q.Parallel = testFilesID, 1
	q.Progress = func(p FilesProgress) {
		if p.DoneFiles > 500 {
			cancel()
		}
	}
	if _, err := r.BackupFiles(ctx, q); !errors.Is(err, context.Canceled) {
		t.Fatalf("%v", err)
	}
	refresh(t, r)
	if listed, err := r.List(t.Context(), nil); err != nil || len(listed) > 0 {
		t.Fatalf("%d restore points after that, %v", len(listed), err)
	}
	q.Progress = nil
	p := mustBackUpFiles(t, r, q)
	if s := p.Files.Stats; s.KeptFiles < 500 || s.KeptFiles+s.ReadFiles != 5000 || p.Files.FullReason != FullNoParent {
		t.Errorf("%+v", p.Files)
	}
	compareTrees(t, readTree(t, m.root), readTree(t, mustRestoreFiles(t, r, p)))
}

func TestBackupFiles_failsWithThePathOfWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	r, _ := newRepository(t)
	// Nobody can read these files. Which one is read first is not known.
	const root = "/proc/self/attr"
	files, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.BackupFiles(t.Context(), filesRequest(root, 1))
	if err == nil || !slices.ContainsFunc(files, func(f os.DirEntry) bool { return strings.Contains(err.Error(), f.Name()) }) {
		t.Errorf("%v", err)
	}
	if listed, err := r.List(t.Context(), nil); err != nil || len(listed) > 0 {
		t.Errorf("%d restore points after that, %v", len(listed), err)
	}
}

func TestRestoreFiles_continuesAfterItWasKilled(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	config := s.connect(t, "host", !cached)
	r := s.opened(t, config)
	m := newTree(t)
	m.manyFiles(3000)
	m.everything()
	p := mustBackUpFiles(t, r, filesRequest(m.root, 1))
	other := mustBackUpFiles(t, r, filesRequest(m.root, 2))
	want := readTree(t, m.root)
	for _, lost := range []bool{false, true} {
		to := t.TempDir()
		j := job{Config: config, Do: "restoreFiles", Root: to, IDs: []string{p.ID}, Files: 200}
		if o := j.run(t, s, 0); !o.Killed {
			t.Fatalf("it did not die: %+v", o)
		}
		if err := r.RestoreFiles(t.Context(), FilesRestoreRequest{ID: other.ID, Directory: to}); !errors.Is(err, errclass.Conflict) {
			t.Errorf("another restore point into what is left: %v", err)
		}
		if lost { // The machine has lost what it had not made durable, and started again.
			boot := filepath.Join(to, ".varve-restore-"+p.ID, "boot")
			if err := os.WriteFile(boot, []byte("another start"), 0o600); err != nil {
				t.Fatal(err)
			}
			broken := 0
			for i := range 3000 {
				name := filepath.Join(to, fmt.Sprintf("d%02d/f%05d", i%20, i))
				if st, err := os.Stat(name); err == nil && broken < 20 {
					if err := os.WriteFile(name, make([]byte, st.Size()), 0o600); err != nil {
						t.Fatal(err)
					}
					broken++
				}
			}
			if broken == 0 {
				t.Fatal("nothing was restored yet")
			}
		}
		inodes := func() map[string]uint64 {
			out := map[string]uint64{}
			for i := range 3000 {
				name := filepath.Join(to, fmt.Sprintf("d%02d/f%05d", i%20, i))
				var st unix.Stat_t
				if unix.Lstat(name, &st) == nil {
					out[name] = st.Ino
				}
			}
			return out
		}
		before := inodes()
		var written int64
		if err := r.RestoreFiles(t.Context(), FilesRestoreRequest{ID: p.ID, Directory: to, Progress: func(p FilesProgress) { written = p.ReadBytes }}); err != nil {
			t.Fatal(err)
		}
		compareTrees(t, want, readTree(t, to))
		if after := inodes(); !lost {
			for name, ino := range before {
				if after[name] != ino {
					t.Errorf("%s was complete, and was made again", name)
				}
			}
		}
		if len(before) < 100 {
			t.Errorf("%d files were there", len(before))
		}
		t.Logf("%d bytes were written after that, of %d", written, p.Files.Bytes)
	}
}

func TestRestoreFiles_endsItsLease(t *testing.T) {
	t.Parallel()
	r, _ := newRepository(t)
	m := newTree(t)
	m.manyFiles(10)
	p := mustBackUpFiles(t, r, filesRequest(m.root, 1))
	during := 0
	err := r.RestoreFiles(t.Context(), FilesRestoreRequest{ID: p.ID, Directory: t.TempDir(), Progress: func(FilesProgress) { during = max(during, leases(t, r)) }})
	if err != nil {
		t.Fatal(err)
	}
	refresh(t, r)
	if after := leases(t, r); during != 1 || after != 0 {
		t.Errorf("%d leases during the restore, %d after it", during, after)
	}
}
