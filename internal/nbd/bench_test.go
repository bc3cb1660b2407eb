package nbd

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/varvebackup/varve/internal/extent"
)

// emptyDisk is a disk that costs nothing to read.
type emptyDisk struct{ size int64 }

func (d emptyDisk) Size() int64                                 { return d.size }
func (d emptyDisk) ReadAt(context.Context, []byte, int64) error { return nil }

// TestTransmission_allocatesNothing: in the steady state, client and server together allocate nothing for a read, with any
// framing.
func TestTransmission_allocatesNothing(t *testing.T) { //nolint:paralleltest // it counts the allocations of the whole process
	for name, h := range framings {
		for _, size := range []int{512, 256 << 10} {
			c := open1(t, serveDisk(t, emptyDisk{1 << 30}), Options{most: &h})
			ctx := testContext(t)
			p := make([]byte, size)
			if n := testing.AllocsPerRun(500, func() {
				if err := c.ReadAt(ctx, p, 4096); err != nil {
					t.Fatal(err)
				}
			}); n >= 1 && !raceEnabled {
				t.Errorf("%s, %d bytes: %v allocations for a read", name, size, n)
			}
		}
	}
}

func BenchmarkRead(b *testing.B) {
	for _, size := range []int{4 << 10, 64 << 10, 256 << 10, 2 << 20} {
		for _, parallel := range []int{1, 8} {
			b.Run(fmt.Sprintf("%dKiB/%d in flight", size>>10, parallel), func(b *testing.B) {
				benchRead(b, serveDisk(b, emptyDisk{1 << 30}), size, parallel)
			})
		}
	}
}

// benchRead reads b.N times, from several goroutines.
func benchRead(b *testing.B, target Target, size, parallel int) {
	b.Helper()
	c, err := Dial(context.Background(), target, Options{Connections: 2})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	b.SetBytes(int64(size))
	b.ReportAllocs()
	blocks := c.Info().Bytes / int64(size)
	var all sync.WaitGroup
	b.ResetTimer()
	for worker := range parallel {
		all.Go(func() {
			p := make([]byte, size)
			for i := worker; i < b.N; i += parallel {
				if err := c.ReadAt(context.Background(), p, int64(i)%blocks*int64(size)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

func BenchmarkBlockStatus(b *testing.B) {
	d := newMemDisk(32 << 20)
	for i := 0; i < len(d.zero); i += 2 {
		d.zero[i] = false
	}
	c, err := Dial(context.Background(), serveDisk(b, d), Options{Contexts: []string{ContextAllocation}})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	b.ReportAllocs()
	for b.Loop() {
		if err := c.BlockStatus(context.Background(), extent.Extent{Length: d.Size()}, func(string, extent.Extent, uint64) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(d.zero)), "extents/op")
}
