package nbd

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/authority"
	"github.com/varvebackup/varve/test/verdict"
)

// bytesOf builds what a peer sends.
type bytesOf struct{ b []byte }

func (w *bytesOf) u16(v uint16) *bytesOf { w.b = binary.BigEndian.AppendUint16(w.b, v); return w }
func (w *bytesOf) u32(v uint32) *bytesOf { w.b = binary.BigEndian.AppendUint32(w.b, v); return w }
func (w *bytesOf) u64(v uint64) *bytesOf { w.b = binary.BigEndian.AppendUint64(w.b, v); return w }
func (w *bytesOf) text(s string) *bytesOf {
	w.b = append(w.b, s...)
	return w
}

// optionReply returns the server's reply to an option.
func optionReply(option, kind uint32, data []byte) []byte {
	return append(optionReplyHeader{option: option, kind: kind, length: uint32(len(data))}.appendTo(nil), data...)
}

func greeting() []byte {
	return new(bytesOf).u64(initPasswd).u64(haveOptMagic).u16(flagFixedNewstyle | flagNoZeroes).b
}

// dialScript returns a client whose server is script. The connection ends with the script.
func dialScript(t *testing.T, o Options, script func(nc net.Conn)) (*Client, error) {
	t.Helper()
	ended := make(chan struct{})
	o.Dial = func(context.Context) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go func() {
			defer close(ended)
			defer theirs.Close()
			script(theirs)
		}()
		return ours, nil
	}
	c, err := Dial(testContext(t), Target{}, o)
	t.Cleanup(func() {
		if c != nil {
			c.Close()
		}
		<-ended
	})
	return c, err
}

// expect reads n bytes from the client.
func expect(nc net.Conn, n int) []byte {
	b := make([]byte, n)
	if _, err := io.ReadFull(nc, b); err != nil {
		return nil
	}
	return b
}

// expectOption reads an option of the client with its data.
func expectOption(nc net.Conn) uint32 {
	b := expect(nc, optionBytes)
	if b == nil {
		return 0
	}
	o, _ := parseOption(b)
	expect(nc, int(o.length))
	return o.option
}

const scriptBytes = 1 << 20

var scriptFlags = uint16(FlagHasFlags | FlagSendFlush | FlagSendDF | FlagSendFUA | FlagSendTrim | FlagSendWriteZeroes)

// scriptHandshake does the server's part of the handshake, with the headers and contexts that the client asks for.
func scriptHandshake(nc net.Conn, h headers, ids ...uint32) {
	nc.Write(greeting())
	expect(nc, 4)
	for {
		switch option := expectOption(nc); option {
		case 0:
			return
		case optExtendedHeaders, optStructuredReply:
			if kind := uint32(repAck); option == optExtendedHeaders && h != extendedHeaders || h == simpleHeaders {
				kind = repErrUnsup
				nc.Write(optionReply(option, kind, nil))
			} else {
				nc.Write(optionReply(option, kind, nil))
			}
		case optSetMetaContext:
			for i, id := range ids {
				nc.Write(optionReply(option, repMetaContext, new(bytesOf).u32(id).text([]string{"base:allocation", "x:two"}[i]).b))
			}
			nc.Write(optionReply(option, repAck, nil))
		case optGo:
			nc.Write(optionReply(option, repInfo, new(bytesOf).u16(infoExport).u64(scriptBytes).u16(scriptFlags).b))
			nc.Write(optionReply(option, repAck, nil))
			return
		}
	}
}

// expectRequest reads a request's header.
func expectRequest(nc net.Conn, h headers) request {
	b := expect(nc, h.requestSize())
	if b == nil {
		return request{}
	}
	r, _ := parseRequest(b, h)
	return r
}

// chunk returns a chunk of a structured or extended reply to r.
func chunk(h headers, r request, kind uint16, done bool, payload []byte) []byte {
	c := reply{kind: kind, handle: r.handle, offset: r.offset, length: uint64(len(payload))}
	if done {
		c.flags = replyFlagDone
	}
	return append(c.appendTo(nil, h), payload...)
}

func dataPayload(offset uint64, n int) []byte {
	return append(new(bytesOf).u64(offset).b, bytes.Repeat([]byte{7}, n)...)
}

// TestHandshake_thatBreaksTheProtocol: each ends Dial with ErrProtocol, and none hangs it or makes it panic.
func TestHandshake_thatBreaksTheProtocol(t *testing.T) {
	t.Parallel()
	goReply := func(data ...[]byte) func(net.Conn) {
		return func(nc net.Conn) {
			nc.Write(greeting())
			expect(nc, 4)
			for option := expectOption(nc); option != 0; option = expectOption(nc) {
				if option != optGo {
					nc.Write(optionReply(option, repErrUnsup, nil))
					continue
				}
				for _, d := range data {
					nc.Write(d)
				}
			}
		}
	}
	raw := func(b []byte) func(net.Conn) { return func(nc net.Conn) { nc.Write(b); expect(nc, 1<<10) } }
	ack := optionReply(optGo, repAck, nil)
	info := func(b []byte) []byte { return optionReply(optGo, repInfo, b) }
	export := info(new(bytesOf).u16(infoExport).u64(1).u16(1).b)
	for name, script := range map[string]func(net.Conn){
		"not NBD":           raw([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")),
		"oldstyle":          raw(new(bytesOf).u64(initPasswd).u64(oldstyleMagic).u64(1).b),
		"unknown style":     raw(new(bytesOf).u64(initPasswd).u64(1).u16(3).b),
		"not fixed":         raw(new(bytesOf).u64(initPasswd).u64(haveOptMagic).u16(0).b),
		"no size":           goReply(ack),
		"negative size":     goReply(info(new(bytesOf).u16(infoExport).u64(1<<63).u16(1).b), ack),
		"no flags":          goReply(info(new(bytesOf).u16(infoExport).u64(1).u16(0).b), ack),
		"short export":      goReply(info(new(bytesOf).u16(infoExport).u64(1).b), ack),
		"empty info":        goReply(info(nil), ack),
		"odd block":         goReply(export, info(new(bytesOf).u16(infoBlockSize).u32(3).u32(4096).u32(1<<20).b), ack),
		"huge block":        goReply(export, info(new(bytesOf).u16(infoBlockSize).u32(1<<17).u32(1<<17).u32(1<<20).b), ack),
		"no block":          goReply(export, info(new(bytesOf).u16(infoBlockSize).u32(0).u32(0).u32(0).b), ack),
		"maximum too small": goReply(export, info(new(bytesOf).u16(infoBlockSize).u32(4096).u32(4096).u32(512).b), ack),
		"bad description":   goReply(export, info(new(bytesOf).u16(infoDescription).text("\xff").b), ack),
		"NUL in a name":     goReply(export, info(new(bytesOf).u16(infoName).text("a\x00b").b), ack),
		"another option":    goReply(export, optionReply(optList, repAck, nil)),
		"wrong reply":       goReply(export, optionReply(optGo, repServer, nil), ack),
		"ACK with data":     goReply(export, optionReply(optGo, repAck, []byte("x"))),
		"reply magic":       goReply(bytes.Repeat([]byte{1}, optionReplyBytes)),
		"huge reply":        goReply(new(bytesOf).u64(optionReplyMagic).u32(optGo).u32(repInfo).u32(1 << 30).b),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := dialScript(t, Options{}, script); !errors.Is(err, ErrProtocol) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestContexts_thatBreakTheProtocol(t *testing.T) {
	t.Parallel()
	meta := func(id uint32, name string) []byte {
		return optionReply(optSetMetaContext, repMetaContext, new(bytesOf).u32(id).text(name).b)
	}
	for name, replies := range map[string][][]byte{
		"not asked for": {meta(1, "x:other")}, "twice": {meta(1, ContextAllocation), meta(2, ContextAllocation)}, "ID twice": {meta(1, ContextAllocation), meta(1, "x:two")},
		"no name": {meta(1, "")}, "short": {optionReply(optSetMetaContext, repMetaContext, []byte{1, 2})}, "wrong kind": {optionReply(optSetMetaContext, repServer, nil)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := dialScript(t, Options{Contexts: []string{ContextAllocation, "x:two"}}, func(nc net.Conn) {
				nc.Write(greeting())
				expect(nc, 4)
				for option := expectOption(nc); option != 0; option = expectOption(nc) {
					if option == optSetMetaContext {
						for _, r := range replies {
							nc.Write(r)
						}
					}
					nc.Write(optionReply(option, repAck, nil))
				}
			})
			if !errors.Is(err, ErrProtocol) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestClient_serversThatKnowLittle(t *testing.T) {
	t.Parallel()
	c, err := dialScript(t, Options{Contexts: []string{ContextAllocation}}, func(nc net.Conn) {
		nc.Write(new(bytesOf).u64(initPasswd).u64(haveOptMagic).u16(flagFixedNewstyle).b) // with padding zeroes
		expect(nc, 4)
		for option := expectOption(nc); option != optExportName; option = expectOption(nc) {
			nc.Write(optionReply(option, repErrUnsup, []byte("what?")))
		}
		nc.Write(append(new(bytesOf).u64(scriptBytes).u16(scriptFlags).b, make([]byte, exportPadBytes)...))
		r := expectRequest(nc, simpleHeaders)
		nc.Write(append(reply{simple: true, handle: r.handle}.appendTo(nil, simpleHeaders), "payload!"...))
		expect(nc, requestBytes)
	})
	if err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 8)
	if err := c.ReadAt(testContext(t), p, 0); err != nil || string(p) != "payload!" {
		verdict.JudgeErrorf(t, err == nil, "%q, %v", p, err)
	}
}

// TestReplies_thatBreakTheProtocol: the call fails with ErrProtocol, and so does the client from then on.
func TestReplies_thatBreakTheProtocol(t *testing.T) {
	t.Parallel()
	const h = structuredHeaders
	read := func(c *Client, ctx context.Context) error { return c.ReadAt(ctx, make([]byte, 1000), 5000) }
	flush := func(c *Client, ctx context.Context) error { return c.Flush(ctx) }
	status := func(c *Client, ctx context.Context) error {
		return c.BlockStatus(ctx, extent.Extent{Length: scriptBytes}, func(string, extent.Extent, uint64) error { return nil })
	}
	descriptors := func(id uint32, values ...uint32) []byte {
		w := new(bytesOf).u32(id)
		for _, v := range values {
			w.u32(v)
		}
		return w.b
	}
	both := func(r request) []byte {
		return append(chunk(h, r, replyBlockStatus, false, descriptors(9, 4096, 0)), chunk(h, r, replyBlockStatus, false, descriptors(4, 4096, 0))...)
	}
	simple := func(r request) []byte { return reply{simple: true, handle: r.handle}.appendTo(nil, h) }
	for name, test := range map[string]struct {
		call  func(*Client, context.Context) error
		reply func(r request) []byte
	}{
		"magic":           {read, func(request) []byte { return bytes.Repeat([]byte{3}, 64) }},
		"extended magic":  {read, func(r request) []byte { return chunk(extendedHeaders, r, replyNone, true, nil) }},
		"unknown handle":  {read, func(r request) []byte { r.handle++; return chunk(h, r, replyNone, true, nil) }},
		"old handle":      {flush, func(r request) []byte { r.handle -= slotMask + 1; return chunk(h, r, replyNone, true, nil) }},
		"simple reply":    {read, simple},
		"no data":         {read, func(r request) []byte { return chunk(h, r, replyNone, true, nil) }},
		"too little data": {read, func(r request) []byte { return chunk(h, r, replyOffsetData, true, dataPayload(5000, 999)) }},
		"data before":     {read, func(r request) []byte { return chunk(h, r, replyOffsetData, true, dataPayload(4999, 1000)) }},
		"data beyond":     {read, func(r request) []byte { return chunk(h, r, replyOffsetData, true, dataPayload(5001, 1000)) }},
		"data far away":   {read, func(r request) []byte { return chunk(h, r, replyOffsetData, true, dataPayload(1<<63, 10)) }},
		"data twice": {read, func(r request) []byte {
			b := chunk(h, r, replyOffsetData, false, dataPayload(5000, 600))
			return append(b, b...)
		}},
		"hole over data": {read, func(r request) []byte {
			return append(chunk(h, r, replyOffsetData, false, dataPayload(5100, 600)), chunk(h, r, replyOffsetHole, true, appendHole(nil, 5000, 101))...)
		}},
		"hole of nothing":   {read, func(r request) []byte { return chunk(h, r, replyOffsetHole, true, appendHole(nil, 5000, 0)) }},
		"hole beyond":       {read, func(r request) []byte { return chunk(h, r, replyOffsetHole, true, appendHole(nil, 5000, 1<<31)) }},
		"long hole chunk":   {read, func(r request) []byte { return chunk(h, r, replyOffsetHole, true, make([]byte, 13)) }},
		"empty data chunk":  {read, func(r request) []byte { return chunk(h, r, replyOffsetData, true, make([]byte, 8)) }},
		"NONE not done":     {read, func(r request) []byte { return chunk(h, r, replyNone, false, nil) }},
		"NONE with payload": {read, func(r request) []byte { return chunk(h, r, replyNone, true, []byte{1}) }},
		"unknown chunk":     {read, func(r request) []byte { return chunk(h, r, 77, true, nil) }},
		"status of a read":  {read, func(r request) []byte { return chunk(h, r, replyBlockStatus, true, descriptors(9, 1, 1)) }},
		"short error":       {read, func(r request) []byte { return chunk(h, r, replyError, true, make([]byte, 5)) }},
		"error 0":           {read, func(r request) []byte { return chunk(h, r, replyError, true, make([]byte, 6)) }},
		"long message": {read, func(r request) []byte {
			return chunk(h, r, replyError, true, new(bytesOf).u32(5).u16(9).text("12345678").b)
		}},
		"error elsewhere": {read, func(r request) []byte {
			return chunk(h, r, replyErrorOffset, true, errorChunk{errno: 5, located: true, offset: 1}.appendTo(nil))
		}},
		"huge error": {read, func(r request) []byte {
			return reply{kind: replyError, handle: r.handle, length: 1 << 30}.appendTo(nil, h)
		}},
		"data for a flush":    {flush, func(r request) []byte { return chunk(h, r, replyOffsetData, true, dataPayload(0, 1)) }},
		"two replies":         {func(c *Client, ctx context.Context) error { return errors.Join(flush(c, ctx), flush(c, ctx)) }, func(r request) []byte { return append(simple(r), simple(r)...) }},
		"simple status":       {status, simple},
		"no status":           {status, func(r request) []byte { return chunk(h, r, replyNone, true, nil) }},
		"one of two contexts": {status, func(r request) []byte { return chunk(h, r, replyBlockStatus, true, descriptors(9, 4096, 0)) }},
		"unknown context":     {status, func(r request) []byte { return chunk(h, r, replyBlockStatus, true, descriptors(1, 4096, 0)) }},
		"context twice": {status, func(r request) []byte {
			return append(both(r), chunk(h, r, replyBlockStatus, true, descriptors(4, 4096, 0))...)
		}},
		"status of nothing": {status, func(r request) []byte { return chunk(h, r, replyBlockStatus, true, descriptors(9, 0, 0)) }},
		"no descriptor":     {status, func(r request) []byte { return chunk(h, r, replyBlockStatus, true, descriptors(9)) }},
		"half a descriptor": {status, func(r request) []byte { return chunk(h, r, replyBlockStatus, true, descriptors(9, 1, 1, 1)) }},
		"huge status": {status, func(r request) []byte {
			return reply{kind: replyBlockStatus, handle: r.handle, length: 1<<31 + 4}.appendTo(nil, h)
		}},
		"extended status": {status, func(r request) []byte {
			return chunk(h, r, replyBlockStatusExt, true, new(bytesOf).u32(9).u32(1).u64(1).u64(0).b)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, err := dialScript(t, Options{Contexts: []string{ContextAllocation, "x:two"}}, func(nc net.Conn) {
				scriptHandshake(nc, h, 9, 4)
				nc.Write(test.reply(expectRequest(nc, h)))
				expect(nc, 1<<20) // until the client ends it
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := test.call(c, testContext(t)); !errors.Is(err, ErrProtocol) {
				t.Errorf("the call: %v", err)
			}
			if err := c.Flush(testContext(t)); !errors.Is(err, ErrProtocol) {
				t.Errorf("the next call: %v", err)
			}
		})
	}
}

func TestReplies_extendedThatBreakTheProtocol(t *testing.T) {
	t.Parallel()
	const h = extendedHeaders
	for name, answer := range map[string]func(r request) []byte{
		"other offset": func(r request) []byte {
			r.offset++
			return chunk(h, r, replyBlockStatusExt, true, new(bytesOf).u32(9).u32(1).u64(1).u64(0).b)
		},
		"other count": func(r request) []byte {
			return chunk(h, r, replyBlockStatusExt, true, new(bytesOf).u32(9).u32(2).u64(1).u64(0).b)
		},
		"32-bit status": func(r request) []byte {
			return chunk(h, r, replyBlockStatus, true, new(bytesOf).u32(9).u32(1).u32(0).b)
		},
		"simple reply":     func(r request) []byte { return reply{simple: true, errno: 5, handle: r.handle}.appendTo(nil, h) },
		"structured reply": func(r request) []byte { return chunk(structuredHeaders, r, replyNone, true, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, err := dialScript(t, Options{Contexts: []string{ContextAllocation}}, func(nc net.Conn) {
				scriptHandshake(nc, h, 9)
				nc.Write(answer(expectRequest(nc, h)))
				expect(nc, 1<<20)
			})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.Data(testContext(t), extent.Extent{Length: scriptBytes}); !errors.Is(err, ErrProtocol) {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestRequests_extended: a write says that it has a payload, and the length has 64 bits.
func TestRequests_extended(t *testing.T) {
	t.Parallel()
	const h = extendedHeaders
	var seen []request
	c, err := dialScript(t, Options{}, func(nc net.Conn) {
		scriptHandshake(nc, h)
		for range 2 {
			r := expectRequest(nc, h)
			if r.cmd == cmdWrite {
				expect(nc, int(r.length))
			}
			seen = append(seen, r)
			nc.Write(chunk(h, r, replyNone, true, nil))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.WriteAt(testContext(t), make([]byte, 5), 7, CmdFlagFUA), c.WriteZeroes(testContext(t), extent.Extent{Length: 9}, 0)); err != nil {
		t.Fatal(err)
	}
	if seen[0].flags != CmdFlagFUA|cmdFlagPayloadLen || seen[1].flags != 0 || seen[0].requestedExtent() != (extent.Extent{Offset: 7, Length: 5}) {
		t.Errorf("%+v", seen)
	}
}

// TestStatus_ofAnyLength: a status beyond the disk's end is cut there.
func TestStatus_ofAnyLength(t *testing.T) {
	t.Parallel()
	const h = extendedHeaders
	c, err := dialScript(t, Options{Contexts: []string{ContextAllocation}}, func(nc net.Conn) {
		scriptHandshake(nc, h, 9)
		nc.Write(chunk(h, expectRequest(nc, h), replyBlockStatusExt, true, new(bytesOf).u32(9).u32(2).u64(4096).u64(3).u64(math.MaxUint64).u64(0).b))
	})
	if err != nil {
		t.Fatal(err)
	}
	data, err := c.Data(testContext(t), extent.Extent{Length: scriptBytes})
	if want := (extent.Extent{Offset: 4096, Length: scriptBytes - 4096}); err != nil || data.Len() != 1 || !data.Contains(want) {
		verdict.JudgeErrorf(t, err == nil, "%v, %v", data, err)
	}
}

// TestReplies_inPieces: out of order, with holes, errors and other requests in between.
func TestReplies_inPieces(t *testing.T) {
	t.Parallel()
	const h = structuredHeaders
	c, err := dialScript(t, Options{}, func(nc net.Conn) {
		scriptHandshake(nc, h)
		a, b := expectRequest(nc, h), expectRequest(nc, h)
		if a.cmd != cmdRead {
			a, b = b, a
		}
		nc.Write(chunk(h, a, replyOffsetData, false, dataPayload(5900, 100)))
		nc.Write(chunk(h, a, replyOffsetHole, false, appendHole(nil, 5000, 300)))
		nc.Write(chunk(h, b, replyNone, true, nil))
		nc.Write(chunk(h, a, replyOffsetData, false, dataPayload(5300, 300)))
		nc.Write(chunk(h, a, replyOffsetData, true, dataPayload(5600, 300)))
		r := expectRequest(nc, h)
		nc.Write(chunk(h, r, replyErrorOffset, false, errorChunk{errno: 28, located: true, offset: 5001, message: []byte("full")}.appendTo(nil)))
		nc.Write(chunk(h, r, replyOffsetData, false, dataPayload(5500, 30)))
		nc.Write(chunk(h, r, replyErr|99, true, errorChunk{errno: 1234}.appendTo(nil)))
		r = expectRequest(nc, h)
		nc.Write(chunk(h, r, replyError, true, errorChunk{errno: 1234}.appendTo(nil)))
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx := testContext(t)
	flushed := make(chan error)
	go func() { flushed <- c.Flush(ctx) }()
	got := bytes.Repeat([]byte{1}, 1000)
	if err := c.ReadAt(ctx, got, 5000); err != nil {
		t.Fatal(err)
	}
	same(t, got, append(make([]byte, 300), bytes.Repeat([]byte{7}, 700)...))
	if err := <-flushed; err != nil {
		t.Error(err)
	}
	var e *Error
	if err := c.ReadAt(ctx, got, 5000); !errors.As(err, &e) || e.Errno != unix.ENOSPC || e.Message != "full" || e.Offset != 5001 {
		t.Errorf("%v", err)
	}
	wantErrno(t, c.ReadAt(ctx, got, 5000), unix.EINVAL)
}

// TestStatus_inPieces: contexts of different lengths, equal neighbours, more than was asked for.
func TestStatus_inPieces(t *testing.T) {
	t.Parallel()
	const h = structuredHeaders
	var asked []extent.Extent
	c, err := dialScript(t, Options{Contexts: []string{ContextAllocation, "x:two"}}, func(nc net.Conn) {
		scriptHandshake(nc, h, 9, 4)
		for _, answer := range [][2][]uint32{
			{{1000, 3, 1000, 3}, {100, 1, 200, 2}},
			{{1700, 3}, {700, 2, 4096, 5}},
			{{1 << 31, 3}, {1 << 31, 5, 1 << 31, 5}},
		} {
			r := expectRequest(nc, h)
			asked = append(asked, r.requestedExtent())
			for i, id := range []uint32{9, 4} {
				w := new(bytesOf).u32(id)
				for _, v := range answer[i] {
					w.u32(v)
				}
				nc.Write(chunk(h, r, replyBlockStatus, i == 1, w.b))
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	type status struct {
		name  string
		e     extent.Extent
		flags uint64
	}
	var got []status
	err = c.BlockStatus(testContext(t), extent.Extent{Offset: 1000, Length: 50_000}, func(name string, e extent.Extent, flags uint64) error {
		got = append(got, status{name, e, flags})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []status{
		{"x:two", extent.Extent{Offset: 1000, Length: 100}, 1},
		{"x:two", extent.Extent{Offset: 1100, Length: 900}, 2},
		{ContextAllocation, extent.Extent{Offset: 1000, Length: 50_000}, 3},
		{"x:two", extent.Extent{Offset: 2000, Length: 49_000}, 5},
	}
	if len(got) != len(want) {
		t.Fatalf("%v", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%v, want %v", got[i], want[i])
		}
	}
	for i, at := range []int64{1000, 1300, 3000} {
		if asked[i] != (extent.Extent{Offset: at, Length: 51_000 - at}) {
			t.Errorf("asked for %v", asked[i])
		}
	}
}

// TestTLS_isNeverLeftOut: a server that refuses TLS, or that sends plaintext after agreeing to it, gets nothing.
func TestTLS_isNeverLeftOut(t *testing.T) {
	t.Parallel()
	a := authority.New(t)
	for name, test := range map[string]struct {
		reply []byte
		want  error
	}{
		"refused": {optionReply(optStartTLS, repErrPolicy, []byte("no")), ErrTLS}, "unknown": {optionReply(optStartTLS, repErrUnsup, nil), ErrTLS},
		"plaintext behind it": {append(optionReply(optStartTLS, repAck, nil), optionReply(optStructuredReply, repAck, nil)...), ErrProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := dialScript(t, Options{TLS: a.Client}, func(nc net.Conn) {
				nc.Write(greeting())
				expect(nc, 4)
				if option := expectOption(nc); option != optStartTLS {
					t.Errorf("option %d in plaintext", option)
				}
				nc.Write(test.reply)
				if b := expect(nc, 1); b != nil {
					t.Errorf("%#x in plaintext", b)
				}
			})
			if !errors.Is(err, test.want) {
				t.Errorf("%v, want %v", err, test.want)
			}
		})
	}
	if _, err := Dial(testContext(t), Target{Network: "unix", Address: "/none", TLS: true}, Options{}); !errors.Is(err, ErrTLS) {
		t.Errorf("without a configuration: %v", err)
	}
}

// TestClient_silentServers: the handshake timeout and the end of the context bound everything.
func TestClient_silentServers(t *testing.T) {
	t.Parallel()
	_, err := dialScript(t, Options{HandshakeTimeout: time.Millisecond}, func(nc net.Conn) { expect(nc, 1) })
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	c, err := dialScript(t, Options{}, func(nc net.Conn) {
		scriptHandshake(nc, structuredHeaders)
		expect(nc, 1<<20)
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(testContext(t), time.Millisecond)
	defer cancel()
	if err := c.ReadAt(ctx, make([]byte, 10), 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("read: %v", err)
	}
	if err := c.Disconnect(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("disconnect: %v", err)
	}
}
