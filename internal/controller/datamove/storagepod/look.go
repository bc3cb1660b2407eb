package storagepod

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/diagnosis"
	"github.com/varvebackup/varve/internal/reconcile"
	"github.com/varvebackup/varve/internal/repositoryaccess"
)

// Deadline is how long a look may take, with the start of its pod: an image may have to be pulled, and a volume attached.
const Deadline = 3 * time.Minute

const (
	// pollEvery is the pause between two looks at the pod.
	pollEvery = time.Second
	// cleanupTimeout is how long the deletion of the pod may take when the look is over.
	cleanupTimeout = 10 * time.Second
)

// Looker looks. It is safe for concurrent use, but for one object at a time.
type Looker struct {
	// Namespace is Varve's own, where the pods are.
	Namespace string
	Image     datamove.PodImage
	// Client makes and deletes pods. Live reads from the API server, because nobody caches these pods.
	Client client.Writer
	Live   client.Reader
}

// Find returns the storage that a location's volume is. refusal says why it cannot be used.
func (l *Looker) Find(ctx context.Context, volume corev1.VolumeSource) (s datamove.Storage, refusal string, err error) {
	if volume.PersistentVolumeClaim == nil {
		return datamove.Storage{Volume: volume}, "", nil
	}
	key := types.NamespacedName{Namespace: l.Namespace, Name: volume.PersistentVolumeClaim.ClaimName}
	claim, err := reconcile.Find(ctx, l.Live, key, &corev1.PersistentVolumeClaim{})
	if err != nil {
		return s, "", err
	}
	if s, err = datamove.ClaimStorage(volume, claim); err != nil {
		return datamove.Storage{}, "spec.objectStorage.bucket: " + err.Error(), nil //nolint:nilerr // it is the location's refusal
	}
	return s, "", nil
}

// Look has a pod look, and returns what it has seen. If the pod cannot be made or started, that is the failure.
func (l *Looker) Look(ctx context.Context, r *Request) repositoryaccess.Seen {
	seen, err := l.look(ctx, newPod(l.Namespace, l.Image, r))
	if err != nil {
		place := r.Look.Words.Place
		return repositoryaccess.Seen{UniqueID: r.Look.Access.UniqueID, Failure: place + ": " + err.Error()}
	}
	return seen
}

func (l *Looker) look(ctx context.Context, pod *corev1.Pod) (seen repositoryaccess.Seen, err error) {
	if err := l.remove(ctx, client.ObjectKeyFromObject(pod)); err != nil {
		return seen, err
	}
	if err := l.Client.Create(ctx, pod); err != nil {
		return seen, fmt.Errorf("create the pod that looks there: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		_ = l.delete(ctx, pod) // What stays is deleted before the next look, and with its owner.
	}()
	uid := pod.UID
	err = wait.PollUntilContextCancel(ctx, pollEvery, false, func(ctx context.Context) (bool, error) {
		found := &corev1.Pod{}
		switch err := l.Live.Get(ctx, client.ObjectKeyFromObject(pod), found); {
		case apierrors.IsNotFound(err) || err == nil && found.UID != uid:
			return false, errors.New("the pod that looked there was deleted")
		case err != nil:
			return false, nil //nolint:nilerr // the API server comes back, or time is up
		}
		pod = found
		return found.Status.Phase == corev1.PodSucceeded || found.Status.Phase == corev1.PodFailed, nil
	})
	if wait.Interrupted(err) || errors.Is(err, context.DeadlineExceeded) {
		return seen, l.explainWait(context.WithoutCancel(ctx), pod)
	}
	if err != nil {
		return seen, err
	}
	return readSeen(pod)
}

// remove deletes a pod that an earlier look has left, and waits until it is gone.
func (l *Looker) remove(ctx context.Context, key types.NamespacedName) error {
	err := wait.PollUntilContextCancel(ctx, pollEvery, true, func(ctx context.Context) (bool, error) {
		pod, err := reconcile.Find(ctx, l.Live, key, &corev1.Pod{})
		if err != nil || pod == nil {
			return err == nil, err
		}
		if pod.Labels[datamove.LabelLook] == "" {
			return false, fmt.Errorf("pod %s is somebody else's: delete it", key)
		}
		return false, l.delete(ctx, pod)
	})
	if wait.Interrupted(err) {
		return fmt.Errorf("the pod %s of an earlier look is not gone yet", key.Name)
	}
	return err
}

func (l *Looker) delete(ctx context.Context, pod *corev1.Pod) error {
	err := l.Client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID})
	if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete pod %s: %w", pod.Name, err)
	}
	return nil
}

// readSeen reads what a pod has left.
func readSeen(pod *corev1.Pod) (repositoryaccess.Seen, error) {
	message := pod.Status.Message
	for i := range pod.Status.ContainerStatuses {
		if t := pod.Status.ContainerStatuses[i].State.Terminated; t != nil && pod.Status.ContainerStatuses[i].Name == containerName {
			if seen, err := repositoryaccess.DecodeSeen(t.Message); err == nil {
				return seen, nil
			}
			message = strings.TrimSpace(t.Reason + " " + t.Message)
		}
	}
	return repositoryaccess.Seen{}, fmt.Errorf("the pod that looked there ended without an answer: %s", strings.TrimSpace(pod.Status.Reason+" "+message))
}

// explainWait says why a pod has not ended.
func (l *Looker) explainWait(ctx context.Context, pod *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, cleanupTimeout)
	defer cancel()
	where := "the pod that looks there"
	if pod.Spec.NodeName != "" {
		where += " on node " + pod.Spec.NodeName
	}
	if pod.Status.Phase == corev1.PodRunning {
		return fmt.Errorf("the storage does not answer: %s has waited %s for it", where, Deadline)
	}
	why := diagnosis.WhyNotRunning(ctx, l.Live, pod)
	if why == "" {
		why = "nothing says why"
	}
	return fmt.Errorf("%s does not start: %s", where, why)
}
