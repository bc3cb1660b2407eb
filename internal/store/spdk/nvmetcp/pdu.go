package nvmetcp

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/varvebackup/varve/internal/errclass"
)

// The types of PDUs (NVMe/TCP Transport Specification 1.0, section 3.6.2).
const (
	pduConnectionRequest  = 0x00 // ICReq
	pduConnectionResponse = 0x01 // ICResp
	pduTermination        = 0x03 // C2HTermReq
	pduCommand            = 0x04 // CapsuleCmd
	pduResponse           = 0x05 // CapsuleResp
	pduDataToTarget       = 0x06 // H2CData
	pduDataToHost         = 0x07 // C2HData
	pduReadyToTransfer    = 0x09 // R2T
)

const (
	flagLast    = 0x04 // the last data of a command
	flagSuccess = 0x08 // stands for a response

	commonBytes   = 8   // of the header that all PDUs have
	headerBytes   = 24  // of the header of data, R2T and responses, with the common one
	connectBytes  = 128 // of ICReq and ICResp
	commandBytes  = 64  // of a command within its capsule
	responseBytes = 16

	// maxTransferBytes is what one command reads or writes, the default of SPDK's max_io_size.
	maxTransferBytes = 128 << 10
)

var littleEndian = binary.LittleEndian

// pdu is what the target sends.
type pdu struct {
	kind, flags byte
	header      []byte // after the common one
	data        []byte
}

// readPDU reads a PDU, of which nothing is longer than a command may transfer.
func readPDU(r io.Reader) (pdu, error) {
	var common [commonBytes]byte
	if _, err := io.ReadFull(r, common[:]); err != nil {
		return pdu{}, err
	}
	headerLength, dataOffset := int64(common[2]), int64(common[3])
	total := int64(littleEndian.Uint32(common[4:]))
	if headerLength < commonBytes || total < headerLength || total > maxTransferBytes+connectBytes ||
		(total > headerLength && dataOffset < headerLength) || dataOffset > total {
		return pdu{}, errclass.Errorf(errclass.Transient, "the target sent a PDU of type %#x with %d bytes, a header of %d "+
			"and data at %d", common[0], total, headerLength, dataOffset)
	}
	rest := make([]byte, total-commonBytes)
	if _, err := io.ReadFull(r, rest); err != nil {
		return pdu{}, err
	}
	p := pdu{kind: common[0], flags: common[1], header: rest[:headerLength-commonBytes]}
	if total > headerLength {
		p.data = rest[dataOffset-commonBytes:]
	}
	if want := minimumHeaders[p.kind]; headerLength < want || want == 0 {
		return pdu{}, errclass.Errorf(errclass.Transient, "the target sent a PDU of type %#x with a header of %d bytes",
			p.kind, headerLength)
	}
	return p, nil
}

// minimumHeaders are the lengths of the headers of all PDUs that a target sends.
var minimumHeaders = map[byte]int64{
	pduConnectionResponse: connectBytes, pduTermination: headerBytes, pduResponse: headerBytes, pduDataToHost: headerBytes,
	pduReadyToTransfer: headerBytes,
}

// encodePDU returns a PDU with a header of some bytes, the common ones included, and data after it.
func encodePDU(kind, flags byte, headerLength int, fill func(header []byte), data []byte) []byte {
	out := make([]byte, headerLength, headerLength+len(data))
	out[0], out[1], out[2] = kind, flags, byte(headerLength)
	if len(data) > 0 {
		out[3] = byte(headerLength)
	}
	littleEndian.PutUint32(out[4:], uint32(headerLength+len(data)))
	fill(out[commonBytes:])
	return append(out, data...)
}

// StatusError is a status other than success that the target gave a command (NVM Express Base Specification, section
// "Status Field").
type StatusError struct{ Type, Code byte }

func (e *StatusError) Error() string {
	return fmt.Sprintf("the target answers status %#x of type %d", e.Code, e.Type)
}

// statusError returns the error of a response, if it has one.
func statusError(response []byte) error {
	status := littleEndian.Uint16(response[14:]) >> 1
	if status&0x7ff == 0 {
		return nil
	}
	return &StatusError{Type: byte(status >> 8 & 7), Code: byte(status)}
}
