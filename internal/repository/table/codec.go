package table

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/hashing"
	"github.com/kopia/kopia/repo/object"
)

// The bytes of a table are those that encoding/json produces. This code does the same for tables of objects' entries, and is many
// times faster: a disk of a tebibyte has four million entries, and an incremental looks at all of them.
const (
	encodedHead = `{"stream":"` + streamID + `","entries":[`
	encodedTail = `]}`
	entryStart  = `"s":`
	entryBytes  = `"l":`
	entryID     = `"o":"`
)

// entryBytesGuess is roughly the length of an entry.
const entryBytesGuess = 70

// Encode returns the table with these entries.
func Encode(entries []object.IndirectObjectEntry) []byte {
	out := make([]byte, 0, len(encodedHead)+len(encodedTail)+entryBytesGuess*len(entries))
	out = append(out, encodedHead...)
	for i, e := range entries {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, '{')
		if e.Start != 0 {
			out = append(strconv.AppendInt(append(out, entryStart...), e.Start, 10), ',')
		}
		if e.Length != 0 {
			out = append(strconv.AppendInt(append(out, entryBytes...), e.Length, 10), ',')
		}
		out = e.Object.Append(append(out, entryID...))
		out = append(out, '"', '}')
	}
	return append(out, encodedTail...)
}

// Decode reads a table, even one by a program that writes JSON differently.
func Decode(data []byte) ([]object.IndirectObjectEntry, error) {
	if entries, ok := parseEncoded(data); ok {
		return entries, nil
	}
	var t indirectObject
	if err := json.Unmarshal(data, &t); err != nil {
		return nil, err
	}
	if t.Stream != streamID {
		return nil, fmt.Errorf("a stream of type %q", t.Stream)
	}
	return t.Entries, nil
}

// parseEncoded reads what Encode writes, and nothing else.
func parseEncoded(data []byte) ([]object.IndirectObjectEntry, bool) {
	rest, ok := bytes.CutPrefix(data, []byte(encodedHead))
	if !ok {
		return nil, false
	}
	if rest, ok = bytes.CutSuffix(rest, []byte(encodedTail)); !ok {
		return nil, false
	}
	entries := make([]object.IndirectObjectEntry, 0, len(rest)/entryBytesGuess+1)
	var ids idParser
	for len(rest) > 0 {
		var e object.IndirectObjectEntry
		if e, rest, ok = parseEntry(rest, &ids); !ok {
			return nil, false
		}
		entries = append(entries, e)
		if len(rest) == 0 {
			break
		}
		if rest[0] != ',' || len(rest) == 1 {
			return nil, false
		}
		rest = rest[1:]
	}
	return entries, true
}

// parseEntry reads one entry and returns what follows it.
func parseEntry(data []byte, ids *idParser) (e object.IndirectObjectEntry, rest []byte, ok bool) {
	if len(data) == 0 || data[0] != '{' {
		return e, nil, false
	}
	rest = data[1:]
	if e.Start, rest, ok = parseNumber(rest, entryStart); !ok {
		return e, nil, false
	}
	if e.Length, rest, ok = parseNumber(rest, entryBytes); !ok {
		return e, nil, false
	}
	if rest, ok = bytes.CutPrefix(rest, []byte(entryID)); !ok {
		return e, nil, false
	}
	end := bytes.IndexByte(rest, '"')
	if end < 0 || end+1 >= len(rest) || rest[end+1] != '}' {
		return e, nil, false
	}
	e.Object, ok = ids.parseID(rest[:end])
	return e, rest[end+2:], ok
}

// idParser reads IDs. Often many in a row are the same, those of a hole.
type idParser struct {
	text []byte
	id   object.ID
}

// parseID does what object.ParseID does, which first makes a string of the text.
func (p *idParser) parseID(text []byte) (object.ID, bool) {
	if len(text) > 0 && bytes.Equal(text, p.text) {
		return p.id, true
	}
	id, ok := directID(text)
	if !ok {
		var err error
		if id, err = object.ParseID(string(text)); err != nil {
			return object.EmptyID, false
		}
	}
	p.text, p.id = text, id
	return id, true
}

// directID reads the ID of a content without a prefix, and nothing else.
func directID(text []byte) (object.ID, bool) {
	var hash [hashing.MaxHashSize]byte
	if len(text) == 0 || len(text) > hex.EncodedLen(len(hash)) || text[0] == 'D' { // kopia omits the D
		return object.EmptyID, false
	}
	n, err := hex.Decode(hash[:], text)
	if err != nil {
		return object.EmptyID, false
	}
	id, err := content.IDFromHash("", hash[:n])
	return object.DirectObjectID(id), err == nil
}

// parseNumber reads name, a number above 0 and a comma. If name is missing, the number is 0.
func parseNumber(data []byte, name string) (n int64, rest []byte, ok bool) {
	rest, ok = bytes.CutPrefix(data, []byte(name))
	if !ok {
		return 0, data, true
	}
	digits := 0
	for digits < len(rest) && rest[digits] >= '0' && rest[digits] <= '9' {
		n = n*10 + int64(rest[digits]-'0')
		digits++
	}
	const most = 18 // digits that always fit
	if digits == 0 || digits > most || rest[0] == '0' || digits == len(rest) || rest[digits] != ',' {
		return 0, nil, false
	}
	return n, rest[digits+1:], true
}
