// Command move measures the data mover on the box: the disks of a running machine by changed blocks into a repository on the box's S3
// service, and back. Its peers run in the same run, on the same content, on the same storage. It prints medians with their spread and writes
// the rows to build/bench.json. docs/testing.md describes the rows.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/varvebackup/varve/bench/report"
	"github.com/varvebackup/varve/test/command"
)

const (
	namespace = "varve-bench"
	vmName    = "move"
	mib       = int64(1) << 20
	gib       = int64(1) << 30
	tib       = int64(1) << 40
)

// timeout bounds a run, so that nothing can hang for ever.
const timeout = time.Hour

func main() { command.Main("bench-move", run) }

// options are what the command's user wants.
type options struct {
	kubeconfig, build, boxDir string
	rounds                    int
	only                      []string
}

// part measures some of the rows.
type part struct {
	ids []string
	run func(*bench, context.Context) ([]report.Row, error)
}

var parts = []part{
	{[]string{"move-full", "move-full-data", "move-1pct", "move-1pct-data", "move-overhead", "move-restore", "move-restore-data"}, (*bench).measureDisk},
	{[]string{"move-parallel"}, (*bench).measureParallel},
	{[]string{"vm-backup-overhead", "vm-restore"}, (*bench).measureWhole},
	{[]string{"move-peak", "move-peak-changes"}, (*bench).measurePeak},
}

func run(ctx context.Context, args []string) (err error) {
	o, err := parseOptions(args)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	b, err := openBench(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close(context.WithoutCancel(ctx))) }()
	var rows []report.Row
	for _, p := range parts {
		if !slices.ContainsFunc(p.ids, o.wants) {
			continue
		}
		more, err := p.run(b, ctx)
		if err != nil {
			return err
		}
		rows = append(rows, more...)
	}
	report.Table(os.Stdout, rows)
	return errors.Join(
		report.Merge(filepath.Join(o.build, "bench.json"), rows),
		report.MergeMachine(filepath.Join(o.build, "bench-machine.json"), "move", map[string]any{
			"rounds": o.rounds, "disk": b.contents, "hypervisor": b.hypervisor, "emulation": "tcg",
		}),
	)
}

func parseOptions(args []string) (*options, error) {
	o := &options{}
	flags := flag.NewFlagSet("bench-move", flag.ContinueOnError)
	flags.StringVar(&o.kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "the box's kubeconfig")
	flags.StringVar(&o.build, "build", "build", "the repository's build directory")
	flags.StringVar(&o.boxDir, "box-dir", os.Getenv("VARVE_BOX_DIR"), "the box's directory")
	flags.IntVar(&o.rounds, "rounds", 3, "measured rounds after one that warms up and compares the bytes")
	only := flags.String("only", "", "measure only the parts that have these rows, such as move-full,move-peak")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if *only != "" {
		o.only = strings.Split(*only, ",")
	}
	for _, id := range o.only {
		if !slices.ContainsFunc(parts, func(p part) bool { return slices.Contains(p.ids, id) }) {
			return nil, fmt.Errorf("there is no row %q", id)
		}
	}
	if o.rounds < 1 || flags.NArg() > 0 {
		return nil, errors.New("-rounds is from 1 on, and there are no arguments")
	}
	return o, nil
}

func (o *options) wants(id string) bool { return len(o.only) == 0 || slices.Contains(o.only, id) }
