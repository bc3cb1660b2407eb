package spdk

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/disk/disktest"
)

// socketVariable names the socket of a target on this machine, which the tests may use as they like.
const socketVariable = "VARVE_SPDK_SOCKET"

const dataAddress = "127.0.0.1:44210"

// targetStore is a store of a real target, on a sparse file.
type targetStore struct {
	client     client
	name, file string
}

// newTargetStore makes an empty store, and removes it when the test ends.
func newTargetStore(t *testing.T, dial dialer, socket, name string) *targetStore {
	t.Helper()
	s := &targetStore{client: client{dial: dial, address: socket}, name: name, file: filepath.Join(t.TempDir(), "disk")}
	f, err := os.Create(s.file)
	if err == nil {
		err = errors.Join(f.Truncate(2<<30), f.Close())
	}
	if err == nil {
		err = s.attach(t.Context())
	}
	if err == nil {
		err = s.client.call(t.Context(), "bdev_lvol_create_lvstore", map[string]any{
			"bdev_name": name, "lvs_name": name, "cluster_sz": 1 << 20,
		}, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.detach(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *targetStore) attach(ctx context.Context) error {
	params := map[string]any{"name": s.name, "filename": s.file, "block_size": 4096}
	return s.client.call(ctx, "bdev_aio_create", params, nil)
}

func (s *targetStore) detach(ctx context.Context) error {
	return s.client.call(ctx, "bdev_aio_delete", map[string]string{"name": s.name}, nil)
}

// dataDisk opens objects by OpenData, so that the conformance suite can read and write them.
type dataDisk struct {
	*Disk

	target *targetStore
}

type dataLease struct {
	*Data

	path string
}

func (l *dataLease) Path() string { return l.path }

var (
	openLeases sync.Map
	leaseCount atomic.Int64
)

func (d dataDisk) Open(ctx context.Context, name disk.Name) (disk.Lease, error) {
	data, err := d.OpenData(context.WithoutCancel(ctx), name)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, errors.Join(err, data.Close())
	}
	l := &dataLease{Data: data, path: fmt.Sprint("data ", leaseCount.Add(1))}
	openLeases.Store(l.path, data)
	return l, nil
}

// dataFile is the data of a lease, from its beginning.
type dataFile struct {
	*Data

	offset int64
}

func (f *dataFile) Read(p []byte) (int, error) {
	n, err := f.ReadAt(p, f.offset)
	f.offset += int64(n)
	return n, err
}

// Close leaves the lease open.
func (f *dataFile) Close() error { return nil }

func openDataFile(path string, _ int) (disktest.File, error) {
	data, ok := openLeases.Load(path)
	if !ok {
		return nil, os.ErrNotExist
	}
	return &dataFile{Data: data.(*Data)}, nil
}

func TestTarget_conformance(t *testing.T) { //nolint:paralleltest // one address
	socket := os.Getenv(socketVariable)
	if socket == "" {
		t.Skipf("%s does not name the socket of an SPDK target: see docs/testing.md", socketVariable)
	}
	dial := new(net.Dialer).DialContext
	open := func(t *testing.T, s *targetStore) disk.Disk {
		t.Helper()
		d, err := Open(t.Context(), Options{Socket: socket, Store: s.name, DataAddress: dataAddress})
		if err != nil {
			t.Fatal(err)
		}
		return dataDisk{Disk: d, target: s}
	}
	disktest.Run(t, disktest.Kind{
		Open: func(t *testing.T) disk.Disk {
			t.Helper()
			return open(t, newTargetStore(t, dial, socket, fmt.Sprint("varve-test-", leaseCount.Add(1))))
		},
		Reopen: func(t *testing.T, old disk.Disk) disk.Disk {
			t.Helper()
			s := old.(dataDisk).target
			if err := errors.Join(s.detach(t.Context()), s.attach(t.Context())); err != nil { // all that is left is on the disk
				t.Fatal(err)
			}
			return open(t, s)
		},
		OpenFile:    openDataFile,
		Unsupported: map[string]string{"repair": "an image cannot be changed: Repair returns ErrUnsupported"},
	})
}
