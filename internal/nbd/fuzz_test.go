package nbd

import (
	"bytes"
	"context"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/extent"
)

func FuzzParseURI(f *testing.F) {
	for _, s := range []string{"nbd://h:1/e", "nbds+unix:///e?socket=/s&tls-hostname=h", "nbd://[::1]/%20", "nbd+unix://?socket=%00a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		target, err := ParseURI(s)
		if err != nil {
			return
		}
		if again, err := ParseURI(target.URI()); err != nil || again != target {
			t.Errorf("%q: %+v is written %q, and read %+v, %v", s, target, target.URI(), again, err)
		}
	})
}

func FuzzRequest(f *testing.F) {
	for _, h := range framings {
		f.Add(request{flags: 1, cmd: cmdWrite, handle: 3, offset: 4, length: 5}.appendTo(nil, h), uint8(h))
	}
	f.Fuzz(func(t *testing.T, b []byte, framing uint8) {
		h := headers(framing % 3)
		if len(b) < h.requestSize() {
			return
		}
		b = b[:h.requestSize()]
		r, err := parseRequest(b, h)
		if err == nil && !bytes.Equal(r.appendTo(nil, h), b) {
			t.Errorf("%x is %+v", b, r)
		}
	})
}

func FuzzReply(f *testing.F) {
	f.Add(reply{simple: true, errno: 5, handle: 6}.appendTo(nil, simpleHeaders), uint8(0))
	f.Add(reply{flags: 1, kind: 2, handle: 3, length: 4}.appendTo(nil, structuredHeaders), uint8(1))
	f.Add(reply{flags: 1, kind: 2, handle: 3, offset: 9, length: 4}.appendTo(nil, extendedHeaders), uint8(2))
	f.Fuzz(func(t *testing.T, b []byte, framing uint8) {
		h := headers(framing % 3)
		if len(b) < 4 {
			return
		}
		n, err := h.replySize(uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3]))
		if err != nil || len(b) < n {
			return
		}
		if r := parseReply(b[:n]); !bytes.Equal(r.appendTo(nil, h), b[:n]) {
			t.Errorf("%x is %+v", b[:n], r)
		}
	})
}

func FuzzErrorChunk(f *testing.F) {
	f.Add(errorChunk{errno: 5, message: []byte("why")}.appendTo(nil), uint16(replyError))
	f.Add(errorChunk{errno: 5, message: []byte("why"), located: true, offset: 7}.appendTo(nil), uint16(replyErrorOffset))
	f.Fuzz(func(t *testing.T, b []byte, kind uint16) {
		e, err := parseErrorChunk(kind, b)
		if err == nil && !bytes.HasPrefix(b, e.appendTo(nil)[:errorBytes+len(e.message)]) {
			t.Errorf("%x is %+v", b, e)
		}
	})
}

func FuzzStatusPayload(f *testing.F) {
	f.Add(new(bytesOf).u32(1).u32(4096).u32(3).b, uint16(replyBlockStatus))
	f.Add(new(bytesOf).u32(1).u32(1).u64(1<<40).u64(3).b, uint16(replyBlockStatusExt))
	f.Fuzz(func(t *testing.T, b []byte, kind uint16) {
		head, count, err := statusHead(kind, uint64(len(b)))
		if err != nil {
			return
		}
		id, err := parseStatusHead(kind, b[:head], count)
		if err != nil {
			return
		}
		again := appendStatusHead(nil, kind, id, int(count))
		for rest := b[head:]; len(rest) > 0; rest = rest[descriptorSize(kind):] {
			d, err := parseDescriptor(kind, rest[:descriptorSize(kind)])
			if err != nil {
				return
			}
			again = d.appendTo(again, kind)
		}
		if !bytes.Equal(again, b) {
			t.Errorf("%x is read as %x", b, again)
		}
	})
}

func FuzzOptionReplies(f *testing.F) {
	f.Add(new(bytesOf).u16(infoExport).u64(1).u16(1).b)
	f.Add(new(bytesOf).u16(infoBlockSize).u32(1).u32(4096).u32(1 << 25).b)
	f.Add(new(bytesOf).u32(4).text("base:allocation").b)
	f.Add(ListedExport{Name: "disk", Description: "a disk"}.appendTo(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		var i Info
		if err := i.parseInfo(b); err == nil && (i.Bytes < 0 || !validString(i.Name) || !validString(i.Description)) {
			t.Errorf("%+v", i)
		}
		if l, err := parseServer(b); err == nil && !bytes.Equal(l.appendTo(nil), b) {
			t.Errorf("%x is %+v", b, l)
		}
		if id, name, err := parseMetaContext(b); err == nil && !bytes.Equal(new(bytesOf).u32(id).text(name).b, b) {
			t.Errorf("%x is %d %q", b, id, name)
		}
		if len(b) >= optionReplyBytes {
			if o, err := parseOptionReply(b, optGo); err == nil && !bytes.Equal(o.appendTo(nil), b[:optionReplyBytes]) {
				t.Errorf("%x is %+v", b, o)
			}
		}
	})
}

func FuzzOptions(f *testing.F) {
	f.Add(exportRequest{name: "disk", infos: []uint16{1, 3}}.encodeRequest())
	f.Add(contextRequest{export: "disk", queries: []string{"base:", ContextAllocation}}.encodeRequest())
	f.Add(optionHeader{option: optGo, length: 6}.appendTo(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if e, ok := parseExportRequest(b); ok && !bytes.Equal(e.encodeRequest(), b) {
			t.Errorf("%x is %+v", b, e)
		}
		if c, ok := parseContextRequest(b); ok && !bytes.Equal(c.encodeRequest(), b) {
			t.Errorf("%x is %+v", b, c)
		}
		if len(b) >= optionBytes {
			if o, err := parseOption(b); err == nil && !bytes.Equal(o.appendTo(nil), b[:optionBytes]) {
				t.Errorf("%x is %+v", b, o)
			}
		}
	})
}

// heard is a connection whose peer has already said everything.
type heard struct {
	*bytes.Reader
	net.Conn
}

func (h *heard) Read(b []byte) (int, error)       { return h.Reader.Read(b) }
func (h *heard) Write(b []byte) (int, error)      { return len(b), nil }
func (h *heard) Close() error                     { return nil }
func (h *heard) SetDeadline(time.Time) error      { return nil }
func (h *heard) SetReadDeadline(time.Time) error  { return nil }
func (h *heard) SetWriteDeadline(time.Time) error { return nil }

// FuzzServer: whatever a client says, the server does not panic, hang, or use bytes that are not there.
func FuzzServer(f *testing.F) {
	hello := clientFlags(flagCFixedNewstyle)
	enter := slices.Concat(hello, option(optStructuredReply, nil), option(optSetMetaContext, contextRequest{queries: []string{ContextAllocation}}.encodeRequest()), option(optGo, exportRequest{}.encodeRequest()))
	f.Add(slices.Concat(hello, option(optList, nil), option(optAbort, nil)))
	for _, r := range []request{{cmd: cmdRead, length: 512}, {cmd: cmdBlockStatus, length: 8192}, {cmd: cmdWriteZeroes, length: 8192}, {cmd: cmdWrite, length: 1}, {cmd: cmdFlush}} {
		f.Add(slices.Concat(enter, r.appendTo(nil, structuredHeaders), []byte{1}, request{cmd: cmdDisc}.appendTo(nil, structuredHeaders)))
	}
	f.Add(slices.Concat(hello, option(optExtendedHeaders, nil), option(optGo, exportRequest{}.encodeRequest()), request{cmd: cmdTrim, length: 512}.appendTo(nil, extendedHeaders)))
	f.Fuzz(func(_ *testing.T, says []byte) {
		s := oneExport(newMemDisk(8192))
		s.ServeConn(context.Background(), &heard{Reader: bytes.NewReader(says)})
	})
}

// FuzzClient: whatever a server says, the client does not panic or hang.
func FuzzClient(f *testing.F) {
	hello := greeting()
	enter := func(h headers) []byte {
		b := slices.Concat(hello, optionReply(optExtendedHeaders, repAck, nil))
		if h != extendedHeaders {
			b = slices.Concat(hello, optionReply(optExtendedHeaders, repErrUnsup, nil), optionReply(optStructuredReply, repAck, nil))
		}
		return slices.Concat(b, optionReply(optSetMetaContext, repMetaContext, new(bytesOf).u32(1).text(ContextAllocation).b), optionReply(optSetMetaContext, repAck, nil),
			optionReply(optGo, repInfo, new(bytesOf).u16(infoExport).u64(scriptBytes).u16(scriptFlags).b), optionReply(optGo, repAck, nil))
	}
	read := request{handle: slotMask + 1, length: 1000}
	f.Add(slices.Concat(enter(structuredHeaders), chunk(structuredHeaders, read, replyOffsetData, true, dataPayload(0, 1000))))
	f.Add(slices.Concat(enter(structuredHeaders), chunk(structuredHeaders, read, replyOffsetHole, false, appendHole(nil, 0, 1000)), chunk(structuredHeaders, read, replyNone, true, nil)))
	f.Add(slices.Concat(enter(structuredHeaders), chunk(structuredHeaders, read, replyError, true, errorChunk{errno: 5}.appendTo(nil))))
	f.Add(slices.Concat(enter(extendedHeaders), chunk(extendedHeaders, read, replyOffsetData, true, dataPayload(0, 1000)),
		chunk(extendedHeaders, request{handle: slotMask + 2, length: scriptBytes}, replyBlockStatusExt, true, new(bytesOf).u32(1).u32(1).u64(scriptBytes).u64(3).b)))
	f.Fuzz(func(_ *testing.T, says []byte) {
		ctx := context.Background()
		c, err := Dial(ctx, Target{}, Options{Contexts: []string{ContextAllocation}, Dial: func(context.Context) (net.Conn, error) {
			return &heard{Reader: bytes.NewReader(says)}, nil
		}})
		if err != nil {
			return
		}
		c.ReadAt(ctx, make([]byte, min(1000, c.Info().Bytes)), 0)
		c.Data(ctx, extent.Extent{Length: c.Info().Bytes})
		c.Close()
	})
}
