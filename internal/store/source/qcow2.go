package source

import (
	"context"
	"encoding/binary"
	"sync"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/nbd"
	"github.com/varvebackup/varve/internal/store/handover"
)

// What this package reads of a qcow2 header (QEMU's docs/interop/qcow2.txt, "Header" and "Header extensions").
const (
	// qcow2HeadBytes is the largest size of the first cluster, in which the whole header is.
	qcow2HeadBytes       = 1 << qcow2MaxClusterBits
	qcow2Magic           = "QFI\xfb"
	qcow2HeaderBytesV2   = 72
	qcow2HeaderBytesV3   = 104 // at least
	qcow2MinClusterBits  = 9
	qcow2MaxClusterBits  = 21
	qcow2Corrupt         = 1 << 1
	qcow2DataFile        = 1 << 2
	qcow2KnownFeatures   = 1<<5 - 1
	qcow2ExtensionEnd    = 0
	qcow2ExtensionData   = 0x44415441
	qcow2ExtensionCrypto = 0x0537be77
	qcow2SectorBytes     = 512
)

// qcow2Disk is the disk in a qcow2 image.
type qcow2Disk struct{ bytes, clusterBytes int64 }

// checkQCOW2 returns the disk in a qcow2 image that begins with head: its first cluster, or all of it. It refuses an
// image that needs another file or a key. head must be what QEMU reads, too.
func checkQCOW2(head []byte) (qcow2Disk, error) {
	if len(head) < qcow2HeaderBytesV2 || string(head[:4]) != qcow2Magic {
		return qcow2Disk{}, refuseQCOW2("is not whole")
	}
	version, clusterBits := binary.BigEndian.Uint32(head[4:]), binary.BigEndian.Uint32(head[20:])
	headerBytes, features := uint32(qcow2HeaderBytesV2), uint64(0)
	switch {
	case clusterBits < qcow2MinClusterBits || clusterBits > qcow2MaxClusterBits:
		return qcow2Disk{}, refuseQCOW2("has clusters of a size that is not valid")
	case version == 3 && len(head) >= qcow2HeaderBytesV3:
		features, headerBytes = binary.BigEndian.Uint64(head[72:]), binary.BigEndian.Uint32(head[100:])
	case version != 2:
		return qcow2Disk{}, refuseQCOW2("has a version that is not supported: convert it with qemu-img")
	}
	switch {
	case binary.BigEndian.Uint64(head[8:]) != 0 || binary.BigEndian.Uint32(head[16:]) != 0:
		return qcow2Disk{}, refuseQCOW2("has a backing file: convert it to an image without one (qemu-img convert)")
	case binary.BigEndian.Uint32(head[32:]) != 0:
		return qcow2Disk{}, refuseQCOW2("is encrypted: convert it to one that is not (qemu-img convert)")
	case features&qcow2DataFile != 0:
		return qcow2Disk{}, refuseQCOW2("has its data in another file: convert it to an image in one file (qemu-img convert)")
	case features&qcow2Corrupt != 0:
		return qcow2Disk{}, refuseQCOW2("is marked as corrupt: repair it (qemu-img check -r all)")
	case features&^uint64(qcow2KnownFeatures) != 0:
		return qcow2Disk{}, refuseQCOW2("has features that are not known: convert it with qemu-img")
	}
	if err := checkExtensions(head[:min(len(head), 1<<clusterBits)], headerBytes); err != nil {
		return qcow2Disk{}, err
	}
	bytes, err := checkSize(binary.BigEndian.Uint64(head[24:]))
	return qcow2Disk{bytes: bytes, clusterBytes: 1 << clusterBits}, err
}

// checkSize returns the size of a disk in bytes.
func checkSize(bytes uint64) (int64, error) {
	switch {
	case bytes > handover.MaxImageBytes:
		return 0, errTooLarge
	case bytes == 0:
		return 0, refuseQCOW2("is empty")
	case bytes%qcow2SectorBytes != 0:
		return 0, refuseQCOW2("has a size that is not a multiple of 512 bytes")
	default:
		return int64(bytes), nil
	}
}

// checkExtensions refuses the header extensions, which begin at offset at, that name another file or a key.
func checkExtensions(head []byte, at uint32) error {
	if at < qcow2HeaderBytesV2 || uint64(at) > uint64(len(head)) {
		return refuseQCOW2("has a header that does not end in its first cluster")
	}
	for head = head[at:]; len(head) >= 8; {
		kind, n := binary.BigEndian.Uint32(head), uint64(binary.BigEndian.Uint32(head[4:]))
		if head = head[8:]; kind != qcow2ExtensionEnd && n > uint64(len(head)) {
			return refuseQCOW2("has a header that does not end in its first cluster")
		}
		switch kind {
		case qcow2ExtensionEnd:
			return nil
		case qcow2ExtensionData:
			return refuseQCOW2("has its data in another file: convert it to an image in one file (qemu-img convert)")
		case qcow2ExtensionCrypto:
			return refuseQCOW2("is encrypted: convert it to one that is not (qemu-img convert)")
		}
		head = head[min((n+7)/8*8, uint64(len(head))):]
	}
	return nil
}

func refuseQCOW2(words string) error {
	return errclass.Errorf(errclass.Invalid, "the qcow2 image %s", words)
}

// qcow2File is the file of a qcow2 image as QEMU gets to see it. The first cluster, which may name other files, cannot
// change after it was checked. And a read behind the end is an error: QEMU would take what is missing for zeroes.
type qcow2File struct {
	image        nbd.Backend
	head         []byte
	clusterBytes int64

	mu  sync.Mutex
	err error // the first one
}

// Size implements nbd.Backend. It is more than any offset in an image, so that QEMU asks for all that it needs.
func (*qcow2File) Size() int64 { return 1 << 57 }

// ReadAt implements nbd.Backend.
func (f *qcow2File) ReadAt(ctx context.Context, p []byte, offset int64) error {
	bytes := f.image.Size()
	// QEMU leaves out zeroes at the end of the last cluster.
	whole := (bytes + f.clusterBytes - 1) / f.clusterBytes * f.clusterBytes
	if offset+int64(len(p)) > whole {
		return f.fail(errclass.Errorf(errclass.Invalid, "the qcow2 image is damaged: it has %d bytes, and its data goes on "+
			"to byte %d: it was probably cut off", bytes, offset+int64(len(p))))
	}
	if end := bytes - offset; end < int64(len(p)) {
		end = max(0, end)
		clear(p[end:])
		p = p[:end]
	}
	if offset < int64(len(f.head)) {
		n := copy(p, f.head[offset:])
		p, offset = p[n:], offset+int64(n)
	}
	if len(p) == 0 {
		return nil
	}
	return f.image.ReadAt(ctx, p, offset)
}

func (f *qcow2File) fail(err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
	}
	return err
}

// cause returns why a read failed that QEMU has only seen an error of input or output of.
func (f *qcow2File) cause() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}
