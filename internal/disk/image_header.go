package disk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
)

// What this package reads of a qcow2 header (QEMU's docs/interop/qcow2.txt, "Header" and "Header extensions").
const (
	imageMagic          = "QFI\xfb"
	imageHeaderBytes    = 72  // version 2; version 3 says how long it is
	imageHeaderBytesV3  = 104 // at least
	featureDataFile     = 1 << 2
	extensionEnd        = 0
	extensionBacking    = 0xe2792aca
	extensionDataFile   = 0x44415441
	maxBackingNameBytes = 1023
	minClusterBits      = 9
	maxClusterBits      = 21
)

// imageHeader is what a qcow2 header says about other files.
type imageHeader struct {
	// backing says that the image has a backing file; backingName and backingFormat are what the header says about it.
	backing                    bool
	backingName, backingFormat string
	// dataFile says that the data is in another file.
	dataFile  bool
	encrypted bool
}

var errNotQCOW2 = errors.New("it is not in qcow2 format")

// readImageHeader reads the header of a qcow2 image, which must not be trusted.
func readImageHeader(image io.ReaderAt) (*imageHeader, error) {
	b, err := readUpTo(image, 1<<maxClusterBits)
	if err != nil {
		return nil, err
	}
	if len(b) < imageHeaderBytes || string(b[:4]) != imageMagic {
		return nil, errNotQCOW2
	}
	h := &imageHeader{}
	version, clusterBits := binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[20:])
	backingOffset, backingBytes := binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint32(b[16:])
	h.backing, h.encrypted = backingOffset != 0, binary.BigEndian.Uint32(b[32:]) != 0
	headerBytes := uint32(imageHeaderBytes)
	switch {
	case clusterBits < minClusterBits || clusterBits > maxClusterBits:
		return nil, fmt.Errorf("its clusters of 2^%d bytes are not valid in a qcow2 image", clusterBits)
	case version == 3 && len(b) >= imageHeaderBytesV3:
		headerBytes = binary.BigEndian.Uint32(b[100:])
		h.dataFile = binary.BigEndian.Uint64(b[72:])&featureDataFile != 0
	case version != 2:
		return nil, fmt.Errorf("version %d of qcow2 is not supported", version)
	}
	b = b[:min(len(b), 1<<clusterBits)] // all of the header is in the first cluster
	end := uint64(len(b))
	if h.backing {
		if backingBytes > maxBackingNameBytes || backingOffset > end || uint64(backingBytes) > end-backingOffset {
			return nil, errors.New("the name of its backing file is not in its header")
		}
		h.backingName = string(b[backingOffset:][:backingBytes])
		end = backingOffset
	}
	return h, h.readExtensions(b[:end], headerBytes)
}

// readExtensions reads the header extensions, which begin at offset at.
func (h *imageHeader) readExtensions(b []byte, at uint32) error {
	if uint64(at) > uint64(len(b)) {
		return errors.New("its header is longer than its first cluster")
	}
	for b = b[at:]; len(b) >= 8; {
		kind, n := binary.BigEndian.Uint32(b), uint64(binary.BigEndian.Uint32(b[4:]))
		if kind == extensionEnd {
			return nil
		}
		if b = b[8:]; n > uint64(len(b)) {
			return errors.New("an extension of its header does not end in the header")
		}
		switch kind {
		case extensionBacking:
			h.backingFormat = string(b[:n])
		case extensionDataFile:
			h.dataFile = true
		}
		b = b[min((n+7)/8*8, uint64(len(b))):]
	}
	return nil
}

// readUpTo reads at most n bytes from the beginning.
func readUpTo(r io.ReaderAt, n int) ([]byte, error) {
	b, err := io.ReadAll(io.NewSectionReader(r, 0, int64(n)))
	if err != nil {
		return nil, fmt.Errorf("read its header: %w", err)
	}
	return b, nil
}

// hasProtocol reports whether QEMU would take a file name for something other than a path, such as json:… or nbd:… .
func hasProtocol(name string) bool {
	before, _, found := strings.Cut(name, ":")
	return found && !strings.Contains(before, "/")
}
