package server_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/varvebackup/varve/internal/export/exporttest"
	"github.com/varvebackup/varve/internal/export/server"
	"github.com/varvebackup/varve/test/verdict"
)

const diskBytes = 3<<20 + 512

func TestData_selectsTheRightBytes(t *testing.T) {
	t.Parallel()
	for _, incremental := range []bool{false, true} {
		disk := exporttest.NewVolume("root", diskBytes, incremental, 5)
		s := openVolumes(t, server.Config{}, disk)
		tag := s.ask(t, http.MethodHead, "/exports/root/data").header.Get("Etag")
		if len(tag) < 16 || tag[0] != '"' {
			t.Fatalf("ETag %q", tag)
		}
		for _, c := range []struct {
			query        string
			header       []string
			status       int
			from, to     int64
			contentRange string
		}{
			{status: 200, to: diskBytes},
			{header: []string{"Range", "bytes=0-511"}, status: 206, to: 512, contentRange: "bytes 0-511/3146240"},
			{header: []string{"Range", "bytes=0-0"}, status: 206, to: 1, contentRange: "bytes 0-0/3146240"},
			{header: []string{"Range", "Bytes=65535-65536"}, status: 206, from: 65535, to: 65537, contentRange: "bytes 65535-65536/3146240"},
			{header: []string{"Range", "bytes=1000-"}, status: 206, from: 1000, to: diskBytes, contentRange: "bytes 1000-3146239/3146240"},
			{header: []string{"Range", "bytes=-700"}, status: 206, from: diskBytes - 700, to: diskBytes, contentRange: "bytes 3145540-3146239/3146240"},
			{header: []string{"Range", "bytes=-99999999999999999999"}, status: 206, to: diskBytes, contentRange: "bytes 0-3146239/3146240"},
			{header: []string{"Range", "bytes=3146239-99999999999999999999"}, status: 206, from: diskBytes - 1, to: diskBytes, contentRange: "bytes 3146239-3146239/3146240"},
			// Ranges that do not count.
			{header: []string{"Range", "bytes=0-1,4-5"}, status: 200, to: diskBytes},
			{header: []string{"Range", "sectors=0-1"}, status: 200, to: diskBytes},
			// Conditions.
			{header: []string{"Range", "bytes=5-9", "If-Range", tag}, status: 206, from: 5, to: 10, contentRange: "bytes 5-9/3146240"},
			{header: []string{"Range", "bytes=5-9", "If-Range", `"another"`}, status: 200, to: diskBytes},
			{header: []string{"Range", "bytes=5-9", "If-Range", "W/" + tag}, status: 200, to: diskBytes},
			{header: []string{"Range", "bytes=5-9", "If-Range", "Mon, 23 Nov 2026 00:00:00 GMT"}, status: 200, to: diskBytes},
			{header: []string{"Range", "bytes=5-9", "If-Match", `"a", ` + tag}, status: 206, from: 5, to: 10, contentRange: "bytes 5-9/3146240"},
			{header: []string{"If-None-Match", `"a,b", "c"`}, status: 200, to: diskBytes},
			// Upstream's parameters, alone and with a range of what they name.
			{query: "?length=512", status: 200, to: 512},
			{query: "?offset=100&length=512", status: 200, from: 100, to: 612},
			{query: "?offset=100&length=0", status: 200, from: 100, to: diskBytes},
			{query: "?offset=&length=", status: 200, to: diskBytes},
			{query: "?offset=3146000&length=512", status: 200, from: 3146000, to: diskBytes},
			{query: "?offset=3146240", status: 200, from: diskBytes, to: diskBytes},
			{query: "?offset=100&length=512", header: []string{"Range", "bytes=12-"}, status: 206, from: 112, to: 612, contentRange: "bytes 12-511/512"},
		} {
			got := s.ask(t, http.MethodGet, "/exports/root/data"+c.query, c.header...)
			name := fmt.Sprintf("%q %v", c.query, c.header)
			if got.cut != nil || got.status != c.status || !bytes.Equal(got.body, disk.Content[c.from:c.to]) {
				verdict.JudgeErrorf(t, got.cut == nil && got.status == c.status, "%s: %d, %d bytes, %v", name, got.status, len(got.body), got.cut)
			}
			h := got.header
			if h.Get("Content-Range") != c.contentRange || h.Get("Content-Length") != fmt.Sprint(c.to-c.from) || h.Get("Etag") != tag ||
				h.Get("Accept-Ranges") != "bytes" || h.Get("Content-Type") != "application/octet-stream" {
				t.Errorf("%s: %v", name, h)
			}
		}
	}
}

func TestData_headSaysWhatGetWould(t *testing.T) {
	t.Parallel()
	s := openVolumes(t, server.Config{}, exporttest.NewVolume("root", diskBytes, false, 5))
	got := s.ask(t, http.MethodHead, "/exports/root/data?offset=512", "Range", "bytes=0-1")
	if got.status != 200 || got.header.Get("Content-Length") != fmt.Sprint(diskBytes-512) || got.header.Get("Accept-Ranges") != "bytes" {
		t.Errorf("%d %v", got.status, got.header)
	}
}

func TestData_conditionsRefuseAnotherPointInTime(t *testing.T) {
	t.Parallel()
	s := openVolumes(t, server.Config{}, exporttest.NewVolume("root", diskBytes, false, 5))
	other := openVolumes(t, server.Config{}, exporttest.NewVolume("root", diskBytes, false, 6))
	tag := s.ask(t, http.MethodHead, "/exports/root/data").header.Get("Etag")
	otherTag := other.ask(t, http.MethodHead, "/exports/root/data").header.Get("Etag")
	if tag == otherTag {
		t.Fatal("two points in time have one tag")
	}
	for _, endpoint := range []string{"data", "map", "stream"} {
		for _, c := range []struct {
			header, value string
			status        int
		}{
			{"If-Match", otherTag, 412},
			{"If-Match", "W/" + tag, 412},
			{"If-Match", "rubbish", 412},
			{"If-Match", `"unended`, 412},
			{"If-Match", "*", 200},
			{"If-Match", otherTag + " , " + tag, 200},
			{"If-None-Match", tag, 304},
			{"If-None-Match", "W/" + tag, 304},
			{"If-None-Match", "*", 304},
			{"If-None-Match", otherTag, 200},
			{"If-Modified-Since", "Mon, 23 Nov 2037 00:00:00 GMT", 200},
			{"If-Unmodified-Since", "Mon, 23 Nov 1987 00:00:00 GMT", 200},
		} {
			got := s.ask(t, http.MethodGet, "/exports/root/"+endpoint, c.header, c.value)
			if got.status != c.status || (c.status == 304 && got.header.Get("Etag") != tag) {
				t.Errorf("%s, %s %s: %d %v", endpoint, c.header, c.value, got.status, got.header)
			}
		}
	}
}

func TestData_speaksHTTP2(t *testing.T) {
	t.Parallel()
	disk := exporttest.NewVolume("root", diskBytes, false, 5)
	s := openVolumes(t, server.Config{}, disk)
	client := s.newClient(t, true)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/exports/root/data", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set(server.TokenHeader, token)
	response, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.ProtoMajor != 2 || !bytes.Equal(body, disk.Content) {
		verdict.JudgeErrorf(t, err == nil && response.ProtoMajor == 2, "%s, %d bytes, %v", response.Proto, len(body), err)
	}
}

func TestData_emptyDisk(t *testing.T) {
	t.Parallel()
	s := openVolumes(t, server.Config{}, exporttest.NewVolume("empty", 0, false, 5))
	if got := s.ask(t, http.MethodGet, "/exports/empty/data"); got.status != 200 || len(got.body) != 0 {
		t.Errorf("%d %q", got.status, got.body)
	}
	if got := s.ask(t, http.MethodGet, "/exports/empty/data", "Range", "bytes=0-"); got.status != 416 || got.header.Get("Content-Range") != "bytes */0" {
		t.Errorf("%d %v", got.status, got.header)
	}
	if got := s.ask(t, http.MethodGet, "/exports/empty/map?start=0"); got.status != 200 || string(got.body) != `{"regions":[],"next_offset":null,"size":0}`+"\n" {
		t.Errorf("%d %s", got.status, got.body)
	}
}
