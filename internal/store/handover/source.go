package handover

import (
	"encoding/json"
	"fmt"
	"net/url"

	"github.com/varvebackup/varve/internal/errclass"
)

// SourceVariable is the environment variable of a source pod that holds its Source in JSON.
const SourceVariable = "VARVE_IMAGE_SOURCE"

// The values of Source.Type.
const (
	// TypeDownload is an image that is fetched from a web server.
	TypeDownload = "download"
	// TypeUpload is an image that a command uploads.
	TypeUpload = "upload"
)

// Source says what a source pod writes to its device.
type Source struct {
	// Type is TypeDownload or TypeUpload.
	Type string `json:"type"`
	// Image is the name of the image, for the messages of an upload.
	Image string `json:"image,omitempty"`
	// URL is the http or https address of a download. It may hold a password.
	URL string `json:"url,omitempty"`
	// CACertificate holds the certificates (PEM) that alone are trusted for https. Empty: those of the system.
	CACertificate string `json:"caCertificate,omitempty"`
}

// ParseSource reads what SourceVariable holds. Errors do not repeat the address, which may hold a password.
func ParseSource(text string) (Source, error) {
	var s Source
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return Source{}, errclass.Errorf(errclass.Invalid, "%s is not the JSON of a source", SourceVariable)
	}
	switch s.Type {
	case TypeUpload:
		return s, nil
	case TypeDownload:
	default:
		return Source{}, errclass.Errorf(errclass.Invalid, "%s: type %q: only %s and %s are supported", SourceVariable,
			s.Type, TypeDownload, TypeUpload)
	}
	u, err := url.Parse(s.URL)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return Source{}, errclass.Errorf(errclass.Invalid,
			"%s: url must be an address that begins with http:// or https://", SourceVariable)
	}
	return s, nil
}

// String returns the source as JSON.
func (s Source) String() string {
	text, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Errorf("encode a source: %w", err)) // Strings can always be encoded.
	}
	return string(text)
}
