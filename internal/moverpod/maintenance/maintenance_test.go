package maintenance

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/location"
	"github.com/varvebackup/varve/internal/moverpod/deletion"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/internal/repositoryaccess"
)

func TestMain(m *testing.M) {
	storage.Register()
	goleak.VerifyTestMain(m)
}

const testPassword = "pa55wordTESTONLY"

var testPoint = strings.Repeat("a", 32)

// pod is a maintenance pod: what it has, what it logs, and what it leaves.
type pod struct {
	*testing.T
	dir            string
	access         datamove.Access
	log            bytes.Buffer
	later          time.Duration // the clock is ahead
	collectMissing string
	// contents is what the last run has counted.
	contents int64
}

func newPod(t *testing.T) *pod {
	t.Helper()
	return newPodIn(t, "repository")
}

func newPodIn(t *testing.T, prefix string) *pod {
	t.Helper()
	p := &pod{T: t, dir: t.TempDir()}
	p.access = datamove.Access{Password: testPassword, Directory: filepath.Join(p.dir, prefix)}
	var err error
	if p.access.UniqueID, err = repositoryaccess.NewStore(time.Now, nil).Prepare(t.Context(), p.access, location.Lock{}); err != nil {
		t.Fatal(err)
	}
	return p
}

// run runs the program, and returns its error, or what it has left undone.
func (p *pod) run() (message string, err error) {
	p.Helper()
	o := Options{
		AccessFile: filepath.Join(p.dir, datamove.AccessKey), MessageFile: filepath.Join(p.dir, "termination-log"), CacheDirectory: p.dir,
		Now: func() time.Time { return time.Now().Add(p.later) }, Log: slog.New(slog.NewTextHandler(&p.log, nil)),
		CollectMissing: p.collectMissing,
	}
	for name, text := range map[string][]byte{o.AccessFile: p.access.Encode(), o.MessageFile: nil} {
		if err := os.WriteFile(name, text, 0o600); err != nil {
			p.Fatal(err)
		}
	}
	err = Run(p.Context(), o)
	text, problem := os.ReadFile(o.MessageFile)
	if problem != nil {
		p.Fatal(problem)
	}
	if all := p.log.String() + string(text); strings.Contains(all, testPassword) || err != nil && strings.Contains(err.Error(), testPassword) {
		p.Errorf("a secret is shown: %s %v", all, err)
	}
	if err != nil {
		return string(text), err
	}
	report := datamove.DecodeMaintenanceReport(string(text))
	p.contents = report.Contents
	return report.Remark, nil
}

// use opens the repository for writing.
func (p *pod) use(do func(*repository.Repository)) {
	p.Helper()
	r, err := repository.OpenLocation(p.Context(), repository.Location{Directory: p.access.Directory}, testPassword, repository.ConnectOptions{Host: "h", User: "u"})
	if err != nil {
		p.Fatal(err)
	}
	do(r)
	if err := r.Close(p.Context()); err != nil {
		p.Fatal(err)
	}
}

func TestRun_isFullOnceADay(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	for _, mode := range []string{"mode=full", "mode=quick", "mode=quick"} {
		p.log.Reset()
		if message, err := p.run(); err != nil || message != "" {
			t.Fatalf("%q %v", message, err)
		}
		if !strings.Contains(p.log.String(), mode) || !strings.Contains(p.log.String(), "maintenance is done") {
			t.Errorf("%s, want %s", p.log.String(), mode)
		}
	}
	r, err := repository.OpenLocation(t.Context(), repository.Location{Directory: p.access.Directory}, testPassword, repository.ConnectOptions{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	status, err := r.Status(t.Context())
	if err == nil && (p.contents == 0 || p.contents != status.Contents) {
		t.Errorf("the last run has counted %d contents, want %d", p.contents, status.Contents)
	}
	if err != nil || status.Maintenance.LastFull.IsZero() || len(status.Maintenance.Failures) > 0 {
		t.Errorf("%+v %v", status.Maintenance, err)
	}
	if err := r.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestRun_saysWhyItFailed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		edit func(*pod)
		want string
	}{
		"another repository": {func(p *pod) { p.access.UniqueID = strings.Repeat("0", len(p.access.UniqueID)) }, "another repository has taken the place"},
		"a wrong password":   {func(p *pod) { p.access.Password = "wrong" }, "the password does not open the repository"},
		"nothing there":      {func(p *pod) { p.access.Directory += "/x" }, "no such file or directory"},
		"no access":          {func(p *pod) { p.access.Password = "" }, "no password"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPod(t)
			c.edit(p)
			message, err := p.run()
			if err == nil || err.Error() != message || !strings.Contains(message, c.want) {
				t.Errorf("%q %v, want %s", message, err, c.want)
			}
		})
	}
}

func TestRun_leavesReadOnlyLocationsAlone(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	p.access.ReadOnly = true
	if message, err := p.run(); err != nil || message != "" || strings.Contains(p.log.String(), "begins") {
		t.Errorf("%q %v %s", message, err, p.log.String())
	}
}

// A restore point of a backup that is gone from the location goes; what is kept is said, and is no failure.
func TestRun_collectsWhatBackupsHaveLeft(t *testing.T) {
	t.Parallel()
	p := newPodIn(t, datamove.RepositoryPrefix("", "shop"))
	backups := filepath.Join(p.dir, "backups")
	for _, name := range []string{"monday", "tuesday"} {
		if err := os.MkdirAll(filepath.Join(backups, name, "x"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	p.use(func(r *repository.Repository) {
		q := repository.FilesRequest{ID: testPoint, Source: r.Source("h", "u", "/p"), Root: t.TempDir(), Labels: map[string]string{
			datamove.LabelUploadName: "u1", datamove.LabelBackupName: "monday", datamove.LabelBackupUID: "m1",
		}}
		if _, err := r.BackupFiles(t.Context(), q); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Pin(t.Context(), testPoint, []string{"audit"}, nil); err != nil {
			t.Fatal(err)
		}
	})
	look := func(want string) {
		t.Helper()
		if message, err := p.run(); err != nil || !strings.Contains(message, want) || want == "" && message != "" {
			t.Errorf("%q %v, want %q", message, err, want)
		}
		p.later += deletion.Grace + time.Minute
	}
	look("")
	if err := os.RemoveAll(filepath.Join(backups, "monday")); err != nil {
		t.Fatal(err)
	}
	look("")
	look(testPoint + " (pinned)")
	if err := os.RemoveAll(backups); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(backups, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	look("restore points of deleted backups were not collected: ")
	if err := os.Remove(backups); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(backups, "tuesday"), 0o700); err != nil {
		t.Fatal(err)
	}
	p.use(func(r *repository.Repository) {
		if _, err := r.Pin(t.Context(), testPoint, nil, []string{"audit"}); err != nil {
			t.Fatal(err)
		}
	})
	look("")
	p.use(func(r *repository.Repository) {
		if all, err := r.List(t.Context(), nil); err != nil || len(all) != 0 {
			t.Errorf("%v %v", all, err)
		}
	})
}

// An agreement that cannot be read is no agreement, and maintenance goes on.
func TestRun_saysThatAnAgreementCannotBeRead(t *testing.T) {
	t.Parallel()
	p := newPodIn(t, datamove.RepositoryPrefix("", "shop"))
	p.collectMissing = "yes"
	message, err := p.run()
	named := strings.Contains(message, datamove.AnnotationCollectMissing)
	if err != nil || !named || !strings.Contains(message, "a time such as") {
		t.Errorf("%q %v", message, err)
	}
}
