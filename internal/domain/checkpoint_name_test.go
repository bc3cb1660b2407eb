package domain

import (
	"regexp"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/varvebackup/varve/internal/layout"
)

func TestCheckpoint_namesSurviveLibvirt(t *testing.T) {
	t.Parallel()
	// The pattern of checkpointName in libvirt 11.3's domaincheckpoint.rng.
	allowed := regexp.MustCompile(`^[a-zA-Z0-9_\-][a-zA-Z0-9_\-.]*$`)
	rapid.Check(t, func(t *rapid.T) {
		tracker := rapid.StringMatching(`[a-z0-9]([-a-z0-9.]{0,40}[a-z0-9])?`).Draw(t, "tracker")
		at := time.Unix(rapid.Int64Range(0, 1<<33).Draw(t, "seconds"), 0)
		name := layout.Checkpoint(tracker, at)
		if got := libvirtName(name); !allowed.MatchString(got) {
			t.Fatalf("libvirt refuses %q", got)
		}
		if got := checkpointName(libvirtName(name)); got != name {
			t.Fatalf("%q comes back as %q", name, got)
		}
	})
}
