// Command demo runs Varve's main job on the box and reports what it does. It starts a Debian guest with two disks,
// switches on changed block tracking by label, and makes a full and two incremental push backups with a restart
// between them. It rebuilds each of the three points in time with qemu-img alone and compares it with what the disks held. Then it stores
// the running machine's disks by changed blocks in a repository on S3, deletes machine and disks, makes them again from the repository,
// compares every block, and boots the machine.
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
	boxDir := flags.String("box", os.Getenv("VARVE_BOX_DIR"), "the box's directory, which says where its S3 service is")
	build := flags.String("build", "build", "the repository's build directory")
	if err := flags.Parse(args); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Minute)
	defer cancel()
	t := newTeller(os.Stdout)
	result, err := runStory(ctx, t, *kubeconfig, *build, *boxDir)
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
