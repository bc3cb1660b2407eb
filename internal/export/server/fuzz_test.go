package server

import (
	"net/url"
	"strings"
	"testing"

	"github.com/varvebackup/varve/internal/extent"
)

// FuzzRange checks that a range is a part of the disk with at least one byte, or that the header does not count.
func FuzzRange(f *testing.F) {
	for _, header := range []string{"bytes=0-1", "bytes=-5", "bytes=5-", "bytes=0-1,2-3", "sectors=1-2", "bytes=99999999999999999999-", "bytes=-", ""} {
		f.Add(header, int64(1000))
	}
	f.Fuzz(func(t *testing.T, header string, size int64) {
		if size < 0 {
			return
		}
		whole := extent.Extent{Length: size}
		e, partial, err := parseRange(header, size)
		switch {
		case err != nil:
		case partial && (e.Empty() || !whole.Contains(e)):
			t.Errorf("%q of %d bytes is %v", header, size, e)
		case !partial && e != whole:
			t.Errorf("%q of %d bytes is %v, and not partial", header, size, e)
		}
	})
}

// FuzzMatchesTag checks that only a list that has the tag matches.
func FuzzMatchesTag(f *testing.F) {
	const tag = `"0123456789abcdef"`
	for _, list := range []string{tag, "W/" + tag, "*", `"a,b", ` + tag, `"`, `W/`, ``, `,,,`} {
		f.Add(list)
	}
	f.Fuzz(func(t *testing.T, list string) {
		strong, weak := matchesTag([]string{list}, tag, false), matchesTag([]string{list}, tag, true)
		if strong && !weak {
			t.Errorf("%q matches only as a strong tag", list)
		}
		if weak && !strings.Contains(list, tag) && !strings.Contains(list, "*") {
			t.Errorf("%q matches", list)
		}
	})
}

// FuzzPath checks that a path names an endpoint, or nothing.
func FuzzPath(f *testing.F) {
	for _, path := range []string{"/exports/root/data", "/exports/stream", "/exports/%2e%2e/map", "/exports//data", "/exports/a%2fb/stream"} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		u, err := url.Parse("https://localhost" + path)
		if err != nil {
			return
		}
		volume, endpoint, err := splitPath(u)
		if err == nil && (endpoint == "" || (volume == "" && endpoint != streamEndpoint)) {
			t.Errorf("%q is volume %q and endpoint %q", path, volume, endpoint)
		}
	})
}
