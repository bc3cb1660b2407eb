package handover

import "encoding/json"

// Result is what a source pod that has succeeded says in its termination message.
type Result struct {
	// File is Record.File.
	File string `json:"file"`
}

// String returns the message.
func (r Result) String() string {
	text, _ := json.Marshal(r) // A text can always be encoded.
	return string(text)
}

// ParseResult returns the result that a message holds. Another message has none. What parsed strangers' bytes wrote it.
func ParseResult(message string) Result {
	var r Result
	if json.Unmarshal([]byte(message), &r) != nil || len(r.File) > MaxFileBytes {
		return Result{}
	}
	return r
}
