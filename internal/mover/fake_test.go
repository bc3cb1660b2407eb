package mover

import (
	"context"
	"sync/atomic"

	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/extent"
)

// memoryDisk is a source in memory.
type memoryDisk struct {
	content  []byte
	identity string
	// changes are what Changes returns; may be nil.
	changes *extent.Set
	// reading is called before each read; may be nil.
	reading func(ctx context.Context) error
	// read is how many bytes were read.
	read   atomic.Int64
	closed atomic.Bool
}

// open is a Source.Open.
func (m *memoryDisk) open(context.Context) (disk.Source, error) { return m, nil }

func (m *memoryDisk) Bytes() int64     { return int64(len(m.content)) }
func (m *memoryDisk) Identity() string { return m.identity }
func (m *memoryDisk) Close() error     { m.closed.Store(true); return nil }

func (m *memoryDisk) Data(context.Context) (*extent.Set, error)    { return nil, nil }
func (m *memoryDisk) Changes(context.Context) (*extent.Set, error) { return m.changes, nil }

func (m *memoryDisk) ReadAt(ctx context.Context, p []byte, offset int64) error {
	if m.reading != nil {
		if err := m.reading(ctx); err != nil {
			return err
		}
	}
	m.read.Add(int64(len(p)))
	copy(p, m.content[offset:])
	return nil
}
