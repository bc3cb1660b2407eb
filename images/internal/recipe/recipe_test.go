package recipe_test

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/varvebackup/varve/images/internal/archive"
	"github.com/varvebackup/varve/images/internal/cache"
	"github.com/varvebackup/varve/images/internal/command"
	"github.com/varvebackup/varve/images/internal/debian"
	"github.com/varvebackup/varve/images/internal/recipe"
)

// wrongData is the mark of test/verdict, which this module cannot import.
const wrongData = "WRONG DATA: "

// kitchen returns a kitchen whose binaries have the given content, and its log.
func kitchen(t *testing.T, cacheDir, varve, launcher string) (*recipe.Kitchen, *bytes.Buffer) {
	t.Helper()
	dir, log := t.TempDir(), &bytes.Buffer{}
	k := &recipe.Kitchen{
		Debian:   &debian.Builder{Cache: cache.Open(cacheDir), Log: command.NewLog(log, time.Now)},
		Config:   "../../launcher",
		Varve:    filepath.Join(dir, "varve"),
		Launcher: filepath.Join(dir, "varve-launcher"),
	}
	for path, content := range map[string]string{k.Varve: varve, k.Launcher: launcher} {
		if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return k, log
}

func build(t *testing.T, k *recipe.Kitchen, name string) archive.Built {
	t.Helper()
	built, err := k.Build(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return built
}

func TestUnchangedInputIsNotBuiltAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, _ := kitchen(t, dir, "one", "")
	a := build(t, first, "varve")
	again, log := kitchen(t, dir, "one", "")
	if b := build(t, again, "varve"); b != a {
		t.Errorf(wrongData+"built %+v, then %+v", a, b)
	}
	if log.Len() != 0 {
		t.Errorf("the second build did something:\n%s", log)
	}
	changed, _ := kitchen(t, dir, "two", "")
	if c := build(t, changed, "varve"); c.Ref == a.Ref || c.Digest == a.Digest {
		t.Errorf("another binary, same image %+v", c)
	}
}

func TestTwoCachesGiveTheSameBytes(t *testing.T) {
	t.Parallel()
	var files [][]byte
	for range 2 {
		k, _ := kitchen(t, t.TempDir(), "one", "")
		text, err := os.ReadFile(build(t, k, "varve").Tar)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, text)
	}
	if !bytes.Equal(files[0], files[1]) {
		t.Error(wrongData + "two builds of the same input differ")
	}
}

// The library that others use reads the image back, which also compares every digest.
func TestImageIsReadable(t *testing.T) {
	t.Parallel()
	k, _ := kitchen(t, t.TempDir(), "one", "")
	built := build(t, k, "varve")
	image, err := tarball.ImageFromPath(built.Tar, nil)
	if err != nil {
		t.Fatal(err)
	}
	file, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"/usr/bin/varve"}, file.Config.Entrypoint); diff != "" {
		t.Error(diff)
	}
	digest, err := image.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	if digest.String() != built.Digest || built.Ref != "varve.local/varve:"+digest.Hex[:12] {
		t.Errorf("config digest %s, built %+v", digest, built)
	}
	layers, err := image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	r, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(content, []byte("usr/bin/varve")) {
		t.Error("the layer does not hold the binary")
	}
}

func TestUnknownImage(t *testing.T) {
	t.Parallel()
	k, _ := kitchen(t, t.TempDir(), "", "")
	if _, err := k.Build(t.Context(), "verve"); err == nil || !strings.Contains(err.Error(), "varve-launcher") {
		t.Errorf("error %v", err)
	}
}

func TestPublishKeepsOtherImages(t *testing.T) {
	t.Parallel()
	k, _ := kitchen(t, t.TempDir(), "one", "")
	built, out := build(t, k, "varve"), t.TempDir()
	for range 2 { // The second time over the existing files.
		if err := archive.Publish(out, archive.Index{"varve": built}); err != nil {
			t.Fatal(err)
		}
	}
	if err := archive.Publish(out, archive.Index{"other": built}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(out, "images.json"))
	if err != nil {
		t.Fatal(err)
	}
	var index map[string]map[string]string
	if err := json.Unmarshal(text, &index); err != nil {
		t.Fatal(err)
	}
	want := map[string]map[string]string{
		"varve": {"ref": built.Ref, "digest": built.Digest, "tar": filepath.Join(out, "varve.tar")},
		"other": {"ref": built.Ref, "digest": built.Digest, "tar": filepath.Join(out, "other.tar")},
	}
	if diff := cmp.Diff(want, index); diff != "" {
		t.Error(diff)
	}
	names, err := filepath.Glob(filepath.Join(out, "*.tmp"))
	if err != nil || len(names) != 0 {
		t.Errorf("left over: %v, %v", names, err)
	}
}

// A changed binary changes only the launcher's last layer: the root below it is imported once.
func TestLauncherLayers(t *testing.T) {
	t.Parallel()
	dir := sharedRoot(t)
	var diffs [][]string
	for _, binary := range []string{"one", "two"} {
		k, _ := kitchen(t, dir, "varve", binary)
		image, err := tarball.ImageFromPath(build(t, k, "varve-launcher").Tar, nil)
		if err != nil {
			t.Fatal(err)
		}
		file, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, id := range file.RootFS.DiffIDs {
			ids = append(ids, id.String())
		}
		diffs = append(diffs, ids)
	}
	if len(diffs[0]) != 3 || !cmp.Equal(diffs[0][:2], diffs[1][:2]) || diffs[0][2] == diffs[1][2] {
		t.Errorf("layers %v, and with another binary %v", diffs[0], diffs[1])
	}
}

// sharedRoot returns a cache for this test that shares only the launcher's root with the user's cache, since making
// the root takes most of a minute.
func sharedRoot(t *testing.T) string {
	t.Helper()
	user, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	const kind = "launcher-root-tar"
	shared, dir := filepath.Join(user, "varve", "image", kind), t.TempDir()
	if err := os.MkdirAll(shared, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(shared, filepath.Join(dir, kind)); err != nil {
		t.Fatal(err)
	}
	return dir
}
