package nbd

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
)

const (
	// maxOptions bounds the options of one handshake.
	maxOptions = 1 << 10
	// maxSkippedBytes is how much data of an option is read only to refuse it. More ends the connection.
	maxSkippedBytes = 1 << 20
)

// serverHandshake is the state of a server connection until the transmission phase.
type serverHandshake struct {
	*wire
	session *session
	srv     *Server
	limits  Limits
	secure  bool
	// fixed and noZeroes are what the client said.
	fixed, noZeroes bool
	headers         headers
	// selected are the contexts of the last NBD_OPT_SET_META_CONTEXT, for its export. A context's ID is its index.
	selected       []string
	selectedExport string

	// export is set when the transmission phase begins.
	export *Export
	name   string
}

// errAborted: the client ended the handshake in order.
var errAborted = errors.New("nbd: the client ended the handshake")

// runHandshake takes the connection to the transmission phase, with export set, or returns an error.
func (h *serverHandshake) runHandshake(ctx context.Context) error {
	greeting := binary.BigEndian.AppendUint64(nil, initPasswd)
	greeting = binary.BigEndian.AppendUint64(greeting, haveOptMagic)
	if err := h.writeBytes(binary.BigEndian.AppendUint16(greeting, flagFixedNewstyle|flagNoZeroes)); err != nil {
		return err
	}
	b, err := h.readBytes(4)
	if err != nil {
		return err
	}
	flags := binary.BigEndian.Uint32(b)
	if flags&^(flagCFixedNewstyle|flagCNoZeroes) != 0 {
		return protocolError("unknown client flags %#x", flags)
	}
	h.fixed, h.noZeroes = flags&flagCFixedNewstyle != 0, flags&flagCNoZeroes != 0
	for range maxOptions {
		if err := h.handleNextOption(ctx); err != nil || h.export != nil {
			return err
		}
	}
	return protocolError("more than %d options", maxOptions)
}

// handleNextOption handles one option.
func (h *serverHandshake) handleNextOption(ctx context.Context) error {
	b, err := h.readBytes(optionBytes)
	if err != nil {
		return err
	}
	o, err := parseOption(b)
	if err != nil {
		return err
	}
	if o.length > maxOptionBytes {
		return h.tooBig(o)
	}
	data, err := h.readBytes(int(o.length))
	if err != nil {
		return err
	}
	switch {
	case !h.fixed && o.option != optExportName:
		return protocolError("option %s without fixed newstyle", optionName(o.option))
	case h.srv.TLS != nil && !h.secure && o.option == optExportName:
		return ErrTLS
	case h.srv.TLS != nil && !h.secure && o.option != optStartTLS && o.option != optAbort:
		return h.refuseOption(o.option, repErrTLSReqd, "this server wants TLS first")
	}
	return h.handleOption(ctx, o.option, data)
}

func (h *serverHandshake) tooBig(o optionHeader) error {
	if o.length > maxSkippedBytes || o.option == optExportName {
		return protocolError("option %s with %d bytes", optionName(o.option), o.length)
	}
	if _, err := h.br.Discard(int(o.length)); err != nil {
		return err
	}
	return h.refuseOption(o.option, repErrTooBig, "")
}

func (h *serverHandshake) handleOption(ctx context.Context, option uint32, data []byte) error {
	noData := option == optAbort || option == optList || option == optStartTLS || option == optStructuredReply || option == optExtendedHeaders
	if noData && len(data) > 0 && option != optAbort {
		return h.refuseOption(option, repErrInvalid, "this option has no data")
	}
	switch option {
	case optExportName:
		return h.exportName(ctx, string(data))
	case optAbort:
		return errors.Join(errAborted, h.sendReply(option, repAck, nil))
	case optList:
		return h.listExports(ctx)
	case optStartTLS:
		return h.upgradeToTLS(ctx)
	case optInfo, optGo:
		return h.handleInfo(ctx, option, data)
	case optStructuredReply:
		if h.headers == extendedHeaders {
			return h.refuseOption(option, repErrInvalid, "extended headers were negotiated")
		}
		h.headers = structuredHeaders
		return h.sendReply(option, repAck, nil)
	case optExtendedHeaders:
		if h.headers == extendedHeaders {
			return h.refuseOption(option, repErrInvalid, "extended headers were negotiated")
		}
		h.headers = extendedHeaders
		return h.sendReply(option, repAck, nil)
	case optListMetaContext, optSetMetaContext:
		return h.metaContext(ctx, option, data)
	}
	return h.refuseOption(option, repErrUnsup, "")
}

func (h *serverHandshake) sendReply(option, kind uint32, data []byte) error {
	h.out = optionReplyHeader{option: option, kind: kind, length: uint32(len(data))}.appendTo(h.out[:0])
	h.out = append(h.out, data...)
	return h.writeBytes(h.out)
}

func (h *serverHandshake) refuseOption(option, kind uint32, message string) error {
	return h.sendReply(option, kind, []byte(message))
}

// upgradeToTLS begins TLS. Anything negotiated before, in plaintext, must not count; with TLS configured, there is nothing.
func (h *serverHandshake) upgradeToTLS(ctx context.Context) error {
	switch {
	case h.srv.TLS == nil:
		return h.refuseOption(optStartTLS, repErrPolicy, "this server has no TLS")
	case h.secure:
		return h.refuseOption(optStartTLS, repErrInvalid, "TLS has begun already")
	case h.br.Buffered() > 0: // sent before the client could know that it may
		return protocolError("%d bytes of plaintext after STARTTLS", h.br.Buffered())
	}
	if err := h.sendReply(optStartTLS, repAck, nil); err != nil {
		return err
	}
	h.secure = true
	return h.startTLS(ctx, func(nc net.Conn) *tls.Conn {
		config := h.srv.TLS.Clone()
		config.MinVersion = max(config.MinVersion, tls.VersionTLS12)
		return tls.Server(nc, config)
	})
}

func (h *serverHandshake) listExports(ctx context.Context) error {
	exports, err := h.srv.Exports.List(ctx)
	if err != nil {
		return h.refuseOption(optList, repErrPolicy, "the exports cannot be listed")
	}
	for _, e := range exports {
		if !validString(e.Name) || !validString(e.Description) {
			continue
		}
		if err := h.sendReply(optList, repServer, e.appendTo(nil)); err != nil {
			return err
		}
	}
	return h.sendReply(optList, repAck, nil)
}

// openExport opens an export for this connection. refusal is nonzero if it is refused.
func (h *serverHandshake) openExport(ctx context.Context, name string) (x *Export, refusal uint32, err error) {
	if !validString(name) {
		return nil, repErrInvalid, nil
	}
	export, err := h.srv.Exports.Open(ctx, name)
	switch {
	case errors.Is(err, ErrUnknownExport):
		return nil, repErrUnknown, nil
	case err != nil:
		h.srv.logger().Warn("NBD export refused", "export", name, "error", err)
		return nil, repErrPolicy, nil
	}
	if err := export.setDefaults(h.limits); err != nil {
		export.releaseExport()
		return nil, 0, fmt.Errorf("export %q: %w", name, err)
	}
	return &export, 0, nil
}

func (h *serverHandshake) transmissionFlags(x *Export) TransmissionFlags {
	f := x.transmissionFlags()
	if h.headers != simpleHeaders {
		f |= FlagSendDF
	}
	return f
}

// exportName handles NBD_OPT_EXPORT_NAME. It can refuse only by ending the connection.
func (h *serverHandshake) exportName(ctx context.Context, name string) error {
	x, refusal, err := h.openExport(ctx, name)
	if err != nil {
		return err
	}
	if refusal != 0 {
		return fmt.Errorf("client asks for export %q: %s", name, refusalName(refusal))
	}
	if !h.srv.admitSession(h.session) {
		x.releaseExport()
		return noPlace(h.limits)
	}
	b := binary.BigEndian.AppendUint64(nil, uint64(x.Backend.Size()))
	b = binary.BigEndian.AppendUint16(b, uint16(h.transmissionFlags(x)))
	if !h.noZeroes {
		b = append(b, make([]byte, exportPadBytes)...)
	}
	return h.beginTransmission(x, name, h.writeBytes(b))
}

// noPlace is the error when active clients have all the places.
func noPlace(l Limits) error {
	return fmt.Errorf("the server has %d connections, and none is idle", l.Connections)
}

// beginTransmission begins the transmission phase, unless telling the client so has failed with told.
func (h *serverHandshake) beginTransmission(x *Export, name string, told error) error {
	if told != nil {
		x.releaseExport()
		return told
	}
	h.export, h.name = x, name
	if h.selectedExport != name {
		h.selected = nil
	}
	return nil
}

// handleInfo handles NBD_OPT_INFO and NBD_OPT_GO.
func (h *serverHandshake) handleInfo(ctx context.Context, option uint32, data []byte) error {
	q, ok := parseExportRequest(data)
	if !ok {
		return h.refuseOption(option, repErrInvalid, "")
	}
	x, refusal, err := h.openExport(ctx, q.name)
	if err != nil {
		return err
	}
	if refusal != 0 {
		return h.refuseOption(option, refusal, "")
	}
	if x.Block.Minimum > 1 && option == optGo && !slices.Contains(q.infos, infoBlockSize) {
		x.releaseExport()
		return h.refuseOption(option, repErrBlockSizeReqd, "")
	}
	if option == optGo && !h.srv.admitSession(h.session) {
		x.releaseExport()
		return errors.Join(noPlace(h.limits), h.refuseOption(option, repErrPolicy, noPlace(h.limits).Error()))
	}
	err = h.describeExport(option, x, q)
	if err == nil {
		err = h.sendReply(option, repAck, nil)
	}
	if option == optGo {
		return h.beginTransmission(x, q.name, err)
	}
	x.releaseExport()
	return err
}

func (h *serverHandshake) describeExport(option uint32, x *Export, q exportRequest) error {
	b := binary.BigEndian.AppendUint16(nil, infoExport)
	b = binary.BigEndian.AppendUint64(b, uint64(x.Backend.Size()))
	b = binary.BigEndian.AppendUint16(b, uint16(h.transmissionFlags(x)))
	if err := h.sendReply(option, repInfo, b); err != nil {
		return err
	}
	b = binary.BigEndian.AppendUint16(b[:0], infoBlockSize)
	for _, n := range []uint32{x.Block.Minimum, x.Block.Preferred, x.Block.Maximum} {
		b = binary.BigEndian.AppendUint32(b, n)
	}
	if err := h.sendReply(option, repInfo, b); err != nil {
		return err
	}
	if slices.Contains(q.infos, infoName) {
		if err := h.sendReply(option, repInfo, append(binary.BigEndian.AppendUint16(b[:0], infoName), q.name...)); err != nil {
			return err
		}
	}
	if slices.Contains(q.infos, infoDescription) && x.Description != "" && validString(x.Description) {
		return h.sendReply(option, repInfo, append(binary.BigEndian.AppendUint16(b[:0], infoDescription), x.Description...))
	}
	return nil
}

// metaContext handles NBD_OPT_LIST_META_CONTEXT and NBD_OPT_SET_META_CONTEXT.
func (h *serverHandshake) metaContext(ctx context.Context, option uint32, data []byte) error {
	set := option == optSetMetaContext
	if set {
		h.selected, h.selectedExport = nil, ""
	}
	if h.headers == simpleHeaders {
		return h.refuseOption(option, repErrInvalid, "structured replies come first")
	}
	q, ok := parseContextRequest(data)
	if !ok {
		return h.refuseOption(option, repErrInvalid, "")
	}
	x, refusal, err := h.openExport(ctx, q.export)
	if err != nil {
		return err
	}
	if refusal != 0 {
		return h.refuseOption(option, refusal, "")
	}
	names := slices.DeleteFunc(slices.Clone(x.contextNames()), func(name string) bool { return !q.isAskedFor(name, !set) })
	x.releaseExport()
	for i, name := range names {
		if !set {
			i = 0
		}
		if err := h.sendReply(option, repMetaContext, append(binary.BigEndian.AppendUint32(nil, uint32(i)), name...)); err != nil {
			return err
		}
	}
	if set {
		h.selected, h.selectedExport = names, q.export
	}
	return h.sendReply(option, repAck, nil)
}

// isAskedFor reports whether a context is asked for. With wildcards, no query at all asks for every context, and a query
// that ends with a colon asks for every context that begins with it.
func (c contextRequest) isAskedFor(name string, wildcards bool) bool {
	if wildcards && len(c.queries) == 0 {
		return true
	}
	return slices.ContainsFunc(c.queries, func(q string) bool {
		return q == name || wildcards && strings.HasSuffix(q, ":") && strings.HasPrefix(name, q)
	})
}
