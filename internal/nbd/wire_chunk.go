package nbd

import "encoding/binary"

// The number of bytes of the fixed parts of payloads: section "Structured reply types".
const (
	offsetBytes        = 8
	holeBytes          = 12
	errorBytes         = 6
	statusBytes        = 4
	statusExtBytes     = 8
	descriptorBytes    = 8
	descriptorExtBytes = 16
)

// parseHole reads the payload of NBD_REPLY_TYPE_OFFSET_HOLE, holeBytes long.
func parseHole(b []byte) (offset uint64, length uint32) {
	return binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:])
}

func appendHole(b []byte, offset uint64, length uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(b, offset), length)
}

// errorChunk is the payload of the error types. offset is valid if located is set.
type errorChunk struct {
	errno   uint32
	message []byte
	located bool
	offset  uint64
}

// parseErrorChunk reads the payload of a chunk whose type has replyErr set. It reads unknown types as replyError.
// message is part of b.
func parseErrorChunk(kind uint16, b []byte) (errorChunk, error) {
	least := errorBytes
	if kind == replyErrorOffset {
		least += offsetBytes
	}
	if len(b) < least {
		return errorChunk{}, protocolError("error chunk of %d bytes", len(b))
	}
	e := errorChunk{errno: binary.BigEndian.Uint32(b)}
	n := int(binary.BigEndian.Uint16(b[4:]))
	if n > len(b)-least {
		return errorChunk{}, protocolError("message of %d bytes in an error chunk of %d", n, len(b))
	}
	if e.errno == 0 {
		return errorChunk{}, protocolError("error chunk with error 0")
	}
	e.message = b[errorBytes : errorBytes+n]
	if kind == replyErrorOffset {
		e.located, e.offset = true, binary.BigEndian.Uint64(b[errorBytes+n:])
	}
	return e, nil
}

// appendTo adds the payload to b.
func (e errorChunk) appendTo(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, e.errno)
	b = binary.BigEndian.AppendUint16(b, uint16(len(e.message)))
	b = append(b, e.message...)
	if e.located {
		b = binary.BigEndian.AppendUint64(b, e.offset)
	}
	return b
}

func (e errorChunk) replyType() uint16 {
	if e.located {
		return replyErrorOffset
	}
	return replyError
}

func (e errorChunk) encodedSize() int {
	n := errorBytes + len(e.message)
	if e.located {
		n += offsetBytes
	}
	return n
}

// descriptor is the status of one run of bytes.
type descriptor struct {
	length uint64
	flags  uint64
}

// statusHead returns the size of the head of a block status payload of the given type and length, and how many
// descriptors follow it.
func statusHead(kind uint16, length uint64) (head int, count uint64, err error) {
	head, each := statusBytes, uint64(descriptorBytes)
	if kind == replyBlockStatusExt {
		head, each = statusExtBytes, descriptorExtBytes
	}
	if length <= uint64(head) || (length-uint64(head))%each != 0 {
		return 0, 0, protocolError("block status payload of %d bytes", length)
	}
	return head, (length - uint64(head)) / each, nil
}

// parseStatusHead reads the context's ID, and checks the number of descriptors if the payload has one.
func parseStatusHead(kind uint16, b []byte, count uint64) (id uint32, err error) {
	if kind == replyBlockStatusExt {
		if said := binary.BigEndian.Uint32(b[4:]); uint64(said) != count {
			return 0, protocolError("block status says %d descriptors and has %d", said, count)
		}
	}
	return binary.BigEndian.Uint32(b), nil
}

func appendStatusHead(b []byte, kind uint16, id uint32, count int) []byte {
	b = binary.BigEndian.AppendUint32(b, id)
	if kind == replyBlockStatusExt {
		b = binary.BigEndian.AppendUint32(b, uint32(count))
	}
	return b
}

func descriptorSize(kind uint16) int {
	if kind == replyBlockStatusExt {
		return descriptorExtBytes
	}
	return descriptorBytes
}

// parseDescriptor reads one, of descriptorSize(kind) bytes.
func parseDescriptor(kind uint16, b []byte) (descriptor, error) {
	var d descriptor
	if kind == replyBlockStatusExt {
		d = descriptor{length: binary.BigEndian.Uint64(b), flags: binary.BigEndian.Uint64(b[8:])}
	} else {
		d = descriptor{length: uint64(binary.BigEndian.Uint32(b)), flags: uint64(binary.BigEndian.Uint32(b[4:]))}
	}
	if d.length == 0 {
		return d, protocolError("block status of 0 bytes")
	}
	return d, nil
}

func (d descriptor) appendTo(b []byte, kind uint16) []byte {
	if kind == replyBlockStatusExt {
		return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, d.length), d.flags)
	}
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, uint32(d.length)), uint32(d.flags))
}
