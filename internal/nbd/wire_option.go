package nbd

import (
	"encoding/binary"
	"math"
	"math/bits"
	"unicode/utf8"
)

const (
	// optionBytes and optionReplyBytes are the headers of section "Fixed newstyle negotiation".
	optionBytes      = 16
	optionReplyBytes = 20
	// maxOptionBytes bounds the data of one option or of one reply to one, beyond anything that a peer has reason to send.
	maxOptionBytes = 64 << 10
)

// optionHeader is an option from the client.
type optionHeader struct {
	option, length uint32
}

func (o optionHeader) appendTo(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, haveOptMagic)
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, o.option), o.length)
}

// parseOption reads optionBytes.
func parseOption(b []byte) (optionHeader, error) {
	if magic := binary.BigEndian.Uint64(b); magic != haveOptMagic {
		return optionHeader{}, protocolError("option begins with %#x", magic)
	}
	return optionHeader{option: binary.BigEndian.Uint32(b[8:]), length: binary.BigEndian.Uint32(b[12:])}, nil
}

// optionReplyHeader is the server's reply to an option.
type optionReplyHeader struct {
	option, kind, length uint32
}

func (o optionReplyHeader) appendTo(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, optionReplyMagic)
	b = binary.BigEndian.AppendUint32(b, o.option)
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, o.kind), o.length)
}

// parseOptionReply reads optionReplyBytes of a reply to want.
func parseOptionReply(b []byte, want uint32) (optionReplyHeader, error) {
	if magic := binary.BigEndian.Uint64(b); magic != optionReplyMagic {
		return optionReplyHeader{}, protocolError("option reply begins with %#x", magic)
	}
	o := optionReplyHeader{option: binary.BigEndian.Uint32(b[8:]), kind: binary.BigEndian.Uint32(b[12:]), length: binary.BigEndian.Uint32(b[16:])}
	switch {
	case o.option != want:
		return o, protocolError("reply to option %s while waiting for %s", optionName(o.option), optionName(want))
	case o.length > maxOptionBytes:
		return o, protocolError("option reply of %d bytes", o.length)
	}
	return o, nil
}

// reader takes fields from the front of data. The first missing field sets bad, and all later ones are empty.
type reader struct {
	data []byte
	bad  bool
}

func (r *reader) takeBytes(n uint64) []byte {
	if r.bad || uint64(len(r.data)) < n {
		r.bad = true
		return nil
	}
	out := r.data[:n]
	r.data = r.data[n:]
	return out
}

func (r *reader) u16() uint16 {
	if b := r.takeBytes(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (r *reader) u32() uint32 {
	if b := r.takeBytes(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if b := r.takeBytes(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// takeText takes n bytes that must be a string in the sense of section "Conventions".
func (r *reader) takeText(n uint32) string {
	if n > maxStringBytes {
		r.bad = true
		return ""
	}
	s := string(r.takeBytes(uint64(n)))
	if !validString(s) {
		r.bad = true
	}
	return s
}

func (r *reader) takeRest() string { return r.takeText(uint32(min(len(r.data), math.MaxInt32))) }

// isComplete reports whether every field was there and nothing is left.
func (r *reader) isComplete() bool { return !r.bad && len(r.data) == 0 }

func validString(s string) bool {
	if len(s) > maxStringBytes || !utf8.ValidString(s) {
		return false
	}
	for i := range len(s) {
		if s[i] == 0 {
			return false
		}
	}
	return true
}

func appendText(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(s))), s...)
}

// parseServer reads NBD_REP_SERVER.
func parseServer(b []byte) (ListedExport, error) {
	r := reader{data: b}
	l := ListedExport{Name: r.takeText(r.u32())}
	l.Description = r.takeRest()
	if !r.isComplete() {
		return l, protocolError("NBD_REP_SERVER of %d bytes", len(b))
	}
	return l, nil
}

func (l ListedExport) appendTo(b []byte) []byte {
	return append(appendText(b, l.Name), l.Description...)
}

// parseMetaContext reads NBD_REP_META_CONTEXT.
func parseMetaContext(b []byte) (id uint32, name string, err error) {
	r := reader{data: b}
	id, name = r.u32(), r.takeRest()
	if !r.isComplete() || name == "" {
		return 0, "", protocolError("NBD_REP_META_CONTEXT of %d bytes", len(b))
	}
	return id, name, nil
}

// parseInfo reads NBD_REP_INFO into i. It ignores unknown kinds of information.
func (i *Info) parseInfo(b []byte) error {
	r := reader{data: b}
	kind := r.u16()
	switch {
	case r.bad:
	case kind == infoExport:
		size, flags := r.u64(), r.u16()
		if r.isComplete() {
			return i.setExport(size, flags)
		}
	case kind == infoBlockSize:
		i.Block = BlockSizes{Minimum: r.u32(), Preferred: r.u32(), Maximum: r.u32()}
		if r.isComplete() {
			return i.Block.validate()
		}
	case kind == infoDescription:
		i.Description = r.takeRest()
	case kind == infoName:
		i.Name = r.takeRest()
	default:
		return nil
	}
	if !r.isComplete() {
		return protocolError("NBD_REP_INFO of kind %d with %d bytes", kind, len(b))
	}
	return nil
}

func (i *Info) setExport(size uint64, flags uint16) error {
	if size > math.MaxInt64 {
		return protocolError("export of %d bytes", size)
	}
	i.Bytes, i.Flags = int64(size), TransmissionFlags(flags)
	if !i.Flags.Has(FlagHasFlags) {
		return protocolError("export's flags %#x lack NBD_FLAG_HAS_FLAGS", flags)
	}
	return nil
}

// validate applies section "Block size constraints". The preferred size is only advice, so it is not checked.
func (b *BlockSizes) validate() error {
	switch {
	case bits.OnesCount32(b.Minimum) != 1, b.Minimum > 64<<10:
		return protocolError("minimum block of %d bytes", b.Minimum)
	case b.Maximum < b.Minimum:
		return protocolError("maximum block of %d bytes", b.Maximum)
	}
	return nil
}

// exportRequest is the data of NBD_OPT_INFO and NBD_OPT_GO.
type exportRequest struct {
	name  string
	infos []uint16
}

// encodeRequest returns the data in wire format.
func (e exportRequest) encodeRequest() []byte {
	b := appendText(nil, e.name)
	b = binary.BigEndian.AppendUint16(b, uint16(len(e.infos)))
	for _, i := range e.infos {
		b = binary.BigEndian.AppendUint16(b, i)
	}
	return b
}

func parseExportRequest(b []byte) (exportRequest, bool) {
	r := reader{data: b}
	e := exportRequest{name: r.takeText(r.u32())}
	for range r.u16() {
		if r.bad {
			break
		}
		e.infos = append(e.infos, r.u16())
	}
	return e, r.isComplete()
}

// contextRequest is the data of NBD_OPT_LIST_META_CONTEXT and NBD_OPT_SET_META_CONTEXT.
type contextRequest struct {
	export  string
	queries []string
}

// encodeRequest returns the data in wire format.
func (c contextRequest) encodeRequest() []byte {
	b := appendText(nil, c.export)
	b = binary.BigEndian.AppendUint32(b, uint32(len(c.queries)))
	for _, q := range c.queries {
		b = appendText(b, q)
	}
	return b
}

func parseContextRequest(b []byte) (contextRequest, bool) {
	r := reader{data: b}
	c := contextRequest{export: r.takeText(r.u32())}
	for range r.u32() {
		if r.bad {
			break
		}
		c.queries = append(c.queries, r.takeText(r.u32()))
	}
	return c, r.isComplete()
}
