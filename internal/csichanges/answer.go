package csichanges

import (
	"github.com/kubernetes-csi/external-snapshot-metadata/pkg/api"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
)

// maxExtents is how many extents an answer may have after adjacent ranges became one: 64 MiB of memory.
const maxExtents = 4 << 20

// message is what answers of both methods have in common.
type message interface {
	GetBlockMetadataType() api.BlockMetadataType
	GetVolumeCapacityBytes() int64
	GetBlockMetadata() []*api.BlockMetadata
}

// answer is what was received so far, of one stream or of several that continue each other.
type answer struct {
	// bytes is the size that the volume must have.
	bytes int64
	set   extent.Set
	// next is the end of the last range, which is where an interrupted stream is continued.
	next int64
	// kind and fixed are the type of all messages, and the length of all ranges if that is fixed; 0: none was received.
	kind  api.BlockMetadataType
	fixed int64
	// resumed says that the next range is the first one of a stream, which may begin before next.
	resumed bool
}

// add takes in a message. The error is errclass.Corrupt if it breaks a rule of the protocol, and errclass.Exhausted if the answer is larger
// than memory allows.
func (a *answer) add(m message) error {
	kind := m.GetBlockMetadataType()
	switch {
	case kind != api.BlockMetadataType_FIXED_LENGTH && kind != api.BlockMetadataType_VARIABLE_LENGTH:
		return errclass.Errorf(errclass.Corrupt, "the type of the ranges is %d", kind)
	case a.kind != api.BlockMetadataType_UNKNOWN && kind != a.kind:
		return errclass.Errorf(errclass.Corrupt, "the type of the ranges changes from %s to %s", a.kind, kind)
	case m.GetVolumeCapacityBytes() != a.bytes:
		return errclass.Errorf(errclass.Corrupt, "the volume is said to have %d bytes, and has %d", m.GetVolumeCapacityBytes(), a.bytes)
	}
	a.kind = kind
	for _, b := range m.GetBlockMetadata() {
		if err := a.addRange(extent.Extent{Offset: b.GetByteOffset(), Length: b.GetSizeBytes()}); err != nil {
			return err
		}
	}
	return nil
}

func (a *answer) addRange(e extent.Extent) error {
	if !e.Valid() || e.Empty() || e.Offset >= a.bytes {
		return errclass.Errorf(errclass.Corrupt, "the range %s is none of a volume of %d bytes", e, a.bytes)
	}
	if a.kind == api.BlockMetadataType_FIXED_LENGTH {
		if a.fixed != 0 && e.Length != a.fixed {
			return errclass.Errorf(errclass.Corrupt, "the range %s is not as long as those before it: %d bytes", e, a.fixed)
		}
		a.fixed = e.Length
	}
	end := e.End()
	if end > a.bytes {
		if a.kind != api.BlockMetadataType_FIXED_LENGTH {
			return errclass.Errorf(errclass.Corrupt, "the range %s ends behind a volume of %d bytes", e, a.bytes)
		}
		end = a.bytes // the last block of a volume that is no multiple of it
	}
	switch {
	case e.Offset >= a.next:
	case a.resumed && end > a.next:
		e.Offset = a.next // a stream may begin with the range that its starting offset is in
	default:
		return errclass.Errorf(errclass.Corrupt, "the range %s is not behind %d, where the one before it ends", e, a.next)
	}
	a.set.Append(extent.Extent{Offset: e.Offset, Length: end - e.Offset})
	a.next, a.resumed = end, false
	if a.set.Len() > maxExtents {
		return errclass.Errorf(errclass.Exhausted, "more than %d ranges", maxExtents)
	}
	return nil
}
