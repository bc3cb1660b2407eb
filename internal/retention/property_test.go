package retention

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var zones = []string{"UTC", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Kathmandu"}

// somePoints returns points over some years, often in the same hour, day or week, around changes of the clocks.
func somePoints(t *rapid.T) []Point {
	n := rapid.IntRange(0, 40).Draw(t, "points")
	start := rapid.SampledFrom([]int64{1_289_000_000, 1_325_200_000, 1_774_700_000, 1_792_800_000}).Draw(t, "start")
	step := rapid.SampledFrom([]int64{60, 1800, 3600, 86400, 7 * 86400, 20 * 86400}).Draw(t, "step")
	all := make([]Point, n)
	for i := range all {
		all[i] = Point{
			ID:     fmt.Sprintf("p%02d", i),
			Time:   time.Unix(start+step*rapid.Int64Range(0, 60).Draw(t, "at"), 0).UTC(),
			Pinned: rapid.IntRange(0, 9).Draw(t, "pinned") == 0,
			Good:   rapid.IntRange(0, 4).Draw(t, "good") != 0,
		}
	}
	return all
}

func somePolicy(t *rapid.T) Policy {
	n := rapid.IntRange(0, 5)
	p := Policy{
		Last: n.Draw(t, "last"), Hourly: n.Draw(t, "hourly"), Daily: n.Draw(t, "daily"), Weekly: n.Draw(t, "weekly"),
		Monthly: n.Draw(t, "monthly"), Yearly: n.Draw(t, "yearly"),
		RemoveDamaged: rapid.Bool().Draw(t, "remove damaged"),
		Location:      zone(t, rapid.SampledFrom(zones).Draw(t, "zone")),
	}
	if rapid.Bool().Draw(t, "within") {
		p.Within = Span{Months: rapid.IntRange(0, 3).Draw(t, "months"), Days: n.Draw(t, "days"), Hours: n.Draw(t, "hours")}
	}
	if p.Validate() != nil {
		p.Last = 1
	}
	return p
}

// sometime returns a time after most points, so that a few are in the future.
func sometime(t *rapid.T, all []Point) time.Time {
	if len(all) == 0 || rapid.Bool().Draw(t, "late") {
		return time.Unix(4_000_000_000, 0)
	}
	return rapid.SampledFrom(all).Draw(t, "now").Time
}

func decide(t *rapid.T, p Policy, now time.Time, all []Point) []Decision {
	decisions, err := Decide(p, now, all)
	if err != nil {
		t.Fatal(err)
	}
	return decisions
}

func kept(decisions []Decision) map[string]bool {
	ids := map[string]bool{}
	for _, d := range decisions {
		if d.Keep {
			ids[d.Point.ID] = true
		}
	}
	return ids
}

func TestDecide_everyDecision(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		all, policy := somePoints(t), somePolicy(t)
		now := sometime(t, all)
		decisions := decide(t, policy, now, all)

		if len(decisions) != len(all) {
			t.Fatalf("%d decisions on %d points", len(decisions), len(all))
		}
		good, lastGood, keeping := 0, false, map[string]int{}
		for _, d := range decisions {
			if !slices.Contains(all, d.Point) {
				t.Fatalf("%v was not given", d.Point)
			}
			if d.Keep != (len(d.Reasons) > 0) {
				t.Fatalf("%v: %t for %q", d.Point, d.Keep, d.Reasons)
			}
			if !d.Keep && (d.Point.Pinned || d.Point.Time.After(now) || (!d.Point.Good && (!policy.RemoveDamaged || good == 0))) {
				t.Fatalf("%v is removed", d.Point)
			}
			for _, reason := range d.Reasons {
				rule, _, _ := strings.Cut(reason, " ")
				keeping[rule]++
				if !d.Point.Good && rule != "pinned" && rule != "in" && rule != "not" {
					t.Fatalf("%v is kept for %q", d.Point, reason)
				}
			}
			if d.Point.Good && !d.Point.Time.After(now) {
				if good == 0 {
					lastGood = slices.Contains(d.Reasons, "last good one")
				}
				good++
			}
		}
		if good > 0 && !lastGood {
			t.Fatal("the last good one is not kept as such")
		}
		// "last" also counts the reason "last good one".
		keeping["last"] -= min(good, 1)
		for _, r := range policy.activeRules() {
			if keeping[r.name] > r.most {
				t.Fatalf("keep-%s %d keeps %d", r.name, r.most, keeping[r.name])
			}
		}
		if want := min(policy.Last, good); keeping["last"] != want {
			t.Fatalf("keep-last keeps %d, not %d", keeping["last"], want)
		}
	})
}

// period returns when the period of a rule that a time is in began, and nil for a rule without periods. It determines that in
// another way than the product does.
func period(rule string, l *time.Location, t time.Time) any {
	t = t.In(l)
	year, month, day := t.Date()
	date := func(year int, month time.Month, day int) time.Time {
		return time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
	}
	switch rule {
	case "hourly":
		_, offset := t.Zone()
		return [2]any{date(year, month, day).Add(time.Duration(t.Hour()) * time.Hour), offset}
	case "daily":
		return date(year, month, day)
	case "weekly":
		return date(year, month, day-(int(t.Weekday())+6)%7)
	case "monthly":
		return date(year, month, 1)
	case "yearly":
		return date(year, 1, 1)
	default:
		return nil
	}
}

// A rule keeps a point exactly if no newer good point is in its period, and fewer than N periods with good points are newer.
func TestDecide_periodsAgainstAModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		all, policy := somePoints(t), somePolicy(t)
		now := sometime(t, all)
		decisions := decide(t, policy, now, all)
		for _, r := range policy.activeRules() {
			if period(r.name, time.UTC, now) == nil {
				continue
			}
			seen := map[any]bool{}
			for _, d := range decisions {
				counts := d.Point.Good && !d.Point.Time.After(now)
				p := period(r.name, policy.Location, d.Point.Time)
				want := counts && !seen[p] && len(seen) < r.most
				got := slices.ContainsFunc(d.Reasons, func(s string) bool { return strings.HasPrefix(s, r.name+" ") })
				if got != want {
					t.Fatalf("keep-%s %d of %v: %t", r.name, r.most, d.Point, got)
				}
				if counts {
					seen[p] = true
				}
			}
		}
	})
}

func TestDecide_twiceRemovesNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		all, policy := somePoints(t), somePolicy(t)
		now := sometime(t, all)
		first := slices.DeleteFunc(decide(t, policy, now, all), func(d Decision) bool { return !d.Keep })
		var left []Point
		for _, d := range first {
			left = append(left, d.Point)
		}
		again := decide(t, policy, now, left)
		if diff := cmp.Diff(told(first), told(again)); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestDecide_moreKeepsMore(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		all, policy := somePoints(t), somePolicy(t)
		now := sometime(t, all)
		more := policy
		for _, n := range []*int{&more.Last, &more.Hourly, &more.Daily, &more.Weekly, &more.Monthly, &more.Yearly, &more.Within.Years, &more.Within.Months} {
			*n += rapid.IntRange(0, 2).Draw(t, "more")
		}
		greater := kept(decide(t, more, now, all))
		for id := range kept(decide(t, policy, now, all)) {
			if !greater[id] {
				t.Fatalf("%s goes with %+v", id, more)
			}
		}
	})
}

func TestDecide_orderOfPointsDoesNotMatter(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		all, policy := somePoints(t), somePolicy(t)
		now := sometime(t, all)
		given := slices.Clone(all)
		want := decide(t, policy, now, all)
		if diff := cmp.Diff(given, all); diff != "" {
			t.Fatal(diff)
		}
		got := decide(t, policy, now, rapid.Permutation(all).Draw(t, "order"))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestDecide_pinKeepsItsPointAlone(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		all, policy := somePoints(t), somePolicy(t)
		if len(all) == 0 {
			return
		}
		now := sometime(t, all)
		before := kept(decide(t, policy, now, all))
		i := rapid.IntRange(0, len(all)-1).Draw(t, "pin")
		all[i].Pinned = true
		before[all[i].ID] = true
		if diff := cmp.Diff(before, kept(decide(t, policy, now, all))); diff != "" {
			t.Fatal(diff)
		}
	})
}

// Damage removes nothing else: what was kept before a point was found to be damaged is kept afterwards.
func TestDecide_damageRemovesNoOtherPoint(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		all, policy := somePoints(t), somePolicy(t)
		if len(all) == 0 {
			return
		}
		policy.Within = Span{}
		if policy.Validate() != nil {
			policy.Daily = 2
		}
		now := sometime(t, all)
		before := kept(decide(t, policy, now, all))
		i := rapid.IntRange(0, len(all)-1).Draw(t, "damaged")
		all[i].Good = false
		after := kept(decide(t, policy, now, all))
		for id := range before {
			if !after[id] && id != all[i].ID {
				t.Fatalf("%s goes because %s is damaged", id, all[i].ID)
			}
		}
	})
}
