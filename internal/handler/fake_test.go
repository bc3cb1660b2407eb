//go:build controlplane || root

package handler_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"

	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/layout"
)

// fakeLauncher speaks the real protocol over a real socket where a launcher pod's would be. It has no guest. A test
// plays one by changing the state, and reads the calls that the handler made.
type fakeLauncher struct {
	pb.UnimplementedLauncherServer

	pod    types.UID
	server *grpc.Server

	mu      sync.Mutex
	state   *pb.State
	changed chan struct{}
	calls   []string
	started *pb.StartRequest
	begun   []*pb.BeginBackupRequest
	stops   []int64
	// connected is the last call of ConnectBackup.
	connected *pb.ConnectBackupRequest
	// offered has the last call of ConnectBackup for each volume, without those that end an offer.
	offered map[string]*pb.ConnectBackupRequest
	// ended are the volumes whose offer was ended, in order.
	ended []string
	// refuseConnect is the error that ConnectBackup returns for a volume instead.
	refuseConnect map[string]error
	deleted       []string
	// redefined has the names of every RedefineCheckpoints call so far.
	redefined []string
	// lost are volumes whose bitmaps RedefineCheckpoints reports as lost.
	lost map[string]string
	// renewed is why the overlay of the disk was made anew at the start.
	renewed string
	// lostIn are checkpoints whose bitmaps RedefineCheckpoints reports as lost on every volume.
	lostIn map[string]string
	// refuseRedefine is the error that RedefineCheckpoints returns instead.
	refuseRedefine error
	// refuse is the error that BeginBackup returns instead of beginning.
	refuse error
	// freezeRequest is the last call of FreezeGuest, and frozenFor the owner of the last freeze.
	freezeRequest *pb.FreezeGuestRequest
	frozenFor     string
	// refuseFreeze and refuseThaw are the errors that these calls return, and loseAnswer makes the next FreezeGuest
	// freeze the guest and fail.
	refuseFreeze, refuseThaw error
	loseAnswer               bool
	// migrated and prepared are the last calls about migrations, and refuseMigrate is the error that Migrate returns instead.
	migrated      *pb.MigrateRequest
	prepared      *pb.PrepareMigrationRequest
	refuseMigrate error
	// mute makes Start accept calls and never answer them.
	mute bool
	// finish returns what a backup becomes at once. If nil, that is PREPARING.
	finish func(*pb.BeginBackupRequest) *pb.Backup
}

// newFakeLauncher serves in the emptyDir of a launcher pod below podsDir until the test ends or kill is called.
func newFakeLauncher(t *testing.T, podsDir string, pod types.UID) *fakeLauncher {
	t.Helper()
	f := &fakeLauncher{pod: pod, state: &pb.State{PullsBackups: true, OffersSingleVolumes: true}, changed: make(chan struct{}), lost: map[string]string{}}
	socket := layout.NodeSocket(podsDir, pod)
	for _, dir := range []string{filepath.Dir(socket), layout.NodeUtilityDir(podsDir, pod)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	f.serve(t, socket)
	return f
}

func (f *fakeLauncher) serve(t *testing.T, socket string) {
	t.Helper()
	// The path with a pod's UID may be longer than an address may be.
	dir, err := os.Open(filepath.Dir(socket))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	listener, err := net.Listen("unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(socket)))
	if err != nil {
		t.Fatal(err)
	}
	f.server = grpc.NewServer()
	pb.RegisterLauncherServer(f.server, f)
	done := make(chan struct{})
	server := f.server
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
}

// kill ends the launcher as SIGKILL does, without a last message.
func (f *fakeLauncher) kill() { f.server.Stop() }

// set changes the state as an event in the guest does.
func (f *fakeLauncher) set(change func(*pb.State)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.change(change)
}

func (f *fakeLauncher) change(change func(*pb.State)) {
	next := proto.Clone(f.state).(*pb.State)
	change(next)
	f.state = next
	close(f.changed)
	f.changed = make(chan struct{})
}

// job changes the running backup.
func (f *fakeLauncher) job(change func(*pb.Backup)) {
	f.set(func(s *pb.State) {
		if s.Backup != nil {
			change(s.Backup)
		}
	})
}

// view calls look with the fake locked.
func (f *fakeLauncher) view(look func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	look()
}

func (f *fakeLauncher) count(call string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, c := range f.calls {
		if c == call {
			n++
		}
	}
	return n
}

func (f *fakeLauncher) Watch(_ *pb.WatchRequest, stream grpc.ServerStreamingServer[pb.State]) error {
	for {
		f.mu.Lock()
		state, changed := f.state, f.changed
		f.mu.Unlock()
		if err := stream.Send(state); err != nil {
			return err
		}
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-changed:
		}
	}
}

// called locks the fake and notes the call.
func (f *fakeLauncher) called(name string) func() {
	f.mu.Lock()
	f.calls = append(f.calls, name)
	return f.mu.Unlock
}

func (f *fakeLauncher) Start(ctx context.Context, r *pb.StartRequest) (*pb.StartResponse, error) {
	unlock := f.called("Start")
	if f.mute {
		unlock()
		<-ctx.Done()
		return nil, ctx.Err()
	}
	defer unlock()
	if f.state.GetPhase() == pb.State_IDLE {
		f.started = r
		f.change(func(s *pb.State) { s.Phase = pb.State_STARTING })
	}
	return &pb.StartResponse{}, nil
}

func (f *fakeLauncher) Shutdown(_ context.Context, r *pb.ShutdownRequest) (*pb.ShutdownResponse, error) {
	defer f.called("Shutdown")()
	f.stops = append(f.stops, r.GetGraceSeconds())
	f.change(func(s *pb.State) {
		if s.Phase == pb.State_ENDED {
			return
		}
		s.Phase = pb.State_SHUTTING_DOWN
		if running(s.Backup) {
			s.Backup.Phase, s.Backup.Failure = pb.Backup_FAILED, pb.Backup_STOPPED
		}
	})
	return &pb.ShutdownResponse{}, nil
}

func running(b *pb.Backup) bool {
	return b != nil && b.Phase != pb.Backup_DONE && b.Phase != pb.Backup_FAILED
}

func (f *fakeLauncher) RedefineCheckpoints(_ context.Context, r *pb.RedefineCheckpointsRequest) (*pb.RedefineCheckpointsResponse, error) {
	defer f.called("RedefineCheckpoints")()
	if f.refuseRedefine != nil {
		return nil, f.refuseRedefine
	}
	response := &pb.RedefineCheckpointsResponse{}
	for _, c := range r.GetCheckpoints() {
		f.redefined = append(f.redefined, c.GetName())
		result := &pb.RedefineCheckpointsResponse_Result{Name: c.GetName(), Lost: map[string]string{}}
		for _, v := range c.GetVolumes() {
			if why, ok := f.lost[v]; ok {
				result.Lost[v] = why
			} else if why, ok := f.lostIn[c.GetName()]; ok {
				result.Lost[v] = why
			} else {
				result.Valid = append(result.Valid, v)
			}
		}
		response.Results = append(response.Results, result)
		f.change(func(s *pb.State) {
			s.Checkpoints = slices.DeleteFunc(s.Checkpoints, func(k *pb.Checkpoint) bool { return k.Name == c.Name })
			if len(result.Valid) > 0 {
				s.Checkpoints = append(s.Checkpoints, &pb.Checkpoint{Name: c.Name, CreationTime: c.CreationTime, Volumes: result.Valid})
			}
		})
	}
	return response, nil
}

func (f *fakeLauncher) DeleteCheckpoints(_ context.Context, r *pb.DeleteCheckpointsRequest) (*pb.DeleteCheckpointsResponse, error) {
	defer f.called("DeleteCheckpoints")()
	f.deleted = append(f.deleted, r.GetNames()...)
	f.change(func(s *pb.State) {
		s.Checkpoints = slices.DeleteFunc(s.Checkpoints, func(k *pb.Checkpoint) bool { return slices.Contains(r.GetNames(), k.Name) })
	})
	return &pb.DeleteCheckpointsResponse{}, nil
}

func (f *fakeLauncher) BeginBackup(_ context.Context, r *pb.BeginBackupRequest) (*pb.Backup, error) {
	defer f.called("BeginBackup")()
	if f.refuse != nil {
		return nil, f.refuse
	}
	if b := f.state.GetBackup(); b != nil && b.GetUid() == r.GetUid() {
		return b, nil
	} else if running(b) {
		return nil, status.Error(codes.AlreadyExists, "another backup runs")
	}
	f.begun = append(f.begun, r)
	b := &pb.Backup{Uid: r.GetUid(), Phase: pb.Backup_PREPARING}
	if f.finish != nil {
		b = f.finish(r)
	}
	f.change(func(s *pb.State) {
		s.Backup = b
		if r.GetCheckpoint() != "" {
			s.Checkpoints = append(s.Checkpoints, &pb.Checkpoint{Name: r.GetCheckpoint()})
		}
	})
	return b, nil
}

func (f *fakeLauncher) AbortBackup(_ context.Context, r *pb.AbortBackupRequest) (*pb.AbortBackupResponse, error) {
	defer f.called("AbortBackup")()
	f.change(func(s *pb.State) {
		if s.Backup.GetUid() == r.GetUid() && running(s.Backup) {
			s.Backup.Phase, s.Backup.Failure = pb.Backup_FAILED, pb.Backup_ABORTED
		}
	})
	return &pb.AbortBackupResponse{}, nil
}

func (f *fakeLauncher) ConnectBackup(_ context.Context, r *pb.ConnectBackupRequest) (*pb.ConnectBackupResponse, error) {
	defer f.called("ConnectBackup")()
	if f.state.GetBackup().GetPhase() != pb.Backup_SERVING {
		return nil, status.Error(codes.FailedPrecondition, "it does not serve")
	}
	if err := f.refuseConnect[r.GetVolume()]; err != nil {
		return nil, err
	}
	f.connected = r
	if r.GetAddress() == "" {
		delete(f.offered, r.GetVolume())
		f.ended = append(f.ended, r.GetVolume())
		return &pb.ConnectBackupResponse{}, nil
	}
	if f.offered == nil {
		f.offered = map[string]*pb.ConnectBackupRequest{}
	}
	f.offered[r.GetVolume()] = r
	return &pb.ConnectBackupResponse{}, nil
}

func (f *fakeLauncher) FinishBackup(_ context.Context, r *pb.FinishBackupRequest) (*pb.FinishBackupResponse, error) {
	defer f.called("FinishBackup")()
	if b := f.state.GetBackup(); b.GetUid() != r.GetUid() || b.GetPhase() != pb.Backup_SERVING {
		return nil, status.Error(codes.FailedPrecondition, "it does not serve")
	}
	f.change(func(s *pb.State) { s.Backup.Phase = pb.Backup_DONE })
	return &pb.FinishBackupResponse{}, nil
}

func (f *fakeLauncher) Migrate(_ context.Context, r *pb.MigrateRequest) (*pb.MigrateResponse, error) {
	defer f.called("Migrate")()
	if f.refuseMigrate != nil {
		return nil, f.refuseMigrate
	}
	f.migrated = r
	f.change(func(s *pb.State) { s.Migration = &pb.Migration{Uid: r.GetUid(), Phase: pb.Migration_RUNNING} })
	return &pb.MigrateResponse{}, nil
}

func (f *fakeLauncher) PrepareMigration(_ context.Context, r *pb.PrepareMigrationRequest) (*pb.PrepareMigrationResponse, error) {
	defer f.called("PrepareMigration")()
	f.prepared = r
	f.change(func(s *pb.State) { s.Migration = &pb.Migration{Uid: r.GetUid(), Phase: pb.Migration_LISTENING} })
	return &pb.PrepareMigrationResponse{}, nil
}

func (f *fakeLauncher) FinishMigration(context.Context, *pb.FinishMigrationRequest) (*pb.FinishMigrationResponse, error) {
	defer f.called("FinishMigration")()
	f.change(func(s *pb.State) { s.Phase, s.Migration.Phase = pb.State_RUNNING, pb.Migration_ENDED })
	return &pb.FinishMigrationResponse{}, nil
}

func (f *fakeLauncher) CancelMigration(_ context.Context, r *pb.CancelMigrationRequest) (*pb.CancelMigrationResponse, error) {
	defer f.called("CancelMigration")()
	f.change(func(s *pb.State) {
		if s.Migration.GetUid() != r.GetUid() {
			return
		}
		if s.Migration.GetPhase() == pb.Migration_LISTENING {
			s.Phase, s.End = pb.State_ENDED, pb.State_REQUESTED_SHUTDOWN
		}
		s.Migration.Phase, s.Migration.Message = pb.Migration_FAILED, r.GetReason()
	})
	return &pb.CancelMigrationResponse{}, nil
}

func (f *fakeLauncher) ForgetBackup(_ context.Context, r *pb.ForgetBackupRequest) (*pb.ForgetBackupResponse, error) {
	defer f.called("ForgetBackup")()
	f.change(func(s *pb.State) {
		if s.Backup.GetUid() == r.GetUid() {
			s.Backup = nil
		}
	})
	return &pb.ForgetBackupResponse{}, nil
}

func (f *fakeLauncher) Exit(context.Context, *pb.ExitRequest) (*pb.ExitResponse, error) {
	defer f.called("Exit")()
	return &pb.ExitResponse{}, nil
}
