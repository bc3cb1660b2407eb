//go:build nbd_interop

package source_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/handover"
)

// qcow2 returns a disk as a qcow2 image.
func qcow2(t *testing.T, content []byte, options ...string) []byte {
	t.Helper()
	dir := t.TempDir()
	from, to := filepath.Join(dir, "raw"), filepath.Join(dir, "qcow2")
	if err := os.WriteFile(from, content, 0o600); err != nil {
		t.Fatal(err)
	}
	qemuImg(t, append(append([]string{"convert", "-f", "raw", "-O", "qcow2"}, options...), from, to)...)
	image, err := os.ReadFile(to)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

func qemuImg(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(context.Background(), "qemu-img", args...).CombinedOutput(); err != nil {
		t.Fatalf("qemu-img %v (Debian's package qemu-utils, hack/deps.sh interop): %v\n%s", args, err, out)
	}
}

func TestConvert(t *testing.T) {
	t.Parallel()
	content := image(40 * mib)
	plain := qcow2(t, content)
	other := append(make([]byte, 30*mib), image(2*mib)...)
	for name, c := range map[string]struct {
		server *server
		breaks int64
		want   []byte
	}{
		"over ranges":      {&server{content: plain}, 0, content},
		"compressed in it": {&server{content: qcow2(t, content, "-c")}, 0, content},
		"small clusters":   {&server{content: qcow2(t, content, "-o", "cluster_size=4096")}, 0, content},
		"version 2":        {&server{content: qcow2(t, content, "-o", "compat=0.10")}, 0, content},
		"in gzip":          {&server{content: compressed(t, "gzip", plain)}, 0, content},
		"in xz":            {&server{content: compressed(t, "xz", qcow2(t, content[:mib]))}, 0, content[:mib]},
		"no ranges":        {&server{content: plain, noRanges: true}, 0, content},
		"broken ranges":    {&server{content: plain, breakEvery: mib / 2}, 1 << 30, content},
		"broken, stored":   {&server{content: plain, noRanges: true, breakEvery: mib}, 2, content},
		"another file":     {&server{content: plain, changeAfter: 8, changed: qcow2(t, other)}, 0, other},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.server.breaks.Store(c.breaks)
			if c.breaks == 0 {
				c.server.breakEvery = 0
			}
			device := newDevice(t)
			if err := run(t, device, serve(t, c.server)); err != nil {
				t.Fatal(err)
			}
			wantImage(t, device, c.want)
			f, err := os.Open(device)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			data, err := f.Seek(int64(len(c.want)), unix.SEEK_DATA)
			if err != nil || data != handover.DeviceBytes-handover.BlockBytes {
				t.Errorf("something is left on the device at %d: %v", data, err)
			}
		})
	}
}

// Small holes of an image are filled, because each would make an extent of the disk.
func TestConvert_writesSmallHoles(t *testing.T) {
	t.Parallel()
	content := bytes.Repeat([]byte("0123456789abcdef"), 2*mib/16)
	for at := 0; at < mib; at += 8 * kib {
		clear(content[at:][:4*kib])
	}
	clear(content[mib:][:512*kib]) // which stays a hole
	device := newDevice(t)
	if err := run(t, device, serve(t, &server{content: qcow2(t, content)})); err != nil {
		t.Fatal(err)
	}
	wantImage(t, device, content)
	f, err := os.Open(device)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	hole, err := f.Seek(0, unix.SEEK_HOLE)
	if err != nil || hole < mib {
		t.Errorf("a hole at %d: %v", hole, err)
	}
	if data, err := f.Seek(mib, unix.SEEK_DATA); err != nil || data != mib+512*kib {
		t.Errorf("data at %d: %v", data, err)
	}
}

// The header of an image may name files of this host, or of the pod.
func TestConvert_refusesOtherFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	backed := filepath.Join(dir, "backed")
	qemuImg(t, "create", "-q", "-f", "qcow2", "-b", "/etc/passwd", "-F", "raw", backed)
	data := filepath.Join(dir, "data")
	option := "data_file=" + filepath.Join(dir, "outside") + ",data_file_raw=on"
	qemuImg(t, "create", "-q", "-f", "qcow2", "-o", option, data, "1M")
	for name, c := range map[string]struct{ path, words string }{
		"backing file": {backed, "backing file"}, "data file": {data, "data in another file"},
	} {
		content, err := os.ReadFile(c.path)
		if err != nil {
			t.Fatal(err)
		}
		for way, noRanges := range map[string]bool{"ranges": false, "stored": true} {
			t.Run(name+" "+way, func(t *testing.T) {
				t.Parallel()
				err := run(t, newDevice(t), serve(t, &server{content: content, noRanges: noRanges}))
				wantFailure(t, err, errclass.Invalid, c.words)
			})
		}
	}
}

func TestConvert_refusesADamagedImage(t *testing.T) {
	t.Parallel()
	whole := qcow2(t, image(40*mib))
	for name, content := range map[string][]byte{
		"cut off": whole[:len(whole)/2], "compressed and cut off": compressed(t, "gzip", whole[:len(whole)/2]),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wantFailure(t, run(t, newDevice(t), serve(t, &server{content: content})), errclass.Invalid, "damaged")
		})
	}
}

// A server may send another header when it is asked again.
func TestConvert_usesTheHeaderThatItHasChecked(t *testing.T) {
	t.Parallel()
	content := image(40 * mib)
	good := qcow2(t, content)
	evil := bytes.Clone(good)
	const name = "/etc/passwd"
	binary.BigEndian.PutUint64(evil[8:], 1024)
	binary.BigEndian.PutUint32(evil[16:], uint32(len(name)))
	copy(evil[1024:], name)
	first := &server{content: good}
	second := &server{content: evil}
	url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if first.requests.Load() < 2 { // the format, and the header
			first.ServeHTTP(w, r)
			return
		}
		second.ServeHTTP(w, r)
	}))
	device := newDevice(t)
	if err := run(t, device, url); err != nil {
		t.Fatal(err)
	}
	wantImage(t, device, content)
}

// A qcow2 image is read in pieces on all connections, and goes on in another run of the command.
func TestUpload_convertsQCOW2(t *testing.T) {
	t.Parallel()
	content := image(40 * mib)
	plain := qcow2(t, content)
	for name, c := range map[string]struct {
		bytes int64
		slow  bool
	}{"at once": {}, "with broken connections": {3*mib + 1, false}, "in two runs": {0, true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := writeFile(t, plain)
			p := startPod(t)
			if c.slow {
				first := p.startSlow(path, 20*mib)
				p.records("half of it", func(r handover.Record) bool { return r.Done > 8*mib })
				first.kill()
				if err := first.end(); err != nil {
					t.Error(err)
				}
				p.records("nobody is there", func(r handover.Record) bool { return r.Waits && r.Done > 8*mib })
			}
			second := p.startCommand(path, breakAfter(c.bytes))
			p.wants(content)
			if begin := second.file.HowItBegan(); begin.Continues != c.slow || begin.Replaces {
				t.Errorf("it began with %+v", begin)
			}
		})
	}
}

// Another qcow2 image in the place of one that was uploaded in part begins anew.
func TestUpload_startsAgainWithAnotherQCOW2(t *testing.T) {
	t.Parallel()
	content, other := image(40*mib), image(30*mib)
	slices.Reverse(other)
	p := startPod(t)
	first := p.startSlow(writeFile(t, qcow2(t, content)), 20*mib)
	p.records("half of it", func(r handover.Record) bool { return r.Done > 8*mib })
	first.kill()
	_ = first.end()
	second := p.startCommand(writeFile(t, qcow2(t, other)))
	p.wants(other)
	if begin := second.file.HowItBegan(); !begin.Replaces {
		t.Errorf("it began with %+v", begin)
	}
}
