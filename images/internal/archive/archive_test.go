package archive_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/varvebackup/varve/images/internal/archive"
	"github.com/varvebackup/varve/images/internal/layer"
)

// layerFile writes a layer with one empty directory.
func layerFile(t *testing.T, directory string) string {
	t.Helper()
	var content bytes.Buffer
	if err := layer.Write(&content, []layer.Entry{{Name: directory, Mode: os.ModeDir | 0o755}}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "layer.tar")
	if err := os.WriteFile(path, content.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func fileNames(t *testing.T, path string) []string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var names []string
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
}

// Images of one archive keep their own users, tags and layers, and share the file of a layer that they have in common.
func TestWrite_severalImages(t *testing.T) {
	t.Parallel()
	base, a, b := layerFile(t, "base"), layerFile(t, "a"), layerFile(t, "b")
	images := []archive.Image{
		{Name: "with-user", Tag: "v1", User: "1001", Layers: []string{base, a}},
		{Name: "root", Tag: "v1", Layers: []string{base, b}},
		{Name: "untagged", Layers: []string{base, b}},
	}
	path := filepath.Join(t.TempDir(), "all.tar")
	built, err := archive.Write(path, images...)
	if err != nil {
		t.Fatal(err)
	}
	for i, b := range built {
		tag, err := name.NewTag(b.Ref)
		if err != nil {
			t.Fatal(err)
		}
		wanted := images[i].Tag
		if wanted == "" {
			wanted = strings.TrimPrefix(b.Digest, "sha256:")[:12]
		}
		if tag.RepositoryStr() != images[i].Name || tag.TagStr() != wanted || b.Tar != path {
			t.Errorf("image %s was built as %+v", images[i].Name, b)
		}
		read, err := tarball.ImageFromPath(path, &tag)
		if err != nil {
			t.Fatal(err)
		}
		config, err := read.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if config.Config.User != images[i].User || len(config.RootFS.DiffIDs) != 2 {
			t.Errorf("image %s has the config %+v", images[i].Name, config)
		}
	}
	files := fileNames(t, path)
	if len(files) != 6 { // root and untagged have the same config
		t.Errorf("the archive has the files %v, want 2 configs, 3 layers and the manifest", files)
	}

	again := filepath.Join(t.TempDir(), "again.tar")
	if _, err := archive.Write(again, images...); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(files, fileNames(t, again)); diff != "" {
		t.Errorf("the same images in another order: %s", diff)
	}
}

func TestWrite_refusesTagThatIsNone(t *testing.T) {
	t.Parallel()
	_, err := archive.Write(filepath.Join(t.TempDir(), "a.tar"), archive.Image{Name: "a", Tag: "of two words"})
	if err == nil || !strings.Contains(err.Error(), "write image a") {
		t.Errorf("error %v", err)
	}
}
