package deletion

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/location"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/internal/repositoryaccess"
)

func TestMain(m *testing.M) {
	storage.Register()
	goleak.VerifyTestMain(m)
}

const testPassword = "pa55wordTESTONLY"

// site is a location in a directory, with the repository of one namespace and with backups as Velero lays them out.
type site struct {
	*testing.T
	dir    string
	access datamove.Access
	now    time.Time
	agreed time.Time
	log    strings.Builder
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{T: t, dir: t.TempDir(), now: time.Now()}
	s.access = datamove.Access{Password: testPassword, Directory: filepath.Join(s.dir, datamove.RepositoryPrefix("cluster-a", "shop"))}
	var err error
	if s.access.UniqueID, err = repositoryaccess.NewStore(time.Now, nil).Prepare(t.Context(), s.access, location.Lock{}); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *site) logger() *slog.Logger { return slog.New(slog.NewTextHandler(&s.log, nil)) }

func (s *site) backups() string { return filepath.Join(s.dir, "cluster-a", "backups") }

// backup puts a backup of Velero's into the location.
func (s *site) backup(names ...string) {
	s.Helper()
	for _, name := range names {
		dir := filepath.Join(s.backups(), name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			s.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "velero-backup.json"), []byte("{}"), 0o600); err != nil {
			s.Fatal(err)
		}
	}
}

func (s *site) removeBackup(name string) {
	s.Helper()
	if err := os.RemoveAll(filepath.Join(s.backups(), name)); err != nil {
		s.Fatal(err)
	}
}

// withRepository opens the repository for writing.
func (s *site) withRepository(do func(*repository.Repository)) {
	s.Helper()
	withRepository(s.T, s.access, do)
}

func withRepository(t *testing.T, a datamove.Access, do func(*repository.Repository)) {
	t.Helper()
	r, err := repositoryaccess.NewStore(time.Now, nil).Open(t.Context(), a, repository.ConnectOptions{Host: "h", User: "u"})
	if err != nil {
		t.Fatal(err)
	}
	do(r)
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// point makes a restore point as a mover does, of a backup or, with "", of none.
func (s *site) point(digit, backup string) string {
	s.Helper()
	return point(s.T, s.access, digit, backup)
}

func point(t *testing.T, a datamove.Access, digit, backup string) string {
	t.Helper()
	id := strings.Repeat(digit, 32)
	labels := map[string]string{datamove.LabelUploadName: "u-" + digit, datamove.LabelUploadNamespace: "velero"}
	if backup != "" {
		labels[datamove.LabelBackupName], labels[datamove.LabelBackupUID] = backup, "uid-of-"+backup[:1]
	}
	store(t, a, digit, labels)
	return id
}

// store makes a restore point with labels.
func store(t *testing.T, a datamove.Access, digit string, labels map[string]string) {
	t.Helper()
	id := strings.Repeat(digit, 32)
	withRepository(t, a, func(r *repository.Repository) {
		root := t.TempDir()
		if err := os.WriteFile(filepath.Join(root, "f"), []byte(id), 0o600); err != nil {
			t.Fatal(err)
		}
		q := repository.FilesRequest{ID: id, Source: r.Source(datamove.HistoryHost, datamove.HistoryUser, "/shop/c"+digit), Root: root, Labels: labels, Parallel: 1}
		if _, err := r.BackupFiles(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	})
}

func (s *site) pin(id string) {
	s.Helper()
	s.withRepository(func(r *repository.Repository) {
		if _, err := r.Pin(s.Context(), id, []string{"audit"}, nil); err != nil {
			s.Fatal(err)
		}
	})
}

// points returns the first digits of the restore points that are there.
func (s *site) points() string {
	s.Helper()
	return points(s.T, s.access)
}

func points(t *testing.T, a datamove.Access) (digits string) {
	t.Helper()
	withRepository(t, a, func(r *repository.Repository) {
		all, err := r.List(context.WithoutCancel(t.Context()), nil)
		if err != nil {
			t.Fatal(err)
		}
		present := map[string]bool{}
		for _, p := range all {
			present[p.ID[:1]] = true
		}
		for _, d := range "0123456789abcdef" {
			if present[string(d)] {
				digits += string(d)
			}
		}
	})
	return digits
}
