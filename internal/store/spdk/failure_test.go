//go:build spdk_target

package spdk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/disk/disktest"
	"github.com/varvebackup/varve/test/verdict"
)

// failingDialer fails one connection: it refuses it, or loses what the target answers.
type failingDialer struct {
	left     int // until the one that fails; 0 for none
	lose     bool
	happened bool
}

func (f *failingDialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	f.left--
	fails := f.left == 0
	f.happened = f.happened || fails
	if fails && !f.lose {
		return nil, errors.New("test: refused")
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err == nil && fails {
		return &losingConn{Conn: conn}, nil
	}
	return conn, err
}

// losingConn loses the first answer, after the target has given it.
type losingConn struct{ net.Conn }

func (c *losingConn) Read(p []byte) (int, error) {
	if _, err := c.Conn.Read(p); err != nil {
		return 0, err
	}
	return 0, io.ErrUnexpectedEOF
}

// After a failure of any call or connection the disk has what it had, or what it was to have, and the same call again
// ends well.
func TestTarget_survivesEachFailure(t *testing.T) { //nolint:paralleltest // one address
	socket := readSocket(t)
	s := newTargetStore(t, new(net.Dialer).DialContext, socket, "varve-failures")
	open := func(t *testing.T, dial dialer) disktest.Disk {
		t.Helper()
		d, err := openDisk(t.Context(), Options{Socket: socket, Store: s.name, DataAddress: dataAddress}, dial, testHostID)
		must(t, err)
		return disktest.Disk{Disk: dataDisk{Disk: d}, TB: t, OpenFile: openDataFile}
	}
	data := disktest.Noise(1, 5000)
	d := open(t, new(net.Dialer).DialContext)
	d.NewImage("image", "i", data)
	d.NewHead("head", "h", "image", 2<<20)
	d.Write("head", 1<<20, data)
	d.NewSnapshot("head", "snapshot", "s")
	d.Write("head", 0, data[4096:])

	for _, x := range []struct {
		name     string
		do, undo func(ctx context.Context, d disk.Disk) error
	}{
		{"create", createNew(disk.Source{UID: "n", Volume: "v", Bytes: 4096}), deleteNew},
		{"clone", createNew(disk.Source{UID: "n", Volume: "v", From: "image", Bytes: 3 << 20}), deleteNew},
		{
			"independent",
			createNew(disk.Source{UID: "n", Volume: "v", From: "snapshot", Bytes: 2 << 20, Independent: true}), deleteNew,
		},
		{"snapshot", sealNew(disk.Seal{UID: "n", Kind: disk.KindSnapshot}), deleteNew},
		{
			"checked snapshot",
			sealNew(disk.Seal{UID: "n", Kind: disk.KindSnapshot, Checksum: disktest.Checksum(d.Read("head"))}), deleteNew,
		},
		{"image", sealNew(disk.Seal{UID: "n", Kind: disk.KindImage, Bytes: 5000}), deleteNew},
		{
			"delete image",
			func(ctx context.Context, d disk.Disk) error { return ignoreMissing(d.Delete(ctx, "new")) },
			sealNew(disk.Seal{UID: "n", Kind: disk.KindImage, Bytes: 5000}),
		},
	} {
		t.Run(x.name, func(t *testing.T) {
			good := open(t, new(net.Dialer).DialContext)
			must(t, x.do(t.Context(), good.Disk)) // so that undo works
			after := good.Objects()
			must(t, x.undo(t.Context(), good.Disk))
			before := good.Objects()
			content := map[disk.Name][]byte{}
			for _, name := range []disk.Name{"image", "head", "snapshot"} {
				content[name] = good.Read(name)
			}
			for n, happened := 1, true; happened; n++ {
				for _, lose := range []bool{false, true} {
					f := &failingDialer{lose: lose}
					bad := open(t, f.dial)
					f.left = n
					err := x.do(t.Context(), bad.Disk)
					happened = f.happened
					f.left = 0
					what := fmt.Sprintf("connection %d, lost answer %t", n, lose)
					if !happened {
						must(t, errors.Join(err, x.undo(t.Context(), bad.Disk)))
						break
					}
					good := open(t, new(net.Dialer).DialContext)
					found := good.Objects()
					asBefore, asAfter := cmp.Diff(before, found), cmp.Diff(after, found)
					switch {
					case asBefore != "" && asAfter != "":
						t.Fatalf("%s: %v: %s", what, err, asBefore)
					case err == nil && asAfter != "", err != nil && asBefore != "" && !errors.Is(err, errclass.Unknown):
						t.Errorf("%s: %v, and found %v", what, err, found)
					case err != nil && errclass.Of(err) != errclass.Unknown && errclass.Of(err) != errclass.Transient:
						t.Errorf("%s: %v", what, err)
					}
					must(t, x.do(t.Context(), good.Disk))
					if diff := cmp.Diff(after, good.Objects()); diff != "" {
						t.Fatalf("%s, and again: %s", what, diff)
					}
					must(t, x.undo(t.Context(), good.Disk))
					if diff := cmp.Diff(before, good.Objects()); diff != "" {
						t.Fatalf("%s, undone: %s", what, diff)
					}
					wantNothingElse(t, good.Disk.(dataDisk).Disk)
				}
			}
			for name, want := range content {
				if !bytes.Equal(want, d.Read(name)) {
					verdict.Errorf(t, "%s has other bytes", name)
				}
			}
		})
	}
}

func createNew(from disk.Source) func(context.Context, disk.Disk) error {
	return func(ctx context.Context, d disk.Disk) error { return d.Create(ctx, "new", from) }
}

func sealNew(wanted disk.Seal) func(context.Context, disk.Disk) error {
	return func(ctx context.Context, d disk.Disk) error { return d.Snapshot(ctx, "head", "new", wanted) }
}

func deleteNew(ctx context.Context, d disk.Disk) error { return d.Delete(ctx, "new") }

func ignoreMissing(err error) error {
	if errors.Is(err, errclass.NotFound) {
		return nil
	}
	return err
}
