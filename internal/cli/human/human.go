// Package human writes byte counts, ages and durations for people. It is pure: the present moment is an argument.
// Programs read -o json, which never uses this package.
package human

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/mattn/go-runewidth"
)

// Unknown stands for a value that is not known (yet).
const Unknown = "-"

// Bytes writes a count of bytes with a binary unit and at most one decimal: "1.2 GiB".
func Bytes(n int64) string {
	if n < 0 {
		return Unknown
	}
	const step = 1024
	if n < step {
		return strconv.FormatInt(n, 10) + " B"
	}
	value, unit := float64(n), 0
	// 1023.95 KiB would print as 1024.0 KiB, so it gets the next unit.
	for units := len("KMGTPE"); unit < units && value >= step-0.05; unit++ {
		value /= step
	}
	text := strconv.FormatFloat(value, 'f', 1, 64)
	return strings.TrimSuffix(text, ".0") + " " + "KMGTPE"[unit-1:unit] + "iB"
}

// Age writes how long ago t was, in the largest one or two units, as kubectl does: "5s", "3m20s", "26h", "12d". A zero
// t is Unknown.
func Age(now, t time.Time) string {
	if t.IsZero() {
		return Unknown
	}
	return Span(now.Sub(t))
}

// Span writes a length of time in the largest one or two units. A negative one, as between two clocks, is "0s".
func Span(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < 0:
		return "0s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < 10*time.Minute:
		return formatTwoUnits(d, time.Minute, "m", time.Second, "s")
	case d < 3*time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 8*time.Hour:
		return formatTwoUnits(d, time.Hour, "h", time.Minute, "m")
	case d < 2*day:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d < 8*day:
		return formatTwoUnits(d, day, "d", time.Hour, "h")
	case d < 2*365*day:
		return fmt.Sprintf("%dd", d/day)
	default:
		return formatTwoUnits(d, 365*day, "y", day, "d")
	}
}

func formatTwoUnits(d, large time.Duration, l string, small time.Duration, s string) string {
	n, rest := d/large, d%large/small
	if rest == 0 {
		return fmt.Sprintf("%d%s", n, l)
	}
	return fmt.Sprintf("%d%s%d%s", n, l, rest, s)
}

// Took writes a measured length of time, in milliseconds below a second and with tenths of a second below a minute.
func Took(d time.Duration) string {
	switch {
	case d < 0:
		return Unknown
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + "s"
	default:
		return Span(d)
	}
}

// Line makes text from the cluster safe for one line of a terminal: control characters, which could move the
// cursor or hide text, become spaces.
func Line(text string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) {
			return ' '
		}
		return r
	}, text))
}

// Count writes a number of things, given the singular of their name: "1 restore point", "3 restore points".
func Count[N ~int | ~int64](n N, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Short cuts text to width columns of a terminal. The last column then marks the cut.
func Short(text string, width int) string { return runewidth.Truncate(text, width, "…") }

// Or returns text, or Unknown if it is empty.
func Or(text string) string {
	if text == "" {
		return Unknown
	}
	return text
}
