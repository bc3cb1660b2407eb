package cron

import (
	"strconv"
	"strings"
)

// AtMinute returns the schedule that is due in the same hours and on the same days, at another minute of the hour. It
// is nil if the schedule is due several times in an hour.
func (s *Schedule) AtMinute(minute int) *Schedule {
	texts, err := splitFields(s.expression)
	if err != nil {
		return nil
	}
	moved := *s
	moved.times = make([]int, len(s.times))
	for i, t := range s.times {
		if t%60 != s.times[0]%60 {
			return nil
		}
		moved.times[i] = t - t%60 + minute
	}
	texts[0] = strconv.Itoa(minute)
	moved.expression = strings.Join(texts, " ")
	return &moved
}

// Minute returns at which minute of the hour the schedule is first due on a day.
func (s *Schedule) Minute() int { return s.times[0] % 60 }
