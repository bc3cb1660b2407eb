package checkpoint

import (
	"strings"
	"testing"
	"time"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
)

func TestOrigins_explainAMissingOverlay(t *testing.T) {
	t.Parallel()
	checkpoint := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	old := func(name string) origin { return origin{name, checkpoint.Add(-time.Hour)} }
	young := func(name string) origin { return origin{name, checkpoint.Add(time.Hour)} }
	for name, c := range map[string]struct {
		from    origins
		reason  backupv1.FullReason
		says    []string
		saysNot string
	}{
		"the machine was made again on restored claims": {
			origins{young("vm"), young("state"), map[string]origin{"root": young("root-claim")}},
			backupv1.FullDiskReplaced,
			[]string{"claim root-claim was made at 2026-11-01T13:00:00Z, after the checkpoint of 2026-11-01T12:00:00Z", "another disk", "machine vm was made again"},
			"state",
		},
		"the machine was made again on its claims": {
			origins{young("vm"), young("state"), map[string]origin{"root": old("root-claim")}},
			backupv1.FullBitmapLost,
			[]string{"claim state, which holds the record of changes, was made at 2026-11-01T13:00:00Z", "was deleted", "machine vm was made again"},
			"root-claim",
		},
		"the state claim was deleted": {
			origins{old("vm"), young("state"), map[string]origin{"root": old("root-claim")}}, backupv1.FullBitmapLost, []string{"claim state", "was deleted"}, "made again",
		},
		"the disk was replaced, and the state claim deleted": {
			origins{old("vm"), young("state"), map[string]origin{"root": young("root-claim")}}, backupv1.FullDiskReplaced, []string{"claim root-claim was made"}, "made again",
		},
		"another disk was replaced": {
			origins{old("vm"), old("state"), map[string]origin{"data": young("data")}}, backupv1.FullBitmapLost, []string{"no record of changes on claim state any more"}, "made",
		},
		"the overlay was deleted": {
			origins{old("vm"), old("state"), map[string]origin{"root": old("root-claim")}}, backupv1.FullBitmapLost, []string{"no record of changes on claim state any more"}, "made",
		},
		"nothing is known": {origins{}, backupv1.FullBitmapLost, []string{"no record of changes any more"}, "claim"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reason, message := c.from.explainLoss("root", checkpoint)
			if reason != c.reason {
				t.Errorf("%s: %s, want %s", reason, message, c.reason)
			}
			for _, want := range c.says {
				if !strings.Contains(message, want) {
					t.Errorf("%q does not say %q", message, want)
				}
			}
			if strings.Contains(message, c.saysNot) {
				t.Errorf("%q says %q", message, c.saysNot)
			}
		})
	}
}
