package repository

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/extent"
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
