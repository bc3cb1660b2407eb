package archive

import (
	"errors"
	"fmt"
	"io"
	"os"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// plainLayer is a tar file that is used as a layer unchanged. (go-containerregistry's own layers are compressed
// whenever they are written, which takes seconds for a root and gains nothing on one machine.)
type plainLayer struct {
	path string
	hash v1.Hash // Of the file. Without compression, digest and diff ID are the same.
	size int64   // In bytes.
}

func newPlainLayer(path string) (_ *plainLayer, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	hash, size, err := v1.SHA256(f)
	if err != nil {
		return nil, fmt.Errorf("hash layer %s: %w", path, err)
	}
	return &plainLayer{path: path, hash: hash, size: size}, nil
}

func (l *plainLayer) Digest() (v1.Hash, error)             { return l.hash, nil }
func (l *plainLayer) DiffID() (v1.Hash, error)             { return l.hash, nil }
func (l *plainLayer) Size() (int64, error)                 { return l.size, nil }
func (l *plainLayer) MediaType() (types.MediaType, error)  { return types.DockerUncompressedLayer, nil }
func (l *plainLayer) Compressed() (io.ReadCloser, error)   { return os.Open(l.path) }
func (l *plainLayer) Uncompressed() (io.ReadCloser, error) { return os.Open(l.path) }
