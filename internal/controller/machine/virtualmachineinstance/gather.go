package virtualmachineinstance

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/instancepod"
	"github.com/varvebackup/varve/internal/layout"
)

// gatherInput reads what decide looks at.
func (r *reconciler) gatherInput(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance) (input, error) {
	in := input{Now: r.Clock.Now(), Instance: instance, StopWaitsForBackup: r.StopWaitsForBackup}
	if err := r.findPods(ctx, &in); err != nil {
		return in, err
	}
	if err := r.findMigrations(ctx, &in); err != nil {
		return in, err
	}
	if in.Instance.Status.Phase.Final() {
		return in, nil
	}
	claims, err := r.readClaims(ctx, r.cached, instance)
	if err != nil {
		return in, err
	}
	in.NotMigratable = whyNotMigratable(instance, claims)
	if handedOver(in.Instance.Status.Phase) {
		return in, nil
	}
	in.Missing = missingClaim(instance, claims)
	if in.Unbound, err = r.findUnboundClaims(ctx, claims); err == nil && in.Missing == nil {
		in.Missing = unboundSuccessor(instance, claims, in.Unbound)
	}
	return in, err
}

// findPods finds the instance's pods. Before the caller can conclude from a missing pod that the instance has ended,
// it asks the API server itself.
func (r *reconciler) findPods(ctx context.Context, in *input) error {
	byCreator := client.MatchingLabels{layout.LabelCreatedBy: string(in.Instance.UID)}
	list := &corev1.PodList{}
	if err := r.cached.List(ctx, list, client.InNamespace(in.Instance.Namespace), byCreator); err != nil {
		return fmt.Errorf("list pods of instance %s/%s: %w", in.Instance.Namespace, in.Instance.Name, err)
	}
	started := in.Instance.Status.Phase != "" && in.Instance.Status.Phase != kubevirtv1.PhasePending
	if len(list.Items) == 0 && (started || in.Instance.DeletionTimestamp != nil) {
		if err := r.live.List(ctx, list, client.InNamespace(in.Instance.Namespace), byCreator); err != nil {
			return fmt.Errorf("list pods of instance %s/%s: %w", in.Instance.Namespace, in.Instance.Name, err)
		}
	}
	for i := range list.Items {
		in.addPod(&list.Items[i])
	}
	if in.Pod != nil || !started {
		return nil
	}
	// There are other pods but no launcher pod: the cache may still be behind.
	pod, err := r.livePod(ctx, in.Instance)
	if err == nil && pod != nil && isLauncher(pod, in.Instance) {
		in.Pod = pod
	}
	return err
}

// addPod puts a pod where decide expects it. A pod that is not the instance's is left out.
func (in *input) addPod(pod *corev1.Pod) {
	name, uid := in.Instance.Name, in.Instance.UID
	volume, job := pod.Labels[layout.LabelAttachment], types.UID(pod.Labels[layout.LabelMigrationJob])
	switch launcher := isLauncher(pod, in.Instance); {
	case launcher && pod.Name == instancepod.ActiveLauncher(in.Instance):
		in.Pod = pod
	case launcher || instancepod.IsMigrationSource(pod, name, uid, job):
		in.Others = append(in.Others, pod)
	case volume != "" && instancepod.IsAttachment(pod, name, uid, volume):
		in.Attachments++
	}
}

// isLauncher reports whether the pod is the instance's launcher pod. A pod that has lost its owner still is: its
// guest runs, and is stopped with the instance.
func isLauncher(pod *corev1.Pod, instance *kubevirtv1.VirtualMachineInstance) bool {
	return instancepod.IsLauncher(pod, instance.Name, instance.UID) || instancepod.IsOrphan(pod, instance.Name, instance.UID)
}

// livePod reads the pod with the launcher pod's name from the API server, whoever made it. It returns nil if there
// is none.
func (r *reconciler) livePod(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance) (*corev1.Pod, error) {
	return instancepod.Get(ctx, r.live, instance.Namespace, instancepod.ActiveLauncher(instance))
}

// findMigrations reads what decides about the pods of migrations: the migrations that have not ended, and the target
// pod of the one that the instance's status names. It asks the API server before the caller can conclude that one of
// them is gone.
func (r *reconciler) findMigrations(ctx context.Context, in *input) error {
	state := in.Instance.Status.MigrationState
	wanted := map[types.UID]bool{}
	if !state.Ended() {
		wanted[state.MigrationUID] = true
		if err := r.findTarget(ctx, in, state.TargetPod); err != nil {
			return err
		}
	}
	for _, pod := range in.Others {
		if job := pod.Labels[layout.LabelMigrationJob]; job != "" {
			wanted[types.UID(job)] = true
		}
	}
	in.Migrations = map[types.UID]bool{}
	for _, from := range []client.Reader{r.cached, r.live} {
		if len(wanted) == 0 {
			return nil
		}
		list := &kubevirtv1.VirtualMachineInstanceMigrationList{}
		if err := from.List(ctx, list, client.InNamespace(in.Instance.Namespace)); err != nil {
			return fmt.Errorf("list migrations in %s: %w", in.Instance.Namespace, err)
		}
		for i := range list.Items {
			if m := &list.Items[i]; wanted[m.UID] && m.Spec.VMIName == in.Instance.Name {
				in.Migrations[m.UID] = !m.Status.Phase.Final()
				delete(wanted, m.UID)
			}
		}
	}
	return nil
}

func (r *reconciler) findTarget(ctx context.Context, in *input, name string) error {
	if i := slices.IndexFunc(in.Others, func(p *corev1.Pod) bool { return p.Name == name }); i >= 0 {
		in.Target = in.Others[i]
		return nil
	}
	pod, err := instancepod.Get(ctx, r.live, in.Instance.Namespace, name)
	if err == nil && pod != nil && isLauncher(pod, in.Instance) {
		in.Target, in.Others = pod, append(in.Others, pod)
	}
	return err
}

// readClaims reads the claims that the launcher pod mounts. A claim that does not exist is absent from the result.
func (r *reconciler) readClaims(ctx context.Context, from client.Reader, instance *kubevirtv1.VirtualMachineInstance) (map[string]*corev1.PersistentVolumeClaim, error) {
	claims := map[string]*corev1.PersistentVolumeClaim{}
	for _, name := range claimNames(instance) {
		claim := &corev1.PersistentVolumeClaim{}
		err := from.Get(ctx, types.NamespacedName{Namespace: instance.Namespace, Name: name}, claim)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("get claim %s/%s: %w", instance.Namespace, name, err)
		}
		claims[name] = claim
	}
	return claims, nil
}

// missingClaim returns an obstacle for the first claim that the launcher pod cannot start without, or nil.
func missingClaim(instance *kubevirtv1.VirtualMachineInstance, claims map[string]*corev1.PersistentVolumeClaim) *obstacle {
	for _, v := range instance.Spec.Volumes {
		name := v.PersistentVolumeClaim.ClaimName
		switch claim := claims[name]; {
		case claim == nil:
			return &obstacle{ReasonClaimNotFound, fmt.Sprintf("PersistentVolumeClaim %s does not exist; create it.", name)}
		case claim.DeletionTimestamp != nil:
			return &obstacle{ReasonClaimNotFound, fmt.Sprintf("PersistentVolumeClaim %s is being deleted; create it again when it is gone.", name)}
		}
	}
	if !Tracked(instance) {
		return nil
	}
	return whyNoStateClaim(instance, claims)
}

// findUnboundClaims returns the claims that have no volume yet.
func (r *reconciler) findUnboundClaims(ctx context.Context, claims map[string]*corev1.PersistentVolumeClaim) ([]unboundClaim, error) {
	var unbound []unboundClaim
	for name, claim := range claims {
		if claim.Status.Phase == corev1.ClaimBound || claim.DeletionTimestamp != nil {
			continue
		}
		u := unboundClaim{Name: name, Immediate: true}
		if class := claim.Spec.StorageClassName; class != nil && *class != "" {
			c := &storagev1.StorageClass{}
			if err := r.cached.Get(ctx, types.NamespacedName{Name: *class}, c); client.IgnoreNotFound(err) != nil {
				return nil, fmt.Errorf("get storage class %s: %w", *class, err)
			}
			u.Immediate = c.VolumeBindingMode == nil || *c.VolumeBindingMode == storagev1.VolumeBindingImmediate
		}
		unbound = append(unbound, u)
	}
	slices.SortFunc(unbound, func(a, b unboundClaim) int { return strings.Compare(a.Name, b.Name) })
	return unbound, nil
}
