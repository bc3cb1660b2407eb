// Command control measures what Varve's controller costs that has much to look after and nothing to do: 1,000 schedules
// of machines, each with the backups that it keeps, and 1,000 repositories, one of them of 10 TiB. It needs no box: a
// control plane is enough. It writes the rows to build/bench.json.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/varvebackup/varve/bench/report"
	"github.com/varvebackup/varve/test/command"
)

// options are what the command line says.
type options struct {
	build              string
	schedules, backups int
	repositories       int
	rounds             int
	measures           time.Duration
}

func main() { command.Main("bench", run) }

func run(ctx context.Context, args []string) error {
	var o options
	flags := flag.NewFlagSet("control", flag.ContinueOnError)
	flags.StringVar(&o.build, "build", "build", "the repository's build directory")
	flags.IntVar(&o.schedules, "schedules", 1000, "how many schedules there are")
	flags.IntVar(&o.backups, "backups", 8, "how many backups each schedule keeps")
	flags.IntVar(&o.repositories, "repositories", 1000, "how many repositories there are, the first one a large one")
	flags.IntVar(&o.rounds, "rounds", 3, "how many stretches of time are measured")
	flags.DurationVar(&o.measures, "measures", time.Minute, "how long each of them is: whole minutes")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if o.schedules < 1 || o.backups < 0 || o.repositories < 0 || o.rounds < 1 || o.measures < time.Minute {
		return fmt.Errorf("-schedules %d, -backups %d, -rounds %d and -measures %s: there is nothing to measure",
			o.schedules, o.backups, o.rounds, o.measures)
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Minute+time.Duration(o.rounds)*o.measures)
	defer cancel()
	rows, err := measureSchedules(ctx, &o)
	if err != nil {
		return err
	}
	report.Table(os.Stdout, rows)
	return report.Merge(filepath.Join(o.build, "bench.json"), rows)
}
