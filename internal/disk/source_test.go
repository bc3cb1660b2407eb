package disk

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/nbd"
	"github.com/varvebackup/varve/test/disksource"
	"github.com/varvebackup/varve/test/verdict"
)

func TestFile_isReadAroundItsHoles(t *testing.T) {
	t.Parallel()
	const size = 5*mib + 100
	path, content := sparseFile(t, size,
		extent.Extent{Offset: 4 * kib, Length: 8 * kib},
		extent.Extent{Offset: 2*mib - 4*kib, Length: 8 * kib},
		extent.Extent{Offset: size - 10, Length: 10})
	s := openSource(t, path, SourceOptions{})
	if s.Bytes() != size {
		t.Errorf("%d bytes", s.Bytes())
	}
	wantBytes(t, s, content)
	data, err := s.Data(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := set(extent.Extent{Length: 64 * kib}, extent.Extent{Offset: 2*mib - 64*kib, Length: 128 * kib}, extent.Extent{Offset: 5 * mib, Length: 100})
	if diff := cmp.Diff(listing(want), listing(*data)); diff != "" {
		verdict.Errorf(t, "data (-want +got): %s", diff)
	}
	if changes, err := s.Changes(t.Context()); changes != nil || err != nil {
		t.Errorf("changes of a raw file: %v, %v", changes, err)
	}
	wantError(t, s.ReadAt(t.Context(), make([]byte, 11), size-10), errclass.Invalid, path)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Data(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("data after cancel: %v", err)
	}
	if err := s.ReadAt(ctx, make([]byte, 1), 0); !errors.Is(err, context.Canceled) {
		t.Errorf("read after cancel: %v", err)
	}
}

func TestFile_isADiskSource(t *testing.T) {
	t.Parallel()
	const size = 9*mib + 100
	path, content := sparseFile(t, size, extent.Extent{Offset: 4 * kib, Length: 3 * mib}, extent.Extent{Offset: 5*mib - 4*kib, Length: 8 * kib}, extent.Extent{Offset: size - 10, Length: 10})
	disksource.Run(t, disksource.Disk{Content: content}, func(t *testing.T) disksource.Source {
		t.Helper()
		s, err := OpenSource(t.Context(), path, SourceOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	})
}

func TestExport_isADiskSource(t *testing.T) {
	t.Parallel()
	changed := set(extent.Extent{Offset: 100 * kib, Length: 1}, extent.Extent{Offset: 2 * mib, Length: 200 * kib})
	d := &ram{data: make([]byte, 3*mib+512), dirty: map[string]extent.Set{"b0": changed}}
	copy(d.data[mib:], noise(100*kib, 1))
	uri := serveNBD(t, nbd.Export{Backend: d, ReadOnly: true, MultiConn: true})
	for bitmap, want := range map[string]disksource.Disk{"": {Content: d.data}, "b0": {Content: d.data, Changed: &changed, Exact: true}} {
		t.Run("bitmap "+bitmap, func(t *testing.T) {
			t.Parallel()
			disksource.Run(t, want, func(t *testing.T) disksource.Source {
				t.Helper()
				s, err := OpenSource(t.Context(), uri, SourceOptions{Bitmap: bitmap})
				if err != nil {
					t.Fatal(err)
				}
				return s
			})
		})
	}
}

func TestFile_changeOfSizeIsNoticed(t *testing.T) {
	t.Parallel()
	for _, size := range []int64{mib, 3 * mib} {
		path, _ := sparseFile(t, 2*mib, extent.Extent{Length: 2 * mib})
		s := openSource(t, path, SourceOptions{Format: Raw})
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
		wantError(t, s.ReadAt(t.Context(), make([]byte, mib), mib/2), ErrChanged, path)
		_, err := s.Data(t.Context())
		wantError(t, err, ErrChanged, path, "2097152")
	}
}

func TestFormat_isNeverGuessed(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "disk.img")
	header := append([]byte("QFI\xfb\x00\x00\x00\x03"), make([]byte, 504)...)
	if err := os.WriteFile(path, header, 0o600); err != nil {
		t.Fatal(err)
	}
	wantBytes(t, openSource(t, path, SourceOptions{}), header)
}

func TestSource_refused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	path, _ := sparseFile(t, mib)
	for _, c := range []struct {
		spec  string
		o     SourceOptions
		class error
		text  string
	}{
		{"", SourceOptions{}, errclass.Invalid, "path or an NBD URI"},
		{filepath.Join(dir, "none"), SourceOptions{}, ErrNotFound, "none"},
		{filepath.Join(dir, "none"), SourceOptions{Format: QCOW2}, ErrNotFound, "none"},
		{dir, SourceOptions{}, errclass.Invalid, "neither a file nor a block device"},
		{"/dev/null", SourceOptions{}, errclass.Invalid, "neither a file nor a block device"},
		{empty, SourceOptions{}, errclass.Invalid, "empty"},
		{"x.qcow2", SourceOptions{}, errclass.Invalid, "qcow2 or raw"},
		{"x.QCOW2", SourceOptions{}, errclass.Invalid, "qcow2 or raw"},
		{path, SourceOptions{Format: "vmdk"}, errclass.Invalid, "vmdk"},
		{path, SourceOptions{Bitmap: "b0"}, errclass.Invalid, "no bitmaps"},
		{"nbd://", SourceOptions{}, errclass.Invalid, "no host"},
		{"nbd+unix:///?socket=" + filepath.Join(dir, "s"), SourceOptions{Format: QCOW2}, errclass.Invalid, "has no format"},
		{"nbd+unix:///?socket=" + filepath.Join(dir, "s"), SourceOptions{}, os.ErrNotExist, "socket"},
		{"nbd+unix:///?socket=", SourceOptions{}, errclass.Invalid, "socket"},
	} {
		s, err := OpenSource(t.Context(), c.spec, c.o)
		if err == nil {
			t.Errorf("%s was opened", c.spec)
			err = s.Close()
		}
		wantError(t, err, c.class, c.text)
	}
}

func TestExport_isReadWithItsBitmap(t *testing.T) {
	t.Parallel()
	d := &ram{data: make([]byte, 3*mib), dirty: map[string]extent.Set{
		"b0": set(extent.Extent{Offset: 100 * kib, Length: 1}, extent.Extent{Offset: 2 * mib, Length: 200 * kib}), "b1": set(),
	}}
	copy(d.data[mib:], noise(100*kib, 1))
	for _, multi := range []bool{false, true} {
		uri := serveNBD(t, nbd.Export{Backend: d, ReadOnly: true, MultiConn: multi})
		s := openSource(t, uri, SourceOptions{Bitmap: "b0"})
		wantBytes(t, s, d.data)
		data, err := s.Data(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		changes, err := s.Changes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff("1048576+131072", listing(*data)); diff != "" {
			verdict.Errorf(t, "%s", diff)
		}
		if diff := cmp.Diff("65536+65536 2097152+262144", listing(*changes)); diff != "" {
			verdict.Errorf(t, "%s", diff)
		}
		if want, err := nbd.ParseURI(uri); err != nil || s.Identity() != want.URI() {
			t.Errorf("identity %s, want %s (%v)", s.Identity(), want.URI(), err)
		}
		if s, ok := s.(*exportSource); !ok || (s.client.Connections() > 1) != multi {
			t.Errorf("%d connections", s.client.Connections())
		}
		_, err = OpenSource(t.Context(), uri, SourceOptions{Bitmap: "b2"})
		wantError(t, err, ErrNotFound, "b2", "b0", "b1", uri)
	}
}

func TestExport_thatKnowsNothing(t *testing.T) {
	t.Parallel()
	d := plainRAM{&ram{data: noise(mib, 1)}}
	uri := serveNBD(t, nbd.Export{Backend: d})
	s := openSource(t, uri, SourceOptions{})
	wantBytes(t, s, d.d.data)
	if data, err := s.Data(t.Context()); data != nil || err != nil {
		t.Errorf("data %v, %v", data, err)
	}
	if changes, err := s.Changes(t.Context()); changes != nil || err != nil {
		t.Errorf("changes %v, %v", changes, err)
	}
	_, err := OpenSource(t.Context(), uri, SourceOptions{Bitmap: "b2"})
	wantError(t, err, ErrNotFound, "it has none")
	_, err = OpenSource(t.Context(), "nbd+unix:///other?"+uri[len("nbd+unix:///?"):], SourceOptions{})
	wantError(t, err, ErrNotFound, "other")
}

func BenchmarkReadFile(b *testing.B) {
	path := filepath.Join(b.TempDir(), "disk.img")
	if err := os.WriteFile(path, noise(8*mib, 1), 0o600); err != nil {
		b.Fatal(err)
	}
	s, err := OpenSource(b.Context(), path, SourceOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	p := make([]byte, 256*kib)
	b.SetBytes(int64(len(p)))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if err := s.ReadAt(b.Context(), p, int64(i%32)*int64(len(p))); err != nil {
			b.Fatal(err)
		}
	}
}
