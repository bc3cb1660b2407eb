// Package nvmetcp reads and writes a volume that a target serves by NVMe over TCP, without a driver of the kernel. It
// knows what SPDK's target needs, and no more: one command in flight, no digests, no authentication, no TLS.
//
// The protocol is in the NVM Express Base Specification 2.0 and the NVMe/TCP Transport Specification 1.0.
package nvmetcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/varvebackup/varve/internal/errclass"
)

// Target says where a volume is.
type Target struct {
	Address   string // host:port
	Subsystem string // its NQN
	Host      string // the NQN that the subsystem lets in
	HostID    [16]byte
	Namespace uint32
	// BlockBytes is the size of a block. Bytes is what a user sees of the volume, which may end within a block.
	BlockBytes, Bytes int64
}

// Volume is a volume of a target. It is safe for concurrent use, one command at a time. An error of a connection has
// class Transient, and every later call fails, too.
type Volume struct {
	target Target
	ctx    context.Context //nolint:containedctx // io.ReaderAt has none: the volume lives no longer than its context

	mu        sync.Mutex
	admin, io *queue
	buffer    []byte // of whole blocks
}

// Connect opens a volume until ctx ends. dial connects to the target's address.
func Connect(
	ctx context.Context, dial func(ctx context.Context, network, address string) (net.Conn, error), t Target,
) (_ *Volume, err error) {
	if t.BlockBytes <= 0 || t.BlockBytes > maxTransferBytes || maxTransferBytes%t.BlockBytes != 0 || t.Bytes <= 0 {
		return nil, errclass.Errorf(errclass.Invalid, "%d bytes in blocks of %d", t.Bytes, t.BlockBytes)
	}
	v := &Volume{target: t, ctx: ctx, buffer: make([]byte, maxTransferBytes)}
	defer func() {
		if err != nil {
			err = fmt.Errorf("open %s at %s: %w", t.Subsystem, t.Address, errors.Join(err, v.Close()))
		}
	}()
	open := func() (*queue, error) {
		conn, err := dial(ctx, "tcp", t.Address)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errclass.Transient, err)
		}
		return openQueue(ctx, conn)
	}
	if v.admin, err = open(); err != nil {
		return nil, err
	}
	controller, err := v.admin.connect(ctx, t, 0, dynamicID)
	if err != nil {
		return nil, err
	}
	if err := v.admin.enable(ctx); err != nil {
		return nil, err
	}
	if v.io, err = open(); err != nil {
		return nil, err
	}
	_, err = v.io.connect(ctx, t, 1, controller)
	return v, err
}

// Bytes returns the size of the volume.
func (v *Volume) Bytes() int64 { return v.target.Bytes }

// ReadAt implements [io.ReaderAt].
func (v *Volume) ReadAt(p []byte, offset int64) (n int, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if offset < 0 || offset > v.target.Bytes {
		return 0, errclass.Errorf(errclass.Invalid, "offset %d of a volume with %d bytes", offset, v.target.Bytes)
	}
	short := int64(len(p)) > v.target.Bytes-offset
	if short {
		p = p[:v.target.Bytes-offset]
	}
	for n < len(p) {
		got, skip, err := v.readBlocks(offset+int64(n), int64(len(p)-n))
		if err != nil {
			return n, err
		}
		n += copy(p[n:], got[skip:])
	}
	if short {
		return n, io.EOF
	}
	return n, nil
}

// WriteAt implements [io.WriterAt]. Nothing is durable before Sync.
func (v *Volume) WriteAt(p []byte, offset int64) (n int, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if offset < 0 || int64(len(p)) > v.target.Bytes-offset {
		return 0, errclass.Errorf(errclass.Invalid, "%d bytes at %d of a volume with %d bytes", len(p), offset,
			v.target.Bytes)
	}
	for n < len(p) {
		at := offset + int64(n)
		first, blocks := v.blocksOf(at, int64(len(p)-n))
		data := v.buffer[:blocks*v.target.BlockBytes]
		skip := at - first
		part := min(int64(len(data))-skip, int64(len(p)-n))
		if part < int64(len(data)) { // the rest of the first and of the last block stays as it is
			if _, _, err := v.readBlocks(at, part); err != nil {
				return n, err
			}
		}
		copy(data[skip:], p[n:n+int(part)])
		if err := v.transfer(opcodeWrite, first, blocks, &command{write: data}); err != nil {
			return n, err
		}
		n += int(part)
	}
	return n, nil
}

// Sync flushes what was written. What that means is the target's matter.
func (v *Volume) Sync() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	c := &command{}
	c.sqe[0] = opcodeFlush
	littleEndian.PutUint32(c.sqe[4:], v.target.Namespace)
	if _, err := v.io.run(v.ctx, c); err != nil {
		return fmt.Errorf("flush %s: %w", v.target.Subsystem, err)
	}
	return nil
}

// Close closes the connections. What was written and not made durable may be lost. A second Close does nothing.
func (v *Volume) Close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, q := range []*queue{v.io, v.admin} {
		if q != nil {
			_ = q.conn.Close() // nothing that was acknowledged is lost
			q.broken = errclass.Errorf(errclass.Transient, "the volume is closed")
		}
	}
	return nil
}

// blocksOf returns the blocks that a command has of a part of the volume: where they begin, and how many they are.
func (v *Volume) blocksOf(offset, length int64) (first, blocks int64) {
	size := v.target.BlockBytes
	first = offset / size * size
	return first, min((offset+length-first+size-1)/size, maxTransferBytes/size)
}

// readBlocks reads the blocks of a part of the volume, which begins some bytes after them. They are valid until the
// next call.
func (v *Volume) readBlocks(offset, length int64) (data []byte, skip int64, err error) {
	first, blocks := v.blocksOf(offset, length)
	data = v.buffer[:blocks*v.target.BlockBytes]
	return data, offset - first, v.transfer(opcodeRead, first, blocks, &command{read: data})
}

func (v *Volume) transfer(opcode byte, first, blocks int64, c *command) error {
	c.sqe[0] = opcode
	littleEndian.PutUint32(c.sqe[4:], v.target.Namespace)
	littleEndian.PutUint64(c.sqe[40:], uint64(first/v.target.BlockBytes))
	littleEndian.PutUint16(c.sqe[48:], uint16(blocks-1))
	if _, err := v.io.run(v.ctx, c); err != nil {
		return fmt.Errorf("transfer %d blocks at byte %d of %s: %w", blocks, first, v.target.Subsystem, err)
	}
	return nil
}
