package blobhttp

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"syscall"
	"time"

	"github.com/kopia/kopia/repo/blob"

	"github.com/varvebackup/varve/internal/errclass"
)

// The paths. A blob's name is one escaped segment.
const (
	blobsPath    = "/v1/blobs"
	metadataPath = "/v1/metadata"
	capacityPath = "/v1/capacity"
	pingPath     = "/v1/ping"
)

// The parameters of requests.
const (
	prefixParameter = "prefix"
	offsetParameter = "offset"
	lengthParameter = "length"
)

// metadata is a blob's metadata. With End or Failure, it is the end of a list.
type metadata struct {
	ID      string    `json:"id,omitempty"`
	Length  int64     `json:"length"`
	Time    time.Time `json:"time"`
	End     bool      `json:"end,omitempty"`
	Failure *failure  `json:"failure,omitempty"`
}

func wireMetadata(m blob.Metadata) metadata {
	return metadata{ID: string(m.BlobID), Length: m.Length, Time: m.Timestamp}
}

func (m metadata) blob() blob.Metadata {
	return blob.Metadata{BlobID: blob.ID(m.ID), Length: m.Length, Timestamp: m.Time}
}

// capacity is how much the volume of a storage holds, in bytes.
type capacity struct {
	Size uint64 `json:"size"`
	Free uint64 `json:"free"`
}

// failure is an error of the storage. Its status is never 200.
type failure struct {
	Code string `json:"code"`
	Text string `json:"text"`
}

// codes are the errors that callers act on. The first that an error is counts. Classes, which follow, have the names of their reasons.
var codes = []struct {
	code   string
	err    error
	status int
}{
	{"BlobNotFound", blob.ErrBlobNotFound, http.StatusNotFound},
	{"InvalidRange", blob.ErrInvalidRange, http.StatusRequestedRangeNotSatisfiable},
	{"UnsupportedOption", blob.ErrUnsupportedPutBlobOption, http.StatusNotImplemented},
	{"NotAVolume", blob.ErrNotAVolume, http.StatusNotImplemented},
	{"NoSpace", syscall.ENOSPC, http.StatusInsufficientStorage},
	{"Quota", syscall.EDQUOT, http.StatusInsufficientStorage},
	{"ReadOnly", syscall.EROFS, http.StatusForbidden},
	{"Permission", fs.ErrPermission, http.StatusForbidden},
	{"Absent", fs.ErrNotExist, http.StatusGone},
}

func newFailure(err error) (f failure, status int) {
	for _, c := range codes {
		if errors.Is(err, c.err) {
			return failure{Code: c.code, Text: err.Error()}, c.status
		}
	}
	return failure{Code: errclass.Reason(err), Text: err.Error()}, errclass.HTTPStatus(err)
}

// err returns the error that a failure is of, for the storage of that name.
func (f failure) err(name string) error {
	for _, c := range codes {
		if c.code != f.Code {
			continue
		}
		errno, ok := c.err.(syscall.Errno) //nolint:errorlint // as the table has it
		switch {
		case ok:
			return &fs.PathError{Op: "write", Path: name, Err: errno}
		case errors.Is(c.err, fs.ErrNotExist):
			return errclass.Errorf(errclass.NotFound, "%s: %w", name, errclass.Errorf(c.err, "%s", f.Text))
		}
		return errclass.Errorf(c.err, "%s: %s", name, f.Text)
	}
	for _, class := range errclass.All {
		if errclass.Reason(class) == f.Code {
			return errclass.Errorf(class, "%s: %s", name, f.Text)
		}
	}
	return fmt.Errorf("%s: %s", name, f.Text)
}
