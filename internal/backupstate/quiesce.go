package backupstate

import backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"

// Messages of the condition Quiesced if the launcher says nothing itself.
const (
	// crashConsistent is what a backup without a freeze is.
	crashConsistent = "the backup is crash consistent"
)

// Frozen says that the guest agent froze every file system.
func Frozen(message string) State {
	return orElse(backupv1.ReasonFrozen, message, "the guest agent froze the file systems")
}

// QuiesceSkipped says that the backup asked for no freeze.
func QuiesceSkipped(message string) State {
	return orElse(backupv1.ReasonQuiesceSkipped, message, "spec.skipQuiesce: "+crashConsistent)
}

// AgentAbsent says that no guest agent answers.
func AgentAbsent(message string) State {
	return orElse(backupv1.ReasonAgentAbsent, message, "no guest agent answers: "+crashConsistent+"; install qemu-guest-agent")
}

// FreezeFailed says that the guest agent refused to freeze or did not do it in time.
func FreezeFailed(message string) State {
	return orElse(backupv1.ReasonFreezeFailed, message, crashConsistent)
}

// ThawedEarly says that the guest was, or may have been, thawed before the point in time.
func ThawedEarly(message string) State {
	return orElse(backupv1.ReasonThawedEarly, message, crashConsistent)
}

// orElse returns the launcher's message or, if it has none, another one.
func orElse(reason, message, other string) State {
	if message == "" {
		message = other
	}
	return State{Reason: reason, Message: message}
}
