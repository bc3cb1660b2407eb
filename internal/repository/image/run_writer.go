package image

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/repository/table"
)

// maxOpenRuns is how many incomplete runs a runWriter has in memory. Blocks that were stored at the same time lie in the packs in no
// certain order, so those of about as many runs as a backup has workers come mixed.
const maxOpenRuns = table.DefaultWorkers

// runWriter writes the blocks of one region to a target. It gets them in the order of the packs, and writes those of a run at once.
type runWriter struct {
	geometry table.Geometry
	region   int
	target   Target
	// wrote is called with the length of each piece that was written; may be nil.
	wrote func(int64)
	// missing is how many blocks of each run have yet to come.
	missing map[int]int
	// open are the runs that have some of their blocks, the oldest first. buffers holds *[]byte for more of them.
	open    []*openRun
	buffers *sync.Pool
}

// openRun is a run that lacks blocks.
type openRun struct {
	run  int
	data *[]byte
	// has are the bytes of the disk that are in data.
	has extent.Set
}

func (m *Image) newRunWriter(region int, target Target, wrote func(int64)) *runWriter {
	return &runWriter{geometry: m.Geometry, region: region, target: target, wrote: wrote, missing: map[int]int{}, buffers: &m.runBuffers}
}

// expectBlock says that block j will come.
func (w *runWriter) expectBlock(j int) { w.missing[w.geometry.RunOf(j)]++ }

// addBlock takes block j, and writes its run if nothing else of it is expected.
func (w *runWriter) addBlock(ctx context.Context, j int, data []byte) error {
	run, e := w.geometry.RunOf(j), w.geometry.Block(w.region, j)
	w.missing[run]--
	at := slices.IndexFunc(w.open, func(o *openRun) bool { return o.run == run })
	if at < 0 {
		if w.missing[run] == 0 { // It is alone, or what came before it has been written.
			return w.writeExtent(ctx, data, e)
		}
		if len(w.open) == maxOpenRuns {
			if err := w.writeRun(ctx, 0); err != nil {
				return err
			}
		}
		at = len(w.open)
		w.open = append(w.open, &openRun{run: run, data: w.takeBuffer()})
	}
	o := w.open[at]
	copy((*o.data)[e.Offset-w.startOf(run):], data)
	o.has = o.has.Union(extent.NewSet(e))
	if w.missing[run] > 0 {
		return nil
	}
	return w.writeRun(ctx, at)
}

// flushRuns writes what is left.
func (w *runWriter) flushRuns(ctx context.Context) error {
	for len(w.open) > 0 {
		if err := w.writeRun(ctx, 0); err != nil {
			return err
		}
	}
	return nil
}

// writeRun writes what one of the open runs has.
func (w *runWriter) writeRun(ctx context.Context, at int) error {
	o := w.open[at]
	w.open = slices.Delete(w.open, at, at+1)
	start := w.startOf(o.run)
	for e := range o.has.All() {
		if err := w.writeExtent(ctx, (*o.data)[e.Offset-start:e.End()-start], e); err != nil {
			return err
		}
	}
	w.buffers.Put(o.data)
	return nil
}

func (w *runWriter) writeExtent(ctx context.Context, data []byte, e extent.Extent) error {
	if err := w.target.WriteAt(ctx, data, e.Offset); err != nil {
		return fmt.Errorf("write %s: %w", e, err)
	}
	if w.wrote != nil {
		w.wrote(e.Length)
	}
	return nil
}

// startOf returns where a run begins on the disk.
func (w *runWriter) startOf(run int) int64 {
	return w.geometry.Region(w.region).Offset + int64(run)*w.geometry.RunBytes()
}

func (w *runWriter) takeBuffer() *[]byte {
	if b, ok := w.buffers.Get().(*[]byte); ok {
		return b
	}
	b := make([]byte, w.geometry.RunBytes())
	return &b
}
