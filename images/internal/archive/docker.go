package archive

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// dockerWriter writes a docker archive: the configs and layers of images, then the manifest that names them.
// (go-containerregistry's own writer writes several images in random order.)
type dockerWriter struct {
	tar      *tar.Writer
	manifest tarball.Manifest
	written  map[string]bool
}

func newDockerWriter(w io.Writer) *dockerWriter {
	return &dockerWriter{tar: tar.NewWriter(w), written: map[string]bool{}}
}

// addImage writes the config of an image, and those of its layers that are not in the archive yet.
func (d *dockerWriter) addImage(img Image) (Built, error) {
	image, err := assembleImage(img)
	if err != nil {
		return Built{}, err
	}
	config, err := image.RawConfigFile()
	if err != nil {
		return Built{}, err
	}
	digest, _, err := v1.SHA256(bytes.NewReader(config))
	if err != nil {
		return Built{}, err
	}
	ref, err := refOf(img, digest)
	if err != nil {
		return Built{}, err
	}
	item := tarball.Descriptor{Config: digest.Hex + ".json", RepoTags: []string{ref}}
	if err := d.addFile(item.Config, bytes.NewReader(config), int64(len(config))); err != nil {
		return Built{}, err
	}
	layers, err := image.Layers()
	if err != nil {
		return Built{}, err
	}
	for _, l := range layers {
		file, err := d.addLayer(l)
		if err != nil {
			return Built{}, err
		}
		item.Layers = append(item.Layers, file)
	}
	d.manifest = append(d.manifest, item)
	return Built{Ref: ref, Digest: digest.String()}, nil
}

// addLayer returns the name of the layer's file in the archive.
func (d *dockerWriter) addLayer(l v1.Layer) (_ string, err error) {
	digest, err := l.Digest()
	if err != nil {
		return "", err
	}
	size, err := l.Size()
	if err != nil {
		return "", err
	}
	r, err := l.Uncompressed()
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	file := digest.Hex + ".tar"
	return file, d.addFile(file, r, size)
}

// addFile writes a file that is named after its content, unless the archive has it.
func (d *dockerWriter) addFile(name string, r io.Reader, size int64) error {
	if d.written[name] {
		return nil
	}
	d.written[name] = true
	if err := d.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size}); err != nil {
		return err
	}
	_, err := io.Copy(d.tar, r)
	return err
}

// Close writes the manifest. Without it the archive has no images.
func (d *dockerWriter) Close() error {
	text, err := json.Marshal(d.manifest)
	if err != nil {
		return err
	}
	if err := d.addFile("manifest.json", bytes.NewReader(text), int64(len(text))); err != nil {
		return err
	}
	return d.tar.Close()
}
