// Command repository measures Varve's disk repository against the kopia CLI, restic, borg and qemu-img: whole
// commands, in one run, on the same image, alternately. It prints medians with their spread and writes the rows to
// build/bench.json. docs/testing.md describes the rows.
package main

import (
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"time"

	"github.com/varvebackup/varve/bench/report"
	"github.com/varvebackup/varve/test/command"
)

func main() { command.Main("bench-repository", run) }

// roundTimeout bounds a round, so that no program can hang for ever.
const roundTimeout = 30 * time.Minute

func run(ctx context.Context, args []string) (err error) {
	o, err := parseOptions(args)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(o.rounds+1)*roundTimeout)
	defer cancel()
	dir, closeDir, err := openWorkspace(o.dir, o.peakBytes())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeDir()) }()
	b, err := newBench(ctx, o, dir)
	if err != nil {
		return err
	}
	if len(o.blocks) > 0 {
		return b.compareBlocks(ctx)
	}
	rows, err := b.runParts(ctx)
	if err != nil {
		return err
	}
	report.Table(os.Stdout, rows)
	if o.profile != "" { // Profiling costs time, so these figures are not the product's.
		return nil
	}
	facts, err := b.collectFacts(ctx)
	if err != nil {
		return err
	}
	return errors.Join(
		report.Merge(filepath.Join(o.build, "bench.json"), rows),
		report.MergeMachine(filepath.Join(o.build, "bench-machine.json"), "repository", facts),
	)
}

func parseOptions(args []string) (*options, error) {
	o := &options{}
	flags := flag.NewFlagSet("bench-repository", flag.ContinueOnError)
	flags.StringVar(&o.build, "build", "build", "the repository's build directory, with bin/varve and peers/bin/kopia")
	flags.IntVar(&o.rounds, "rounds", 3, "measured rounds")
	flags.Int64Var(&o.imageGiB, "image-gib", 16, "the size of the image, in GiB")
	flags.Int64Var(&o.corpusMiB, "corpus-mib", 0, "how much of the image is not holes, in MiB (default a quarter)")
	flags.Var(&o.blocks, "blocks", "measure these block sizes instead, such as 256k,1m,4m; build/bench-blocks.json")
	flags.Var(&o.only, "only", "measure only the rows with these IDs, such as repo-verify,repo-1tib-mib")
	flags.StringVar(&o.dir, "dir", "", "where to work (default varve in the user's directory of caches)")
	flags.StringVar(&o.profile, "profile", "", "write profiles of Varve's runs to this directory, and no rows")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	return o, o.setDefaults()
}
