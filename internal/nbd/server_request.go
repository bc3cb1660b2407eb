package nbd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/extent"
)

// refusalErrno returns the errno with which to refuse a request, or 0 to accept it: sections "Command flags" and "Error
// values".
func (t *transmission) refusalErrno(r request) uint32 {
	flags := r.flags
	if t.headers == extendedHeaders && r.cmd == cmdWrite {
		flags &^= cmdFlagPayloadLen
	}
	switch {
	case flags&^t.allowedFlags(r.cmd) != 0, !t.flags.Has(requiredFlag(r.cmd)) && !t.readOnlyRefusal(r.cmd):
		return uint32(unix.EINVAL)
	case t.readOnlyRefusal(r.cmd):
		return uint32(unix.EPERM)
	case r.cmd == cmdFlush:
		if r.offset != 0 || r.length != 0 {
			return uint32(unix.EINVAL)
		}
		return 0
	}
	return t.judgeRange(r)
}

func (t *transmission) readOnlyRefusal(cmd command) bool {
	return t.flags.Has(FlagReadOnly) && (cmd == cmdWrite || cmd == cmdTrim || cmd == cmdWriteZeroes)
}

// allowedFlags returns the flags that a command may have.
func (t *transmission) allowedFlags(cmd command) CommandFlags {
	var f CommandFlags
	if t.flags.Has(FlagSendFUA) {
		f = CmdFlagFUA // Valid for all commands.
	}
	switch cmd {
	case cmdRead:
		if t.flags.Has(FlagSendDF) {
			f |= cmdFlagDF
		}
	case cmdWriteZeroes:
		f |= CmdFlagNoHole | CmdFlagFastZero
	case cmdBlockStatus:
		f |= cmdFlagReqOne
	case cmdWrite, cmdFlush, cmdTrim, cmdCache:
	default:
		return 0
	}
	return f
}

func (t *transmission) judgeRange(r request) uint32 {
	size, mask := uint64(t.size), uint64(t.export.Block.Minimum)-1
	payload := r.cmd == cmdRead || r.cmd == cmdWrite
	switch {
	case r.cmd > cmdBlockStatus:
		return uint32(unix.EINVAL)
	case r.offset > size || r.length > size-r.offset:
		if r.cmd == cmdWrite || r.cmd == cmdWriteZeroes {
			return uint32(unix.ENOSPC)
		}
		return uint32(unix.EINVAL)
	case r.length == 0, r.offset&mask != 0, r.length&mask != 0:
		return uint32(unix.EINVAL)
	case payload && r.length > uint64(t.export.Block.Maximum):
		if r.flags&cmdFlagDF != 0 {
			return uint32(unix.EOVERFLOW)
		}
		return uint32(unix.EINVAL)
	case r.cmd == cmdBlockStatus && len(t.contexts) == 0:
		return uint32(unix.EINVAL)
	}
	return 0
}

// answerRequest carries out the request and sends the reply. An error is the connection's.
func (t *transmission) answerRequest(ctx context.Context, j *job) error {
	switch {
	case j.errno != 0:
		return t.sendEnd(j, j.errno)
	case j.req.cmd == cmdRead:
		return t.answerRead(ctx, j)
	case j.req.cmd == cmdBlockStatus:
		return t.blockStatus(ctx, j)
	}
	return t.sendEnd(j, t.backendErrno(t.applyChange(ctx, j), j.req))
}

// backendErrno returns what the client is told about a backend's error. The log gets the whole error if that is EIO or ENOSPC.
func (t *transmission) backendErrno(err error, r request) uint32 {
	if err == nil {
		return 0
	}
	n := errnoToWire(err)
	if n == uint32(unix.EIO) || n == uint32(unix.ENOSPC) {
		t.log.Warn("NBD request failed", "command", r.cmd.String(), "extent", r.requestedExtent().String(), "error", err)
	}
	return n
}

// recoverPanic is deferred around calls of a backend, so that a bug in it fails the request and not the server.
func (t *transmission) recoverPanic(err *error) {
	if p := recover(); p != nil {
		t.log.Error("NBD backend panicked", "panic", p, "stack", string(debug.Stack()))
		*err = fmt.Errorf("panic: %v", p)
	}
}

// applyChange carries out a request that is neither a read nor a block status. The backend is a Writer if the flags say so.
func (t *transmission) applyChange(ctx context.Context, j *job) (err error) {
	defer t.recoverPanic(&err)
	e := j.req.requestedExtent()
	switch j.req.cmd {
	case cmdCache:
		return t.export.Backend.(Cacher).Cache(ctx, e)
	case cmdFlush:
		if w, ok := t.export.Backend.(Writer); ok {
			return w.Flush(ctx)
		}
		return nil
	default:
	}
	w := t.export.Backend.(Writer)
	switch j.req.cmd {
	case cmdWrite:
		err = w.WriteAt(ctx, j.payload.data, e.Offset)
	case cmdWriteZeroes:
		err = t.zeroExtent(ctx, e, j.req.flags)
	case cmdTrim:
		err = t.export.Backend.(Trimmer).Trim(ctx, e)
	default:
		err = unix.EINVAL
	}
	if err == nil && j.req.flags&CmdFlagFUA != 0 {
		err = w.Flush(ctx)
	}
	return err
}

// zeroStepBytes is how much is written at once for a backend that cannot zero.
const zeroStepBytes = 1 << 20

func (t *transmission) zeroExtent(ctx context.Context, e extent.Extent, flags CommandFlags) error {
	if z, ok := t.export.Backend.(Zeroer); ok {
		return z.WriteZeroes(ctx, e, flags&CmdFlagNoHole != 0, flags&CmdFlagFastZero != 0)
	}
	if flags&CmdFlagFastZero != 0 {
		return unix.ENOTSUP
	}
	// Take it from the reads' budget: all of the writes' may be held by requests that wait for workers.
	cost, err := takeMemory(ctx, t.reads, t.srv.room.reads, bufferBytes(min(e.Length, zeroStepBytes)))
	if err != nil {
		return err
	}
	defer giveBack(t.reads, t.srv.room.reads, cost)
	b := t.srv.buffers.getBuffer(min(e.Length, zeroStepBytes))
	defer t.srv.buffers.putBuffer(b)
	clear(b.data)
	for at := e.Offset; at < e.End(); at += zeroStepBytes {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := t.export.Backend.(Writer).WriteAt(ctx, b.data[:min(zeroStepBytes, e.End()-at)], at); err != nil {
			return err
		}
	}
	return nil
}

// maxReplyDescriptors is the most runs of one context in a reply. The client asks again for the rest.
const maxReplyDescriptors = 8 << 10

// blockStatus answers NBD_CMD_BLOCK_STATUS with one chunk for each context. The last one ends the reply.
func (t *transmission) blockStatus(ctx context.Context, j *job) error {
	for id := range t.contexts {
		if err := t.collectStatus(ctx, j, id); err != nil {
			return t.sendEnd(j, t.backendErrno(err, j.req))
		}
		if err := t.sendStatus(j, uint32(id), id == len(t.contexts)-1); err != nil {
			return err
		}
	}
	return nil
}

var errNoStatus = errors.New("the backend reports no status")

// collectStatus asks the backend for the status in one context.
func (t *transmission) collectStatus(ctx context.Context, j *job, id int) (err error) {
	defer t.recoverPanic(&err)
	j.runs = j.runs[:0]
	left := j.req.length
	most := maxReplyDescriptors
	if j.req.flags&cmdFlagReqOne != 0 {
		most = 1
	}
	source := t.export.Backend.(StatusReporter)
	err = source.BlockStatus(ctx, t.contexts[id], j.req.requestedExtent(), func(length int64, flags uint64) bool {
		if length <= 0 || left == 0 {
			return left > 0
		}
		n, flags := min(uint64(length), left), flags&t.statusMask()
		if last := len(j.runs) - 1; last >= 0 && j.runs[last].flags == flags {
			j.runs[last].length += n
		} else if len(j.runs) == most {
			return false
		} else {
			j.runs = append(j.runs, descriptor{length: n, flags: flags})
		}
		left -= n
		return left > 0
	})
	if err == nil && len(j.runs) == 0 {
		err = errNoStatus
	}
	return err
}

// statusMask returns the bits that fit into a descriptor's flags.
func (t *transmission) statusMask() uint64 {
	if t.headers == extendedHeaders {
		return math.MaxUint64
	}
	return math.MaxUint32
}
