package repository

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
)

// bubbleChild is set for a process that inBubble has started.
const bubbleChild = "VARVE_TEST_BUBBLE"

// inBubble runs a test in which sleeps and timeouts end at once (testing/synctest), because kopia's attempts wait for a minute.
// The test gets a process of its own: kopia's pools keep readers with channels, and nobody outside a bubble may use a channel
// that was made in it.
func inBubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	if os.Getenv(bubbleChild) != "" {
		synctest.Test(t, test)
		return
	}
	names := strings.Split(t.Name(), "/")
	for i, name := range names {
		names[i] = "^" + regexp.QuoteMeta(name) + "$"
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.timeout="+childTimeout.String(), "-test.run="+strings.Join(names, "/"))
	cmd.Env = append(os.Environ(), bubbleChild+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()+" ") {
		t.Errorf("%v:\n%s", err, out)
	}
}
