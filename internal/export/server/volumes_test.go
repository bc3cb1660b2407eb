package server_test

import (
	"context"

	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/exporttest"
	"github.com/varvebackup/varve/internal/extent"
)

// told is a volume of 8192 bytes that says what it is told to.
type told struct {
	regions []export.Region
	chunks  []export.Chunk
	// err ends reading after the chunks.
	err error
	// wait is closed when reading may end. Nil does not wait.
	wait chan struct{}
	// begun gets a value when reading begins, if it is not nil.
	begun chan struct{}
}

func (*told) Info() export.Info {
	return export.Info{Name: "told", Bytes: 8192, PointInTime: "told-1"}
}

func (v *told) Regions(_ context.Context, _ extent.Extent, report func(export.Region) bool) error {
	for _, r := range v.regions {
		if !report(r) {
			return nil
		}
	}
	return v.err
}

func (v *told) Read(ctx context.Context, _ extent.Extent, _ export.Scope, sink func(export.Chunk) error) error {
	if v.begun != nil {
		v.begun <- struct{}{}
	}
	for _, c := range v.chunks {
		if err := sink(c); err != nil {
			return err
		}
	}
	if v.wait != nil {
		select {
		case <-v.wait:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return v.err
}

// scatterBytes is the distance between the changes of a scattered volume, each of 64 KiB.
const scatterBytes = 8 << 20

// scattered is an incremental of a huge disk, which is computed.
type scattered struct{ size int64 }

func newScattered(size int64) scattered { return scattered{size: size} }

func (v scattered) Info() export.Info {
	return export.Info{Name: "huge", Bytes: v.size, Incremental: true, PointInTime: "huge-1"}
}

func (v scattered) Regions(_ context.Context, e extent.Extent, report func(export.Region) bool) error {
	for at := e.Offset; at < e.End(); {
		within := at % scatterBytes
		r := export.Region{Extent: extent.Extent{Offset: at, Length: exporttest.BlockBytes - within}, Kind: export.Data}
		if within >= exporttest.BlockBytes {
			r = export.Region{Extent: extent.Extent{Offset: at, Length: scatterBytes - within}, Kind: export.Clean}
		}
		r.Length = min(r.Length, e.End()-at)
		if !report(r) {
			return nil
		}
		at = r.End()
	}
	return nil
}

// ones has the content of every change.
var ones = func() []byte {
	b := make([]byte, exporttest.BlockBytes)
	for i := range b {
		b[i] = 1
	}
	return b
}()

var onesChecksum = export.Checksum(ones)

func (v scattered) Read(ctx context.Context, e extent.Extent, _ export.Scope, sink func(export.Chunk) error) error {
	var failure error
	err := v.Regions(ctx, e, func(r export.Region) bool {
		if r.Kind == export.Data {
			failure = sink(export.Chunk{Extent: r.Extent, Data: ones[:r.Length], Checksum: onesChecksum})
		}
		return failure == nil && ctx.Err() == nil
	})
	if failure != nil {
		return failure
	}
	return err
}
