package instance

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/handler/launcherclient"
	"github.com/varvebackup/varve/internal/handler/turns"
	"github.com/varvebackup/varve/internal/instancepod"
	"github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/layout"
)

// Reasons of conditions.
const (
	// ReasonMigrationWaits: the target of a migration is ready, and the launcher does not begin it yet; the message says
	// why.
	ReasonMigrationWaits = "MigrationWaits"
	// ReasonMigrationInProgress: a stop waits for the end of a migration, which it cancels.
	ReasonMigrationInProgress = "MigrationInProgress"
)

// migrationBeginTimeout is how long the launcher may refuse to begin a migration whose target is ready.
const migrationBeginTimeout = time.Minute

// migrationInput is everything that the decision about a migration from here depends on.
type migrationInput struct {
	// Migration has not ended.
	Migration *kubevirtv1.MigrationState
	// Launcher is the launcher's last state, or nil if it has not answered yet. Answers says that it answers now.
	Launcher *launcherpb.State
	Answers  bool
	// Stopping says that the instance is being deleted.
	Stopping bool
}

// migrationDecision is what to do about a migration from here. At most one field is set.
type migrationDecision struct {
	// Begin asks the launcher to move the guest.
	Begin bool
	// Cancel is why the launcher is asked to cancel it.
	Cancel string
	// GiveUp is why it is never begun.
	GiveUp string
	// Completed says that the guest runs on the target, and Failed why it did not get there.
	Completed bool
	Failed    string
}

func decideMigration(in migrationInput) migrationDecision {
	moved := in.Launcher.GetMigration()
	mine := moved.GetUid() == string(in.Migration.MigrationUID)
	ended := in.Launcher.GetPhase() == launcherpb.State_ENDED
	why := ""
	switch {
	case in.Stopping:
		why = "the machine is being stopped"
	case in.Migration.AbortRequested:
		why = "the migration was aborted"
	}
	switch {
	case in.Launcher == nil:
		return migrationDecision{}
	case ended && mine && in.Launcher.GetEnd() == launcherpb.State_MIGRATED:
		return migrationDecision{Completed: true}
	case mine && moved.GetPhase() == launcherpb.Migration_FAILED:
		return migrationDecision{Failed: moved.GetMessage()}
	case ended:
		return migrationDecision{Failed: "the guest ended before it was moved: " + in.Launcher.GetMessage()}
	case !in.Answers:
		return migrationDecision{}
	case why != "" && mine:
		return migrationDecision{Cancel: why}
	case why != "":
		return migrationDecision{GiveUp: why}
	case !mine && in.Migration.TargetNodeAddress != "":
		return migrationDecision{Begin: true}
	}
	return migrationDecision{}
}

// moveGuest takes a migration from here one step further and records in next how it goes. It returns what keeps it
// from beginning.
func (r *Reconciler) moveGuest(
	ctx context.Context, vmi, next *kubevirtv1.VirtualMachineInstance, l *launcherclient.Client,
	seen launcherclient.Snapshot,
) (*problem, error) {
	m := vmi.Status.MigrationState
	if m.Ended() {
		return nil, r.endStrayMigration(ctx, vmi, l)
	}
	in := migrationInput{
		Migration: m, Launcher: seen.State, Answers: seen.Err == nil,
		Stopping: !vmi.DeletionTimestamp.IsZero(),
	}
	d := decideMigration(in)
	if d.GiveUp != "" {
		// The call that began it may be younger than what was seen.
		var err error
		if in.Launcher, err = l.Fresh(ctx); err != nil {
			return nil, err
		}
		d = decideMigration(in)
	}
	switch {
	case d.Begin:
		return r.beginMigration(ctx, vmi, next, l)
	case d.Cancel != "":
		if _, err := l.RPC().CancelMigration(ctx, &launcherpb.CancelMigrationRequest{
			Uid:    string(m.MigrationUID),
			Reason: d.Cancel,
		}); err != nil {
			return nil, fmt.Errorf("cancel the migration: %w", err)
		}
	case d.Completed:
		r.endMigration(next, "")
		r.Events.Eventf(vmi, nil, corev1.EventTypeNormal, "Migrated", "Migrate", "The guest was moved to node %s.",
			m.TargetNode)
	case d.Failed != "" || d.GiveUp != "":
		r.failMigration(vmi, next, d.Failed+d.GiveUp)
	}
	return nil, nil
}

func (r *Reconciler) endMigration(next *kubevirtv1.VirtualMachineInstance, failure string) {
	m := next.Status.MigrationState
	m.Mode = kubevirtv1.MigrationPreCopy
	m.Completed, m.Failed, m.FailureReason = failure == "", failure != "", failure
	m.EndTimestamp = ptr.To(metav1.NewTime(r.Clock.Now()).Rfc3339Copy())
}

func (r *Reconciler) failMigration(vmi, next *kubevirtv1.VirtualMachineInstance, why string) {
	r.endMigration(next, why)
	r.Events.Eventf(vmi, nil, corev1.EventTypeWarning, "MigrationFailed", "Migrate",
		"The guest was not moved to node %s: %s", vmi.Status.MigrationState.TargetNode, why)
}

// beginMigration asks the launcher to move the guest. A launcher that refuses is asked again for a minute.
func (r *Reconciler) beginMigration(
	ctx context.Context, vmi, next *kubevirtv1.VirtualMachineInstance, l *launcherclient.Client,
) (*problem, error) {
	m := vmi.Status.MigrationState
	request, err := r.migrateRequest(ctx, vmi)
	if err != nil {
		return r.afterRefusal(vmi, next, err.Error(), false), nil
	}
	_, err = l.RPC().Migrate(ctx, request)
	switch why := status.Convert(err).Message(); status.Code(err) {
	case codes.OK:
		r.Events.Eventf(vmi, nil, corev1.EventTypeNormal, "Migrating", "Migrate", "The guest is being moved to node %s.",
			m.TargetNode)
		return nil, nil
	case codes.Unimplemented:
		return r.afterRefusal(vmi, next, "restart the machine: its launcher is of an older version, which cannot move its "+
			"guest", true), nil
	case codes.InvalidArgument:
		return r.afterRefusal(vmi, next, why, true), nil
	case codes.FailedPrecondition, codes.Aborted:
		return r.afterRefusal(vmi, next, why, false), nil
	}
	// It may have begun.
	return nil, fmt.Errorf("ask the launcher to move the guest: %w", err)
}

// afterRefusal fails a migration that has not begun, at once or a minute after its target was ready. Until then it
// returns what to show.
func (r *Reconciler) afterRefusal(vmi, next *kubevirtv1.VirtualMachineInstance, why string, final bool) *problem {
	m := vmi.Status.MigrationState
	if ready := m.TargetNodeDomainReadyTimestamp; final || ready != nil &&
		r.Clock.Since(ready.Time) > migrationBeginTimeout {
		r.failMigration(vmi, next, why)
		return nil
	}
	return &problem{ReasonMigrationWaits, fmt.Sprintf("the migration to node %s cannot begin, the handler keeps trying "+
		"for %v: %s",
		m.TargetNode, migrationBeginTimeout, why)}
}

func (r *Reconciler) migrateRequest(
	ctx context.Context, vmi *kubevirtv1.VirtualMachineInstance,
) (*launcherpb.MigrateRequest, error) {
	m := vmi.Status.MigrationState
	token, err := r.readMigrationToken(ctx, vmi)
	if err != nil {
		return nil, err
	}
	kv := &kubevirtv1.KubeVirt{}
	err = r.Live.Get(ctx, types.NamespacedName{Namespace: r.Namespace, Name: layout.Configuration}, kv)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read KubeVirt %s/%s: %w", r.Namespace, layout.Configuration, err)
	}
	request := &launcherpb.MigrateRequest{Uid: string(m.MigrationUID), Address: m.TargetNodeAddress, Token: token}
	setMigrationLimits(request, kv.Migrations(), vmi.Spec.Domain.Memory)
	return request, nil
}

// setMigrationLimits sets how fast and how long the guest may be moved.
func setMigrationLimits(
	request *launcherpb.MigrateRequest, limits *kubevirtv1.MigrationConfiguration, memory *kubevirtv1.Memory,
) {
	request.ProgressTimeoutSeconds = limits.ProgressSeconds()
	request.CompletionTimeoutSeconds = limits.CompletionSeconds(memory)
	request.BandwidthBytes = uint64(max(0, limits.Bandwidth())) //nolint:gosec // it is not negative
}

// readMigrationToken returns the migration's token. Handlers may not read Secrets: the kubelet brings it to a pod on
// this node.
func (r *Reconciler) readMigrationToken(ctx context.Context, vmi *kubevirtv1.VirtualMachineInstance) ([]byte, error) {
	migration := vmi.Status.MigrationState.MigrationUID
	name := layout.MigrationSourcePod(vmi.Name, vmi.UID, migration)
	pod, err := instancepod.Get(ctx, r.Live, vmi.Namespace, name)
	switch {
	case err != nil:
		return nil, err
	case pod == nil || pod.Spec.NodeName != r.NodeName ||
		!instancepod.IsMigrationSource(pod, vmi.Name, vmi.UID, migration):
		return nil, fmt.Errorf("pod %s, which brings the migration's token, is not on node %s", name, r.NodeName)
	}
	var token []byte
	turns.Outside(ctx, func() { token, err = r.Mounts.ReadSecret(pod.UID, layout.MigrationVolume, layout.MigrationToken) })
	if err != nil {
		return nil, fmt.Errorf("read the migration's token: %w", err)
	}
	return token, nil
}

// endStrayMigration cancels a migration that the launcher runs although the instance has none: the controller has
// given it up.
func (r *Reconciler) endStrayMigration(
	ctx context.Context, vmi *kubevirtv1.VirtualMachineInstance, l *launcherclient.Client,
) error {
	running := l.Snapshot().State.GetMigration()
	if running.GetPhase() != launcherpb.Migration_RUNNING {
		return nil
	}
	// The cache may not have it yet.
	now := &kubevirtv1.VirtualMachineInstance{}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(vmi), now); err != nil {
		return client.IgnoreNotFound(err)
	}
	if m := now.Status.MigrationState; now.UID != vmi.UID || !m.Ended() && string(m.MigrationUID) == running.GetUid() {
		return nil
	}
	reason := "the migration was given up"
	if m := now.Status.MigrationState; m != nil && m.FailureReason != "" {
		reason += ": " + m.FailureReason
	}
	_, err := l.RPC().CancelMigration(ctx, &launcherpb.CancelMigrationRequest{Uid: running.GetUid(), Reason: reason})
	if err != nil {
		return fmt.Errorf("cancel migration %s, which was given up: %w", running.GetUid(), err)
	}
	return nil
}

// finishArrival lets a guest run that was moved here and whose launcher has not heard that the source's is gone.
func (r *Reconciler) finishArrival(
	ctx context.Context, vmi *kubevirtv1.VirtualMachineInstance, l *launcherclient.Client,
) error {
	_, err := l.RPC().FinishMigration(ctx,
		&launcherpb.FinishMigrationRequest{Uid: string(vmi.Status.MigrationState.MigrationUID)})
	if err != nil {
		return fmt.Errorf("let the guest that was moved here run: %w", err)
	}
	return nil
}
