package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// slowest is how many tests a report names.
const slowest = 10

// module is cut off the names of packages.
const module = "github.com/varvebackup/varve/"

// report prints a table of tiers and one of the slowest tests that ran. A test whose result came from Go's cache took
// no time, and a tier that did not run says on what it relied. Tiers may run side by side, so their sum is not the time of
// the whole run.
func report(w io.Writer, dir string, names []string) error {
	type slow struct {
		test
		pkg, tier string
	}
	var tests []slow
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nTIER\tSECONDS\tTESTS\tPACKAGES")
	total := 0
	for _, name := range names {
		t, err := readTier(dir, name)
		if err != nil {
			return err
		}
		total += t.seconds
		fmt.Fprintf(table, "%s\t%d\t%s\n", t.name, t.seconds, t.summary())
		for _, r := range t.packages {
			if r.result == "cached" {
				continue
			}
			for _, one := range r.apart() {
				tests = append(tests, slow{test: one, pkg: strings.TrimPrefix(r.pkg, module), tier: t.name})
			}
		}
	}
	fmt.Fprintf(table, "sum\t%d\n", total)
	slices.SortStableFunc(tests, func(a, b slow) int { return cmp.Compare(b.seconds, a.seconds) })
	tests = tests[:min(len(tests), slowest)]
	if len(tests) > 0 {
		fmt.Fprintln(table, "\nSLOWEST TESTS\tSECONDS\tPACKAGE\tTIER")
	}
	for _, t := range tests {
		fmt.Fprintf(table, "%s\t%.1f\t%s\t%s\n", t.name, t.seconds, t.pkg, t.tier)
	}
	return table.Flush()
}

// printCount prints how many tests and subtests passed in all tiers, and how many failed for good.
func printCount(w io.Writer, dir string, names []string, failed, flaky int) error {
	passed := 0
	for _, name := range names {
		t, err := readTier(dir, name)
		if err != nil {
			return err
		}
		for _, r := range t.packages {
			for _, one := range r.tests {
				if one.result == "pass" {
					passed++
				}
			}
		}
	}
	_, err := fmt.Fprintf(w, "%d passed, %d failed\n", passed+flaky, failed)
	return err
}

// summary is the rest of a tier's row: how many tests and packages there are, and what did not run and why.
func (t tier) summary() string {
	if len(t.relied) > 0 && len(t.packages) == 0 {
		return "\tdid not run: " + strings.Join(t.relied, "; ")
	}
	tests, packages, cached := 0, 0, 0
	for _, r := range t.packages {
		if r.result == "skip" {
			continue
		}
		packages++
		if r.result == "cached" {
			cached++
		}
		for _, one := range r.tests {
			if !strings.Contains(one.name, "/") {
				tests++
			}
		}
	}
	summary := fmt.Sprintf("%d\t%d, %d of them cached", tests, packages, cached)
	if len(t.relied) > 0 {
		summary += "; did not run: " + strings.Join(t.relied, "; ")
	}
	return summary
}
