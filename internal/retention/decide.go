package retention

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Decide says for each point whether it stays, the newest first. If it fails, nothing is decided and nothing may be removed. It
// fails if the policy is not valid (see Policy.Validate), or if the points cannot be trusted because one has no ID or no time, or
// two have the same ID.
func Decide(policy Policy, now time.Time, points []Point) ([]Decision, error) {
	if err := policy.Validate(); err != nil {
		return nil, err
	}
	if err := checkPoints(points); err != nil {
		return nil, err
	}
	decisions := make([]Decision, len(points))
	for i, p := range points {
		decisions[i] = Decision{Point: p}
	}
	slices.SortFunc(decisions, func(a, b Decision) int {
		return cmp.Or(b.Point.Time.Compare(a.Point.Time), cmp.Compare(b.Point.ID, a.Point.ID))
	})

	var counted []*Decision
	for i := range decisions {
		d := &decisions[i]
		future := d.Point.Time.After(now)
		if d.Point.Pinned {
			d.addReason("pinned")
		}
		if future {
			d.addReason("in the future")
		}
		if d.Point.Good && !future {
			counted = append(counted, d)
		}
	}
	if len(counted) > 0 {
		counted[0].addReason("last good one")
	}
	for _, r := range policy.activeRules() {
		r.applyTo(counted)
	}
	policy.keepWithin(counted)
	policy.keepDamaged(decisions, counted)
	for i := range decisions {
		if d := &decisions[i]; d.Point.MadeLast && d.Point.Good && !d.Keep {
			d.addReason("made last, by a clock that was behind")
		}
	}
	return decisions, nil
}

// checkPoints refuses points among which the wrong one could be removed.
func checkPoints(points []Point) error {
	seen := make(map[string]bool, len(points))
	for _, p := range points {
		switch {
		case p.ID == "":
			return errors.New("a restore point has no ID")
		case p.Time.IsZero():
			return fmt.Errorf("restore point %s has no time", p.ID)
		case seen[p.ID]:
			return fmt.Errorf("restore point %s is given twice", p.ID)
		}
		seen[p.ID] = true
	}
	return nil
}

func (d *Decision) addReason(reason string) {
	d.Keep = true
	d.Reasons = append(d.Reasons, reason)
}

// applyTo keeps those of points that the rule keeps. points are the newest first.
func (r rule) applyTo(points []*Decision) {
	if r.period == nil {
		for _, d := range points[:min(r.most, len(points))] {
			d.addReason(fmt.Sprintf("%s %d", r.name, r.most))
		}
		return
	}
	// A clock that is set back across midnight visits a day twice, so looking at the last period alone would not do.
	seen := make(map[string]bool)
	for _, d := range points {
		if len(seen) == r.most {
			return
		}
		if period := r.period(d.Point.Time); !seen[period] {
			seen[period] = true
			d.addReason(r.name + " " + period)
		}
	}
}

func (p Policy) keepWithin(points []*Decision) {
	if p.Within.Zero() || len(points) == 0 {
		return
	}
	start := p.Within.Before(points[0].Point.Time.In(p.timeZone()))
	for _, d := range points {
		if d.Point.Time.Before(start) {
			return
		}
		d.addReason("within " + p.Within.String())
	}
}

// keepDamaged keeps points that are not good. all and good are the newest first; the first of good is the last good one.
func (p Policy) keepDamaged(all []Decision, good []*Decision) {
	superseded := false
	for i := range all {
		d := &all[i]
		if len(good) > 0 && d == good[0] {
			superseded = true
		}
		switch {
		case d.Point.Good:
		case !superseded:
			d.addReason("not good, but no newer one is good")
		case !p.RemoveDamaged:
			d.addReason("not good, removed only on request")
		}
	}
}
