package server

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"

	"github.com/varvebackup/varve/internal/export"
)

// entityTag is the strong tag of everything that is served of these volumes: it changes with the point in time.
func entityTag(infos ...export.Info) string {
	hash := sha256.New()
	for _, i := range infos {
		name, point := sha256.Sum256([]byte(i.Name)), sha256.Sum256([]byte(i.PointInTime))
		if len(infos) > 1 {
			hash.Write(name[:])
		}
		hash.Write(point[:])
	}
	return `"` + hex.EncodeToString(hash.Sum(nil)[:16]) + `"`
}

// checkConditions evaluates If-Match and If-None-Match (RFC 9110, section 13.2.2). There is no modification date, so
// conditions on dates do not count.
func checkConditions(r *http.Request, tag string) error {
	if given := r.Header.Values("If-Match"); len(given) > 0 {
		if !matchesTag(given, tag, false) {
			return refusef(http.StatusPreconditionFailed, "this is another point in time than that of If-Match")
		}
	}
	if given := r.Header.Values("If-None-Match"); len(given) > 0 && matchesTag(given, tag, true) {
		return errNotModified
	}
	return nil
}

var errNotModified = refusef(http.StatusNotModified, "not modified")

// matchesTag reports whether a list of entity tags has tag, or is "*". A weak tag matches only if weak.
func matchesTag(lines []string, tag string, weak bool) bool {
	for rest := strings.Join(lines, ","); ; {
		rest = strings.TrimLeft(rest, " \t,")
		if rest == "*" {
			return true
		}
		weakTag := strings.HasPrefix(rest, "W/")
		opaque := strings.TrimPrefix(rest, "W/")
		if !strings.HasPrefix(opaque, `"`) {
			return false
		}
		end := strings.IndexByte(opaque[1:], '"')
		if end < 0 {
			return false
		}
		if opaque[:end+2] == tag && (weak || !weakTag) {
			return true
		}
		rest = opaque[end+2:]
	}
}
