package exporter

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/test/verdict"
)

// mappedRegion is an element of a map's regions.
type mappedRegion struct {
	Offset int64  `json:"offset"`
	Length int64  `json:"length"`
	Type   string `json:"type"`
}

// A sparse disk is 1 TiB in size and has two parts with data: the map says where, and the data endpoint has them.
func TestDiskVolumes_mapWhatIsAllocated(t *testing.T) {
	t.Parallel()
	const (
		size   = int64(1) << 40
		first  = int64(1) << 20
		last   = int64(512) << 30
		length = 256 << 10
	)
	content := make([]byte, length)
	random := rand.NewChaCha8([32]byte{4})
	if _, err := random.Read(content); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "disk.img")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []int64{first, last} {
		if _, err := f.WriteAt(content, at); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}

	p := start(t, podspec.Config{UID: "export", Volumes: []podspec.Volume{{Name: "web", Path: path}}})
	answer, body := p.get(http.MethodGet, podspec.MapPath("web")+"?start=0")
	var found struct {
		Regions []mappedRegion `json:"regions"`
		Next    *int64         `json:"next_offset"`
		Size    int64          `json:"size"`
	}
	if err := json.Unmarshal(body, &found); err != nil || found.Next != nil || found.Size != size {
		t.Fatalf("%s: %s: %v", answer.Status, body, err)
	}
	want := []mappedRegion{
		{0, first, "zero"},
		{first, length, "data"},
		{first + length, last - first - length, "zero"},
		{last, length, "data"},
		{last + length, size - last - length, "zero"},
	}
	if diff := cmp.Diff(want, found.Regions); diff != "" {
		verdict.Errorf(t, "the map of a sparse disk: %s", diff)
	}
	tag := answer.Header.Get("ETag")
	for _, at := range []int64{first, last} {
		answer, body := p.get(http.MethodGet, podspec.DataPath("web")+fmt.Sprintf("?offset=%d&length=%d", at, length),
			"If-Match", tag)
		if answer.StatusCode != http.StatusOK || !bytes.Equal(body, content) {
			verdict.JudgeErrorf(t, answer.StatusCode == http.StatusOK, "data at %d: %s, %d bytes", at, answer.Status,
				len(body))
		}
	}
	if answer, _ := p.get(http.MethodGet, podspec.MapPath("other")); answer.StatusCode != http.StatusNotFound {
		t.Errorf("a disk that is not there: %s", answer.Status)
	}
	// Another process may serve other bytes.
	again := start(t, podspec.Config{UID: "export", Volumes: []podspec.Volume{{Name: "web", Path: path}}})
	answer, _ = again.get(http.MethodGet, podspec.DataPath("web")+"?offset=0&length=512", "If-Match", tag)
	if answer.StatusCode != http.StatusPreconditionFailed {
		t.Errorf("the tag of another process: %s", answer.Status)
	}
}
