package schedule

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/retention"
)

// mostKept is the largest number that one of the annotations keep-hourly to keep-yearly may have.
const mostKept = 1000

// ReadPolicy returns which backups of a schedule stay. An error names the annotation that is wrong: remove nothing
// then.
func ReadPolicy(o *harvesterv1.ScheduleVMBackup, location *time.Location) (retention.Policy, error) {
	p := retention.Policy{Last: o.Spec.Retain, Location: location}
	for _, rule := range []struct {
		annotation string
		number     *int
	}{
		{harvesterv1.AnnotationKeepHourly, &p.Hourly},
		{harvesterv1.AnnotationKeepDaily, &p.Daily},
		{harvesterv1.AnnotationKeepWeekly, &p.Weekly},
		{harvesterv1.AnnotationKeepMonthly, &p.Monthly},
		{harvesterv1.AnnotationKeepYearly, &p.Yearly},
	} {
		text, has := o.Annotations[rule.annotation]
		if !has {
			continue
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || n > mostKept {
			return p, fmt.Errorf("the annotation %s is %.80q: it must be a number from 0 to %d", rule.annotation, text,
				mostKept)
		}
		*rule.number = n
	}
	if text, has := o.Annotations[harvesterv1.AnnotationKeepWithin]; has {
		var err error
		if p.Within, err = retention.ParseSpan(text); err != nil {
			return p, fmt.Errorf("the annotation %s: %w", harvesterv1.AnnotationKeepWithin, err)
		}
	}
	return p, nil
}

// Decision says whether a backup stays, and why.
type Decision struct {
	Backup *harvesterv1.VirtualMachineBackup
	Keep   bool
	// Reasons say why the backup stays: "last 8", "daily 2026-11-20", "pinned". They are empty for one that goes.
	Reasons []string
}

// DecideRetention says which backups of a schedule stay, as Decide does, by the schedule's own rules. Those that it has
// taken over from a deleted one stay until it has made a good one itself, so that a schedule that was made again with
// other rules by mistake removes nothing at once. An error means that nobody can tell: remove nothing then.
func DecideRetention(
	o *harvesterv1.ScheduleVMBackup, location *time.Location, now time.Time,
	backups []*harvesterv1.VirtualMachineBackup,
) ([]Decision, error) {
	policy, err := ReadPolicy(o, location)
	if err != nil {
		return nil, err
	}
	decisions, err := Decide(policy, now, backups)
	if err != nil {
		return nil, err
	}
	isOwn := func(b *harvesterv1.VirtualMachineBackup) bool { return b.Name == BackupName(o, DueTime(b)) }
	if slices.ContainsFunc(backups, func(b *harvesterv1.VirtualMachineBackup) bool { return b.IsReady() && isOwn(b) }) {
		return decisions, nil
	}
	for i := range decisions {
		if d := &decisions[i]; !d.Keep && d.Backup.DeletionTimestamp == nil && !isOwn(d.Backup) {
			d.Keep, d.Reasons = true, []string{"taken over, and the schedule has no good backup of its own yet"}
		}
	}
	return decisions, nil
}

// Decide says which backups of a schedule stay, the oldest first: those that the policy keeps of all that can be
// restored. These always stay, too: what is pinned, the latest one that can be restored, what has not ended, and the
// latest one of all. What is pinned takes nothing away from others.
//
// Those that failed stay as long as fewer than Policy.Last can be restored, and go first, the oldest before others.
// The latest one of all stays even if it failed: it holds no data, and says why there is nothing newer.
func Decide(
	policy retention.Policy, now time.Time, backups []*harvesterv1.VirtualMachineBackup,
) ([]Decision, error) {
	backups = slices.Clone(backups)
	SortByDueTime(backups)
	decisions := make([]Decision, len(backups))
	var ready []retention.Point
	byName := map[string]*Decision{}
	var failed []*Decision
	lastEnded := -1
	for i, b := range backups {
		decisions[i] = Decision{Backup: b, Keep: true}
		d := &decisions[i]
		switch {
		case b.DeletionTimestamp != nil:
			d.Keep = false
			continue
		case !b.IsReady() && !b.HasFailed():
			d.Reasons = []string{"it has not ended"}
			continue
		}
		lastEnded = i
		switch {
		case IsPinned(b):
			d.Reasons = []string{"pinned"}
		case b.IsReady():
			d.Keep, byName[b.Name] = false, d
			ready = append(ready, retention.Point{ID: b.Name, Time: DueTime(b), Good: true})
		default:
			d.Keep = false
			failed = append(failed, d)
		}
	}
	if err := keepReady(policy, now, ready, byName); err != nil {
		return nil, err
	}
	keepFailed(failed, policy.Last-len(ready), lastEnded, decisions)
	return decisions, nil
}

// keepReady keeps what the policy keeps of the backups that can be restored.
func keepReady(policy retention.Policy, now time.Time, ready []retention.Point, byName map[string]*Decision) error {
	if len(ready) > 0 {
		last := 0
		for i, p := range ready { // of those of one second, the one that was due last
			made := byName[p.ID].Backup.CreationTimestamp
			if !made.Time.Before(byName[ready[last].ID].Backup.CreationTimestamp.Time) {
				last = i
			}
		}
		ready[last].MadeLast = true
	}
	decided, err := retention.Decide(policy, now, ready)
	if err != nil {
		return fmt.Errorf("decide which backups stay: %w", err)
	}
	for _, d := range decided {
		byName[d.Point.ID].Keep, byName[d.Point.ID].Reasons = d.Keep, d.Reasons
	}
	return nil
}

// keepFailed keeps the newest of the backups that failed, as many as there is room for.
func keepFailed(failed []*Decision, room, lastEnded int, all []Decision) {
	if n := len(failed); n > 0 && failed[n-1] == &all[lastEnded] {
		failed[n-1].Keep, failed[n-1].Reasons = true, []string{"failed last"}
		failed = failed[:n-1]
	}
	for _, d := range failed[len(failed)-min(max(room, 0), len(failed)):] {
		d.Keep, d.Reasons = true, []string{"failed, and fewer than retain can be restored"}
	}
}

// Old returns the backups that go, those that failed first, and then the oldest first.
func Old(decisions []Decision) []*harvesterv1.VirtualMachineBackup {
	var failed, ready []*harvesterv1.VirtualMachineBackup
	for _, d := range decisions {
		switch {
		case d.Keep || d.Backup.DeletionTimestamp != nil:
		case d.Backup.HasFailed():
			failed = append(failed, d.Backup)
		default:
			ready = append(ready, d.Backup)
		}
	}
	return slices.Concat(failed, ready)
}

// IsPinned says whether no schedule removes a backup.
func IsPinned(b *harvesterv1.VirtualMachineBackup) bool {
	return b.Annotations[harvesterv1.AnnotationPinned] == "true"
}
