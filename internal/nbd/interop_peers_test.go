//go:build nbd_interop

package nbd

import (
	"os"
	"path/filepath"
	"testing"
)

// peer is a server that the suite runs against.
type peer struct {
	name string
	// start starts the server and returns where it is and what its disk holds; nil content is not known beforehand.
	start func(t *testing.T) (Target, []byte)
	// contexts are those that the server must have.
	contexts    []string
	headers     headers
	writable    bool
	connections int
	// requestBytes is for nbdcopy, which ignores the server's largest request; 256 KiB if 0.
	requestBytes int
}

func unixTarget(socket string) Target { return Target{Network: "unix", Address: socket} }

// qemuNBD serves an image with the qemu-nbd that command names.
func qemuNBD(command func(t *testing.T) []string, format string, options ...string) func(t *testing.T) (Target, []byte) {
	return func(t *testing.T) (Target, []byte) {
		t.Helper()
		path, content := rawImage(t)
		if format == "qcow2" {
			path, content = qcow2Image(t)
		}
		socket := filepath.Join(socketDir(t), "s")
		line := append(command(t), "-t", "-k", socket, "-f", format, "-e", "8", "--discard=unmap")
		start(t, socket, append(append(line, options...), path)...)
		return unixTarget(socket), content
	}
}

func debianQEMU(t *testing.T) []string { t.Helper(); return []string{program(t, "qemu-nbd")} }
func newerQEMU(t *testing.T) []string  { t.Helper(); return fromLauncher(t, "qemu-nbd") }

// storageDaemon exports an image, writable, with both bitmaps at once.
func storageDaemon(command func(t *testing.T) []string) func(t *testing.T) (Target, []byte) {
	return func(t *testing.T) (Target, []byte) {
		t.Helper()
		path, content := qcow2Image(t)
		socket := filepath.Join(socketDir(t), "s")
		start(t, socket, append(command(t),
			"--blockdev", "driver=file,node-name=f,discard=unmap,filename="+path,
			"--blockdev", "driver=qcow2,node-name=q,discard=unmap,file=f",
			"--nbd-server", "addr.type=unix,max-connections=8,addr.path="+socket,
			"--export", "type=nbd,id=e,node-name=q,name=disk,writable=on,description=a disk,bitmaps.0=b0,bitmaps.1=b1,allocation-depth=on")...)
		target := unixTarget(socket)
		target.Export = "disk"
		return target, content
	}
}

// nbdkit serves a plugin. IMAGE in an argument stands for a raw image, whose content is returned.
func nbdkit(args ...string) func(t *testing.T) (Target, []byte) {
	return func(t *testing.T) (Target, []byte) {
		t.Helper()
		socket := filepath.Join(socketDir(t), "s")
		line := []string{program(t, "nbdkit"), "-f", "-U", socket, "--exit-with-parent"}
		var content []byte
		for _, a := range args {
			if a == "IMAGE" {
				a, content = rawImage(t)
			}
			line = append(line, a)
		}
		start(t, socket, line...)
		return unixTarget(socket), content
	}
}

// ourselves serves a memDisk with the content of the raw image.
func ourselves(block BlockSizes) func(t *testing.T) (Target, []byte) {
	return func(t *testing.T) (Target, []byte) {
		t.Helper()
		_, content := rawImage(t)
		d := newMemDisk(imageBytes)
		for _, e := range imageData {
			copy(d.data[e.Offset:e.End()], content[e.Offset:e.End()])
			d.touch(e, false)
		}
		d.contexts = d.contexts[:2]
		target := serve(t, &Server{Exports: exportMap{"disk": {Backend: d, MultiConn: true, Description: "ours", Block: block}}})
		target.Export = "disk"
		return target, content
	}
}

const (
	depthContext = "qemu:allocation-depth"
	b0Context    = ContextDirtyBitmap + "b0"
	b1Context    = ContextDirtyBitmap + "b1"
)

var peers = []peer{
	{name: "qemu-nbd raw", start: qemuNBD(debianQEMU, "raw"), contexts: []string{ContextAllocation}, headers: structuredHeaders, writable: true, connections: 4},
	{name: "qemu-nbd qcow2", start: qemuNBD(debianQEMU, "qcow2"), contexts: []string{ContextAllocation}, headers: structuredHeaders, writable: true, connections: 4},
	{
		name: "qemu-nbd qcow2 read-only bitmap and depth", start: qemuNBD(debianQEMU, "qcow2", "-r", "-B", "b0", "-A"),
		contexts: []string{ContextAllocation, depthContext, b0Context}, headers: structuredHeaders, connections: 4,
	},
	{name: "qemu-nbd 10 raw", start: qemuNBD(newerQEMU, "raw"), contexts: []string{ContextAllocation}, headers: extendedHeaders, writable: true, connections: 4},
	{
		name: "qemu-nbd 10 qcow2 read-only bitmap and depth", start: qemuNBD(newerQEMU, "qcow2", "-r", "-B", "b1", "-A"),
		contexts: []string{ContextAllocation, depthContext, b1Context}, headers: extendedHeaders, connections: 4,
	},
	{
		name:     "qemu-storage-daemon two bitmaps",
		start:    storageDaemon(func(t *testing.T) []string { t.Helper(); return []string{program(t, "qemu-storage-daemon")} }),
		contexts: []string{ContextAllocation, depthContext, b0Context, b1Context}, headers: structuredHeaders, writable: true, connections: 4,
	},
	{
		name:     "qemu-storage-daemon 10 two bitmaps",
		start:    storageDaemon(func(t *testing.T) []string { t.Helper(); return fromLauncher(t, "qemu-storage-daemon") }),
		contexts: []string{ContextAllocation, depthContext, b0Context, b1Context}, headers: extendedHeaders, writable: true, connections: 4,
	},
	{name: "nbdkit file", start: nbdkit("file", "IMAGE"), contexts: []string{ContextAllocation}, headers: structuredHeaders, writable: true, connections: 4},
	{name: "nbdkit file --no-sr", start: nbdkit("--no-sr", "file", "IMAGE"), writable: true, connections: 4},
	{name: "nbdkit memory", start: nbdkit("memory", "10M"), contexts: []string{ContextAllocation}, headers: structuredHeaders, writable: true, connections: 4},
	{name: "nbdkit memory of odd size", start: nbdkit("memory", "1000001"), contexts: []string{ContextAllocation}, headers: structuredHeaders, writable: true, connections: 4},
	{name: "nbdkit data", start: nbdkit("data", "(0x55 0xAA)*1000 @0x400000 (1 2 3)*77777 @0x7fffff 9"), contexts: []string{ContextAllocation}, headers: structuredHeaders, writable: true, connections: 4},
	// Its bytes depend on where a request begins within a block of 4 KiB, which is what the filter is for.
	{name: "nbdkit sparse-random", start: nbdkit("--filter=blocksize", "sparse-random", "24M", "seed=7", "runlength=8192", "percent=20", "minblock=4096"), contexts: []string{ContextAllocation}, headers: structuredHeaders, connections: 4},
	{name: "nbdkit without multi-conn", start: nbdkit("--filter=multi-conn", "file", "IMAGE", "multi-conn-mode=disable"), contexts: []string{ContextAllocation}, headers: structuredHeaders, writable: true, connections: 1},
	{name: "nbdkit blocksize", start: nbdkit("--filter=blocksize", "file", "IMAGE", "minblock=4096", "maxdata=64K", "maxlen=1M"), contexts: []string{ContextAllocation}, headers: structuredHeaders, writable: true, connections: 4},
	{
		name:     "nbdkit blocksize-policy",
		start:    nbdkit("--filter=blocksize-policy", "file", "IMAGE", "blocksize-minimum=4096", "blocksize-preferred=64K", "blocksize-maximum=128K", "blocksize-error-policy=error"),
		contexts: []string{ContextAllocation}, headers: structuredHeaders, writable: true, connections: 4, requestBytes: 64 << 10,
	},
	{name: "nbdkit delay", start: nbdkit("--filter=delay", "file", "IMAGE", "rdelay=2ms", "wdelay=3ms", "delay-extents=5ms"), contexts: []string{ContextAllocation}, headers: structuredHeaders, writable: true, connections: 4},
	{name: "nbdkit rate", start: nbdkit("--filter=rate", "file", "IMAGE", "rate=800M"), contexts: []string{ContextAllocation}, headers: structuredHeaders, writable: true, connections: 4},
	{name: "nbdkit noparallel noextents", start: nbdkit("--filter=noparallel", "--filter=noextents", "file", "IMAGE"), contexts: []string{ContextAllocation}, headers: structuredHeaders, writable: true, connections: 4},
	{name: "ours", start: ourselves(BlockSizes{}), contexts: []string{ContextAllocation, b0Context}, headers: extendedHeaders, writable: true, connections: 4},
	{name: "ours with blocks", start: ourselves(BlockSizes{Minimum: 4096, Maximum: 64 << 10}), contexts: []string{ContextAllocation, b0Context}, headers: extendedHeaders, writable: true, connections: 4, requestBytes: 64 << 10},
}

// errorTrigger is a file that makes nbdkit's error filter fail requests while it exists.
func errorTrigger(t *testing.T) (path string, create, remove func()) {
	t.Helper()
	path = filepath.Join(socketDir(t), "trigger")
	return path, func() {
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, func() {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
}
