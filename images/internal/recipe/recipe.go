// Package recipe defines Varve's images and their content.
//
// An image is cached by the content of all its inputs (binaries, configuration, root). With unchanged inputs, Build
// returns the image of the last run without reading a layer. A changed binary never rebuilds the Debian root below it.
package recipe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/varvebackup/varve/images/internal/archive"
	"github.com/varvebackup/varve/images/internal/cache"
	"github.com/varvebackup/varve/images/internal/debian"
	"github.com/varvebackup/varve/images/internal/guest"
	"github.com/varvebackup/varve/images/internal/layer"
)

// format is part of every image's key. Raise it when a recipe changes in a way that its inputs do not show.
const format = "4"

// Kitchen builds images.
type Kitchen struct {
	Debian   *debian.Builder
	Guest    *guest.Builder
	Config   string // A directory whose tree is copied over the launcher's root.
	Varve    string // The static binary.
	Launcher string // The launcher's binary, linked against glibc.
	KubeVirt Peer
}

// part is one layer: its files, or a tar that already is a layer.
type part struct {
	tar     string
	tarKey  string // Identifies tar without reading it.
	entries []layer.Entry
}

// image is an image before its layers are written.
type image struct {
	name       string
	tag        string // Empty: the digest decides.
	parts      []part
	entrypoint []string
	env        []string
	user       string // Empty: root.
}

// recipes maps the names of all images to their recipes.
var recipes = map[string]func(context.Context, *Kitchen) (image, error){
	"varve":              varveImage,
	"varve-launcher":     launcherImage,
	"varve-guest-test":   testGuest,
	"varve-guest-debian": debianGuest,
}

// Names returns the names of all images, sorted.
func Names() []string {
	var names []string
	for name := range recipes {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Build builds one image, or finds it in the cache.
func (k *Kitchen) Build(ctx context.Context, name string) (archive.Built, error) {
	recipe, ok := recipes[name]
	if !ok {
		return archive.Built{}, fmt.Errorf("no image is called %q: there are %s", name, strings.Join(Names(), ", "))
	}
	img, err := recipe(ctx, k)
	if err != nil {
		return archive.Built{}, fmt.Errorf("image %s: %w", name, err)
	}
	img.name = name
	built, err := k.buildArchive(ctx, name, []image{img})
	if err != nil {
		return archive.Built{}, fmt.Errorf("image %s: %w", name, err)
	}
	return built[0], nil
}

// buildArchive builds one file with all images, named after name, or finds it in the cache.
func (k *Kitchen) buildArchive(ctx context.Context, name string, images []image) ([]archive.Built, error) {
	var keys []string
	for _, img := range images {
		key, err := img.contentKey()
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	dir, err := k.Debian.Cache.Dir(ctx, "image-"+name, cache.Key(keys...), func(dir string) error {
		return k.Debian.Log.Step("image "+name, func() error { return writeArchive(dir, name, images) })
	})
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(dir, descriptionName))
	if err != nil {
		return nil, err
	}
	var built []archive.Built
	if err := json.Unmarshal(text, &built); err != nil {
		return nil, fmt.Errorf("read cache: %w", err)
	}
	for i := range built {
		built[i].Tar = filepath.Join(dir, name+".tar")
	}
	return built, nil
}

// descriptionName is the file that describes the images of a cached archive.
const descriptionName = "images.json"

// contentKey identifies the image by its name and the content of everything in it.
func (img image) contentKey() (string, error) {
	inputs := []string{format, img.name, img.tag, img.user, strings.Join(img.entrypoint, " "), strings.Join(img.env, " ")}
	for _, p := range img.parts {
		inputs = append(inputs, "layer", p.tarKey)
		for _, e := range p.entries {
			// fmt sorts the keys of a map.
			inputs = append(inputs, fmt.Sprintf("%s %v %s %d %q", e.Name, e.Mode, e.Link, e.Owner, e.Attributes))
			if e.Path == "" {
				continue
			}
			sum, err := cache.HashFile(e.Path)
			if err != nil {
				return "", err
			}
			inputs = append(inputs, sum)
		}
	}
	return cache.Key(inputs...), nil
}

// writeArchive writes the layers, the images and their description into dir. It removes the layers again, since the
// archive contains them.
func writeArchive(dir, name string, images []image) error {
	layers := filepath.Join(dir, "layers")
	if err := os.Mkdir(layers, 0o755); err != nil {
		return err
	}
	var all []archive.Image
	for i, img := range images {
		out := archive.Image{Name: img.name, Tag: img.tag, Entrypoint: img.entrypoint, Env: img.env, User: img.user}
		for j, p := range img.parts {
			path := p.tar
			if path == "" {
				path = filepath.Join(layers, fmt.Sprintf("%d-%d.tar", i, j))
				if err := writeLayer(path, p.entries); err != nil {
					return err
				}
			}
			out.Layers = append(out.Layers, path)
		}
		all = append(all, out)
	}
	built, err := archive.Write(filepath.Join(dir, name+".tar"), all...)
	if err != nil {
		return err
	}
	for i := range built {
		built[i].Tar = "" // The directory is renamed.
	}
	text, err := json.Marshal(built)
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(filepath.Join(dir, descriptionName), text, 0o644), os.RemoveAll(layers))
}

func writeLayer(path string, entries []layer.Entry) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return layer.Write(f, entries)
}

// treeEntries returns the files below dir as entries, with their executable bits and nothing else of their modes.
func treeEntries(dir string) ([]layer.Entry, error) {
	var entries []layer.Entry
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		// git keeps only whether a file is executable. The rest of the mode depends on the umask of whoever cloned.
		mode := fs.FileMode(0o644)
		if info.Mode()&0o100 != 0 {
			mode = 0o755
		}
		entries = append(entries, layer.Entry{Name: name, Mode: mode, Path: path})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read tree %s: %w", dir, err)
	}
	return entries, nil
}
