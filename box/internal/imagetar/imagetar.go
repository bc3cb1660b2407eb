// Package imagetar writes container images as tar files, and lists the images in a tar file, without a registry and
// without Docker.
package imagetar

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"sort"
)

// File is one regular file of an image.
type File struct {
	Path string // relative to the image's root
	Data []byte
	Mode int64
}

// Build returns an image of one layer in the format of `docker save`. Equal input gives equal bytes: the output does
// not depend on the clock, map order or file owners.
func Build(ref string, entrypoint []string, files []File) ([]byte, error) {
	layer, err := layerTar(files)
	if err != nil {
		return nil, fmt.Errorf("build the image %s: %w", ref, err)
	}
	config, err := json.Marshal(map[string]any{
		"architecture": "amd64", "os": "linux", "created": "1970-01-01T00:00:00Z",
		"config": map[string]any{"Entrypoint": entrypoint, "Env": []string{"PATH=/"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + sha256Digest(layer)}},
	})
	if err != nil {
		return nil, fmt.Errorf("build the image %s: %w", ref, err)
	}
	configName, layerName := sha256Digest(config)+".json", sha256Digest(layer)+".tar"
	manifest, err := json.Marshal([]manifestItem{{Config: configName, RepoTags: []string{ref}, Layers: []string{layerName}}})
	if err != nil {
		return nil, fmt.Errorf("build the image %s: %w", ref, err)
	}
	out, err := writeTar([]File{
		{Path: layerName, Data: layer, Mode: 0o644},
		{Path: configName, Data: config, Mode: 0o644},
		{Path: "manifest.json", Data: manifest, Mode: 0o644},
	})
	if err != nil {
		return nil, fmt.Errorf("build the image %s: %w", ref, err)
	}
	return out, nil
}

func layerTar(files []File) ([]byte, error) {
	sorted := append([]File(nil), files...)
	sort.Slice(sorted, func(i, j int) bool { return sorted[i].Path < sorted[j].Path })
	return writeTar(sorted)
}

func writeTar(files []File) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range files {
		h := &tar.Header{Name: f.Path, Mode: f.Mode, Size: int64(len(f.Data)), Typeflag: tar.TypeReg, Format: tar.FormatUSTAR}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.Data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

func sha256Digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// Image is one image in a tar file.
type Image struct {
	Refs []string // the names in the file
	ID   string   // the digest of its config ("sha256:..."), which Kubernetes calls the image's ID
}

type manifestItem struct {
	Config   string
	RepoTags []string
	Layers   []string
}

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Annotations map[string]string `json:"annotations"`
}

type index struct {
	Manifests []descriptor `json:"manifests"`
	Config    descriptor   `json:"config"`
}

// jsonLimit bounds the size of one JSON document of an image, in bytes.
const jsonLimit = 8 << 20

// Inspect lists the images in a tar file: an OCI layout or the format of `docker save`.
func Inspect(r io.ReadSeeker) ([]Image, error) {
	docs, err := readDocuments(r)
	if err != nil {
		return nil, fmt.Errorf("read the image file: %w", err)
	}
	// As in containerd, an OCI index wins over a Docker manifest beside it.
	if data, ok := docs["index.json"]; ok {
		return fromIndex(data, docs)
	}
	if data, ok := docs["manifest.json"]; ok {
		return fromDocker(data, docs)
	}
	return nil, errors.New("read the image file: it holds neither index.json nor manifest.json")
}

// readDocuments returns the small JSON files of a tar file by name. It skips layers.
func readDocuments(r io.ReadSeeker) (map[string][]byte, error) {
	if _, err := r.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	docs := map[string][]byte{}
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return docs, nil
		}
		if err != nil {
			return nil, err
		}
		if h.Typeflag != tar.TypeReg || h.Size > jsonLimit {
			continue
		}
		data, err := io.ReadAll(tr)
		if err != nil {
			return nil, err
		}
		if json.Valid(data) {
			docs[path.Clean(h.Name)] = data
		}
	}
}

func fromDocker(data []byte, docs map[string][]byte) ([]Image, error) {
	var items []manifestItem
	if err := json.Unmarshal(data, &items); err != nil {
		return nil, fmt.Errorf("read manifest.json: %w", err)
	}
	out := make([]Image, 0, len(items))
	for _, item := range items {
		config, ok := docs[path.Clean(item.Config)]
		if !ok {
			return nil, fmt.Errorf("read manifest.json: the config %s of %v is not in the file", item.Config, item.RepoTags)
		}
		out = append(out, Image{Refs: item.RepoTags, ID: "sha256:" + sha256Digest(config)})
	}
	return out, nil
}

func fromIndex(data []byte, docs map[string][]byte) ([]Image, error) {
	var idx index
	if err := json.Unmarshal(data, &idx); err != nil {
		return nil, fmt.Errorf("read index.json: %w", err)
	}
	var out []Image
	for _, d := range idx.Manifests {
		ref := d.Annotations["io.containerd.image.name"]
		if ref == "" {
			ref = d.Annotations["org.opencontainers.image.ref.name"]
		}
		if ref == "" {
			continue // nothing can name it, so nothing can run it
		}
		id, err := configOf(d, docs, 4)
		if err != nil {
			return nil, fmt.Errorf("read the image %s: %w", ref, err)
		}
		out = append(out, Image{Refs: []string{ref}, ID: id})
	}
	return out, nil
}

// configOf follows a descriptor to the config of its (first) image. depth bounds nested indexes.
func configOf(d descriptor, docs map[string][]byte, depth int) (string, error) {
	alg, hash := path.Split(pathOf(d.Digest))
	data, ok := docs[path.Join("blobs", alg, hash)]
	if !ok || depth == 0 {
		return "", fmt.Errorf("the manifest %s is not in the file", d.Digest)
	}
	var m index
	if err := json.Unmarshal(data, &m); err != nil {
		return "", fmt.Errorf("the manifest %s: %w", d.Digest, err)
	}
	if m.Config.Digest != "" {
		return m.Config.Digest, nil
	}
	if len(m.Manifests) == 0 {
		return "", fmt.Errorf("the manifest %s names no config", d.Digest)
	}
	return configOf(m.Manifests[0], docs, depth-1)
}

// pathOf turns "sha256:abc" into "sha256/abc".
func pathOf(digest string) string {
	for i := range digest {
		if digest[i] == ':' {
			return digest[:i] + "/" + digest[i+1:]
		}
	}
	return digest
}
