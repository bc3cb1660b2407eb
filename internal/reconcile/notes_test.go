package reconcile

import (
	"strings"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
)

func TestShortenNotes(t *testing.T) {
	t.Parallel()
	recorder := events.NewFakeRecorder(3)
	short := ShortenNotes(recorder)
	for _, text := range []string{"short, 100%", strings.Repeat("ä", 2000), strings.Repeat("x", 1000)} {
		short.Eventf(&corev1.Pod{}, nil, corev1.EventTypeNormal, "Reason", "Act", "%s", text)
		got := strings.TrimPrefix(<-recorder.Events, "Normal Reason ")
		if len(got) > 1024 || !utf8.ValidString(got) || len(text) <= 1000 && got != text || !strings.HasPrefix(text, strings.TrimSuffix(got, "…")) {
			t.Errorf("%d bytes became %q", len(text), got)
		}
	}
}
