package domain

import "encoding/json"

// saysFrozen reads the answer to the agent's guest-fsfreeze-status.
func saysFrozen(answer string) bool {
	var status struct {
		Return string `json:"return"`
	}
	return json.Unmarshal([]byte(answer), &status) == nil && status.Return == "frozen"
}
