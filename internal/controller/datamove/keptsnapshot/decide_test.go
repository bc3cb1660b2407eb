package keptsnapshot

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
)

// completed returns the kept snapshot of an upload that completed at a minute.
func completed(name string, minute int, edit ...func(*candidate)) candidate {
	c := candidate{
		kept: datamove.KeptSnapshot{
			Upload: types.NamespacedName{Namespace: "velero", Name: name}, UploadUID: types.UID(name), Claim: types.NamespacedName{Namespace: "app", Name: "data"}, ClaimUID: "claim",
			StorageClass: "fast", Driver: "csi.test", Repository: "repo",
		},
		phase: velerov2.PhaseCompleted, completed: time.Date(2026, 11, 25, 10, minute, 0, 0, time.UTC), made: time.Date(2026, 11, 25, 9, minute, 0, 0, time.UTC),
	}
	for _, f := range edit {
		f(&c)
	}
	return c
}

func inUse(c *candidate)     { c.inUse = true }
func deleted(c *candidate)   { c.uploadGone, c.phase = true, "" }
func ofAnother(c *candidate) { c.kept.ClaimUID = "another" }
func unknown(c *candidate)   { c.unknown = true }

func TestDecide(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		all []candidate
		// goes says why each goes; "": it stays.
		goes []string
	}{
		"one":                    {[]candidate{completed("a", 1)}, []string{""}},
		"a later one":            {[]candidate{completed("b", 2), completed("a", 1), completed("c", 3)}, []string{"velero/c has stored a later one", "velero/c has stored a later one", ""}},
		"at the same time":       {[]candidate{completed("a", 1), completed("b", 1)}, []string{"velero/b has stored", ""}},
		"of two claims":          {[]candidate{completed("a", 1), completed("b", 2, func(c *candidate) { c.kept.ClaimUID = "another" })}, []string{"", ""}},
		"in two repositories":    {[]candidate{completed("a", 1), completed("b", 2, func(c *candidate) { c.kept.Repository = "another" })}, []string{"", ""}},
		"the next is on its way": {[]candidate{completed("a", 1), completed("b", 0, func(c *candidate) { c.phase = velerov2.PhaseInProgress })}, []string{"", ""}},
		"the next has failed":    {[]candidate{completed("a", 1), completed("b", 2, func(c *candidate) { c.phase = velerov2.PhaseFailed })}, []string{"", "ended as Failed"}},
		"the next is canceled":   {[]candidate{completed("a", 1), completed("b", 2, func(c *candidate) { c.phase = velerov2.PhaseCanceled })}, []string{"", "ended as Canceled"}},
		"the next is deleted":    {[]candidate{completed("a", 1), completed("b", 2, func(c *candidate) { c.uploadGone, c.phase = true, "" })}, []string{"", "velero/b was deleted"}},
		"deleted before its end": {[]candidate{completed("a", 1, func(c *candidate) { c.uploadGone, c.phase = true, velerov2.PhaseInProgress })}, []string{"was deleted"}},
		"unreadable":             {[]candidate{{unreadable: true}}, []string{"nothing says"}},
		"no claim":               {[]candidate{completed("a", 1, func(c *candidate) { c.claimGone = true })}, []string{"claim app/data was deleted"}},
		"no setting":             {[]candidate{completed("a", 1, func(c *candidate) { c.settingOff = true })}, []string{"StorageClass fast"}},
		"no service":             {[]candidate{completed("a", 1, func(c *candidate) { c.serviceGone = true })}, []string{"csi.test announces no"}},
		"its driver has it still": {[]candidate{completed("a", 1, func(c *candidate) {
			c.phase, c.claimGone, c.settingOff, c.serviceGone = velerov2.PhaseInProgress, true, true, true
		})}, []string{""}},
		"in use":              {[]candidate{completed("a", 1, func(c *candidate) { c.inUse = true }), completed("b", 2, func(c *candidate) { c.inUse = true })}, []string{"", ""}},
		"deleted, and in use": {[]candidate{completed("a", 1, func(c *candidate) { c.uploadGone, c.inUse = true, true })}, []string{""}},
		"too many in use": {[]candidate{
			completed("a", 1, inUse), completed("e", 5, inUse), completed("d", 4, inUse), completed("b", 2, inUse), completed("c", 3, inUse), completed("f", 1, inUse, ofAnother),
		}, []string{"velero/e has stored a later one", "", "", "", "", ""}},
		"too many deleted, and in use": {[]candidate{
			completed("a", 1, inUse, deleted), completed("b", 2, inUse, deleted), completed("c", 3, inUse, deleted), completed("d", 4, inUse, deleted),
		}, []string{"velero/a was deleted", "", "", ""}},
		"the latest one is unknown": {[]candidate{completed("a", 1), completed("b", 2), completed("c", 3, unknown)}, []string{"velero/b has stored", "", ""}},
		"an old one is unknown":     {[]candidate{completed("a", 1, unknown), completed("b", 2)}, []string{"", ""}},
		"the latest one is no use":  {[]candidate{completed("a", 1), completed("b", 2, func(c *candidate) { c.claimGone = true })}, []string{"", "claim"}},
		"nothing":                   {nil, nil},
	} {
		got := decide(c.all)
		if len(got) != len(c.goes) {
			t.Errorf("%s: %q", name, got)
			continue
		}
		for i, want := range c.goes {
			if (got[i] == "") != (want == "") || !strings.Contains(got[i], want) {
				t.Errorf("%s: %d goes because %q, want %q", name, i, got[i], want)
			}
		}
	}
}
