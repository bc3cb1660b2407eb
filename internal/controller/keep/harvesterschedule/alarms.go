package harvesterschedule

import (
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/event"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
)

// tick is how often the alarms are looked at. It is how late a run begins at the most.
const tick = time.Second

// alarms wakes schedules when they are due. It looks at the clock, and so follows one that is set.
type alarms struct {
	clock clock.PassiveClock
	woken chan event.GenericEvent

	mu sync.Mutex
	at map[types.NamespacedName]time.Time
}

func newAlarms(c clock.PassiveClock) *alarms {
	return &alarms{clock: c, woken: make(chan event.GenericEvent), at: map[types.NamespacedName]time.Time{}}
}

// wakeAt has the schedule woken at that time, instead of when it was set to before. The zero time: not at all.
func (a *alarms) wakeAt(key types.NamespacedName, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if at.IsZero() {
		delete(a.at, key)
		return
	}
	a.at[key] = at
}

// Start implements manager.Runnable. It wakes schedules until ctx ends.
func (a *alarms) Start(ctx context.Context) error {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		for _, key := range a.takeDue() {
			o := &harvesterv1.ScheduleVMBackup{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
			select {
			case <-ctx.Done():
				return nil
			case a.woken <- event.GenericEvent{Object: o}:
			}
		}
	}
}

// takeDue returns the schedules whose alarm is due, and takes their alarms away.
func (a *alarms) takeDue() (due []types.NamespacedName) {
	now := a.clock.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	for key, at := range a.at {
		if !at.After(now) {
			due = append(due, key)
			delete(a.at, key)
		}
	}
	return due
}
