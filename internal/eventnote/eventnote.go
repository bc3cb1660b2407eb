// Package eventnote keeps the notes of events within the limit of the API server, which refuses a longer one, so that
// the event is lost.
package eventnote

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
)

// maxBytes is the longest note that the events API takes (1024 bytes, ValidateEventUpdate of events.k8s.io/v1), less
// the room for the mark of a cut.
const maxBytes = 1000

// Shorten returns a recorder that cuts notes that are too long. The whole text belongs in a status.
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
