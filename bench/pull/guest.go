package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/varvebackup/varve/bench/report"
)

// guestAims are how many times the p99 of an idle machine a write may take, by the kind of client.
var guestAims = []struct {
	id, phase, what string
	aim             float64
}{
	{"pull-guest-p99", "fast", "synced 4 KiB writes in the guest during a pull: p99, in multiples of that without a backup", 1.5},
	{"pull-guest-p99-slow", "slow", "the same during a pull at 1 MiB/s", 2},
}

// guestTimes are percentiles in milliseconds, a sample a round, by "phase/unit", such as "idle/p99-ms".
type guestTimes map[string]report.Sample

// measureGuest runs the benchmark of the launcher, with real libvirt and a real guest.
func measureGuest(ctx context.Context, o *options) ([]report.Row, error) {
	root := filepath.Dir(o.build)
	for _, args := range [][]string{
		{"build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join("build", "bench", "guestwriter"), "./bench/pull/guestwriter"},
		{"test", "-trimpath", "-tags", "libvirt_dlopen", "-run", "^$", "-bench", "^BenchmarkPull_guestWrites$", "-benchtime", "1x", "-count", strconv.Itoa(o.rounds), "-timeout", "60m", "./cmd/varve-launcher"},
	} {
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Dir = root
		if args[0] == "build" {
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		}
		out, err := cmd.CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("go %s: %w\n%s", args[0], err, out)
		}
		if args[0] == "test" {
			return guestRows(parseGuestTimes(string(out)))
		}
	}
	return nil, nil
}

// parseGuestTimes reads the results of the benchmark, which are those of package testing.
func parseGuestTimes(out string) guestTimes {
	times := guestTimes{}
	for line := range strings.Lines(out) {
		name, results, found := strings.Cut(line, " ")
		_, phase, named := strings.Cut(name, "_guestWrites/")
		if !found || !named {
			continue
		}
		phase, _, _ = strings.Cut(strings.TrimSpace(phase), "-") // the number of processors
		fields := strings.Fields(results)
		for i := 1; i+1 < len(fields); i += 2 {
			if value, err := strconv.ParseFloat(fields[i], 64); err == nil {
				key := phase + "/" + fields[i+1]
				times[key] = append(times[key], value)
			}
		}
	}
	return times
}

// guestRows returns the rows. A round's ratio is that of the same guest.
func guestRows(times guestTimes) ([]report.Row, error) {
	var rows []report.Row
	describe := func(phase string) string {
		return fmt.Sprintf("%.1f, %.1f", times[phase+"/p50-ms"].Median(), times[phase+"/p99-ms"].Median())
	}
	for _, a := range guestAims {
		idle, busy := times["idle/p99-ms"], times[a.phase+"/p99-ms"]
		if len(idle) == 0 || len(idle) != len(busy) {
			return nil, fmt.Errorf("the benchmark measured %d idle rounds and %d with a %s client", len(idle), len(busy), a.phase)
		}
		var multiples report.Sample
		for i := range idle {
			multiples = append(multiples, busy[i]/idle[i])
		}
		what := fmt.Sprintf("%s (p50, p99 in ms: %s; without a backup %s)", a.what, describe(a.phase), describe("idle"))
		rows = append(rows, report.Smaller(a.id, what, "x", multiples, "aim", report.Sample{a.aim}))
	}
	return rows, nil
}
