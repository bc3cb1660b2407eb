package stream

import (
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
)

// position is how far the frames of a volume have come. Encoder and Decoder hold their frames against it.
type position struct {
	volume Volume
	next   int64
	totals Totals
}

func newPositions(volumes []Volume) []position {
	positions := make([]position, len(volumes))
	for i, v := range volumes {
		positions[i] = position{volume: v, next: v.From}
	}
	return positions
}

// advance checks that a frame follows what came before it, and counts it.
func (p *position) advance(e extent.Extent, zero bool) error {
	switch {
	case !e.Valid() || e.Empty() || e.End() > p.volume.Bytes:
		return errclass.Errorf(errclass.Corrupt, "volume %s has %d bytes: frame %v is not in it", p.volume.Name, p.volume.Bytes, e)
	case e.Offset < p.next:
		return errclass.Errorf(errclass.Corrupt, "frame %v of volume %s goes back behind %d", e, p.volume.Name, p.next)
	case e.Offset > p.next && !p.volume.Incremental:
		return errclass.Errorf(errclass.Corrupt, "volume %s is full, but has nothing from %d to %d", p.volume.Name, p.next, e.Offset)
	}
	p.next = e.End()
	p.totals.Frames++
	if zero {
		p.totals.ZeroBytes += e.Length
	} else {
		p.totals.DataBytes += e.Length
	}
	return nil
}

// checkEnd checks that a full volume is whole.
func (p *position) checkEnd() error {
	if p.next < p.volume.Bytes && !p.volume.Incremental {
		return errclass.Errorf(errclass.Corrupt, "volume %s is full, but ends at %d of %d", p.volume.Name, p.next, p.volume.Bytes)
	}
	return nil
}
