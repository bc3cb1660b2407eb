package nbd

import (
	"context"
	"encoding/binary"
	"errors"

	"github.com/varvebackup/varve/internal/extent"
)

// sendMessage writes head and data as one message. It flushes the buffer if no other reply waits.
func (t *transmission) sendMessage(head, data []byte) error {
	t.waiting.Add(1)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting.Add(-1)
	defer t.sending.Store(0)
	if err := t.sendPiece(head); err != nil {
		return err
	}
	for len(data) > 0 {
		n := min(len(data), sendPieceBytes)
		if err := t.sendPiece(data[:n]); err != nil {
			return err
		}
		data = data[n:]
	}
	if t.waiting.Load() > 0 {
		return nil
	}
	return t.bw.Flush()
}

// sendPieceBytes is small enough for a slow client to take within StallTimeout.
const sendPieceBytes = 1 << 20

// sendPiece notes when a piece begins. A slow client takes one now and then; a stalled client does not.
func (t *transmission) sendPiece(p []byte) error {
	t.sending.Store(monotonicNow())
	_, err := t.bw.Write(p)
	return err
}

// chunkHeader returns the header of a chunk, in the job's own memory.
func (t *transmission) chunkHeader(j *job, kind uint16, length uint64, done bool) []byte {
	r := reply{kind: kind, handle: j.req.handle, offset: j.req.offset, length: length}
	if done {
		r.flags = replyFlagDone
	}
	return r.appendTo(j.head[:0], t.headers)
}

// sendEnd sends a whole reply without payload, or the last chunk of one.
func (t *transmission) sendEnd(j *job, errno uint32) error {
	var head []byte
	switch {
	case t.headers == simpleHeaders:
		head = reply{simple: true, errno: errno, handle: j.req.handle}.appendTo(j.head[:0], t.headers)
	case errno == 0:
		head = t.chunkHeader(j, replyNone, 0, true)
	default:
		e := errorChunk{errno: errno}
		head = e.appendTo(t.chunkHeader(j, e.replyType(), uint64(e.encodedSize()), true))
	}
	return t.sendMessage(head, nil)
}

// sendErrorAt ends the reply to a read that has been sent in part.
func (t *transmission) sendErrorAt(j *job, errno uint32, offset int64) error {
	e := errorChunk{errno: errno, located: true, offset: uint64(offset)}
	return t.sendMessage(e.appendTo(t.chunkHeader(j, e.replyType(), uint64(e.encodedSize()), true)), nil)
}

// answerRead answers NBD_CMD_READ. It takes memory only once a worker has the request, so that waiting requests take none.
func (t *transmission) answerRead(ctx context.Context, j *job) error {
	cost, err := takeMemory(ctx, t.reads, t.srv.room.reads, bufferBytes(int64(j.req.length)))
	if err != nil {
		return err
	}
	defer giveBack(t.reads, t.srv.room.reads, cost)
	b := t.srv.buffers.getBuffer(int64(j.req.length))
	defer t.srv.buffers.putBuffer(b)
	if sparse, ok := t.export.Backend.(Sparse); ok && t.headers != simpleHeaders && j.req.flags&cmdFlagDF == 0 {
		return t.readSparse(ctx, j, sparse, b.data)
	}
	e := j.req.requestedExtent()
	if err := t.readAt(ctx, b.data, e.Offset); err != nil {
		return t.sendEnd(j, t.backendErrno(err, j.req))
	}
	if t.headers == simpleHeaders {
		return t.sendMessage(reply{simple: true, handle: j.req.handle}.appendTo(j.head[:0], t.headers), b.data)
	}
	return t.sendData(j, e, b.data, true)
}

func (t *transmission) sendData(j *job, e extent.Extent, data []byte, done bool) error {
	head := t.chunkHeader(j, replyOffsetData, offsetBytes+uint64(e.Length), done)
	return t.sendMessage(binary.BigEndian.AppendUint64(head, uint64(e.Offset)), data)
}

func (t *transmission) readAt(ctx context.Context, p []byte, offset int64) (err error) {
	defer t.recoverPanic(&err)
	return t.export.Backend.ReadAt(ctx, p, offset)
}

// readSparse sends a chunk for each run of data and for each hole.
func (t *transmission) readSparse(ctx context.Context, j *job, sparse Sparse, buf []byte) error {
	e := j.req.requestedExtent()
	for at := e.Offset; at < e.End(); {
		rest := extent.Extent{Offset: at, Length: e.End() - at}
		n, zero, err := t.nextRun(ctx, sparse, rest)
		part := extent.Extent{Offset: at, Length: min(n, rest.Length)}
		done := part.End() == e.End()
		if err == nil && !zero {
			err = t.readAt(ctx, buf[:part.Length], at)
		}
		if err != nil {
			return t.sendErrorAt(j, t.backendErrno(err, j.req), at)
		}
		if zero {
			head := t.chunkHeader(j, replyOffsetHole, holeBytes, done)
			err = t.sendMessage(appendHole(head, uint64(at), uint32(part.Length)), nil)
		} else {
			err = t.sendData(j, part, buf[:part.Length], done)
		}
		if err != nil {
			return err
		}
		at = part.End()
	}
	return nil
}

var errNoRun = errors.New("the backend reports a run of no bytes")

func (t *transmission) nextRun(ctx context.Context, sparse Sparse, e extent.Extent) (n int64, zero bool, err error) {
	defer t.recoverPanic(&err)
	n, zero, err = sparse.NextRun(ctx, e)
	if err == nil && n <= 0 {
		err = errNoRun
	}
	return n, zero, err
}

// sendStatus sends the chunk with the job's runs.
func (t *transmission) sendStatus(j *job, id uint32, done bool) error {
	kind := t.headers.statusKind()
	size := statusBytes
	if kind == replyBlockStatusExt {
		size = statusExtBytes
	}
	size += len(j.runs) * descriptorSize(kind)
	head := appendStatusHead(t.chunkHeader(j, kind, uint64(size), done), kind, id, len(j.runs))
	b := t.srv.buffers.getBuffer(int64(len(j.runs) * descriptorSize(kind)))
	defer t.srv.buffers.putBuffer(b)
	data := b.data[:0]
	for _, d := range j.runs {
		data = d.appendTo(data, kind)
	}
	return t.sendMessage(head, data)
}
