//go:build libvirt_dlopen

package domain

import (
	"bytes"
	"encoding/binary"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// gate can block reads of a file (fanotify(7), FAN_ACCESS_PERM). A backup that reads the file then runs until the
// test lets it continue.
type gate struct {
	testing.TB

	file  *os.File
	came  chan struct{}
	ended chan struct{}

	mu      sync.Mutex
	shut    bool
	waiting []int32
}

// newGate returns an open gate. It affects only processes that open the file afterwards: the kernel decides at open
// whether it asks about each read.
func newGate(tb testing.TB, path string) *gate {
	tb.Helper()
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_CONTENT|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK, unix.O_RDONLY|unix.O_LARGEFILE|unix.O_CLOEXEC)
	if err != nil {
		tb.Fatal(os.NewSyscallError("fanotify_init", err))
	}
	g := &gate{TB: tb, file: os.NewFile(uintptr(fd), "fanotify"), came: make(chan struct{}, 1), ended: make(chan struct{})}
	if err := unix.FanotifyMark(fd, unix.FAN_MARK_ADD, unix.FAN_ACCESS_PERM, unix.AT_FDCWD, path); err != nil {
		tb.Fatal(os.NewSyscallError("fanotify_mark", err))
	}
	go g.serve()
	// Closing the file releases all waiting reads.
	tb.Cleanup(func() {
		if err := g.file.Close(); err != nil {
			tb.Error(err)
		}
		<-g.ended
	})
	return g
}

// serve answers the kernel until the file is closed.
func (g *gate) serve() {
	defer close(g.ended)
	buffer := make([]byte, 4096)
	for {
		n, err := g.file.Read(buffer)
		if err != nil {
			return
		}
		for events := bytes.NewReader(buffer[:n]); events.Len() > 0; {
			var e unix.FanotifyEventMetadata
			if err := binary.Read(events, binary.NativeEndian, &e); err != nil {
				g.Error(err)
				return
			}
			g.asked(e.Fd)
		}
	}
}

func (g *gate) asked(fd int32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.shut {
		g.allow(fd)
		return
	}
	g.waiting = append(g.waiting, fd)
	select {
	case g.came <- struct{}{}:
	default:
	}
}

func (g *gate) allow(fd int32) {
	err := binary.Write(g.file, binary.NativeEndian, unix.FanotifyResponse{Fd: fd, Response: unix.FAN_ALLOW})
	if err != nil {
		g.Errorf("let a read go on: %v", err)
	}
	_ = unix.Close(int(fd)) // the event's own
}

// close blocks all reads from now on.
func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = true
}

// await returns when a read is waiting.
func (g *gate) await() {
	g.Helper()
	select {
	case <-g.came:
	case <-time.After(60 * time.Second):
		g.Fatal("nobody reads the disk")
	}
}

// open releases all reads.
func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = false
	for _, fd := range g.waiting {
		g.allow(fd)
	}
	g.waiting = nil
}
