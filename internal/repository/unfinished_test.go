package repository

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kopia/kopia/repo"

	"github.com/varvebackup/varve/internal/repository/maintain"
	"github.com/varvebackup/varve/internal/repository/storage"
)

// tree returns what is below a directory, by its path, with its content.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		text := d.Type().String()
		if d.Type().IsRegular() {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text += string(data)
		}
		out[strings.TrimPrefix(path, dir)] = text
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// put makes a file that was last changed this long ago.
func put(t *testing.T, path, content string, age time.Duration) {
	t.Helper()
	at := time.Now().Add(-age)
	for _, err := range []error{os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600), os.Chtimes(path, at, at)} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// unfinishedOf returns how many unfinished blobs the status reports.
func unfinishedOf(t *testing.T, r *Repository) int64 {
	t.Helper()
	s, err := r.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range s.Blobs {
		if b.Kind == UnfinishedBlobs {
			return b.Blobs
		}
	}
	return 0
}

// Unfinished blobs go when nobody can be writing them any more. Nothing else goes, whatever its name.
func TestUnfinished_isRemoved(t *testing.T) {
	t.Parallel()
	const end = ".tmp.0123456789abcdef"
	long := maintain.UnfinishedLife + time.Minute
	r, config := newRepository(t)
	dir := filepath.Join(filepath.Dir(filepath.Dir(config)), "blobs")
	before := tree(t, dir)
	want := maps.Clone(before)
	stays := func(name string, age time.Duration) {
		put(t, filepath.Join(dir, name), name, age)
		for d := filepath.Dir(name); d != "."; d = filepath.Dir(d) {
			want["/"+d] = fs.ModeDir.String()
		}
		want["/"+name] = fs.FileMode(0).String() + name
	}
	for _, name := range []string{"p/abc/def.f" + end, "q/abc/0.f" + end, "xn0_1.f" + end, ".shards" + end} {
		put(t, filepath.Join(dir, name), "half", long)
		if d := filepath.Dir(name); d != "." {
			want["/"+d], want["/"+filepath.Dir(d)] = fs.ModeDir.String(), fs.ModeDir.String()
		}
	}
	delete(want, "/.")
	for name, age := range map[string]time.Duration{
		"p/abc/fresh.f" + end: 0, "p/abc/asleep.f" + end: maintain.UnfinishedLife - time.Hour, "p/abc/future.f" + end: -time.Hour,
		"p/abc/whole.f": long, "p/abc/short.f.tmp.0123456789abcde": long, "p/abc/long.f" + end + "0": long, "p/abc/upper.f.tmp.0123456789ABCDEF": long,
		"p/abc/notes" + end: long, "p/abc/.f" + end: long, "notes.shards" + end: long, "directory.f" + end + "/x": long,
	} {
		stays(name, age)
	}
	if err := os.Symlink(filepath.Join(dir, "p/abc/whole.f"), filepath.Join(dir, "link.f"+end)); err != nil {
		t.Fatal(err)
	}
	want["/link.f"+end] = fs.ModeSymlink.String()

	if n := unfinishedOf(t, r); n != 7 {
		t.Errorf("the status tells of %d unfinished blobs, want those that go and three", n)
	}
	// The repository's clock is ahead, which says nothing about the files.
	ahead, err := repo.Open(t.Context(), config, testPassword, &repo.Options{TimeNowFunc: func() time.Time { return time.Now().Add(2 * maintain.UnfinishedLife) }})
	if err != nil {
		t.Fatal(err)
	}
	defer ahead.Close(t.Context())
	for range 2 { // the second time there is nothing to do
		if err := storage.RemoveUnfinished(t.Context(), ahead.(repo.DirectRepository).BlobReader(), maintain.UnfinishedLife); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(want, tree(t, dir)); diff != "" {
		t.Errorf("(-want +got) %s", diff)
	}
	if n := unfinishedOf(t, r); n != 3 {
		t.Errorf("the status tells of %d unfinished blobs, want three", n)
	}
}

// What a killed process has left goes with any maintenance, even if the repository is behind a symbolic link.
func TestMaintenance_removesWhatAKillLeft(t *testing.T) {
	t.Parallel()
	c := newCrashed(t)
	j := c.job(t, "next")
	j.Cuts = 2
	if o := j.run(t, c.site, 0); !o.Killed {
		t.Fatalf("it was not killed: %+v", o)
	}
	left := func() []string {
		return slices.DeleteFunc(slices.Sorted(maps.Keys(tree(t, filepath.Join(c.site.dir, "blobs")))), func(path string) bool { return !strings.Contains(path, ".tmp.") })
	}
	path := left()
	if len(path) != 1 {
		t.Fatalf("the kill left %v", path)
	}
	link, config := filepath.Join(t.TempDir(), "link"), filepath.Join(t.TempDir(), "config")
	if err := os.Symlink(filepath.Join(c.site.dir, "blobs"), link); err != nil {
		t.Fatal(err)
	}
	if err := Connect(t.Context(), config, Location{Directory: link}, testPassword, ConnectOptions{Host: "host", User: "varve"}); err != nil {
		t.Fatal(err)
	}
	r := open(t, config)
	for _, step := range []struct {
		o    MaintenanceOptions
		age  time.Duration
		want int
	}{
		{MaintenanceOptions{Mode: QuickMaintenance}, 0, 1},
		{MaintenanceOptions{Mode: FullMaintenance}, 0, 1},
		{MaintenanceOptions{Mode: FullMaintenance, Exclusive: true}, 0, 1},
		{MaintenanceOptions{Mode: FullMaintenance}, 2 * maintain.ExclusiveUnfinishedLife, 1},
		{MaintenanceOptions{Mode: FullMaintenance, Exclusive: true}, 2 * maintain.ExclusiveUnfinishedLife, 0},
		{MaintenanceOptions{Mode: QuickMaintenance}, maintain.UnfinishedLife + time.Hour, 0},
		{MaintenanceOptions{Mode: FullMaintenance}, maintain.UnfinishedLife + time.Hour, 0},
	} {
		put(t, filepath.Join(c.site.dir, "blobs", path[0]), "half", step.age)
		if err := r.Maintain(t.Context(), step.o); err != nil {
			t.Fatal(err)
		}
		if now := left(); len(now) != step.want {
			t.Errorf("%+v, when it was %s old: %v", step.o, step.age, now)
		}
	}
	refreshed := c.open(t)
	c.check(t, refreshed)
}
