package repository

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/test/verdict"
)

// forbidFiles makes the process find no directory for files of its own. The returned function checks that there are none, in the
// working directory either, and that none is left open in memory.
func forbidFiles(t *testing.T) (check func()) {
	t.Helper()
	empty := t.TempDir()
	t.Chdir(empty)
	for _, name := range []string{"TMPDIR", "HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"} {
		t.Setenv(name, filepath.Join(empty, "none"))
	}
	return func() {
		t.Helper()
		if left, err := os.ReadDir(empty); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
		open, err := filepath.Glob("/proc/self/fd/*")
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range open {
			if file, err := os.Readlink(fd); err == nil && strings.HasPrefix(file, "/memfd:varve") {
				t.Errorf("%s is still open", file)
			}
		}
	}
}

// lacksSecrets checks that no file below dir has one of the secrets.
func lacksSecrets(t *testing.T, dir string, secrets ...string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		for _, secret := range secrets {
			if bytes.Contains(data, []byte(secret)) {
				t.Errorf("%s has a secret", path)
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// useEverything backs up a disk of a machine, restores, verifies and lists through a connection, and closes it.
func useEverything(t *testing.T, r *Repository, machine string) {
	t.Helper()
	disk := &memory{data: []byte("varve")}
	p, err := r.Backup(t.Context(), Request{Source: r.Source("", "", "/"+machine), Time: time.Unix(1, 0), Disks: []DiskSource{disk.source(false)}})
	if err != nil {
		t.Fatal(err)
	}
	if p.Source.String() != "mover@pod:/"+machine {
		t.Errorf("the source is %s", p.Source)
	}
	same(t, r, p, disk.data)
	report, err := r.Verify(t.Context(), VerifyOptions{Percent: 100})
	if err != nil || report.Damaged() || len(report.Points) == 0 {
		verdict.JudgeErrorf(t, err == nil, "%+v, %v", report, err)
	}
	l, err := r.Lease(t.Context(), p.ID, func(error) {})
	if err == nil {
		err = l.Release()
	}
	if err != nil {
		t.Error(err)
	}
	if s, err := r.Status(t.Context()); err != nil || s.RestorePoints == 0 || s.ConfigFile != "" {
		t.Errorf("%+v, %v", s, err)
	}
	if err := r.Close(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
}

// A pod may have no place for files at all.
func TestOpenLocation_needsNoFiles(t *testing.T) {
	at, cache := Location{Directory: filepath.Join(t.TempDir(), "blobs")}, filepath.Join(t.TempDir(), "cache")
	check := forbidFiles(t)
	if err := Create(t.Context(), at, testPassword, CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]ConnectOptions{
		"no cache": {Host: "pod", User: "mover"},
		"cache":    {Host: "pod", User: "mover", CacheDirectory: cache, CacheBytes: mib},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := OpenLocation(t.Context(), at, testPassword, o)
			if err != nil {
				t.Fatal(err)
			}
			if err := r.WithoutCache(); err != nil {
				t.Error(err)
			}
			useEverything(t, r, name)
			check()
		})
	}
	if found, err := os.ReadDir(cache); err != nil || len(found) == 0 {
		t.Errorf("the cache was not used: %v", err)
	}
	lacksSecrets(t, cache, testPassword)
}

func TestOpenLocation_maintainsWithALockFileThatGoes(t *testing.T) {
	at, temporary := Location{Directory: filepath.Join(t.TempDir(), "blobs")}, t.TempDir()
	if err := Create(t.Context(), at, testPassword, CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", temporary)
	r, err := OpenLocation(t.Context(), at, testPassword, ConnectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.Maintain(t.Context(), MaintenanceOptions{Mode: FullMaintenance}), r.Close(t.Context())); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestOpenLocation_saysWhatIsWrong(t *testing.T) {
	t.Parallel()
	at := Location{Directory: filepath.Join(t.TempDir(), "blobs")}
	if err := Create(t.Context(), at, testPassword, CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	damaged := Location{Directory: filepath.Join(t.TempDir(), "blobs")}
	if err := os.CopyFS(damaged.Directory, os.DirFS(at.Directory)); err != nil {
		t.Fatal(err)
	}
	formats, err := filepath.Glob(filepath.Join(damaged.Directory, "kopia.*.f"))
	if err != nil || len(formats) == 0 {
		t.Fatalf("%v, %v", formats, err)
	}
	for _, f := range formats {
		if err := os.WriteFile(f, []byte("damaged"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		at       Location
		password string
		o        ConnectOptions
		class    error
	}{
		"another password":               {at, "another", ConnectOptions{}, ErrPassword},
		"no repository":                  {Location{Directory: t.TempDir()}, testPassword, ConnectOptions{}, errclass.NotFound},
		"no directory":                   {Location{Directory: filepath.Join(at.Directory, "none")}, testPassword, ConnectOptions{}, fs.ErrNotExist},
		"a relative directory":           {Location{Directory: "blobs"}, testPassword, ConnectOptions{}, errclass.Invalid},
		"nowhere":                        {Location{}, testPassword, ConnectOptions{}, errclass.Invalid},
		"a cache of nothing":             {at, testPassword, ConnectOptions{CacheDirectory: t.TempDir()}, errclass.Invalid},
		"a damaged format, only reading": {damaged, testPassword, ConnectOptions{ReadOnly: true}, errclass.Corrupt},
	} {
		r, err := OpenLocation(t.Context(), c.at, c.password, c.o)
		if !errors.Is(err, c.class) {
			t.Errorf("%s: %v, want class %v", name, err, c.class)
		}
		if err == nil {
			_ = r.Close(t.Context())
		} else if strings.Contains(err.Error(), testPassword) || strings.Contains(err.Error(), "/proc/self") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// kopia's variable moves all caches to one directory, where the format of another repository may be.
func TestOpenLocation_trustsNoFormatInKopiasDirectory(t *testing.T) {
	t.Setenv("KOPIA_CACHE_DIRECTORY", filepath.Join(t.TempDir(), "kopia"))
	for _, name := range []string{"one", "another"} {
		at := Location{Directory: filepath.Join(t.TempDir(), name)}
		if err := Create(t.Context(), at, testPassword, CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		o := ConnectOptions{Host: "pod", User: "mover", CacheDirectory: filepath.Join(t.TempDir(), "cache"), CacheBytes: mib}
		r, err := OpenLocation(t.Context(), at, testPassword, o)
		if err != nil {
			t.Fatal(err)
		}
		useEverything(t, r, name)
	}
}
