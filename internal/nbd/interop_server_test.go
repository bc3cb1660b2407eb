//go:build nbd_interop

package nbd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/authority"
	"github.com/varvebackup/varve/test/verdict"
)

// served starts our server with a disk that has the raw image's content.
func served(t *testing.T, s *Server) (Target, *memDisk) {
	t.Helper()
	_, content := rawImage(t)
	d := newMemDisk(imageBytes)
	for _, e := range imageData {
		copy(d.data[e.Offset:e.End()], content[e.Offset:e.End()])
		d.touch(e, false)
	}
	s.Exports = exportMap{"disk": {Backend: d, MultiConn: true, Description: "of a test"}}
	target := serve(t, s)
	target.Export = "disk"
	return target, d
}

func TestServer_answersNbdinfo(t *testing.T) {
	t.Parallel()
	target, d := served(t, &Server{})
	var said struct {
		Protocol   string
		Structured bool
		Exports    []map[string]any
	}
	out := run(t, "nbdinfo", "--list", "--json", target.URI())
	if err := json.Unmarshal(out, &said); err != nil || len(said.Exports) != 1 || !said.Structured || said.Protocol != "newstyle-fixed" {
		t.Fatalf("%v in %s", err, out)
	}
	want := map[string]any{
		"export-name": "disk", "description": "of a test", "export-size": float64(imageBytes), "is_read_only": false, "is_rotational": false,
		"can_cache": true, "can_df": true, "can_fast_zero": true, "can_flush": true, "can_fua": true, "can_multi_conn": true, "can_trim": true, "can_zero": true,
		"block_size_minimum": 1.0, "block_size_preferred": 4096.0, "block_size_maximum": float64(32 << 20),
		"contexts": []any{ContextAllocation, b0Context, "x-varve:units"},
	}
	got := said.Exports[0]
	for key := range got {
		if _, ok := want[key]; !ok {
			delete(got, key)
		}
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	c := open1(t, target, Options{Contexts: d.contexts})
	for name, ours := range ourMaps(t, c) {
		if diff := gocmp.Diff(nbdinfoMap(t, target.URI(), name), ours); diff != "" {
			verdict.Errorf(t, "%s: %s", name, diff)
		}
	}
}

func TestServer_servesNbdcopy(t *testing.T) {
	t.Parallel()
	for name, options := range map[string][]string{
		"many connections": {"-C", "8", "-T", "4", "-R", "64", "--flush"}, "one": {"-C", "1", "-R", "1"}, "synchronous": {"--synchronous"},
		"small": {"--request-size=4096", "-C", "4"}, "allocated": {"--allocated"}, "large": {"--request-size=33554432", "--sparse=0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			from, source := served(t, &Server{})
			same(t, nbdcopyOut(t, from.URI(), options...), source.content())
			to, target := served(t, &Server{Limits: Limits{Workers: 3}})
			target.soil(99)
			run(t, "nbdcopy", append(options, from.URI(), to.URI())...)
			same(t, target.content(), source.content())
		})
	}
}

func TestServer_servesQemuImg(t *testing.T) {
	t.Parallel()
	for name, tool := range map[string][]string{"qemu-img": {program(t, "qemu-img")}, "qemu-img 10": fromLauncher(t, "qemu-img")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			img := func(args ...string) []byte {
				t.Helper()
				out, err := runLine(t, append(tool, args...)...)
				if err != nil {
					t.Fatal(err)
				}
				return out
			}
			from, source := served(t, &Server{})
			to, target := served(t, &Server{})
			target.soil(5)
			file := filepath.Join(t.TempDir(), "out.qcow2")
			img("convert", "-f", "raw", "-O", "qcow2", from.URI(), file)
			compare(t, append(tool, "compare", "-f", "raw", "-F", "qcow2", from.URI(), file)...)
			img("convert", "-n", "-W", "-m", "16", "-f", "qcow2", "-O", "raw", file, to.URI())
			same(t, target.content(), source.content())
			compare(t, append(tool, "compare", "-f", "raw", "-F", "raw", from.URI(), to.URI())...)
			var said []struct {
				Start, Length int64
				Data          bool
			}
			if err := json.Unmarshal(img("map", "-f", "raw", "--output=json", from.URI()), &said); err != nil {
				t.Fatal(err)
			}
			var data extent.Set
			for _, m := range said {
				if m.Data {
					data.Append(extent.Extent{Offset: m.Start, Length: m.Length})
				}
			}
			if want := extent.NewSet(imageData...); !gocmp.Equal(data, want, gocmp.AllowUnexported(want)) {
				verdict.Errorf(t, "map: %v, want %v", data, want)
			}
			// A differing byte is found.
			target.mu.Lock()
			target.data[imageBytes-1] ^= 1
			target.mu.Unlock()
			if _, err := runLine(t, append(tool, "compare", "-f", "raw", "-F", "raw", from.URI(), to.URI())...); err == nil {
				t.Error("compare finds no difference")
			}
		})
	}
}

// compare runs qemu-img compare.
func compare(t *testing.T, line ...string) {
	t.Helper()
	if _, err := runLine(t, line...); err != nil {
		verdict.JudgeFatalf(t, verdict.Differ(err), "%v", err)
	}
}

func TestServer_servesQemuIo(t *testing.T) {
	t.Parallel()
	for name, tool := range map[string][]string{"qemu-io": {program(t, "qemu-io")}, "qemu-io 10": fromLauncher(t, "qemu-io")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target, d := served(t, &Server{})
			args := append(slices.Clone(tool), "-f", "raw", "-d", "unmap")
			for _, c := range []string{
				"write -P 0x5a 1000000 300001", "write -f -P 0x5b 0 512", "write -z -u 2097152 65536", "write -z 3000000 1000",
				"discard 5242880 65536", "flush", "read -P 0x5a 1000000 300001", "aio_write -P 0x77 8388608 1048576", "aio_flush",
			} {
				args = append(args, "-c", c)
			}
			out, err := runLine(t, append(args, target.URI())...)
			if err != nil || strings.Contains(string(out), "error") || strings.Contains(string(out), "failed") {
				verdict.JudgeFatalf(t, strings.Contains(string(out), "Pattern verification failed"), "%v\n%s", err, out)
			}
			content := d.content()
			for _, check := range []struct {
				e    extent.Extent
				byte byte
			}{
				{extent.Extent{Offset: 1000000, Length: 300001}, 0x5a},
				{extent.Extent{Length: 512}, 0x5b},
				{extent.Extent{Offset: 2097152, Length: 65536}, 0},
				{extent.Extent{Offset: 3000000, Length: 1000}, 0},
				{extent.Extent{Offset: 8388608, Length: 1 << 20}, 0x77},
			} {
				if part := content[check.e.Offset:check.e.End()]; slices.ContainsFunc(part, func(b byte) bool { return b != check.byte }) {
					verdict.Errorf(t, "%v is not %#x", check.e, check.byte)
				}
			}
			d.mu.RLock()
			defer d.mu.RUnlock()
			if d.flushes == 0 || d.trims == 0 {
				t.Errorf("%d flushes, %d trims", d.flushes, d.trims)
			}
		})
	}
}

func TestServer_errorsReachOtherClients(t *testing.T) {
	t.Parallel()
	_, content := rawImage(t)
	d := newMemDisk(imageBytes)
	copy(d.data, content)
	d.touch(extent.Extent{Length: imageBytes}, false)
	full := serveDisk(t, failing{plainDisk{d}})
	for _, check := range []struct{ command, words string }{
		{"write 0 4096", "No space left on device"}, {"read 1048576 4096", "Input/output error"}, {"write -z 0 4096", "No space left on device"},
	} {
		out, err := runLine(t, program(t, "qemu-io"), "-f", "raw", "-c", check.command, full.URI())
		if !strings.Contains(string(out)+fmt.Sprint(err), check.words) {
			t.Errorf("%s: %s %v", check.command, out, err)
		}
	}
	none := full
	none.Export = "none"
	if out, err := tryRun(t, "nbdinfo", none.URI()); err == nil {
		t.Errorf("an export that is not there: %s", out)
	}
	readOnly := serve(t, &Server{Exports: exportMap{"": {Backend: d, ReadOnly: true}}})
	if out, err := runLine(t, program(t, "qemu-io"), "-f", "raw", "-c", "write 0 512", readOnly.URI()); err == nil {
		t.Errorf("a read-only export is written: %s", out)
	}
}

// failing has no space, and can read only its first 64 KiB.
type failing struct{ plainDisk }

func (f failing) ReadAt(ctx context.Context, p []byte, offset int64) error {
	if offset >= 64<<10 {
		return errors.New("a bad place")
	}
	return f.plainDisk.ReadAt(ctx, p, offset)
}
func (f failing) WriteAt(context.Context, []byte, int64) error { return unix.EFBIG }
func (f failing) Flush(context.Context) error                  { return nil }

func TestServer_tlsWithOtherClients(t *testing.T) {
	t.Parallel()
	a := authority.New(t)
	dir := a.Files(t)
	target, d := served(t, &Server{TLS: a.Server})
	uri := target.URI() + "&tls-certificates=" + dir + "&tls-hostname=localhost"
	same(t, nbdcopyOut(t, uri, "-C", "4"), d.content())
	plain := target
	plain.TLS = false
	if out, err := tryRun(t, "nbdcopy", plain.URI(), "null:"); err == nil {
		t.Errorf("plaintext: %s", out)
	}
	file := filepath.Join(t.TempDir(), "copy")
	creds := "tls-creds-x509,id=t,endpoint=client,dir=" + dir
	image := "driver=nbd,server.type=unix,server.path=" + target.Address + ",export=disk,tls-creds=t,tls-hostname=localhost"
	run(t, "qemu-img", "convert", "--object", creds, "--image-opts", image, "-O", "raw", file)
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	same(t, got, d.content())
	stranger := authority.New(t).Files(t)
	if out, err := tryRun(t, "nbdinfo", target.URI()+"&tls-certificates="+stranger+"&tls-hostname=localhost"); err == nil {
		t.Errorf("a stranger: %s", out)
	}
}
