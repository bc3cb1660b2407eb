package tunnel

import (
	"context"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/extent"
)

// volume is a volume of the launcher's, at the far end. It belongs to no connection.
type volume struct {
	server *Server
	info   export.Info
}

// Info implements export.Volume.
func (v *volume) Info() export.Info { return v.info }

// openStream sends a request about the volume on the connection that is up.
func (v *volume) openStream(ctx context.Context, asked frame) (*stream, error) {
	session, err := v.server.session()
	if err != nil {
		return nil, err
	}
	i := findVolume(session.infos, v.info.Name)
	if i < 0 || session.infos[i] != v.info {
		return nil, errclass.Errorf(errclass.Expired, "volume %s of backup %s is no longer offered as it was", v.info.Name, v.server.BackupUID)
	}
	asked.volume = uint16(i)
	return session.openStream(ctx, asked)
}

func (v *volume) checkExtent(ctx context.Context, e extent.Extent) error {
	if !e.Valid() || e.End() > v.info.Bytes {
		return errclass.Errorf(errclass.Invalid, "volume %s has %d bytes: %v is not in it", v.info.Name, v.info.Bytes, e)
	}
	return context.Cause(ctx)
}

// firstPageRegions is how many regions are asked for first. Each page has eight times as many as the one before, so that
// who wants few regions does not have many computed and sent.
const firstPageRegions = 64

// Regions implements export.Volume. It asks for page after page.
func (v *volume) Regions(ctx context.Context, e extent.Extent, report func(export.Region) bool) error {
	if err := v.checkExtent(ctx, e); err != nil {
		return err
	}
	// A region that ends where its page ends may go on in the next one.
	var pending export.Region
	stopped := false
	for count := uint32(firstPageRegions); !e.Empty(); count = min(8*count, maxPageRegions) {
		end, err := v.readPage(ctx, e, count, func(r export.Region) bool {
			switch {
			case pending.Length > 0 && pending.Kind == r.Kind:
				pending.Length += r.Length
			case pending.Length > 0 && !report(pending):
				stopped = true
			default:
				pending = r
			}
			return !stopped
		})
		if err != nil || stopped {
			return err
		}
		e = extent.Extent{Offset: end, Length: e.End() - end}
	}
	if pending.Length > 0 {
		report(pending)
	}
	return nil
}

// readPage calls report for a page of the regions of e, until it returns false, and returns where the page ends.
func (v *volume) readPage(ctx context.Context, e extent.Extent, count uint32, report func(export.Region) bool) (end int64, err error) {
	st, err := v.openStream(ctx, frame{kind: frameRegions, extent: e, count: count})
	if err != nil {
		return 0, err
	}
	defer st.abandon()
	page, more, err := st.takeArrival(ctx)
	if err != nil {
		return 0, err
	}
	if !more {
		return 0, protocolError("no page")
	}
	defer st.giveBack(page)
	return parsePage(page.data.data, e, v.info.Incremental, report) // it was checked when it arrived
}

// Read implements export.Volume. It fails with Transient when the connection breaks, and with Corrupt if the data is not
// what the launcher read.
func (v *volume) Read(ctx context.Context, e extent.Extent, scope export.Scope, sink func(export.Chunk) error) error {
	if err := v.checkExtent(ctx, e); err != nil {
		return err
	}
	if scope > export.Changed {
		return errclass.Errorf(errclass.Invalid, "scope %d is unknown", scope)
	}
	if e.Empty() {
		return nil
	}
	st, err := v.openStream(ctx, frame{kind: frameRead, extent: e, scope: scope})
	if err != nil {
		return err
	}
	defer st.abandon()
	for {
		a, more, err := st.takeArrival(ctx)
		if err != nil || !more {
			return err
		}
		err = v.passOn(a, sink)
		st.giveBack(a)
		if err != nil {
			return err
		}
	}
}

// passOn gives a piece to the sink.
func (v *volume) passOn(a arrival, sink func(export.Chunk) error) error {
	c := export.Chunk{Extent: a.extent}
	if a.data != nil {
		c.Data, c.Checksum = a.data.data, a.checksum
		if export.Checksum(c.Data) != c.Checksum {
			return errclass.Errorf(ErrChecksum, "volume %s at %v: %w", v.info.Name, a.extent, ErrChecksum)
		}
	}
	return sink(c)
}
