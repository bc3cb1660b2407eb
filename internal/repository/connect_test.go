package repository

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/storage"
)

// A connection that does not work does not replace the existing one, and leaves nothing behind.
func TestConnect_replacesOnlyWithWhatWorks(t *testing.T) {
	t.Parallel()
	_, config := newRepository(t)
	blobs := filepath.Join(filepath.Dir(filepath.Dir(config)), "blobs")
	before, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	here := Location{Directory: blobs}
	for name, c := range map[string]struct {
		at       Location
		password string
		o        ConnectOptions
		class    error
	}{
		"another password":     {here, "another", ConnectOptions{}, ErrPassword},
		"no repository":        {Location{Directory: t.TempDir()}, testPassword, ConnectOptions{}, errclass.NotFound},
		"no directory":         {Location{Directory: filepath.Join(blobs, "none")}, testPassword, ConnectOptions{}, fs.ErrNotExist},
		"a relative directory": {Location{Directory: "blobs"}, testPassword, ConnectOptions{}, errclass.Invalid},
		"a cache nowhere":      {here, testPassword, ConnectOptions{CacheBytes: 1}, errclass.Invalid},
		"a cache of nothing":   {here, testPassword, ConnectOptions{CacheDirectory: t.TempDir()}, errclass.Invalid},
	} {
		if err := Connect(t.Context(), config, c.at, c.password, c.o); !errors.Is(err, c.class) {
			t.Errorf("%s: %v, want class %v", name, err, c.class)
		}
	}
	after, err := os.ReadFile(config)
	if diff := cmp.Diff(string(before), string(after)); diff != "" || err != nil {
		t.Errorf("the configuration changed: %v: %s", err, diff)
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(config), "*")); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(config), ".*")); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}

	cache := filepath.Join(t.TempDir(), "cache")
	if err := Connect(t.Context(), config, here, testPassword, ConnectOptions{Host: "other", User: "u", CacheDirectory: cache, CacheBytes: mib}); err != nil {
		t.Fatal(err)
	}
	if got := open(t, config).Source("", "", "/p").String(); got != "u@other:/p" {
		t.Errorf("connected as %s", got)
	}
	if _, err := os.Stat(cache); err != nil {
		t.Error(err)
	}
	info, err := os.Stat(config)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v: %v", info.Mode(), err)
	}
}

// silent is a fake server. It accepts connections and says nothing.
func silent(t *testing.T) (address string) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

// A server that accepts connections and does not answer would hang every command until its user ends it, if there were no
// deadline.
func TestConnect_givesUpOnASilentServer(t *testing.T) {
	t.Parallel()
	at := Location{S3: &S3{
		Endpoint: silent(t), Bucket: "backups", Region: "r", PlainHTTP: true, AccessKey: "key", SecretKey: "secret", AnswerTimeout: 200 * time.Millisecond,
	}}
	config := filepath.Join(t.TempDir(), "config")
	wrote := `{"storage":{"type":"s3","config":{"bucket":"backups","region":"r","endpoint":"` + at.S3.Endpoint + `","doNotUseTLS":true,"accessKeyID":"key","secretAccessKey":"secret"}}}`
	if err := os.WriteFile(config, []byte(wrote), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]func(context.Context) error{
		"create": func(ctx context.Context) error { return Create(ctx, at, testPassword, CreateOptions{}) },
		"connect": func(ctx context.Context) error {
			return Connect(ctx, config, at, testPassword, ConnectOptions{})
		},
		"open": func(ctx context.Context) error {
			a, err := engine.LoadAccess(config, testPassword)
			if err != nil {
				return err
			}
			return a.CheckReachable(ctx, at.S3.AnswerTimeout)
		},
		"open in memory": func(ctx context.Context) error {
			_, err := OpenLocation(ctx, at, testPassword, ConnectOptions{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := f(t.Context())
			if !errors.Is(err, ErrUnreachable) || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), at.S3.Endpoint) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%v", err)
			}
			// If the user ends it, that is not the server's fault.
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := f(ctx); !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnreachable) {
				t.Errorf("cancelled: %v", err)
			}
		})
	}
}

// A missing repository is distinguished from a damaged one, and a broken file from both.
func TestOpen_saysWhatIsGone(t *testing.T) {
	t.Parallel()
	r, config := newRepository(t)
	if r.ReadOnly() {
		t.Error("the connection is for reading only")
	}
	blobs := filepath.Join(filepath.Dir(filepath.Dir(config)), "blobs")
	if err := os.Rename(blobs, blobs+".elsewhere"); err != nil {
		t.Fatal(err)
	}
	try := func() error {
		opened, err := Open(t.Context(), config, testPassword)
		if err == nil {
			t.Error("it was opened")
			err = opened.Close(t.Context())
		}
		return err
	}
	if err := try(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
	if err := os.Mkdir(blobs, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := try(); !errors.Is(err, errclass.NotFound) || !strings.Contains(err.Error(), blobs) {
		t.Errorf("an empty directory: %v", err)
	}
	for _, broken := range []string{"", "{}", "no JSON"} {
		if err := os.WriteFile(config, []byte(broken), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := try(); !errors.Is(err, errclass.Invalid) || !strings.Contains(err.Error(), "connect again") {
			t.Errorf("%q: %v", broken, err)
		}
	}
	if err := os.Remove(config); err != nil {
		t.Fatal(err)
	}
	if err := try(); !errors.Is(err, fs.ErrNotExist) || errors.Is(err, errclass.Invalid) {
		t.Errorf("no file: %v", err)
	}
}

// A creation that was killed between its two blobs can be repeated.
func TestCreate_repeatsAKilledCreation(t *testing.T) {
	t.Parallel()
	at := Location{Directory: filepath.Join(t.TempDir(), "blobs")}
	if err := Create(t.Context(), at, testPassword, CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, later := range []string{"kopia.repository.f", string(storage.FormatCopy) + ".f"} { // kopia writes kopia.blobcfg first.
		if err := os.Remove(filepath.Join(at.Directory, later)); err != nil {
			t.Fatal(err)
		}
	}
	if err := Create(t.Context(), at, testPassword, CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := Connect(t.Context(), filepath.Join(t.TempDir(), "c.config"), at, testPassword, ConnectOptions{}); err != nil {
		t.Error(err)
	}
}

// A directory with other files is a mistake. An empty one may be the root of a file system.
func TestCreate_refusesADirectoryThatIsNotEmpty(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "lost+found"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "photo.jpg"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := Create(t.Context(), Location{Directory: dir}, testPassword, CreateOptions{})
	if !errors.Is(err, errclass.Conflict) || !strings.Contains(err.Error(), "photo.jpg") {
		t.Errorf("a directory with a photo: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "photo.jpg")); err != nil {
		t.Fatal(err)
	}
	if err := Create(t.Context(), Location{Directory: dir}, testPassword, CreateOptions{}); err != nil {
		t.Errorf("a directory with lost+found: %v", err)
	}
}

// The path of the cache is relative to the file, whose name may be relative to the working directory.
func TestOpen_findsTheCacheOfARelativeFile(t *testing.T) {
	dir := t.TempDir()
	at := Location{Directory: filepath.Join(dir, "blobs")}
	if err := Create(t.Context(), at, testPassword, CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	o := ConnectOptions{Host: "host", User: "varve", CacheDirectory: filepath.Join(dir, "cache"), CacheBytes: mib}
	if err := Connect(t.Context(), filepath.Join(dir, "repository.config"), at, testPassword, o); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	r, err := Open(t.Context(), "repository.config", testPassword)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.WithoutCache(), r.Close(t.Context())); err != nil {
		t.Error(err)
	}
}
