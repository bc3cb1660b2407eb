package handover

import (
	"encoding/json"
	"strings"

	"github.com/varvebackup/varve/internal/errclass"
)

// Result is the termination message of a source pod that has succeeded with an upload.
type Result struct {
	// File is Record.File.
	File string `json:"file"`
}

// String returns the message.
func (r Result) String() string {
	text, _ := json.Marshal(r) // A text can always be encoded.
	return string(text)
}

// DescribeFailure returns the termination message of a source pod that has failed: the error's class and its text.
func DescribeFailure(err error, text string) string { return errclass.Reason(err) + ": " + text }

// IsFull says whether a termination message says that the disk of the image is full.
func IsFull(message string) bool {
	class, _, _ := strings.Cut(message, ":")
	return class == errclass.Reason(errclass.Exhausted)
}

// ParseResult returns the result in a message, or the zero value if there is none. Do not trust the message: the process
// that wrote it has parsed strangers' bytes.
func ParseResult(message string) Result {
	var r Result
	if json.Unmarshal([]byte(message), &r) != nil || len(r.File) > MaxFileBytes {
		return Result{}
	}
	return r
}
