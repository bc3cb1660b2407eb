// Command demo runs Varve's main job on the box and reports what it does. It starts a Debian guest with two disks,
// switches on changed block tracking by label, and makes a full and two incremental push backups with a restart
// between them. It rebuilds each of the three points in time with qemu-img alone and compares it with what the disks held.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/varvebackup/varve/test/command"
)

func main() { command.Main("demo", run) }

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	kubeconfig := flags.String("kubeconfig", os.Getenv("KUBECONFIG"), "the box's kubeconfig")
	build := flags.String("build", "build", "the repository's build directory")
	if err := flags.Parse(args); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Minute)
	defer cancel()
	t := newTeller(os.Stdout)
	result, err := runStory(ctx, t, *kubeconfig, *build)
	if result != nil {
		file := filepath.Join(*build, "demo", "result.json")
		if writeErr := result.writeJSON(file); writeErr != nil {
			return errors.Join(err, writeErr)
		}
		result.printTable(os.Stdout)
		fmt.Fprintln(os.Stdout, "result:", file)
	}
	if err == nil && !result.OK {
		err = errors.New("a restored disk differs from what the guest had")
	}
	return err
}
