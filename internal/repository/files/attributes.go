package files

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/varvebackup/varve/internal/errclass"
)

// Name is the name of the entry with the attributes beside the tree.
const Name = "varve.attributes"

const (
	// attributesVersion is the version of the attributes.
	attributesVersion = 1
	// maxLineBytes bounds a line of the attributes. The kernel has at most 64 KiB for the names of an inode's attributes, and at most 64
	// KiB for each value; ext4 and XFS have less than a mebibyte in all but contrived cases.
	maxLineBytes = 64 << 20
)

// attributesHeader is the first line.
type attributesHeader struct {
	Stream  string `json:"stream"`
	Version int    `json:"version"`
}

var header = attributesHeader{Stream: "varve:attributes", Version: attributesVersion}

// record is what kopia's directories have no place for, of one file or directory.
type record struct {
	// Path has encoded names, and is "." for the root.
	Path string `json:"path"`
	// Dir says that it is a directory.
	Dir bool `json:"dir,omitempty"`
	// Xattrs are extended attributes, by encoded name.
	Xattrs map[string][]byte `json:"xattrs,omitempty"`
	// Link is the same for all names of one inode; "" if it has one name.
	Link string `json:"link,omitempty"`
	// Sparse says that the file has holes, and Data has an offset and a length for everything else.
	Sparse bool    `json:"sparse,omitempty"`
	Data   []int64 `json:"data,omitempty"`
	// Mtime is the time of modification, in seconds since 1970 and nanoseconds, if kopia cannot express it.
	Mtime *[2]int64 `json:"mtime,omitempty"`
	// Special is a pipe or device, which kopia's directories do not have.
	Special *special `json:"special,omitempty"`
}

// special is a file that is neither a regular one, nor a directory, nor a symbolic link.
type special struct {
	// Type is "pipe", "char" or "block".
	Type string `json:"type"`
	// Mode are the permissions with the bits of the kernel: at most 07777.
	Mode uint32 `json:"mode"`
	UID  uint32 `json:"uid"`
	GID  uint32 `json:"gid"`
	// Mtime is in seconds since 1970 and nanoseconds.
	Mtime [2]int64 `json:"mtime"`
	// Major and Minor are a device's numbers.
	Major uint32 `json:"major,omitempty"`
	Minor uint32 `json:"minor,omitempty"`
}

// isEmpty says that kopia's directory has everything.
func (a *record) isEmpty() bool {
	return len(a.Xattrs) == 0 && a.Link == "" && !a.Sparse && a.Mtime == nil && a.Special == nil
}

// attributesWriter writes records in the order of comparePaths.
type attributesWriter struct {
	lines *json.Encoder
}

func newAttributesWriter(w io.Writer) (*attributesWriter, error) {
	lines := json.NewEncoder(w)
	lines.SetEscapeHTML(false)
	return &attributesWriter{lines: lines}, lines.Encode(header)
}

func (w *attributesWriter) write(a *record) error { return w.lines.Encode(a) }

// attributesReader reads them.
type attributesReader struct {
	lines *bufio.Scanner
	// next is the next record; nil at the end.
	next *record
}

// newAttributesReader reads the header and the first record. What it cannot understand is errclass.Corrupt, or errclass.Invalid if a
// newer program wrote it.
func newAttributesReader(r io.Reader) (*attributesReader, error) {
	a := &attributesReader{lines: bufio.NewScanner(r)}
	a.lines.Buffer(nil, maxLineBytes)
	var h attributesHeader
	if ok, err := a.readLine(&h); err != nil || !ok {
		return nil, errors.Join(err, orCorrupt(ok, "no header"))
	}
	if h.Stream != header.Stream {
		return nil, fmt.Errorf("%w: %s: a stream of type %q", errclass.Corrupt, Name, h.Stream)
	}
	if h.Version != attributesVersion {
		return nil, fmt.Errorf("%w: %s has version %d; this program reads %d: use a newer one", errclass.Invalid, Name, h.Version, attributesVersion)
	}
	return a, a.advance()
}

func orCorrupt(ok bool, what string) error {
	if ok {
		return nil
	}
	return fmt.Errorf("%w: %s: %s", errclass.Corrupt, Name, what)
}

func (a *attributesReader) readLine(into any) (bool, error) {
	if !a.lines.Scan() {
		return false, a.lines.Err()
	}
	if err := json.Unmarshal(a.lines.Bytes(), into); err != nil {
		return true, fmt.Errorf("%w: %s: %w", errclass.Corrupt, Name, err)
	}
	return true, nil
}

// advance reads the next record, which must be behind the one before.
func (a *attributesReader) advance() error {
	last := a.next
	next := &record{}
	ok, err := a.readLine(next)
	a.next = nil
	if err != nil || !ok {
		return err
	}
	if next.Path == "" || last != nil && comparePaths(last.Path, last.Dir, next.Path, next.Dir) >= 0 {
		return fmt.Errorf("%w: %s: %q comes too late", errclass.Corrupt, Name, next.Path)
	}
	if len(next.Data)%2 != 0 {
		return fmt.Errorf("%w: %s: %q has half an extent", errclass.Corrupt, Name, next.Path)
	}
	a.next = next
	return nil
}

// take returns the record of a path, or an empty one if there is none. It hands every record before that to skipped.
func (a *attributesReader) take(path string, dir bool, skipped func(*record) error) (*record, error) {
	for a.next != nil {
		order := comparePaths(a.next.Path, a.next.Dir, path, dir)
		if order > 0 {
			break
		}
		found := a.next
		if err := a.advance(); err != nil {
			return nil, err
		}
		if order == 0 {
			return found, nil
		}
		if err := skipped(found); err != nil {
			return nil, err
		}
	}
	return &record{Path: path, Dir: dir}, nil
}
