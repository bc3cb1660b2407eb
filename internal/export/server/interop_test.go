//go:build nbd_interop

package server_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/exporttest"
	"github.com/varvebackup/varve/internal/export/server"
	"github.com/varvebackup/varve/test/verdict"
)

// run runs a stock client, and returns what it printed and its exit code.
func run(t *testing.T, name string, args ...string) (stdout string, code int) {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("%s is missing: install Debian's package %s (hack/deps.sh interop)", name, name)
	}
	command := exec.CommandContext(t.Context(), path, args...)
	var out, problems bytes.Buffer
	command.Stdout, command.Stderr = &out, &problems
	err = command.Run()
	if problems.Len() > 0 {
		t.Logf("%s: %s", name, problems.String())
	}
	if command.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), command.ProcessState.ExitCode()
}

func (s *site) curl(t *testing.T, path string, args ...string) (stdout string, code int) {
	t.Helper()
	return run(t, "curl", append([]string{"--silent", "--show-error", "--fail", "--cacert", s.ca, "--header", "x-kubevirt-export-token: " + token, s.url + path}, args...)...)
}

func TestCurl_readsADisk(t *testing.T) {
	t.Parallel()
	disk := exporttest.NewVolume("root", 20<<20+512, false, 1)
	s := openVolumes(t, server.Config{}, disk)
	for _, version := range []string{"--http1.1", "--http2"} {
		file := filepath.Join(t.TempDir(), "disk")
		check := func(what string, code int, want []byte) {
			t.Helper()
			got, err := os.ReadFile(file)
			if err != nil || code != 0 || !bytes.Equal(got, want) {
				verdict.JudgeErrorf(t, err == nil && code == 0, "%s, %s: exit code %d, %d bytes, %v", version, what, code, len(got), err)
			}
		}
		_, code := s.curl(t, "/exports/root/data", version, "-o", file)
		check("whole", code, disk.Content)
		_, code = s.curl(t, "/exports/root/data", version, "-r", "100-611", "-o", file)
		check("range", code, disk.Content[100:612])
		_, code = s.curl(t, "/exports/root/data?length=512", version, "-o", file)
		check("length", code, disk.Content[:512])
		if err := os.WriteFile(file, disk.Content[:7<<20+1], 0o600); err != nil {
			t.Fatal(err)
		}
		_, code = s.curl(t, "/exports/root/data", version, "-C", "-", "-o", file)
		check("resumed", code, disk.Content)
		head, code := s.curl(t, "/exports/root/data", version, "-I")
		if code != 0 || !strings.Contains(strings.ToLower(head), "accept-ranges: bytes") {
			t.Errorf("%s: head %d %s", version, code, head)
		}
		text, code := s.curl(t, "/exports/root/map", version)
		var page pageJSON
		if err := json.Unmarshal([]byte(text), &page); err != nil || code != 0 || page.Size != disk.Description.Bytes || page.Extents[0].Length == 0 {
			t.Errorf("%s: map %d %v %.200s", version, code, err, text)
		}
		if _, code = s.curl(t, "/exports/nothing/data", version); code != 22 && code != 56 {
			t.Errorf("%s: unknown volume: exit code %d", version, code)
		}
	}
}

// A body that ends early is an error for curl: 18 with HTTP/1.1, and a code for the stream with HTTP/2.
func TestCurl_noticesAShortBody(t *testing.T) {
	t.Parallel()
	s := openVolumes(t, server.Config{}, &told{chunks: []export.Chunk{chunk(0, make([]byte, 4096))}, err: errclass.Errorf(errclass.Transient, "lost")})
	for _, version := range []string{"--http1.1", "--http2"} {
		if _, code := s.curl(t, "/exports/told/data", version, "-o", filepath.Join(t.TempDir(), "disk")); code == 0 {
			t.Errorf("%s: exit code %d", version, code)
		}
	}
}

const urllibReader = `
import ssl, sys, urllib.request
url, ca, token, name = sys.argv[1:5]
def get(**headers):
    request = urllib.request.Request(url, headers={"x-kubevirt-export-token": token, **headers})
    return urllib.request.urlopen(request, context=ssl.create_default_context(cafile=ca))
half = int(get().headers["Content-Length"]) // 2
first = get(Range="bytes=0-%d" % (half - 1))
rest = get(**{"Range": "bytes=%d-" % half, "If-Range": first.headers["ETag"]})
assert first.status == rest.status == 206, (first.status, rest.status)
open(name, "wb").write(first.read() + rest.read())
`

const urllibWhole = `
import ssl, sys, urllib.request
request = urllib.request.Request(sys.argv[1], headers={"x-kubevirt-export-token": sys.argv[3]})
urllib.request.urlopen(request, context=ssl.create_default_context(cafile=sys.argv[2])).read()
`

func TestUrllib_readsADisk(t *testing.T) {
	t.Parallel()
	disk := exporttest.NewVolume("root", 10<<20+512, false, 1)
	s := openVolumes(t, server.Config{}, disk)
	file := filepath.Join(t.TempDir(), "disk")
	_, code := run(t, "python3", "-c", urllibReader, s.url+"/exports/root/data", s.ca, token, file)
	if got, err := os.ReadFile(file); err != nil || code != 0 || !bytes.Equal(got, disk.Content) {
		verdict.JudgeErrorf(t, err == nil && code == 0, "exit code %d, %d bytes, %v", code, len(got), err)
	}
	broken := openVolumes(t, server.Config{}, &told{chunks: []export.Chunk{chunk(0, make([]byte, 4096))}, err: errclass.Errorf(errclass.Transient, "lost")})
	if _, code := run(t, "python3", "-c", urllibWhole, broken.url+"/exports/told/data", broken.ca, token); code == 0 {
		t.Error("a short body is taken for a whole one")
	}
}

// documentedReader is the example of docs/api.md.
func documentedReader(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("(?s)<!-- stream reader -->\n```python\n(.*?)```").FindSubmatch(text)
	if found == nil {
		t.Fatal("docs/api.md has no example of a reader")
	}
	if lines := bytes.Count(found[1], []byte("\n")); lines > 30 {
		t.Errorf("the example has %d lines", lines)
	}
	return string(found[1])
}

func TestDocumentedReader_readsABackup(t *testing.T) {
	t.Parallel()
	reader := documentedReader(t)
	volumes := threeVolumes()
	s := openVolumes(t, server.Config{}, asVolumes(volumes)...)
	dir := t.TempDir()
	// The incremental is applied to what the disk was before.
	for name, content := range newReceived(volumes[1]).disks {
		if err := os.WriteFile(filepath.Join(dir, name+".raw"), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, code := run(t, "python3", "-c", reader, s.url+"/exports/stream", s.ca, token, dir); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	for _, v := range volumes {
		if got, err := os.ReadFile(filepath.Join(dir, v.Description.Name+".raw")); err != nil || !bytes.Equal(got, v.Content) {
			verdict.Errorf(t, "volume %s: %d bytes, %v", v.Description.Name, len(got), err)
		}
	}
	if _, code := run(t, "python3", "-c", reader, s.url+"/exports/stream", s.ca, "wrong", dir); code == 0 {
		t.Error("it ends well without the token")
	}
	wait := make(chan struct{}) // until the answer has begun
	time.AfterFunc(500*time.Millisecond, func() { close(wait) })
	damaged := chunk(0, make([]byte, 8192))
	damaged.Checksum++
	for name, volume := range map[string]*told{
		"damaged": {chunks: []export.Chunk{damaged}},
		"cut":     {chunks: []export.Chunk{chunk(0, make([]byte, 4096))}, err: errclass.Errorf(errclass.Transient, "lost"), wait: wait},
	} {
		broken := openVolumes(t, server.Config{Limits: server.Limits{Keepalive: 10 * time.Millisecond}}, volume)
		if _, code := run(t, "python3", "-c", reader, broken.url+"/exports/told/stream", broken.ca, token, t.TempDir()); code == 0 {
			t.Errorf("%s: it ends well", name)
		}
	}
}

// TestTenThousandConnections_doNotHarmAGoodClient has as many connections as descriptors allow, up to 10,000.
func TestTenThousandConnections_doNotHarmAGoodClient(t *testing.T) {
	disk := exporttest.NewVolume("root", 64<<20, false, 1)
	s := openVolumes(t, server.Config{}, disk)
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	n := min(10_000, int(files.Cur)-server.DefaultLimits.Connections-500)
	if n < 1000 {
		t.Fatalf("%d descriptors are too few: raise the limit (ulimit -n)", files.Cur)
	}
	most := make(chan uint64, 1)
	done := make(chan struct{})
	go func() {
		var seen uint64
		for {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			seen = max(seen, m.HeapInuse+m.StackInuse)
			select {
			case <-done:
				most <- seen
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	began := time.Now()
	beside(t, s, disk, n)
	close(done)
	// Server and clients are one process. The disk and what was read of it are in it as well.
	t.Logf("%d connections in %s, at most %d MiB", n, time.Since(began).Round(time.Millisecond), <-most>>20)
}
