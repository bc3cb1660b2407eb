package mover

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"golang.org/x/sync/errgroup"

	"github.com/varvebackup/varve/internal/reporter"
	"github.com/varvebackup/varve/internal/repository"
)

// StreamRequest asks to write a disk of a restore point to a stream.
type StreamRequest struct {
	Disk repository.Disk
	// To gets the disk in raw format, from its beginning to its end, with zeroes for holes.
	To io.Writer
	// Workers is how many blocks are fetched in parallel; 0: repository.DefaultWorkers.
	Workers int
	// Progress is called from one goroutine at a time, with no lock held. It may be nil.
	Progress func(Progress)
}

// Stream writes a disk of a restore point to a stream. Use it under a lease (see WithLease). What was written before an
// error is the beginning of the disk. Errors are those of the repository and of the stream.
func Stream(ctx context.Context, r *repository.Repository, q StreamRequest) error {
	image, err := r.Image(ctx, q.Disk)
	if err != nil {
		return err
	}
	workers := q.Workers
	if workers == 0 {
		workers = repository.DefaultWorkers
	}
	progress := Progress{Phase: PhaseWriting, TotalBytes: q.Disk.Bytes}
	reports := reporter.New(q.Progress)
	defer reports.Stop()
	group, ctx := errgroup.WithContext(ctx)
	// The blocks in the order of the disk. Its capacity bounds how many of them are in memory.
	blocks := make(chan chan []byte, workers)
	group.Go(func() error {
		defer close(blocks)
		for number := range (q.Disk.Bytes + q.Disk.BlockBytes - 1) / q.Disk.BlockBytes {
			block := make(chan []byte, 1)
			select {
			case blocks <- block:
			case <-ctx.Done():
				return ctx.Err()
			}
			group.Go(func() error {
				data, err := image.Block(ctx, number)
				if err == nil {
					block <- data
				}
				return err
			})
		}
		return nil
	})
	group.Go(func() error {
		zeroes := make([]byte, q.Disk.BlockBytes)
		for block := range blocks {
			var data []byte
			select {
			case data = <-block:
			case <-ctx.Done():
				return ctx.Err()
			}
			if data == nil {
				data = zeroes[:min(q.Disk.BlockBytes, q.Disk.Bytes-progress.ProcessedBytes)]
			}
			n, err := io.Copy(q.To, bytes.NewReader(data))
			if err != nil {
				return fmt.Errorf("write disk %s: %w", q.Disk.Name, err)
			}
			progress.ProcessedBytes += n
			reports.Report(progress)
		}
		return nil
	})
	return group.Wait()
}
