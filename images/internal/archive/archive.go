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
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// registry is the prefix of every reference. Nothing listens there: images are imported, and pods use imagePullPolicy Never.
const registry = "varve.local"

// tagLength is how many hex digits of the config digest make the tag.
const tagLength = 12

// Image describes the content of an image. Layers are paths of uncompressed tar files, lowest first.
type Image struct {
	Name       string
	Tag        string // If it is empty, the first digits of the digest.
	Layers     []string
	Entrypoint []string
	Env        []string
	User       string // The number of the user. If it is empty, root.
}

// Built describes an image that has been written.
type Built struct {
	Ref    string `json:"ref"`    // The name for pods: varve.local/<name>:<tag>.
	Digest string `json:"digest"` // The digest of the image's config, which covers all layers: containerd's image ID.
	Tar    string `json:"tar"`    // The path of the file.
}

// Write writes images to one file. Layers that several images have are in it once.
func Write(path string, images ...Image) (_ []Built, err error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := newDockerWriter(f)
	var all []Built
	for _, img := range images {
		built, err := w.addImage(img)
		if err != nil {
			return nil, fmt.Errorf("write image %s: %w", img.Name, err)
		}
		built.Tar = path
		all = append(all, built)
	}
	return all, w.Close()
}

// refOf returns the reference of an image with this digest.
func refOf(img Image, digest v1.Hash) (string, error) {
	tag := img.Tag
	if tag == "" {
		tag = digest.Hex[:tagLength]
	}
	ref := fmt.Sprintf("%s/%s:%s", registry, img.Name, tag)
	_, err := name.NewTag(ref, name.StrictValidation)
	return ref, err
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
	file.Config.Entrypoint, file.Config.Env, file.Config.User = img.Entrypoint, img.Env, img.User
	return mutate.ConfigFile(image, file)
}
