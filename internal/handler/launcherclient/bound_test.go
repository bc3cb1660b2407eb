package launcherclient

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
)

func TestBoundState_keepsAnHonestState(t *testing.T) {
	t.Parallel()
	s := &pb.State{
		Phase: pb.State_RUNNING, Message: "m", GuestOs: &pb.GuestOS{Name: "Debian"},
		Interfaces:  []*pb.Interface{{Name: "default", Ips: []string{"10.0.2.2", "fd00::1"}}},
		Disks:       []*pb.Disk{{Volume: "root", Target: "vda"}},
		Checkpoints: []*pb.Checkpoint{{Name: strings.Repeat("c", 220)}},
		Backup:      &pb.Backup{Uid: "u", Volumes: []*pb.BackedUpVolume{{Volume: "root", Sha256: strings.Repeat("a", 64), File: "f"}}},
	}
	want := proto.Clone(s)
	if diff := cmp.Diff(want, boundState(s), protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

func TestBoundState_cutsADishonestState(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("ä", 1<<12)
	s := &pb.State{Message: long, Backup: &pb.Backup{Message: long, QuiesceMessage: long}}
	for range 1000 {
		s.Interfaces = append(s.Interfaces, &pb.Interface{Name: long, Ips: strings.Split(strings.Repeat("x ", 1000), " ")})
		s.Disks = append(s.Disks, &pb.Disk{Volume: long})
		s.Backup.Volumes = append(s.Backup.Volumes, &pb.BackedUpVolume{File: long})
	}
	got := boundState(s)
	if n := proto.Size(got); n > 256<<10 {
		t.Errorf("%d bytes are left", n)
	}
	if len(got.GetInterfaces()) != maxParts || len(got.GetInterfaces()[0].GetIps()) != maxParts || !utf8.ValidString(got.GetMessage()) {
		t.Errorf("%d interfaces, %d addresses", len(got.GetInterfaces()), len(got.GetInterfaces()[0].GetIps()))
	}
}
