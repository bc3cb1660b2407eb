package deletion

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/test/verdict"
)

// delete runs the program for restore points, and returns its report.
func (s *site) delete(points ...datamove.PointToDelete) (datamove.DeletionReport, error) {
	s.Helper()
	return s.runJob(datamove.DeletionJob{Repository: s.access.UniqueID, Points: points})
}

func (s *site) runJob(job datamove.DeletionJob) (datamove.DeletionReport, error) {
	s.Helper()
	o := Options{
		Job: job.Encode(), AccessFile: filepath.Join(s.dir, datamove.AccessKey), MessageFile: filepath.Join(s.dir, "termination-log"),
		CacheDirectory: s.dir, Now: func() time.Time { return s.now }, Log: s.logger(),
	}
	for name, text := range map[string][]byte{o.AccessFile: s.access.Encode(), o.MessageFile: nil} {
		if err := os.WriteFile(name, text, 0o600); err != nil {
			s.Fatal(err)
		}
	}
	err := Run(s.Context(), o)
	text, problem := os.ReadFile(o.MessageFile)
	if problem != nil {
		s.Fatal(problem)
	}
	if all := s.log.String() + string(text); strings.Contains(all, testPassword) {
		s.Errorf("a secret is shown: %s", all)
	}
	if err != nil {
		if err.Error() != string(text) {
			s.Errorf("the message is %q, and the error %v", text, err)
		}
		return datamove.DeletionReport{}, err
	}
	report, err := datamove.DecodeDeletionReport(string(text))
	if err != nil {
		s.Fatal(err)
	}
	return report, nil
}

func ask(ids ...string) (points []datamove.PointToDelete) {
	for _, id := range ids {
		points = append(points, datamove.PointToDelete{ID: id})
	}
	return points
}

func TestRun_deletesAndCanBeRepeated(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.backup("other")
	a, b := s.point("a", "monday"), s.point("b", "")
	s.point("c", "monday")
	for range 2 { // what is not there any more is done
		report, err := s.delete(ask(a, b, strings.Repeat("e", 32))...)
		if err != nil || len(report.Kept) != 0 {
			t.Fatalf("%+v %v", report, err)
		}
		if got := s.points(); got != "c" {
			verdict.Errorf(t, "left: %s", got)
		}
	}
}

func TestRun_keepsWhatMustStay(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.backup("monday")
	pinned, there, other, gone := s.point("a", ""), s.point("b", "monday"), s.point("c", "tuesday"), s.point("d", "tuesday")
	s.pin(pinned)
	report, err := s.delete(
		datamove.PointToDelete{ID: pinned}, datamove.PointToDelete{ID: there},
		datamove.PointToDelete{ID: other, Backup: "tuesday", BackupUID: "another"}, // a later backup of the same name
		datamove.PointToDelete{ID: gone, Backup: "tuesday", BackupUID: "uid-of-t"},
	)
	want := map[string]datamove.Kept{pinned: {Why: datamove.KeptPinned}, there: {Why: datamove.KeptBackupThere}, other: {Why: datamove.KeptForeign}}
	if err != nil || !cmp.Equal(report.Kept, want) {
		t.Errorf("%+v %v", report.Kept, err)
	}
	if got := s.points(); got != "abc" {
		verdict.Errorf(t, "left: %s", got)
	}
}

// What somebody says about an upload does not count: the restore point knows its backup, and for that of another one nobody may ask.
func TestRun_believesTheRestorePointAlone(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	id := s.point("a", "monday")
	report, err := s.delete(datamove.PointToDelete{ID: id, Backup: "tuesday"})
	if err != nil || report.Kept[id].Why != datamove.KeptForeign || s.points() != "a" {
		t.Errorf("%+v %v", report, err)
	}
}

func TestRun_failsRatherThanGuess(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		edit func(*site)
		want string
	}{
		"another repository":   {func(s *site) { s.access.UniqueID = strings.Repeat("0", len(s.access.UniqueID)) }, "another repository has taken the place"},
		"a wrong password":     {func(s *site) { s.access.Password = "wrong" }, "the password does not open"},
		"no repository":        {func(s *site) { s.access.Directory = filepath.Join(s.dir, datamove.RepositoryPrefix("b", "shop")) }, "no such file"},
		"a read-only location": {func(s *site) { s.access.ReadOnly = true }, "read-only"},
		"backups that are no directory": {func(s *site) {
			if err := os.WriteFile(s.backups(), nil, 0o600); err != nil {
				s.Fatal(err)
			}
		}, "not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			id, right := s.point("a", "monday"), s.access
			c.edit(s)
			report, err := s.delete(ask(id)...)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%+v %v, want %s", report, err, c.want)
			}
			s.access = right
			if got := s.points(); got != "a" {
				verdict.Errorf(t, "left: %q", got)
			}
		})
	}
}

// The Secret was changed between the job and its pod: the location has the same name and is elsewhere.
func TestRun_believesNoAbsenceInAnotherRepository(t *testing.T) {
	t.Parallel()
	s, other := newSite(t), newSite(t)
	id := s.point("a", "")
	job := datamove.DeletionJob{Repository: s.access.UniqueID, Points: ask(id)}
	if report, err := other.runJob(job); err == nil || !strings.Contains(err.Error(), "another repository") {
		t.Errorf("%+v %v", report, err)
	}
}

func TestGuard_keepsWhatIsLocked(t *testing.T) {
	t.Parallel()
	made := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	p := &repository.RestorePoint{Time: made}
	lock := &repository.ObjectLock{Period: 48 * time.Hour}
	until := made.Add(48 * time.Hour)
	for name, c := range map[string]struct {
		g    guard
		want *datamove.Kept
	}{
		"no lock":        {guard{nil, made.Add(time.Hour)}, nil},
		"locked":         {guard{lock, until.Add(-time.Second)}, &datamove.Kept{Why: datamove.KeptLocked, Until: &until}},
		"locked no more": {guard{lock, until}, nil},
	} {
		if got := c.g.keeps(p); !cmp.Equal(got, c.want) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
