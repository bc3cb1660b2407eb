package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/disk/hole"
	"github.com/varvebackup/varve/internal/extent"
)

// stretch is how many bytes of a file are read at once.
const stretch = 1 << 20

// dataOf returns the extents of a file that have data.
func dataOf(f *os.File) (extent.Set, error) {
	var set extent.Set
	info, err := f.Stat()
	if err != nil {
		return set, err
	}
	for at := int64(0); at < info.Size(); {
		e, err := hole.NextData(f, extent.Extent{Offset: at, Length: info.Size() - at})
		if err != nil || e.Empty() {
			return set, err
		}
		set.Append(e)
		at = e.End()
	}
	return set, nil
}

// visitStretches calls visit with the extents of a set, split into stretches.
func visitStretches(ctx context.Context, set extent.Set, visit func(extent.Extent) error) error {
	for e := range set.All() {
		for at := e.Offset; at < e.End(); at += stretch {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err := visit(extent.Extent{Offset: at, Length: min(stretch, e.End()-at)}); err != nil {
				return err
			}
		}
	}
	return nil
}

// compareFiles returns an error if two files differ.
func compareFiles(ctx context.Context, a, b string) (err error) {
	var files [2]*os.File
	var data extent.Set
	var sizes [2]int64
	for i, path := range []string{a, b} {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close() //nolint:errcheck // it is only read
		info, err := f.Stat()
		if err != nil {
			return err
		}
		set, err := dataOf(f)
		if err != nil {
			return err
		}
		files[i], sizes[i], data = f, info.Size(), data.Union(set)
	}
	if sizes[0] != sizes[1] {
		return fmt.Errorf("%s has %d bytes and %s %d", a, sizes[0], b, sizes[1])
	}
	var buffers [2][stretch]byte
	return visitStretches(ctx, data, func(e extent.Extent) error {
		for i, f := range files {
			if _, err := f.ReadAt(buffers[i][:e.Length], e.Offset); err != nil {
				return err
			}
		}
		if !bytes.Equal(buffers[0][:e.Length], buffers[1][:e.Length]) {
			return fmt.Errorf("%s and %s differ within %s", a, b, e)
		}
		return nil
	})
}

// measureSHA256 measures how long it takes to read and hash the image's data with one goroutine per core, each hashing a
// part. It also returns the number of bytes.
func (h *history) measureSHA256(ctx context.Context) (usage, int64, error) {
	f, err := os.Open(h.image)
	if err != nil {
		return usage{}, 0, err
	}
	defer f.Close() //nolint:errcheck // it is only read
	data, err := dataOf(f)
	if err != nil {
		return usage{}, 0, err
	}
	if err := h.dropCaches(); err != nil {
		return usage{}, 0, err
	}
	before, err := ownTime()
	if err != nil {
		return usage{}, 0, err
	}
	start := time.Now()
	if err := hashAll(ctx, f, data); err != nil {
		return usage{}, 0, err
	}
	u := usage{wall: time.Since(start)}
	after, err := ownTime()
	u.cpu = after - before
	fmt.Fprintf(h.log, "  %-34s %7.2f s  cpu %7.2f s\n", "sha256", u.wall.Seconds(), u.cpu.Seconds())
	return u, data.Bytes(), err
}

func hashAll(ctx context.Context, f *os.File, data extent.Set) error {
	work := make(chan extent.Extent)
	g, ctx := errgroup.WithContext(ctx)
	for range runtime.NumCPU() {
		g.Go(func() error {
			hash, buffer := sha256.New(), make([]byte, stretch)
			for e := range work {
				if _, err := f.ReadAt(buffer[:e.Length], e.Offset); err != nil && !errors.Is(err, io.EOF) {
					return err
				}
				hash.Write(buffer[:e.Length]) // writing to a hash never fails
			}
			hash.Sum(nil)
			return nil
		})
	}
	g.Go(func() error {
		defer close(work)
		return visitStretches(ctx, data, func(e extent.Extent) error {
			select {
			case work <- e:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
	})
	return g.Wait()
}

// ownTime returns the processor time of this process.
func ownTime() (time.Duration, error) {
	var r unix.Rusage
	err := unix.Getrusage(unix.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano()), os.NewSyscallError("getrusage", err)
}
