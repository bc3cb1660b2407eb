package source_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/handover"
	"github.com/varvebackup/varve/internal/store/source"
	"github.com/varvebackup/varve/test/verdict"
	"github.com/varvebackup/varve/test/wait"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	kib = 1 << 10
	mib = 1 << 20
)

// quickClock is the system's clock, on which pauses are short.
type quickClock struct{ clock.RealClock }

// NewTimer implements clock.Clock.
func (c quickClock) NewTimer(d time.Duration) clock.Timer {
	return c.RealClock.NewTimer(min(d, time.Millisecond))
}

// newDevice makes a sparse file that is like the device of a source pod.
func newDevice(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "device")
	f, err := os.Create(path)
	if err == nil {
		err = errors.Join(f.Truncate(handover.DeviceBytes), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// image returns n bytes of a disk that has zeroes in places.
func image(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(b)
	for at := 0; at+300*kib < n; at += 700 * kib {
		clear(b[at:][:256*kib])
	}
	return b
}

// download returns the configuration of a download.
func download(url, certificate string) string {
	return handover.Source{Type: handover.TypeDownload, URL: url, CACertificate: certificate}.String()
}

// run makes the first copy of what the URL has.
func run(t *testing.T, device, url string, change ...func(*source.Options)) error {
	t.Helper()
	scratch, err := os.MkdirTemp("", "source") // The path of a socket is short.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		left, _ := os.ReadDir(scratch)
		if len(left) > 0 {
			t.Errorf("%s is left in the scratch directory", left[0].Name())
		}
		os.RemoveAll(scratch)
	})
	transport := &http.Transport{DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	o := source.Options{
		Device: device, Config: download(url, ""), Scratch: scratch,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Transport: transport, Clock: quickClock{},
	}
	for _, f := range change {
		f(&o)
	}
	return source.Run(t.Context(), o)
}

// wantImage checks what is on the device and what its record says.
func wantImage(t *testing.T, device string, want []byte) {
	t.Helper()
	f, err := os.Open(device)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	record, err := handover.Read(f)
	if err != nil {
		t.Fatal(err)
	}
	if !record.Complete || record.Bytes != int64(len(want)) {
		t.Fatalf("record %+v, want %d bytes", record, len(want))
	}
	got := make([]byte, len(want)+mib) // Behind the image, the device is empty.
	if _, err := f.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got[:len(want)], want) {
		verdict.Fatalf(t, "the device has other bytes than the image")
	}
	if len(bytes.TrimLeft(got[len(want):], "\x00")) > 0 {
		verdict.Fatalf(t, "there is data behind the image")
	}
}

// wantFailure checks the class of an error and what it says.
func wantFailure(t *testing.T, err, class error, texts ...string) {
	t.Helper()
	if !errors.Is(err, class) {
		t.Fatalf("error %v, want class %v", err, class)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%v: it does not say %q", err, text)
		}
	}
}

// server is a web server with one file, and with the faults that its fields say.
type server struct {
	content []byte
	// noRanges answers with the whole file. noTag leaves out the ETag.
	noRanges, noTag bool
	// breakEvery breaks each answer after so many bytes; 0: never.
	breakEvery int
	// breaks is how many answers break.
	breaks atomic.Int64
	// changeAfter is the request from which on the file is another one; 0: never.
	changeAfter int64
	changed     []byte
	// refuse is how many requests are answered with 503.
	refuse   int64
	requests atomic.Int64
	mu       sync.Mutex
	ranges   []string
	ifRanges []string
	// mostBytes is the largest part that is sent; 0: any.
	mostBytes int
	// breakLater breaks each answer later than the one before.
	breakLater bool
}

// ServeHTTP implements http.Handler.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	number := s.requests.Add(1)
	s.mu.Lock()
	s.ranges = append(s.ranges, r.Header.Get("Range"))
	s.ifRanges = append(s.ifRanges, r.Header.Get("If-Range"))
	s.mu.Unlock()
	if number <= s.refuse {
		http.Error(w, "later", http.StatusServiceUnavailable)
		return
	}
	content, tag := s.content, `"one"`
	if s.changeAfter > 0 && number >= s.changeAfter {
		content, tag = s.changed, `"two"`
	}
	if !s.noTag {
		w.Header().Set("ETag", tag)
	}
	if s.breakEvery > 0 && s.breaks.Add(-1) >= 0 {
		at := s.breakEvery
		if s.breakLater {
			at *= int(number)
		}
		w = &breakingWriter{w, at}
	}
	var first int
	if n, _ := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &first); n == 1 && s.mostBytes > 0 {
		r.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", first, first+s.mostBytes-1))
	}
	if s.noRanges {
		w.Header().Set("Content-Length", fmt.Sprint(len(content)))
		_, _ = w.Write(content)
		return
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
}

// breakingWriter breaks the connection after some bytes.
type breakingWriter struct {
	http.ResponseWriter
	left int
}

// Write implements io.Writer.
func (w *breakingWriter) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p[:min(len(p), w.left)])
	w.left -= n
	if err == nil && w.left == 0 {
		if f, ok := w.ResponseWriter.(http.Flusher); ok {
			f.Flush()
		}
		panic(http.ErrAbortHandler)
	}
	return n, err
}

func serve(t *testing.T, h http.Handler) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL + "/disk.img"
}

func compressed(t *testing.T, format string, content []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	var w io.WriteCloser
	var err error
	switch format {
	case "gzip":
		w = gzip.NewWriter(&out)
	case "xz":
		w, err = xz.NewWriter(&out)
	case "zstd":
		w, err = zstd.NewWriter(&out)
	}
	if err == nil {
		_, err = w.Write(content)
		err = errors.Join(err, w.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestRun_writesEveryFormat(t *testing.T) {
	t.Parallel()
	raw := image(3*mib + 1)
	for name, c := range map[string]struct{ file, want []byte }{
		"raw":              {raw, raw},
		"odd size":         {image(1_000_001), image(1_000_001)},
		"one byte":         {[]byte{1}, []byte{1}},
		"zeroes":           {make([]byte, 5*mib), make([]byte, 5*mib)},
		"gzip":             {compressed(t, "gzip", raw), raw},
		"gzip in two":      {bytes.Repeat(compressed(t, "gzip", raw), 2), bytes.Repeat(raw, 2)},
		"xz":               {compressed(t, "xz", raw), raw},
		"zstd":             {compressed(t, "zstd", raw), raw},
		"zstd in gzip":     {compressed(t, "gzip", compressed(t, "zstd", raw)), raw},
		"begins with text": {[]byte("<htm> is no page"), []byte("<htm> is no page")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			device := newDevice(t)
			if err := run(t, device, serve(t, &server{content: c.file})); err != nil {
				t.Fatal(err)
			}
			wantImage(t, device, c.want)
		})
	}
}

func TestRun_skipsZeroes(t *testing.T) {
	t.Parallel()
	device := newDevice(t)
	if err := run(t, device, serve(t, &server{content: make([]byte, 32*mib)})); err != nil {
		t.Fatal(err)
	}
	var info unix.Stat_t
	if err := unix.Stat(device, &info); err != nil {
		t.Fatal(err)
	}
	if used := info.Blocks * 512; used > mib {
		t.Errorf("the device takes %d bytes for an image of zeroes", used)
	}
}

func TestRun_refusesOtherFormats(t *testing.T) {
	t.Parallel()
	at := func(offset int, magic string) []byte {
		return append(make([]byte, offset), magic+strings.Repeat(" ", 600)...)
	}
	for name, c := range map[string]struct {
		file  []byte
		words string
	}{
		"web page":         {[]byte("\n<!DOCTYPE html><p>404"), "web page"},
		"web page in gzip": {compressed(t, "gzip", []byte("<HTML>")), "web page"},
		"VMDK":             {at(0, "KDMV"), "VMDK"},
		"VHDX":             {at(0, "vhdxfile"), "VHDX"},
		"VDI":              {at(64, "\x7f\x10\xda\xbe"), "VDI"},
		"OVA":              {at(257, "ustar"), "tar archive"},
		"bzip2":            {at(0, "BZh91AY&SY"), "bzip2"},
		"ZIP":              {at(0, "PK\x03\x04"), "ZIP"},
		"qcow":             {at(0, "QFI\xfb\x00\x00\x00\x01"), "first version of qcow"},
		"empty":            {nil, "empty"},
		"empty in gzip":    {compressed(t, "gzip", nil), "empty"},
		"damaged":          {compressed(t, "gzip", image(mib))[:mib/2], "damaged"},
		"five layers": {
			compressed(t, "gzip", compressed(t, "gzip", compressed(t, "gzip", compressed(t, "gzip", []byte("image"))))),
			"more than 3 times",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			device := newDevice(t)
			wantFailure(t, run(t, device, serve(t, &server{content: c.file})), errclass.Invalid, c.words)
		})
	}
}

func TestRun_continuesABrokenDownload(t *testing.T) {
	t.Parallel()
	content := image(5 * mib)
	s := &server{content: compressed(t, "gzip", content), breakEvery: mib, refuse: 2}
	s.breaks.Store(1 << 30)
	device := newDevice(t)
	if err := run(t, device, serve(t, s)); err != nil {
		t.Fatal(err)
	}
	wantImage(t, device, content)
	if strings.Join(s.ranges[:3], " ") != "bytes=0- bytes=0- bytes=0-" {
		t.Errorf("the first requests are for %v", s.ranges[:3])
	}
	for i, r := range s.ranges[3:] {
		if r == "bytes=0-" {
			t.Errorf("it started again from the first byte: %v", s.ranges)
		}
		if tag := s.ifRanges[3+i]; tag != `"one"` {
			t.Errorf("the request for %s has If-Range %q", r, tag)
		}
	}
}

// Some servers send less than they are asked for.
func TestRun_asksForTheRest(t *testing.T) {
	t.Parallel()
	content := image(5*mib + 1)
	device := newDevice(t)
	if err := run(t, device, serve(t, &server{content: content, mostBytes: mib})); err != nil {
		t.Fatal(err)
	}
	wantImage(t, device, content)
}

// A download that cannot be continued is tried as long as it gets further each time.
func TestRun_goesOnWithProgress(t *testing.T) {
	t.Parallel()
	s := &server{content: image(10 * mib), noRanges: true, breakEvery: mib, breakLater: true}
	s.breaks.Store(9)
	device := newDevice(t)
	if err := run(t, device, serve(t, s)); err != nil {
		t.Fatal(err)
	}
	wantImage(t, device, s.content)
}

func TestRun_startsAgain(t *testing.T) {
	t.Parallel()
	content := image(3 * mib)
	// What comes after the break has zeroes where the first attempt has written data.
	other := append(make([]byte, 2*mib), image(mib/2)...)
	for name, s := range map[string]*server{
		"no ranges":    {content: content, noRanges: true, breakEvery: 2 * mib},
		"no ETag":      {content: content, noTag: true, breakEvery: 2 * mib},
		"another file": {content: content, changeAfter: 2, changed: other, breakEvery: 2 * mib},
		"another without ETag": {
			content: content, noTag: true, changeAfter: 2, changed: image(3*mib + 9)[9:], breakEvery: 2 * mib,
		},
		"another smaller": {content: content, changeAfter: 2, changed: other[:mib+3], breakEvery: 2 * mib},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s.breaks.Store(1)
			want := s.content
			if s.changed != nil {
				want = s.changed
			}
			device := newDevice(t)
			if err := run(t, device, serve(t, s)); err != nil {
				t.Fatal(err)
			}
			wantImage(t, device, want)
		})
	}
}

func TestRun_givesUpWithoutProgress(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]*server{
		"no ranges":    {content: image(3 * mib), noRanges: true, breakEvery: mib},
		"never begins": {refuse: 1 << 30},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s.breaks.Store(1 << 30)
			err := run(t, newDevice(t), serve(t, s))
			wantFailure(t, err, errclass.Transient, "after 6 attempts")
			if n := s.requests.Load(); n != 6 {
				t.Errorf("%d requests", n)
			}
		})
	}
}

func TestRun_removesWhatAnInterruptedAttemptLeft(t *testing.T) {
	t.Parallel()
	device := newDevice(t)
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt(bytes.Repeat([]byte{0xee}, 8*mib), 0)
	if err = errors.Join(err, handover.Write(f, handover.Record{Done: 8 * mib, Total: 9 * mib}), f.Close()); err != nil {
		t.Fatal(err)
	}
	if err := run(t, device, serve(t, &server{content: image(3 * mib)})); err != nil {
		t.Fatal(err)
	}
	wantImage(t, device, image(3*mib))
}

func TestRun_hasNothingToDoForACompleteImage(t *testing.T) {
	t.Parallel()
	device := newDevice(t)
	s := &server{content: image(mib)}
	url := serve(t, s)
	for range 2 {
		if err := run(t, device, url); err != nil {
			t.Fatal(err)
		}
	}
	wantImage(t, device, s.content)
	if n := s.requests.Load(); n != 1 {
		t.Errorf("%d requests, want 1", n)
	}
}

// The store reads how far a download is while it runs.
func TestRun_recordsItsProgress(t *testing.T) {
	t.Parallel()
	content := image(4 * mib)
	device := newDevice(t)
	read := func() handover.Record {
		f, err := os.Open(device)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		record, err := handover.Read(f)
		if err != nil {
			t.Error(err)
		}
		return record
	}
	url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(len(content)))
		_, _ = w.Write(content[:3*mib])
		w.(http.Flusher).Flush()
		wait.Until(t, time.Minute, "the record", func() bool {
			return read() == handover.Record{Done: 3 * mib, Total: 4 * mib}
		})
		_, _ = w.Write(content[3*mib:])
	}))
	if err := run(t, device, url); err != nil {
		t.Fatal(err)
	}
	if got, want := read(), (handover.Record{Bytes: 4 * mib, Done: 4 * mib, Total: 4 * mib, Complete: true}); got != want {
		t.Errorf("record %+v, want %+v", got, want)
	}
}

func TestRun_classifiesAnswers(t *testing.T) {
	t.Parallel()
	for code, class := range map[int]error{
		http.StatusNotFound: errclass.NotFound, http.StatusForbidden: errclass.Denied,
		http.StatusTeapot: errclass.Invalid, http.StatusNoContent: errclass.Invalid,
	} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			t.Parallel()
			log := filepath.Join(t.TempDir(), "termination-log")
			url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }))
			err := run(t, newDevice(t), url, func(o *source.Options) { o.TerminationLog = log })
			wantFailure(t, err, class, fmt.Sprint(code))
			line, err := os.ReadFile(log)
			if err != nil || !strings.HasPrefix(string(line), errclass.Reason(class)+": get http://") ||
				strings.Count(string(line), "\n") != 1 {
				t.Errorf("termination log %q, %v", line, err)
			}
		})
	}
}

func TestRun_hidesSecrets(t *testing.T) {
	t.Parallel()
	const password, token, second = "hunter2hunter2", "signature=abc123def", "signature=second987"
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, given, _ := r.BasicAuth(); r.URL.Path == "/disk.img" && given != password {
			t.Errorf("the server did not get the password")
		}
		if r.Referer() != "" {
			t.Errorf("Referer %q", r.Referer())
		}
		switch r.URL.Path {
		case "/disk.img":
			http.Redirect(w, r, "/next?"+second, http.StatusFound)
		case "/bad":
			w.Header().Set("Location", "http://[::1/?"+second)
			w.WriteHeader(http.StatusFound)
		default:
			http.Redirect(w, r, "ftp://other.example/?"+second, http.StatusFound)
		}
	}))
	t.Cleanup(s.Close)
	for path, class := range map[string]error{"/disk.img?": errclass.Invalid, "/bad?": errclass.Transient} {
		var lines bytes.Buffer
		url := strings.Replace(s.URL, "http://", "http://user:"+password+"@", 1) + path + token
		err := run(t, newDevice(t), url, func(o *source.Options) { o.Log = slog.New(slog.NewTextHandler(&lines, nil)) })
		wantFailure(t, err, class, "get http://127.0.0.1")
		for _, secret := range []string{password, token, second} {
			if strings.Contains(err.Error()+lines.String(), secret) {
				t.Errorf("a message has the secret %s: %v\n%s", secret, err, lines.String())
			}
		}
	}
}

func TestRun_endsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	stopped := errors.New("enough")
	url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(mib))
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		cancel(stopped)
		<-r.Context().Done()
	}))
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	err := source.Run(ctx, source.Options{
		Device: newDevice(t), Config: download(url, ""), Scratch: t.TempDir(),
		Log: slog.New(slog.DiscardHandler), Transport: transport, Clock: quickClock{},
	})
	if err == nil || !strings.Contains(err.Error(), "enough") {
		t.Errorf("error %v", err)
	}
}
