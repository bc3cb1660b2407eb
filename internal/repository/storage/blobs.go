package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/kopia/kopia/repo/blob"
)

// Bytes is a small blob on its way to the storage.
type Bytes []byte

func (b Bytes) Length() int { return len(b) }

func (b Bytes) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(b)
	return int64(n), err
}

func (b Bytes) Reader() io.ReadSeekCloser { return readCloser{bytes.NewReader(b)} }

type readCloser struct{ *bytes.Reader }

func (readCloser) Close() error { return nil }

// Buffer takes a blob from the storage.
type Buffer struct{ bytes.Buffer }

func (b *Buffer) Length() int { return b.Len() }

// ReadBlob returns a small blob; nil if it does not exist.
func ReadBlob(ctx context.Context, st blob.Reader, id blob.ID) ([]byte, error) {
	var out Buffer
	err := st.GetBlob(ctx, id, 0, -1, &out)
	if errors.Is(err, blob.ErrBlobNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read blob %s: %w", id, err)
	}
	return out.Bytes(), nil
}

// ListBlobs lists the blobs whose names begin with prefix.
func ListBlobs(ctx context.Context, st blob.Lister, prefix blob.ID) ([]blob.Metadata, error) {
	all, err := blob.ListAllBlobs(ctx, st, prefix)
	if err != nil {
		return nil, fmt.Errorf("list blobs %s*: %w", prefix, err)
	}
	return all, nil
}
