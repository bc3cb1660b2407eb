// Package nbdvolume offers the NBD export of a pull backup as an export.Volume.
//
// The export holds the disk at the point in time while the guest writes on: before a guest's write changes a cluster,
// QEMU copies the old one into the scratch image, which lies over the disk. Reads are serialized against that copy. Queries
// of the block status are not: one may find a cluster absent from the scratch image, and find zeroes below it that the guest
// has written meanwhile. A cluster is copied only once, so zeroes count only if a second query, which begins when the first
// has ended, finds them, too.
//
// What is under way when a connection breaks fails with Transient. The export is there as long as libvirt's job, so that the
// volume connects again, and what is asked for after that finds the same disk.
package nbdvolume

import (
	"context"
	"fmt"

	"k8s.io/utils/clock"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/nbd"
)

const (
	// firstWindow and longestWindow bound the part of the disk whose status is queried at once, in bytes. The server looks at
	// all of it before it answers, and a caller who wants one page of regions shall not pay for many.
	firstWindow   = 64 << 20
	longestWindow = 4 << 30
	// fewRuns: if a window had fewer, the next one may be twice as long.
	fewRuns = 256
)

// Volume is an NBD export. It connects again when its connections break, until Close.
type Volume struct {
	line *line
	info export.Info
	// bitmap is the name of the bitmap's context, or empty for a full backup.
	bitmap string
	known  knownRegions
}

// Options say what an export is.
type Options struct {
	// Name is the volume's name in the machine.
	Name string
	// PointInTime is that of export.Info.
	PointInTime string
	// Bitmap is the name of the bitmap that the export has. Empty: the backup is full.
	Bitmap string
	// Connections is how many to open, if the server takes more than one; 1 if 0.
	Connections int
	// Clock tells how long the export has been out of reach; nil: the real one.
	Clock clock.PassiveClock
}

// Open connects to an export. Invalid: the export does not have what Options say, or cannot tell its status.
func Open(ctx context.Context, t nbd.Target, o Options) (*Volume, error) {
	contexts := []string{nbd.ContextAllocation}
	bitmap := ""
	if o.Bitmap != "" {
		bitmap = nbd.ContextDirtyBitmap + o.Bitmap
		contexts = append(contexts, bitmap)
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	l, err := openLine(ctx, t, nbd.Options{Contexts: contexts, Connections: o.Connections}, o.Clock)
	if err != nil {
		return nil, fmt.Errorf("open volume %s: %w", o.Name, err)
	}
	return &Volume{
		line: l, bitmap: bitmap,
		info: export.Info{Name: o.Name, Bytes: l.bytes, Incremental: o.Bitmap != "", PointInTime: o.PointInTime},
	}, nil
}

// Close ends the connections. Calls in flight fail.
func (v *Volume) Close() error { return v.line.close() }

// Lost returns why nobody should wait for the volume any more: its export could not be reached for LostAfter, although that was
// tried all the time, or something has panicked. Otherwise it returns nil.
func (v *Volume) Lost() error {
	if err := v.line.lost(); err != nil {
		return fmt.Errorf("volume %s: %w", v.info.Name, err)
	}
	return nil
}

// Info implements export.Volume.
func (v *Volume) Info() export.Info { return v.info }

func (v *Volume) checkExtent(e extent.Extent) error {
	if !e.Valid() || e.End() > v.info.Bytes {
		return errclass.Errorf(errclass.Invalid, "volume %s has %d bytes: %v is not in it", v.info.Name, v.info.Bytes, e)
	}
	return nil
}

// Regions implements export.Volume.
func (v *Volume) Regions(ctx context.Context, e extent.Extent, report func(export.Region) bool) error {
	if err := v.checkExtent(e); err != nil {
		return err
	}
	client, err := v.line.client(ctx)
	if err != nil {
		return fmt.Errorf("map of volume %s: %w", v.info.Name, err)
	}
	merge := merger{report: report}
	window := int64(firstWindow)
	for at := e.Offset; at < e.End(); {
		part, known := v.known.findPart(at)
		if !known {
			s, err := v.queryStatus(ctx, client, extent.Extent{Offset: at, Length: min(window, e.End()-at)})
			if err != nil {
				return fmt.Errorf("map of volume %s: %w", v.info.Name, transientIfDead(ctx, client, err))
			}
			if s.runs < fewRuns {
				window = min(2*window, longestWindow)
			} else {
				window = max(window/2, firstWindow)
			}
			part = s.listRegions()
			v.known.addPart(part)
		}
		rest := extent.Extent{Offset: at, Length: min(part.End(), e.End()) - at}
		if !part.addTo(&merge, rest) {
			return nil
		}
		at = rest.End()
	}
	merge.end()
	return nil
}

// status is what is known of a part of the disk.
type status struct {
	part          extent.Extent
	zeroes, clean extent.Set
	// runs is how many extents the server reported.
	runs int
}

func (v *Volume) queryStatus(ctx context.Context, client *nbd.Client, part extent.Extent) (status, error) {
	s := status{part: part}
	query := func(zeroes, clean *extent.Set) error {
		return client.BlockStatus(ctx, part, func(name string, e extent.Extent, flags uint64) error {
			s.runs++
			switch {
			case name == nbd.ContextAllocation && flags&nbd.StateZero != 0:
				zeroes.Append(e)
			case name == v.bitmap && flags&nbd.StateDirty == 0:
				clean.Append(e)
			}
			return nil
		})
	}
	if err := query(&s.zeroes, &s.clean); err != nil || s.zeroes.Empty() {
		return s, err
	}
	// Whatever was copied meanwhile is known now.
	var zeroes, clean extent.Set
	err := query(&zeroes, &clean)
	s.zeroes = s.zeroes.Intersect(zeroes)
	return s, err
}

// listRegions returns the regions of the part.
func (s *status) listRegions() knownPart {
	p := knownPart{Extent: s.part}
	merge := merger{report: func(r export.Region) bool {
		p.regions = append(p.regions, r)
		return true
	}}
	at := s.part.Offset
	addUpTo := func(end int64, kind export.Kind) {
		merge.add(extent.Extent{Offset: at, Length: end - at}, kind)
		at = end
	}
	for changed := range extent.NewSet(s.part).Subtract(s.clean).All() {
		addUpTo(changed.Offset, export.Clean)
		for zero := range s.zeroes.Within(changed) {
			addUpTo(zero.Offset, export.Data)
			addUpTo(zero.End(), export.Zero)
		}
		addUpTo(changed.End(), export.Data)
	}
	addUpTo(s.part.End(), export.Clean)
	merge.end()
	return p
}

// merger joins neighbours of the same kind.
type merger struct {
	report func(export.Region) bool
	last   export.Region
}

// add returns false when report has.
func (m *merger) add(e extent.Extent, kind export.Kind) bool {
	switch {
	case e.Empty():
	case m.last.Kind == kind:
		m.last.Length += e.Length
	case !m.last.Empty() && !m.report(m.last):
		return false
	default:
		m.last = export.Region{Extent: e, Kind: kind}
	}
	return true
}

func (m *merger) end() {
	if !m.last.Empty() {
		m.report(m.last)
	}
}
