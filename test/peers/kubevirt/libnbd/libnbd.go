// Package libnbd has the calls of libnbd that KubeVirt makes, with the names and types of libnbd's own Go binding,
// which module proxies refuse. It needs the library of Debian 13, because that of Debian 12 has no
// nbd_block_status_64: `build/bin/image libnbd` unpacks it as build/libnbd.
//
// Only one goroutine at a time may use a handle.
package libnbd

/*
#cgo CFLAGS: -I${SRCDIR}/../../../../build/libnbd/usr/include
#cgo LDFLAGS: -L${SRCDIR}/../../../../build/libnbd/usr/lib/x86_64-linux-gnu -lnbd -Wl,--allow-shlib-undefined
#include <stdlib.h>
#include <libnbd.h>

int block_status(struct nbd_handle *h, uint64_t count, uint64_t offset, uintptr_t callback);
*/
import "C"

import (
	"fmt"
	"runtime"
	"runtime/cgo"
	"syscall"
	"unsafe"
)

// Names of metadata contexts, and the flags of their extents.
const (
	CONTEXT_BASE_ALLOCATION   = C.LIBNBD_CONTEXT_BASE_ALLOCATION
	CONTEXT_QEMU_DIRTY_BITMAP = C.LIBNBD_CONTEXT_QEMU_DIRTY_BITMAP

	STATE_HOLE  uint32 = C.LIBNBD_STATE_HOLE
	STATE_ZERO  uint32 = C.LIBNBD_STATE_ZERO
	STATE_DIRTY uint32 = C.LIBNBD_STATE_DIRTY
)

// LibnbdError is a failed call of the library.
type LibnbdError struct {
	Op     string        // The call without its prefix "nbd_".
	Errmsg string        // What the library says, with the call's name.
	Errno  syscall.Errno // 0 if no system call failed.
}

// Error implements error.
func (e *LibnbdError) Error() string {
	if e.Errno == 0 {
		return e.Op + ": " + e.Errmsg
	}
	return fmt.Sprintf("%s: %s (%v)", e.Op, e.Errmsg, e.Errno)
}

// runCall runs one call on one thread, because the library keeps its last error per thread. failed reports whether it
// failed.
func runCall(op string, failed func() bool) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if !failed() {
		return nil
	}
	return &LibnbdError{Op: op, Errmsg: C.GoString(C.nbd_get_error()), Errno: syscall.Errno(C.nbd_get_errno())}
}

// Libnbd is a connection to an NBD server.
type Libnbd struct{ h *C.struct_nbd_handle }

// Create makes a handle that is not yet connected. The caller closes it.
func Create() (*Libnbd, error) {
	l := &Libnbd{}
	err := runCall("create", func() bool {
		l.h = C.nbd_create()
		return l.h == nil
	})
	if err != nil {
		return nil, err
	}
	return l, nil
}

// Close frees the handle and closes its connection. It may be called again.
func (l *Libnbd) Close() error {
	C.nbd_close(l.h)
	l.h = nil
	return nil
}

// SetExportName says which export to ask for. It is called before ConnectUnix.
func (l *Libnbd) SetExportName(name string) error {
	s := C.CString(name)
	defer C.free(unsafe.Pointer(s))
	return runCall("set_export_name", func() bool { return C.nbd_set_export_name(l.h, s) < 0 })
}

// AddMetaContext asks for a metadata context. It is called before ConnectUnix.
func (l *Libnbd) AddMetaContext(name string) error {
	s := C.CString(name)
	defer C.free(unsafe.Pointer(s))
	return runCall("add_meta_context", func() bool { return C.nbd_add_meta_context(l.h, s) < 0 })
}

// ConnectUnix connects to the server's socket and negotiates.
func (l *Libnbd) ConnectUnix(path string) error {
	s := C.CString(path)
	defer C.free(unsafe.Pointer(s))
	return runCall("connect_unix", func() bool { return C.nbd_connect_unix(l.h, s) < 0 })
}

// CanMetaContext reports whether the server has granted a metadata context.
func (l *Libnbd) CanMetaContext(name string) (bool, error) {
	s := C.CString(name)
	defer C.free(unsafe.Pointer(s))
	var can C.int
	err := runCall("can_meta_context", func() bool {
		can = C.nbd_can_meta_context(l.h, s)
		return can < 0
	})
	return can > 0, err
}

// GetSize returns the size of the export in bytes.
func (l *Libnbd) GetSize() (uint64, error) {
	var size C.int64_t
	err := runCall("get_size", func() bool {
		size = C.nbd_get_size(l.h)
		return size < 0
	})
	if err != nil {
		return 0, err
	}
	return uint64(size), nil
}

// PreadOptargs has no options, because KubeVirt sets none.
type PreadOptargs struct{}

// Pread fills buf from the byte offset.
func (l *Libnbd) Pread(buf []byte, offset uint64, _ *PreadOptargs) error {
	if len(buf) == 0 {
		return nil
	}
	return runCall("pread", func() bool {
		return C.nbd_pread(l.h, unsafe.Pointer(&buf[0]), C.size_t(len(buf)), C.uint64_t(offset), 0) < 0
	})
}

// LibnbdExtent is a run of bytes with the same flags.
type LibnbdExtent struct {
	Length uint64 // Bytes.
	Flags  uint64
}

// Extent64Callback receives the extents of one metadata context from offset on, in order. To make the call fail, it
// sets the number of a system error and returns -1.
type Extent64Callback func(metacontext string, offset uint64, entries []LibnbdExtent, errno *int) int

// BlockStatus64Optargs has no options, because KubeVirt sets none.
type BlockStatus64Optargs struct{}

// BlockStatus64 calls back with the extents of each granted metadata context. They begin at offset, and the server
// decides how far they go.
func (l *Libnbd) BlockStatus64(count, offset uint64, callback Extent64Callback, _ *BlockStatus64Optargs) error {
	handle := cgo.NewHandle(callback)
	defer handle.Delete()
	return runCall("block_status_64", func() bool {
		return C.block_status(l.h, C.uint64_t(count), C.uint64_t(offset), C.uintptr_t(handle)) < 0
	})
}

//export callExtentCallback
func callExtentCallback(
	handle C.uintptr_t, metacontext *C.char, offset C.uint64_t, entries *C.nbd_extent, count C.size_t, errno *C.int,
) C.int {
	extents := make([]LibnbdExtent, 0, count)
	for _, e := range unsafe.Slice(entries, count) {
		extents = append(extents, LibnbdExtent{Length: uint64(e.length), Flags: uint64(e.flags)})
	}
	number := int(*errno)
	result := cgo.Handle(handle).Value().(Extent64Callback)(C.GoString(metacontext), uint64(offset), extents, &number)
	*errno = C.int(number)
	return C.int(result)
}
