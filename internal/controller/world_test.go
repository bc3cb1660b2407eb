//go:build controlplane

package controller

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
)

var cluster *controlplane.Cluster

func TestMain(m *testing.M) { controlplane.Main(m, &cluster) }

// TestControlPlane runs every test that needs the API server, after it has set up what they share.
func TestControlPlane(t *testing.T) { //nolint:tparallel // not beside TestRun, whose controllers see every namespace
	admin := cluster.Client(t, controlplane.Admin)
	if err := cluster.InstallRoles(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, o := range []client.Object{
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Labels: map[string]string{corev1.LabelHostname: "host-1"}}},
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: "test.example/none"},
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: expandable}, Provisioner: "test.example/none", AllowVolumeExpansion: ptr.To(true)},
	} {
		if err := admin.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	for name, test := range map[string]func(*world){
		"a machine's life":                   machineLife,
		"obstacles are shown and go":         obstacles,
		"requests of a manual machine":       manualRequests,
		"crash loop":                         crashLoop,
		"a template that changes":            templateChanges,
		"a deleted machine":                  deletedMachine,
		"deleted before it was scheduled":    deletedEarly,
		"somebody else's instance":           foreignInstance,
		"launcher pod deleted by somebody":   podDeleted,
		"pod of a stripped instance":         orphanedPod,
		"pod of a stripped predecessor":      orphanedPodOfAPredecessor,
		"a deletion that orphans":            orphaningDeletion,
		"orphaned pod without its instance":  orphanedPodWithoutInstance,
		"tracking on and off":                trackingOnAndOff,
		"tracking by namespace":              trackingByNamespace,
		"invalid selector":                   invalidSelector,
		"state claim too small":              stateClaimTooSmall,
		"state claim expands, disk added":    addedDiskExpands,
		"state claim expands, disk grown":    grownDiskExpands,
		"state claim moves, disk added":      addedDiskMoves,
		"state claim moves, disk grown":      grownDiskMoves,
		"state claim does not expand":        expansionFails,
		"state claim under a quota":          quotaRefuses,
		"state claim's second name is taken": secondNameTaken,
		"utility volume":                     utilityVolume,
		"utility volume waits for its claim": utilityVolumeWaits,
		"utility volume of a dead guest":     utilityVolumeOfDeadGuest,
		"every run is on the claim":          everyRunIsOnTheClaim,
		"one claim, one machine":             oneClaimOneMachine,
		"shareable in both machines":         shareableInBoth,
		"two machines at once":               twoMachinesAtOnce,
		"a record copied to another claim":   copiedRecord,
		"a machine made again":               machineMadeAgain,
		"a claim knows its disks":            knowsItsDisks,
		"an attachment is a run":             attachedElsewhere,
		"utility volume with forged pods":    utilityVolumeHijacked,
		"a drain waits for a backup":         drainWaitsForBackup,
		"forged launcher pod":                launcherPodHijacked,
		"pods of others end the trust":       outsiders,
		"pods of others before the launcher": lateOutsiders,
		"a run that never began":             unstartedRuns,
		"a run that cannot be written":       refusedRuns,
		"a claim that is attached":           attachedDisk,
		"a disk that is exported":            exportedDisk,
		"a namespace that restricts pods":    restrictedNamespace,
		"a guest that moves":                 migrated,
		"a tracked guest that moves":         trackedMigrated,
		"a migration that is aborted":        migrationAborted,
		"a migration that loses its pods":    migrationLosesPods,
		"a migration that waits":             migrationWaits,
		"migrations that are refused":        migrationRefused,
		"a migration under a quota":          migrationUnderQuota,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(newWorld(t))
		})
	}
}

// world is one test's namespace with its own configuration and its own controllers, which act with the roles of
// deploy/rbac. The test plays the user, the kubelet and the handler.
type world struct {
	*testing.T
	ns string
	// user owns machines; kubelet writes pods and claims; node is the handler; varve has the controller's own account.
	user, kubelet, node, varve client.Client
	stop                       func()
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{
		T: t, ns: cluster.Namespace(t),
		user: cluster.Client(t, controlplane.Plain), kubelet: cluster.Client(t, controlplane.Admin), node: cluster.Client(t, controlplane.HandlerOn("node-1")),
		varve: cluster.Client(t, controlplane.Controller),
	}
	kv := controlplane.DefaultKubeVirt()
	kv.Namespace = w.ns
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"backup": "yes"}}
	kv.Spec.Configuration.ChangedBlockTrackingLabelSelectors = &kubevirtv1.ChangedBlockTrackingSelectors{
		NamespaceLabelSelector: selector, VirtualMachineLabelSelector: selector,
	}
	w.create(w.kubelet, kv)
	w.start()
	return w
}

func (w *world) start() {
	w.Helper()
	mgr := cluster.Manager(w.T, controlplane.Controller.Restrict(), func(o *ctrl.Options) {
		options, err := managerOptions(Options{Namespace: controlplane.SystemNamespace}, cluster.Scheme)
		if err != nil {
			w.Fatal(err)
		}
		o.Cache = options.Cache
		o.Cache.DefaultNamespaces = map[string]cache.Config{w.ns: {}}
	})
	err := Setup(mgr, Options{
		Namespace: w.ns, LauncherImage: "varve-launcher:test", VarveImage: "varve:test",
	})
	if err != nil {
		w.Fatal(err)
	}
	w.stop = controlplane.StartManager(w.T, mgr)
}

// restart stops the controllers and starts new ones, which know only what the API server has.
func (w *world) restart() {
	w.Helper()
	w.stop()
	w.start()
}

func (w *world) create(c client.Client, o client.Object) {
	w.Helper()
	if err := c.Create(context.Background(), o); err != nil {
		w.Fatalf("create %T %s: %v", o, o.GetName(), err)
	}
}

func (w *world) meta(name string) metav1.ObjectMeta {
	return gen.Meta(w.ns, name)
}

// machine creates a machine with one disk on the claim "root".
func (w *world) machine(s kubevirtv1.RunStrategy, labels map[string]string) *kubevirtv1.VirtualMachine {
	w.Helper()
	vm := gen.VirtualMachine(w.meta("vm"), gen.Guest(gen.Disk("root", "root")), gen.SetRunStrategy(s))
	vm.Labels = labels
	w.create(w.user, vm)
	return vm
}

// claim creates a claim that is bound.
func (w *world) claim(name, size string, mode corev1.PersistentVolumeMode) {
	w.Helper()
	w.claimWith(nil, name, size, mode)
}

// claimWith makes a bound claim with annotations, as a restore of manifests does.
func (w *world) claimWith(annotations map[string]string, name, size string, mode corev1.PersistentVolumeMode) {
	w.Helper()
	claim := gen.Claim(w.meta(name), gen.SetSize(size), gen.SetVolumeMode(mode))
	claim.Annotations, claim.Spec.StorageClassName = annotations, ptr.To("fast")
	w.create(w.user, claim)
	w.bind(claim)
}

func (w *world) bind(claim *corev1.PersistentVolumeClaim) {
	w.Helper()
	controlplane.Update(w.T, w.kubelet, claim, true, func(c *corev1.PersistentVolumeClaim) {
		c.Status.Phase = corev1.ClaimBound
		c.Status.Capacity = c.Spec.Resources.Requests
	})
}

// ask requests starts and stops as a user does, who may write no other field of status.
func (w *world) ask(requests ...kubevirtv1.StateChangeRequest) {
	w.Helper()
	vm := w.vm(exists)
	base := vm.DeepCopy()
	vm.Status.StateChangeRequests = requests
	if err := w.user.Status().Patch(w.Context(), vm, client.MergeFrom(base)); err != nil {
		w.Fatalf("ask for %+v: %v", requests, err)
	}
}

// vm waits until ok returns no error for the machine.
func (w *world) vm(ok func(*kubevirtv1.VirtualMachine) error) *kubevirtv1.VirtualMachine {
	w.Helper()
	return wait(w, &kubevirtv1.VirtualMachine{ObjectMeta: w.meta("vm")}, ok)
}

func (w *world) vmi(ok func(*kubevirtv1.VirtualMachineInstance) error) *kubevirtv1.VirtualMachineInstance {
	w.Helper()
	return wait(w, &kubevirtv1.VirtualMachineInstance{ObjectMeta: w.meta("vm")}, ok)
}

// launcher waits for the launcher pod of an instance.
func (w *world) launcher(vmi *kubevirtv1.VirtualMachineInstance) *corev1.Pod {
	w.Helper()
	return wait(w, &corev1.Pod{ObjectMeta: w.meta(layout.LauncherPod(vmi.Name, vmi.UID))}, exists)
}

func exists[T any](T) error { return nil }

func wait[T client.Object](w *world, o T, ok func(T) error) T {
	w.Helper()
	controlplane.Eventually(w.T, func() error {
		if err := w.kubelet.Get(w.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		return ok(o)
	})
	return o
}

// ends is for wait: the object's deletion was asked for.
func ends[T client.Object](o T) error {
	if o.GetDeletionTimestamp() == nil {
		return fmt.Errorf("%s is not deleted", o.GetName())
	}
	return nil
}

// gone waits until an object does not exist.
func (w *world) gone(o client.Object) {
	w.Helper()
	controlplane.Eventually(w.T, func() error {
		err := w.kubelet.Get(w.Context(), client.ObjectKeyFromObject(o), o)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		return fmt.Errorf("%T %s exists, finalizers %v", o, o.GetName(), o.GetFinalizers())
	})
}

func printable(want kubevirtv1.PrintableStatus) func(*kubevirtv1.VirtualMachine) error {
	return func(vm *kubevirtv1.VirtualMachine) error {
		if vm.Status.PrintableStatus != want {
			return fmt.Errorf("status %s, want %s; conditions %+v", vm.Status.PrintableStatus, want, vm.Status.Conditions)
		}
		return nil
	}
}

func inPhase(want kubevirtv1.Phase) func(*kubevirtv1.VirtualMachineInstance) error {
	return func(vmi *kubevirtv1.VirtualMachineInstance) error {
		if vmi.Status.Phase != want {
			return fmt.Errorf("phase %s, want %s; conditions %+v", vmi.Status.Phase, want, vmi.Status.Conditions)
		}
		return nil
	}
}

// other waits for an instance that is not the given one.
func other(than types.UID) func(*kubevirtv1.VirtualMachineInstance) error {
	return func(vmi *kubevirtv1.VirtualMachineInstance) error {
		if vmi.UID == than {
			return fmt.Errorf("instance %s is still there, phase %s, deleted %v", than, vmi.Status.Phase, vmi.DeletionTimestamp)
		}
		return nil
	}
}

// run plays the scheduler and the kubelet: the pod runs on node-1.
func (w *world) run(pod *corev1.Pod) {
	w.Helper()
	if pod.Spec.NodeName == "" {
		binding := &corev1.Binding{ObjectMeta: w.meta(pod.Name), Target: corev1.ObjectReference{Kind: "Node", Name: "node-1"}}
		if err := w.kubelet.SubResource("binding").Create(w.Context(), pod, binding); err != nil {
			w.Fatalf("bind pod %s: %v", pod.Name, err)
		}
	}
	controlplane.Update(w.T, w.kubelet, pod, true, func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodRunning
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: p.Spec.Containers[0].Name, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
		}}
	})
}

// end plays the kubelet after the launcher has exited.
func (w *world) end(pod *corev1.Pod, phase corev1.PodPhase, message string) {
	w.Helper()
	controlplane.Update(w.T, w.kubelet, pod, true, func(p *corev1.Pod) {
		p.Status.Phase = phase
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: p.Spec.Containers[0].Name, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: message}},
		}}
	})
	// A pod that is being deleted goes when its containers are down.
	if pod.DeletionTimestamp != nil {
		w.remove(pod)
	}
}

// remove plays the kubelet's last step for a deleted pod.
func (w *world) remove(pod *corev1.Pod) {
	w.Helper()
	if err := w.kubelet.Delete(w.Context(), pod, client.GracePeriodSeconds(0)); client.IgnoreNotFound(err) != nil {
		w.Fatal(err)
	}
}

// guestRuns plays the handler: the guest of a scheduled instance runs.
func (w *world) guestRuns(vmi *kubevirtv1.VirtualMachineInstance) {
	w.Helper()
	controlplane.Update(w.T, w.node, vmi, true, func(i *kubevirtv1.VirtualMachineInstance) {
		i.Status.Phase = kubevirtv1.PhaseRunning
		i.Status.PhaseTransitionTimestamps = append(i.Status.PhaseTransitionTimestamps, kubevirtv1.PhaseTransitionTimestamp{Phase: kubevirtv1.PhaseRunning, PhaseTransitionTimestamp: metav1.Now()})
		i.Status.Conditions = []kubevirtv1.Condition{{Type: kubevirtv1.ConditionReady, Status: corev1.ConditionTrue}}
	})
}

// boot brings the present instance to Running and returns it with its pod.
func (w *world) boot() (*kubevirtv1.VirtualMachineInstance, *corev1.Pod) {
	w.Helper()
	vmi := w.vmi(exists)
	pod := w.launcher(vmi)
	w.run(pod)
	vmi = w.vmi(inPhase(kubevirtv1.PhaseScheduled))
	w.guestRuns(vmi)
	return vmi, pod
}

// halt plays the handler and the kubelet after an instance was deleted.
func (w *world) halt(vmi *kubevirtv1.VirtualMachineInstance, pod *corev1.Pod) {
	w.Helper()
	w.vmi(func(i *kubevirtv1.VirtualMachineInstance) error {
		if i.UID == vmi.UID && i.DeletionTimestamp == nil {
			return fmt.Errorf("instance %s is not deleted", i.UID)
		}
		return nil
	})
	w.end(pod, corev1.PodSucceeded, `{"end":"REQUESTED_SHUTDOWN","message":"stopped"}`)
	w.sweep(pod)
}

// sweep plays the kubelet for a pod that has ended and that the controller deletes.
func (w *world) sweep(pod *corev1.Pod) {
	w.Helper()
	controlplane.Eventually(w.T, func() error {
		err := w.kubelet.Get(w.Context(), client.ObjectKeyFromObject(pod), pod)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if pod.DeletionTimestamp == nil {
			return fmt.Errorf("pod %s is not deleted", pod.Name)
		}
		w.remove(pod)
		return fmt.Errorf("pod %s is still there, finalizers %v", pod.Name, pod.Finalizers)
	})
}
