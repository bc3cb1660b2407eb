package server

import (
	"errors"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/varvebackup/varve/internal/extent"
)

// parseQuery returns the parameters of a request. Those that nobody asks for are ignored, the token among them.
func parseQuery(r *http.Request) (url.Values, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, refusef(http.StatusBadRequest, "the query is malformed")
	}
	return query, nil
}

// parseNumber returns a parameter that is a number of bytes, or missing if it is not there or empty. A number that is
// too long is the largest one, which is beyond every disk.
func parseNumber(query url.Values, name string, missing int64) (int64, error) {
	given := query[name]
	if len(given) > 1 {
		return 0, refusef(http.StatusBadRequest, "%s is there twice", name)
	}
	if len(given) == 0 || given[0] == "" {
		return missing, nil
	}
	n, err := parseDigits(given[0])
	if err != nil {
		return 0, refusef(http.StatusBadRequest, "%s is not a number of bytes", name)
	}
	return n, nil
}

// parseDigits parses a number without a sign. One that is too long is the largest one.
func parseDigits(text string) (int64, error) {
	if text == "" || strings.Trim(text, "0123456789") != "" {
		return 0, strconv.ErrSyntax
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if errors.Is(err, strconv.ErrRange) {
		return math.MaxInt64, nil
	}
	return n, err
}

// parsePart returns the part of a disk that the parameters offset and length name. A length that is 0, missing or
// too long goes to the end.
func parsePart(w http.ResponseWriter, query url.Values, size int64) (extent.Extent, error) {
	offset, err := parseNumber(query, "offset", 0)
	if err != nil {
		return extent.Extent{}, err
	}
	length, err := parseNumber(query, "length", 0)
	if err != nil {
		return extent.Extent{}, err
	}
	if offset > size {
		return extent.Extent{}, notInDisk(w, size)
	}
	if length == 0 || length > size-offset {
		length = size - offset
	}
	return extent.Extent{Offset: offset, Length: length}, nil
}

// errNotSatisfiable means that a range has no byte, or is malformed.
var errNotSatisfiable = errors.New("range not satisfiable")

// parseRange returns the range of a representation of size bytes that the header Range selects (RFC 9110, section 14).
// partial is false if the header does not count: with a unit other than bytes, or several ranges.
func parseRange(header string, size int64) (e extent.Extent, partial bool, err error) {
	whole := extent.Extent{Length: size}
	unit, set, ok := strings.Cut(header, "=")
	if !ok || !strings.EqualFold(strings.TrimSpace(unit), "bytes") || strings.Contains(set, ",") {
		return whole, false, nil
	}
	first, last, ok := strings.Cut(strings.Trim(set, " \t"), "-")
	if !ok {
		return e, false, errNotSatisfiable
	}
	if first == "" {
		n, err := parseDigits(last)
		if err != nil || n == 0 || size == 0 {
			return e, false, errNotSatisfiable
		}
		n = min(n, size)
		return extent.Extent{Offset: size - n, Length: n}, true, nil
	}
	from, err := parseDigits(first)
	if err != nil || from >= size {
		return e, false, errNotSatisfiable
	}
	to := size - 1
	if last != "" {
		n, err := parseDigits(last)
		if err != nil || n < from {
			return e, false, errNotSatisfiable
		}
		to = min(n, to)
	}
	return extent.Extent{Offset: from, Length: to - from + 1}, true, nil
}
