package serve

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/extent"
)

// lookBytes bounds how far NextRun looks, which costs time although the run may end sooner on the disk below.
const lookBytes = 1 << 30

// ReadAt fills p from offset.
func (o *Overlay) ReadAt(ctx context.Context, p []byte, offset int64) error {
	for len(p) > 0 {
		n, here := o.clusters.nextRun(extent.Extent{Offset: offset, Length: int64(len(p))})
		var err error
		if here {
			_, err = o.file.ReadAt(p[:n], offset)
		} else {
			err = o.below.ReadAt(ctx, p[:n], offset)
		}
		if err != nil {
			return err
		}
		p, offset = p[n:], offset+n
	}
	return nil
}

// WriteAt writes p at offset. The rest of a cluster that is written in part is copied from below.
func (o *Overlay) WriteAt(ctx context.Context, p []byte, offset int64) error {
	return o.changeExtent(ctx, extent.Extent{Offset: offset, Length: int64(len(p))}, func() error {
		_, err := o.file.WriteAt(p, offset)
		return err
	})
}

// changeExtent calls write, which changes e in the file, and sees to it that the file has all clusters of e then.
func (o *Overlay) changeExtent(ctx context.Context, e extent.Extent, write func() error) error {
	if o.clusters.hasExtent(e) {
		return write()
	}
	edges, err := o.readEdges(ctx, e)
	if err != nil {
		return err
	}
	o.taking.Lock()
	defer o.taking.Unlock()
	for _, edge := range edges {
		if o.clusters.hasExtent(edge.Extent) { // by now
			continue
		}
		if _, err := o.file.WriteAt(edge.data, edge.Offset); err != nil {
			return err
		}
	}
	if err := write(); err != nil {
		return err
	}
	o.clusters.addExtent(e)
	return nil
}

// edge is the part of a cluster beside what is written, as it is below.
type edge struct {
	extent.Extent
	data []byte
}

// readEdges reads what is beside e in clusters that the file has not got.
func (o *Overlay) readEdges(ctx context.Context, e extent.Extent) (out []edge, err error) {
	wide := e.Widen(clusterBytes, o.Size())
	for _, part := range []extent.Extent{
		{Offset: wide.Offset, Length: e.Offset - wide.Offset},
		{Offset: e.End(), Length: wide.End() - e.End()},
	} {
		if part.Empty() || o.clusters.hasExtent(part) {
			continue
		}
		data := make([]byte, part.Length)
		if err := o.below.ReadAt(ctx, data, part.Offset); err != nil {
			return nil, err
		}
		out = append(out, edge{part, data})
	}
	return out, nil
}

// WriteZeroes makes e read as zeroes. They take no space unless noHole is set.
func (o *Overlay) WriteZeroes(ctx context.Context, e extent.Extent, noHole, fast bool) error {
	mode := uint32(unix.FALLOC_FL_PUNCH_HOLE)
	if noHole {
		mode = unix.FALLOC_FL_ZERO_RANGE
	}
	return o.changeExtent(ctx, e, func() error {
		err := unix.Fallocate(int(o.file.Fd()), mode|unix.FALLOC_FL_KEEP_SIZE, e.Offset, e.Length)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EOPNOTSUPP):
			return os.NewSyscallError("fallocate", err)
		case fast:
			return unix.ENOTSUP
		}
		return o.writeOutZeroes(ctx, e)
	})
}

// writeOutZeroes writes zeroes where the file system cannot do better.
func (o *Overlay) writeOutZeroes(ctx context.Context, e extent.Extent) error {
	p := make([]byte, min(e.Length, 1<<20))
	for at := e.Offset; at < e.End() && ctx.Err() == nil; at += int64(len(p)) {
		if _, err := o.file.WriteAt(p[:min(int64(len(p)), e.End()-at)], at); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// Trim makes e read as zeroes, which take no space, where the file system can do that.
func (o *Overlay) Trim(ctx context.Context, e extent.Extent) error {
	err := o.WriteZeroes(ctx, e, false, true)
	if errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	return err
}

// NextRun says how many bytes from e.Offset on are of one kind, and whether they are known to be zero.
func (o *Overlay) NextRun(ctx context.Context, e extent.Extent) (length int64, zero bool, err error) {
	e.Length = min(e.Length, lookBytes)
	n, here := o.clusters.nextRun(e)
	if here {
		return n, false, nil
	}
	return o.below.NextRun(ctx, extent.Extent{Offset: e.Offset, Length: n})
}

// Contexts are the disk's metadata contexts.
func (o *Overlay) Contexts() []string { return []string{allocation} }

// BlockStatus reports where the disk has holes.
func (o *Overlay) BlockStatus(ctx context.Context, _ string, e extent.Extent, report func(int64, uint64) bool) error {
	return reportRuns(ctx, e, o.NextRun, report)
}
