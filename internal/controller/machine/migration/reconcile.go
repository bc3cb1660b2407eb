package migration

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/controller/machine/virtualmachineinstance"
	"github.com/varvebackup/varve/internal/instancepod"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/reconcile"
)

// tokenBytes is the length of a token: that of HMAC-SHA256's keys.
const tokenBytes = 32

// endedKept is how many migrations of an instance stay after they have ended. It is KubeVirt's number.
const endedKept = 5

// Reconcile takes one migration one step further.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	m := &kubevirtv1.VirtualMachineInstanceMigration{}
	if err := r.cached.Get(ctx, req.NamespacedName, m); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	g, err := r.gatherInput(ctx, m)
	if err != nil {
		return ctrl.Result{}, err
	}
	d := decide(g.input)
	return reconcile.RetryConflict(ctrl.Result{RequeueAfter: d.RequeueAfter}, r.applyDecision(ctx, m, g, d))
}

// gathered is what was read.
type gathered struct {
	input
	claims        map[string]*corev1.PersistentVolumeClaim
	configuration *kubevirtv1.KubeVirt
}

// gatherInput reads what decide looks at.
func (r *reconciler) gatherInput(ctx context.Context, m *kubevirtv1.VirtualMachineInstanceMigration) (gathered, error) {
	g := gathered{input: input{Now: r.Clock.Now(), Migration: m.DeepCopy()}}
	if m.Status.Phase.Final() {
		return g, nil
	}
	key := types.NamespacedName{Namespace: m.Namespace, Name: m.Spec.VMIName}
	var err error
	// Read live: a cache that is behind may not have an instance that was started a moment ago, and the migration
	// would fail.
	if g.Instance, err = reconcile.Find(ctx, r.live, key, &kubevirtv1.VirtualMachineInstance{}); err != nil {
		return g, err
	}
	g.configuration = &kubevirtv1.KubeVirt{}
	if err := r.cached.Get(ctx, r.Configuration, g.configuration); client.IgnoreNotFound(err) != nil {
		return g, fmt.Errorf("get the configuration %s: %w", r.Configuration, err)
	}
	g.Settings = g.configuration.Migrations()
	if g.Instance == nil {
		return g, nil
	}
	switch m.Status.Phase {
	case "", kubevirtv1.MigrationPending:
		if err := r.readOthers(ctx, &g); err != nil {
			return g, err
		}
		return g, r.readClaims(ctx, &g)
	case kubevirtv1.MigrationScheduling, kubevirtv1.MigrationScheduled:
		if err := r.readClaims(ctx, &g); err != nil {
			return g, err
		}
		return g, r.findPods(ctx, &g)
	default:
		return g, nil
	}
}

// readOthers reads the other migrations that have not ended from the API server: one that has just been given its
// turn counts.
func (r *reconciler) readOthers(ctx context.Context, g *gathered) error {
	list := &kubevirtv1.VirtualMachineInstanceMigrationList{}
	if err := r.live.List(ctx, list); err != nil {
		return fmt.Errorf("list migrations: %w", err)
	}
	g.Others = slices.DeleteFunc(list.Items, func(other kubevirtv1.VirtualMachineInstanceMigration) bool {
		return other.UID == g.Migration.UID || other.Status.Phase.Final()
	})
	return nil
}

func (r *reconciler) readClaims(ctx context.Context, g *gathered) error {
	g.claims = map[string]*corev1.PersistentVolumeClaim{}
	for _, name := range virtualmachineinstance.ClaimNames(g.Instance) {
		claim, err := reconcile.Find(ctx, r.cached, types.NamespacedName{Namespace: g.Instance.Namespace, Name: name},
			&corev1.PersistentVolumeClaim{})
		if err != nil {
			return err
		}
		if claim != nil {
			g.claims[name] = claim
		}
	}
	if reason, message := virtualmachineinstance.WhyNotMigratable(g.Instance, g.claims); reason != "" {
		g.NotMigratable = &problem{reason, message}
	}
	return nil
}

// findPods reads the migration's pods from the API server: that one is missing must be true. Somebody else's pod of
// such a name is not one.
func (r *reconciler) findPods(ctx context.Context, g *gathered) error {
	i, m := g.Instance, g.Migration
	target, err := instancepod.Get(ctx, r.live, i.Namespace, layout.MigrationPod(i.Name, i.UID, m.UID))
	if err != nil {
		return err
	}
	if target != nil && instancepod.IsLauncher(target, i.Name, i.UID) {
		g.Target = target
	}
	token, err := instancepod.Get(ctx, r.live, i.Namespace, layout.MigrationSourcePod(i.Name, i.UID, m.UID))
	if err != nil {
		return err
	}
	if token != nil && instancepod.IsMigrationSource(token, i.Name, i.UID, m.UID) {
		g.Token = token
	}
	return nil
}

// applyDecision does what was decided.
func (r *reconciler) applyDecision(
	ctx context.Context, m *kubevirtv1.VirtualMachineInstanceMigration, g gathered, d decision,
) error {
	if d.Hold {
		return reconcile.WriteFinalizer(ctx, r.cached, m, Finalizer, true)
	}
	if d.Provide {
		if err := r.providePods(ctx, m, g); err != nil {
			return r.showRefusal(ctx, m, g, d, err)
		}
	}
	if err := r.labelTarget(ctx, m, d.TargetNode); err != nil {
		return err
	}
	if d.InstanceState != nil {
		base := g.Instance.DeepCopy()
		g.Instance.Status.MigrationState = d.InstanceState
		if err := r.cached.Status().Patch(ctx, g.Instance, reconcile.MergeFrom(base)); err != nil {
			return fmt.Errorf("write the migration into the status of instance %s/%s: %w", base.Namespace, base.Name, err)
		}
	}
	if err := r.writeStatus(ctx, m, g, d); err != nil {
		return err
	}
	if d.Release {
		return r.releaseMigration(ctx, m)
	}
	return nil
}

// providePods creates the Secret and the pods that are missing.
func (r *reconciler) providePods(ctx context.Context, m *kubevirtv1.VirtualMachineInstanceMigration, g gathered) error {
	token := make([]byte, tokenBytes)
	_, _ = rand.Read(token) // it ends the program rather than fail
	wanted := []client.Object{&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: m.Namespace, Name: layout.MigrationSecret(m.UID),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(m,
				kubevirtv1.GroupVersion.WithKind("VirtualMachineInstanceMigration"))},
		},
		Data: map[string][]byte{layout.MigrationToken: token},
	}}
	if g.Target == nil {
		wanted = append(wanted, virtualmachineinstance.TargetPod(virtualmachineinstance.Target{
			Migration: m.UID, Instance: g.Instance, Claims: g.claims, Images: r.Images,
			Configuration: g.configuration, NodeSelector: m.Spec.AddedNodeSelector,
		}))
	}
	if g.Token == nil {
		wanted = append(wanted, tokenPod(m, g.Instance, r.Images))
	}
	for _, o := range wanted {
		if err := r.createOwned(ctx, m, o); err != nil {
			return fmt.Errorf("create %T %s/%s: %w", o, m.Namespace, o.GetName(), err)
		}
	}
	return nil
}

func (r *reconciler) createOwned(
	ctx context.Context, m *kubevirtv1.VirtualMachineInstanceMigration, o client.Object,
) error {
	err := r.cached.Create(ctx, o)
	pod, isPod := o.(*corev1.Pod)
	switch {
	case apierrors.IsAlreadyExists(err) && isPod:
		return fmt.Errorf("the name is taken by a pod that is not the migration's: delete that pod: %w", err)
	case apierrors.IsAlreadyExists(err):
		return nil
	case err == nil && isPod && pod.Labels[layout.LabelApp] == virtualmachineinstance.AppLauncher:
		r.events.Eventf(m, pod, corev1.EventTypeNormal, "SuccessfulCreate", "Migrate", "Created migration target pod %s",
			pod.Name)
	}
	return err
}

// showRefusal shows in the status that the API server refuses a pod or the Secret, and returns the error, so that it
// is tried again until the phase's deadline.
func (r *reconciler) showRefusal(
	ctx context.Context, m *kubevirtv1.VirtualMachineInstanceMigration, g gathered, d decision, err error,
) error {
	if !reconcile.IsRefusal(err) {
		return err
	}
	t, reason := kubevirtv1.MigrationWaiting, reasonRefused
	if apierrors.IsForbidden(err) && g.Target == nil {
		t, reason = kubevirtv1.MigrationRejectedByResourceQuota, reasonQuota
	}
	d.setCondition(g.input, t, problemf(reason, "%v. The migration fails if that does not change within %s.", err,
		schedulingLimit))
	if werr := r.writeStatus(ctx, m, g, d); werr != nil {
		return werr
	}
	return err
}

func (r *reconciler) labelTarget(
	ctx context.Context, m *kubevirtv1.VirtualMachineInstanceMigration, node string,
) error {
	if node == "" || m.Labels[layout.LabelMigrationTarget] == node {
		return nil
	}
	base := m.DeepCopy()
	if m.Labels == nil {
		m.Labels = map[string]string{}
	}
	m.Labels[layout.LabelMigrationTarget] = node
	if err := r.cached.Patch(ctx, m, reconcile.MergeFrom(base)); err != nil {
		return fmt.Errorf("label migration %s/%s: %w", m.Namespace, m.Name, err)
	}
	return nil
}

// writeStatus writes the decided status if it differs, and tells of it.
func (r *reconciler) writeStatus(
	ctx context.Context, m *kubevirtv1.VirtualMachineInstanceMigration, g gathered, d decision,
) error {
	if equality.Semantic.DeepEqual(m.Status, d.Status) {
		return nil
	}
	base := m.DeepCopy()
	m.Status = d.Status
	if err := r.cached.Status().Patch(ctx, m, reconcile.MergeFrom(base)); err != nil {
		return fmt.Errorf("write status of migration %s/%s: %w", m.Namespace, m.Name, err)
	}
	if d.Note == nil {
		return nil
	}
	r.events.Eventf(m, nil, d.Note.Type, d.Note.Reason, "Migrate", "%s", d.Note.Message)
	if g.Instance != nil {
		r.events.Eventf(g.Instance, m, d.Note.Type, d.Note.Reason, "Migrate", "%s", d.Note.Message)
	}
	return nil
}

// releaseMigration lets go of a migration that has ended: the Secret goes, and so do the instance's oldest migrations.
func (r *reconciler) releaseMigration(ctx context.Context, m *kubevirtv1.VirtualMachineInstanceMigration) error {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: m.Namespace, Name: layout.MigrationSecret(m.UID)}}
	if err := r.cached.Delete(ctx, secret); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete secret %s/%s: %w", secret.Namespace, secret.Name, err)
	}
	if err := r.deleteOldest(ctx, m); err != nil {
		return err
	}
	return client.IgnoreNotFound(reconcile.WriteFinalizer(ctx, r.cached, m, Finalizer, false))
}

// deleteOldest deletes the instance's migrations that have ended, but the newest ones.
func (r *reconciler) deleteOldest(ctx context.Context, m *kubevirtv1.VirtualMachineInstanceMigration) error {
	list := &kubevirtv1.VirtualMachineInstanceMigrationList{}
	if err := r.cached.List(ctx, list, client.InNamespace(m.Namespace)); err != nil {
		return fmt.Errorf("list migrations in %s: %w", m.Namespace, err)
	}
	ended := slices.DeleteFunc(list.Items, func(other kubevirtv1.VirtualMachineInstanceMigration) bool {
		return other.Spec.VMIName != m.Spec.VMIName || !other.Status.Phase.Final()
	})
	slices.SortFunc(ended, func(a, b kubevirtv1.VirtualMachineInstanceMigration) int {
		if isOlder(&a, &b) {
			return 1
		}
		return -1
	})
	for i := endedKept; i < len(ended); i++ {
		if err := r.cached.Delete(ctx, &ended[i],
			client.Preconditions{UID: &ended[i].UID}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete migration %s/%s: %w", ended[i].Namespace, ended[i].Name, err)
		}
	}
	return nil
}
