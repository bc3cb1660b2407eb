package domain

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/varvebackup/varve/internal/durable"
)

// recordVersion is the format version of an overlay's record. A record of another version counts as unreadable, so
// a new overlay is created.
const recordVersion = 2

// errBadRecord: the file is not a record that this program wrote.
var errBadRecord = errors.New("unreadable overlay record")

// record is the content of <volume>.json.
type record struct {
	Version  int      `json:"version"`
	Identity Identity `json:"identity"`
	// Run is the last run of the disk that the overlay knows of. Empty: the last run is unknown.
	Run string `json:"run,omitempty"`
	// Clean is set while no guest runs: after QEMU closed the overlay cleanly, or before it first opens it.
	Clean *cleanRecord `json:"clean,omitempty"`
	// BeforeStart is the value of Clean before the overlay was marked as started.
	BeforeStart *cleanRecord `json:"beforeStart,omitempty"`
}

// cleanRecord is what the files looked like when nobody had them open.
type cleanRecord struct {
	Raw     stamp `json:"raw"`
	Overlay stamp `json:"overlay"`
	// Content is the fingerprint of the raw disk.
	Content fingerprint `json:"content"`
}

// cleanNow returns what a raw disk and its overlay look like now. The seed selects the parts of the content that are hashed.
func cleanNow(rawPath, overlayPath, seed string) (*cleanRecord, error) {
	c := &cleanRecord{}
	var err error
	if c.Raw, err = stampOf(rawPath); err != nil {
		return nil, err
	}
	if c.Overlay, err = stampOf(overlayPath); err != nil {
		return nil, err
	}
	if c.Content, err = fingerprintOf(rawPath, seed); err != nil {
		return nil, err
	}
	return c, nil
}

// stamp tells versions of a file apart. For a block device only Bytes has a meaning: the node is new in every pod,
// and a device has no modification time. The fingerprint and the runs of the claim cover the rest.
type stamp struct {
	Bytes     int64  `json:"bytes"`
	Inode     uint64 `json:"inode,omitempty"`
	MtimeNsec int64  `json:"mtimeNanoseconds,omitempty"`
}

func stampOf(path string) (stamp, error) {
	info, err := os.Stat(path)
	if err != nil {
		return stamp{}, err
	}
	size, err := DiskSize(path)
	if err != nil {
		return stamp{}, err
	}
	s := stamp{Bytes: size}
	if info.Mode().IsRegular() {
		s.MtimeNsec = info.ModTime().UnixNano()
		if sys, ok := info.Sys().(*syscall.Stat_t); ok {
			s.Inode = sys.Ino
		}
	}
	return s, nil
}

func readRecord(path string) (*record, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	rec := &record{}
	if err := json.Unmarshal(data, rec); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", path, errBadRecord, err)
	}
	if rec.Version != recordVersion {
		return nil, fmt.Errorf("%s: %w: format version %d, not %d", path, errBadRecord, rec.Version, recordVersion)
	}
	return rec, nil
}

// claimRecord is the part of a record, of any version, that describes the disk's claim.
type claimRecord struct {
	Identity Identity `json:"identity"`
}

func writeRecord(path string, rec *record) error {
	rec.Version = recordVersion
	data, err := json.MarshalIndent(rec, "", "  ")
	if err != nil {
		return err
	}
	return durable.Write(path, append(data, '\n'))
}
