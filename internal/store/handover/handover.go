// Package handover is how a source pod, which makes the first copy of an image on a block device, tells the store how
// far it is and how large the image is. The pod has no other way to speak to the store, and the store trusts nothing
// that it says: what is sealed is what the store reads back.
//
// The device is a thin head of DeviceBytes. The image begins at its first byte. From ScratchOffset on the source may
// store what it converts. The last BlockBytes bytes are a Record:
// JSON, filled up with zeroes. A device of zeroes has no record yet.
package handover

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/varvebackup/varve/internal/errclass"
)

const (
	// DeviceBytes is the size of the device.
	DeviceBytes = 8 << 40
	// BlockBytes is the size of the record.
	BlockBytes = 4096
	// MaxFileBytes is the greatest length of Record.File.
	MaxFileBytes = 64
	// MaxImageBytes is the size of the largest image. A store has 512 MiB of memory, and the hashes of such an image take
	// 64 MiB of it: twice while it is sealed, copied, or opened to be read, and a store does up to three of these at once.
	MaxImageBytes = 2 << 40
	// ScratchOffset is where a source stores an image that it cannot read in any order, while it converts it: far behind
	// the largest image. ScratchBytes is how much it stores at most. When the source is complete, nothing is left of it.
	ScratchOffset = 4 << 40
	ScratchBytes  = 3 << 40

	recordOffset  = DeviceBytes - BlockBytes
	formatVersion = 1
)

// Record says how far the source is.
type Record struct {
	// Bytes is the size of the raw image, or 0 as long as it is not known.
	Bytes int64 `json:"bytes"`
	// Done and Total say how much of the source was read: in bytes of the file that it reads. Total is 0 if it is not
	// known. A source that is interrupted and can go on does so at Done.
	Done  int64 `json:"done"`
	Total int64 `json:"total"`
	// Complete is true when the whole image is on the device, durably.
	Complete bool `json:"complete"`
	// Waits is true while the source can do nothing because no command that uploads the image is connected.
	Waits bool `json:"waits,omitempty"`
	// File is the uploading command's identity of the file that the image was made from. Only a complete record has it.
	File string `json:"file,omitempty"`
}

// Percent returns the progress in percent: 100 only if the record is complete.
func (r Record) Percent() int {
	switch {
	case r.Complete:
		return 100
	case r.Total <= 0 || r.Done <= 0:
		return 0
	default:
		return int(min(99, float64(r.Done)/float64(r.Total)*100))
	}
}

func (r Record) validate() error {
	switch {
	case r.Bytes < 0 || r.Bytes > MaxImageBytes:
		return errclass.Errorf(errclass.Invalid, "the image has %d bytes, and the most is %d", r.Bytes, int64(MaxImageBytes))
	case r.Complete && r.Bytes == 0:
		return errclass.Errorf(errclass.Invalid, "the image is empty")
	case r.Done < 0 || r.Total < 0:
		return errclass.Errorf(errclass.Invalid, "%d of %d bytes", r.Done, r.Total)
	case len(r.File) > MaxFileBytes:
		return errclass.Errorf(errclass.Invalid, "the name of the file has %d bytes, and the most is %d", len(r.File),
			MaxFileBytes)
	}
	return nil
}

type versioned struct {
	Format int `json:"format"`
	Record
}

// Read reads the record of a device, or of the file under it. A device without one gives an empty record.
func Read(device io.ReaderAt) (Record, error) {
	block := make([]byte, BlockBytes)
	if _, err := device.ReadAt(block, recordOffset); err != nil {
		return Record{}, fmt.Errorf("read the source's record: %w", err)
	}
	text := bytes.TrimRight(block, "\x00")
	if len(text) == 0 {
		return Record{}, nil
	}
	var v versioned
	err := json.Unmarshal(text, &v)
	if err == nil && v.Format != formatVersion {
		err = fmt.Errorf("format version %d, and this Varve knows %d", v.Format, formatVersion)
	}
	if err == nil {
		err = v.validate()
	}
	if err != nil {
		return Record{}, fmt.Errorf("read the source's record: %w: %w", errclass.Corrupt, err)
	}
	return v.Record, nil
}

// Write writes the record of a device. It is not durable before the device is synced.
func Write(device io.WriterAt, r Record) error {
	err := r.validate()
	var text []byte
	if err == nil {
		text, err = json.Marshal(versioned{Format: formatVersion, Record: r})
	}
	block := make([]byte, BlockBytes)
	copy(block, text)
	if err == nil {
		_, err = device.WriteAt(block, recordOffset)
	}
	if err != nil {
		return fmt.Errorf("write the source's record: %w", err)
	}
	return nil
}
