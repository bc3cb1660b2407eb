package deletion

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kopia/kopia/repo/blob"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/internal/repositoryaccess"
	"github.com/varvebackup/varve/test/verdict"
)

// collect takes one look, some time later.
func (s *site) collect(later time.Duration) (Collected, error) {
	s.Helper()
	s.now = s.now.Add(later)
	var done Collected
	var failure error
	s.withRepository(func(r *repository.Repository) {
		backups, err := repositoryaccess.NewStore(time.Now, nil).Backups(s.Context(), s.access)
		if err != nil {
			s.Fatal(err)
		}
		st, err := repositoryaccess.Locate(s.access).Open(s.Context(), false)
		if err != nil {
			s.Fatal(err)
		}
		c := Collector{
			Repository: r, Backups: backups, Storage: st, Agreed: s.agreed,
			Now: func() time.Time { return s.now }, Log: s.logger(),
		}
		done, failure = c.Collect(s.Context())
		if err := st.Close(s.Context()); err != nil {
			s.Error(err)
		}
	})
	return done, failure
}

// looks takes looks, and wants restore points to be left.
func (s *site) looks(left string, later ...time.Duration) Collected {
	s.Helper()
	var done Collected
	for _, d := range later {
		var err error
		if done, err = s.collect(d); err != nil {
			s.Fatal(err)
		}
	}
	if got := s.points(); got != left {
		verdict.Errorf(s, "left: %q, want %q", got, left)
	}
	return done
}

// long is more than Grace.
const long = Grace + time.Minute

func TestCollect_deletesWhatIsMissingForLong(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.backup("monday", "tuesday")
	s.point("a", "monday")
	s.point("b", "tuesday")
	s.point("c", "") // no backup of Velero's
	s.looks("abc", 0)
	s.removeBackup("monday")
	s.looks("abc", long)              // it is missed for the first time
	s.looks("abc", Grace-time.Minute) // not for long enough
	if done := s.looks("bc", time.Hour); done.Deleted != 1 || done.Summary() != "" {
		t.Errorf("%+v", done)
	}
	s.looks("bc", long, long)
}

func TestCollect_missesNothingThatComesBack(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.backup("monday", "tuesday")
	s.point("a", "monday")
	s.looks("a", 0)
	s.removeBackup("monday")
	s.looks("a", time.Hour)
	s.backup("monday")
	s.looks("a", time.Hour)
	s.removeBackup("monday")
	s.looks("a", long) // missing anew, and not since before
	s.looks("", long)
}

// Neither of these is the deletion of a backup.
func TestCollect_takesNothingElseForADeletion(t *testing.T) {
	t.Parallel()
	for name, mistake := range map[string]func(*site){
		// The prefix of the location was changed, or its repositories alone were copied to another bucket.
		"the location looks empty": func(s *site) {
			if err := os.RemoveAll(s.backups()); err != nil {
				s.Fatal(err)
			}
		},
		"the directory of backups is empty": func(s *site) {
			s.removeBackup("monday")
			s.removeBackup("tuesday")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.backup("monday", "tuesday")
			s.point("a", "monday")
			s.looks("a", 0)
			mistake(s)
			s.looks("a", time.Hour, long, long)
			// Once another backup is there, it counts as missing from then on.
			s.backup("wednesday")
			s.looks("a", time.Hour)
			s.looks("", long)
		})
	}
}

// A backup that runs, or that failed before Velero stored it, has never been in the location.
func TestCollect_missesNothingThatItHasNeverSeen(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.backup("other")
	s.point("a", "monday")
	s.looks("a", 0, long, long, long)
}

// What no DataUpload has made is the user's, whatever its labels.
func TestCollect_leavesWhatTheUserHasMade(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.backup("monday", "tuesday")
	store(t, s.access, "a", map[string]string{datamove.LabelBackupName: "monday", datamove.LabelBackupUID: "uid-of-m"})
	s.point("b", "monday") // so that the backup is missed
	s.looks("ab", 0)
	s.removeBackup("monday")
	s.looks("a", time.Hour, long, long)
}

// A later version may know of a reason to keep what this one would delete.
func TestCollect_followsNoMemoryOfAnotherVersion(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.backup("monday", "tuesday")
	s.point("a", "monday")
	s.looks("a", 0)
	s.removeBackup("monday")
	s.looks("a", time.Hour)
	st, err := repositoryaccess.Locate(s.access).Open(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	text, err := storage.ReadBlob(t.Context(), st, sightings)
	if err != nil {
		t.Fatal(err)
	}
	later := strings.Replace(string(text), `"version":1`, `"version":2`, 1)
	if err := st.PutBlob(t.Context(), sightings, storage.Bytes(later), blob.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := st.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.collect(long); err == nil || !strings.Contains(err.Error(), "version 2, want 1") {
		t.Errorf("%v", err)
	}
	if got := s.points(); got != "a" {
		verdict.Errorf(t, "left: %q", got)
	}
}

func TestCollect_endsWhenItCannotList(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.backup("monday", "tuesday")
	s.point("a", "monday")
	s.looks("a", 0)
	s.removeBackup("monday")
	s.looks("a", time.Hour)
	moved := s.backups() + ".moved"
	if err := os.Rename(s.backups(), moved); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.backups(), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.collect(long); err == nil {
		t.Error("a listing that fails looks empty")
	}
	if got := s.points(); got != "a" {
		verdict.Errorf(t, "left: %q", got)
	}
}

// A server that cuts a listing short says nothing of it.
func TestHas_asksInTwoWays(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	long := strings.Repeat("x", 70)
	s.backup("monday", long)
	b, err := repositoryaccess.NewStore(time.Now, nil).Backups(t.Context(), s.access)
	if err != nil {
		t.Fatal(err)
	}
	for label, want := range map[string]bool{
		"monday": true, "mon": false, "monday2": false, datamove.BackupLabel(long): true, datamove.BackupLabel(long + "y"): false, strings.Repeat("x", 63): false,
	} {
		if got, err := b.Has(t.Context(), label); err != nil || got != want {
			t.Errorf("%s: %v %v", label, got, err)
		}
	}
	for _, bad := range []string{"", "../../backups/monday"} {
		if _, err := b.Has(t.Context(), bad); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
	// Of a backup whose deletion was interrupted something is there.
	if err := os.Remove(filepath.Join(s.backups(), "monday", "velero-backup.json")); err != nil {
		t.Fatal(err)
	}
	if got, err := b.Has(t.Context(), "monday"); err != nil || !got {
		t.Errorf("%v %v", got, err)
	}
}

func TestCollect_keepsWhatIsPinnedAndSaysSo(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.backup("monday", "tuesday")
	id := s.point("a", "monday")
	s.point("b", "monday")
	s.pin(id)
	s.looks("ab", 0)
	s.removeBackup("monday")
	done := s.looks("a", time.Hour, long)
	if want := "restore points of deleted backups are kept: " + id + " (pinned)"; done.Summary() != want {
		t.Errorf("%q", done.Summary())
	}
	s.withRepository(func(r *repository.Repository) {
		if _, err := r.Pin(t.Context(), id, nil, []string{"audit"}); err != nil {
			t.Fatal(err)
		}
	})
	s.looks("", time.Hour)
}

// An administrator copies the repositories to another bucket, and the backups follow days later; meanwhile there is
// one new backup. Before, everything that is older was deleted in the new place after a day.
func TestCollect_doubtsThatMostBackupsWereDeletedAtOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	names := []string{"monday", "tuesday", "wednesday", "thursday"}
	s.backup(append(names, "new")...)
	for i, name := range names {
		s.point(string("abcd"[i]), name)
	}
	s.looks("abcd", 0)
	for _, name := range names {
		s.removeBackup(name)
	}
	done := s.looks("abcd", time.Hour, long, long)
	says := done.Summary()
	for _, want := range []string{"4 in all", datamove.AnnotationCollectMissing, done.DoubtedAt.Format(time.RFC3339)} {
		if done.Doubted != len(names) || !strings.Contains(says, want) {
			t.Errorf("%+v: %q, want %q", done, says, want)
		}
	}
	s.backup("monday") // the copy goes on
	s.looks("abcd", time.Hour)
	s.removeBackup("monday") // one alone is a deletion
	s.looks("abcd", time.Hour)
	if done := s.looks("bcd", long); done.Doubted != 3 {
		t.Errorf("%+v", done)
	}
	s.agreed = done.DoubtedAt.Add(-time.Second) // to something else
	s.looks("bcd", time.Hour)
	s.agreed = done.DoubtedAt
	if done := s.looks("", time.Hour); done.Deleted != 3 || done.Summary() != "" {
		t.Errorf("%+v", done)
	}
}

// Backups end one after the other, also if each is kept for less than Grace, or looks are rare.
func TestLook_whatEndsInTurnIsNoDoubt(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, c := range map[string]struct {
		were, missed int
		want         bool
	}{
		"a few, and all of them": {3, 3, false},
		"half":                   {8, 4, false},
		"most":                   {7, 4, true},
		"all":                    {4, 4, true},
		"many, and not most":     {100, 40, false},
	} {
		before := memory{Backups: map[string]sighting{"earlier/u": {Missing: &now}}}
		groups := map[string][]*repository.RestorePoint{"earlier/u": nil}
		there := map[string]bool{"new": true}
		for i := range c.were {
			key := fmt.Sprintf("b%d/u", i)
			before.Backups[key], groups[key] = sighting{}, nil
			there[fmt.Sprintf("b%d", i)] = i >= c.missed
		}
		after := compareSightings(before, groups, there, nil, now)
		if got := after.Backups["b0/u"]; got.Missing == nil || got.WithMost != c.want {
			t.Errorf("%s: %+v", name, got)
		}
		if got := after.Backups["earlier/u"]; got.WithMost {
			t.Errorf("%s: what went missing before: %+v", name, got)
		}
	}
}
