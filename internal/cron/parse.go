package cron

import (
	"errors"
	"fmt"
	"math/bits"
	"regexp"
	"slices"
	"strings"

	robfig "github.com/robfig/cron/v3"

	"github.com/varvebackup/varve/internal/errclass"
)

// MaxLength is how many characters an expression may have, with its time zone.
const MaxLength = 256

// shorthands are the names of expressions.
var shorthands = map[string]string{
	"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0",
	"@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *",
}

const shorthandNames = "@hourly, @daily, @midnight, @weekly, @monthly, @yearly or @annually"

// field is one of the five fields of an expression.
type field struct {
	name, allowed string
	option        robfig.ParseOption
	bits          func(*robfig.SpecSchedule) uint64
}

var fields = [...]field{
	{"minute", "0-59", robfig.Minute, func(s *robfig.SpecSchedule) uint64 { return s.Minute }},
	{"hour", "0-23", robfig.Hour, func(s *robfig.SpecSchedule) uint64 { return s.Hour }},
	{"day of the month", "1-31", robfig.Dom, func(s *robfig.SpecSchedule) uint64 { return s.Dom }},
	{"month", "1-12 or JAN-DEC", robfig.Month, func(s *robfig.SpecSchedule) uint64 { return s.Month }},
	{
		"day of the week", "0-6 or SUN-SAT, where 0 is Sunday", robfig.Dow,
		func(s *robfig.SpecSchedule) uint64 { return s.Dow },
	},
}

// element is one element of the list in a field. The library takes more, and reads *-5 as *.
var element = regexp.MustCompile(`^([*?]|[0-9A-Za-z]+(-[0-9A-Za-z]+)?)(/[0-9]+)?$`)

// everyValue is set by the library if a field does not restrict anything.
const everyValue = 1 << 63

// Parse reads an expression of five fields, or one of @hourly, @daily, @midnight, @weekly, @monthly, @yearly and
// @annually. The fields are the minute, the hour, the day of the month, the number or name of the month, and the day
// of the week. zone is the IANA name of the time zone in which to read them, and UTC if it is empty. A prefix
// `CRON_TZ=Area/City ` or `TZ=Area/City ` of the expression wins over zone.
//
// The error, of class Invalid, says what to write instead. An expression that never comes due is refused too.
func Parse(expression, zone string) (*Schedule, error) {
	if len(expression) > MaxLength {
		return nil, errclass.Errorf(errclass.Invalid, "the schedule has %d characters: at most %d are allowed",
			len(expression), MaxLength)
	}
	s, err := parseText(expression, zone)
	if err != nil {
		return nil, errclass.Errorf(errclass.Invalid, "schedule %q: %w", expression, err)
	}
	return s, nil
}

func parseText(expression, zone string) (*Schedule, error) {
	if strings.ContainsFunc(expression, func(r rune) bool { return r < ' ' || r > '~' }) {
		return nil, errors.New("only ASCII characters are allowed: separate the fields with spaces")
	}
	expression, zone, err := cutZone(strings.TrimSpace(expression), zone)
	if err != nil {
		return nil, err
	}
	location, err := loadZone(zone)
	if err != nil {
		return nil, err
	}
	s := &Schedule{expression: expression, location: location}
	texts, err := splitFields(expression)
	if err != nil {
		return nil, err
	}
	var values [len(fields)]uint64
	for i, f := range fields {
		if values[i], err = f.parseValues(texts[i]); err != nil {
			return nil, err
		}
	}
	s.setValues(values, texts[1])
	if s.days.isEmpty() {
		return nil, errors.New("it never comes due: none of its months has such a day: choose a day that they have")
	}
	return s, nil
}

// cutZone takes the time zone off the beginning of an expression.
func cutZone(expression, zone string) (rest, name string, err error) {
	for _, prefix := range []string{"CRON_TZ=", "TZ="} {
		after, found := strings.CutPrefix(expression, prefix)
		if !found {
			continue
		}
		name, rest, _ = strings.Cut(after, " ")
		if rest = strings.TrimSpace(rest); name == "" || rest == "" {
			return "", "", fmt.Errorf("%s needs the name of a time zone and an expression, such as "+
				"%sEurope/Berlin 0 1 * * *",
				prefix, prefix)
		}
		return rest, name, nil
	}
	return expression, zone, nil
}

// splitFields returns the texts of the five fields.
func splitFields(expression string) ([]string, error) {
	switch long, shorthand := shorthands[expression]; {
	case shorthand:
		expression = long
	case strings.HasPrefix(expression, "@every"):
		return nil, errors.New("@every has no time of day: " +
			"for every six hours write 0 */6 * * *, for every half hour */30 * * * *")
	case strings.HasPrefix(expression, "@"):
		return nil, fmt.Errorf("no such name: write five fields, or %s", shorthandNames)
	case expression == "":
		return nil, fmt.Errorf("it is empty: write five fields, such as 0 1 * * * for 01:00 every day, or %s",
			shorthandNames)
	}
	texts := strings.Fields(expression)
	switch {
	case len(texts) == len(fields)+1:
		return nil, fmt.Errorf("it has six fields, but seconds are not supported: leave the first field out (%s)",
			strings.Join(texts[1:], " "))
	case len(texts) != len(fields):
		return nil, fmt.Errorf("it has %d fields: write five, "+
			"which are minute, hour, day of the month, month and day of the week, or %s", len(texts), shorthandNames)
	}
	return texts, nil
}

// parseValues returns the values of a field as bits.
func (f field) parseValues(text string) (uint64, error) {
	for e := range strings.SplitSeq(text, ",") {
		if !element.MatchString(e) {
			return 0, fmt.Errorf("%s %q: write *, a number, a range such as 1-5, a step such as */15, "+
				"or a list of them with commas (%s)", f.name, text, f.allowed)
		}
	}
	spec, err := parseWithLibrary(f.option, text)
	if err != nil {
		return 0, fmt.Errorf("%s %q: use %s (%w)", f.name, text, f.allowed, err)
	}
	return f.bits(spec), nil
}

// parseWithLibrary has the library parse one field. It panics on some texts.
func parseWithLibrary(option robfig.ParseOption, text string) (spec *robfig.SpecSchedule, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("it cannot be parsed: %v", p)
		}
	}()
	parsed, err := robfig.NewParser(option).Parse(text)
	if err != nil {
		return nil, err
	}
	spec, ok := parsed.(*robfig.SpecSchedule)
	if !ok {
		return nil, errors.New("it has no time of day")
	}
	return spec, nil
}

// setValues takes the values of the fields. hourText is what the user has written for the hour.
func (s *Schedule) setValues(values [len(fields)]uint64, hourText string) {
	minutes, hours, monthDays, weekdays := values[0]&^everyValue, values[1]&^everyValue, values[2], values[4]
	for hour := range 24 {
		for minute := range 60 {
			if hours>>hour&1 == 1 && minutes>>minute&1 == 1 {
				s.times = append(s.times, hour*60+minute)
			}
		}
	}
	s.months = values[3] &^ everyValue
	s.eitherDay = monthDays&everyValue == 0 && weekdays&everyValue == 0
	s.monthDays, s.weekdays = monthDays&^everyValue, weekdays&^everyValue
	s.everyHour = bits.OnesCount64(hours) == 24
	s.repeats = s.everyHour || slices.ContainsFunc(strings.Split(hourText, ","), func(e string) bool {
		return e[0] == '*' || e[0] == '?'
	})
	s.days = s.newCalendar()
}
