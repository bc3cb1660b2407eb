package cluster

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/varvebackup/varve/box/internal/imagetar"
	"github.com/varvebackup/varve/box/internal/layout"
	"github.com/varvebackup/varve/box/internal/node"
)

func TestCrashing(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		s    node.ServiceStatus
		want bool
	}{
		"never ended":       {node.ServiceStatus{}, false},
		"ended twice":       {node.ServiceStatus{Restarts: 2, LastLife: time.Second}, false},
		"ends at once":      {node.ServiceStatus{Restarts: 3, LastLife: time.Second}, true},
		"lived for a while": {node.ServiceStatus{Restarts: 9, LastLife: time.Minute}, false},
		"killed by others":  {node.ServiceStatus{Restarts: 9, LastLife: time.Second, Killed: true}, false},
	} {
		if got := isCrashing(tc.s); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestAwaitExplains(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "x.log")
	if err := os.WriteFile(log, []byte("first\nlast words\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	why := errors.New("not there")
	err := awaitCheck(context.Background(), "the thing", 10*time.Millisecond, log, func(context.Context) error { return why })
	if !errors.Is(err, why) {
		t.Errorf("the cause is lost: %v", err)
	}
	for _, want := range []string{"the thing", "not within 10ms", "last words", log} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
}

func TestAwaitGivesUp(t *testing.T) {
	t.Parallel()
	looks := 0
	err := awaitCheck(context.Background(), "x", time.Hour, "", func(context.Context) error {
		looks++
		return giveUpError{errEtcdDamaged}
	})
	if !errors.Is(err, errEtcdDamaged) || looks != 1 {
		t.Errorf("%d looks, %v", looks, err)
	}
}

func TestStoreImageReplaces(t *testing.T) {
	t.Parallel()
	dir := layout.Box(t.TempDir())
	put := func(ref, content string) string {
		t.Helper()
		data, err := imagetar.Build(ref, nil, []imagetar.File{{Path: "f", Data: []byte(content)}})
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "image.tar")
		if err := os.WriteFile(file, data, 0o644); err != nil {
			t.Fatal(err)
		}
		stored, err := storeImage(dir, file)
		if err != nil {
			t.Fatal(err)
		}
		return stored
	}
	first, other := put("a:1", "old"), put("b:1", "other")
	if put("a:1", "old") != first {
		t.Error("the same image is stored twice")
	}
	put("a:1", "new")
	if _, err := os.Stat(first); !os.IsNotExist(err) {
		t.Errorf("the replaced image stays (%v)", err)
	}
	if _, err := os.Stat(other); err != nil {
		t.Errorf("an image of another name is gone: %v", err)
	}
}

// Neither up nor down touches a directory that is used for something else.
func TestForeignDirectory(t *testing.T) {
	t.Parallel()
	dir := layout.Box(t.TempDir())
	precious := filepath.Join(string(dir), "precious")
	if err := os.WriteFile(precious, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	p := NewProgress(&strings.Builder{})
	if err := Down(context.Background(), dir, p); err == nil {
		t.Error("down accepts it")
	}
	if err := Up(context.Background(), Config{Dir: dir, Nodes: 1, Bridge: "vbunit0"}, p); err == nil {
		t.Error("up accepts it")
	}
	if _, err := os.Stat(precious); err != nil {
		t.Error(err)
	}
}

// down can remove what an interrupted up or down has left.
func TestDownOverRemains(t *testing.T) {
	t.Parallel()
	dir := layout.Box(filepath.Join(t.TempDir(), "box"))
	for _, d := range []string{dir.Images(), filepath.Join(string(dir), ".state.json.123")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := Down(context.Background(), dir, NewProgress(&strings.Builder{})); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(string(dir)); !os.IsNotExist(err) {
		t.Errorf("the directory stays (%v)", err)
	}
}

func TestInstallFile(t *testing.T) {
	t.Parallel()
	from, to := filepath.Join(t.TempDir(), "from"), filepath.Join(t.TempDir(), "to")
	at := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, step := range []struct {
		what, content string
		at            time.Time
		want          bool
	}{
		{"new", "one", at, true},
		{"untouched", "one", at, false},
		{"written again", "one", at.Add(time.Hour), false},
		{"changed", "two", at.Add(2 * time.Hour), true},
		{"grown", "three", at.Add(2 * time.Hour), true},
	} {
		if err := errors.Join(os.WriteFile(from, []byte(step.content), 0o755), os.Chtimes(from, step.at, step.at)); err != nil {
			t.Fatal(err)
		}
		changed, err := installFile(from, to)
		if err != nil || changed != step.want {
			t.Errorf("%s: changed %v, %v", step.what, changed, err)
		}
		if got, err := os.ReadFile(to); err != nil || string(got) != step.content {
			t.Errorf("%s: the copy holds %q, %v", step.what, got, err)
		}
	}
}
