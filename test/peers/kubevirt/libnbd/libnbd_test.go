package libnbd_test

import (
	"bytes"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"

	"libguestfs.org/libnbd"
)

// findSocket returns the socket of the server that test.sh starts.
func findSocket(t *testing.T) string {
	t.Helper()
	socket := os.Getenv("NBD_SOCKET")
	if socket == "" {
		t.Fatal("NBD_SOCKET names no server: run `make test-libnbd`, which starts one")
	}
	return socket
}

// connectToServer connects to the server. Its disk of 1 MiB has 64 KiB of "a", a hole of 128 KiB, and then "b".
func connectToServer(t *testing.T, metacontext string) *libnbd.Libnbd {
	t.Helper()
	socket := findSocket(t)
	l, err := libnbd.Create()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := l.AddMetaContext(metacontext); err != nil {
		t.Fatal(err)
	}
	if err := l.SetExportName(""); err != nil {
		t.Fatal(err)
	}
	if err := l.ConnectUnix(socket); err != nil {
		t.Fatal(err)
	}
	return l
}

func TestCalls(t *testing.T) {
	l := connectToServer(t, libnbd.CONTEXT_BASE_ALLOCATION)
	if size, err := l.GetSize(); err != nil || size != 1<<20 {
		t.Errorf("size %d, %v", size, err)
	}
	if can, err := l.CanMetaContext(libnbd.CONTEXT_BASE_ALLOCATION); err != nil || !can {
		t.Errorf("%s: %v, %v", libnbd.CONTEXT_BASE_ALLOCATION, can, err)
	}
	buf := make([]byte, 4)
	for offset, want := range map[uint64]string{65534: "aa\x00\x00", 196606: "\x00\x00bb", 1<<20 - 4: "bbbb"} {
		if err := l.Pread(buf, offset, nil); err != nil || !bytes.Equal(buf, []byte(want)) {
			t.Errorf("at %d: %q, %v", offset, buf, err)
		}
	}
	if err := l.Pread(nil, 0, nil); err != nil {
		t.Errorf("read nothing: %v", err)
	}
}

func TestBlockStatus64(t *testing.T) {
	l := connectToServer(t, libnbd.CONTEXT_BASE_ALLOCATION)
	hole := uint64(libnbd.STATE_HOLE | libnbd.STATE_ZERO)
	want := []libnbd.LibnbdExtent{{Length: 64 << 10}, {Length: 128 << 10, Flags: hole}, {Length: 832 << 10}}
	var got []libnbd.LibnbdExtent
	err := l.BlockStatus64(1<<20, 0, func(context string, offset uint64, entries []libnbd.LibnbdExtent, _ *int) int {
		if context != libnbd.CONTEXT_BASE_ALLOCATION || offset != 0 {
			t.Errorf("called for %s at %d", context, offset)
		}
		got = append(got, entries...)
		return 0
	}, nil)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("extents %v, %v, want %v", got, err, want)
	}
	err = l.BlockStatus64(1<<20, 0, func(_ string, _ uint64, _ []libnbd.LibnbdExtent, errno *int) int {
		*errno = 28 // ENOSPC
		return -1
	}, nil)
	var failed *libnbd.LibnbdError
	if !errors.As(err, &failed) || failed.Errno != 28 || failed.Op != "block_status_64" {
		t.Errorf("the callback failed: %v", err)
	}
}

func TestErrors(t *testing.T) {
	l := connectToServer(t, libnbd.CONTEXT_QEMU_DIRTY_BITMAP+"none")
	if can, err := l.CanMetaContext(libnbd.CONTEXT_QEMU_DIRTY_BITMAP + "none"); err != nil || can {
		t.Errorf("a bitmap that the server has not: %v, %v", can, err)
	}
	err := l.Pread(make([]byte, 4), 1<<20, nil)
	if err == nil || !strings.Contains(err.Error(), "pread") {
		t.Errorf("a read behind the end: %v", err)
	}
	other, err := libnbd.Create()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if size, err := other.GetSize(); err == nil {
		t.Errorf("without a connection the size is %d", size)
	}
	if err := other.ConnectUnix(findSocket(t) + ".none"); err == nil {
		t.Error("connected to a socket that is not there")
	}
}
