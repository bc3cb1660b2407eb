package scrub

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/varvebackup/varve/internal/durable"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/store/disk"
)

const (
	// stateFile is what a disk has beside its header.
	stateFile = "scrub.json"
	// stateVersion is the version of its format.
	stateVersion = 1
	// maxStateBytes bounds what is read of it: Shares and Left, each with all blocks of a MiB apart.
	maxStateBytes = 128 << 20
	// maxShares bounds how many volumes are remembered, and how many pieces whose volumes are not all remembered.
	maxShares = 1000
)

// state is the content of scrub.json. It is only about when to read what: a disk without it is read from the beginning.
type state struct {
	Format int `json:"format"`
	// Started is when the last pass began, Ended when the last whole one ended, and Goes on whether one goes on.
	Started time.Time `json:"started,omitzero"`
	Ended   time.Time `json:"ended,omitzero"`
	GoesOn  bool      `json:"goesOn,omitempty"`
	// Image and Piece are the next to be read, in the order of the images' UIDs.
	Image disk.UID `json:"image,omitempty"`
	Piece int64    `json:"piece,omitempty"`
	// Copies are what is known of each copy on the disk.
	Copies map[disk.UID]copyNotes `json:"copies,omitempty"`
	// Shares are volumes that share wrong blocks with a copy that was damaged.
	Shares []Share `json:"shares,omitempty"`
	// Left are the pieces that more volumes share than maxShares: Shares of no object. They are looked for again, and
	// noted when there is room.
	Left []Share `json:"left,omitempty"`
	// Omitted says that there were more than maxShares of these, too. Nobody can tell when they are gone, so it stays.
	Omitted bool `json:"omitted,omitempty"`
}

// copyNotes are what is known of a copy.
type copyNotes struct {
	// Read is when the copy was last read as a whole, or first seen if it was not read yet.
	Read time.Time `json:"read"`
	// Checked is the last request to read the copy at once that was carried out: see Scrubber.RequestCheck.
	Checked string `json:"checked,omitempty"`
}

// noteRead notes that a copy was read as a whole.
func (st *state) noteRead(image disk.UID, at time.Time) {
	notes := st.Copies[image]
	notes.Read = at
	st.setNotes(image, notes)
}

// setNotes replaces the map, because others may read the old one.
func (st *state) setNotes(image disk.UID, notes copyNotes) {
	next := maps.Clone(st.Copies)
	if next == nil {
		next = map[disk.UID]copyNotes{}
	}
	next[image] = notes
	st.Copies = next
}

// listReads returns when each copy was read.
func (st *state) listReads() map[disk.UID]time.Time {
	reads := make(map[disk.UID]time.Time, len(st.Copies))
	for image, notes := range st.Copies {
		reads[image] = notes.Read
	}
	return reads
}

// Share is a volume that has wrong blocks of a copy of an image, because it is a clone of it.
type Share struct {
	// Image and ImageUUID are the image's, and Object is what the disk calls the volume or its snapshot.
	Image     string    `json:"image"`
	ImageUUID string    `json:"imageUUID"`
	Object    disk.Name `json:"object"`
	// Piece is the MiB of the image, and Parts are what is wrong in it, or may be.
	Piece int64  `json:"piece"`
	Parts []part `json:"parts"`
	// Found is when.
	Found time.Time `json:"found"`
}

// part is a part of an object, and where it is on the file system's device.
type part struct {
	Offset   int64 `json:"offset"`
	Length   int64 `json:"length"`
	Physical int64 `json:"physical"`
	// Sums are the CRC-32C of what was wrong, in hexadecimal digits, of each block. Without them only the place tells
	// whether it was overwritten, and a file system overwrites a block in its place if nobody shares it any more.
	Sums string `json:"sums,omitempty"`
}

// sumDigits is how many digits of part.Sums a block has.
const sumDigits = 8

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sumBlocks returns part.Sums of some bytes.
func sumBlocks(p []byte) string {
	var sums strings.Builder
	for block := range slices.Chunk(p, blockBytes) {
		fmt.Fprintf(&sums, "%08x", crc32.Checksum(block, castagnoli))
	}
	return sums.String()
}

func countBlocks(length int64) int64 { return (length + blockBytes - 1) / blockBytes }

// within returns what e has of a part.
func (p part) within(e extent.Extent) part {
	both := p.extent().Intersect(e)
	cut := part{Offset: both.Offset, Length: both.Length, Physical: p.placeOf(both.Offset)}
	first, end := both.Offset-p.Offset, both.End()-p.Offset
	if p.Sums != "" && first%blockBytes == 0 && (end%blockBytes == 0 || end == p.Length) {
		cut.Sums = p.Sums[first/blockBytes*sumDigits : countBlocks(end)*sumDigits]
	}
	return cut
}

// hasValidSums reports whether a part that was read from the state has a sum for each block, or none.
func (p part) hasValidSums() bool {
	return p.Sums == "" || p.Offset >= 0 && p.Offset%blockBytes == 0 && p.Length > 0 && p.Length <= disk.PieceBytes &&
		int64(len(p.Sums)) == countBlocks(p.Length)*sumDigits
}

func (p part) extent() extent.Extent { return extent.Extent{Offset: p.Offset, Length: p.Length} }

// Bytes returns how many bytes are shared, and Offset where the first of them is.
func (s Share) Bytes() (sum int64) {
	for _, p := range s.Parts {
		sum += p.Length
	}
	return sum
}

// Offset returns the offset of the first byte.
func (s Share) Offset() int64 { return s.Parts[0].Offset }

// readState reads the state of a disk. If it cannot, it returns an empty state, and an error that says why.
func readState(dir string) (state, error) {
	path := filepath.Join(dir, stateFile)
	none := state{Format: stateVersion}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return none, nil
	}
	if err == nil && info.Size() > maxStateBytes {
		err = fmt.Errorf("%s has %d bytes, too many", path, info.Size())
	}
	if err != nil {
		return none, err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return none, err
	}
	var s state
	if err := json.Unmarshal(data, &s); err != nil {
		return none, fmt.Errorf("decode %s: %w", path, err)
	}
	if s.Format != stateVersion || s.Piece < 0 || len(s.Shares) > maxShares || len(s.Left) > maxShares {
		return none, fmt.Errorf("%s has format %d, piece %d, %d volumes and %d more pieces", path, s.Format, s.Piece,
			len(s.Shares), len(s.Left))
	}
	for _, share := range slices.Concat(s.Shares, s.Left) {
		isBad := func(p part) bool { return !p.hasValidSums() }
		if len(share.Parts) == 0 || slices.ContainsFunc(share.Parts, isBad) {
			return none, fmt.Errorf("%s has nothing of %s, or wrong sums", path, share.Object)
		}
	}
	return s, nil
}

func writeState(dir string, s state) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return durable.Write(filepath.Join(dir, stateFile), append(data, '\n'))
}

// findOverlaps returns the parts of b that are at the same offset and place in a, or may be.
func findOverlaps(a []part, b []disk.Placed) []part {
	var shared []part
	for _, x := range a {
		for _, y := range b {
			both := x.extent().Intersect(y.Extent)
			at, other := x.placeOf(both.Offset), partOf(y).placeOf(both.Offset)
			if !both.Empty() && (at == other || at == disk.Unplaced || other == disk.Unplaced) {
				shared = append(shared, x.within(both))
			}
		}
	}
	return shared
}

func partOf(p disk.Placed) part {
	return part{Offset: p.Offset, Length: p.Length, Physical: p.Physical}
}

// placeOf returns where the byte at an offset is.
func (p part) placeOf(offset int64) int64 {
	if p.Physical == disk.Unplaced {
		return disk.Unplaced
	}
	return p.Physical + offset - p.Offset
}
