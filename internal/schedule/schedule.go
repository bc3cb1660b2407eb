// Package schedule reads a ScheduleVMBackup: when it is due, and which of its backups go. The controller makes
// backups by it, the admission webhook refuses what it cannot read, and the CLI shows what it says. It is pure: the
// caller gives every object and every time.
package schedule

import (
	"fmt"
	"slices"
	"strings"
	"time"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/cron"
)

// Times are when a schedule is due, and when its runs begin.
type Times struct {
	*cron.Schedule

	// Delay is how long after it is due a run begins. It is always the same for a schedule.
	Delay time.Duration
}

// ReadTimes returns when a schedule is due. An error names the field or the annotation that is wrong.
func ReadTimes(o *harvesterv1.ScheduleVMBackup) (*Times, error) {
	times, err := cron.Parse(o.Spec.Cron, o.Annotations[harvesterv1.AnnotationTimeZone])
	if err != nil {
		return nil, fmt.Errorf("spec.cron: %w", err)
	}
	if g := times.Granularity(); g < harvesterv1.LeastGranularity && !SkipsCheck(o) {
		return nil, fmt.Errorf("spec.cron: %q is due %s apart, and backups need %s or more: change it, or set "+
			"the annotation %s to \"enable\"",
			o.Spec.Cron, g, harvesterv1.LeastGranularity, harvesterv1.AnnotationSkipCronCheck)
	}
	jitter, err := readJitter(o, times)
	if err != nil {
		return nil, err
	}
	return &Times{Schedule: times, Delay: times.Spread(string(o.UID), jitter)}, nil
}

// SkipsCheck says whether the times of a schedule may be less than an hour apart, and near those of other schedules.
func SkipsCheck(o *harvesterv1.ScheduleVMBackup) bool {
	return o.Annotations[harvesterv1.AnnotationSkipCronCheck] != ""
}

func readJitter(o *harvesterv1.ScheduleVMBackup, times *cron.Schedule) (time.Duration, error) {
	text, has := o.Annotations[harvesterv1.AnnotationJitter]
	if !has {
		return 0, nil
	}
	jitter, err := time.ParseDuration(text)
	if err != nil || jitter < 0 || jitter > times.Granularity() {
		return 0, fmt.Errorf("the annotation %s is %q: it must be a duration such as 30m, and no longer than the %s "+
			"that two runs are apart", harvesterv1.AnnotationJitter, text, times.Granularity())
	}
	return jitter, nil
}

// Begin returns when the first run begins whose due time is after a time.
func (t *Times) Begin(after time.Time) time.Time {
	next := t.Next(after)
	if next.IsZero() {
		return next
	}
	return next.Add(t.Delay)
}

// BackupName returns the name of the backup of a run, or of a new attempt of it: that of its minute.
func BackupName(o *harvesterv1.ScheduleVMBackup, minute time.Time) string {
	return namePrefix + string(o.UID) + "-" + minute.UTC().Format(harvesterv1.ScheduledTimeLayout)
}

// namePrefix is what the names of all backups begin with that schedules make.
const namePrefix = "svmbackup-"

// IsScheduled says whether a schedule made a backup, by its name: a copy that somebody made of one has another name.
func IsScheduled(b *harvesterv1.VirtualMachineBackup) bool {
	_, ok := minuteOf(b.Name)
	return ok
}

// minuteOf returns the minute that the name of a schedule's backup ends with.
func minuteOf(name string) (minute time.Time, ok bool) {
	i := len(name) - len(harvesterv1.ScheduledTimeLayout)
	if !strings.HasPrefix(name, namePrefix) || i <= len(namePrefix) || name[i-1] != '-' {
		return time.Time{}, false
	}
	minute, err := time.Parse(harvesterv1.ScheduledTimeLayout, name[i:])
	return minute, err == nil
}

// DueTime returns when the run was due that a backup is of, by the backup's name. Any other backup is of when it was
// made.
func DueTime(b *harvesterv1.VirtualMachineBackup) time.Time {
	if minute, ok := minuteOf(b.Name); ok {
		return minute
	}
	return b.CreationTimestamp.UTC()
}

// SortByDueTime sorts backups, the oldest first.
func SortByDueTime(backups []*harvesterv1.VirtualMachineBackup) {
	slices.SortFunc(backups, func(a, b *harvesterv1.VirtualMachineBackup) int {
		if c := DueTime(a).Compare(DueTime(b)); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
}

// PassedOn are the annotations of a schedule that its backups get.
func PassedOn() []string {
	return []string{
		harvesterv1.AnnotationLocation, harvesterv1.AnnotationExcludeVolumes, harvesterv1.AnnotationScratchClass,
		harvesterv1.AnnotationScratchSize, harvesterv1.AnnotationFreeze,
	}
}

// HasMeaning says whether an annotation of that name says something about how a schedule makes and keeps backups.
func HasMeaning(annotation string) bool {
	return slices.Contains(PassedOn(), annotation) || slices.Contains([]string{
		harvesterv1.AnnotationTimeZone, harvesterv1.AnnotationSkipCronCheck, harvesterv1.AnnotationJitter,
		harvesterv1.AnnotationAdopt, harvesterv1.AnnotationKeepHourly, harvesterv1.AnnotationKeepDaily,
		harvesterv1.AnnotationKeepWeekly, harvesterv1.AnnotationKeepMonthly, harvesterv1.AnnotationKeepYearly,
		harvesterv1.AnnotationKeepWithin,
	}, annotation)
}
