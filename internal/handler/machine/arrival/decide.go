package arrival

import (
	"k8s.io/apimachinery/pkg/types"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/handler/launcherclient"
	"github.com/varvebackup/varve/internal/launcher/launcherpb"
)

// action is what to do for a migration to this node.
type action int

const (
	// nothing means that the migration waits for others.
	nothing action = iota
	// prepare asks the launcher to listen for the source's.
	prepare
	// report writes that the launcher listens.
	report
	// detect writes that the guest runs here.
	detect
	// finish lets the guest run that the source has left.
	finish
	// cancel ends the launcher, which gets no guest.
	cancel
	// release forgets the launcher: the migration has ended.
	release
)

// input is everything that the decision depends on.
type input struct {
	// State is the instance's migration, or nil.
	State *kubevirtv1.MigrationState
	// Migration is the UID of the migration.
	Migration types.UID
	// Launcher is the target's last state, or nil if it has not answered yet. Answers says that it answers now.
	Launcher *launcherpb.State
	Answers  bool
}

// decide returns what to do now.
func decide(in input) action {
	if in.State == nil || in.State.MigrationUID != in.Migration {
		return release // another one has begun since, or none has
	}
	switch {
	case in.Launcher == nil || !in.Answers:
		return nothing
	case in.Launcher.GetPhase() == launcherpb.State_ENDED:
		return release // the controller sees the end of the pod
	case in.Launcher.GetPhase() == launcherpb.State_IDLE:
		return decideWithoutGuest(in)
	case in.State.Ended():
		return release
	case launcherclient.GuestRuns(in.Launcher) && !in.State.TargetNodeDomainDetected:
		return detect
	}
	return nothing
}

// decideWithoutGuest is for a launcher that has not taken the guest over.
func decideWithoutGuest(in input) action {
	listens := in.Launcher.GetMigration().GetPhase() == launcherpb.Migration_LISTENING
	switch {
	case in.State.Moved() && listens:
		return finish
	case in.State.Moved():
		return nothing // a launcher that was restarted: the controller sees it
	case in.State.Ended():
		return cancel
	case !listens:
		return prepare
	case in.State.TargetNodeAddress == "":
		return report
	}
	return nothing
}
