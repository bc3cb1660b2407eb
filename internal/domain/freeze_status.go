package domain

import (
	"encoding/json"
	"fmt"
)

// saysFrozen reads the answer to the agent's guest-fsfreeze-status.
func saysFrozen(answer string) (bool, error) {
	var status struct {
		Return string `json:"return"`
	}
	if err := json.Unmarshal([]byte(answer), &status); err != nil {
		return false, fmt.Errorf("%w: its answer: %w", ErrAgent, err)
	}
	switch status.Return {
	case "frozen":
		return true, nil
	case "thawed":
		return false, nil
	default:
		return false, fmt.Errorf("%w: it says neither frozen nor thawed", ErrAgent)
	}
}

// saysCount reads the answer to the agent's guest-fsfreeze-freeze or guest-fsfreeze-thaw: how many file systems it froze or thawed.
func saysCount(answer string) (int, error) {
	var count struct {
		Return *int `json:"return"`
	}
	if err := json.Unmarshal([]byte(answer), &count); err != nil {
		return 0, fmt.Errorf("%w: its answer: %w", ErrAgent, err)
	}
	if count.Return == nil {
		return 0, fmt.Errorf("%w: its answer has no number of file systems", ErrAgent)
	}
	return *count.Return, nil
}
