package repository

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/extent"
)

// Backups of two disks, a reader, maintenance and deletion go on at the same time, each with a connection of its own.
func TestEverythingAtOnce(t *testing.T) {
	t.Parallel()
	_, config := newRepository(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wait sync.WaitGroup
	fail := func(err error) {
		if err != nil && ctx.Err() == nil {
			t.Error(err)
			cancel()
		}
	}
	held := sync.Map{}
	for i := range 2 {
		r := open(t, config)
		wait.Go(func() { fail(backUpRepeatedly(ctx, r, i, 6, &held)) })
	}
	reader, cleaner := open(t, config), open(t, config)
	done := make(chan struct{})
	var background sync.WaitGroup
	background.Go(func() { fail(readRepeatedly(ctx, reader, done, &held)) })
	background.Go(func() { fail(cleanRepeatedly(ctx, cleaner, done, &held)) })
	wait.Wait()
	close(done)
	background.Wait()
	fresh := open(t, config)
	points, err := fresh.List(t.Context(), nil)
	if err != nil || len(points) == 0 {
		t.Fatalf("%d restore points: %v", len(points), err)
	}
	for _, p := range points {
		want, _ := held.Load(p.ID)
		same(t, fresh, p, want.([]byte))
	}
}

func backUpRepeatedly(ctx context.Context, r *Repository, disk, times int, held *sync.Map) error {
	random := rand.New(rand.NewPCG(uint64(disk), 5))
	d := &memory{data: make([]byte, 8*mib)}
	source := testSource
	source.Path = fmt.Sprintf("/vm-%d", disk)
	for i := range times {
		d.write(random, extent.Extent{Offset: random.Int64N(7 * mib), Length: mib}, false)
		p, err := r.Backup(ctx, Request{Source: source, Time: time.Unix(int64(i), 0), Disks: []DiskSource{d.source(i > 0)}})
		if err != nil {
			return err
		}
		held.Store(p.ID, bytes.Clone(d.data))
	}
	return nil
}

func readRepeatedly(ctx context.Context, r *Repository, done <-chan struct{}, held *sync.Map) error {
	return repeatedly(ctx, r, done, func(points []*RestorePoint) error {
		p := points[len(points)/2]
		want, known := held.Load(p.ID)
		image, err := r.Image(ctx, p.Disks[0])
		if err != nil {
			return err
		}
		got := make([]byte, p.Disks[0].Bytes)
		if err := image.ReadAt(ctx, got, 0); err != nil {
			return err
		}
		if known && !bytes.Equal(got, want.([]byte)) {
			return fmt.Errorf("%w: restore point %s differs", ErrCorrupt, p.ID)
		}
		return nil
	})
}

func cleanRepeatedly(ctx context.Context, r *Repository, done <-chan struct{}, held *sync.Map) error {
	return repeatedly(ctx, r, done, func(points []*RestorePoint) error {
		if len(points) > 3 {
			if err := r.Delete(ctx, points[0].ID); err != nil {
				return err
			}
			held.Delete(points[0].ID)
		}
		return r.Maintain(ctx, MaintenanceOptions{Mode: FullMaintenance})
	})
}

func repeatedly(ctx context.Context, r *Repository, done <-chan struct{}, do func([]*RestorePoint) error) error {
	for ctx.Err() == nil {
		select {
		case <-done:
			return nil
		default:
		}
		if err := r.rep.Refresh(ctx); err != nil {
			return err
		}
		points, err := r.List(ctx, nil)
		if err != nil {
			return err
		}
		if len(points) == 0 {
			continue
		}
		if err := do(points); err != nil {
			return err
		}
	}
	return nil
}
