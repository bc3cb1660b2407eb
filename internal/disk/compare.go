package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/varvebackup/varve/internal/disk/hole"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
)

const (
	// CompareBytes is the unit in which a target is compared: the block of file systems that share blocks between files.
	CompareBytes = 4 << 10
	// comparePieceBytes is how much of the target is read at once, a multiple of every unit.
	comparePieceBytes = 256 << 10
)

// Comparison lets a target write only the blocks that differ from what it has, and counts them. The zero value is ready
// for one OpenTarget. Its methods are safe for concurrent use.
type Comparison struct{ written, equal atomic.Int64 }

// WrittenBytes returns how many bytes differed and were written, in whole blocks of CompareBytes. Ranges of zeroes that a
// device frees are not read first, and count neither here nor as equal.
func (c *Comparison) WrittenBytes() int64 { return c.written.Load() }

// EqualBytes returns how many bytes were the same already and were not written.
func (c *Comparison) EqualBytes() int64 { return c.equal.Load() }

// readableTarget is a target that can be read.
type readableTarget interface {
	Target
	// readAt fills p with what the target has at offset.
	readAt(ctx context.Context, p []byte, offset int64) error
	// nonzeroWithin returns the part of e that may be nonzero. If that is not known, Zero of the target does better.
	nonzeroWithin(ctx context.Context, e extent.Extent) (part extent.Set, known bool, err error)
	// zeroData makes e, which has data, read as zeroes.
	zeroData(ctx context.Context, e extent.Extent) error
	// unitBytes is the smallest extent that can be written, or CompareBytes if that is more: a power of two, at most 64
	// KiB.
	unitBytes() int64
}

// comparedTarget reads what is there before it writes, and leaves alone what is the same. The target ends up with the same
// bytes as without it. It needs no write lock: a restore writes each byte once.
type comparedTarget struct {
	readableTarget

	counts *Comparison
	pieces sync.Pool // of *[]byte
}

func newComparedTarget(t readableTarget, counts *Comparison) *comparedTarget {
	return &comparedTarget{readableTarget: t, counts: counts, pieces: sync.Pool{New: func() any {
		piece := make([]byte, comparePieceBytes)
		return &piece
	}}}
}

// WriteAt implements Target.
func (t *comparedTarget) WriteAt(ctx context.Context, p []byte, offset int64) error {
	e := extent.Extent{Offset: offset, Length: int64(len(p))}
	if err := checkWithin("", t.Bytes(), offset, len(p)); err != nil {
		return t.readableTarget.WriteAt(ctx, p, offset) // which names the target
	}
	return t.eachDifference(ctx, e, p, func(run extent.Extent) error {
		return t.readableTarget.WriteAt(ctx, p[run.Offset-offset:run.End()-offset], run.Offset)
	})
}

// Zero implements Target.
func (t *comparedTarget) Zero(ctx context.Context, e extent.Extent) error {
	if err := checkWithin("", t.Bytes(), e.Offset, int(e.Length)); err != nil {
		return t.readableTarget.Zero(ctx, e) // which names the target
	}
	data, known, err := t.nonzeroWithin(ctx, e)
	if err != nil {
		return err
	}
	if !known {
		return t.readableTarget.Zero(ctx, e)
	}
	// A server may say more exactly where data is than it can be written.
	for part := range data.Widen(t.unitBytes(), t.Bytes()).Intersect(extent.NewSet(e)).All() {
		zero := func(run extent.Extent) error { return t.zeroData(ctx, run) }
		if err := t.eachDifference(ctx, part, nil, zero); err != nil {
			return err
		}
	}
	return nil
}

// eachDifference calls write for each run of blocks of e in which the target differs from want, which nil makes zeroes.
// A piece that cannot be read differs: writing it may help, and otherwise the write says why.
func (t *comparedTarget) eachDifference(
	ctx context.Context, e extent.Extent, want []byte, write func(extent.Extent) error,
) error {
	piece, ok := t.pieces.Get().(*[]byte)
	if !ok {
		return errors.New("compare: the pool has something else than pieces")
	}
	defer t.pieces.Put(piece)
	unit := t.unitBytes()
	run := extent.Extent{Offset: e.Offset}
	writeRun := func(next int64) error {
		if !run.Empty() {
			if err := write(run); err != nil {
				return err
			}
			t.counts.written.Add(run.Length)
		}
		run = extent.Extent{Offset: next}
		return nil
	}
	for at := e.Offset; at < e.End(); {
		end := min(e.End(), (at/comparePieceBytes+1)*comparePieceBytes)
		has := (*piece)[:end-at]
		readable := t.readAt(ctx, has, at) == nil
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		for at < end {
			next := min(end, (at/unit+1)*unit)
			block := has[:next-at]
			has = has[next-at:]
			if !readable || !isEqual(block, want, at-e.Offset) {
				run.Length = next - run.Offset
			} else {
				t.counts.equal.Add(next - at)
				if err := writeRun(next); err != nil {
					return err
				}
			}
			at = next
		}
	}
	return writeRun(e.End())
}

// isEqual reports whether a block that is not empty has the bytes of want from an offset on, or zeroes if want is nil.
func isEqual(block, want []byte, from int64) bool {
	if want == nil {
		return isZero(block)
	}
	return bytes.Equal(block, want[from:from+int64(len(block))])
}

// refuseComparison refuses a comparison with a target that is made anew.
func (o *TargetOptions) refuseComparison(spec string) error {
	if o.Compare != nil && (o.Format == QCOW2 || o.Layer != nil) {
		return errclass.Errorf(ErrArgument, "target %s: a qcow2 image is made anew, so there is nothing to compare with: "+
			"restore it whole, or serve the image over NBD and restore to its URI", spec)
	}
	return nil
}

func (t *fileTarget) readAt(ctx context.Context, p []byte, offset int64) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	_, err := t.f.ReadAt(p, offset)
	return err
}

// nonzeroWithin knows nothing about a device. Freeing a range there is cheaper than reading it, and leaves alone what is
// free already. Zero reads first what it cannot free.
func (t *fileTarget) nonzeroWithin(ctx context.Context, e extent.Extent) (extent.Set, bool, error) {
	var found extent.Set
	if !t.regular {
		return found, false, nil
	}
	for !e.Empty() {
		if ctx.Err() != nil {
			return found, true, context.Cause(ctx)
		}
		data, err := hole.NextData(t.f, e)
		if err != nil {
			return found, true, fmt.Errorf("find data of %s: %w", t.f.Name(), err)
		}
		if data.Empty() {
			break
		}
		found.Append(data)
		e = extent.Extent{Offset: data.End(), Length: e.End() - data.End()}
	}
	return found, true, nil
}

func (t *fileTarget) zeroData(ctx context.Context, e extent.Extent) error {
	if err := t.freeExtent(ctx, e); err != nil {
		return explainFull(t.f.Name(), fmt.Errorf("zero %s of %s: %w", e, t.f.Name(), err))
	}
	return nil
}

func (t *fileTarget) unitBytes() int64 { return CompareBytes }

func (t *exportTarget) readAt(ctx context.Context, p []byte, offset int64) error {
	return t.explainError(t.client.ReadAt(ctx, p, offset))
}

func (t *exportTarget) nonzeroWithin(ctx context.Context, e extent.Extent) (extent.Set, bool, error) {
	data, err := t.dataWithin(ctx, e)
	return data, true, err
}

func (t *exportTarget) zeroData(ctx context.Context, e extent.Extent) error {
	e.Length = t.padToBlock(e.End()) - e.Offset
	return t.targetError(t.zeroExtent(ctx, e))
}

func (t *exportTarget) unitBytes() int64 {
	return max(CompareBytes, int64(t.client.Info().Block.Minimum))
}
