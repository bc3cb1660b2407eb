package deletion

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/test/verdict"
)

// backupWithUID puts a backup into the location as Velero does, in the place of one of its name.
func (s *site) backupWithUID(name, uid string) {
	s.Helper()
	s.removeBackup(name)
	s.backup(name)
	const object = `{"apiVersion":"velero.io/v1","kind":"Backup","metadata":{"name":%q,"uid":%q}}`
	s.writeBackupFile(name, fmt.Sprintf(object, name, uid))
}

func (s *site) writeBackupFile(name, text string) {
	s.Helper()
	if err := os.WriteFile(filepath.Join(s.backups(), name, "velero-backup.json"), []byte(text), 0o600); err != nil {
		s.Fatal(err)
	}
}

// Weekday names: a backup was deleted, and another one was made under its name, before the Job of the first one's
// restore points came.
func TestRun_deletesThePointOfABackupWhoseNameIsUsedAgain(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.backupWithUID("monday", "another-uid")
	old := s.point("a", "monday") // of uid-of-m
	report, err := s.delete(datamove.PointToDelete{ID: old, Backup: "monday", BackupUID: "uid-of-m"})
	if err != nil || len(report.Kept) > 0 || s.points() != "" {
		verdict.Errorf(t, "%+v %v, left: %q", report, err, s.points())
	}
}

// What cannot be read, or is no backup of that name, does not say that the name is another one's.
func TestRun_keepsThePointOfABackupThatCannotBeTold(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.backup("monday")
	id := s.point("a", "monday")
	for _, text := range []string{
		"", "{", "null", "{}", `{"metadata":{"name":"monday"}}`, `{"metadata":{"name":"tuesday","uid":"x"}}`,
		`{"metadata":{"name":"monday","uid":"uid-of-m"}}`,
	} {
		s.writeBackupFile("monday", text)
		report, err := s.delete(datamove.PointToDelete{ID: id, Backup: "monday", BackupUID: "uid-of-m"})
		if err != nil || report.Kept[id].Why != datamove.KeptBackupThere {
			verdict.Errorf(t, "%q: %+v %v", text, report, err)
		}
	}
}

func TestCollect_tellsBackupsOfOneNameByTheirUID(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.backupWithUID("monday", "uid-of-m")
	s.backup("other")
	s.point("a", "monday")
	s.looks("a", 0, long, long)
	s.backupWithUID("monday", "another-uid")
	store(t, s.access, "b", map[string]string{
		datamove.LabelUploadName: "u-b", datamove.LabelBackupName: "monday", datamove.LabelBackupUID: "another-uid",
	})
	s.looks("ab", long, Grace-time.Minute)
	s.looks("b", time.Hour, long, long)
}

// The file of a backup is read once a day.
func TestCollect_readsABackupOnceADay(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.backupWithUID("monday", "uid-of-m")
	s.point("a", "monday")
	s.looks("a", 0)
	s.backupWithUID("monday", "another-uid")
	s.looks("a", time.Hour, time.Hour) // not noticed yet
	s.looks("a", Grace)                // missed from now on
	s.looks("a", Grace-time.Minute)
	s.looks("", time.Minute)
}
