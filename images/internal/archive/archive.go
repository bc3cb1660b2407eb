// Package archive writes container images as docker-archive tar files, which `ctr images import` and go-containerregistry
// read, and keeps the index of what was built.
//
// Layers are stored uncompressed: the file never crosses a network, and containerd unpacks it at once. The same
// layers and settings give the same file, byte for byte.
package archive

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// registry is the prefix of every reference. Nothing listens there: images are imported, and pods use imagePullPolicy Never.
const registry = "varve.local"

// tagLength is how many hex digits of the config digest make the tag.
const tagLength = 12

// Image describes the content of an image. Layers are paths of uncompressed tar files, lowest first.
type Image struct {
	Name       string
	Layers     []string
	Entrypoint []string
	Env        []string
}

// Built describes an image that has been written.
type Built struct {
	Ref    string `json:"ref"`    // The name for pods: varve.local/<name>:<first digits of the digest>.
	Digest string `json:"digest"` // The digest of the image's config, which covers all layers: containerd's image ID.
	Tar    string `json:"tar"`    // The path of the file.
}

// Write writes the image to a file in dir, named after the image.
func Write(dir string, img Image) (Built, error) {
	image, err := assembleImage(img)
	if err != nil {
		return Built{}, fmt.Errorf("assemble image %s: %w", img.Name, err)
	}
	digest, err := image.ConfigName()
	if err != nil {
		return Built{}, fmt.Errorf("digest image %s: %w", img.Name, err)
	}
	ref := fmt.Sprintf("%s/%s:%s", registry, img.Name, digest.Hex[:tagLength])
	tag, err := name.NewTag(ref, name.StrictValidation)
	if err != nil {
		return Built{}, fmt.Errorf("name image %s: %w", img.Name, err)
	}
	path := filepath.Join(dir, img.Name+".tar")
	if err := writeFile(path, tag, image); err != nil {
		return Built{}, fmt.Errorf("write image %s: %w", img.Name, err)
	}
	return Built{Ref: ref, Digest: digest.String(), Tar: path}, nil
}

func assembleImage(img Image) (v1.Image, error) {
	var layers []v1.Layer
	for _, path := range img.Layers {
		l, err := newPlainLayer(path)
		if err != nil {
			return nil, fmt.Errorf("layer %s: %w", path, err)
		}
		layers = append(layers, l)
	}
	image, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		return nil, err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", "amd64"
	file.Created = v1.Time{Time: time.Unix(0, 0).UTC()}
	file.Config.Entrypoint, file.Config.Env = img.Entrypoint, img.Env
	return mutate.ConfigFile(image, file)
}

func writeFile(path string, tag name.Tag, image v1.Image) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return tarball.Write(tag, image, f)
}
