package spdk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/disk/disktest"
)

// dataAddress is where targets serve data to tests.
const dataAddress = "127.0.0.1:44210"

// dataDisk opens objects by OpenData, so that the conformance suite can read and write them.
type dataDisk struct{ *Disk }

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
