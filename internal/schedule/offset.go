package schedule

import (
	"fmt"
	"strings"
	"time"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/cron"
)

// OffsetCheck finds whether a schedule comes too near to another one: two with the same granularity are due
// harvesterv1.LeastOffset apart or more, over their whole period. Jitter does not count, nor do schedules whose times
// are not checked, or that are being deleted. Those that are suspended count.
type OffsetCheck struct {
	schedule *harvesterv1.ScheduleVMBackup
	times    *cron.Schedule
	// nearest is the schedule that comes nearest of those that come too near, or nil, and distance how near that is.
	nearest  *harvesterv1.ScheduleVMBackup
	distance time.Duration
	// around are the schedules that another minute of the same hours may come too near to.
	around []*cron.Schedule
}

// NewOffsetCheck returns the check of a schedule whose times ReadTimes has read.
func NewOffsetCheck(o *harvesterv1.ScheduleVMBackup, times *Times) *OffsetCheck {
	return &OffsetCheck{schedule: o, times: times.Schedule}
}

// Add looks at a schedule. It may be the one that is checked.
func (c *OffsetCheck) Add(other *harvesterv1.ScheduleVMBackup) {
	itself := other.Namespace == c.schedule.Namespace && other.Name == c.schedule.Name
	if itself || other.DeletionTimestamp != nil || SkipsCheck(other) {
		return
	}
	times, err := cron.Parse(other.Spec.Cron, other.Annotations[harvesterv1.AnnotationTimeZone])
	if err != nil || times.Granularity() != c.times.Granularity() {
		return // one that cannot be read makes no backups
	}
	distance := cron.Offset(c.times, times)
	if distance < harvesterv1.LeastOffset+time.Hour {
		c.around = append(c.around, times)
	}
	if distance >= harvesterv1.LeastOffset {
		return
	}
	nearer := c.nearest == nil || distance < c.distance ||
		distance == c.distance && c.isNeighbour(other) && !c.isNeighbour(c.nearest)
	if nearer {
		c.nearest, c.distance = other, distance
	}
}

// isNeighbour says whether another schedule is in the namespace of the one that is checked.
func (c *OffsetCheck) isNeighbour(other *harvesterv1.ScheduleVMBackup) bool {
	return other.Namespace == c.schedule.Namespace
}

// Err says which schedule comes too near, and what to do. It is nil if none does. Schedules of other namespaces are
// not named: who may create schedules in one namespace may not learn what is in others.
func (c *OffsetCheck) Err() error {
	if c.nearest == nil {
		return nil
	}
	other := "a schedule in another namespace"
	if c.isNeighbour(c.nearest) {
		other = "ScheduleVMBackup " + c.nearest.Name
	}
	near := "at the same time as " + other
	if c.distance > 0 {
		near = fmt.Sprintf("within %s of %s", c.distance, other)
	}
	return fmt.Errorf("spec.cron: %q is due %s, and schedules that are due equally often must be %s apart: %s, or "+
		"set the annotation %s to \"enable\"", c.schedule.Spec.Cron, near, harvesterv1.LeastOffset, c.suggestTime(),
		harvesterv1.AnnotationSkipCronCheck)
}

// suggestTime says what to write instead: the nearest minute of the same hours that comes too near to no schedule, if
// there is one.
func (c *OffsetCheck) suggestTime() string {
	minute := c.times.Minute()
	for shift := 1; shift < 60; shift++ {
		for _, m := range []int{minute + shift, minute - shift} {
			if m < 0 || m > 59 {
				continue
			}
			if free := c.times.AtMinute(m); free != nil && c.isFree(free) {
				return fmt.Sprintf("use %q, which is free", c.formatAsWritten(free))
			}
		}
	}
	return fmt.Sprintf("choose a time that is %s or more away", harvesterv1.LeastOffset)
}

func (c *OffsetCheck) isFree(times *cron.Schedule) bool {
	for _, other := range c.around {
		if cron.Offset(times, other) < harvesterv1.LeastOffset {
			return false
		}
	}
	return true
}

// formatAsWritten returns an expression as the user has written it: with its time zone, if that is in spec.cron.
func (c *OffsetCheck) formatAsWritten(times *cron.Schedule) string {
	if strings.Contains(c.schedule.Spec.Cron, "TZ=") {
		return times.String()
	}
	return times.Expression()
}
