package v1

import (
	"encoding/json"
	"time"
)

// Duration is a duration as its text, such as 4h or 90s. Any text can be read: one object that cannot be would keep all others from being read.
//
// +kubebuilder:validation:Type=string
type Duration struct {
	time.Duration `json:"-"`
	// Invalid is the text, if it is no duration. Duration is 0 then.
	Invalid string `json:"-"`
}

// UnmarshalJSON implements json.Unmarshaler. It does not fail.
func (d *Duration) UnmarshalJSON(data []byte) error {
	*d = Duration{}
	var text *string
	if err := json.Unmarshal(data, &text); err != nil {
		d.Invalid = string(data)
		return nil //nolint:nilerr // documented
	}
	if text == nil {
		return nil
	}
	parsed, err := time.ParseDuration(*text)
	if err != nil {
		d.Invalid = *text
		if *text == "" {
			d.Invalid = `""`
		}
		return nil
	}
	d.Duration = parsed
	return nil
}

// MarshalJSON implements json.Marshaler.
func (d Duration) MarshalJSON() ([]byte, error) {
	switch d.Invalid {
	case "":
		return json.Marshal(d.Duration.String())
	case `""`:
		return json.Marshal("")
	default:
		return json.Marshal(d.Invalid)
	}
}
