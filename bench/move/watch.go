package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
)

// course is when an object of the data mover got where, by this program's clock.
type course struct {
	created time.Time
	phases  map[velerov2.Phase]time.Time
	// reported is when the mover pod's report was there.
	reported time.Time
}

// seconds are from creation to Completed.
func (c *course) seconds() float64 {
	return c.phases[velerov2.PhaseCompleted].Sub(c.created).Seconds()
}

// dataSeconds are from the phase InProgress, which the mover pod waits for, to its report.
func (c *course) dataSeconds() float64 {
	return c.reported.Sub(c.phases[velerov2.PhaseInProgress]).Seconds()
}

// String shows when each step was over, in seconds since the object was created.
func (c *course) String() string {
	at := map[time.Time]string{}
	for phase, t := range c.phases {
		at[t] = string(phase)
	}
	at[c.reported] = "reported"
	var steps []string
	for _, t := range slices.SortedFunc(maps.Keys(at), time.Time.Compare) {
		steps = append(steps, fmt.Sprintf("%s %.1f", at[t], t.Sub(c.created).Seconds()))
	}
	return strings.Join(steps, ", ")
}

// record notes what an object says.
func (c *course) record(o client.Object) (ended bool, err error) {
	now := time.Now()
	phase, message := phaseOf(o)
	if _, seen := c.phases[phase]; phase != "" && !seen {
		c.phases[phase] = now
	}
	if c.reported.IsZero() && o.GetAnnotations()[datamove.AnnotationReport] != "" {
		c.reported = now
	}
	if !phase.Ended() {
		return false, nil
	}
	if phase != velerov2.PhaseCompleted {
		err = fmt.Errorf("%s is %s: %s", o.GetName(), phase, message)
	}
	return true, err
}

func phaseOf(o client.Object) (velerov2.Phase, string) {
	switch o := o.(type) {
	case *velerov2.DataUpload:
		return o.Status.Phase, o.Status.Message
	case *velerov2.DataDownload:
		return o.Status.Phase, o.Status.Message
	}
	return "", ""
}

// follow creates objects and returns their courses, in their order, when all have ended.
func (b *bench) follow(ctx context.Context, list client.ObjectList, objects ...client.Object) ([]*course, error) {
	w, err := b.watcher.Watch(ctx, list, client.InNamespace(objects[0].GetNamespace()))
	if err != nil {
		return nil, fmt.Errorf("watch: %w", err)
	}
	defer w.Stop()
	courses, byName := make([]*course, len(objects)), map[string]*course{}
	for i, o := range objects {
		courses[i] = &course{created: time.Now(), phases: map[velerov2.Phase]time.Time{}}
		byName[o.GetName()] = courses[i]
		if err := b.Create(ctx, o); err != nil {
			return nil, err
		}
	}
	deadline := time.After(10 * time.Minute)
	for left := len(objects); left > 0; {
		select {
		case e, ok := <-w.ResultChan():
			if !ok || e.Type == watch.Error {
				return nil, fmt.Errorf("the watch ended: %v", e.Object)
			}
			o, isObject := e.Object.(client.Object)
			if !isObject || byName[o.GetName()] == nil {
				continue
			}
			ended, err := byName[o.GetName()].record(o)
			if err != nil {
				return nil, err
			}
			if ended {
				delete(byName, o.GetName())
				left--
			}
		case <-deadline:
			return nil, fmt.Errorf("%d of %d have not ended in 10 minutes", left, len(objects))
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return courses, nil
}
