package nvmetcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/varvebackup/varve/internal/errclass"
)

const (
	opcodeFlush   = 0x00
	opcodeWrite   = 0x01
	opcodeRead    = 0x02
	opcodeFabrics = 0x7f

	fabricsPropertySet = 0x00
	fabricsConnect     = 0x01
	fabricsPropertyGet = 0x04

	propertyConfiguration = 0x14 // CC
	propertyStatus        = 0x1c // CSTS
	configurationEnable   = 0x460001
	statusReady           = 1

	sglInCapsule = 0x01 // data block, offset within the capsule
	sglTransport = 0x5a // transport data block

	queueEntries     = 32
	dynamicID        = 0xffff // has the target choose the controller's ID
	connectDataBytes = 1024
)

// commandTimeout is how long a target may take for a command. A target that is alive takes milliseconds.
const commandTimeout = 30 * time.Second

// queue is one pair of queues, which has a connection of its own. It has one command in flight.
type queue struct {
	conn     net.Conn
	nextID   uint16
	maxWrite int64 // of one H2CData, in bytes
	broken   error // after which the connection is out of step
}

// command is a command, with the data that goes with it in one direction or the other.
type command struct {
	sqe       [commandBytes]byte
	inCapsule []byte
	write     []byte
	read      []byte
}

// openQueue greets the target on a connection, which it owns from then on.
func openQueue(ctx context.Context, conn net.Conn) (*queue, error) {
	q := &queue{conn: conn}
	err := q.within(ctx, func() error {
		request := encodePDU(pduConnectionRequest, 0, connectBytes, func([]byte) {}, nil)
		if _, err := conn.Write(request); err != nil {
			return err
		}
		p, err := readPDU(conn)
		if err != nil {
			return err
		}
		if p.kind != pduConnectionResponse {
			return errclass.Errorf(errclass.Transient, "the target answers a greeting with a PDU of type %#x", p.kind)
		}
		q.maxWrite = min(int64(littleEndian.Uint32(p.header[4:])), maxTransferBytes)
		if digests := p.header[3]; q.maxWrite < 4096 || digests != 0 || p.header[2] != 0 {
			return errclass.Errorf(errclass.Transient, "the target wants data of %d bytes, digests %d and alignment %d",
				q.maxWrite, digests, p.header[2])
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return q, nil
}

// within runs an exchange, and ends it with ctx or after commandTimeout. An exchange that did not end well leaves the
// connection out of step, so that nothing more is sent.
func (q *queue) within(ctx context.Context, exchange func() error) error {
	if err := errors.Join(ctx.Err(), q.broken); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = q.conn.Close() }) // ends reads and writes
	defer stop()
	err := exchange()
	var status *StatusError
	if err != nil && !errors.As(err, &status) {
		err = errors.Join(err, ctx.Err())
		q.broken = fmt.Errorf("%w: the connection failed before: %w", errclass.Transient, err)
		return fmt.Errorf("%w: %w", errclass.Transient, err)
	}
	return err
}

// run runs a command, and returns the target's response, or nil if the last data stood for it.
func (q *queue) run(ctx context.Context, c *command) (response []byte, err error) {
	id := q.nextID
	q.nextID = (q.nextID + 1) % queueEntries
	c.sqe[1] = 0x40 // a scatter-gather list
	littleEndian.PutUint16(c.sqe[2:], id)
	littleEndian.PutUint32(c.sqe[32:], uint32(len(c.inCapsule)+len(c.write)+len(c.read)))
	c.sqe[39] = sglTransport
	if len(c.inCapsule) > 0 {
		c.sqe[39] = sglInCapsule
	}
	capsule := encodePDU(pduCommand, 0, commonBytes+commandBytes, func(h []byte) { copy(h, c.sqe[:]) }, c.inCapsule)
	err = q.within(ctx, func() error {
		if _, err := q.conn.Write(capsule); err != nil {
			return err
		}
		response, err = q.finish(c, id)
		return err
	})
	return response, err
}

// finish answers the target until the command has ended.
func (q *queue) finish(c *command, id uint16) ([]byte, error) {
	read := 0
	for {
		p, err := readPDU(q.conn)
		if err != nil {
			return nil, err
		}
		switch p.kind {
		case pduDataToHost:
			offset := int(littleEndian.Uint32(p.header[4:]))
			if littleEndian.Uint16(p.header) != id || offset != read || len(p.data) > len(c.read)-read {
				return nil, errclass.Errorf(errclass.Transient, "the target sent %d bytes at %d of %d that were to come at %d",
					len(p.data), offset, len(c.read), read)
			}
			read += copy(c.read[read:], p.data)
			if p.flags&flagSuccess == 0 {
				continue
			}
			return nil, checkRead(c, read)
		case pduReadyToTransfer:
			if err := q.send(c, id, p.header); err != nil {
				return nil, err
			}
		case pduResponse:
			if got := littleEndian.Uint16(p.header[12:]); got != id {
				return nil, errclass.Errorf(errclass.Transient, "the target answers command %d instead of %d", got, id)
			}
			if err := statusError(p.header); err != nil {
				return nil, err
			}
			return p.header, checkRead(c, read)
		default:
			return nil, errclass.Errorf(errclass.Transient, "the target sent a PDU of type %#x", p.kind)
		}
	}
}

// checkRead returns an error if a command ended before all of its data came.
func checkRead(c *command, read int) error {
	if read != len(c.read) {
		return errclass.Errorf(errclass.Transient, "the target sent %d of %d bytes", read, len(c.read))
	}
	return nil
}

// send sends the part of a command's data that the target asks for.
func (q *queue) send(c *command, id uint16, ready []byte) error {
	offset, length := int64(littleEndian.Uint32(ready[4:])), int64(littleEndian.Uint32(ready[8:]))
	if littleEndian.Uint16(ready) != id || offset+length > int64(len(c.write)) {
		return errclass.Errorf(errclass.Transient, "the target asks for %d bytes at %d of %d", length, offset, len(c.write))
	}
	for end := offset + length; offset < end; {
		n := min(q.maxWrite, end-offset)
		flags := byte(0)
		if offset+n == end {
			flags = flagLast
		}
		data := encodePDU(pduDataToTarget, flags, headerBytes, func(h []byte) {
			copy(h, ready[:4]) // the command, and the target's tag
			littleEndian.PutUint32(h[4:], uint32(offset))
			littleEndian.PutUint32(h[8:], uint32(n))
		}, c.write[offset:offset+n])
		if _, err := q.conn.Write(data); err != nil {
			return err
		}
		offset += n
	}
	return nil
}

// connect makes the queue one of a controller: the first one, with the number 0, makes the controller, and returns its
// ID for the others.
func (q *queue) connect(ctx context.Context, t Target, number, controller uint16) (uint16, error) {
	c := &command{inCapsule: make([]byte, connectDataBytes)}
	c.sqe[0], c.sqe[4] = opcodeFabrics, fabricsConnect
	littleEndian.PutUint16(c.sqe[42:], number)
	littleEndian.PutUint16(c.sqe[44:], queueEntries-1)
	copy(c.inCapsule, t.HostID[:])
	littleEndian.PutUint16(c.inCapsule[16:], controller)
	copy(c.inCapsule[256:512], t.Subsystem)
	copy(c.inCapsule[512:768], t.Host)
	response, err := q.run(ctx, c)
	if err != nil {
		return 0, fmt.Errorf("connect queue %d: %w", number, err)
	}
	return littleEndian.Uint16(response), nil
}

// enable switches the controller on.
func (q *queue) enable(ctx context.Context) error {
	set := &command{}
	set.sqe[0], set.sqe[4] = opcodeFabrics, fabricsPropertySet
	littleEndian.PutUint32(set.sqe[44:], propertyConfiguration)
	littleEndian.PutUint64(set.sqe[48:], configurationEnable)
	if _, err := q.run(ctx, set); err != nil {
		return fmt.Errorf("enable the controller: %w", err)
	}
	get := &command{}
	get.sqe[0], get.sqe[4] = opcodeFabrics, fabricsPropertyGet
	littleEndian.PutUint32(get.sqe[44:], propertyStatus)
	response, err := q.run(ctx, get)
	if err != nil {
		return fmt.Errorf("read the controller's state: %w", err)
	}
	if littleEndian.Uint32(response)&statusReady == 0 { // SPDK is ready when it has answered
		return errclass.Errorf(errclass.Transient, "the controller is not ready: try again")
	}
	return nil
}
