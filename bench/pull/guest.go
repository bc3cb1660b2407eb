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

// measureGuest runs the benchmark of the launcher, with real libvirt and a real guest, which is a new one in each round.
func measureGuest(ctx context.Context, o *options) ([]report.Row, error) {
	root := filepath.Dir(o.build)
	_, err := runGo(ctx, root, "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join("build", "bench", "guestwriter"), "./bench/pull/guestwriter")
	if err != nil {
		return nil, err
	}
	times := guestTimes{}
	for range o.rounds {
		out, err := runGo(ctx, root, "test", "-trimpath", "-tags", "libvirt_dlopen", "-run", "^$", "-bench", "^BenchmarkPull_guestWrites$", "-benchtime", "1x", "./cmd/varve-launcher")
		if err != nil {
			return nil, err
		}
		times.addResults(out)
	}
	return guestRows(times)
}

// runGo runs the go command and returns what it says. The guest has no shared libraries, so what is built for it needs none.
func runGo(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	if args[0] == "build" {
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", args[0], err, out)
	}
	return string(out), nil
}

// addResults reads the results of the benchmark, which are those of package testing.
func (t guestTimes) addResults(out string) {
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
				t[key] = append(t[key], value)
			}
		}
	}
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
