package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/bench/process"
	"github.com/varvebackup/varve/bench/report"
)

// usage is what a measured piece of work used: time, and the processor time of this process and its children.
type usage struct{ wall, cpu time.Duration }

// measure calls work.
func measure(work func() error) (usage, error) {
	before, err := processorTime()
	if err != nil {
		return usage{}, err
	}
	start := time.Now()
	if err := work(); err != nil {
		return usage{}, err
	}
	wall := time.Since(start)
	after, err := processorTime()
	return usage{wall, after - before}, err
}

// processorTime returns what this process, and those of its children that have ended, have used so far.
func processorTime() (time.Duration, error) {
	var sum time.Duration
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var r unix.Rusage
		if err := unix.Getrusage(who, &r); err != nil {
			return 0, err
		}
		sum += time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	return sum, nil
}

// usages is what the rounds of one piece of work used.
type usages []usage

func (u usages) seconds() report.Sample {
	var s report.Sample
	for _, x := range u {
		s = append(s, x.wall.Seconds())
	}
	return s
}

func (u usages) cost() *report.Cost {
	var s report.Sample
	for _, x := range u {
		s = append(s, x.cpu.Seconds())
	}
	return &report.Cost{CPUSeconds: s.Median()}
}

// secondsRow returns a row that compares the times of two pieces of work.
func secondsRow(id, what string, ours usages, peer string, theirs usages) report.Row {
	r := report.Smaller(id, what, "s", ours.seconds(), peer, theirs.seconds())
	r.Cost, r.PeerCost = ours.cost(), theirs.cost()
	return r
}

// inRounds calls each function once per round, and starts with a different one each time: what one leaves behind in
// the file system or the storage must not always slow down the same one.
func inRounds(rounds int, each ...func() error) error {
	for round := range rounds {
		for i := range each {
			if err := each[(i+round)%len(each)](); err != nil {
				return err
			}
		}
	}
	return nil
}

// runTool runs a program until it exits and returns its output. The program dies with this process.
func runTool(ctx context.Context, args ...string) ([]byte, error) {
	// The kernel kills the program when the thread that started it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.WaitDelay = process.LastWords
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%s: %w", strings.Join(args, " "), context.Cause(ctx))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(said.Bytes()))
	}
	return out.Bytes(), nil
}

// logUsage tells the user how long something took.
func (b *bench) logUsage(what string, u usage) {
	fmt.Fprintf(b.log, "  %-44s %7.2f s  cpu %7.2f s\n", what, u.wall.Seconds(), u.cpu.Seconds())
}
