package catalogue

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/repositoryaccess"
)

func TestDecide(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	with := func(edit ...func(*input)) *input {
		in := &input{Now: now, Own: true, Location: &velerov1.BackupStorageLocation{}}
		in.Location.Spec.Provider, in.Location.Status.Phase = "aws", velerov1.LocationAvailable
		for _, f := range edit {
			f(in)
		}
		return in
	}
	phase := func(p velerov1.BackupStorageLocationPhase) func(*input) {
		return func(in *input) { in.Location.Status.Phase = p }
	}
	period := func(d time.Duration) func(*input) {
		return func(in *input) { in.Location.Spec.BackupSyncPeriod = &velerov1.Duration{Duration: d} }
	}
	looked := func(ago time.Duration, more bool) func(*input) {
		return func(in *input) {
			in.Last = &attempt{At: now.Add(-ago), Spec: *in.Location.Spec.DeepCopy(), Catalogue: repositoryaccess.Catalogue{More: more}}
		}
	}
	veleros := func(in *input) { in.Own = false }
	for name, c := range map[string]struct {
		in    *input
		look  bool
		after time.Duration
	}{
		"never looked at":              {with(), true, 0},
		"not tried yet":                {with(phase("")), false, 0},
		"unavailable":                  {with(phase(velerov1.LocationUnavailable)), false, 0},
		"Velero's, which has no phase": {with(phase(""), veleros), true, 0},
		"Velero's, unavailable":        {with(phase(velerov1.LocationUnavailable), veleros), false, 0},
		"being looked at":              {with(func(in *input) { in.Running = true }), false, 0},
		"being deleted":                {with(func(in *input) { in.Location.DeletionTimestamp = &metav1.Time{} }), false, 0},
		"looked at a minute ago":       {with(looked(time.Minute, false)), false, defaultPeriod - time.Minute},
		"looked at long ago":           {with(looked(defaultPeriod, false)), true, 0},
		"there is more":                {with(looked(time.Second, true)), false, moreEvery - time.Second},
		"there is more, and it is due": {with(looked(moreEvery, true)), true, 0},
		"a period of its own":          {with(period(time.Hour), looked(time.Minute, false)), false, time.Hour - time.Minute},
		"a period that is too short":   {with(period(time.Millisecond), looked(time.Second, false)), false, moreEvery - time.Second},
		"never":                        {with(period(0)), false, 0},
		"led elsewhere since":          {with(looked(time.Second, false), func(in *input) { in.Location.Spec.Provider = "other" }), true, 0},
	} {
		if look, after := decide(c.in); look != c.look || after != c.after {
			t.Errorf("%s: %v %s, want %v %s", name, look, after, c.look, c.after)
		}
	}
}
