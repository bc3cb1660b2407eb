package endpoint_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export/endpoint"
	"github.com/varvebackup/varve/internal/export/exporttest"
	"github.com/varvebackup/varve/test/disksource"
	"github.com/varvebackup/varve/test/exportsite"
	"github.com/varvebackup/varve/test/verdict"
)

func rawVolume(f *exportsite.FakeFile) endpoint.Volume {
	return endpoint.Volume{Name: "root", Data: f.URL(exportsite.FakeFilePath)}
}

func TestRawDisk_isADiskSource(t *testing.T) {
	t.Parallel()
	content := exporttest.NewVolume("root", 9<<20+512, false, 7).Content
	f := exportsite.OpenFakeFile(t, content)
	disksource.Run(t, disksource.Disk{Content: content}, func(t *testing.T) disksource.Source {
		t.Helper()
		d, err := exportsite.NewClient(t, f.Options()).OpenRaw(t.Context(), rawVolume(f), "id")
		if err != nil {
			t.Fatal(err)
		}
		return d
	})
}

// A disk that is read over connections that break has the same bytes, and none is asked for twice but those of a
// request that was cut.
func TestRawDisk_goesOnAfterCuts(t *testing.T) {
	t.Parallel()
	content := exporttest.NewVolume("root", 9<<20+512, false, 8).Content
	f := exportsite.OpenFakeFile(t, content)
	client := exportsite.NewClient(t, exportsite.Cut(f.Options(), 8, 1<<20, 12))
	d, err := client.OpenRaw(t.Context(), rawVolume(f), "id")
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, d.Bytes())
	if err := d.ReadAt(t.Context(), got, 0); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, content) {
		verdict.Errorf(t, "the disk has other bytes")
	}
	if n := f.Requests.Load(); n < 3 || n > 16 {
		t.Errorf("%d requests", n)
	}
}

func TestRawDisk_refusesAnotherServer(t *testing.T) {
	t.Parallel()
	content := exporttest.NewVolume("root", 1<<20, false, 9).Content
	f := exportsite.OpenFakeFile(t, content)
	client := exportsite.NewClient(t, f.Options())
	d, err := client.OpenRaw(t.Context(), rawVolume(f), "id")
	if err != nil || d.Server() == "" {
		t.Fatalf("%v, server %q", err, d.Server())
	}
	f.Kill()
	f.Start(content)
	if err := d.ReadAt(t.Context(), make([]byte, 4096), 0); !errors.Is(err, endpoint.ErrOtherPoint) {
		t.Errorf("the same disk at another server: %v", err)
	}
	v := rawVolume(f)
	v.Server = d.Server()
	if _, err := client.OpenRaw(t.Context(), v, "id"); !errors.Is(err, endpoint.ErrOtherPoint) {
		t.Errorf("a disk that is opened again at another server: %v", err)
	}
}

// A server that sends everything for each range would be read a thousand times.
func TestRawDisk_needsRanges(t *testing.T) {
	t.Parallel()
	f := exportsite.OpenFakeFile(t, make([]byte, 1<<20))
	f.WithoutRanges = true
	_, err := exportsite.NewClient(t, f.Options()).OpenRaw(t.Context(), rawVolume(f), "id")
	if errclass.Of(err) != errclass.Invalid || !strings.Contains(err.Error(), "status 200") {
		t.Error(err)
	}
}

// A file that becomes larger or smaller is not one disk.
func TestRawDisk_refusesAnotherSize(t *testing.T) {
	t.Parallel()
	f := exportsite.OpenFakeFile(t, make([]byte, 1<<20))
	client := exportsite.NewClient(t, f.Options())
	q := endpoint.DataRequest{URL: f.URL(exportsite.FakeFilePath), Bytes: 2 << 20}
	if err := client.ReadAt(t.Context(), q, make([]byte, 512), 0); errclass.Of(err) != errclass.Invalid {
		t.Error(err)
	}
}
