// Command bench measures Varve's push backups on the box, its peers in the same run on the same data, and prints
// medians with their spread. The table also goes to build/bench.json and what it was measured on to build/bench-machine.json.
package main

import (
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"time"

	"github.com/varvebackup/varve/test/lab"
)

func main() { lab.Main("bench", run) }

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
	rows, hypervisor, err := measure(ctx, *kubeconfig, *build, *rounds, *dataMiB)
	if err != nil {
		return err
	}
	table(os.Stdout, rows)
	return errors.Join(
		writeJSON(filepath.Join(*build, "bench.json"), rows),
		writeJSON(filepath.Join(*build, "bench-machine.json"), machine(*rounds, *dataMiB, hypervisor)),
	)
}
