package nbd

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// readBufferBytes is small: it only batches headers, payloads bypass it.
const readBufferBytes = 16 << 10

// longAgo, set as a deadline, ends reads and writes under way.
var longAgo = time.Unix(1, 0)

// wire is a connection in the handshake, on either side.
type wire struct {
	nc  net.Conn
	br  *bufio.Reader
	out []byte
}

func newWire(nc net.Conn) *wire { return &wire{nc: nc, br: bufio.NewReaderSize(nc, readBufferBytes)} }

// readBytes returns n bytes that the caller may keep.
func (w *wire) readBytes(n int) ([]byte, error) {
	b := make([]byte, n)
	if _, err := io.ReadFull(w.br, b); err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}
	return b, nil
}

func (w *wire) writeBytes(b []byte) error {
	if _, err := w.nc.Write(b); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

// startTLS replaces the connection by upgrade(it). Bytes that were sent before the peer could know that TLS begins come
// from somebody else: section "Protocol downgrade attacks".
func (w *wire) startTLS(ctx context.Context, upgrade func(net.Conn) *tls.Conn) error {
	if w.br.Buffered() > 0 {
		return protocolError("%d bytes of plaintext after STARTTLS", w.br.Buffered())
	}
	secure := upgrade(w.nc)
	if err := secure.HandshakeContext(ctx); err != nil {
		return fmt.Errorf("TLS: %w", err)
	}
	w.nc = secure
	w.br.Reset(secure)
	return nil
}

// clientHandshake is the state of one client connection until the transmission phase.
type clientHandshake struct {
	*wire
	noZeroes bool
	headers  headers
	// ids are the metadata contexts that the server accepted, by name.
	ids map[string]uint32
}

// answerGreeting reads the server's greeting and answers it: section "Newstyle negotiation".
func (h *clientHandshake) answerGreeting() error {
	b, err := h.readBytes(16)
	if err != nil {
		return err
	}
	if magic := binary.BigEndian.Uint64(b); magic != initPasswd {
		return protocolError("the server's greeting begins with %#x: it does not speak NBD", magic)
	}
	switch magic := binary.BigEndian.Uint64(b[8:]); magic {
	case haveOptMagic:
	case oldstyleMagic:
		return protocolError("the server speaks the oldstyle protocol, which is not supported")
	default:
		return protocolError("unknown negotiation %#x", magic)
	}
	if b, err = h.readBytes(2); err != nil {
		return err
	}
	server := binary.BigEndian.Uint16(b)
	if server&flagFixedNewstyle == 0 {
		return protocolError("the server does not speak fixed newstyle")
	}
	client := uint32(flagCFixedNewstyle)
	if server&flagNoZeroes != 0 {
		client |= flagCNoZeroes
		h.noZeroes = true
	}
	return h.writeBytes(binary.BigEndian.AppendUint32(nil, client))
}

// sendOption sends an option.
func (h *clientHandshake) sendOption(option uint32, data []byte) error {
	h.out = optionHeader{option: option, length: uint32(len(data))}.appendTo(h.out[:0])
	return h.writeBytes(append(h.out, data...))
}

// negotiateOption sends an option and passes its replies to each, until the final one: NBD_REP_ACK, or an error, *OptionError.
func (h *clientHandshake) negotiateOption(option uint32, data []byte, each func(kind uint32, data []byte) error) error {
	if err := h.sendOption(option, data); err != nil {
		return err
	}
	for range maxOptionReplies {
		b, err := h.readBytes(optionReplyBytes)
		if err != nil {
			return fmt.Errorf("reply to option %s: %w", optionName(option), err)
		}
		head, err := parseOptionReply(b, option)
		if err != nil {
			return err
		}
		if b, err = h.readBytes(int(head.length)); err != nil {
			return err
		}
		switch {
		case head.kind == repAck && head.length != 0:
			return protocolError("NBD_REP_ACK with %d bytes", head.length)
		case head.kind == repAck:
			return nil
		case head.kind&repErr != 0:
			return &OptionError{Option: option, Reply: head.kind, Message: printableMessage(b)}
		case each == nil:
			return protocolError("reply %d to option %s", head.kind, optionName(option))
		}
		if err := each(head.kind, b); err != nil {
			return err
		}
	}
	return protocolError("more than %d replies to option %s", maxOptionReplies, optionName(option))
}

// maxOptionReplies bounds how many exports or contexts a server may list.
const maxOptionReplies = 4 << 10

// printableMessage returns a message from the peer, cut to the length that the protocol allows.
func printableMessage(b []byte) string {
	b = b[:min(len(b), maxStringBytes)]
	if !validString(string(b)) {
		return fmt.Sprintf("%q", b)
	}
	return string(b)
}

// upgradeToTLS starts TLS. It never continues without it.
func (h *clientHandshake) upgradeToTLS(ctx context.Context, config *tls.Config) error {
	if err := h.negotiateOption(optStartTLS, nil, nil); err != nil {
		return err
	}
	return h.startTLS(ctx, func(nc net.Conn) *tls.Conn { return tls.Client(nc, config) })
}

// negotiateHeaders negotiates the best headers that both sides support, up to most.
func (h *clientHandshake) negotiateHeaders(most headers) error {
	for _, try := range []struct {
		headers headers
		option  uint32
	}{{extendedHeaders, optExtendedHeaders}, {structuredHeaders, optStructuredReply}} {
		if try.headers > most {
			continue
		}
		err := h.negotiateOption(try.option, nil, nil)
		if err == nil {
			h.headers = try.headers
			return nil
		}
		if !isUnsupported(err) {
			return err
		}
	}
	return nil
}

// isUnsupported reports whether the server does not support an option, so that the handshake can go on without it.
func isUnsupported(err error) bool {
	var o *OptionError
	if !errors.As(err, &o) {
		return false
	}
	switch o.Reply {
	case repErrUnsup, repErrPolicy, repErrInvalid, repErrPlatform:
		return true
	}
	return false
}

// selectContexts selects metadata contexts by their exact names. It leaves out those that the server does not have.
func (h *clientHandshake) selectContexts(export string, names []string) error {
	if len(names) == 0 || h.headers == simpleHeaders {
		return nil
	}
	h.ids = make(map[string]uint32, len(names))
	used := make(map[uint32]bool, len(names))
	asked := make(map[string]bool, len(names))
	for _, name := range names {
		asked[name] = true
	}
	err := h.negotiateOption(optSetMetaContext, contextRequest{export: export, queries: names}.encodeRequest(), func(kind uint32, data []byte) error {
		if kind != repMetaContext {
			return protocolError("reply %d to option SET_META_CONTEXT", kind)
		}
		id, name, err := parseMetaContext(data)
		if err != nil {
			return err
		}
		if _, again := h.ids[name]; again || used[id] || !asked[name] {
			return protocolError("metadata context %q with ID %d is not asked for, or there twice", name, id)
		}
		h.ids[name], used[id] = id, true
		return nil
	})
	if isUnsupported(err) {
		h.ids = nil
		return nil
	}
	return err
}

// requestInfo asks about the export. NBD_OPT_GO also begins its transmission phase, NBD_OPT_INFO does not.
func (h *clientHandshake) requestInfo(option uint32, name string) (Info, error) {
	i := Info{Block: defaultBlockSizes, Bytes: -1}
	data := exportRequest{name: name, infos: []uint16{infoBlockSize, infoDescription, infoName}}.encodeRequest()
	err := h.negotiateOption(option, data, func(kind uint32, data []byte) error {
		if kind != repInfo {
			return protocolError("reply %d to option %s", kind, optionName(option))
		}
		return i.parseInfo(data)
	})
	if err == nil && i.Bytes < 0 {
		err = protocolError("the server does not say how big the export is")
	}
	return i, err
}

// beginTransmission begins the transmission phase. It uses NBD_OPT_EXPORT_NAME if the server does not know NBD_OPT_GO.
func (h *clientHandshake) beginTransmission(name string) (Info, error) {
	i, err := h.requestInfo(optGo, name)
	var o *OptionError
	if !errors.As(err, &o) || o.Reply != repErrUnsup {
		return i, err
	}
	if err := h.sendOption(optExportName, []byte(name)); err != nil {
		return i, err
	}
	size := 8 + 2
	if !h.noZeroes {
		size += exportPadBytes
	}
	b, err := h.readBytes(size)
	if err != nil {
		return i, fmt.Errorf("open export %q, which the server may not have: %w", name, err)
	}
	i = Info{Block: defaultBlockSizes}
	return i, i.setExport(binary.BigEndian.Uint64(b), binary.BigEndian.Uint16(b[8:]))
}

// abortHandshake ends the handshake in order. A server may close the connection instead of answering; nothing depends on it.
func (h *clientHandshake) abortHandshake() {
	if h.sendOption(optAbort, nil) == nil {
		h.readBytes(optionReplyBytes) //nolint:errcheck // see above
	}
}
