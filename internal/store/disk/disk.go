// Package disk is the contract of one disk of one node that holds images and volumes: a directory on a file system with
// reflinks, or a store of logical volumes. Package disktest checks it, and every implementation runs that suite.
//
// A disk holds heads, which can be written, and snapshots and images, which cannot. A snapshot or an image exists only
// if it is whole. After a restart List is the only truth: nothing else remembers what a disk holds. Replicas on several
// nodes will need more than this: to record a generation, and to serve an object over the network.
package disk

import (
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"unicode"
	"unicode/utf8"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
)

// Name is what users call an object, such as ubuntu-22.04: 1 to MaxNameBytes bytes of printable UTF-8, with slashes and
// dots as they like. It is unique on the disk.
type Name string

// MaxNameBytes is the length of the longest Name.
const MaxNameBytes = 255

// Validate returns an error of class Invalid if n is not a name.
func (n Name) Validate() error {
	switch {
	case n == "" || len(n) > MaxNameBytes:
		return errclass.Errorf(errclass.Invalid, "the name %.80q has %d bytes: use 1 to %d", n, len(n), MaxNameBytes)
	case !utf8.ValidString(string(n)):
		return errclass.Errorf(errclass.Invalid, "the name %q is not valid UTF-8", n)
	}
	for _, r := range n {
		if !unicode.IsPrint(r) {
			return errclass.Errorf(errclass.Invalid, "the name %q contains %q, which cannot be printed: leave it out", n, r)
		}
	}
	return nil
}

// UID identifies an object for ever, on every disk: 1 to MaxUIDBytes lower-case letters, digits and hyphens, as
// Kubernetes makes them.
type UID string

// MaxUIDBytes is the length of the longest UID.
const MaxUIDBytes = 64

// Validate returns an error of class Invalid if u is not a UID. A UID is safe as a file's name.
func (u UID) Validate() error {
	if u == "" || len(u) > MaxUIDBytes {
		return errclass.Errorf(errclass.Invalid, "the UID %.80q has %d bytes: use 1 to %d", u, len(u), MaxUIDBytes)
	}
	for _, c := range []byte(u) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return errclass.Errorf(errclass.Invalid, "the UID %q contains %q: use a-z, 0-9 and -", u, c)
		}
	}
	return nil
}

// Kind says what an object is.
type Kind string

// The kinds of objects.
const (
	// KindHead is written by its volume, or while an image is made.
	KindHead Kind = "head"
	// KindSnapshot is what a head had at a moment. Its head goes on as its clone.
	KindSnapshot Kind = "snapshot"
	// KindImage is a copy of an image. It stands alone: it has no parent, and no head goes on as its clone.
	KindImage Kind = "image"
)

// State says what an object can be used for.
type State string

// The states of objects.
const (
	// StateWritable is the state of a head.
	StateWritable State = "writable"
	// StateReady is the state of a snapshot or an image that can be read and cloned.
	StateReady State = "ready"
	// StateDamaged means that the object's data is not what the disk recorded. It can only be deleted.
	StateDamaged State = "damaged"
)

// Object is something that a disk holds.
type Object struct {
	Name   Name
	UID    UID
	Volume UID // empty for an image
	Parent UID // the snapshot or image that it is a clone of, or empty
	Kind   Kind
	Bytes  int64 // the size that a reader sees; any number above 0
	State  State
	// Checksum is the SHA-512 of all bytes in hexadecimal. A head has none, nor has a snapshot sealed without one.
	Checksum string
}

// Source says what a new head is made of. The same Source makes the same head.
type Source struct {
	UID    UID   // of the new head
	Volume UID   // what the head belongs to: a volume, or the image that is being made
	From   Name  // a snapshot or an image that is ready; empty for a head of zeroes
	Bytes  int64 // of the new head; not fewer than From has
	// Independent makes the head without a parent, so that From can be deleted while the head exists.
	Independent bool
}

// Seal says what Snapshot makes.
type Seal struct {
	UID  UID  // of the snapshot or the image
	Kind Kind // KindSnapshot or KindImage
	// Bytes is how many bytes an image has: the first ones of its head, at most all of them. 0 stands for all. A snapshot
	// always has all.
	Bytes int64
	// Checksum is what the data must have: a SHA-512, or a SHA-256 of 64 digits. Object.Checksum is the SHA-512 in any
	// case. If it is empty, an image gets the one that was read, and a snapshot has none, so that it is not read at all.
	Checksum string
	// Pieces are the hashes that the pieces of an image must have. If they are given, the data is compared with them and
	// with nothing else, and Checksum has to be the SHA-512 of what they are the hashes of: the caller knows that.
	Pieces []PieceHash
	// Exclusive has Snapshot return Conflict if somebody has leased the head, and Open of the head return Transient until
	// its data is taken. So nobody writes meanwhile, and what is sealed is of one moment. After that, while an image is
	// read back, the head may be used and deleted.
	Exclusive bool
}

// Validate returns an error of class Invalid if Snapshot can make nothing of s.
func (s Seal) Validate() error {
	switch {
	case s.Kind != KindSnapshot && s.Kind != KindImage:
		return errclass.Errorf(errclass.Invalid, "the kind is %s: use %s or %s", s.Kind, KindSnapshot, KindImage)
	case len(s.Pieces) > 0 && s.Kind != KindImage:
		return errclass.Errorf(errclass.Invalid, "hashes of pieces of a %s: use them for an image", s.Kind)
	case s.Bytes < 0, s.Bytes > 0 && s.Kind != KindImage:
		return errclass.Errorf(errclass.Invalid, "%d bytes of a %s: use 0", s.Bytes, s.Kind)
	case !IsSHA256(s.Checksum):
		return errors.Join(s.UID.Validate(), ValidateChecksum(s.Checksum))
	}
	if raw, err := hex.DecodeString(s.Checksum); err != nil || hex.EncodeToString(raw) != s.Checksum {
		return errclass.Errorf(errclass.Invalid, "the checksum %q is not a SHA-256: use 64 digits of 0-9 and a-f", s.Checksum)
	}
	return s.UID.Validate()
}

// ValidateChecksum returns an error of class Invalid if a checksum is neither empty nor a SHA-512 in lower-case
// hexadecimal.
func ValidateChecksum(checksum string) error {
	raw, err := hex.DecodeString(checksum)
	if err != nil || (len(raw) != sha512.Size && len(raw) != 0) || hex.EncodeToString(raw) != checksum {
		return errclass.Errorf(errclass.Invalid, "the checksum %.140q is no SHA-512: use 128 digits of 0-9 and a-f", checksum)
	}
	return nil
}

// IsSHA256 reports whether a checksum is one of a SHA-256, by its length.
func IsSHA256(checksum string) bool { return len(checksum) == 2*sha256.Size }

// PieceBytes is the size of the pieces of an image that have hashes of their own. The last piece may be smaller.
const PieceBytes = 1 << 20

// CountPieces returns how many pieces an image of some bytes has.
func CountPieces(bytes int64) int { return int((bytes + PieceBytes - 1) / PieceBytes) }

// PieceHash is the SHA-256 of a piece of an image.
type PieceHash = [sha256.Size]byte

// SumPieces returns one hash for all pieces of an image: the SHA-256 of their hashes in order, in hexadecimal. It tells
// whether hashes that another store sends are those of the image.
func SumPieces(pieces []PieceHash) string {
	all := sha256.New()
	for i := range pieces {
		_, _ = all.Write(pieces[i][:]) // a hash returns no error
	}
	return hex.EncodeToString(all.Sum(nil))
}

// ErrBusy is an error of class Transient: another call is at work on the object, and ends without help.
var ErrBusy = errclass.New(errclass.Transient, "busy")

// FetchPiece fills want with the bytes that a piece of an image must have. has is what the disk has, or nil if the disk
// cannot read it.
type FetchPiece func(ctx context.Context, piece int, has, want []byte) error

// Unplaced is the place of data whose place the disk does not tell, such as compressed data.
const Unplaced = -1

// Placed is a part of an object's data, and where on the disk its first byte is, in bytes, or Unplaced.
type Placed struct {
	extent.Extent

	Physical int64
}

// ChecksumError is an error of class Corrupt: data does not have the checksum that it must have.
type ChecksumError struct{ Algorithm, Found, Wanted string }

func (e *ChecksumError) Error() string {
	return fmt.Sprintf("%v: its %s is %s, not %s", errclass.Corrupt, e.Algorithm, e.Found, e.Wanted)
}

// Is reports whether target is the error's class.
func (e *ChecksumError) Is(target error) bool { return target == errclass.Corrupt }

// Usage is the space of a disk, in bytes.
type Usage struct {
	Capacity, Available int64
	// Provisioned is the sum of the heads' sizes. It may exceed Capacity, because space is taken when it is written.
	Provisioned int64
}

// Lease keeps an object from being deleted. It ends with Close, or with the process: who still uses an object after
// a restart opens it again before anything can delete it.
type Lease interface {
	// Path names a file or a block device. Only that of a head can be written.
	Path() string
	// Close ends this lease, and no other one of the same object. A second Close does nothing.
	Close() error
}

// Disk is one disk. Calls may overlap. An error has one of these classes: Invalid for an argument, NotFound for a name,
// Conflict where another object or a user is in the way, Transient where another call is still busy with the object,
// Exhausted for space, Corrupt for damaged data. A call that fails leaves the disk as it was. An error of class Unknown
// means that this is not certain: the same call again finds that out or finishes it.
type Disk interface {
	// List returns all objects, sorted by name.
	List(ctx context.Context) ([]Object, error)
	// Create makes a head. It succeeds if a head with this name was made from the same Source, and returns Conflict if
	// the UID or the name is taken by anything else. The head is durable when Create returns.
	Create(ctx context.Context, head Name, from Source) error
	// Grow gives a head more bytes, which are zeroes. It succeeds if the head has as many already, and returns Invalid if
	// it has more. A device on the head keeps its size.
	Grow(ctx context.Context, head Name, bytes int64) error
	// Snapshot makes a snapshot or an image of what head has now. Whoever wants a certain moment holds writes meanwhile.
	// It is idempotent by Seal.UID as Create is, also when head is gone. Data that does not have Seal.Checksum is
	// Corrupt, and nothing is made.
	Snapshot(ctx context.Context, head, name Name, seal Seal) error
	// Changed returns, in order, extents of the object that cover every difference to since, which is a snapshot or an
	// image. It may return more, and reads no data. If since is empty, extents cover everything that is not a hole. What
	// is written to a head meanwhile may be missing. Neither object is deleted before the iteration ends.
	Changed(ctx context.Context, name, since Name) iter.Seq2[extent.Extent, error]
	// Open leases an object for its user, who may be one of many.
	Open(ctx context.Context, name Name) (Lease, error)
	// Pieces returns the hashes of an image's pieces, in order, as they were when it was sealed.
	Pieces(ctx context.Context, name Name) ([]PieceHash, error)
	// ReadPiece fills p, which is as long as the piece, with a piece of an image, damaged or not. The error has class
	// Corrupt if the piece does not have its hash, and NotFound if the image does not have this UID.
	ReadPiece(ctx context.Context, name Name, uid UID, piece int, p []byte) error
	// MarkDamaged records for ever that an image's data is not what its hashes say, and why: its State is StateDamaged from
	// then on. Leases that are open stay. The error has class NotFound if the image does not have this UID.
	MarkDamaged(ctx context.Context, name Name, uid UID, why string) error
	// Repair reads a damaged image to its end, and replaces each piece that does not match its hash with what fetch
	// returns. Then the image is ready again. If a piece cannot be fetched, Repair still calls fetch for all other bad
	// pieces, and changes nothing. Clones keep the blocks that they share with the damaged image. Those that exist when
	// fetch is called are all there are: nobody can clone a damaged image. The error has class NotFound if the image does
	// not have this UID, and is ErrBusy while another repair goes on, or a clone of the image is being made.
	Repair(ctx context.Context, name Name, uid UID, fetch FetchPiece) error
	// Place returns, in order, where the data of a part of an object is, without holes. It reads no data, and works for a
	// damaged object, too. Two objects of a disk share what they have at the same offset and place.
	Place(ctx context.Context, name Name, within extent.Extent) ([]Placed, error)
	// Users returns how many leases of an object are open.
	Users(ctx context.Context, name Name) (int, error)
	// Delete removes an object. It returns Conflict with the clones' names if heads of others are clones of it, or while a
	// lease is open. The clones within its own replica become clones of its parent.
	Delete(ctx context.Context, name Name) error
	// Usage returns the space of the disk.
	Usage(ctx context.Context) (Usage, error)
}
