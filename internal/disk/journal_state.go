package disk

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"slices"
)

const (
	// journalVersion is the version of the journal's format.
	journalVersion = 2
	// maxRegions bounds the journal to 512 KiB of bits, which are rewritten at each checkpoint.
	maxRegions = 4 << 20
)

// journalState is the journal's file, as JSON.
type journalState struct {
	Version int    `json:"version"`
	Token   string `json:"token"`
	// Format is the target's: a half-written qcow2 image cannot be continued as a raw disk.
	Format Format `json:"format"`
	// Target is the identity of the target.
	Target string `json:"target"`
	// Bytes is the size of the disk, RegionBytes the size of its regions.
	Bytes       int64 `json:"bytes"`
	RegionBytes int64 `json:"regionBytes"`
	// Finished has a bit for each region, beginning with the lowest bit of the first byte; in base64.
	Finished regionSet `json:"finished"`
}

func newState(token, target string, size, regionBytes int64) journalState {
	s := journalState{Version: journalVersion, Token: token, Target: target, Bytes: size, RegionBytes: regionBytes}
	s.Finished = make(regionSet, (min(s.regionCount(), maxRegions)+7)/8)
	return s
}

// regionCount returns the number of regions of the disk.
func (s *journalState) regionCount() int64 {
	n := s.Bytes / s.RegionBytes
	if s.Bytes%s.RegionBytes > 0 {
		n++
	}
	return n
}

func (s *journalState) finishedBytes() int64 {
	if len(s.Finished) == 0 {
		return 0
	}
	n := int64(s.Finished.count()) * s.RegionBytes
	if rest := s.Bytes % s.RegionBytes; rest > 0 && s.Finished.has(int(s.regionCount())-1) {
		n -= s.RegionBytes - rest
	}
	return n
}

func (s *journalState) clone() journalState {
	out := *s
	out.Finished = slices.Clone(s.Finished)
	return out
}

// isEarlierThan reports whether s is an earlier state of the same restore as o.
func (s *journalState) isEarlierThan(o *journalState) bool {
	for i, b := range s.Finished {
		if i >= len(o.Finished) || b&^o.Finished[i] != 0 {
			return false
		}
	}
	return s.Token == o.Token && s.Format == o.Format && s.Target == o.Target && s.Bytes == o.Bytes && s.RegionBytes == o.RegionBytes
}

func (s *journalState) marshal() []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // only strings and numbers
	}
	return append(b, '\n')
}

// parseState reads what marshal wrote, and nothing else.
func parseState(data []byte) (journalState, error) {
	var s journalState
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return journalState{}, err
	}
	switch {
	case s.Version != journalVersion:
		return journalState{}, fmt.Errorf("version %d, not %d", s.Version, journalVersion)
	case s.Bytes <= 0 || s.RegionBytes <= 0 || s.regionCount() > maxRegions:
		return journalState{}, fmt.Errorf("a disk of %d bytes in regions of %d", s.Bytes, s.RegionBytes)
	case int64(len(s.Finished)) != (s.regionCount()+7)/8:
		return journalState{}, fmt.Errorf("%d bytes for %d regions", len(s.Finished), s.regionCount())
	case s.regionCount()%8 > 0 && s.Finished[len(s.Finished)-1]>>(s.regionCount()%8) > 0:
		return journalState{}, errors.New("it has regions behind the end")
	}
	return s, nil
}

// regionSet is a set of regions, one bit each.
type regionSet []byte

func (r regionSet) has(i int) bool { return i >= 0 && i/8 < len(r) && r[i/8]>>(i%8)&1 == 1 }
func (r regionSet) set(i int)      { r[i/8] |= 1 << (i % 8) }

func (r regionSet) count() int {
	n := 0
	for _, b := range r {
		n += bits.OnesCount8(b)
	}
	return n
}
