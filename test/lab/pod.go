package lab

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/test/wait"
)

// Claim creates a claim with this size in bytes on the default StorageClass.
func (l *Lab) Claim(ctx context.Context, name string, bytes int64, mode corev1.PersistentVolumeMode) error {
	return l.createClaim(ctx, l.newClaim(name, bytes, mode))
}

// SharedClaim creates a claim that all nodes may write to, with this size in bytes, on the default StorageClass.
func (l *Lab) SharedClaim(ctx context.Context, name string, bytes int64, mode corev1.PersistentVolumeMode) error {
	claim := l.newClaim(name, bytes, mode)
	claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	return l.createClaim(ctx, claim)
}

func (l *Lab) createClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	if err := l.Create(ctx, claim); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create claim %s: %w", claim.Name, err)
	}
	return nil
}

// ClassClaim creates a Block claim of a storage class.
func (l *Lab) ClassClaim(ctx context.Context, name, class string, bytes int64) error {
	claim := l.newClaim(name, bytes, corev1.PersistentVolumeBlock)
	claim.Spec.StorageClassName = &class
	if err := l.Create(ctx, claim); err != nil {
		return fmt.Errorf("create claim %s: %w", name, err)
	}
	return nil
}

// SnapshotClaim creates a Block claim of a storage class whose content is that of a snapshot.
func (l *Lab) SnapshotClaim(ctx context.Context, name, snapshot, class string, bytes int64) error {
	claim := l.newClaim(name, bytes, corev1.PersistentVolumeBlock)
	claim.Spec.StorageClassName = &class
	claim.Spec.DataSource = &corev1.TypedLocalObjectReference{
		APIGroup: ptr.To(snapshotv1.GroupName), Kind: "VolumeSnapshot", Name: snapshot,
	}
	if err := l.Create(ctx, claim); err != nil {
		return fmt.Errorf("create claim %s of snapshot %s: %w", name, snapshot, err)
	}
	return nil
}

func (l *Lab) newClaim(name string, bytes int64, mode corev1.PersistentVolumeMode) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: l.Namespace},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			VolumeMode:  &mode,
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(bytes, resource.BinarySI)},
			},
		},
	}
}

// Toolbox is a running pod with qemu-img, e2fsprogs and the claims that it was created with. Each claim is mounted at
// /mnt/<claim> or, if it is a Block claim, is the device /dev/<claim>.
type Toolbox struct {
	lab  *Lab
	name string
}

// Toolbox starts a toolbox pod. The caller must close it, because it holds its claims. Volumes of one node are made where the lab's first
// toolbox was: those of one machine must be on one node.
func (l *Lab) Toolbox(ctx context.Context, name string, claims ...string) (*Toolbox, error) {
	return l.newToolbox(ctx, name, false, claims)
}

// ReadOnlyToolbox is Toolbox for claims that nobody may write to: the next backup of a machine that has them stays what it
// would have been.
func (l *Lab) ReadOnlyToolbox(ctx context.Context, name string, claims ...string) (*Toolbox, error) {
	return l.newToolbox(ctx, name, true, claims)
}

func (l *Lab) newToolbox(ctx context.Context, name string, readOnly bool, claims []string) (*Toolbox, error) {
	image, err := l.Image("varve-launcher")
	if err != nil {
		return nil, err
	}
	c := corev1.Container{
		Name: "toolbox", Image: image, ImagePullPolicy: corev1.PullNever,
		Command: []string{"sleep", "infinity"},
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: l.Namespace},
		Spec: corev1.PodSpec{
			RestartPolicy:                 corev1.RestartPolicyNever,
			TerminationGracePeriodSeconds: ptr.To[int64](0),
			AutomountServiceAccountToken:  ptr.To(false),
		},
	}
	if node := l.node.Load(); node != nil {
		pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
			Weight: 100, Preference: corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{
				{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{*node}},
			}},
		}}}}
	}
	for i, claim := range claims {
		volume := fmt.Sprintf("claim-%d", i) // the names of claims may be longer than those of volumes
		pvc := &corev1.PersistentVolumeClaim{}
		if err := l.Get(ctx, client.ObjectKey{Namespace: l.Namespace, Name: claim}, pvc); err != nil {
			return nil, fmt.Errorf("toolbox %s: claim %s: %w", name, claim, err)
		}
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim, ReadOnly: readOnly},
		}})
		if ptr.Deref(pvc.Spec.VolumeMode, corev1.PersistentVolumeFilesystem) == corev1.PersistentVolumeBlock {
			c.VolumeDevices = append(c.VolumeDevices, corev1.VolumeDevice{Name: volume, DevicePath: "/dev/" + claim})
		} else {
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{
				Name: volume, MountPath: "/mnt/" + claim,
				ReadOnly: readOnly,
			})
		}
	}
	pod.Spec.Containers = []corev1.Container{c}
	if err := l.Create(ctx, pod); err != nil {
		return nil, fmt.Errorf("create toolbox %s: %w", name, err)
	}
	t := &Toolbox{lab: l, name: name}
	err = wait.For(ctx, 2*time.Minute, "toolbox "+name+" to run", func(ctx context.Context) (bool, string, error) {
		err := l.Get(ctx, client.ObjectKeyFromObject(pod), pod)
		return pod.Status.Phase == corev1.PodRunning, describePod(pod), err
	})
	if err != nil {
		_ = t.Close(context.WithoutCancel(ctx))
		return nil, err
	}
	l.node.CompareAndSwap(nil, &pod.Spec.NodeName)
	return t, nil
}

func describePod(pod *corev1.Pod) string {
	s := string(pod.Status.Phase)
	for _, c := range pod.Status.Conditions {
		if c.Status == corev1.ConditionFalse {
			s += fmt.Sprintf(", %s: %s %s", c.Type, c.Reason, c.Message)
		}
	}
	for _, c := range pod.Status.ContainerStatuses {
		if c.State.Waiting != nil {
			s += fmt.Sprintf(", %s waits: %s %s", c.Name, c.State.Waiting.Reason, c.State.Waiting.Message)
		}
	}
	return s
}

// Run runs a shell script in the toolbox and returns its output. If the script fails, the error contains the output.
func (t *Toolbox) Run(ctx context.Context, script string) (string, error) {
	return t.RunWithInput(ctx, script, nil)
}

// RunWithInput is Run with a standard input.
func (t *Toolbox) RunWithInput(ctx context.Context, script string, stdin io.Reader) (string, error) {
	return t.lab.Exec(ctx, t.name, "toolbox", stdin, "bash", "-euo", "pipefail", "-c", script)
}

// Close deletes the pod and waits until it is gone.
func (t *Toolbox) Close(ctx context.Context) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: t.name, Namespace: t.lab.Namespace}}
	if err := client.IgnoreNotFound(t.lab.Delete(ctx, pod)); err != nil {
		return fmt.Errorf("delete toolbox %s: %w", t.name, err)
	}
	return t.lab.WaitGone(ctx, pod, time.Minute)
}

// Exec runs a command in a container and returns its standard output. An error contains its standard error.
func (l *Lab) Exec(ctx context.Context, pod, container string, stdin io.Reader, command ...string) (string, error) {
	req := l.Clientset.CoreV1().RESTClient().Post().Resource("pods").Namespace(l.Namespace).Name(pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{
			Container: container, Command: command, Stdin: stdin != nil, Stdout: true, Stderr: true,
		}, clientgoscheme.ParameterCodec)
	exec, err := remotecommand.NewWebSocketExecutor(l.Config, "GET", req.URL().String())
	if err != nil {
		return "", fmt.Errorf("exec in %s: %w", pod, err)
	}
	var stdout, stderr bytes.Buffer
	if err := exec.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: stdin, Stdout: &stdout, Stderr: &stderr}); err != nil {
		return stdout.String(), fmt.Errorf("exec in %s: %v: %w\n%s%s", pod, command, err, stdout.String(), stderr.String())
	}
	return stdout.String(), nil
}
