//go:build soak

package soak

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/layout"
)

const (
	// strikeEvery is the pause between two processes that are killed.
	strikeEvery = 40 * time.Second
	// frozenFor and awayFor are how long the S3 service stands still, and is away.
	frozenFor, awayFor = time.Minute, 3 * time.Minute
)

// mishaps kill what Varve and its machines consist of, and take the storage away.
type mishaps struct {
	*soak
	mu     sync.Mutex
	kills  map[string]int
	outage []string
	done   sync.WaitGroup
}

// begin lets them happen until ctx ends. The storage stands still after a sixth of the window, and is away after a
// half.
func (m *mishaps) begin(ctx context.Context, window time.Duration) {
	m.kills = map[string]int{}
	m.done.Go(func() { m.killInTurn(ctx) })
	m.done.Go(func() {
		if !pause(ctx, window/6) {
			return
		}
		m.takeStorage(ctx, "stood still", syscall.SIGSTOP, frozenFor, func(context.Context) error {
			return signalStorage(syscall.SIGCONT)
		})
		if pause(ctx, window/3-min(frozenFor, window/6)) {
			m.takeStorage(ctx, "was away", syscall.SIGKILL, awayFor, startStorage)
		}
	})
}

// killInTurn kills one of each kind after the other.
func (m *mishaps) killInTurn(ctx context.Context) {
	kinds := []string{"leader", "handler", "qemu", "mover", "launcher"}
	for i := 0; pause(ctx, strikeEvery); i++ {
		kind := kinds[i%len(kinds)]
		err := m.strikeKind(ctx, kind)
		for tries := 0; err != nil && tries < 30 && pause(ctx, time.Second); tries++ {
			err = m.strikeKind(ctx, kind) // it may not run at each moment
		}
		if err != nil {
			m.t.Logf("%s kill a %s: %v", timeOfDay(), kind, err)
			continue
		}
		m.t.Logf("%s killed a %s", timeOfDay(), kind)
		m.mu.Lock()
		m.kills[kind]++
		m.mu.Unlock()
	}
}

// strikeKind kills one of a kind.
func (m *mishaps) strikeKind(ctx context.Context, kind string) error {
	pods := client.MatchingLabels{layout.LabelApp: "virt-launcher"}
	switch kind {
	case "leader":
		holder, err := m.findLeader(ctx)
		if err != nil {
			return err
		}
		return m.killLeader(ctx, holder)
	case "handler":
		return m.killIn(ctx, layout.Namespace, "varve", client.MatchingLabels{"app.kubernetes.io/component": "handler"})
	case "mover":
		return m.killIn(ctx, layout.Namespace, "varve", client.HasLabels{datamove.LabelPodUpload})
	case "qemu":
		return m.killIn(ctx, m.Namespace, "qemu-system-x86_64", pods)
	}
	return m.killIn(ctx, m.Namespace, "varve-launcher", pods)
}

// killIn kills a program in one of the pods of a selection.
func (m *mishaps) killIn(ctx context.Context, namespace, exe string, selection client.ListOption) error {
	var pods corev1.PodList
	if err := m.List(ctx, &pods, client.InNamespace(namespace), selection); err != nil {
		return err
	}
	var all []int
	for i := range pods.Items {
		found, err := processes(pods.Items[i].UID)
		if err != nil {
			return err
		}
		all = append(all, found[exe]...)
	}
	if len(all) == 0 {
		return fmt.Errorf("no pod runs %s", exe)
	}
	return kill(all[rand.IntN(len(all))])
}

// takeStorage takes the S3 service away for a while.
func (m *mishaps) takeStorage(
	ctx context.Context, how string, away syscall.Signal, lasts time.Duration, comeBack func(context.Context) error,
) {
	began := time.Now()
	err := signalStorage(away)
	if err == nil {
		pause(ctx, lasts)
		err = comeBack(context.WithoutCancel(ctx))
	}
	if err != nil {
		m.t.Errorf("take the storage away, and bring it back: %v", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.outage = append(m.outage, fmt.Sprintf("%s at %s for %s", how, began.UTC().Format(time.TimeOnly),
		time.Since(began).Round(time.Second)))
}

// check waits until all is over, and checks that there was enough.
func (m *mishaps) check(t *testing.T) {
	t.Helper()
	m.done.Wait()
	t.Logf("killed %v; the storage %q", maps.Clone(m.kills), m.outage)
	if len(m.kills) < 5 || len(m.outage) < 2 {
		t.Error("some kind of kill or of outage did not happen: give it more minutes")
	}
}

func timeOfDay() string { return time.Now().UTC().Format(time.TimeOnly) }
