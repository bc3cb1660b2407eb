//go:build soak

package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/internal/layout"
)

// leaderLease is the Lease of the controller that leads.
const leaderLease = "varve-controller"

// killLeaders kills the controller that leads again and again, each once it has led for a random time of up to
// SOAK_LEADER seconds (20), until stop is called, which returns how many it killed. The next one leads when the Lease
// of the dead one has run out, after 15 seconds.
func (s *soak) killLeaders(ctx context.Context) (stop func() int) {
	s.t.Helper()
	longest := time.Duration(envInt(s.t, "SOAK_LEADER", 20)) * time.Second
	ctx, cancel := context.WithCancel(ctx)
	k := &leaderKiller{soak: s, longest: max(longest, 2*time.Second), done: make(chan struct{})}
	go k.run(ctx)
	stop = func() int {
		cancel()
		<-k.done
		return int(k.kills.Load())
	}
	s.t.Cleanup(func() { stop() })
	return stop
}

type leaderKiller struct {
	*soak
	longest time.Duration
	kills   atomic.Int64
	done    chan struct{}
}

func (k *leaderKiller) run(ctx context.Context) {
	defer close(k.done)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	var leader string
	var due time.Time
	dead := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		holder, err := k.findLeader(ctx)
		if err != nil {
			continue
		}
		switch {
		case holder == "":
		case holder != leader:
			leader, dead, due = holder, false, time.Now().Add(time.Second+rand.N(k.longest-time.Second))
		case !dead && time.Now().After(due):
			if err := k.killLeader(ctx, holder); err != nil {
				k.t.Logf("the leader %s: %v", holder, err)
				due = time.Now().Add(time.Second)
				continue
			}
			dead = true
			k.kills.Add(1)
		}
	}
}

// findLeader returns the identity of the controller that leads, or "".
func (s *soak) findLeader(ctx context.Context) (string, error) {
	lease := &coordinationv1.Lease{}
	err := s.Get(ctx, client.ObjectKey{Namespace: layout.Namespace, Name: leaderLease}, lease)
	return ptr.Deref(lease.Spec.HolderIdentity, ""), err
}

// killLeader kills the process of the controller that holds the Lease, and replaces its pod.
func (s *soak) killLeader(ctx context.Context, holder string) error {
	name, _, _ := strings.Cut(holder, "_")
	pod := &corev1.Pod{}
	if err := s.Get(ctx, client.ObjectKey{Namespace: layout.Namespace, Name: name}, pod); err != nil {
		return err
	}
	if err := killVarve(pod); err != nil {
		return err
	}
	return s.replaceKilled(ctx, pod)
}

// killVarve kills the processes of Varve in a pod.
func killVarve(pod *corev1.Pod) error {
	found, err := processes(pod.UID)
	if err != nil {
		return err
	}
	if len(found["varve"]) == 0 {
		return fmt.Errorf("pod %s has no process", pod.Name)
	}
	for _, pid := range found["varve"] {
		err = errors.Join(err, kill(pid))
	}
	return err
}

// replaceKilled deletes a pod whose process was killed: the kubelet would wait for minutes until it starts a container
// again that dies so often, and the pod's owner makes another pod at once.
func (s *soak) replaceKilled(ctx context.Context, pod *corev1.Pod) error {
	same := client.Preconditions{UID: &pod.UID}
	return client.IgnoreNotFound(s.Delete(context.WithoutCancel(ctx), pod, client.GracePeriodSeconds(1), same))
}

// checkLeaderKills ends a time in which leaders were killed.
func checkLeaderKills(t *testing.T, stop func() int, began time.Time) {
	t.Helper()
	n := stop()
	t.Logf("killed the controller that led %d times in %s", n, time.Since(began).Round(time.Second))
	if n == 0 {
		t.Error("no controller was killed while it led")
	}
}
