package tunnel

import (
	"context"
	"errors"
	"fmt"

	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/extent"
)

const (
	// minCreditBytes is the least that a request for content begins with: enough to go on while half is on the way.
	minCreditBytes = 2 * maxPieceBytes
	// sliceBytes is how much content a worker sends for one request before it looks for another one.
	sliceBytes = 1 << 20
	// maxSliceRegions bounds the regions in a slice.
	maxSliceRegions = 1024
	// planBytes is how much of the disk is planned at once at first: a volume may look at all of it to report one region.
	planBytes = 64 << 20
	// maxPlanBytes is the most, where there is little to send.
	maxPlanBytes = 64 << 30
	// planAlign is what slices begin and end at, where they can.
	planAlign = 64 << 10
)

// errNoCredit ends a Read whose chunks cost more than what was planned: many small ones.
var errNoCredit = errors.New("no credit")

// sendSlice sends some of the content that a request asks for: as much as there is credit for. It plans with the
// volume's regions what that is, so that no worker and no memory of a volume waits for credit.
func (s *serving) sendSlice(ctx context.Context, r *request) (done bool, err error) {
	r.mu.Lock()
	most := min(sliceBytes, r.credit)
	r.mu.Unlock()
	plan := extent.Extent{Offset: r.rest.Offset, Length: min(r.rest.Length, max(r.plan, planBytes))}
	end, err := planSlice(ctx, r.volume, plan, r.asked.scope, most)
	if err != nil {
		return false, err
	}
	if r.plan = planBytes; end == plan.End() {
		r.plan = min(2*plan.Length, maxPlanBytes)
	}
	err = r.volume.Read(ctx, extent.Extent{Offset: r.rest.Offset, Length: end - r.rest.Offset}, r.asked.scope, func(c export.Chunk) error {
		return s.sendChunk(ctx, r, c, end)
	})
	switch {
	case err == nil && r.asked.scope == export.Everything && r.rest.Offset != end:
		return false, fmt.Errorf("volume sent nothing of %d to %d", r.rest.Offset, end)
	case err == nil:
		r.advanceTo(end)
	case !errors.Is(err, errNoCredit):
		return false, err
	}
	if done := r.rest.Empty(); done {
		return true, nil // the end flushes
	}
	if err := s.writer.flushFrames(); err != nil {
		return false, writeError{err}
	}
	return false, nil
}

func (r *request) advanceTo(offset int64) {
	r.rest = extent.Extent{Offset: offset, Length: r.rest.End() - offset}
}

// planSlice returns where a slice of rest ends that costs at most most, which is at least a piece.
func planSlice(ctx context.Context, v export.Volume, rest extent.Extent, scope export.Scope, most int64) (int64, error) {
	end, count := rest.Offset, 0
	err := v.Regions(ctx, rest, func(region export.Region) bool {
		cost := bufferBytes(1)
		if region.Kind == export.Data || region.Kind == export.Clean && scope == export.Everything {
			cost = max(cost, region.Length)
		}
		if cost > most {
			// The end is where blocks begin, unless that is nowhere after the region's beginning.
			if cut := (region.Offset + most) &^ (planAlign - 1); cut > region.Offset {
				end = cut
			}
			return false
		}
		most -= cost
		end = region.End()
		count++
		return count < maxSliceRegions
	})
	if err == nil && (end <= rest.Offset || end > rest.End()) {
		err = fmt.Errorf("volume reports regions of %v that end at %d", rest, end)
	}
	return end, err
}

// sendChunk sends a chunk, if the request has credit for it.
func (s *serving) sendChunk(ctx context.Context, r *request, c export.Chunk, end int64) error {
	if !c.Valid() || c.Empty() || c.Offset < r.rest.Offset || c.End() > end || c.Data != nil && int64(len(c.Data)) != c.Length || len(c.Data) > export.MaxChunkBytes {
		return fmt.Errorf("volume sent %v with %d bytes of data, of %v", c.Extent, len(c.Data), r.rest)
	}
	return splitChunk(c, func(piece export.Chunk) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !r.spendCredit(bufferBytes(len(piece.Data))) {
			return errNoCredit
		}
		f := frame{kind: frameData, stream: r.asked.stream, extent: piece.Extent, checksum: piece.Checksum}
		if piece.Data == nil {
			f.kind = frameZero
		}
		if err := s.writer.writeFrame(f, piece.Data, true); err != nil {
			return writeError{err}
		}
		r.advanceTo(piece.End())
		return nil
	})
}

func (r *request) spendCredit(n int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.credit < n {
		return false
	}
	r.credit -= n
	return true
}
