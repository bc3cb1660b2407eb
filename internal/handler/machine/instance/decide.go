package instance

import (
	"fmt"
	"time"

	"k8s.io/utils/ptr"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/layout"
)

// defaultGrace is the grace period in seconds of an instance without spec.terminationGracePeriodSeconds.
const defaultGrace = 30

// action is what to ask of the launcher.
type action int

const (
	// nothing means that there is nothing to ask.
	nothing action = iota
	// start starts the guest.
	start
	// hold delays a stop because a backup runs.
	hold
	// shutdown shuts the guest down. A running backup fails because of it.
	shutdown
	// finish lets a guest run that was moved here.
	finish
	// exit lets the launcher exit: the guest has ended, and everything that the launcher had to report is written.
	exit
)

// input is everything that a decision depends on.
type input struct {
	Now      time.Time
	Instance *kubevirtv1.VirtualMachineInstance
	// State is the launcher's last state, or nil if it has not answered yet.
	State *launcherpb.State
	// Answers says that the launcher answers now.
	Answers bool
	// Holder is the running backup that holds the instance, or empty.
	Holder string
	// Unreported says that the outcome of a backup of the instance has not been read from the launcher yet.
	Unreported bool
	// StopWaitsForBackup is how long a stop waits for a backup at most.
	StopWaitsForBackup time.Duration
}

type decision struct {
	Action action
	// Abort says to abort the running backup before the shutdown, because the stop is forced.
	Abort bool
	// Grace is how long the guest may take to shut down, in seconds.
	Grace int64
	// Delayed is the user-facing reason why the stop is delayed. It is empty if the stop is not delayed.
	Delayed string
	// DelayReason says the same in a word. Empty: a backup runs.
	DelayReason string
	// Wake is when the decision changes by the passage of time alone. If zero, it never does.
	Wake time.Time
}

// decide returns what to ask of the launcher now.
func decide(in input) decision {
	phase := in.State.GetPhase()
	switch {
	case in.State == nil || !in.Answers || in.Instance.Status.Phase.Final():
		return decision{}
	case phase == launcherpb.State_ENDED && in.Unreported:
		return decision{}
	case phase == launcherpb.State_ENDED:
		return decision{Action: exit}
	case !in.Instance.Status.MigrationState.Ended():
		return decideMoving(in)
	case phase == launcherpb.State_IDLE && in.State.GetMigration().GetPhase() == launcherpb.Migration_LISTENING:
		if in.Instance.Status.MigrationState.Moved() {
			return decision{Action: finish}
		}
		return decision{} // a guest is to come here, so that none may be started
	case !in.Instance.DeletionTimestamp.IsZero():
		return decideStop(in)
	case phase == launcherpb.State_IDLE:
		return decision{Action: start}
	}
	return decision{}
}

// decideMoving leaves the guest alone while it is being moved. A stop first cancels the migration (moveGuest).
func decideMoving(in input) decision {
	if in.Instance.DeletionTimestamp.IsZero() {
		return decision{}
	}
	return decision{
		Action: hold, DelayReason: ReasonMigrationInProgress,
		Delayed: fmt.Sprintf("the migration to node %s is being cancelled: the guest is stopped when that is done",
			in.Instance.Status.MigrationState.TargetNode),
	}
}

func decideStop(in input) decision {
	d := decision{Action: shutdown, Grace: ptr.Deref(in.Instance.Spec.TerminationGracePeriodSeconds, defaultGrace)}
	if in.Holder == "" {
		return stopOnce(in, d)
	}
	if in.Instance.Annotations[layout.AnnotationForceStop] == "true" {
		d.Abort = true
		return stopOnce(in, d)
	}
	until := in.Instance.DeletionTimestamp.Add(in.StopWaitsForBackup)
	if !in.Now.Before(until) {
		return stopOnce(in, d)
	}
	return decision{
		Action: hold, Wake: until,
		Delayed: fmt.Sprintf("VirtualMachineBackup %s runs: the guest is stopped when it ends, or at %s. To stop now and fail the backup, set the annotation %s: \"true\" (varve vm stop --force).",
			in.Holder, until.UTC().Format(time.RFC3339), layout.AnnotationForceStop),
	}
}

// stopOnce does not repeat a stop that is under way.
func stopOnce(in input, d decision) decision {
	if in.State.GetPhase() == launcherpb.State_SHUTTING_DOWN {
		d.Action = nothing
	}
	return d
}
