package main

import (
	"encoding/json"
	"log/slog"
	"os"
)

// termination is the pod's termination message.
type termination struct {
	// End is a value of State.End of launcher.proto.
	End string `json:"end"`
	// Message is for people.
	Message string `json:"message"`
	// NeverStarted says that no disk or overlay was touched, because nobody asked for the guest's start.
	NeverStarted bool `json:"neverStarted,omitempty"`
}

// writeTermination writes the termination message. The kubelet reads at most 4096 bytes of it.
func writeTermination(o options, log *slog.Logger, t termination) {
	const most = 2000 // JSON may escape it and make it longer
	if len(t.Message) > most {
		t.Message = t.Message[:most]
	}
	line, err := json.Marshal(t)
	if err == nil {
		err = os.WriteFile(o.terminationLog, append(line, '\n'), 0o644)
	}
	log.Info("launcher ends", "end", t.End, "message", t.Message)
	if err != nil {
		log.Warn("termination message", "error", err)
	}
}
