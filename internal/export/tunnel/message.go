package tunnel

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/extent"
)

// Limits of what is offered.
const (
	maxNameBytes        = 253
	maxPointInTimeBytes = 200
	flagIncremental     = 1
)

// encodeVolumes returns the tail of an offer.
func encodeVolumes(infos []export.Info) []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(len(infos)))
	for _, i := range infos {
		b = binary.BigEndian.AppendUint64(b, uint64(i.Bytes))
		flags := byte(0)
		if i.Incremental {
			flags = flagIncremental
		}
		b = append(b, flags, byte(len(i.Name)))
		b = append(b, i.Name...)
		b = append(b, byte(len(i.PointInTime)))
		b = append(b, i.PointInTime...)
	}
	return b
}

// parseVolumes reads the tail of an offer, and checks it as checkVolumes does.
func parseVolumes(b []byte) ([]export.Info, error) {
	if len(b) < 2 {
		return nil, protocolError("offer without volumes")
	}
	count := int(binary.BigEndian.Uint16(b))
	if count > maxVolumes {
		return nil, protocolError("offer of %d volumes", count)
	}
	b = b[2:]
	infos := make([]export.Info, 0, count)
	for range count {
		if len(b) < 9 || b[8]&^flagIncremental != 0 {
			return nil, protocolError("volume that is cut short, or with unknown flags")
		}
		i := export.Info{Bytes: int64(binary.BigEndian.Uint64(b)), Incremental: b[8] == flagIncremental}
		var ok bool
		if i.Name, b, ok = cutText(b[9:]); !ok {
			return nil, protocolError("name that is cut short")
		}
		if i.PointInTime, b, ok = cutText(b); !ok {
			return nil, protocolError("point in time that is cut short")
		}
		infos = append(infos, i)
	}
	if len(b) > 0 {
		return nil, protocolError("%d bytes after the volumes", len(b))
	}
	if err := checkVolumes(infos); err != nil {
		return nil, protocolError("%v", err)
	}
	return infos, nil
}

// cutText takes a text, with its length in a byte, off the beginning.
func cutText(b []byte) (text string, rest []byte, ok bool) {
	if len(b) == 0 || len(b) < 1+int(b[0]) {
		return "", nil, false
	}
	n := 1 + int(b[0])
	return string(b[1:n]), b[n:], true
}

// checkVolumes reports what keeps volumes from being offered.
func checkVolumes(infos []export.Info) error {
	if len(infos) > maxVolumes {
		return errclass.Errorf(errclass.Invalid, "%d volumes are more than %d", len(infos), maxVolumes)
	}
	names := map[string]bool{}
	for _, i := range infos {
		switch {
		case i.Name == "" || len(i.Name) > maxNameBytes || !isPlainText(i.Name):
			return errclass.Errorf(errclass.Invalid, "volume name %.60q is empty, too long or not plain text", i.Name)
		case names[i.Name]:
			return errclass.Errorf(errclass.Invalid, "two volumes are named %s", i.Name)
		case i.Bytes < 0:
			return errclass.Errorf(errclass.Invalid, "volume %s has %d bytes", i.Name, i.Bytes)
		case len(i.PointInTime) > maxPointInTimeBytes || !isPlainText(i.PointInTime):
			return errclass.Errorf(errclass.Invalid, "volume %s: point in time %.60q is too long or not plain text", i.Name, i.PointInTime)
		}
		names[i.Name] = true
	}
	return nil
}

func isPlainText(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

// regionBytes is how long a region of a page is: its kind and its length.
const regionBytes = 9

func appendRegion(b []byte, r export.Region) []byte {
	return binary.BigEndian.AppendUint64(append(b, byte(r.Kind)), uint64(r.Length))
}

// parsePage calls report for the regions of a page, which begins where e does, until report returns false. It checks the
// whole page first, and returns where it ends.
func parsePage(b []byte, e extent.Extent, incremental bool, report func(export.Region) bool) (end int64, err error) {
	end = e.Offset
	for rest := b; len(rest) > 0; rest = rest[regionBytes:] {
		kind, length := export.Kind(rest[0]), binary.BigEndian.Uint64(rest[1:])
		if kind < export.Data || kind > export.Clean || kind == export.Clean && !incremental {
			return 0, protocolError("region of kind %d", kind)
		}
		if length == 0 || length > math.MaxInt64 || int64(length) > e.End()-end {
			return 0, protocolError("region of %d bytes at %d, of %v", length, end, e)
		}
		end += int64(length)
	}
	at := e.Offset
	for ; len(b) > 0; b = b[regionBytes:] {
		part := extent.Extent{Offset: at, Length: int64(binary.BigEndian.Uint64(b[1:]))}
		if !report(export.Region{Extent: part, Kind: export.Kind(b[0])}) {
			break
		}
		at = part.End()
	}
	return end, nil
}

// The first byte of a request's end. They are part of the wire.
const (
	endSuccess   = 0
	endCancelled = 10
	endOther     = 255
)

var endClasses = map[uint8]errclass.Class{
	1: errclass.Unknown, 2: errclass.Corrupt, 3: errclass.Denied, 4: errclass.Conflict, 5: errclass.Invalid,
	6: errclass.NotFound, 7: errclass.Expired, 8: errclass.Exhausted, 9: errclass.Transient,
}

// endOf returns how a request that ended with err ends on the wire.
func endOf(err error) (class uint8, message string) {
	if err == nil {
		return endSuccess, ""
	}
	message = cleanMessage(err.Error())
	if of := errclass.Of(err); of != errclass.None {
		for class, c := range endClasses {
			if c == of {
				return class, message
			}
		}
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return endCancelled, message
	}
	return endOther, message
}

// endError returns the error that a request's end means, nil for success.
func endError(class uint8, message string) error {
	if class == endSuccess {
		return nil
	}
	message = "launcher: " + cleanMessage(message)
	switch of, known := endClasses[class]; {
	case known:
		return errclass.Errorf(of, "%s", message)
	case class == endCancelled:
		// It was not cancelled here: then nobody would see this error.
		return errclass.Errorf(errclass.Transient, "%s", message)
	}
	return errors.New(message)
}

// cleanMessage makes a text of a peer fit for a log: no line breaks, no escapes, not long.
func cleanMessage(s string) string {
	s = s[:min(len(s), maxMessageBytes)]
	clean := strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
	return clean[:min(len(clean), maxMessageBytes)]
}

// findVolume returns the place of a volume in an offer.
func findVolume(infos []export.Info, name string) int {
	return slices.IndexFunc(infos, func(i export.Info) bool { return i.Name == name })
}
