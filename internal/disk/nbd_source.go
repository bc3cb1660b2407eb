package disk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/nbd"
)

// inspectTimeout bounds the query for the existing bitmaps, which only serves an error message.
const inspectTimeout = 5 * time.Second

// exportSource is an NBD export, or a qcow2 image behind one.
type exportSource struct {
	export
	id     string
	bitmap string

	// mu guards the status of the whole disk, which is queried once.
	mu            sync.Mutex
	known         bool
	data, changes *extent.Set
}

// sourceContexts returns the metadata contexts for a source.
func sourceContexts(bitmap string) []string {
	if bitmap == "" {
		return []string{nbd.ContextAllocation}
	}
	return []string{nbd.ContextAllocation, nbd.ContextDirtyBitmap + bitmap}
}

func openNBDSource(ctx context.Context, uri string, o SourceOptions) (*exportSource, error) {
	target, err := uriTarget(uri, o.Format)
	if err != nil {
		return nil, err
	}
	x, err := dialURI(ctx, uri, target, o.TLS, sourceContexts(o.Bitmap))
	if err != nil {
		return nil, err
	}
	if o.Bitmap == "" || slices.Contains(x.client.Info().Contexts, nbd.ContextDirtyBitmap+o.Bitmap) {
		return &exportSource{export: *x, id: target.URI(), bitmap: o.Bitmap}, nil
	}
	// Close this connection first: the server may accept only one.
	if err := x.client.Close(); err != nil {
		return nil, err
	}
	return nil, noBitmap(uri, o.Bitmap, exportBitmaps(ctx, target, o))
}

// exportBitmaps returns the names of the export's bitmaps, as far as the server tells.
func exportBitmaps(ctx context.Context, t nbd.Target, o SourceOptions) []string {
	info, err := nbd.Inspect(ctx, t, nbd.Options{TLS: o.TLS, HandshakeTimeout: inspectTimeout})
	if err != nil {
		return nil
	}
	var names []string
	for _, c := range info.Contexts {
		if name, ok := strings.CutPrefix(c, nbd.ContextDirtyBitmap); ok {
			names = append(names, name)
		}
	}
	return names
}

func openQCOW2Source(ctx context.Context, path string, o SourceOptions) (*exportSource, error) {
	if _, err := statDisk(path); err != nil {
		return nil, err
	}
	if _, err := findProgram(serverProgram); err != nil {
		return nil, err
	}
	image, err := openImageChain(path, o.Backing)
	if err != nil {
		return nil, err
	}
	id, err := image.chainIdentity()
	if err != nil {
		return nil, errors.Join(err, image.close())
	}
	server, client, err := startServer(ctx, image, unix.SIGKILL, o.Bitmap)
	if err != nil {
		return nil, err
	}
	return &exportSource{export: export{name: path, client: client, server: server}, id: id, bitmap: o.Bitmap}, nil
}

// Bytes implements Source.
func (s *exportSource) Bytes() int64 { return s.client.Info().Bytes }

// Identity implements Source.
func (s *exportSource) Identity() string { return s.id }

// ReadAt implements Source.
func (s *exportSource) ReadAt(ctx context.Context, p []byte, offset int64) error {
	if err := checkWithin(s.name, s.Bytes(), offset, len(p)); err != nil {
		return err
	}
	return s.explainError(s.client.ReadAt(ctx, p, offset))
}

// Data implements Source.
func (s *exportSource) Data(ctx context.Context) (*extent.Set, error) {
	if err := s.queryStatus(ctx); err != nil {
		return nil, err
	}
	return s.data, nil
}

// Changes implements Source.
func (s *exportSource) Changes(ctx context.Context) (*extent.Set, error) {
	if s.bitmap == "" {
		return nil, nil //nolint:nilnil // as Source says
	}
	if err := s.queryStatus(ctx); err != nil {
		return nil, err
	}
	return s.changes, nil
}

// queryStatus queries both contexts in one pass.
func (s *exportSource) queryStatus(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known {
		return nil
	}
	has := s.client.Info().Contexts
	var data, changes extent.Set
	if len(has) > 0 {
		err := s.client.BlockStatus(ctx, extent.Extent{Length: s.Bytes()}, func(name string, e extent.Extent, flags uint64) error {
			switch {
			case name == nbd.ContextAllocation && flags&nbd.StateZero == 0:
				data.Append(e.Widen(granuleBytes, s.Bytes()))
			case name != nbd.ContextAllocation && flags&nbd.StateDirty != 0:
				changes.Append(e.Widen(granuleBytes, s.Bytes()))
			}
			return nil
		})
		if err != nil {
			return s.explainError(fmt.Errorf("block status: %w", err))
		}
	}
	if slices.Contains(has, nbd.ContextAllocation) {
		s.data = &data
	}
	if s.bitmap != "" {
		s.changes = &changes
	}
	s.known = true
	return nil
}

// Close implements Source. It does not matter to a reader whether the connections ended in order.
func (s *exportSource) Close() error {
	_ = s.disconnect()
	return s.endServer()
}
