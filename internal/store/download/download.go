// Package download brings an image from a node's disk to a file of a user, or to a stream.
//
// The store of a node serves the hashes of an image's pieces and their data (package imagehttp), on the loopback
// interface of its pod, which nothing but the API server's port forwarding reaches. A reader gets the hashes first, and
// then the pieces in order. Pieces that are zero are known by their hashes, and are not sent. Each piece is compared
// with its hash before it is written, so any copy of the image can take over at any piece, and a file that is there in
// part goes on behind its last good piece. At the end the SHA-512 of everything is compared with the image's.
package download

import (
	"crypto/sha256"
	"net/url"
	"strconv"

	"github.com/varvebackup/varve/internal/store/disk"
)

const (
	// Port is where the store listens.
	Port = 8504
	// Audience is that of the tokens that the store takes.
	Audience = "image-download.store.varvebackup.io"
	// ServiceAccount is whose tokens the store takes. It has no other rights. Whoever may make a token for it may read
	// every image.
	ServiceAccount = "varve-image-download"

	// HashesPath and DataPath are patterns of [net/http.ServeMux]. The query "from" of DataPath is the first piece.
	HashesPath = "GET /v1/images/{image}/{uuid}/{disk}/hashes"
	DataPath   = "GET /v1/images/{image}/{uuid}/{disk}/data"
	FromQuery  = "from"
)

// Copy names the copy of an image on a disk.
type Copy struct{ Image, UUID, DiskUUID string }

func (c Copy) urlPath() string {
	return "/v1/images/" + url.PathEscape(c.Image) + "/" + url.PathEscape(c.UUID) + "/" + url.PathEscape(c.DiskUUID)
}

func (c Copy) hashesURL() string { return "http://store" + c.urlPath() + "/hashes" }

func (c Copy) dataURL(from int) string {
	return "http://store" + c.urlPath() + "/data?" + FromQuery + "=" + strconv.Itoa(from)
}

// PieceLength returns how many bytes a piece of an image has.
func PieceLength(bytes int64, piece int) int {
	return int(min(disk.PieceBytes, bytes-int64(piece)*disk.PieceBytes))
}

// Zeroes knows the hashes of pieces of an image that are zero.
type Zeroes struct {
	bytes       int64
	whole, last disk.PieceHash
}

// NewZeroes returns the hashes of zeroes for an image of so many bytes.
func NewZeroes(bytes int64) Zeroes {
	zero := make([]byte, disk.PieceBytes)
	return Zeroes{
		bytes: bytes, whole: sha256.Sum256(zero),
		last: sha256.Sum256(zero[:PieceLength(bytes, disk.CountPieces(bytes)-1)]),
	}
}

// Has says whether a piece is zero if it has a hash.
func (z *Zeroes) Has(piece int, hash disk.PieceHash) bool {
	if piece == disk.CountPieces(z.bytes)-1 {
		return hash == z.last
	}
	return hash == z.whole
}
