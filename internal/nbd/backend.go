package nbd

import (
	"context"

	"github.com/varvebackup/varve/internal/extent"
)

// Exports is what a Server serves. Its methods are called from many goroutines.
type Exports interface {
	// Open is called for each connection that opens the export, or asks about it. An error that wraps ErrUnknownExport
	// means that no export has this name; any other error refuses it.
	Open(ctx context.Context, name string) (Export, error)
	// List returns the exports that clients may see.
	List(ctx context.Context) ([]ListedExport, error)
}

// Export is a disk as a connection sees it.
type Export struct {
	Backend     Backend
	Description string
	// Block holds the constraints on requests. A zero Minimum stands for 1, a zero Preferred for 4 KiB, and a zero or
	// larger Maximum for Limits.MaxRequestBytes. The backend's size is a multiple of Minimum.
	Block BlockSizes
	// ReadOnly refuses writes even if the backend supports them.
	ReadOnly bool
	// MultiConn says that every connection reads what another has written, and that a flush covers all of them.
	MultiConn bool
	// Release is called once, when the connection no longer needs the export and all requests have ended. It may be
	// nil.
	Release func()
}

// Backend is a disk that a Server serves. Methods are called from many goroutines; their ctx ends when the client is
// gone. The server has already checked ranges and alignment. The client only sees the errno of an error: ENOSPC, EPERM,
// EINVAL, ENOTSUP, EOVERFLOW, ENOMEM or ESHUTDOWN, and EIO for every other error.
//
// A backend that also implements Writer, Zeroer, Trimmer, Cacher, Sparse or StatusReporter can do more.
type Backend interface {
	// Size returns the size in bytes, which must not change.
	Size() int64
	// ReadAt fills p from offset on, or fails.
	ReadAt(ctx context.Context, p []byte, offset int64) error
}

// Writer is a Backend that can be written. Without Zeroer, the server writes zeroes.
type Writer interface {
	WriteAt(ctx context.Context, p []byte, offset int64) error
	// Flush returns when everything written is on stable storage.
	Flush(ctx context.Context) error
}

// Zeroer is a Writer that can zero efficiently.
type Zeroer interface {
	// WriteZeroes makes e read as zeroes; with noHole, e stays allocated. With fast, it fails with ENOTSUP if zeroing
	// is no faster than writing.
	WriteZeroes(ctx context.Context, e extent.Extent, noHole, fast bool) error
}

// Trimmer is a Writer that can discard content.
type Trimmer interface {
	Trim(ctx context.Context, e extent.Extent) error
}

// Cacher is a Backend that can fetch ahead.
type Cacher interface {
	Cache(ctx context.Context, e extent.Extent) error
}

// Sparse is a Backend that knows where it is zero without reading. Reads then send no zeroes over the wire.
type Sparse interface {
	// NextRun returns how many bytes from e.Offset on are of one kind, at least 1, and whether they are zeroes.
	NextRun(ctx context.Context, e extent.Extent) (length int64, zero bool, err error)
}

// StatusReporter is a Backend with metadata contexts.
type StatusReporter interface {
	// Contexts returns the names, each with a namespace: "base:allocation".
	Contexts() []string
	// BlockStatus calls report for runs from e.Offset on, in order and without gaps, until it returns false or e is covered. A
	// run may end beyond e. It reports at least one run.
	BlockStatus(ctx context.Context, name string, e extent.Extent, report func(length int64, flags uint64) bool) error
}

// transmissionFlags returns what the export can do. The caller adds DF if structured replies were negotiated.
func (x *Export) transmissionFlags() TransmissionFlags {
	f := FlagHasFlags
	if x.MultiConn {
		f |= FlagCanMultiConn
	}
	if _, ok := x.Backend.(Cacher); ok {
		f |= FlagSendCache
	}
	if !x.isWritable() {
		return f | FlagReadOnly
	}
	f |= FlagSendFlush | FlagSendFUA | FlagSendWriteZeroes | FlagSendFastZero
	if _, ok := x.Backend.(Trimmer); ok {
		f |= FlagSendTrim
	}
	return f
}

func (x *Export) isWritable() bool {
	_, ok := x.Backend.(Writer)
	return ok && !x.ReadOnly
}

// contextNames returns the names of the export's metadata contexts.
func (x *Export) contextNames() []string {
	if r, ok := x.Backend.(StatusReporter); ok {
		return r.Contexts()
	}
	return nil
}

// setDefaults fills in what the export leaves to the server.
func (x *Export) setDefaults(l Limits) error {
	b := &x.Block
	if b.Minimum == 0 {
		b.Minimum = 1
	}
	if b.Preferred == 0 {
		b.Preferred = max(4<<10, b.Minimum)
	}
	if most := uint32(l.MaxRequestBytes); b.Maximum == 0 || b.Maximum > most {
		b.Maximum = most &^ (b.Minimum - 1)
	}
	if err := b.validate(); err != nil {
		return err
	}
	if x.Backend.Size() < 0 || x.Backend.Size()%int64(b.Minimum) != 0 {
		return protocolError("export of %d bytes with blocks of %d", x.Backend.Size(), b.Minimum)
	}
	return nil
}

func (x *Export) releaseExport() {
	if x.Release != nil {
		x.Release()
	}
}
