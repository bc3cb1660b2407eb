//go:build box

package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const namespace = "default"

// probePod returns a pod that serves requests on the given node.
func probePod(name, node string, change ...func(*corev1.PodSpec)) *corev1.Pod {
	grace := int64(1)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: map[string]string{"app": "probe"}},
		Spec: corev1.PodSpec{
			NodeSelector:                  map[string]string{corev1.LabelHostname: node},
			TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{
				Name: "probe", Image: probeImage, ImagePullPolicy: corev1.PullNever, Args: []string{"serve"},
			}},
		},
	}
	for _, f := range change {
		f(&pod.Spec)
	}
	return pod
}

// withClaim gives the pod a claim's volume: a directory at /data, or a device at /dev/data.
func withClaim(claim string, mode corev1.PersistentVolumeMode) func(*corev1.PodSpec) {
	return func(s *corev1.PodSpec) {
		s.Volumes = append(s.Volumes, corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}})
		if mode == corev1.PersistentVolumeBlock {
			s.Containers[0].VolumeDevices = []corev1.VolumeDevice{{Name: "data", DevicePath: "/dev/data"}}
			return
		}
		s.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	}
}

// withDevice gives the pod a second claim's volume, a device at /dev/data.
func withDevice(claim string) func(*corev1.PodSpec) {
	return func(s *corev1.PodSpec) {
		s.Volumes = append(s.Volumes, corev1.Volume{Name: "device", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}})
		s.Containers[0].VolumeDevices = []corev1.VolumeDevice{{Name: "device", DevicePath: "/dev/data"}}
	}
}

// start creates a pod and waits until it is ready. The pod is removed with the test.
func start(t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	ctx := context.Background()
	// The service account of a new namespace takes a moment, and admission refuses pods without it.
	eventually(t, "the API server to take the pod "+pod.Name, func() error {
		_, err := client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
		return err
	})
	t.Cleanup(func() { stop(t, pod.Name) })
	return waitReady(t, pod.Name)
}

func waitReady(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	var ready *corev1.Pod
	eventually(t, "the pod "+name, func() error {
		p, err := client.CoreV1().Pods(namespace).Get(context.Background(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
				ready = p
				return nil
			}
		}
		return fmt.Errorf("not ready: %s %+v", p.Status.Phase, p.Status.ContainerStatuses)
	})
	return ready
}

// stop deletes a pod and waits until it is gone. A missing pod is no error.
func stop(t *testing.T, name string) {
	t.Helper()
	eventually(t, "the pod "+name+" to end", func() error {
		err := client.CoreV1().Pods(namespace).Delete(context.Background(), name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, fmt.Errorf("it is still there"))
	})
}

// probe runs the probe in a pod with kubectl exec.
func probe(t *testing.T, pod string, args ...string) string {
	t.Helper()
	out, err := kubectl(append([]string{"exec", pod, "--", "/probe"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// claim creates a PVC of the given class ("" for the default) and deletes it with the test.
func claim(t *testing.T, name, class, size string, mode corev1.PersistentVolumeMode, change ...func(*corev1.PersistentVolumeClaim)) {
	t.Helper()
	pvc := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			VolumeMode:  &mode,
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}},
		},
	}
	if class != "" {
		pvc.Spec.StorageClassName = &class
	}
	for _, f := range change {
		f(pvc)
	}
	if _, err := client.CoreV1().PersistentVolumeClaims(namespace).Create(context.Background(), pvc, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unclaim(t, name) })
}

// unclaim deletes a PVC and waits until it and its volume are gone.
func unclaim(t *testing.T, name string) {
	t.Helper()
	ctx := context.Background()
	volume := ""
	if pvc, err := client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{}); err == nil {
		volume = pvc.Spec.VolumeName
	}
	err := client.CoreV1().PersistentVolumeClaims(namespace).Delete(ctx, name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	if volume == "" {
		return
	}
	eventually(t, "the volume of "+name+" to be deleted", func() error {
		_, err := client.CoreV1().PersistentVolumes().Get(ctx, volume, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, fmt.Errorf("%s is still there", volume))
	})
}

// boundVolume waits for a claim's volume and returns its name.
func boundVolume(t *testing.T, name string) string {
	t.Helper()
	volume := ""
	eventually(t, "the claim "+name, func() error {
		pvc, err := client.CoreV1().PersistentVolumeClaims(namespace).Get(context.Background(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if pvc.Status.Phase != corev1.ClaimBound {
			return fmt.Errorf("it is %s", pvc.Status.Phase)
		}
		volume = pvc.Spec.VolumeName
		return nil
	})
	return volume
}

// within fails the test if f takes longer than limit.
func within(t *testing.T, limit time.Duration, f func()) {
	t.Helper()
	begin := time.Now()
	f()
	if took := time.Since(begin); took > limit {
		t.Errorf("it took %s, not at most %s", took, limit)
	}
}
