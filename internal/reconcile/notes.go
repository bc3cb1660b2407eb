package reconcile

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
)

// maxNoteBytes is the longest note that the events API takes (1024 bytes, ValidateEventUpdate of events.k8s.io/v1), less
// the room for the mark of a cut.
const maxNoteBytes = 1000

// ShortenNotes returns a recorder that cuts the notes of events to what the API server accepts. It refuses a longer
// note, and the event is lost. The whole text belongs in a status.
func ShortenNotes(recorder events.EventRecorder) events.EventRecorder { return noteShortener{recorder} }

type noteShortener struct{ events.EventRecorder }

// Eventf implements events.EventRecorder.
func (s noteShortener) Eventf(regarding, related runtime.Object, kind, reason, action, note string, args ...any) {
	s.EventRecorder.Eventf(regarding, related, kind, reason, action, "%s", shortenNote(fmt.Sprintf(note, args...)))
}

func shortenNote(note string) string {
	if len(note) <= maxNoteBytes {
		return note
	}
	return CutText(note, maxNoteBytes) + "…"
}

// CutText cuts a text to at most so many bytes, between characters.
func CutText(text string, bytes int) string {
	return strings.ToValidUTF8(text[:min(len(text), bytes)], "")
}
