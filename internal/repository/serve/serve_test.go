package serve

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/nbd"
	"github.com/varvebackup/varve/internal/repository"
	blobstorage "github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/test/verdict"
)

func TestMain(m *testing.M) {
	blobstorage.Register()
	goleak.VerifyTestMain(m)
}

const mib = 1 << 20

// content is a disk in memory.
type content []byte

func (c content) ReadAt(_ context.Context, p []byte, offset int64) error {
	copy(p, c[offset:])
	return nil
}

func (c content) Size() int64 { return int64(len(c)) }

func (c content) NextRun(_ context.Context, e extent.Extent) (int64, bool, error) {
	return e.Length, false, nil
}

// stored is a disk of 3 MiB and a bit, with holes, in a repository.
func stored(t *testing.T) (content, *repository.Image) {
	t.Helper()
	dir := t.TempDir()
	at, config := repository.Location{Directory: filepath.Join(dir, "blobs")}, filepath.Join(dir, "config")
	if err := repository.Create(t.Context(), at, "password", repository.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := repository.Connect(t.Context(), config, at, "password", repository.ConnectOptions{Host: "host", User: "varve"}); err != nil {
		t.Fatal(err)
	}
	r, err := repository.Open(t.Context(), config, "password")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	disk := make(content, 3*mib+512)
	random := rand.New(rand.NewPCG(1, 1))
	for _, e := range []extent.Extent{{Offset: 0, Length: mib}, {Offset: 2*mib + 5, Length: 700}, {Offset: 3*mib + 500, Length: 12}} {
		for i := e.Offset; i < e.End(); i++ {
			disk[i] = byte(random.Uint32())
		}
	}
	p, err := r.Backup(t.Context(), repository.Request{
		Source: repository.Source{Host: "host", User: "varve", Path: "/vm"},
		Disks:  []repository.DiskSource{{Name: "root", Bytes: disk.Size(), Reader: disk}},
	})
	if err != nil {
		t.Fatal(err)
	}
	image, err := r.Image(t.Context(), p.Disks[0])
	if err != nil {
		t.Fatal(err)
	}
	return disk, image
}

// one serves one backend.
type one struct{ backend nbd.Backend }

func (o one) Open(context.Context, string) (nbd.Export, error) {
	return nbd.Export{Backend: o.backend, MultiConn: true}, nil
}

func (o one) List(context.Context) ([]nbd.ListedExport, error) { return nil, nil }

func dial(t *testing.T, backend nbd.Backend) *nbd.Client {
	t.Helper()
	server := &nbd.Server{Exports: one{backend}}
	here, there := net.Pipe()
	done := make(chan error, 1)
	go func() { done <- server.ServeConn(context.Background(), there) }()
	c, err := nbd.Dial(t.Context(), nbd.Target{}, nbd.Options{
		Contexts: []string{allocation}, Dial: func(context.Context) (net.Conn, error) { return here, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Disconnect(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return c
}

func TestRestorePoint_isADisk(t *testing.T) {
	t.Parallel()
	want, image := stored(t)
	d := New(image, Options{CacheBytes: mib})
	t.Cleanup(d.Close)
	c := dial(t, d)
	for range 2 { // from the repository, and in part from the cache
		got := make([]byte, len(want))
		for at := 0; at < len(got); at += 100_000 {
			end := min(at+100_000, len(got))
			if err := c.ReadAt(t.Context(), got[at:end], int64(at)); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(got, want) {
			verdict.Fatalf(t, "the disk differs")
		}
	}
	d.cache.fetching.Wait()
	if d.cache.bytes > mib+256<<10 {
		t.Errorf("%d bytes are cached", d.cache.bytes)
	}
	var data extent.Set
	err := c.BlockStatus(t.Context(), extent.Extent{Length: d.Size()}, func(_ string, e extent.Extent, flags uint64) error {
		if flags == 0 {
			data.Append(e)
		}
		return nil
	})
	wanted := extent.NewSet(extent.Extent{Length: mib}, extent.Extent{Offset: 2 * mib, Length: 256 << 10}, extent.Extent{Offset: 3 * mib, Length: 512})
	if err != nil || !data.Subtract(wanted).Empty() || !wanted.Subtract(data).Empty() {
		verdict.Errorf(t, "data %v, want %v: %v", data, wanted, err)
	}
	if err := c.WriteAt(t.Context(), []byte{1}, 0, 0); err == nil {
		t.Error("it was written")
	}
}

// Whoever reads sequentially has each block fetched once, also where the cache is small, and a hole is never fetched.
func TestSequentialReadsFetchEachBlockOnce(t *testing.T) {
	t.Parallel()
	for _, cacheBytes := range []int64{1, 512 << 10, 64 * mib} {
		want, image := stored(t)
		d := New(image, Options{CacheBytes: cacheBytes})
		t.Cleanup(d.Close)
		var mu sync.Mutex
		fetched := map[int64]int{}
		fetch := d.cache.fetch
		d.cache.fetch = func(ctx context.Context, number int64) ([]byte, error) {
			mu.Lock()
			defer mu.Unlock()
			fetched[number]++
			return fetch(ctx, number)
		}
		if err := d.Cache(t.Context(), extent.Extent{Offset: mib, Length: mib}); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(want))
		for at := 0; at < len(got); at += 64 << 10 {
			end := min(at+64<<10, len(got))
			if err := d.ReadAt(t.Context(), got[at:end], int64(at)); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(got, want) {
			verdict.Errorf(t, "the disk differs")
		}
		d.cache.fetching.Wait()
		if diff := cmp.Diff(map[int64]int{0: 1, 1: 1, 2: 1, 3: 1, 8: 1, 12: 1}, fetched); diff != "" {
			t.Errorf("cache of %d bytes: fetches by block (-want +got):\n%s", cacheBytes, diff)
		}
	}
}

// Readers of many blocks at once make no more fetches at once than there are slots, and who gives up leaves the others theirs.
func TestFetchesAtOnceAreBounded(t *testing.T) {
	t.Parallel()
	const slots, readers = 3, 20
	under, gate := make(chan struct{}, readers), make(chan struct{})
	c := newCache(mib, slots, func(ctx context.Context, number int64) ([]byte, error) {
		under <- struct{}{}
		select {
		case <-gate:
			return []byte{byte(number)}, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	})
	life, end := context.WithCancel(t.Context())
	ctx, leave := context.WithCancel(t.Context())
	var gone, stay sync.WaitGroup
	for n := range int64(readers) {
		gone.Go(func() {
			if _, err := c.getBlock(ctx, life, n); !errors.Is(err, context.Canceled) {
				t.Errorf("block %d: %v", n, err)
			}
		})
		stay.Go(func() {
			if data, err := c.getBlock(t.Context(), life, n); err != nil || data[0] != byte(n) {
				verdict.Errorf(t, "block %d: %v, %v", n, data, err)
			}
		})
	}
	for range slots {
		<-under
	}
	leave()
	gone.Wait()
	if len(under) > 0 {
		t.Errorf("%d fetches at once", slots+len(under))
	}
	close(gate)
	stay.Wait()
	end()
	c.fetching.Wait()
}
