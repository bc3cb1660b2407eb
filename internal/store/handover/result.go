package handover

import "encoding/json"

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

// ParseResult returns the result in a message, or the zero value if there is none. Do not trust the message: the process
// that wrote it has parsed strangers' bytes.
func ParseResult(message string) Result {
	var r Result
	if json.Unmarshal([]byte(message), &r) != nil || len(r.File) > MaxFileBytes {
		return Result{}
	}
	return r
}
