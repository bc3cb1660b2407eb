package nbd

import (
	"bytes"
	"context"
	"errors"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/authority"
)

func TestListAndInspect(t *testing.T) {
	t.Parallel()
	a := authority.New(t)
	d := newMemDisk(64 << 10)
	for _, s := range []*Server{{}, {TLS: a.Server}} {
		s.Exports = exportMap{"a": {Backend: d, Description: "first", Block: BlockSizes{Minimum: 512, Preferred: 8192}}, "b": {Backend: plainDisk{d}}, "locked": {}}
		target := serve(t, s)
		o := Options{TLS: a.Client}
		if s.TLS == nil {
			o.TLS = nil
		}
		list, err := List(testContext(t), target, o)
		slices.SortFunc(list, func(a, b ListedExport) int { return strings.Compare(a.Name, b.Name) })
		if err != nil || !slices.Equal(list, []ListedExport{{"a", "first"}, {"b", ""}, {"locked", ""}}) {
			t.Errorf("%v, %v", list, err)
		}
		target.Export = "a"
		info, err := Inspect(testContext(t), target, o)
		if err != nil || info.Name != "a" || info.Description != "first" || info.Bytes != 64<<10 || info.Block != (BlockSizes{512, 8192, 32 << 20}) ||
			!info.Flags.Has(FlagSendTrim|FlagSendDF|FlagSendCache) || info.Flags.Has(FlagReadOnly) || !slices.Equal(info.Contexts, d.contexts) {
			t.Errorf("%+v, %v", info, err)
		}
		target.Export = "b"
		if info, err := Inspect(testContext(t), target, o); err != nil || !info.Flags.Has(FlagReadOnly) || info.Flags.Has(FlagSendTrim) || len(info.Contexts) > 0 {
			t.Errorf("%+v, %v", info, err)
		}
		target.Export = "locked"
		var refusal *OptionError
		if _, err := Inspect(testContext(t), target, o); !errors.As(err, &refusal) || refusal.Reply != repErrPolicy || errors.Is(err, ErrUnknownExport) {
			t.Errorf("%v", err)
		}
	}
	target := serve(t, &Server{Exports: exportMap{"unlistable": {}}})
	if _, err := List(testContext(t), target, Options{}); err == nil || !strings.Contains(err.Error(), "LIST") {
		t.Errorf("%v", err)
	}
}

// TestClient_oneExportOnAllConnections: a server that serves something else on its second connection is refused.
func TestClient_oneExportOnAllConnections(t *testing.T) {
	t.Parallel()
	n := 0
	servers := []*Server{
		{Exports: exportMap{"": {Backend: newMemDisk(8192), MultiConn: true}}}, {Exports: exportMap{"": {Backend: newMemDisk(4096), MultiConn: true}}},
	}
	ended := make(chan error, 2)
	_, err := Dial(testContext(t), Target{}, Options{Connections: 2, Dial: func(ctx context.Context) (net.Conn, error) {
		ours, theirs := net.Pipe()
		s := servers[n]
		n++
		go func() { ended <- s.ServeConn(context.WithoutCancel(ctx), theirs) }()
		return ours, nil
	}})
	if !errors.Is(err, ErrProtocol) {
		t.Errorf("%v", err)
	}
	for range 2 {
		<-ended
	}
	alone := serve(t, &Server{Exports: exportMap{"": {Backend: newMemDisk(8192)}}})
	if c := open1(t, alone, Options{Connections: 3}); c.Connections() != 1 {
		t.Errorf("%d connections to a server that does not announce it", c.Connections())
	}
}

func TestErrors_inWords(t *testing.T) {
	t.Parallel()
	e := &Error{Op: cmdWrite.String(), Extent: extent.Extent{Offset: 5, Length: 6}, Errno: unix.ENOSPC, Message: "full", Offset: 7}
	if got, want := e.Error(), "nbd: write 5+6: no space left on device at 7: full"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	for _, o := range []struct {
		e    OptionError
		want string
	}{
		{OptionError{Option: optGo, Reply: repErrUnknown}, "nbd: server refused option GO: no such export"},
		{OptionError{Option: 99, Reply: repErr | 77, Message: "why"}, "nbd: server refused option 99: error 0x8000004d: why"},
	} {
		if got := o.e.Error(); got != o.want {
			t.Errorf("%q, want %q", got, o.want)
		}
	}
	for err, want := range map[error]uint32{
		unix.EROFS: 1, unix.EDQUOT: 28, unix.ENOENT: 5, unix.ENOTSUP: 95, context.Canceled: 108, errors.New("x"): 5, &Error{Errno: unix.EOVERFLOW}: 75,
	} {
		if got := errnoToWire(err); got != want {
			t.Errorf("%v is %d on the wire, want %d", err, got, want)
		}
	}
}

// TestCancel_whileQueued: a request that is given up before it is sent is never sent.
func TestCancel_whileQueued(t *testing.T) {
	t.Parallel()
	const h = structuredHeaders
	stuck, goOn := make(chan struct{}), make(chan struct{})
	var seen []request
	c, err := dialScript(t, Options{}, func(nc net.Conn) {
		scriptHandshake(nc, h)
		first := expectRequest(nc, h)
		expect(nc, 1)
		close(stuck)
		<-goOn
		expect(nc, int(first.length)-1)
		nc.Write(chunk(h, first, replyNone, true, nil))
		for range 2 {
			r := expectRequest(nc, h)
			seen = append(seen, r)
			nc.Write(chunk(h, r, replyNone, true, nil))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	written := make(chan error, 1)
	payload := bytes.Repeat([]byte{1}, 64<<10)
	go func() { written <- c.WriteAt(testContext(t), payload, 0, 0) }()
	<-stuck // the writer is busy
	ctx, cancel := context.WithCancel(testContext(t))
	trimmed := make(chan error, 1)
	go func() { trimmed <- c.Trim(ctx, extent.Extent{Length: 512}, 0) }()
	for len(c.conns[0].queue) == 0 {
		runtime.Gosched()
	}
	cancel()
	if err := <-trimmed; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	close(goOn)
	if err := <-written; err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := c.Flush(testContext(t)); err != nil {
			t.Error(err)
		}
	}
	if len(c.free) != slotsPerConnection || slices.ContainsFunc(seen, func(r request) bool { return r.cmd != cmdFlush }) {
		t.Errorf("%d slots are free; the server saw %v", len(c.free), seen)
	}
}
