// Command beside measures Varve's own runtime against upstream's KubeVirt, on the same guest with the same disks. Both
// have kinds of the same names, so each runs in a box of its own, one after the other:
//
//	beside -runtime varve     measures Varve's, and keeps the figures in the build directory
//	beside -runtime kubevirt  measures KubeVirt's with Varve beside it
//	beside -report            prints both as ratios, and writes the rows to build/bench.json
//
// `make bench-beside` does all of it. docs/testing.md describes the rows.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/varvebackup/varve/bench/report"
	"github.com/varvebackup/varve/internal/export/endpoint"
	"github.com/varvebackup/varve/test/command"
)

// timeout bounds a half, so that nothing can hang for ever.
const timeout = 30 * time.Minute

const (
	ownRuntime      = "varve"
	kubeVirtRuntime = "kubevirt"
)

func main() { command.Main("bench-beside", run) }

// options are what the command's user wants.
type options struct {
	kubeconfig, build, boxDir string
	runtime                   string
	rounds                    int
	report                    bool
}

func run(ctx context.Context, args []string) (err error) {
	o, err := parseOptions(args)
	if err != nil {
		return err
	}
	if o.report {
		return o.writeReport()
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	b, err := openBench(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.removeAll(context.WithoutCancel(ctx))) }()
	if err := b.measureAll(ctx); err != nil {
		return err
	}
	return report.Write(o.halfFile(o.runtime), half{Figures: b.figures, Facts: b.facts})
}

func parseOptions(args []string) (*options, error) {
	o := &options{}
	flags := flag.NewFlagSet("bench-beside", flag.ContinueOnError)
	flags.StringVar(&o.kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "the box's kubeconfig")
	flags.StringVar(&o.build, "build", "build", "the repository's build directory")
	flags.StringVar(&o.boxDir, "box-dir", os.Getenv("VARVE_BOX_DIR"), "the box's directory")
	flags.StringVar(&o.runtime, "runtime", "", "whose runtime the box has: varve or kubevirt")
	flags.IntVar(&o.rounds, "rounds", 3, "measured rounds")
	flags.BoolVar(&o.report, "report", false, "write the figures of both runtimes")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if known := o.runtime == ownRuntime || o.runtime == kubeVirtRuntime; known == o.report {
		return nil, errors.New("-runtime is varve or kubevirt, or there is -report")
	}
	if o.rounds < 1 || flags.NArg() > 0 {
		return nil, errors.New("-rounds is from 1 on, and there are no arguments")
	}
	return o, nil
}

// half is what was measured with one runtime: samples by the IDs of their rows.
type half struct {
	Figures map[string]report.Sample `json:"figures"`
	Facts   map[string]any           `json:"facts"`
}

func (o *options) halfFile(runtime string) string {
	return filepath.Join(o.build, "bench-beside-"+runtime+".json")
}

// row describes a row. The figure of a larger one is better if it is larger.
type row struct {
	id, what, unit string
	larger         bool
}

var rows = []row{
	{"beside-data-1", "data of a pull backup, requests of 1 MiB, 1 connection", "MiB/s", true},
	{"beside-data-4", "data of a pull backup, requests of 1 MiB, 4 connections", "MiB/s", true},
	{"beside-scattered", "map of an incremental, and its 600 extents of 64 KiB, 4 connections", "s", false},
	{"beside-empty-push", "empty incremental push backup, create to Done", "s", false},
	{"beside-sparse", "read of a machine's disks for its first backup", "MiB", false},
	{"beside-backup", "first backup of a whole machine, create to readyToUse", "s", false},
	{"beside-backup-empty", "backup of a whole machine in which nothing has changed, create to readyToUse", "s", false},
	{"beside-restore", "restore of the machine, halted, create to complete", "s", false},
}

// writeReport writes the rows of which both runtimes have figures: all of them.
func (o *options) writeReport() error {
	own, err := readHalf(o.halfFile(ownRuntime))
	if err != nil {
		return err
	}
	theirs, err := readHalf(o.halfFile(kubeVirtRuntime))
	if err != nil {
		return err
	}
	all, err := compareHalves(own, theirs)
	if err != nil {
		return err
	}
	report.Table(os.Stdout, all)
	facts := map[string]any{ownRuntime: own.Facts, kubeVirtRuntime: theirs.Facts, "emulation": "tcg"}
	return errors.Join(report.Merge(filepath.Join(o.build, "bench.json"), all),
		report.MergeMachine(filepath.Join(o.build, "bench-machine.json"), "beside", facts))
}

func readHalf(file string) (*half, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the figures of a runtime: %w", err)
	}
	h := &half{}
	if err := json.Unmarshal(text, h); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return h, nil
}

func compareHalves(own, theirs *half) ([]report.Row, error) {
	var all []report.Row
	for _, r := range rows {
		ours, peer := own.Figures[r.id], theirs.Figures[r.id]
		if len(ours) == 0 || len(peer) == 0 {
			return nil, fmt.Errorf("row %s has %d figures of Varve's runtime and %d of KubeVirt's", r.id, len(ours), len(peer))
		}
		compare := report.Smaller
		if r.larger {
			compare = report.Larger
		}
		all = append(all, compare(r.id, r.what, r.unit, ours, "KubeVirt's runtime", peer))
	}
	return all, nil
}

// chooseDialect returns that of the runtime's endpoints.
func (o *options) chooseDialect() endpoint.Dialect {
	if o.runtime == kubeVirtRuntime {
		return endpoint.KubeVirt
	}
	return endpoint.Spec
}
