// Package eventnote keeps the notes of events within what the API server takes: it refuses a longer one, and the event is lost.
package eventnote

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
)

// maxBytes is the longest note in bytes that the events API takes (1024, ValidateEventUpdate of events.k8s.io/v1), less the room for what is cut.
const maxBytes = 1000

// Shorten returns a recorder that cuts notes which are too long. The whole text belongs into a status.
func Shorten(recorder events.EventRecorder) events.EventRecorder { return shortening{recorder} }

type shortening struct{ events.EventRecorder }

// Eventf implements events.EventRecorder.
func (s shortening) Eventf(regarding, related runtime.Object, kind, reason, action, note string, args ...any) {
	s.EventRecorder.Eventf(regarding, related, kind, reason, action, "%s", shorten(fmt.Sprintf(note, args...)))
}

func shorten(note string) string {
	if len(note) <= maxBytes {
		return note
	}
	return strings.ToValidUTF8(note[:maxBytes], "") + "…"
}
