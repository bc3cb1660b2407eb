package launcher

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/domain"
	"github.com/varvebackup/varve/internal/errclass"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/layout"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Every test runs in a bubble of testing/synctest: its timers fire at once, and a goroutine that outlives the launcher fails it.
func inBubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, f)
}

func TestEnd_guestShutsItselfDown(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(t)
		b.up()
		b.guest.is(domain.StateShutOff, domain.ReasonShutdown)
		synctest.Wait()
		ended := time.Now()
		out := <-b.outcome
		if out.ExitCode != 0 || out.End != pb.State_GUEST_SHUTDOWN {
			t.Errorf("%+v", out)
		}
		if took := time.Since(ended); took != lingerTime {
			t.Errorf("lingered for %v", took)
		}
		if diff := cmp.Diff([]string{"root"}, b.overlays.clean); diff != "" {
			t.Errorf("clean: %s", diff)
		}
		if diff := cmp.Diff([]string{"root"}, b.overlays.retained); diff != "" {
			t.Errorf("retained: %s", diff)
		}
		want := domain.Identity{ClaimUID: "claim", ContentGeneration: "7", VirtualBytes: 1 << 20}
		if diff := cmp.Diff(want, b.overlays.prepared["root"]); diff != "" {
			t.Errorf("identity: %s", diff)
		}
		if diff := cmp.Diff(domain.Run{ID: "this", Previous: "last"}, b.overlays.runs["root"]); diff != "" {
			t.Errorf("run: %s", diff)
		}
		if b.guest.count("Close") != 1 {
			t.Error("the session was not closed")
		}
	})
}

func TestEnd_exitEndsTheLingering(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(t)
		b.up()
		for range 2 {
			if _, err := b.Exit(t.Context(), &pb.ExitRequest{}); err != nil { // too early: the launcher waits for the guest's end
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		if len(b.outcome) > 0 {
			t.Fatal("ended before the guest")
		}
		b.guest.is(domain.StateShutOff, domain.ReasonShutdown)
		synctest.Wait()
		begun := time.Now()
		<-b.outcome
		if time.Since(begun) != 0 {
			t.Errorf("lingered for %v", time.Since(begun))
		}
	})
}

func TestEnd_crashIsNeverClean(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(t)
		b.up()
		b.guest.is(domain.StateShutOff, domain.ReasonCrashed)
		if out := <-b.outcome; out.ExitCode != 1 || out.End != pb.State_CRASHED || len(b.overlays.clean) > 0 {
			t.Errorf("%+v, clean %v", out, b.overlays.clean)
		}
	})
}

func TestEnd_libvirtDies(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(t)
		b.up()
		close(b.gone)
		if out := <-b.outcome; out.End != pb.State_CRASHED || b.ended != 1 || len(b.overlays.clean) > 0 {
			t.Errorf("%+v, emulators ended %d times", out, b.ended)
		}
	})
}

func TestEnd_connectionIsLost(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(t)
		b.up()
		b.guest.events <- domain.Event{Kind: domain.EventConnectionClosed}
		if out := <-b.outcome; out.End != pb.State_CRASHED || b.ended != 1 {
			t.Errorf("%+v", out)
		}
	})
}

func TestStart_libvirtNeverComesUp(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(t)
		b.cancel()
		<-b.outcome
		b.cfg.Connect = func() (Guest, error) { return nil, errors.New("connection refused") }
		l := New(b.cfg)
		outcome := make(chan Outcome, 1)
		go func() { outcome <- l.Run(context.Background()) }()
		_, err := l.Start(t.Context(), startRequest(t))
		if status.Code(err) != codes.FailedPrecondition {
			t.Errorf("start: %v", err)
		}
		if out := <-outcome; out.End != pb.State_START_FAILED || !strings.Contains(out.Message, "connection refused") {
			t.Errorf("%+v", out)
		}
	})
}

func TestStart_isIdempotent(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(t)
		b.up()
		b.up()
		if b.guest.count("Start") != 1 {
			t.Errorf("started %d times", b.guest.count("Start"))
		}
		b.guest.is(domain.StateShutOff, domain.ReasonShutdown)
		synctest.Wait()
		b.up() // after the end, Start changes nothing
		<-b.outcome
		if b.guest.count("Start") != 1 {
			t.Error("started again")
		}
	})
}

func TestStart_failures(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		arrange func(b *bench, req *pb.StartRequest)
		says    string
		marked  bool
	}{
		"not an instance":  {func(_ *bench, req *pb.StartRequest) { req.Instance = []byte("{") }, "instance", false},
		"no disk source":   {func(_ *bench, req *pb.StartRequest) { req.Disks = nil }, "root has no disk source", false},
		"not a device":     {func(_ *bench, req *pb.StartRequest) { req.Disks[0].Block = true }, "not a block device", false},
		"overlay refused":  {func(b *bench, _ *pb.StartRequest) { b.overlays.prepareErr = errors.New("state volume is full") }, "state volume is full", false},
		"no memory":        {func(_ *bench, req *pb.StartRequest) { req.Instance = []byte(`{"spec":{}}`) }, "memory", false},
		"libvirt refuses":  {func(b *bench, _ *pb.StartRequest) { b.guest.startErr = errors.New("libvirt's words") }, "libvirt's words", true},
		"state volume bad": {func(b *bench, _ *pb.StartRequest) { b.overlays.markStartedFail = errors.New("read-only") }, "read-only", true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				b, req := newBench(t), startRequest(t)
				c.arrange(b, req)
				for range 2 {
					_, err := b.Start(t.Context(), req)
					if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), c.says) {
						t.Errorf("%v, want words like %q", err, c.says)
					}
				}
				state, _ := b.State()
				if state.Phase != pb.State_ENDED || state.End != pb.State_START_FAILED || !strings.Contains(state.Message, c.says) {
					t.Errorf("%v", state)
				}
				if out := <-b.outcome; out.ExitCode != 1 {
					t.Errorf("%+v", out)
				}
				if marked := len(b.overlays.started) > 0; marked != c.marked || len(b.overlays.clean) > 0 {
					t.Errorf("marked %v, clean %v", b.overlays.started, b.overlays.clean)
				}
				if takenBack := len(b.overlays.notStarted) > 0; takenBack != c.marked {
					t.Errorf("marked as started: %v, taken back: %v", b.overlays.started, b.overlays.notStarted)
				}
			})
		})
	}
}

// TestStart_aDiskThatFailsCostsTheOthersNothing: every overlay is handed on to the run, although the guest does not start.
func TestStart_aDiskThatFailsCostsTheOthersNothing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b, req := newBench(t), startRequest(t)
		vmi := &kubevirtv1.VirtualMachineInstance{}
		if err := json.Unmarshal(req.Instance, vmi); err != nil {
			t.Fatal(err)
		}
		vmi.Spec.Domain.Devices.Disks = append([]kubevirtv1.Disk{{Name: "bad", Disk: &kubevirtv1.DiskTarget{Bus: "virtio"}}}, vmi.Spec.Domain.Devices.Disks...)
		vmi.Spec.Volumes = append([]kubevirtv1.Volume{{Name: "bad", PersistentVolumeClaim: &kubevirtv1.PersistentVolumeClaimVolumeSource{}}}, vmi.Spec.Volumes...)
		var err error
		if req.Instance, err = json.Marshal(vmi); err != nil {
			t.Fatal(err)
		}
		req.Disks = append(req.Disks, &pb.DiskSource{Volume: "bad", Block: true, ClaimUid: "other", Run: "this", PreviousRun: "last"})
		if _, err := b.Start(t.Context(), req); err == nil {
			t.Fatal("started")
		}
		<-b.outcome
		run := domain.Run{ID: "this", Previous: "last"}
		if diff := cmp.Diff(map[string]domain.Run{"bad": run, "root": run}, b.overlays.handedOn); diff != "" {
			t.Error(diff)
		}
		if b.overlays.runs["root"] != run {
			t.Error("the disk after the bad one was not prepared")
		}
	})
}

// TestStart_aDiskOfAnOddSizeIsNotTracked: QEMU's overlays have whole sectors. The guest starts, and the state says
// why no backup has the disk.
func TestStart_aDiskOfAnOddSizeIsNotTracked(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(t)
		if err := os.Truncate(b.cfg.Paths.DiskFile("root"), 1<<20+100); err != nil {
			t.Fatal(err)
		}
		b.guest.info.Disks = []domain.DiskInfo{{Volume: "root", Target: "vda"}}
		b.up()
		synctest.Wait()
		time.Sleep(time.Second)
		state, _ := b.State()
		if len(state.Disks) != 1 || state.Disks[0].Tracked || !strings.Contains(state.Disks[0].NotTracked, "1048676 bytes") {
			t.Errorf("disks %v", state.Disks)
		}
		if len(b.overlays.prepared) > 0 || len(b.overlays.started) > 0 || !slices.Equal(b.overlays.letGo, []string{"root"}) {
			t.Errorf("prepared %v, started %v, let go %v", b.overlays.prepared, b.overlays.started, b.overlays.letGo)
		}
		b.Stop(0)
		<-b.outcome
	})
}

// TestStart_refusesABlankDiskInPlaceOfALostOne: a claim is empty, for example because an NFS export is not mounted.
func TestStart_refusesABlankDiskInPlaceOfALostOne(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		generation string
		tracked    bool
		hadDisk    bool
		refused    bool
	}{
		"lost":                    {"7", true, false, true},
		"replaced on purpose":     {"8", true, false, false},
		"the claim knows of none": {"7", false, false, false},
		"the claim knows of one":  {"7", false, true, true},
		"tracked since a moment":  {"8", true, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				b, req := newBench(t), startRequest(t)
				b.overlays.diskOf = 1 << 20
				path := b.cfg.Paths.DiskFile("root")
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
				req.Disks[0].ContentGeneration, req.ChangedBlockTracking = c.generation, c.tracked
				req.Disks[0].HadDisk = c.hadDisk
				_, err := b.Start(t.Context(), req)
				_, made := os.Stat(path)
				if c.refused != (err != nil) || c.refused != errors.Is(made, os.ErrNotExist) {
					t.Errorf("start: %v; disk: %v", err, made)
				}
				if c.refused && !strings.Contains(err.Error(), layout.AnnotationContentGeneration) {
					t.Errorf("the message says no way out: %v", err)
				}
				b.Stop(0)
				<-b.outcome
			})
		})
	}
}

// A launcher that was never told to start a guest says so. The controller relies on that to withdraw its run from the claims.
func TestOutcome_saysThatNoStartWasAskedFor(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(t)
		b.cancel()
		if out := <-b.outcome; !out.NeverStarted || out.ExitCode != 0 || len(b.overlays.prepared)+len(b.overlays.started)+len(b.overlays.clean) > 0 {
			t.Errorf("%+v, %+v", out, b.overlays)
		}
	})
}

func TestOutcome_saysThatAStartWasAskedFor(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(t)
		if _, err := b.Start(t.Context(), startRequest(t)); err != nil {
			t.Fatal(err)
		}
		b.cancel()
		if out := <-b.outcome; out.NeverStarted {
			t.Errorf("%+v", out)
		}
	})
}

func TestStart_movesOverlaysOutOfASmallClaim(t *testing.T) {
	t.Parallel()
	run := domain.Run{ID: "second", Previous: "first"}
	for name, c := range map[string]struct {
		lost    map[string]error
		renewed domain.Renewed
		want    domain.Renewed
	}{
		"moved":                          {},
		"not moved":                      {map[string]error{"root": errors.New("no room")}, domain.NewOverlay, domain.NotMoved},
		"not moved, and of no use":       {map[string]error{"root": errors.New("no room")}, domain.DiskReplaced, domain.DiskReplaced},
		"another one could not be moved": {map[string]error{"data": errors.New("no room")}, domain.NewOverlay, domain.NewOverlay},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				b, req := newBench(t), startRequest(t)
				req.Disks[0].ClaimUid, req.Disks[0].Run, req.Disks[0].PreviousRun = "claim", run.ID, run.Previous
				b.overlays.lost, b.overlays.renewed = c.lost, c.renewed
				previous := b.cfg.Paths.PreviousOverlayDir
				if err := os.Mkdir(previous, 0o700); err != nil {
					t.Fatal(err)
				}
				if _, err := b.Start(t.Context(), req); err != nil {
					t.Fatal(err)
				}
				owners := map[string]domain.Owner{"root": {ClaimUID: "claim", Run: run}}
				if diff := cmp.Diff(owners, b.overlays.owners); diff != "" || b.overlays.movedFrom != previous {
					t.Errorf("moved from %q, %s", b.overlays.movedFrom, diff)
				}
				if got := b.start.renewed["root"]; got != c.want {
					t.Errorf("renewed: %q, want %q", got, c.want)
				}
				b.cancel()
				<-b.outcome
			})
		})
	}
}

func TestStart_failsRatherThanLeaveTwoValidOverlays(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(t)
		b.overlays.moveErr = errors.New("the old record cannot be removed")
		if err := os.Mkdir(b.cfg.Paths.PreviousOverlayDir, 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Start(t.Context(), startRequest(t)); err == nil || b.guest.count("Start") != 0 {
			t.Errorf("the guest was started %d times, error %v", b.guest.count("Start"), err)
		}
		<-b.outcome
	})
}

func TestStart_untrackedGuestHasNoOverlays(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b, req := newBench(t), startRequest(t)
		req.ChangedBlockTracking = false
		if _, err := b.Start(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		b.cancel()
		if out := <-b.outcome; out.End != pb.State_REQUESTED_SHUTDOWN || len(b.overlays.prepared)+len(b.overlays.started)+len(b.overlays.clean) > 0 {
			t.Errorf("%+v, %+v", out, b.overlays)
		}
	})
}

func TestStop(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		stubborn bool
		slow     time.Duration
		stop     func(b *bench)
		end      pb.State_End
		took     time.Duration
		asked    int
		clean    bool
	}{
		"obeys":           {stop: func(b *bench) { b.Stop(time.Minute) }, end: pb.State_REQUESTED_SHUTDOWN, asked: 1, clean: true},
		"SIGTERM":         {stop: func(b *bench) { b.cancel() }, end: pb.State_REQUESTED_SHUTDOWN, asked: 1, clean: true},
		"does not obey":   {stubborn: true, stop: func(b *bench) { b.Stop(12 * time.Second) }, end: pb.State_KILLED, took: 12 * time.Second, asked: 3, clean: true},
		"SIGTERM, deaf":   {stubborn: true, stop: func(b *bench) { b.cancel() }, end: pb.State_KILLED, took: time.Minute, asked: 12, clean: true},
		"at once":         {stubborn: true, stop: func(b *bench) { b.Stop(0) }, end: pb.State_KILLED, clean: true},
		"needs SIGKILL":   {stubborn: true, slow: 15 * time.Second, stop: func(b *bench) { b.Stop(0) }, end: pb.State_KILLED, took: 15 * time.Second},
		"never lengthens": {stubborn: true, stop: func(b *bench) { b.Stop(4 * time.Second); b.Stop(time.Hour) }, end: pb.State_KILLED, took: 4 * time.Second, asked: 1, clean: true},
		"shortened": {stubborn: true, stop: func(b *bench) {
			b.Stop(time.Hour)
			time.AfterFunc(7*time.Second, func() { b.Stop(time.Second) })
		}, end: pb.State_KILLED, took: 8 * time.Second, asked: 3, clean: true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				b := newBench(t)
				b.guest.obeys, b.guest.destroyTakes = !c.stubborn, c.slow
				b.up()
				begun := time.Now()
				c.stop(b)
				out := <-b.outcome
				if out.End != c.end || out.ExitCode != 0 {
					t.Errorf("%+v, want %v", out, c.end)
				}
				if took := time.Since(begun) - lingerTime; took != c.took {
					t.Errorf("took %v, want %v", took, c.took)
				}
				if asked := b.guest.count("ShutdownRequest"); asked != c.asked {
					t.Errorf("asked %d times, want %d", asked, c.asked)
				}
				if clean := len(b.overlays.clean) > 0; clean != c.clean {
					t.Errorf("clean: %v, want %v", clean, c.clean)
				}
			})
		})
	}
}

func TestPowerOff_qemuThatDoesNotEndIsKilled(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		slow time.Duration
		then func(b *bench)
		end  pb.State_End
		took time.Duration
		// clean: the overlays are marked as clean.
		clean bool
	}{
		"ends":          {then: func(b *bench) { b.guest.is(domain.StateShutOff, domain.ReasonShutdown) }, end: pb.State_GUEST_SHUTDOWN, clean: true},
		"hangs":         {end: pb.State_GUEST_SHUTDOWN, took: powerOffTimeout, clean: true},
		"needs SIGKILL": {slow: 15 * time.Second, end: pb.State_GUEST_SHUTDOWN, took: powerOffTimeout + 15*time.Second},
		"is stopped":    {then: func(b *bench) { b.Stop(30 * time.Second) }, end: pb.State_KILLED, took: 30 * time.Second, clean: true},
		"is stopped with more grace than is left": {then: func(b *bench) { b.Stop(time.Hour) }, end: pb.State_KILLED, took: powerOffTimeout, clean: true},
		"runs again": {then: func(b *bench) {
			b.guest.is(domain.StateRunning, "")
			time.Sleep(time.Hour)
			b.guest.is(domain.StateShutOff, domain.ReasonShutdown)
		}, end: pb.State_GUEST_SHUTDOWN, took: time.Hour, clean: true},
		"runs again and is off again": {then: func(b *bench) {
			b.guest.is(domain.StateRunning, "")
			time.Sleep(time.Hour)
			b.guest.is(domain.StateShuttingDown, "")
		}, end: pb.State_GUEST_SHUTDOWN, took: time.Hour + powerOffTimeout, clean: true},
		"runs again and is stopped": {then: func(b *bench) {
			b.guest.is(domain.StateRunning, "")
			time.Sleep(time.Hour)
			b.Stop(30 * time.Second)
		}, end: pb.State_KILLED, took: time.Hour + 30*time.Second, clean: true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				b := newBench(t)
				b.guest.obeys, b.guest.destroyTakes = false, c.slow
				b.up()
				begun := time.Now()
				b.guest.is(domain.StateShuttingDown, "")
				synctest.Wait()
				if c.then != nil {
					c.then(b)
				}
				out := <-b.outcome
				if out.End != c.end || out.ExitCode != 0 {
					t.Errorf("%+v, want %v", out, c.end)
				}
				if took := time.Since(begun) - lingerTime; took != c.took {
					t.Errorf("took %v, want %v", took, c.took)
				}
				if clean := len(b.overlays.clean) > 0; clean != c.clean {
					t.Errorf("clean: %v, want %v", clean, c.clean)
				}
			})
		})
	}
}

func TestPowerOff_lostEventIsFoundByReading(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(t)
		b.up()
		b.guest.mu.Lock()
		b.guest.info.State = domain.StateShuttingDown
		b.guest.mu.Unlock()
		if out := <-b.outcome; out.End != pb.State_GUEST_SHUTDOWN || b.guest.count("Destroy") != 1 {
			t.Errorf("%+v, %v", out, b.guest.calls)
		}
	})
}

func TestStop_beforeTheStart(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(t)
		b.cancel()
		if out := <-b.outcome; out.ExitCode != 0 || out.End != pb.State_REQUESTED_SHUTDOWN {
			t.Errorf("%+v", out)
		}
		b.up()
		if b.guest.count("Start") > 0 {
			t.Error("started although it was stopped")
		}
	})
}

func request(uid string) *pb.BeginBackupRequest {
	return &pb.BeginBackupRequest{
		Uid: uid, Name: "b", Vm: "vm", Checkpoint: "cp-" + uid, TargetVolume: "t", Directory: "vm/" + uid,
		Volumes: []*pb.BackupVolume{{Volume: "root"}},
	}
}

func TestBackup_oneAtATime(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(t)
		ctx := t.Context()
		if _, err := b.BeginBackup(ctx, request("a")); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("without a guest: %v", err)
		}
		b.up()
		if _, err := b.BeginBackup(ctx, &pb.BeginBackupRequest{Uid: "a"}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("nonsense: %v", err)
		}
		for range 2 {
			if got, err := b.BeginBackup(ctx, request("a")); err != nil || got.Uid != "a" {
				t.Errorf("%v, %v", got, err)
			}
		}
		time.Sleep(time.Second)
		for name, err := range map[string]error{
			"another": second(b.BeginBackup(ctx, request("b"))), "forget": second(b.ForgetBackup(ctx, &pb.ForgetBackupRequest{Uid: "a"})),
			"redefine": second(b.RedefineCheckpoints(ctx, &pb.RedefineCheckpointsRequest{})), "delete": second(b.DeleteCheckpoints(ctx, &pb.DeleteCheckpointsRequest{})),
		} {
			want := codes.FailedPrecondition
			if name == "another" {
				want = codes.AlreadyExists
			}
			if status.Code(err) != want {
				t.Errorf("%s while a backup runs: %v, want %v", name, err, want)
			}
		}
		if b.guest.count("BeginBackup") != 1 {
			t.Errorf("begun %d times", b.guest.count("BeginBackup"))
		}
		for _, uid := range []string{"unknown", "a"} {
			if _, err := b.AbortBackup(ctx, &pb.AbortBackupRequest{Uid: uid}); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(time.Minute)
		if state, _ := b.State(); state.Backup.GetFailure() != pb.Backup_ABORTED {
			t.Errorf("%v", state.Backup)
		}
		if _, err := b.ForgetBackup(ctx, &pb.ForgetBackupRequest{Uid: "a"}); err != nil {
			t.Error(err)
		}
		if state, _ := b.State(); state.Backup != nil {
			t.Errorf("%v", state.Backup)
		}
		b.cancel()
		<-b.outcome
	})
}

func second[T any](_ T, err error) error { return err }

func TestStop_failsTheBackupFirst(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(t)
		b.up()
		if _, err := b.BeginBackup(t.Context(), request("a")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		b.Stop(time.Minute)
		<-b.outcome
		state, _ := b.State()
		if state.Backup.GetFailure() != pb.Backup_STOPPED {
			t.Errorf("%v", state.Backup)
		}
		var order []string
		for _, c := range b.guest.calls {
			if c == "AbortBackup" || c == "DeleteCheckpoint cp-a" || c == "ShutdownRequest" {
				order = append(order, c)
			}
		}
		if diff := cmp.Diff([]string{"AbortBackup", "DeleteCheckpoint cp-a", "ShutdownRequest"}, order); diff != "" {
			t.Error(diff)
		}
		if _, err := b.BeginBackup(t.Context(), request("b")); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("after the end: %v", err)
		}
	})
}

func TestCheckpoints_redefineAndDelete(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(t)
		b.up()
		got, err := b.RedefineCheckpoints(t.Context(), &pb.RedefineCheckpointsRequest{Checkpoints: []*pb.Checkpoint{
			{Name: "cp", CreationTime: timestamppb.Now(), Volumes: []string{"root", "data"}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		if r := got.Results[0]; r.Name != "cp" || r.Valid[0] != "root" || r.Lost["data"] != "missing" {
			t.Errorf("%v", r)
		}
		if _, err := b.DeleteCheckpoints(t.Context(), &pb.DeleteCheckpointsRequest{Names: []string{"x", "y"}}); err != nil {
			t.Fatal(err)
		}
		if b.guest.count("DeleteCheckpoint x")+b.guest.count("DeleteCheckpoint y") != 2 {
			t.Errorf("%v", b.guest.calls)
		}
		b.cancel()
		<-b.outcome
	})
}

// fakeStream is the other end of a Watch.
type fakeStream struct {
	grpc.ServerStreamingServer[pb.State]
	ctx   context.Context
	sent  []*pb.State
	times []time.Time
}

func (f *fakeStream) Context() context.Context { return f.ctx }
func (f *fakeStream) Send(s *pb.State) error {
	f.sent, f.times = append(f.sent, s), append(f.times, time.Now())
	return nil
}

func TestWatch_sendsEachChangeAtAMeasuredPace(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(t)
		stream := &fakeStream{ctx: t.Context()}
		watched := make(chan error, 1)
		go func() { watched <- b.Watch(&pb.WatchRequest{}, stream) }()
		synctest.Wait()
		b.up()
		for i := range 100 { // a burst
			b.guest.agent(i%3 == 0)
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(time.Hour)
		before := len(stream.sent)
		b.guest.is(domain.StateShutOff, domain.ReasonShutdown)
		<-b.outcome
		if err := <-watched; err != nil {
			t.Error(err)
		}
		if stream.sent[0].Phase != pb.State_IDLE || !stream.times[0].Equal(b.began) {
			t.Errorf("first %v at %v", stream.sent[0], stream.times[0])
		}
		for i := 1; i < len(stream.times); i++ {
			if gap := stream.times[i].Sub(stream.times[i-1]); gap < watchEvery {
				t.Errorf("%v between two states", gap)
			}
		}
		if before < 3 || before > 8 {
			t.Errorf("%d states for one second of changes and an hour without", before)
		}
		if last := stream.sent[len(stream.sent)-1]; last.End != pb.State_GUEST_SHUTDOWN {
			t.Errorf("last %v", last)
		}
	})
}

func TestEvents_lostOneIsFoundByReading(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(t)
		b.up()
		b.guest.mu.Lock()
		b.guest.info.State, b.guest.info.Reason = domain.StateShutOff, domain.ReasonShutdown
		b.guest.mu.Unlock()
		if out := <-b.outcome; out.End != pb.State_GUEST_SHUTDOWN {
			t.Errorf("%+v", out)
		}
	})
}

// A guest that an I/O error has paused ends its backup and continues, whichever event reports it, and even if that
// event was lost.
func TestBackup_pauseEndsItAndTheGuestContinues(t *testing.T) {
	t.Parallel()
	for name, event := range map[string]domain.Event{
		"I/O error": {Kind: domain.EventIOError, Volume: "root", Message: "enospc", Paused: true},
		"lifecycle": {Kind: domain.EventLifecycle, State: domain.StatePaused, Reason: domain.ReasonIOError},
		"resync":    {Kind: domain.EventResync},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				b := newBench(t)
				b.up()
				if _, err := b.BeginBackup(t.Context(), request("a")); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
				b.guest.mu.Lock()
				b.guest.info.State, b.guest.info.Reason = domain.StatePaused, domain.ReasonIOError
				b.guest.mu.Unlock()
				b.guest.events <- event
				time.Sleep(time.Minute)
				if state, _ := b.State(); state.Backup.GetPhase() != pb.Backup_FAILED || b.guest.count("Resume") != 1 {
					t.Errorf("%v, %d times resumed", state.Backup, b.guest.count("Resume"))
				}
				b.cancel()
				<-b.outcome
			})
		})
	}
}

func TestCodes(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]codes.Code{
		errclass.Invalid: codes.InvalidArgument, domain.ErrNotRunning: codes.FailedPrecondition, domain.ErrBusy: codes.Unavailable,
		domain.ErrClosed: codes.Unavailable, context.DeadlineExceeded: codes.DeadlineExceeded, context.Canceled: codes.Canceled, errors.New("x"): codes.Internal,
	} {
		if got := status.Code(grpcError(err)); got != want {
			t.Errorf("%v: %v, want %v", err, got, want)
		}
	}
	if grpcError(nil) != nil {
		t.Error("nil is no error")
	}
}
