package main

import (
	"bytes"
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
)

// freezableLauncher answers the two calls of virt-freezer and counts them.
type freezableLauncher struct {
	pb.UnimplementedLauncherServer
	frozen, thawed int
	skipped        string
	err            error
}

func (f *freezableLauncher) FreezeGuest(context.Context, *pb.FreezeGuestRequest) (*pb.FreezeGuestResponse, error) {
	f.frozen++
	return &pb.FreezeGuestResponse{Skipped: f.skipped}, f.err
}

func (f *freezableLauncher) ThawGuest(context.Context, *pb.ThawGuestRequest) (*pb.ThawGuestResponse, error) {
	f.thawed++
	return &pb.ThawGuestResponse{Skipped: f.skipped}, f.err
}

func TestFreezer_tellsTheLauncher(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "socket")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	fake := &freezableLauncher{}
	server := grpc.NewServer()
	pb.RegisterLauncherServer(server, fake)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	run := func(args ...string) (int, string) {
		var said bytes.Buffer
		code := runFreezer(args, socket, &said)
		return code, said.String()
	}
	// As Velero's hooks call it in KubeVirt's pods.
	if code, said := run("--freeze", "--name", "vm", "--namespace", "ns"); code != 0 || said != "" || fake.frozen != 1 {
		t.Errorf("freeze: %d %q, %+v", code, said, fake)
	}
	if code, said := run("--unfreeze", "--name", "vm", "--namespace", "ns"); code != 0 || said != "" || fake.thawed != 1 {
		t.Errorf("unfreeze: %d %q, %+v", code, said, fake)
	}
	for _, wrong := range [][]string{{}, {"--freeze", "--unfreeze"}, {"--freeze", "more"}, {"--nonsense"}} {
		if code, said := run(wrong...); code != 2 || said == "" {
			t.Errorf("%v: %d %q", wrong, code, said)
		}
	}
	if fake.frozen+fake.thawed != 2 {
		t.Errorf("wrong flags reached the launcher: %+v", fake)
	}
	fake.skipped = "no guest agent is connected"
	if code, said := run("--freeze"); code != 0 || !strings.Contains(said, fake.skipped) {
		t.Errorf("skipped: %d %q", code, said)
	}
	fake.err = status.Error(codes.FailedPrecondition, "the guest is frozen for a backup")
	for _, action := range []string{"--freeze", "--unfreeze"} {
		if code, said := run(action); code != 1 || !strings.Contains(said, "frozen for a backup") {
			t.Errorf("refused: %d %q", code, said)
		}
	}
	server.Stop()
	if code, said := run("--freeze"); code != 1 || said == "" {
		t.Errorf("without a launcher: %d %q", code, said)
	}
}
