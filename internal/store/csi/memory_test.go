package csi_test

import (
	"context"
	"iter"
	"maps"
	"slices"
	"sync"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/store/disk"
)

const (
	nodeName = "node1"
	diskUUID = "disk-1"
	mib      = 1 << 20
)

// memory is a disk without data.
type memory struct {
	disk.Disk

	mu      sync.Mutex
	objects map[disk.Name]disk.Object
	// written are the heads that differ from what they were made of.
	written map[disk.Name]bool
}

func (m *memory) Changed(_ context.Context, name, since disk.Name) iter.Seq2[extent.Extent, error] {
	return func(yield func(extent.Extent, error) bool) {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.written[name] || m.objects[since].UID != m.objects[name].Parent {
			yield(extent.Extent{Length: mib}, nil)
		}
	}
}

func (m *memory) Grow(_ context.Context, head disk.Name, bytes int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	o, ok := m.objects[head]
	if !ok {
		return errclass.NotFound
	}
	o.Bytes = bytes
	m.objects[head] = o
	return nil
}

func (m *memory) find(name disk.Name) disk.Object {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.objects[name]
}

func (m *memory) put(o disk.Object) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.objects[o.Name] = o
}

func (m *memory) List(context.Context) ([]disk.Object, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.objects)), nil
}

func (m *memory) Create(_ context.Context, head disk.Name, from disk.Source) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	made := disk.Object{
		Name: head, UID: from.UID, Volume: from.Volume, Kind: disk.KindHead, Bytes: from.Bytes, State: disk.StateWritable,
	}
	if from.From != "" && !from.Independent {
		made.Parent = m.objects[from.From].UID
	}
	m.objects[head] = made
	return nil
}

func (m *memory) Snapshot(_ context.Context, head, name disk.Name, seal disk.Seal) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	of, ok := m.objects[head]
	if !ok {
		return errclass.NotFound
	}
	m.objects[name] = disk.Object{
		Name: name, UID: seal.UID, Volume: of.Volume, Parent: of.Parent, Kind: seal.Kind, Bytes: of.Bytes,
		State: disk.StateReady,
	}
	of.Parent = seal.UID
	m.objects[head] = of
	return nil
}

func (m *memory) Delete(_ context.Context, name disk.Name) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	gone, ok := m.objects[name]
	if !ok {
		return errclass.NotFound
	}
	for _, o := range m.objects {
		if o.Parent == gone.UID && o.Volume != gone.Volume {
			return errclass.Errorf(errclass.Conflict, "%q is a clone of it: delete that first", o.Name)
		}
	}
	delete(m.objects, name)
	return nil
}

func (m *memory) Usage(context.Context) (disk.Usage, error) {
	return disk.Usage{Capacity: 1 << 40, Available: 1 << 39}, nil
}

func (m *memory) Open(_ context.Context, name disk.Name) (disk.Lease, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.objects[name]; !ok {
		return nil, errclass.NotFound
	}
	return noFile{}, nil
}

// noFile is a lease of what has no file.
type noFile struct{}

func (noFile) Path() string { return "/missing" }
func (noFile) Close() error { return nil }
