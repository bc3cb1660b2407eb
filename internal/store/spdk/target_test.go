//go:build spdk_target

package spdk

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/disk/disktest"
)

// socketVariable names the socket of a target on this machine, which the tests may use as they like.
const socketVariable = "VARVE_SPDK_SOCKET"

// readSocket returns the path of the target's socket.
func readSocket(t *testing.T) string {
	t.Helper()
	socket := os.Getenv(socketVariable)
	if socket == "" {
		t.Fatalf("%s does not name the socket of an SPDK target: see docs/testing.md", socketVariable)
	}
	return socket
}

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

// targetDisk is a disk of a real target, which can be opened again.
type targetDisk struct {
	dataDisk

	target *targetStore
}

func TestTarget_conformance(t *testing.T) { //nolint:paralleltest // one address
	socket := readSocket(t)
	dial := new(net.Dialer).DialContext
	open := func(t *testing.T, s *targetStore) disk.Disk {
		t.Helper()
		d, err := Open(t.Context(), Options{Socket: socket, Store: s.name, DataAddress: dataAddress})
		if err != nil {
			t.Fatal(err)
		}
		return targetDisk{dataDisk: dataDisk{Disk: d}, target: s}
	}
	disktest.Run(t, disktest.Kind{
		Open: func(t *testing.T) disk.Disk {
			t.Helper()
			return open(t, newTargetStore(t, dial, socket, fmt.Sprint("varve-test-", leaseCount.Add(1))))
		},
		Reopen: func(t *testing.T, old disk.Disk) disk.Disk {
			t.Helper()
			s := old.(targetDisk).target
			if err := errors.Join(s.detach(t.Context()), s.attach(t.Context())); err != nil { // all that is left is on the disk
				t.Fatal(err)
			}
			return open(t, s)
		},
		OpenFile: openDataFile,
		Instead:  map[string]func(*testing.T, disktest.Disk){"repair": checkNoRepair},
	})
}

// checkNoRepair asks for what a disk that cannot change an image does not do.
func checkNoRepair(t *testing.T, d disktest.Disk) {
	t.Helper()
	data := disktest.Noise(16, 5000)
	d.NewImage("i", "i", data)
	wantError(t, d.Repair(t.Context(), "none", "i", nil), errclass.NotFound)
	wantError(t, d.Repair(t.Context(), "i", "i", nil), ErrUnsupported)
	wantError(t, d.ReadPiece(t.Context(), "i", "i", 0, make([]byte, len(data))), ErrUnsupported)
}
