package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/layout"
)

// freezerName is the name under which the program freezes and thaws the guest of its pod. Programs that back up claims
// run it in the pod before and after, as Velero does, under the name and with the flags that it has in KubeVirt's pods.
const freezerName = "virt-freezer"

// freezerTimeout is how long a call may take. Velero's hooks have 60 seconds.
const freezerTimeout = 50 * time.Second

// runFreezer freezes or thaws the guest and returns the exit code: 0 if that worked or there is nothing to freeze, 1 if
// it did not work, 2 for wrong flags.
func runFreezer(args []string, socket string, stderr io.Writer) int {
	f := flag.NewFlagSet(freezerName, flag.ContinueOnError)
	f.SetOutput(stderr)
	freeze := f.Bool("freeze", false, "freeze the guest's file systems until --unfreeze, for 30 seconds at most")
	unfreeze := f.Bool("unfreeze", false, "thaw what --freeze froze")
	f.String("name", "", "the instance's name; a pod has one guest, so it may be left out")
	f.String("namespace", "", "the instance's namespace; may be left out")
	f.Int("unfreezeTimeoutSeconds", 0, "as in KubeVirt; the guest is thawed after 30 seconds whatever it says")
	err := f.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err == nil && f.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", f.Arg(0))
	case err == nil && *freeze == *unfreeze:
		err = errors.New("name one of --freeze and --unfreeze")
	}
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "%s: %v\n", freezerName, err)
		return 2
	}
	skipped, err := callFreezer(socket, *freeze)
	switch {
	case err != nil:
		_, _ = fmt.Fprintf(stderr, "%s: %v\n", freezerName, err)
		return 1
	case skipped != "":
		_, _ = fmt.Fprintf(stderr, "%s: nothing to do: %s\n", freezerName, skipped)
	}
	return 0
}

// callFreezer returns why there was nothing to do, or "".
func callFreezer(socket string, freeze bool) (skipped string, err error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return "", fmt.Errorf("connect to the launcher: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	ctx, cancel := context.WithTimeout(context.Background(), freezerTimeout)
	defer cancel()
	launcher := pb.NewLauncherClient(conn)
	if freeze {
		answer, err := launcher.FreezeGuest(ctx, &pb.FreezeGuestRequest{})
		return answer.GetSkipped(), err
	}
	answer, err := launcher.ThawGuest(ctx, &pb.ThawGuestRequest{})
	return answer.GetSkipped(), err
}

// freezerSocket is where the launcher of the pod listens.
const freezerSocket = layout.Socket
