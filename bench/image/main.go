// Command image measures images and volumes on the disks of two nodes against qemu-img, cp and plain files, in one run,
// alternately: two XFS file systems on loop devices play the disks. It needs root, and no box. It prints medians with
// their spread and writes the rows to build/bench.json. docs/testing.md describes the rows.
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

func main() { command.Main("bench-image", run) }

// roundTimeout bounds a round, so that no program can hang for ever.
const roundTimeout = 10 * time.Minute

const (
	kib = int64(1) << 10
	mib = int64(1) << 20
	gib = int64(1) << 30
)

// options are the command's flags.
type options struct {
	build, dir string
	rounds     int
	imageMiB   int64
	clones     int
	// ioTime is how long each measurement of random reads or writes takes.
	ioTime time.Duration
	only   []string
}

func run(ctx context.Context, args []string) (err error) {
	o, err := parseOptions(args)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(o.rounds+1)*roundTimeout)
	defer cancel()
	b, err := openBench(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	loadBefore, err := report.ReadLoad()
	if err != nil {
		return err
	}
	rows, err := b.measureParts(ctx)
	if err != nil {
		return err
	}
	report.Table(os.Stdout, rows)
	facts, err := b.collectFacts(ctx)
	if err != nil {
		return err
	}
	facts["loadBefore"] = loadBefore
	return errors.Join(
		report.Merge(filepath.Join(o.build, "bench.json"), rows),
		report.MergeMachine(filepath.Join(o.build, "bench-machine.json"), "image", facts),
	)
}

func parseOptions(args []string) (*options, error) {
	o := &options{}
	flags := flag.NewFlagSet("bench-image", flag.ContinueOnError)
	flags.StringVar(&o.build, "build", "build", "the repository's build directory")
	flags.StringVar(&o.dir, "dir", "", "where to work, in a directory bench-image (default the build directory)")
	flags.IntVar(&o.rounds, "rounds", 3, "measured rounds")
	flags.Int64Var(&o.imageMiB, "image-mib", 2048, "the size of the image, in MiB; half of it is data")
	flags.IntVar(&o.clones, "clones", 100, "how many clones of the image a round makes")
	flags.DurationVar(&o.ioTime, "io-time", 5*time.Second, "how long random reads or writes are measured: whole seconds")
	only := flags.String("only", "", "measure only the rows with these IDs, such as image-create,image-sync")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if *only != "" {
		o.only = strings.Split(*only, ",")
	}
	for _, id := range o.only {
		if !slices.Contains(rowIDs(), id) {
			return nil, fmt.Errorf("row %q does not exist: use one of %s", id, strings.Join(rowIDs(), ", "))
		}
	}
	if o.rounds < 1 || o.imageMiB < 16 || o.clones < 1 || o.ioTime < time.Second || flags.NArg() > 0 {
		return nil, errors.New("give at least one round, an image of 16 MiB, one clone, one second of -io-time, and no " +
			"arguments")
	}
	if o.dir == "" {
		o.dir = o.build
	}
	var buildErr, dirErr error
	o.build, buildErr = filepath.Abs(o.build)
	o.dir, dirErr = filepath.Abs(o.dir)
	return o, errors.Join(buildErr, dirErr)
}

func (o *options) wantsAny(ids ...string) bool {
	return len(o.only) == 0 || slices.ContainsFunc(ids, func(id string) bool { return slices.Contains(o.only, id) })
}

func (o *options) imageBytes() int64 { return o.imageMiB * mib }
