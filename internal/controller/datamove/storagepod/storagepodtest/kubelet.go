// Package storagepodtest plays the nodes that run the pods of package storagepod, in tests with an API server alone.
package storagepodtest

import (
	"context"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/repositoryaccess"
)

// playEvery is the pause between two looks for pods.
const playEvery = 50 * time.Millisecond

// Kubelet runs every pod that looks into a storage: a directory of the test's.
type Kubelet struct {
	client         client.Client
	namespace, dir string

	mu     sync.Mutex
	frozen bool
	seen   []*corev1.Pod
}

// Start plays until the test ends. dir is the storage of all pods in the namespace.
func Start(t *testing.T, c client.Client, namespace, dir string) *Kubelet {
	t.Helper()
	k := &Kubelet{client: c, namespace: namespace, dir: dir}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(playEvery)
		defer ticker.Stop()
		for ctx.Err() == nil {
			k.play(ctx)
			select {
			case <-ticker.C:
			case <-ctx.Done():
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return k
}

// Freeze has no pod started until it is called with false.
func (k *Kubelet) Freeze(frozen bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.frozen = frozen
}

// Pods returns the pods that were run.
func (k *Kubelet) Pods() []*corev1.Pod {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.seen[:len(k.seen):len(k.seen)]
}

// play is one round. What fails is tried again in the next.
func (k *Kubelet) play(ctx context.Context) {
	var pods corev1.PodList
	_ = k.client.List(ctx, &pods, client.InNamespace(k.namespace), client.HasLabels{datamove.LabelLook})
	for i := range pods.Items {
		k.playPod(ctx, &pods.Items[i])
	}
}

func (k *Kubelet) playPod(ctx context.Context, p *corev1.Pod) {
	k.mu.Lock()
	frozen := k.frozen
	k.mu.Unlock()
	switch {
	case p.DeletionTimestamp != nil:
		_ = k.client.Delete(ctx, p, client.GracePeriodSeconds(0))
	case frozen || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed:
	default:
		p.Status.Phase = corev1.PodSucceeded
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: p.Spec.Containers[0].Name, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: k.run(ctx, p)}},
		}}
		if k.client.Status().Update(ctx, p) == nil {
			k.mu.Lock()
			k.seen = append(k.seen, p)
			k.mu.Unlock()
		}
	}
}

// run does what `varve mover look` does in the pod, and returns the termination message.
func (k *Kubelet) run(ctx context.Context, p *corev1.Pod) string {
	look, err := repositoryaccess.DecodeLook(p.Spec.Containers[0].Env[0].Value)
	if err != nil {
		return err.Error()
	}
	for _, v := range p.Spec.Volumes {
		if v.Secret == nil {
			continue
		}
		secret := &corev1.Secret{}
		if err := k.client.Get(ctx, types.NamespacedName{Namespace: k.namespace, Name: v.Secret.SecretName}, secret); err != nil {
			return err.Error()
		}
		look.Access.Password = strings.TrimRight(string(secret.Data[datamove.PasswordKey]), "\r\n")
	}
	store := repositoryaccess.NewStore(clock.RealClock{}.Now, func(a datamove.Access) repository.Location {
		if a.S3 != nil { // by a role
			return repository.Location{Directory: filepath.Join(k.dir, a.S3.Prefix)}
		}
		return repository.Location{Directory: filepath.Join(k.dir, strings.TrimPrefix(a.Directory, datamove.StorageDirectory))}
	})
	return string(look.Run(ctx, store).Encode())
}
