package nbd

import (
	"context"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/extent"
)

// ReadAt fills p from offset on. It reads all of p or returns an error; after an error, the content of p is undefined.
// A range that is not aligned to the export's minimum block is read together with what is around it. Errors: *Error,
// the context's cause, or why the client is dead.
func (c *Client) ReadAt(ctx context.Context, p []byte, offset int64) error {
	e := extent.Extent{Offset: offset, Length: int64(len(p))}
	if err := c.checkRequest(cmdRead, e, 0); err != nil || e.Empty() {
		return err
	}
	if !c.isAligned(e) {
		return c.readAround(ctx, p, e)
	}
	return c.transferInPieces(ctx, cmdRead, 0, e, p)
}

// readAround reads the whole blocks that e is in, and copies e's part to p.
func (c *Client) readAround(ctx context.Context, p []byte, e extent.Extent) error {
	wide := e.Widen(int64(c.info.Block.Minimum), c.info.Bytes)
	all := make([]byte, wide.Length)
	if err := c.transferInPieces(ctx, cmdRead, 0, wide, all); err != nil {
		return err
	}
	copy(p, all[e.Offset-wide.Offset:])
	return nil
}

// WriteAt writes p at offset. The only flag is CmdFlagFUA. A range that is not aligned to the export's minimum block is
// refused with EINVAL. After an error, the content of the range is undefined. After the context's error, the server may
// still write what it has already received. If the context ends while p is being sent, the client ends too, unless the
// server takes the rest at once.
func (c *Client) WriteAt(ctx context.Context, p []byte, offset int64, flags CommandFlags) error {
	return c.changeExtent(ctx, cmdWrite, flags, extent.Extent{Offset: offset, Length: int64(len(p))}, p)
}

// WriteZeroes makes e read as zeroes. Flags: CmdFlagFUA, CmdFlagNoHole, and CmdFlagFastZero, which fails with ENOTSUP
// if zeroing is slow. Otherwise it is like WriteAt.
func (c *Client) WriteZeroes(ctx context.Context, e extent.Extent, flags CommandFlags) error {
	return c.changeExtent(ctx, cmdWriteZeroes, flags, e, nil)
}

// Trim tells the server that e is no longer needed; its content is undefined afterwards. The only flag is CmdFlagFUA.
func (c *Client) Trim(ctx context.Context, e extent.Extent, flags CommandFlags) error {
	return c.changeExtent(ctx, cmdTrim, flags, e, nil)
}

// Cache advises the server to fetch e ahead of its use.
func (c *Client) Cache(ctx context.Context, e extent.Extent) error {
	return c.changeExtent(ctx, cmdCache, 0, e, nil)
}

// Flush returns when every write that returned before is on stable storage. Without FlagSendFlush it is refused with
// ENOTSUP.
func (c *Client) Flush(ctx context.Context) error {
	if err := c.checkRequest(cmdFlush, extent.Extent{}, 0); err != nil {
		return err
	}
	a := c.beginCall()
	if err := c.submitRequest(ctx, a, request{cmd: cmdFlush}, nil, nil); err != nil {
		a.recordError(err)
	}
	return c.awaitCall(ctx, a)
}

// changeExtent sends a request about e, which must be aligned.
func (c *Client) changeExtent(ctx context.Context, cmd command, flags CommandFlags, e extent.Extent, p []byte) error {
	if err := c.checkRequest(cmd, e, flags); err != nil || e.Empty() {
		return err
	}
	if !c.isAligned(e) {
		return refuseCall(cmd, e, unix.EINVAL, "not aligned to the export's minimum block size")
	}
	return c.transferInPieces(ctx, cmd, flags, e, p)
}

// isAligned reports whether e begins and ends at minimum blocks, or ends at the export's end.
func (c *Client) isAligned(e extent.Extent) bool {
	mask := int64(c.info.Block.Minimum) - 1
	return e.Offset&mask == 0 && (e.End()&mask == 0 || e.End() == c.info.Bytes)
}

// transferInPieces splits e into requests and waits for all of them. data is e's, or nil.
func (c *Client) transferInPieces(ctx context.Context, cmd command, flags CommandFlags, e extent.Extent, data []byte) error {
	piece := c.maxPieceBytes(data != nil || cmd == cmdCache)
	if cmd == cmdWrite && c.conns[0].headers == extendedHeaders {
		flags |= cmdFlagPayloadLen
	}
	a := c.beginCall()
	for at := int64(0); at < e.Length; at += piece {
		n := min(piece, e.Length-at)
		var part []byte
		if data != nil {
			part = data[at : at+n]
		}
		if err := c.submitRequest(ctx, a, request{cmd: cmd, flags: flags, offset: uint64(e.Offset + at), length: uint64(n)}, part, nil); err != nil {
			a.recordError(err)
			break
		}
	}
	return c.awaitCall(ctx, a)
}

// recordError records an error that does not come from one of the call's requests.
func (a *call) recordError(err error) {
	a.addRequest()
	a.finishRequest(err)
}

// maxPieceBytes returns the most that one request may be about. Only the width of the length field bounds trims and zeroes.
// QEMU's server bounds cache requests as if they had a payload.
func (c *Client) maxPieceBytes(payload bool) int64 {
	block := int64(c.info.Block.Minimum)
	most := int64(c.conns[0].headers.mostEffect())
	if payload {
		most = min(int64(c.info.Block.Maximum), max(pieceBytes, block))
	}
	return max(most&^(block-1), block)
}

// requiredFlag returns the transmission flag without which a command must not be sent.
func requiredFlag(cmd command) TransmissionFlags {
	switch cmd {
	case cmdFlush:
		return FlagSendFlush
	case cmdTrim:
		return FlagSendTrim
	case cmdCache:
		return FlagSendCache
	case cmdWriteZeroes:
		return FlagSendWriteZeroes
	default:
		return 0
	}
}

// checkRequest refuses what the server would refuse, or must not be asked.
func (c *Client) checkRequest(cmd command, e extent.Extent, flags CommandFlags) error {
	can := c.info.Flags
	var allowed CommandFlags
	if can.Has(FlagSendFUA) {
		allowed |= CmdFlagFUA
	}
	if cmd == cmdWriteZeroes {
		allowed |= CmdFlagNoHole
		if can.Has(FlagSendFastZero) {
			allowed |= CmdFlagFastZero
		}
	}
	writes := cmd == cmdWrite || cmd == cmdTrim || cmd == cmdWriteZeroes
	switch {
	case c.closing.Load():
		return ErrClosed
	case c.Err() != nil:
		return c.cause
	case !e.Valid() || e.End() > c.info.Bytes:
		return refuseCall(cmd, e, unix.EINVAL, "beyond the export's end")
	case writes && can.Has(FlagReadOnly):
		return refuseCall(cmd, e, unix.EPERM, "the export is read-only")
	case !can.Has(requiredFlag(cmd)):
		return refuseCall(cmd, e, unix.ENOTSUP, "the export does not do this")
	case flags&^allowed != 0:
		return refuseCall(cmd, e, unix.ENOTSUP, "the export does not do this with these flags")
	}
	return nil
}
