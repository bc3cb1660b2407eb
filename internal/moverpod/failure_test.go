package moverpod

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/minio/minio-go/v7"
	corev1 "k8s.io/api/core/v1"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/mover"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/repository/storage/advice/advicetest"
)

const (
	block      = corev1.PersistentVolumeBlock
	filesystem = corev1.PersistentVolumeFilesystem
)

// What cannot succeed is reported, with what to do.
func TestOpen_reportsWhatLasts(t *testing.T) {
	t.Parallel()
	another := newSite(t)
	for name, c := range map[string]struct {
		change func(*site)
		texts  []string
	}{
		"wrong password":      {func(s *site) { s.access.Password = "another secret" }, []string{"wrong password", "put it into the Secret"}},
		"no repository":       {func(s *site) { s.access.Directory = filepath.Join(s.dir, "absent") }, []string{"absent", "delete the BackupRepository"}},
		"another repository":  {func(s *site) { s.access.Directory = another.access.Directory }, []string{another.access.UniqueID, "somebody has replaced it"}},
		"read-only":           {func(s *site) { s.access.ReadOnly = true }, []string{"read-only", "accessMode to ReadWrite"}},
		"neither of the both": {func(s *site) { s.access.Directory = "" }, []string{"neither or both", "same version"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			c.change(s)
			s.newPod(t, newUpload(block), newDevice(t, mib)).fails(t, c.texts...)
		})
	}
}

func TestOpen_triesAgainWhatMayPass(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for name, c := range map[string]struct {
		change func(*pod)
		text   string
	}{
		"no access yet":     {func(p *pod) { _ = os.Remove(p.Files.Access) }, "no such file"},
		"no repository yet": {func(p *pod) { s.withoutID().give(t, p.Files) }, "has not been made yet"},
		"no UID":            {func(p *pod) { p.PodUID = "" }, datamove.PodUIDVariable},
	} {
		p := s.newPod(t, newUpload(block), newDevice(t, mib))
		c.change(p)
		if err := Run(t.Context(), p.Options); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", name, err)
		}
		if report, ok := p.api.report(t); ok {
			t.Errorf("%s: %+v", name, report)
		}
	}
}

// withoutID is the site before its repository was made.
func (s *site) withoutID() *site {
	out := *s
	out.access.UniqueID = ""
	return &out
}

func TestUpload_reportsWhatLasts(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, noise(mib, 1), 0o600); err != nil {
		t.Fatal(err)
	}
	linked := t.TempDir()
	if err := os.Symlink(secret, filepath.Join(linked, datamove.ImageFile)); err != nil {
		t.Fatal(err)
	}
	s.newPod(t, newUpload(block), filepath.Join(t.TempDir(), "absent")).fails(t, "absent", "without its volume")
	s.newPod(t, newUpload(""), newDevice(t, mib)).fails(t, "no volume", "same version")
	job := newUpload(block)
	job.UID = "not-a-uid"
	s.newPod(t, job, newDevice(t, mib)).fails(t, "not-a-uid")
	job = newUpload(block)
	job.Labels = map[string]string{"bad key!": "x"}
	s.newPod(t, job, newDevice(t, mib)).fails(t, "bad key!")
	// A link in a tenant's volume leads nowhere.
	p := s.newPod(t, newUpload(filesystem), linked)
	if err := Run(t.Context(), p.Options); err != nil {
		t.Fatal(err)
	}
	for _, point := range s.points(t) {
		if len(point.Disks) > 0 {
			t.Errorf("a link was followed into %s", point.ID)
		}
	}
}

func TestDownload_reportsWhatLasts(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	stored := s.upload(t, block, newDevice(t, 2*mib))
	id, err := datamove.ParseSnapshotID(stored.SnapshotID)
	if err != nil {
		t.Fatal(err)
	}
	asFiles, absent := id, id
	asFiles.Form = datamove.Files
	absent.Point = strings.Repeat("0", 32)
	occupied := t.TempDir()
	if err := os.Symlink("/etc/passwd", filepath.Join(occupied, datamove.ImageFile)); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		mode       corev1.PersistentVolumeMode
		snapshotID string
		volume     string
		texts      []string
	}{
		"another mover's":      {block, "5f1d7c6a", newDevice(t, 2*mib), []string{"5f1d7c6a", "that has backed it up"}},
		"files onto a device":  {block, asFiles.String(), newDevice(t, 2*mib), []string{"volumeMode Block", "volumeMode Filesystem"}},
		"deleted":              {block, absent.String(), newDevice(t, 2*mib), []string{absent.Point, "it was deleted"}},
		"no device":            {block, id.String(), filepath.Join(t.TempDir(), "absent"), []string{"absent", "without its volume"}},
		"a link for the image": {filesystem, id.String(), occupied, []string{"is no file", "new claim"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s.newPod(t, newDownload(c.mode, c.snapshotID), c.volume).fails(t, c.texts...)
		})
	}
}

func TestDownload_neverWritesWhatIsDamaged(t *testing.T) {
	t.Parallel()
	s, device := newSite(t), newDevice(t, 8*mib)
	report := s.upload(t, block, device)
	damagePacks(t, s.access.Directory)
	volume := t.TempDir()
	s.newPod(t, newDownload(filesystem, report.SnapshotID), volume).fails(t, "varve repo check")
}

// damagePacks flips bytes in every pack with data.
func damagePacks(t *testing.T, directory string) {
	t.Helper()
	damaged := 0
	err := filepath.WalkDir(filepath.Join(directory, "p"), func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for at := 4096; at < len(data); at += 100_000 {
			data[at] ^= 1
		}
		damaged++
		return os.WriteFile(path, data, 0o600)
	})
	if err != nil || damaged == 0 {
		t.Fatalf("%d packs, %v", damaged, err)
	}
}

func TestDownload_isReadOnlyWhereTheLocationIs(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	device := newDevice(t, 2*mib)
	report := s.upload(t, block, device)
	s.access.ReadOnly = true
	volume := t.TempDir()
	s.newPod(t, newDownload(filesystem, report.SnapshotID), volume).run(t, datamove.Succeeded)
	content, err := os.ReadFile(device)
	if err != nil {
		t.Fatal(err)
	}
	wantContent(t, filepath.Join(volume, datamove.ImageFile), content)
}

func TestJudge_decidesByClass(t *testing.T) {
	t.Parallel()
	answer := func(status int, code string) error {
		return fmt.Errorf("PutBlob: %w", minio.ErrorResponse{StatusCode: status, Code: code})
	}
	for name, c := range map[string]struct {
		err    error
		advice string // "-": it may pass
	}{
		"nothing":                 {nil, "-"},
		"no answer":               {fmt.Errorf("x: %w", repository.ErrUnreachable), "-"},
		"outcome unknown":         {fmt.Errorf("x: %w", errclass.Unknown), "-"},
		"abandoned":               {mover.ErrAbandoned, "-"},
		"maintenance":             {errclass.Errorf(errclass.Conflict, "exclusive maintenance"), "-"},
		"no class":                {errors.New("x"), "-"},
		"input/output error":      {&os.PathError{Op: "read", Path: "x", Err: syscall.EIO}, "-"},
		"server error":            {answer(http.StatusInternalServerError, "InternalError"), "-"},
		"session gone":            {fmt.Errorf("%w: session", errclass.NotFound), "-"},
		"full target":             {errclass.Errorf(errclass.ErrTargetFull, "make some: %w", syscall.ENOSPC), ""},
		"full, nobody knows what": {fmt.Errorf("x: %w", syscall.ENOSPC), "-"},
		"denied":                  {fmt.Errorf("x: %w", errclass.Denied), "credentials"},
		"damaged":                 {errors.Join(errors.New("a"), fmt.Errorf("x: %w", errclass.Corrupt)), "varve repo check"},
		"invalid":                 {fmt.Errorf("x: %w", disk.ErrArgument), ""},
		"judged before":           {fmt.Errorf("x: %w", lasting(errclass.NotFound, "y")), ": y"},
		"password":                {fmt.Errorf("x: %w", repository.ErrPassword), "password"},
		"damaged or unknown":      {errors.Join(errclass.Corrupt, errclass.Unknown), "-"},
		"bucket that is not ours": {fmt.Errorf("x: %w", repository.ErrNoBucket), "-"},
	} {
		err := judge(c.err)
		var lasts *lastingError
		switch is := errors.As(err, &lasts); {
		case is != (c.advice != "-"):
			t.Errorf("%s: it lasts: %v", name, is)
		case is && !strings.Contains(err.Error(), c.advice):
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The report of a mover gives the advice that everybody gives, if trying again does not help.
func TestJudge_storage(t *testing.T) {
	t.Parallel()
	for _, c := range advicetest.Cases() {
		err := judge(fmt.Errorf("store the volume: %w", c.Err))
		var lasts *lastingError
		if errors.As(err, &lasts) != c.Lasts {
			t.Errorf("%s: it lasts: %v", c.Name, !c.Lasts)
			continue
		}
		for _, want := range []string{c.What, c.Do} {
			if c.Lasts && !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %s", c.Name, err, want)
			}
		}
	}
}

func TestShorten_keepsWholeRunes(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "short", strings.Repeat("x", maxMessageBytes), strings.Repeat("é", maxMessageBytes), "x" + strings.Repeat("é", maxMessageBytes)} {
		got := shorten(text)
		if len(got) > maxMessageBytes+len("…") || len(text) <= maxMessageBytes && got != text || strings.ContainsRune(got, '�') {
			t.Errorf("%d bytes become %d", len(text), len(got))
		}
	}
}
