package backupjob

import (
	"testing"

	"github.com/varvebackup/varve/internal/launcher/freeze"
)

// libvirt's begin times out before the watchdog has to thaw.
func TestBeginTimeout_isBelowTheLimitOfAFreeze(t *testing.T) {
	t.Parallel()
	if most := freeze.Timeout + BeginFrozenTimeout + freeze.ConfirmTimeout; most >= freeze.Limit {
		t.Errorf("a freeze, a begin and a question may take %s, and the guest is thawed after %s", most, freeze.Limit)
	}
}
