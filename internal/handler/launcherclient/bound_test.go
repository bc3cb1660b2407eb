package launcherclient

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

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

// A message of a few bytes must not become one of many megabytes.
func TestCodec_countsBeforeItDecodes(t *testing.T) {
	t.Parallel()
	codec := newBoundedCodec()
	checkpoints := &pb.State{}
	for range 100 {
		checkpoints.Checkpoints = append(checkpoints.Checkpoints, &pb.Checkpoint{Name: "c", CreationTime: timestamppb.Now(), Volumes: make([]string, maxParts)})
	}
	for name, c := range map[string]struct {
		state *pb.State
		fits  bool
	}{
		"an honest one":            {checkpoints, true},
		"the most":                 {&pb.State{Disks: many[pb.Disk](maxFields)}, true},
		"one more":                 {&pb.State{Disks: many[pb.Disk](maxFields + 1)}, false},
		"interfaces":               {&pb.State{Interfaces: many[pb.Interface](maxMessage/2 - 64)}, false},
		"addresses":                {&pb.State{Interfaces: []*pb.Interface{{Ips: make([]string, maxFields)}}}, false},
		"volumes of a backup":      {&pb.State{Backup: &pb.Backup{Volumes: many[pb.BackedUpVolume](maxFields)}}, false},
		"volumes of a checkpoint":  {&pb.State{Checkpoints: []*pb.Checkpoint{{Volumes: make([]string, maxFields)}}}, false},
		"a text that is very long": {&pb.State{Message: strings.Repeat("x", maxMessage/2)}, true},
	} {
		wire, err := codec.Marshal(c.state)
		if err != nil {
			t.Fatal(err)
		}
		if wire.Len() > maxMessage {
			t.Fatalf("%s: gRPC refuses %d bytes", name, wire.Len())
		}
		got := &pb.State{}
		err = codec.Unmarshal(wire, got)
		if (err == nil) != c.fits {
			t.Errorf("%s: %v", name, err)
		}
		if c.fits && !proto.Equal(got, c.state) || !c.fits && !proto.Equal(got, &pb.State{}) {
			t.Errorf("%s: decoded wrong", name)
		}
		wire.Free()
	}
	if err := codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer{0x0a}}, &pb.State{}); err == nil {
		t.Error("half a message was decoded")
	}
}

// What was cut does not stay in memory.
func TestBoundState_keepsNothingElse(t *testing.T) {
	t.Parallel()
	s := boundState(&pb.State{Disks: many[pb.Disk](maxFields), Checkpoints: many[pb.Checkpoint](maxFields), StrayBitmaps: make([]string, maxFields)})
	if cap(s.GetDisks()) > 2*maxParts || cap(s.GetCheckpoints()) > 2*maxPoints || cap(s.GetStrayBitmaps()) > 2*maxPoints {
		t.Errorf("room for %d disks, %d checkpoints, %d bitmaps", cap(s.GetDisks()), cap(s.GetCheckpoints()), cap(s.GetStrayBitmaps()))
	}
}

func many[T any](n int) []*T {
	all := make([]*T, n)
	for i := range all {
		all[i] = new(T)
	}
	return all
}
