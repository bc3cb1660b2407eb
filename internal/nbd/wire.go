package nbd

import (
	"encoding/binary"
)

// headers is how requests and replies are framed. The order matters: a later kind can do everything that an earlier one
// can.
type headers uint8

const (
	simpleHeaders headers = iota
	structuredHeaders
	extendedHeaders
)

// The number of bytes of each header.
const (
	requestBytes         = 28
	extendedRequestBytes = 32
	simpleReplyBytes     = 16
	structuredReplyBytes = 20
	extendedReplyBytes   = 32
)

// requestSize returns the number of bytes of a request's header.
func (h headers) requestSize() int {
	if h == extendedHeaders {
		return extendedRequestBytes
	}
	return requestBytes
}

// request is a request's header: section "Request message".
type request struct {
	flags  CommandFlags
	cmd    command
	handle uint64
	offset uint64
	// length is at most 32 bits without extended headers.
	length uint64
}

// appendTo appends the header to b in wire format.
func (r request) appendTo(b []byte, h headers) []byte {
	magic := uint32(requestMagic)
	if h == extendedHeaders {
		magic = extendedRequestMagic
	}
	b = binary.BigEndian.AppendUint32(b, magic)
	b = binary.BigEndian.AppendUint16(b, uint16(r.flags))
	b = binary.BigEndian.AppendUint16(b, uint16(r.cmd))
	b = binary.BigEndian.AppendUint64(b, r.handle)
	b = binary.BigEndian.AppendUint64(b, r.offset)
	if h == extendedHeaders {
		return binary.BigEndian.AppendUint64(b, r.length)
	}
	return binary.BigEndian.AppendUint32(b, uint32(r.length))
}

// parseRequest reads a header of h.requestSize() bytes.
func parseRequest(b []byte, h headers) (request, error) {
	want := uint32(requestMagic)
	if h == extendedHeaders {
		want = extendedRequestMagic
	}
	if magic := binary.BigEndian.Uint32(b); magic != want {
		return request{}, protocolError("request begins with %#x, not %#x", magic, want)
	}
	r := request{
		flags:  CommandFlags(binary.BigEndian.Uint16(b[4:])),
		cmd:    command(binary.BigEndian.Uint16(b[6:])),
		handle: binary.BigEndian.Uint64(b[8:]),
		offset: binary.BigEndian.Uint64(b[16:]),
	}
	if h == extendedHeaders {
		r.length = binary.BigEndian.Uint64(b[24:])
	} else {
		r.length = uint64(binary.BigEndian.Uint32(b[24:]))
	}
	return r, nil
}

// reply is the header of a simple reply or of a chunk.
type reply struct {
	// simple: errno counts and the fields after handle do not.
	simple bool
	errno  uint32
	handle uint64

	flags, kind uint16
	// offset is the request's, in extended headers only.
	offset uint64
	// length is that of the payload.
	length uint64
}

func (r reply) isFinal() bool { return r.simple || r.flags&replyFlagDone != 0 }

// replySize returns the size of the reply header that begins with magic, or an error if h has no such header.
func (h headers) replySize(magic uint32) (int, error) {
	switch {
	case magic == simpleReplyMagic && h != extendedHeaders:
		return simpleReplyBytes, nil
	case magic == structuredReplyMagic && h == structuredHeaders:
		return structuredReplyBytes, nil
	case magic == extendedReplyMagic && h == extendedHeaders:
		return extendedReplyBytes, nil
	}
	return 0, protocolError("reply begins with %#x", magic)
}

// parseReply reads a header, which has the size that replySize returns for its magic.
func parseReply(b []byte) reply {
	magic := binary.BigEndian.Uint32(b)
	if magic == simpleReplyMagic {
		return reply{simple: true, errno: binary.BigEndian.Uint32(b[4:]), handle: binary.BigEndian.Uint64(b[8:])}
	}
	r := reply{flags: binary.BigEndian.Uint16(b[4:]), kind: binary.BigEndian.Uint16(b[6:]), handle: binary.BigEndian.Uint64(b[8:])}
	if magic == extendedReplyMagic {
		r.offset, r.length = binary.BigEndian.Uint64(b[16:]), binary.BigEndian.Uint64(b[24:])
	} else {
		r.length = uint64(binary.BigEndian.Uint32(b[16:]))
	}
	return r
}

// appendTo appends the header to b in wire format.
func (r reply) appendTo(b []byte, h headers) []byte {
	if r.simple {
		b = binary.BigEndian.AppendUint32(b, simpleReplyMagic)
		b = binary.BigEndian.AppendUint32(b, r.errno)
		return binary.BigEndian.AppendUint64(b, r.handle)
	}
	magic := uint32(structuredReplyMagic)
	if h == extendedHeaders {
		magic = extendedReplyMagic
	}
	b = binary.BigEndian.AppendUint32(b, magic)
	b = binary.BigEndian.AppendUint16(b, r.flags)
	b = binary.BigEndian.AppendUint16(b, r.kind)
	b = binary.BigEndian.AppendUint64(b, r.handle)
	if h == extendedHeaders {
		b = binary.BigEndian.AppendUint64(b, r.offset)
		return binary.BigEndian.AppendUint64(b, r.length)
	}
	return binary.BigEndian.AppendUint32(b, uint32(r.length))
}
