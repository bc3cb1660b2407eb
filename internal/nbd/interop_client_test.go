//go:build nbd_interop

package nbd

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/authority"
	"github.com/varvebackup/varve/test/verdict"
	"github.com/varvebackup/varve/test/wait"
)

// TestPeers is the suite that runs against every server.
func TestPeers(t *testing.T) {
	t.Parallel()
	for _, p := range peers {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			target, content := p.start(t)
			c, err := Dial(testContext(t), target, Options{Contexts: append([]string{"x-none:such"}, p.contexts...), Connections: 4})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if got := c.Info().Contexts; !slices.Equal(got, p.contexts) || c.conns[0].headers != p.headers || c.Connections() != p.connections {
				t.Errorf("contexts %v, headers %d, %d connections", got, c.conns[0].headers, c.Connections())
			}
			size := fmt.Sprintf("--request-size=%d", cmp.Or(p.requestBytes, 256<<10))
			whole := nbdcopyOut(t, target.URI(), size)
			if content != nil {
				same(t, whole, content)
			}
			checkReads(t, c, whole)
			if len(p.contexts) > 0 {
				checkMaps(t, c, target, whole)
			}
			checkCancel(t, c, whole)
			checkRefusals(t, c)
			if p.writable {
				checkWrites(t, c, whole)
			}
			if err := c.Disconnect(testContext(t)); err != nil {
				t.Errorf("disconnect: %v", err)
			}
			if p.writable {
				same(t, nbdcopyOut(t, target.URI(), size, "--no-extents"), whole)
			}
			checkInspect(t, target, p)
		})
	}
}

// checkReads reads everything in one call, and many small unaligned parts concurrently.
func checkReads(t *testing.T, c *Client, want []byte) {
	t.Helper()
	ctx := testContext(t)
	got := bytes.Repeat([]byte{0xcc}, len(want))
	if err := c.ReadAt(ctx, got, 0); err != nil {
		t.Fatal(err)
	}
	same(t, got, want)
	var all sync.WaitGroup
	for worker := range uint64(8) {
		all.Go(func() {
			r := rand.New(rand.NewPCG(worker, 1))
			p := make([]byte, 70_000)
			for range 20 {
				part := p[:1+r.IntN(len(p))]
				at := r.IntN(len(want) - len(part) + 1)
				if err := c.ReadAt(ctx, part, int64(at)); err != nil || !bytes.Equal(part, want[at:at+len(part)]) {
					verdict.JudgeErrorf(t, err == nil, "%d bytes at %d: other bytes, or %v", len(part), at, err)
				}
			}
		})
	}
	all.Wait()
}

// checkMaps compares the status with nbdinfo's, and copies only data.
func checkMaps(t *testing.T, c *Client, target Target, want []byte) {
	t.Helper()
	for name, got := range ourMaps(t, c) {
		if diff := gocmp.Diff(nbdinfoMap(t, target.URI(), name), got); diff != "" {
			verdict.Errorf(t, "%s (nbdinfo -, ours +):\n%s", name, diff)
		}
	}
	ctx := testContext(t)
	data, err := c.Data(ctx, extent.Extent{Length: c.Info().Bytes})
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	for e := range data.All() {
		if err := c.ReadAt(ctx, got[e.Offset:e.End()], e.Offset); err != nil {
			t.Fatal(err)
		}
	}
	same(t, got, want)
	// The status of a part must equal that part of the whole's status.
	r := rand.New(rand.NewPCG(5, 5))
	for range 10 {
		at := r.Int64N(c.Info().Bytes)
		e := extent.Extent{Offset: at, Length: 1 + r.Int64N(c.Info().Bytes-at)}
		part, err := c.Data(ctx, e)
		if err != nil {
			t.Fatal(err)
		}
		if whole := extent.NewSet(slices.Collect(data.Within(e))...); !gocmp.Equal(whole, part, gocmp.AllowUnexported(extent.Set{})) {
			verdict.Errorf(t, "data within %v: %v, and of the whole %v", e, part, whole)
		}
	}
}

// checkCancel cancels calls at any moment. Their memory must not change afterwards, and the client must go on.
func checkCancel(t *testing.T, c *Client, want []byte) {
	t.Helper()
	for i := range 20 {
		ctx, cancel := context.WithCancel(testContext(t))
		timer := time.AfterFunc(time.Duration(i*i*3)*time.Microsecond, cancel)
		p := bytes.Repeat([]byte{0xee}, len(want))
		err := c.ReadAt(ctx, p, 0)
		timer.Stop()
		cancel()
		if err == nil {
			same(t, p, want)
		} else if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		before := bytes.Clone(p)
		after := make([]byte, min(len(want), 100_000))
		if err := c.ReadAt(testContext(t), after, 0); err != nil {
			t.Fatalf("after a cancelled read: %v", err)
		}
		same(t, after, want[:len(after)])
		same(t, p, before)
	}
}

func checkRefusals(t *testing.T, c *Client) {
	t.Helper()
	ctx := testContext(t)
	p := make([]byte, 4096)
	wantErrno(t, c.ReadAt(ctx, p, c.Info().Bytes-1), unix.EINVAL)
	if c.Info().Flags.Has(FlagReadOnly) {
		wantErrno(t, c.WriteAt(ctx, p, 0, 0), unix.EPERM)
	}
}

// checkWrites changes want and the disk in the same way.
func checkWrites(t *testing.T, c *Client, want []byte) {
	t.Helper()
	ctx := testContext(t)
	r := rand.New(rand.NewPCG(3, 9))
	block := int(c.Info().Block.Minimum)
	var fua CommandFlags
	if c.Info().Flags.Has(FlagSendFUA) {
		fua = CmdFlagFUA
	}
	for i := range 40 {
		at := r.IntN(len(want)) / block * block
		n := min((1+r.IntN(300_000)+block-1)/block*block, len(want)-at)
		e := extent.Extent{Offset: int64(at), Length: int64(n)}
		var err error
		switch i % 4 {
		case 0:
			copy(want[at:], pattern(n, byte(i)))
			err = c.WriteAt(ctx, want[at:at+n], e.Offset, 0)
		case 1:
			copy(want[at:], pattern(n, byte(i)))
			err = c.WriteAt(ctx, want[at:at+n], e.Offset, fua)
		case 2:
			clear(want[at : at+n])
			err = c.WriteZeroes(ctx, e, fua)
		case 3:
			clear(want[at : at+n])
			err = c.WriteZeroes(ctx, e, CmdFlagNoHole)
		}
		if err != nil {
			t.Fatalf("write %d of %v: %v", i, e, err)
		}
		if c.Info().Flags.Has(FlagSendTrim) && i == 20 {
			if err := c.Trim(ctx, e, 0); err != nil {
				t.Fatal(err)
			}
			if err := c.ReadAt(ctx, want[at:e.End()], e.Offset); err != nil { // its content is undefined
				t.Fatal(err)
			}
		}
	}
	if c.Info().Flags.Has(FlagSendFlush) {
		if err := c.Flush(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if c.Info().Flags.Has(FlagSendCache) {
		if err := c.Cache(ctx, extent.Extent{Length: c.Info().Bytes}); err != nil {
			t.Fatal(err)
		}
	}
	if c.Info().Flags.Has(FlagSendFastZero) {
		e := extent.Extent{Length: int64(max(block, 64<<10))}
		switch err := c.WriteZeroes(ctx, e, CmdFlagFastZero); {
		case err == nil:
			clear(want[:e.Length])
		case !errors.Is(err, unix.ENOTSUP):
			t.Error(err)
		}
	}
	checkReads(t, c, want)
}

func checkInspect(t *testing.T, target Target, p peer) {
	t.Helper()
	info, err := Inspect(testContext(t), target, Options{})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(info.Contexts)
	if !slices.Equal(info.Contexts, p.contexts) {
		t.Errorf("contexts %v", info.Contexts)
	}
	list, err := List(testContext(t), target, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(list, func(l ListedExport) bool { return l.Name == target.Export }) {
		t.Errorf("exports %v", list)
	}
}

// TestPeers_dirtyIsWhatWasWritten: the bitmaps have what was written after they were added.
func TestPeers_dirtyIsWhatWasWritten(t *testing.T) {
	t.Parallel()
	target, _ := peers[5].start(t)
	c := open1(t, target, Options{Contexts: peers[5].contexts})
	var want extent.Set
	for i, bitmap := range []string{"b0", "b1"} {
		want = want.Union(extent.NewSet(imageData[2+i].Widen(64<<10, imageBytes)))
		got, err := c.Dirty(testContext(t), extent.Extent{Length: imageBytes}, bitmap)
		if err != nil || !gocmp.Equal(got, want, gocmp.AllowUnexported(extent.Set{})) {
			verdict.JudgeErrorf(t, err == nil, "%s: %v, want %v (%v)", bitmap, got, want, err)
		}
	}
}

// TestPeers_nbdkitErrors: each error of nbdkit's error filter arrives unchanged, and the connection goes on.
func TestPeers_nbdkitErrors(t *testing.T) {
	t.Parallel()
	for name, errno := range map[string]unix.Errno{
		"EPERM": unix.EPERM, "EIO": unix.EIO, "ENOMEM": unix.ENOMEM, "EINVAL": unix.EINVAL, "ENOSPC": unix.ENOSPC, "ESHUTDOWN": unix.ESHUTDOWN,
	} {
		for _, sr := range []string{"--newstyle", "--no-sr"} {
			t.Run(name+sr, func(t *testing.T) {
				t.Parallel()
				trigger, create, remove := errorTrigger(t)
				target, want := nbdkit(sr, "--filter=error", "file", "IMAGE", "error="+name, "error-rate=100%", "error-file="+trigger)(t)
				c := open1(t, target, Options{Contexts: []string{ContextAllocation}})
				ctx := testContext(t)
				p := make([]byte, 1<<20)
				create()
				wantErrno(t, c.ReadAt(ctx, p, 0), errno)
				wantErrno(t, c.WriteAt(ctx, p, 0, 0), errno)
				wantErrno(t, c.WriteZeroes(ctx, extent.Extent{Length: 4096}, 0), errno)
				if sr != "--no-sr" {
					_, err := c.Data(ctx, extent.Extent{Length: 1 << 20})
					wantErrno(t, err, errno)
				}
				remove()
				if err := c.ReadAt(ctx, p, 0); err != nil {
					t.Fatal(err)
				}
				same(t, p, want[:len(p)])
			})
		}
	}
}

// TestPeers_deadPeer: a server that is killed fails what is in flight and what comes later, with one cause.
func TestPeers_deadPeer(t *testing.T) {
	t.Parallel()
	path, _ := rawImage(t)
	socket := filepath.Join(socketDir(t), "s")
	cmd := exec.CommandContext(testContext(t), program(t, "nbdkit"), "-f", "-U", socket, "--exit-with-parent", "--filter=delay", "file", path, "rdelay=1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var c *Client
	for c == nil { // until it listens
		c, _ = Dial(testContext(t), unixTarget(socket), Options{Connections: 2})
	}
	defer c.Close()
	failed := make(chan error, 4)
	for range 4 {
		go func() { failed <- c.ReadAt(testContext(t), make([]byte, 4096), 0) }()
	}
	wait.Until(t, testTimeout, "four reads in flight", func() bool { return len(c.free) <= 2*slotsPerConnection-4 })
	cmd.Process.Kill()
	cmd.Wait()
	for range 4 {
		if err := <-failed; err == nil || !errors.Is(err, c.Err()) {
			t.Errorf("%v, and the client's cause is %v", err, c.Err())
		}
	}
	if err := c.ReadAt(testContext(t), make([]byte, 1), 0); !errors.Is(err, c.Err()) {
		t.Error(err)
	}
}

// TestPeers_withTLS: both sides require certificates, and nothing falls back to plaintext.
func TestPeers_withTLS(t *testing.T) {
	t.Parallel()
	a, stranger := authority.New(t), authority.New(t)
	dir := a.Files(t)
	tls := map[string]func(t *testing.T) (Target, []byte){
		"qemu-nbd":    qemuNBD(debianQEMU, "raw", "--object", "tls-creds-x509,id=t,endpoint=server,verify-peer=on,dir="+dir, "--tls-creds", "t"),
		"qemu-nbd 10": qemuNBD(newerQEMU, "raw", "--object", "tls-creds-x509,id=t,endpoint=server,verify-peer=on,dir="+dir, "--tls-creds", "t"),
		"nbdkit":      nbdkit("--tls=require", "--tls-verify-peer", "--tls-certificates="+dir, "file", "IMAGE"),
	}
	for name, start := range tls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target, content := start(t)
			if _, err := Dial(testContext(t), target, Options{}); !errors.Is(err, ErrTLS) {
				t.Errorf("plaintext: %v", err)
			}
			target.TLS, target.ServerName = true, "localhost"
			if c, err := Dial(testContext(t), target, Options{TLS: stranger.Client}); err == nil {
				c.Close()
				t.Error("a stranger's certificate")
			}
			c := open1(t, target, Options{TLS: a.Client, Contexts: []string{ContextAllocation}, Connections: 3})
			checkReads(t, c, content)
			checkCancel(t, c, content)
			checkWrites(t, c, content)
			if len(ourMaps(t, c)[ContextAllocation]) == 0 {
				t.Error("no map")
			}
			if err := c.Disconnect(testContext(t)); err != nil {
				t.Error(err)
			}
		})
	}
	for name, start := range map[string]func(t *testing.T) (Target, []byte){"qemu-nbd": qemuNBD(debianQEMU, "raw"), "nbdkit": nbdkit("file", "IMAGE")} {
		t.Run(name+" without TLS", func(t *testing.T) {
			t.Parallel()
			target, _ := start(t)
			if _, err := Dial(testContext(t), target, Options{TLS: a.Client}); !errors.Is(err, ErrTLS) {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestPeers_refused: a server that is too old, or that does not have the export, is refused with an explanation.
func TestPeers_refused(t *testing.T) {
	t.Parallel()
	old, _ := nbdkit("-o", "file", "IMAGE")(t)
	if _, err := Dial(testContext(t), old, Options{}); !errors.Is(err, ErrProtocol) {
		t.Errorf("oldstyle: %v", err)
	}
	plain, _ := nbdkit("--mask-handshake=0", "file", "IMAGE")(t)
	if _, err := Dial(testContext(t), plain, Options{}); !errors.Is(err, ErrProtocol) {
		t.Errorf("newstyle that is not fixed: %v", err)
	}
	zeroes, want := nbdkit("--mask-handshake=1", "file", "IMAGE")(t)
	checkReads(t, open1(t, zeroes, Options{}), want)
	for name, p := range map[string]peer{"qemu-nbd": peers[0], "ours": peers[len(peers)-1]} {
		target, _ := p.start(t)
		target.Export = "none such"
		if _, err := Dial(testContext(t), target, Options{}); !errors.Is(err, ErrUnknownExport) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := Inspect(testContext(t), target, Options{}); !errors.Is(err, ErrUnknownExport) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
