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
		lease := &coordinationv1.Lease{}
		if err := k.Get(ctx, client.ObjectKey{Namespace: layout.Namespace, Name: leaderLease}, lease); err != nil {
			continue
		}
		switch holder := ptr.Deref(lease.Spec.HolderIdentity, ""); {
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

// killLeader kills the process of the controller that holds the Lease. It deletes its pod as well: the kubelet would
// wait for minutes until it starts a container again that dies so often, and the Deployment makes another pod at
// once.
func (s *soak) killLeader(ctx context.Context, holder string) error {
	name, _, _ := strings.Cut(holder, "_")
	pod := &corev1.Pod{}
	if err := s.Get(ctx, client.ObjectKey{Namespace: layout.Namespace, Name: name}, pod); err != nil {
		return err
	}
	found, err := processes(pod.UID)
	if err != nil {
		return err
	}
	if len(found["varve"]) == 0 {
		return fmt.Errorf("pod %s has no process", name)
	}
	for _, pid := range found["varve"] {
		err = errors.Join(err, kill(pid))
	}
	same := client.Preconditions{UID: &pod.UID}
	deleted := s.Delete(context.WithoutCancel(ctx), pod, client.GracePeriodSeconds(1), same)
	return errors.Join(err, client.IgnoreNotFound(deleted))
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
