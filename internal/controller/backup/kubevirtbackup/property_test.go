package kubevirtbackup

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/backupstate"
	"github.com/varvebackup/varve/internal/layout"
)

// TestInvariants_holdInEverySequence plays users, handlers, crashes and clocks against the controller, in any order.
// The controller may act at any moment, one write at a time.
func TestInvariants_holdInEverySequence(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := &play{world: newWorld(), copiedOnce: map[string]bool{}, names: map[string]bool{}}
		p.track()
		t.Repeat(map[string]func(*rapid.T){
			"":                    p.check,
			"create":              p.userCreates,
			"delete":              p.userDeletes,
			"delete tracker":      p.userDeletesTracker,
			"create tracker":      p.userCreatesTracker,
			"toggle claim":        p.userTogglesClaim,
			"mount":               func(*rapid.T) { p.mount() },
			"handler copies":      p.handlerCopies,
			"handler serves":      p.handlerServes,
			"handler finishes":    p.handlerFinishes,
			"export serves":       p.exportBegins,
			"export goes":         p.exportGoes,
			"user changes ttl":    p.userChangesTTL,
			"handler completes":   p.handlerCompletes,
			"handler fails":       p.handlerFails,
			"handler prunes":      p.handlerPrunes,
			"handler discards":    p.handlerDiscards,
			"guest ends":          p.guestEnds,
			"instance replaced":   func(*rapid.T) { p.boot() },
			"instance deleted":    func(*rapid.T) { p.instance = nil },
			"controller":          p.controllerSteps,
			"controller again":    p.controllerSteps,
			"controller restarts": func(*rapid.T) { p.watchdog = newWatchdog() },
			"time passes":         p.timePasses,
			"all goes well":       p.cooperate,
			"all goes well again": p.cooperate,
			"replace tracker":     func(*rapid.T) { p.track() },
		})
		p.finish(t)
	})
}

// cooperate lets everybody do their part for a while. Without it few sequences get far.
func (p *play) cooperate(t *rapid.T) {
	b := p.pick(t)
	for range rapid.IntRange(1, 6).Draw(t, "rounds") {
		for n := 0; n < maxSteps && p.act(t, b) != stepNone; n++ {
		}
		p.mount()
		p.now = p.now.Add(400 * time.Millisecond)
		switch b.Status.Phase {
		case backupv1.BackupStarting:
			if b.Spec.IsPull() {
				p.serve(b)
			} else {
				b.Status.Phase = backupv1.BackupCopying
			}
		case backupv1.BackupServing:
			if p.exports[layout.BackupExport(b.Name)] != nil {
				p.exportServes(b)
			}
			if readyCondition(b) != nil && readyCondition(b).Status == metav1.ConditionTrue {
				p.delete(b)
				p.finishJob(b)
			}
		case backupv1.BackupCopying:
			p.copied(b)
			p.copiedOnce[string(b.UID)] = true
		case backupv1.BackupPruning:
			b.Status.Phase = backupv1.BackupPruned
		}
	}
}

type play struct {
	*world
	copiedOnce map[string]bool // by UID
	names      map[string]bool // checkpoint names given out
}

func (p *play) pick(t *rapid.T) *backupv1.VirtualMachineBackup {
	if len(p.backups) == 0 {
		t.Skip("no backup")
	}
	return p.backups[rapid.IntRange(0, len(p.backups)-1).Draw(t, "backup")]
}

func (p *play) pickIn(t *rapid.T, phases ...backupv1.BackupPhase) *backupv1.VirtualMachineBackup {
	for _, b := range p.backups {
		for _, phase := range phases {
			if b.Status.Phase == phase {
				return b
			}
		}
	}
	t.Skip("no backup in that phase")
	return nil
}

func (p *play) userCreates(t *rapid.T) {
	if len(p.backups) >= 3 {
		t.Skip("enough")
	}
	name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name")
	for _, b := range p.backups {
		if b.Name == name {
			t.Skip("exists")
		}
	}
	tracked := rapid.Bool().Draw(t, "tracked")
	b := p.create(name, tracked)
	if rapid.Bool().Draw(t, "pull") {
		b.Spec.Mode, b.Spec.TokenSecretRef = backupv1.PullMode, ptr.To("token")
	}
	b.Spec.ForceFullBackup = b.Spec.BackupTracker != "" && rapid.Bool().Draw(t, "force")
}

func (p *play) userDeletes(t *rapid.T) { p.delete(p.pick(t)) }

func (p *play) userDeletesTracker(t *rapid.T) {
	if p.tracker == nil {
		t.Skip("none")
	}
	p.tracker.DeletionTimestamp = &metav1.Time{Time: p.now}
	if rapid.Bool().Draw(t, "force") {
		p.tracker.Finalizers = nil
	}
	p.collect()
}

func (p *play) userCreatesTracker(t *rapid.T) {
	if p.tracker != nil {
		t.Skip("exists")
	}
	p.track()
}

func (p *play) userTogglesClaim(*rapid.T) {
	if p.claim == nil {
		p.claim = p.newClaim()
	} else {
		p.claim = nil
	}
}

func (p *play) handlerCopies(t *rapid.T) {
	if b := p.pickIn(t, backupv1.BackupStarting); !b.Spec.IsPull() {
		b.Status.Phase = backupv1.BackupCopying
	}
}

func (p *play) handlerServes(t *rapid.T) {
	if b := p.pickIn(t, backupv1.BackupStarting); b.Spec.IsPull() {
		p.serve(b)
	}
}

func (p *play) serve(b *backupv1.VirtualMachineBackup) {
	b.Status.Phase, b.Status.Reason, b.Status.Message = backupv1.BackupServing, backupv1.ReasonServing, "serves"
	b.Status.IncludedVolumes = []backupv1.IncludedVolume{{Name: "root", Type: backupv1.Full}}
}

// handlerFinishes does what the handler does with a deleted backup.
func (p *play) handlerFinishes(t *rapid.T) {
	b := p.pickIn(t, backupv1.BackupServing)
	if b.DeletionTimestamp == nil {
		t.Skip("not deleted")
	}
	p.finishJob(b)
}

func (p *play) finishJob(b *backupv1.VirtualMachineBackup) {
	if c := readyCondition(b); c == nil || c.Status != metav1.ConditionTrue {
		b.Status.Phase, b.Status.Reason, b.Status.Message = backupv1.BackupCopyFailed, backupv1.ReasonAborted, "deleted"
		return
	}
	p.copied(b)
	p.copiedOnce[string(b.UID)] = true
}

func (p *play) exportBegins(t *rapid.T) {
	b := p.pickIn(t, backupv1.BackupServing)
	if p.exports[layout.BackupExport(b.Name)] == nil {
		t.Skip("no export")
	}
	p.exportServes(b)
}

func (p *play) exportGoes(t *rapid.T) {
	delete(p.exports, layout.BackupExport(p.pick(t).Name))
}

func (p *play) userChangesTTL(t *rapid.T) {
	p.pick(t).Spec.TTL = &metav1.Duration{Duration: rapid.SampledFrom([]time.Duration{time.Minute, time.Hour, 48 * time.Hour}).Draw(t, "ttl")}
}

func (p *play) handlerCompletes(t *rapid.T) {
	b := p.pickIn(t, backupv1.BackupCopying)
	p.copied(b)
	p.copiedOnce[string(b.UID)] = true
}

func (p *play) handlerFails(t *rapid.T) {
	b := p.pickIn(t, backupv1.BackupStarting, backupv1.BackupCopying, backupv1.BackupServing)
	b.Status.Phase, b.Status.Reason, b.Status.Message = backupv1.BackupCopyFailed, backupv1.ReasonTargetFull, "full"
}

func (p *play) handlerPrunes(t *rapid.T) {
	p.pickIn(t, backupv1.BackupPruning).Status.Phase = backupv1.BackupPruned
}

func (p *play) handlerDiscards(t *rapid.T) {
	if p.tracker == nil || p.tracker.Status.LatestCheckpoint == nil {
		t.Skip("nothing to discard")
	}
	p.pickIn(t, backupv1.BackupStarting)
	p.tracker.Status.LatestCheckpoint = nil
}

func (p *play) guestEnds(t *rapid.T) {
	if p.instance == nil {
		t.Skip("no instance")
	}
	p.instance.Status.Phase = rapid.SampledFrom([]kubevirtv1.Phase{kubevirtv1.PhaseSucceeded, kubevirtv1.PhaseFailed}).Draw(t, "end")
}

func (p *play) timePasses(t *rapid.T) {
	p.now = p.now.Add(rapid.SampledFrom([]time.Duration{time.Millisecond, time.Second, 20 * time.Second, 6 * time.Minute, time.Hour, 25 * time.Hour}).Draw(t, "span"))
}

// controllerSteps makes one write for one backup and checks what must hold at that moment.
func (p *play) controllerSteps(t *rapid.T) {
	p.act(t, p.pick(t))
}

func (p *play) act(t *rapid.T, b *backupv1.VirtualMachineBackup) step {
	before := *b.Status.DeepCopy()
	d := decide(p.input(b))
	switch d.Step {
	case stepLock:
		if p.locked() != "" {
			t.Fatalf("%s takes the lock of %s", b.Name, p.locked())
		}
		p.named(t, b, d.Lock)
	case stepMoveTracker:
		if b.Spec.IsPull() && b.DeletionTimestamp == nil {
			t.Fatalf("%s moves the tracker, and nobody has said that its data was read", b.Name)
		}
		if before.Phase != backupv1.BackupCopied || !p.copiedOnce[string(b.UID)] {
			t.Fatalf("%s moves the tracker from %s", b.Name, before.Phase)
		}
		if p.tracker.UID != before.TrackerUID {
			t.Fatalf("%s moves a tracker that it was not planned with", b.Name)
		}
	case stepUnlock:
		if p.locked() != b.Name {
			t.Fatalf("%s releases the lock of %q", b.Name, p.locked())
		}
	case stepStatus:
		p.becomes(t, b, &before, d.Status)
	}
	p.perform(b, d)
	p.releaseTracker()
	return d.Step
}

func (p *play) named(t *rapid.T, b *backupv1.VirtualMachineBackup, lock *kubevirtv1.InstanceBackupStatus) {
	if (lock.CheckpointName != nil) != (b.Spec.BackupTracker != "") {
		t.Fatalf("%s: checkpoint name %v", b.Name, lock.CheckpointName)
	}
	if lock.CheckpointName == nil {
		return
	}
	if p.names[*lock.CheckpointName] {
		t.Fatalf("checkpoint name %s is given out twice", *lock.CheckpointName)
	}
	p.names[*lock.CheckpointName] = true
}

func (p *play) becomes(t *rapid.T, b *backupv1.VirtualMachineBackup, before, after *backupv1.VirtualMachineBackupStatus) {
	if before.Phase.Final() {
		t.Fatalf("%s leaves %s", b.Name, before.Phase)
	}
	if !backupstate.MayWrite(backupstate.Controller, before.Phase, after.Phase) {
		t.Fatalf("%s goes from %s to %s", b.Name, before.Phase, after.Phase)
	}
	if after.Reason != before.Reason && !backupstate.Writes(backupstate.Controller, after.Reason) {
		t.Fatalf("%s: the controller gives the reason %s", b.Name, after.Reason)
	}
	if after.Phase == backupv1.BackupDone && !p.copiedOnce[string(b.UID)] {
		t.Fatalf("%s is Done and was never Copied", b.Name)
	}
	if after.Phase == backupv1.BackupDone && after.Result != backupv1.BackupSucceeded {
		t.Fatalf("%s is Done with result %q", b.Name, after.Result)
	}
	if after.Phase.Final() && p.locked() == b.Name && p.input(b).ownsLock() {
		t.Fatalf("%s ends with the lock", b.Name)
	}
	if after.Phase.Final() && (p.input(b).ownExport() != nil || p.input(b).ownTunnelSecret() != nil) {
		t.Fatalf("%s ends with its export or its secret", b.Name)
	}
	if after.Phase.Final() && p.input(b).volumeWanted() {
		t.Fatalf("%s ends with its volume", b.Name)
	}
	if !after.Phase.Final() && after.Phase != backupv1.BackupCopyFailed && after.PhaseDeadline == nil {
		t.Fatalf("%s waits in %s without a deadline", b.Name, after.Phase)
	}
	if after.Reason == "" || after.Message == "" && after.Phase != backupv1.BackupCopying {
		t.Fatalf("%s is %s with reason %q and message %q", b.Name, after.Phase, after.Reason, after.Message)
	}
}

// releaseTracker plays the tracker's controller.
func (p *play) releaseTracker() {
	if p.tracker == nil {
		return
	}
	var all []backupv1.VirtualMachineBackup
	for _, b := range p.backups {
		all = append(all, *b)
	}
	if userOfTracker(p.tracker, all) == nil {
		controllerutil.RemoveFinalizer(p.tracker, layout.FinalizerTracker)
	}
	p.collect()
}

// check checks what holds at every moment: at most one backup is between taking the lock and releasing it.
func (p *play) check(t *rapid.T) {
	running := 0
	for _, b := range p.backups {
		switch b.Status.Phase {
		case backupv1.BackupStarting, backupv1.BackupCopying, backupv1.BackupServing, backupv1.BackupCopied, backupv1.BackupCopyFailed:
			if p.instance != nil && b.Status.InstanceUID == p.instance.UID {
				running++
			}
		}
	}
	if running > 1 {
		t.Fatalf("%d backups run on one instance", running)
	}
}

// finish lets only the controller act until the world comes to rest: everything must end.
func (p *play) finish(t *rapid.T) {
	for range 60 {
		p.now = p.now.Add(time.Hour)
		p.mount()
		for _, b := range append([]*backupv1.VirtualMachineBackup{}, p.backups...) {
			for n := 0; p.act(t, b) != stepNone; n++ {
				if n > maxSteps {
					t.Fatalf("%s does not come to rest in %s: %s", b.Name, b.Status.Phase, b.Status.Message)
				}
			}
		}
	}
	for _, b := range p.backups {
		if !b.Status.Phase.Final() {
			t.Fatalf("%s never ends: %s (%s)", b.Name, b.Status.Phase, b.Status.Message)
		}
		if b.DeletionTimestamp != nil {
			t.Fatalf("%s is deleted and stays", b.Name)
		}
	}
	if p.locked() != "" && p.instance != nil {
		for _, b := range p.backups {
			if b.Name == p.locked() && lockBelongsTo(b, lockOf(p.instance)) {
				t.Fatalf("the lock of %s stays", p.locked())
			}
		}
	}
	if p.tracker != nil && len(p.tracker.Finalizers) > 0 {
		t.Fatal("the tracker is held by nobody")
	}
}
