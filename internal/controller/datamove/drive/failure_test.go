package drive

import (
	"os"
	"strings"
	"testing"
)

func TestFailureReasons_areDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range append([]FailureReason{ReasonUnknown}, failureReasons...) {
		if !strings.Contains(string(text), "| `"+string(r)+"` |") {
			t.Errorf("docs/metrics.md does not have %s", r)
		}
	}
}
