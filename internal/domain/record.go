package domain

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/varvebackup/varve/internal/durable"
)

// recordVersion is the format of an overlay's record. A record of another version counts as unreadable,
// so that the overlay is made anew.
const recordVersion = 1

// errBadRecord: the file is not a record that this program wrote.
var errBadRecord = errors.New("unreadable overlay record")

// record is the content of <volume>.json.
type record struct {
	Version  int      `json:"version"`
	Identity Identity `json:"identity"`
	// Clean is there while no guest runs, after QEMU closed the overlay in order.
	Clean *cleanRecord `json:"clean,omitempty"`
}

// cleanRecord is what the files looked like when nobody had them open.
type cleanRecord struct {
	Raw     stamp `json:"raw"`
	Overlay stamp `json:"overlay"`
}

// stamp tells a file's versions apart. For a block device only Bytes means anything: the node is new in
// every pod, and a device has no modification time.
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

func writeRecord(path string, rec *record) error {
	rec.Version = recordVersion
	data, err := json.MarshalIndent(rec, "", "  ")
	if err != nil {
		return err
	}
	return durable.Write(path, append(data, '\n'))
}
