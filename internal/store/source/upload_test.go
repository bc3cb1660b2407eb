package source_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/handover"
	"github.com/varvebackup/varve/internal/store/source"
	"github.com/varvebackup/varve/internal/store/upload"
	"github.com/varvebackup/varve/test/wait"
)

// pod is a source that waits for an upload.
type pod struct {
	*testing.T

	address, device string
	ended           chan error
}

func startPod(t *testing.T, change ...func(*source.Options)) *pod {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &pod{T: t, address: l.Addr().String(), device: newDevice(t), ended: make(chan error, 1)}
	change = append([]func(*source.Options){func(o *source.Options) {
		o.Config, o.Listener = handover.Source{Type: handover.TypeUpload, Image: "debian"}.String(), l
	}}, change...)
	go func() { p.ended <- run(t, p.device, "", change...) }()
	return p
}

// wants waits for the image.
func (p *pod) wants(image []byte) {
	p.Helper()
	if err := <-p.ended; err != nil {
		p.Fatal(err)
	}
	wantImage(p.T, p.device, image)
}

// records waits until the record is so.
func (p *pod) records(what string, check func(handover.Record) bool) handover.Record {
	p.Helper()
	f, err := os.Open(p.device)
	if err != nil {
		p.Fatal(err)
	}
	defer f.Close()
	var record handover.Record
	err = wait.For(p.Context(), time.Minute, what, func(context.Context) (bool, string, error) {
		record, err = handover.Read(f)
		return err == nil && check(record), "", nil
	})
	if err != nil {
		p.Fatal(err)
	}
	return record
}

// command is one that uploads a file.
type command struct {
	file *upload.File
	kill context.CancelFunc
	// end waits until it has ended.
	end func() error
	// wrap returns what takes the place of a connection, until alive ends; nil: the connection itself does.
	wrap func(alive context.Context, conn net.Conn) net.Conn

	mu    sync.Mutex
	notes []error
}

func writeFile(t *testing.T, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func (p *pod) startCommand(path string, change ...func(*command)) *command {
	p.Helper()
	file, err := upload.OpenFile(path)
	if err != nil {
		p.Fatal(err)
	}
	c := &command{file: file}
	for _, f := range change {
		f(c)
	}
	ctx, kill := context.WithCancel(p.Context())
	run := &upload.Command{
		File: file, Clock: quickClock{}, Notify: func(err error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.notes = append(c.notes, err)
		},
		Dial: func(dialing context.Context) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(dialing, "tcp", p.address)
			if err != nil {
				return nil, errclass.Errorf(errclass.Transient, "%w", err)
			}
			if c.wrap != nil {
				return c.wrap(ctx, conn), nil
			}
			return conn, nil
		},
	}
	ended := make(chan error, 1)
	go func() { ended <- errors.Join(run.Run(ctx), file.Close()) }()
	c.kill, c.end = kill, sync.OnceValue(func() error { return <-ended })
	p.Cleanup(func() {
		kill()
		_ = c.end()
	})
	return c
}

// breakAfter has each connection of a command break after so many bytes; 0: none.
func breakAfter(bytes int64) func(*command) {
	return func(c *command) {
		if bytes > 0 {
			c.wrap = func(_ context.Context, conn net.Conn) net.Conn { return &breakingConn{Conn: conn, left: bytes} }
		}
	}
}

// breakingConn breaks after some bytes were written.
type breakingConn struct {
	net.Conn

	left int64
}

// Write implements net.Conn.
func (c *breakingConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p[:min(int64(len(p)), c.left)])
	if c.left -= int64(n); c.left <= 0 && err == nil {
		err = errors.Join(io.ErrClosedPipe, c.Conn.Close())
	}
	return n, err
}

func TestUpload_writesEveryFormat(t *testing.T) {
	t.Parallel()
	raw := image(9*mib + 1)
	for name, file := range map[string][]byte{
		"raw": raw, "gzip": compressed(t, "gzip", raw), "xz": compressed(t, "xz", raw), "zstd": compressed(t, "zstd", raw),
	} {
		for kind, bytes := range map[string]int64{"at once": 0, "with broken connections": int64(len(file)/7 + 1)} {
			t.Run(name+" "+kind, func(t *testing.T) {
				t.Parallel()
				p := startPod(t)
				p.startCommand(writeFile(t, file), breakAfter(bytes))
				p.wants(raw)
			})
		}
	}
}

// The pod says of which file the image was made, also one that takes the place of a pod that had written it, and not of
// one that was replaced.
func TestUpload_saysOfWhichFile(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "log")
	said := func() handover.Result {
		text, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		return handover.ParseResult(string(text))
	}
	content := image(16 * mib)
	p := startPod(t, func(o *source.Options) { o.TerminationLog = log })
	replaced := p.startSlow(writeFile(t, bytes.Repeat([]byte("other"), 4*mib)), 8*mib)
	p.records("half of it", func(r handover.Record) bool { return r.Done > 7*mib })
	replaced.kill()
	if err := replaced.end(); err != nil {
		t.Error(err)
	}
	c := p.startCommand(writeFile(t, content))
	p.wants(content)
	want := handover.Result{File: c.file.Identity()}
	if got := said(); got != want || want.File == replaced.file.Identity() {
		t.Errorf("it says %+v, want %+v", got, want)
	}
	if err := os.Remove(log); err != nil {
		t.Fatal(err)
	}
	err := run(t, p.device, "", func(o *source.Options) {
		o.Config, o.TerminationLog = handover.Source{Type: handover.TypeUpload, Image: "debian"}.String(), log
	})
	if err != nil || said() != want {
		t.Errorf("the second pod says %+v: %v", said(), err)
	}
}

// gatedConn sends no more bytes than its command may send on all of its connections. Then it blocks until the command is
// killed.
type gatedConn struct {
	net.Conn

	left *atomic.Int64
	ctx  context.Context
}

// Write implements net.Conn.
func (c *gatedConn) Write(p []byte) (int, error) {
	if c.left.Add(-int64(len(p))) < 0 {
		<-c.ctx.Done()
		return 0, io.ErrClosedPipe
	}
	return c.Conn.Write(p)
}

// startSlow starts a command that sends about so many bytes, and then no more until it is killed.
func (p *pod) startSlow(path string, bytes int64) *command {
	p.Helper()
	left := &atomic.Int64{}
	left.Store(bytes)
	return p.startCommand(path, func(c *command) {
		c.wrap = func(alive context.Context, conn net.Conn) net.Conn { return &gatedConn{conn, left, alive} }
	})
}

// A command that is killed and started again goes on where the first one was, if it has the same file.
func TestUpload_continues(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		other     bool
		continues bool
	}{"the same file": {false, true}, "another file": {true, false}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			content := image(16 * mib)
			path := writeFile(t, content)
			p := startPod(t)
			first := p.startSlow(path, 8*mib)
			before := p.records("half of it", func(r handover.Record) bool { return r.Done > 7*mib })
			if before.Waits || before.Total != 16*mib {
				t.Errorf("record %+v while it is uploaded", before)
			}
			first.kill()
			if err := first.end(); err != nil {
				t.Error(err)
			}
			p.records("nobody is there", func(r handover.Record) bool { return r.Waits && r.Done > 7*mib })
			if c.other {
				content = image(17 * mib)
				slices.Reverse(content)
				path = writeFile(t, content)
			}
			second := p.startCommand(path)
			p.wants(content)
			begin := second.file.HowItBegan()
			if begin.Continues != c.continues || begin.Replaces != c.other || c.continues && begin.At < 7*mib {
				t.Errorf("it began with %+v", begin)
			}
		})
	}
}

// A second command waits for the first one to end, and is told.
func TestUpload_servesOneCommandAtATime(t *testing.T) {
	t.Parallel()
	content := image(16 * mib)
	path := writeFile(t, content)
	p := startPod(t)
	first := p.startSlow(path, 8*mib)
	p.records("half of it", func(r handover.Record) bool { return r.Done > 7*mib })
	other := bytes.Repeat([]byte("other"), mib)
	second := p.startCommand(writeFile(t, other))
	err := wait.For(t.Context(), time.Minute, "the second command is told", func(context.Context) (bool, string, error) {
		second.mu.Lock()
		defer second.mu.Unlock()
		return len(second.notes) > 0 && errors.Is(second.notes[0], upload.ErrBusy), "", nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if begin := second.file.HowItBegan(); begin.Asked {
		t.Errorf("the second command was asked for its file: %+v", begin)
	}
	first.kill()
	_ = first.end()
	p.wants(other)
	if begin := second.file.HowItBegan(); !begin.Replaces {
		t.Errorf("it began with %+v", begin)
	}
}

// A file that changes while it is uploaded never becomes an image, and the command says so.
func TestUpload_refusesAFileThatChanges(t *testing.T) {
	t.Parallel()
	path := writeFile(t, image(16*mib))
	p := startPod(t)
	first := p.startSlow(path, 8*mib)
	p.records("half of it", func(r handover.Record) bool { return r.Done > 7*mib })
	first.kill()
	_ = first.end()
	second := p.startSlow(path, mib)
	p.records("more of it", func(r handover.Record) bool { return r.Done > 8*mib })
	changed := image(16 * mib)
	slices.Reverse(changed)
	if err := os.WriteFile(path, changed, 0o600); err != nil {
		t.Fatal(err)
	}
	second.kill()
	_ = second.end()
	third := p.startCommand(path)
	p.wants(changed)
	if begin := third.file.HowItBegan(); !begin.Replaces {
		t.Errorf("it began with %+v", begin)
	}
}

// hourClock is a clock whose hours pass when it is told to.
type hourClock struct{ *clocktesting.FakeClock }

// NewTimer implements clock.Clock.
func (c *hourClock) NewTimer(d time.Duration) clock.Timer {
	if d < time.Minute {
		return clock.RealClock{}.NewTimer(time.Millisecond)
	}
	return c.FakeClock.NewTimer(d)
}

// NewTicker implements clock.WithTicker.
func (*hourClock) NewTicker(time.Duration) clock.Ticker {
	return clock.RealClock{}.NewTicker(10 * time.Millisecond)
}

func TestUpload_endsWhenNobodyComes(t *testing.T) {
	t.Parallel()
	for name, sent := range map[string]int64{"at all": 0, "again": 8 * mib} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := &hourClock{clocktesting.NewFakeClock(time.Unix(1_000_000, 0))}
			p := startPod(t, func(o *source.Options) { o.Clock = fake })
			if sent > 0 {
				c := p.startSlow(writeFile(t, image(16*mib)), sent)
				p.records("half of it", func(r handover.Record) bool { return r.Done > 7*mib })
				fake.Step(2 * upload.Patience) // It was busy with other things, and nobody has waited.
				c.kill()
				_ = c.end()
			}
			p.records("it waits", func(r handover.Record) bool { return r.Waits })
			step := func(d time.Duration) {
				if err := wait.For(t.Context(), time.Minute, "a timer", func(context.Context) (bool, string, error) {
					return fake.HasWaiters(), "", nil
				}); err != nil {
					t.Fatal(err)
				}
				fake.Step(d)
			}
			step(upload.Patience - time.Second)
			select {
			case err := <-p.ended:
				t.Fatalf("it ended too early: %v", err)
			default:
			}
			step(2 * time.Second)
			wantFailure(t, <-p.ended, errclass.Expired, "nobody has uploaded the image for 1h0m0s",
				"varve image upload debian FILE")
		})
	}
}

// What is no command of Varve is not spoken to, and is not waited for.
func TestUpload_ignoresStrangers(t *testing.T) {
	t.Parallel()
	p := startPod(t)
	for _, text := range []string{"", "GET / HTTP/1.1\r\n\r\n", "varve-upload 1 ../..\n", string(make([]byte, 1000))} {
		conn, err := net.Dial("tcp", p.address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if text == "" {
			continue // It says nothing.
		}
		_, _ = io.WriteString(conn, text)
		if got, err := io.ReadAll(conn); len(got) > 0 {
			t.Errorf("the answer to %q is %q, %v", text, got, err)
		}
	}
	content := image(mib)
	p.startCommand(writeFile(t, content))
	p.wants(content)
}

// A user may change their mind about the file as often as they like: that is no failure of the upload.
func TestUpload_takesManyFiles(t *testing.T) {
	t.Parallel()
	p := startPod(t)
	for i := range 12 {
		content := image(16 * mib)
		content[0] = byte(i)
		// None gets further than the first one.
		bytes := int64(9 * mib)
		if i == 0 {
			bytes = 14 * mib
		}
		c := p.startSlow(writeFile(t, content), bytes)
		if i == 0 {
			p.records("most of it", func(r handover.Record) bool { return r.Done > 11*mib })
		}
		err := wait.For(t.Context(), time.Minute, "the file is asked for", func(context.Context) (bool, string, error) {
			return c.file.Position() > 0, "", nil
		})
		if err != nil {
			t.Fatal(err)
		}
		c.kill()
		_ = c.end()
		p.records("nobody is there", func(r handover.Record) bool { return r.Waits })
	}
	content := image(mib)
	p.startCommand(writeFile(t, content))
	p.wants(content)
}

// The time in which nobody is connected is no silence of a server: the pod does not try again and again.
func TestUpload_waitsQuietly(t *testing.T) {
	t.Parallel()
	fake := &hourClock{clocktesting.NewFakeClock(time.Unix(1_000_000, 0))}
	var said bytes.Buffer
	p := startPod(t, func(o *source.Options) {
		o.Clock, o.Log = fake, slog.New(slog.NewTextHandler(&said, nil))
	})
	p.records("it waits", func(r handover.Record) bool { return r.Waits })
	for range 10 {
		if err := wait.For(t.Context(), time.Minute, "a timer", func(context.Context) (bool, string, error) {
			return fake.HasWaiters(), "", nil
		}); err != nil {
			t.Fatal(err)
		}
		fake.Step(time.Minute)
	}
	content := image(mib)
	p.startCommand(writeFile(t, content))
	p.wants(content)
	if strings.Contains(said.String(), "will be continued") {
		t.Errorf("it did not wait quietly:\n%s", said.String())
	}
}
