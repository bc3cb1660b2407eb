package backupstate

import "fmt"

// State is what a backup's status says about its phase.
type State struct {
	// Reason is a reason of api/backup/v1alpha1.
	Reason string
	// Message says what happened to which object and, if somebody has to do something, what.
	Message string
	// UserActs says that the backup waits for something that somebody has to do. What goes on by itself, and what has
	// ended, does not have it.
	UserActs bool
}

func state(reason, format string, args ...any) State {
	return State{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// waitForUser is state for a wait that somebody has to end.
func waitForUser(reason, format string, args ...any) State {
	s := state(reason, format, args...)
	s.UserActs = true
	return s
}

// With returns the state with a sentence added to its message. An empty sentence adds nothing.
func (s State) With(sentence string) State {
	if sentence != "" {
		s.Message += " " + sentence
	}
	return s
}
