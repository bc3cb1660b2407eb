package backupstate

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"k8s.io/apimachinery/pkg/types"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
)

// samples has an example of each function of this package that returns a State.
var status = &backupv1.VirtualMachineBackupStatus{
	SourceName: "vm", Directory: "vm/b", IncludedVolumes: make([]backupv1.IncludedVolume, 2),
	ExcludedVolumes: []backupv1.ExcludedVolume{{Name: "shared", Reason: backupv1.ExcludedShareable}},
}

var samples = map[string]State{
	"GateDisabled":             GateDisabled("IncrementalBackup", "varve/kubevirt"),
	"TrackerNotFound":          TrackerNotFound("tracker"),
	"TrackerDeleting":          TrackerDeleting("tracker"),
	"MachineNotFound":          MachineNotFound("vm"),
	"MachineDeleting":          MachineDeleting("vm"),
	"GuestNotStarted":          GuestNotStarted("vm"),
	"GuestStopping":            GuestStopping("vm"),
	"GuestEnded":               GuestEnded("vm", kubevirtv1.PhaseFailed),
	"GuestComing":              GuestComing("vm", ""),
	"GuestMoves":               GuestMoves("vm", "m"),
	"TrackingInitializing":     TrackingInitializing("vm"),
	"TrackingNeedsRestart":     TrackingNeedsRestart("vm"),
	"TrackingNotSelected":      TrackingNotSelected("vm"),
	"NoEligibleDisk":           NoEligibleDisk("vm"),
	"ClaimNotFound":            ClaimNotFound("target"),
	"ClaimDeleting":            ClaimDeleting("target"),
	"OtherBackupFirst":         OtherBackupFirst("other"),
	"TokenSecretNotFound":      TokenSecretNotFound("clients", "token"),
	"TokenTooShort":            TokenTooShort("clients", "token", 16),
	"TokenSecretEmpty":         TokenSecretEmpty("clients", "token"),
	"EndedByItself":            EndedByItself(),
	"LauncherCannotPull":       LauncherCannotPull("vm"),
	"LauncherCannotOffer":      LauncherCannotOffer("vm"),
	"TunnelKeyMissing":         TunnelKeyMissing(),
	"ScratchDeleted":           ScratchDeleted("scratch"),
	"ScratchReplaced":          ScratchReplaced("scratch"),
	"TTLExpiredWaiting":        TTLExpiredWaiting("b", time.Hour, TrackerNotFound("tracker").Message),
	"TTLExpired":               TTLExpired("b", time.Hour),
	"Serving":                  Serving("node"),
	"ServingCondition":         ServingCondition(),
	"EndpointsReady":           EndpointsReady(),
	"MoversMayRead":            MoversMayRead(),
	"ExportPending":            ExportPending("backup-export-b", "Pod virt-export-b is being created."),
	"ExportForeign":            ExportForeign("backup-export-b"),
	"SecretForeign":            SecretForeign("backup-1-tunnel"),
	"ScratchLow":               ScratchLow("scratch", 1<<30, 1<<20),
	"ScratchSufficient":        ScratchSufficient("scratch", 1<<20, 1<<30),
	"Collected":                Collected(),
	"FinishingCollected":       FinishingCollected(),
	"Pulled":                   Pulled(status),
	"OtherBackupRuns":          OtherBackupRuns("other"),
	"InstanceStillLocked":      InstanceStillLocked("vm", "other"),
	"NodeBusy":                 NodeBusy(NodePlaces{Node: "node", Running: 4, Limit: 4, Ahead: 1, Here: []string{"b"}, Annotation: "a", Configuration: "varve/kubevirt"}),
	"PreviousVolumeAttached":   PreviousVolumeAttached("vm"),
	"ReplanForTracker":         ReplanForTracker("tracker"),
	"ReplanForClaim":           ReplanForClaim("target"),
	"Attaching":                Attaching("target", "vm", &kubevirtv1.VolumeStatus{}),
	"RequestRefused":           RequestRefused("Locking VirtualMachineInstance vm", errors.New("a policy denies it.")), //nolint:staticcheck // an API server's sentence
	"Starting":                 Starting("node"),
	"Copying":                  Copying(),
	"Sealing":                  Sealing(),
	"CopyingCondition":         CopyingCondition(),
	"Copied":                   Copied(),
	"Finishing":                Finishing(),
	"Completed":                Completed(status, "target"),
	"Aborted":                  Aborted("b"),
	"AbortUnconfirmed":         AbortUnconfirmed("b", "node", time.Minute),
	"GaveUp":                   GaveUp(time.Minute, TrackerNotFound("tracker").Message),
	"NotStarted":               NotStarted("node", time.Minute),
	"CopyStalled":              CopyStalled("node", time.Minute),
	"TrackerDeleted":           TrackerDeleted("tracker", "vm/b"),
	"TrackerReplaced":          TrackerReplaced("tracker", "vm/b"),
	"TrackerMoved":             TrackerMoved("tracker", "cp", "vm/b"),
	"TrackerImmovable":         TrackerImmovable("tracker", "refused", "vm/b"),
	"LauncherRefused":          LauncherRefused("no such disk"),
	"JobLost":                  JobLost(),
	"BaseLostWithoutIncrement": BaseLostWithoutIncrement("the bitmap is unusable"),
	"HypervisorError":          HypervisorError("Bad sector."),
	"MachineDeleted":           MachineDeleted("vm"),
	"InstanceDeleted":          InstanceDeleted("vm"),
	"InstanceReplaced":         InstanceReplaced("vm"),
	"MachineStopped":           MachineStopped("vm"),
	"StopForced":               StopForced("vm"),
	"GuestShutdown":            GuestShutdown("vm", ShutdownFromOutside),
	"GuestCrashed":             GuestCrashed("vm", "QEMUDied"),
	"ClaimIsBlock":             ClaimIsBlock("target"),
	"TargetHoldsRecord":        TargetHoldsRecord("target"),
	"TargetIsOwnDisk":          TargetIsOwnDisk("target", "root"),
	"TargetIsDisk":             TargetIsDisk("target", "root", "vm"),
	"TargetTaken":              TargetTaken("target", "root", "vm"),
	"TargetDeleted":            TargetDeleted("target"),
	"TargetReplaced":           TargetReplaced("target"),
	"TargetDetached":           TargetDetached(),
	"TargetInvalid":            TargetInvalid("The target is read-only"),
	"TargetStalled":            TargetStalled("Nothing was copied for 1m0s"),
	"InsufficientSpace":        InsufficientSpace("1 GiB is needed and 1 MiB is free: delete old backups."),
	"TargetFull":               TargetFull("No space is left: delete old backups."),
	"ScratchFull":              ScratchFull("The scratch claim is full: use a larger claim, or pull faster."),
	"Frozen":                   Frozen(""),
	"QuiesceSkipped":           QuiesceSkipped(""),
	"AgentAbsent":              AgentAbsent(""),
	"FreezeFailed":             FreezeFailed(""),
	"ThawedEarly":              ThawedEarly(""),
}

// stateFunctions returns the names of this package's exported functions whose one result is a State.
func stateFunctions(t *testing.T) []string {
	t.Helper()
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), f.Name(), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv != nil || !fn.Name.IsExported() || fn.Type.Results.NumFields() != 1 {
				continue
			}
			if result, ok := fn.Type.Results.List[0].Type.(*ast.Ident); ok && result.Name == "State" {
				names = append(names, fn.Name.Name)
			}
		}
	}
	return names
}

func TestReasons_haveMessageDocumentationAndWriter(t *testing.T) {
	t.Parallel()
	worded := map[string]bool{}
	for _, s := range samples {
		worded[s.Reason] = true
	}
	known := map[string]bool{}
	for _, c := range apiConstants(t, "reasons.go") {
		known[c.value] = true
		if !worded[c.value] {
			t.Errorf("%s: no function of this package has a message for it", c.name)
		}
		if text, ok := strings.CutPrefix(c.doc, c.name+": "); !ok || text == "" {
			t.Errorf("%s: the API documents it as %q", c.name, c.doc)
		}
		if len(writers[c.value]) == 0 {
			t.Errorf("%s: nobody writes it", c.name)
		}
	}
	if len(known) == 0 {
		t.Fatal("the API has no reasons")
	}
	for reason := range maps.Keys(writers) {
		if !known[reason] {
			t.Errorf("%s is not a reason of the API", reason)
		}
	}
}

func TestStates_areSentences(t *testing.T) {
	t.Parallel()
	functions := stateFunctions(t)
	for _, name := range functions {
		s, ok := samples[name]
		if !ok {
			t.Errorf("%s has no sample", name)
			continue
		}
		if strings.Contains(s.Message, "%!") || strings.Contains(s.Message, "  ") {
			t.Errorf("%s: %q", name, s.Message)
		}
		if quiesce := []string{"Frozen", "QuiesceSkipped", "AgentAbsent", "FreezeFailed", "ThawedEarly"}; slices.Contains(quiesce, name) {
			continue // written like the launcher's own messages, which appear in the same place
		}
		if first := []rune(s.Message)[0]; unicode.IsLower(first) || !strings.HasSuffix(s.Message, ".") {
			t.Errorf("%s is not a sentence: %q", name, s.Message)
		}
	}
	if len(functions) != len(samples) {
		t.Errorf("%d functions and %d samples", len(functions), len(samples))
	}
}

// Users who find a failed backup read what to do next.
func TestFailures_adviseAnotherBackup(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"Aborted", "TargetDetached", "StopForced", "InstanceDeleted", "InstanceReplaced", "MachineStopped", "GuestShutdown", "GuestCrashed",
		"HypervisorError", "JobLost", "LauncherRefused", "TargetStalled", "TargetInvalid", "TargetDeleted", "TargetReplaced",
	} {
		if s := samples[name]; !strings.Contains(s.Message, "create another backup") {
			t.Errorf("%s says %q, and not what to do", name, s.Message)
		}
	}
}

// A guest that was stopped may have been killed before it saved its bitmaps, for example by a forced deletion of its
// pod.
func TestFailures_promiseNoBaseAfterTheGuestsEnd(t *testing.T) {
	t.Parallel()
	for _, s := range []State{StopForced("vm"), GuestShutdown("vm", ""), GuestShutdown("vm", ShutdownFromOutside)} {
		if !strings.Contains(s.Message, "if the guest ended cleanly, and is full otherwise") {
			t.Errorf("%s says %q", s.Reason, s.Message)
		}
	}
}

func TestGuestEnd_followsTheInstance(t *testing.T) {
	t.Parallel()
	instance := func(uid types.UID, phase kubevirtv1.Phase, reason string) *kubevirtv1.VirtualMachineInstance {
		i := &kubevirtv1.VirtualMachineInstance{}
		i.UID, i.Status.Phase, i.Status.Reason = uid, phase, reason
		return i
	}
	for name, test := range map[string]struct {
		instance *kubevirtv1.VirtualMachineInstance
		want     State
	}{
		"lives":     {instance("uid", kubevirtv1.PhaseRunning, ""), State{}},
		"gone":      {nil, InstanceDeleted("vm")},
		"replaced":  {instance("other", kubevirtv1.PhaseRunning, ""), InstanceReplaced("vm")},
		"shut down": {instance("uid", kubevirtv1.PhaseSucceeded, ""), GuestShutdown("vm", "")},
		"crashed":   {instance("uid", kubevirtv1.PhaseFailed, "QEMUDied"), GuestCrashed("vm", "QEMUDied")},
	} {
		if got, ended := GuestEnd("vm", "uid", test.instance); got != test.want || ended != (test.want != State{}) {
			t.Errorf("%s: %v, %+v", name, ended, got)
		}
	}
	if m := GuestCrashed("vm", "QEMUDied").Message; !strings.Contains(m, "(QEMUDied); its next backup is full") {
		t.Error(m)
	}
}

func TestStateWith_addsASentence(t *testing.T) {
	t.Parallel()
	s := State{Reason: backupv1.ReasonAborted, Message: "It ended."}
	if got := s.With("").With(StillAttached("target", "node", time.Minute)); got.Message != "It ended. PersistentVolumeClaim target is still attached after 1m0s; check varve-handler on node node." || s.Message != "It ended." {
		t.Errorf("%+v of %+v", got, s)
	}
}

// A state that asks for something in the imperative while the backup waits is one that the user has to act on.
func TestWaits_sayWhetherTheUserActs(t *testing.T) {
	t.Parallel()
	want := []string{
		"ClaimDeleting", "ClaimNotFound", "ExportForeign", "GateDisabled", "GuestEnded", "GuestNotStarted", "GuestStopping", "MachineDeleting", "MachineNotFound",
		"NoEligibleDisk", "SecretForeign", "TokenSecretEmpty", "TokenSecretNotFound", "TokenTooShort", "TrackerDeleting", "TrackerNotFound", "TrackingNeedsRestart", "TrackingNotSelected",
	}
	var got []string
	for name, s := range samples {
		if s.UserActs {
			got = append(got, name)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
