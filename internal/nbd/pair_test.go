package nbd

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/verdict"
)

// framings are the three that a client and a server can agree on. Each test of a pair runs with all of them.
var framings = map[string]headers{"simple": simpleHeaders, "structured": structuredHeaders, "extended": extendedHeaders}

func eachFraming(t *testing.T, test func(t *testing.T, o Options)) {
	t.Helper()
	for name, h := range framings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, Options{most: &h})
		})
	}
}

func TestServer_readsWhatWasWritten(t *testing.T) {
	t.Parallel()
	eachFraming(t, func(t *testing.T, o Options) {
		d := newMemDisk(5<<20 + 100)
		o.Connections = 3
		c := open1(t, serveDisk(t, d), o)
		if c.Connections() != 3 || c.Info().Bytes != d.Size() || c.conns[0].headers != *o.most {
			t.Fatalf("%d connections, %+v", c.Connections(), c.Info())
		}
		ctx := testContext(t)
		want := pattern(len(d.data), 1)
		if err := c.WriteAt(ctx, want, 0, 0); err != nil {
			t.Fatal(err)
		}
		same(t, d.data, want)
		got := make([]byte, len(want)-77)
		if err := c.ReadAt(ctx, got, 77); err != nil {
			t.Fatal(err)
		}
		same(t, got, want[77:])
		zeroed := extent.Extent{Offset: 1000, Length: 3 << 20}
		if err := c.WriteZeroes(ctx, zeroed, CmdFlagFUA|CmdFlagFastZero); err != nil {
			t.Fatal(err)
		}
		clear(want[zeroed.Offset:zeroed.End()])
		if d.flushes == 0 {
			t.Error("FUA did not flush")
		}
		if err := c.ReadAt(ctx, got, 77); err != nil {
			t.Fatal(err)
		}
		same(t, got, want[77:])
		if err := c.Trim(ctx, extent.Extent{Offset: 0, Length: 512}, 0); err != nil || d.trims != 1 {
			t.Errorf("trim: %v, %d", err, d.trims)
		}
		before := d.flushes
		if err := c.Flush(ctx); err != nil || d.flushes != before+1 {
			t.Errorf("flush: %v, %d", err, d.flushes)
		}
		if err := c.Cache(ctx, extent.Extent{Offset: 512, Length: 4 << 20}); err != nil || d.cached.Bytes() != 4<<20 {
			t.Errorf("cache: %v, %d", err, d.cached.Bytes())
		}
		if err := c.Disconnect(ctx); err != nil {
			t.Error(err)
		}
		if err := c.ReadAt(ctx, got, 0); !errors.Is(err, ErrClosed) {
			t.Errorf("after the goodbye: %v", err)
		}
	})
}

// TestServer_anyRequests compares a served disk with a plain slice and plain flags.
func TestServer_anyRequests(t *testing.T) {
	t.Parallel()
	eachFraming(t, func(t *testing.T, o Options) {
		const size = 40*unit + 13
		d := newMemDisk(size)
		o.Contexts = d.contexts
		o.MaxInFlightBytes = 3000
		c := open1(t, serveDisk(t, d), o)
		ctx := testContext(t)
		model := make([]byte, size)
		rapid.Check(t, func(r *rapid.T) {
			for range rapid.IntRange(1, 10).Draw(r, "requests") {
				at := rapid.Int64Range(0, size-1).Draw(r, "offset")
				e := extent.Extent{Offset: at, Length: rapid.Int64Range(1, size-at).Draw(r, "length")}
				var err error
				switch kind := rapid.SampledFrom([]string{"read", "write", "zero", "no hole", "trim", "status"}).Draw(r, "request"); kind {
				case "read":
					p := bytes.Repeat([]byte{0xee}, int(e.Length))
					if err = c.ReadAt(ctx, p, at); !bytes.Equal(p, model[at:e.End()]) {
						verdict.JudgeFatalf(r, err == nil, "%v: other bytes", e)
					}
				case "write":
					p := pattern(int(e.Length), rapid.Byte().Draw(r, "seed"))
					copy(model[at:], p)
					err = c.WriteAt(ctx, p, at, 0)
				case "zero", "no hole", "trim":
					clear(model[at:e.End()])
					switch kind {
					case "zero":
						err = c.WriteZeroes(ctx, e, 0)
					case "no hole":
						err = c.WriteZeroes(ctx, e, CmdFlagNoHole)
					default:
						err = c.Trim(ctx, e, CmdFlagFUA)
					}
				case "status":
					if *o.most != simpleHeaders {
						checkStatus(ctx, r, c, d, e)
					}
				}
				if err != nil {
					r.Fatal(err)
				}
			}
			if !bytes.Equal(d.data, model) {
				verdict.Fatalf(r, "the disk has other bytes")
			}
		})
	})
}

// checkStatus compares every context's status of e with the disk's own.
func checkStatus(ctx context.Context, r *rapid.T, c *Client, d *memDisk, e extent.Extent) {
	last := map[string]extent.Extent{}
	flagsOf := map[string]uint64{}
	err := c.BlockStatus(ctx, e, func(name string, x extent.Extent, flags uint64) error {
		before, ok := last[name]
		if !ok {
			before = extent.Extent{Offset: e.Offset}
		} else if flagsOf[name] == flags {
			r.Fatalf("%s: %v and %v are one", name, before, x)
		}
		if x.Offset != before.End() || x.Empty() || x.End() > e.End() {
			r.Fatalf("%s: %v after %v within %v", name, x, before, e)
		}
		for i := x.Offset / unit; i*unit < x.End(); i++ {
			if d.flags(name, i) != flags {
				r.Fatalf("%s: %v is %d", name, x, flags)
			}
		}
		last[name], flagsOf[name] = x, flags
		return nil
	})
	if err != nil {
		r.Fatal(err)
	}
	for _, name := range d.contexts {
		if last[name].End() != e.End() {
			r.Fatalf("%s ends at %d of %v", name, last[name].End(), e)
		}
	}
}

func TestServer_dataAndDirty(t *testing.T) {
	t.Parallel()
	d := newMemDisk(1 << 20)
	c := open1(t, serveDisk(t, d), Options{Contexts: []string{ContextAllocation, ContextDirtyBitmap + "b0", "base:none"}})
	ctx := testContext(t)
	if got := c.Info().Contexts; !slices.Equal(got, []string{ContextAllocation, ContextDirtyBitmap + "b0"}) {
		t.Fatalf("contexts %v", got)
	}
	if err := c.WriteAt(ctx, make([]byte, 1024), 4096, 0); err != nil {
		t.Fatal(err)
	}
	if err := c.WriteZeroes(ctx, extent.Extent{Offset: 8192, Length: 512}, 0); err != nil {
		t.Fatal(err)
	}
	all := extent.Extent{Length: d.Size()}
	data, err := c.Data(ctx, all)
	if err != nil || !slices.Equal(slices.Collect(data.All()), []extent.Extent{{Offset: 4096, Length: 1024}}) {
		verdict.JudgeErrorf(t, err == nil, "data %v, %v", data, err)
	}
	dirty, err := c.Dirty(ctx, all, "b0")
	if err != nil || !slices.Equal(slices.Collect(dirty.All()), []extent.Extent{{Offset: 4096, Length: 1024}, {Offset: 8192, Length: 512}}) {
		verdict.JudgeErrorf(t, err == nil, "dirty %v, %v", dirty, err)
	}
	if _, err := c.Dirty(ctx, all, "b1"); err == nil {
		t.Error("a bitmap that is not there")
	}
}

func TestServer_manyReadersAndWriters(t *testing.T) {
	t.Parallel()
	eachFraming(t, func(t *testing.T, o Options) {
		const each, n = 256 << 10, 24
		d := newMemDisk(each * n)
		o.Connections, o.MaxInFlightBytes = 2, each*3
		c := open1(t, serveDisk(t, d), o)
		ctx := testContext(t)
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() {
				want := pattern(each, byte(i))
				got := make([]byte, each)
				for range 5 {
					if err := c.WriteAt(ctx, want, int64(i*each), 0); err != nil {
						t.Error(err)
					}
					clear(got)
					if err := c.ReadAt(ctx, got, int64(i*each)); err != nil || !bytes.Equal(got, want) {
						verdict.JudgeErrorf(t, err == nil, "worker %d: %v", i, err)
					}
				}
			})
		}
		all.Wait()
	})
}

func TestServer_errorsArriveAsErrno(t *testing.T) {
	t.Parallel()
	eachFraming(t, func(t *testing.T, o Options) {
		d := newMemDisk(1 << 20)
		d.fault = func(_ context.Context, what string, e extent.Extent) error {
			switch what {
			case "read":
				if e.Contains(extent.Extent{Offset: 4096, Length: 1}) {
					return unix.EIO
				}
				if e.Offset == 8192 {
					panic("a mistake")
				}
			case "write":
				if e.Offset == 8192 {
					panic("a mistake")
				}
				return unix.EDQUOT
			case "zero":
				return unix.ENOTSUP
			}
			return nil
		}
		for i := range d.zero[:100] {
			d.zero[i] = false
		}
		c := open1(t, serveDisk(t, d), o)
		ctx := testContext(t)
		p := make([]byte, 512)
		for at, want := range map[int64]unix.Errno{0: 0, 4096: unix.EIO, 8192: unix.EIO, 1<<20 - 1: unix.EINVAL, -1: unix.EINVAL} {
			err := c.ReadAt(ctx, p, at)
			if want == 0 && err != nil {
				t.Errorf("at %d: %v", at, err)
			} else if want != 0 {
				wantErrno(t, err, want)
			}
		}
		wantErrno(t, c.WriteAt(ctx, p, 0, 0), unix.ENOSPC)
		wantErrno(t, c.WriteAt(ctx, p, 8192, 0), unix.EIO)
		wantErrno(t, c.WriteZeroes(ctx, extent.Extent{Length: 512}, CmdFlagFastZero), unix.ENOTSUP)
		if err := c.Flush(ctx); err != nil {
			t.Error(err)
		}
	})
}

func TestClient_refusesWhatIsNotAnnounced(t *testing.T) {
	t.Parallel()
	d := newMemDisk(1 << 20)
	ctx := testContext(t)
	p := make([]byte, 512)
	e := extent.Extent{Length: 512}
	c := open1(t, serveDisk(t, plainDisk{d}), Options{Contexts: []string{ContextAllocation}})
	wantErrno(t, c.WriteAt(ctx, p, 0, 0), unix.EPERM)
	wantErrno(t, c.Trim(ctx, e, 0), unix.EPERM)
	wantErrno(t, c.Flush(ctx), unix.ENOTSUP)
	wantErrno(t, c.Cache(ctx, e), unix.ENOTSUP)
	if err := c.BlockStatus(ctx, e, nil); !errors.Is(err, ErrNoContext) {
		t.Errorf("block status: %v", err)
	}
	w := open1(t, serveDisk(t, writeDisk{plainDisk{d}}), Options{})
	wantErrno(t, w.Trim(ctx, e, 0), unix.ENOTSUP)
	wantErrno(t, w.WriteZeroes(ctx, e, CmdFlagFastZero), unix.ENOTSUP)
	wantErrno(t, w.WriteAt(ctx, p, 0, CmdFlagNoHole), unix.ENOTSUP)
	copy(d.data, pattern(4<<20, 9))
	if err := w.WriteZeroes(ctx, extent.Extent{Offset: 100, Length: 900_000}, CmdFlagNoHole); err != nil {
		t.Fatal(err)
	}
	same(t, d.data[100:900_100], make([]byte, 900_000))
	if d.data[99] == 0 || d.data[900_100] == 0 {
		verdict.Errorf(t, "more was zeroed")
	}
}

func TestBlockSizes(t *testing.T) {
	t.Parallel()
	eachFraming(t, func(t *testing.T, o Options) {
		d := newMemDisk(1 << 20)
		copy(d.data, pattern(1<<20, 4))
		d.fault = func(_ context.Context, _ string, e extent.Extent) error {
			if e.Offset%4096 != 0 || e.Length%4096 != 0 || e.Length > 16<<10 {
				return unix.EINVAL
			}
			return nil
		}
		o.Contexts = []string{ContextAllocation}
		x := Export{Backend: plainDisk{d}, Block: BlockSizes{Minimum: 4096, Maximum: 16 << 10}}
		ctx := testContext(t)
		c := open1(t, serve(t, &Server{Exports: exportMap{"": x}}), o)
		for _, e := range []extent.Extent{{Offset: 1, Length: 1}, {Offset: 4095, Length: 2}, {Offset: 100, Length: 100_000}, {Offset: 1<<20 - 1, Length: 1}} {
			p := make([]byte, e.Length)
			if err := c.ReadAt(ctx, p, e.Offset); err != nil {
				t.Fatal(err)
			}
			same(t, p, d.data[e.Offset:e.End()])
		}
		x.Backend = d
		w := open1(t, serve(t, &Server{Exports: exportMap{"": x}}), o)
		wantErrno(t, w.WriteAt(ctx, make([]byte, 4096), 512, 0), unix.EINVAL)
		if err := w.WriteAt(ctx, make([]byte, 64<<10), 4096, 0); err != nil {
			t.Error(err)
		}
		if *o.most == simpleHeaders {
			return
		}
		var got extent.Extent
		err := w.BlockStatus(ctx, extent.Extent{Offset: 100, Length: 10}, func(_ string, e extent.Extent, _ uint64) error {
			got = e
			return nil
		})
		if err != nil || got != (extent.Extent{Offset: 100, Length: 10}) {
			t.Errorf("status %v, %v", got, err)
		}
	})
}
