package repository

import (
	"bytes"
	"context"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/verdict"
)

// waitingReader reads nothing until goOn is closed.
type waitingReader struct {
	*memory
	once          sync.Once
	reading, goOn chan struct{}
}

func (w *waitingReader) ReadAt(ctx context.Context, p []byte, offset int64) error {
	w.once.Do(func() { close(w.reading) })
	<-w.goOn
	return w.memory.ReadAt(ctx, p, offset)
}

// A backup that still runs when the repository is closed, because its caller has abandoned it, has its storage until it ends.
func TestClose_leavesTheStorageToARunningBackup(t *testing.T) {
	t.Parallel()
	for name, times := range map[string]int{"closed": 1, "closed twice": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, config := newRepository(t)
			r, err := Open(t.Context(), config, testPassword)
			if err != nil {
				t.Fatal(err)
			}
			disk := &memory{data: make([]byte, 2*mib)}
			disk.write(rand.New(rand.NewPCG(1, 9)), extent.Extent{Length: 2 * mib}, false)
			source := disk.source(false)
			w := &waitingReader{memory: disk, reading: make(chan struct{}), goOn: make(chan struct{})}
			source.Reader = w
			ended := make(chan error, 1)
			go func() {
				_, err := r.Backup(t.Context(), Request{Source: testSource, Time: time.Unix(1, 0), Disks: []DiskSource{source}})
				ended <- err
			}()
			<-w.reading
			for range times {
				if err := r.Close(t.Context()); err != nil {
					t.Error(err)
				}
			}
			close(w.goOn)
			if err := <-ended; err != nil {
				t.Error(err)
			}
			fresh := open(t, config)
			points, err := fresh.List(t.Context(), nil)
			if err != nil || len(points) != 1 {
				t.Fatalf("%d restore points, %v", len(points), err)
			}
			same(t, fresh, points[0], disk.data)
		})
	}
}

// waitingTarget takes nothing until goOn is closed.
type waitingTarget struct {
	data          []byte
	once          sync.Once
	writing, goOn chan struct{}
}

func (w *waitingTarget) WriteAt(_ context.Context, p []byte, offset int64) error {
	w.once.Do(func() { close(w.writing) })
	<-w.goOn
	copy(w.data[offset:], p)
	return nil
}

func (w *waitingTarget) Zero(_ context.Context, e extent.Extent) error {
	clear(w.data[e.Offset:e.End()])
	return nil
}

func (w *waitingTarget) Sync(context.Context) error { return nil }

// A restore that still runs when the repository is closed reads kopia's index, which is mapped from the cache, until it ends. Without
// that, the process would die.
func TestClose_leavesTheIndexToARunningRestore(t *testing.T) {
	t.Parallel()
	at := Location{Directory: filepath.Join(t.TempDir(), "blobs")}
	if err := Create(t.Context(), at, testPassword, CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	o := ConnectOptions{Host: "h", User: "u", CacheDirectory: filepath.Join(t.TempDir(), "cache"), CacheBytes: 10 * mib}
	r, err := OpenLocation(t.Context(), at, testPassword, o)
	if err != nil {
		t.Fatal(err)
	}
	disk := &memory{data: make([]byte, 64*mib)}
	disk.write(rand.New(rand.NewPCG(1, 9)), extent.Extent{Length: 64 * mib}, false)
	p := mustBackUp(t, r, Request{Source: testSource, Time: time.Unix(1, 0), Disks: []DiskSource{disk.source(false)}})
	image, err := r.Image(t.Context(), p.Disks[0])
	if err != nil {
		t.Fatal(err)
	}
	w := &waitingTarget{data: make([]byte, 64*mib), writing: make(chan struct{}), goOn: make(chan struct{})}
	ended := make(chan error, 1)
	go func() { ended <- image.Restore(t.Context(), w, RestoreOptions{Workers: 2}) }()
	<-w.writing
	r.conn.CloseTimeout = time.Minute
	closed := make(chan error, 1)
	go func() { closed <- r.Close(t.Context()) }()
	for { // until the end has begun
		release, err := r.conn.Reader().Hold()
		if err != nil {
			break
		}
		release()
		runtime.Gosched()
	}
	close(w.goOn)
	if err := <-ended; err != nil || !bytes.Equal(w.data, disk.data) {
		verdict.Errorf(t, "what was restored is wrong, or: %v", err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if err := image.Restore(t.Context(), w, RestoreOptions{}); err == nil {
		t.Error("a restore began in a closed repository")
	}
}
