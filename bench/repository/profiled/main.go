// Command profiled is `varve` for `bench/repository -profile`. It has the same commands, and writes a CPU
// profile and an allocation profile to files whose names begin with VARVE_PROFILE. The product itself has no such switch.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/pprof"
	"syscall"
	"time"

	"github.com/varvebackup/varve/internal/cli"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/session"
	"github.com/varvebackup/varve/internal/repository/storage"
)

func main() {
	storage.Register()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Getenv("VARVE_PROFILE"))
	stop()
	cli.Report(os.Stderr, err, "varve")
	os.Exit(failure.Code(err))
}

func run(ctx context.Context, args []string, profile string) error {
	if profile == "" {
		return runVarve(ctx, args)
	}
	cpu, err := os.Create(profile + ".cpu.pprof")
	if err != nil {
		return err
	}
	if err := pprof.StartCPUProfile(cpu); err != nil {
		return errors.Join(err, cpu.Close())
	}
	err = runVarve(ctx, args)
	return errors.Join(err, finishProfiles(cpu, profile))
}

func runVarve(ctx context.Context, args []string) error {
	root := cli.New(cli.Options{
		Program: "varve", Version: "profiled", Streams: session.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr},
		Now: time.Now, Env: os.Getenv,
	})
	root.SetArgs(args)
	return root.ExecuteContext(ctx)
}

// finishProfiles ends the CPU profile and writes the memory profile: what was allocated, and what was in use at the last collection.
func finishProfiles(cpu *os.File, profile string) error {
	pprof.StopCPUProfile()
	if err := cpu.Close(); err != nil {
		return err
	}
	heap, err := os.Create(profile + ".mem.pprof")
	if err != nil {
		return err
	}
	if err := pprof.Lookup("allocs").WriteTo(heap, 0); err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", heap.Name(), err), heap.Close())
	}
	return heap.Close()
}
