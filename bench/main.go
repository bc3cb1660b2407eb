// Command bench measures Varve's push backups on the box, together with its peers in the same run on the same data,
// and prints medians with their spread. It also writes the rows to build/bench.json and a description of the machine
// to build/bench-machine.json. The part about the repository, which needs no box, is in bench/repository.
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

func main() { command.Main("bench", run) }

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	kubeconfig := flags.String("kubeconfig", os.Getenv("KUBECONFIG"), "the box's kubeconfig")
	build := flags.String("build", "build", "the repository's build directory")
	rounds := flags.Int("rounds", 5, "measured rounds after one that warms up")
	dataMiB := flags.Int64("data-mib", 1024, "random data on the disk for the throughput, in MiB")
	if err := flags.Parse(args); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 40*time.Minute)
	defer cancel()
	rows, hypervisor, err := measureAll(ctx, *kubeconfig, *build, *rounds, *dataMiB)
	if err != nil {
		return err
	}
	report.Table(os.Stdout, rows)
	return errors.Join(
		report.Merge(filepath.Join(*build, "bench.json"), rows),
		report.MergeMachine(filepath.Join(*build, "bench-machine.json"), "push", map[string]any{
			"rounds": *rounds, "dataMiB": *dataMiB, "usedMiB": fullMiB, "hypervisor": hypervisor, "emulation": "tcg",
		}),
	)
}
