// Command pull measures pull backups against nbdcopy, which reads the same disk from the same socket. The launcher's
// half, the export server and the client are a process each, as in pods, and all of them share this machine. It prints
// medians with their spread and writes the rows to build/bench.json. docs/testing.md describes the rows.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"time"

	"github.com/varvebackup/varve/bench/report"
	"github.com/varvebackup/varve/test/command"
)

// The roles in which this program starts itself. The first argument is the role, and the others are the role's own.
const (
	launcherRole = "as-launcher"
	serverRole   = "as-server"
	clientRole   = "as-client"
)

func main() { command.Main("bench-pull", run) }

// roundTimeout bounds a round, so that no program can hang for ever.
const roundTimeout = 5 * time.Minute

// options are what the command's user wants.
type options struct {
	build, dir, profile string
	rounds              int
	dataMiB             int64
	guest               bool
	only                []string
}

func run(ctx context.Context, args []string) error {
	if len(args) > 0 {
		switch args[0] {
		case launcherRole:
			return profiled(args[1:], func(o role) error { return runLauncher(ctx, o) })
		case serverRole:
			return profiled(args[1:], func(o role) error { return runServer(ctx, o) })
		case clientRole:
			return profiled(args[1:], func(o role) error { return runClient(ctx, o) })
		}
	}
	o, err := parseOptions(args)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(o.rounds+1)*roundTimeout)
	defer cancel()
	if o.guest {
		rows, err := measureGuest(ctx, o)
		if err != nil {
			return err
		}
		report.Table(os.Stdout, rows)
		return report.Merge(filepath.Join(o.build, "bench.json"), rows)
	}
	rows, facts, err := measureAll(ctx, o)
	if err != nil {
		return err
	}
	report.Table(os.Stdout, rows)
	if o.profile != "" { // Profiling costs time, so these figures are not the product's.
		return nil
	}
	return errors.Join(
		report.Merge(filepath.Join(o.build, "bench.json"), rows),
		report.MergeMachine(filepath.Join(o.build, "bench-machine.json"), "pull", facts),
	)
}

func parseOptions(args []string) (*options, error) {
	o := &options{}
	flags := flag.NewFlagSet("bench-pull", flag.ContinueOnError)
	flags.StringVar(&o.build, "build", "build", "the repository's build directory")
	flags.IntVar(&o.rounds, "rounds", 5, "measured rounds after one that warms up and compares the bytes")
	flags.Int64Var(&o.dataMiB, "data-mib", 2048, "the size of the disk, in MiB")
	flags.StringVar(&o.dir, "dir", "/dev/shm", "where the disk lies: a file system in memory")
	flags.StringVar(&o.profile, "profile", "", "write processor profiles of Varve's processes to this directory, and no rows; best with one ID in -only")
	flags.BoolVar(&o.guest, "guest", false, "measure the writes of a guest instead: needs root, libvirt's root and the guest")
	only := flags.String("only", "", "measure only the rows with these IDs, such as pull-data-1,pull-stream")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if *only != "" {
		o.only = strings.Split(*only, ",")
	}
	for _, id := range o.only {
		if !slices.ContainsFunc(pulls, func(p pull) bool { return p.id == id }) {
			return nil, fmt.Errorf("there is no row %q", id)
		}
	}
	if o.rounds < 1 || o.dataMiB < 16 || flags.NArg() > 0 {
		return nil, errors.New("rounds and MiB are numbers from 1 and 16 on, and there are no arguments")
	}
	return o, nil
}

func (o *options) wants(id string) bool { return len(o.only) == 0 || slices.Contains(o.only, id) }

// profiled runs a role, and writes a profile of its processor time if the role has a file for it.
func profiled(args []string, body func(role) error) error {
	o, err := parseRole(args)
	if err != nil {
		return err
	}
	if o.Profile == "" {
		return body(o)
	}
	f, err := os.Create(o.Profile)
	if err != nil {
		return err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return errors.Join(err, f.Close())
	}
	err = body(o)
	pprof.StopCPUProfile()
	return errors.Join(err, f.Close())
}
