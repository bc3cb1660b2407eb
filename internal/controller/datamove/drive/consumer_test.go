package drive

import (
	"context"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/events"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
)

// What an exposure waits for that goes on without it has a deadline of its own, which is not the end.
func TestDecide_saysUntilWhenAConsumerIsWaitedFor(t *testing.T) {
	t.Parallel()
	in := base(velerov2.PhaseAccepted)
	in.Object.Kind = datamove.Download
	in.Exposed = &ExposeAnswer{Exposure: Exposure{Waiting: "a pod to be scheduled", Until: now.Add(9 * time.Minute)}}
	d := decide(in)
	want := "waiting for a pod to be scheduled, until " + in.Exposed.Until.UTC().Format(time.TimeOnly) +
		", and then going on without that"
	if d.Change.Message != want || d.Again > lookAgain {
		t.Errorf("%q, again after %s, want %q", d.Change.Message, d.Again, want)
	}
	in.Exposed.Until = now.Add(-time.Second) // between the question and the decision
	if d := decide(in); d.Change.Memory.Ending != nil || d.Again <= 0 {
		t.Errorf("it ends: %+v", d.Change)
	}
}

// noticing is an exposer that has something to say.
type noticing struct {
	Exposer[*velerov2.DataDownload]
}

func (noticing) Expose(context.Context, *velerov2.DataDownload) (Exposure, error) {
	return Exposure{Volume: &Volume{Claim: "c"}, Notice: "No pod came."}, nil
}

func TestExpose_tellsWhatIsNoticed(t *testing.T) {
	t.Parallel()
	recorder := events.NewFakeRecorder(1)
	m := &Mover{Downloads: noticing{}, Events: recorder}
	p := &pass{Reconciler: &Reconciler{Mover: m, Kind: datamove.Download}, object: &velerov2.DataDownload{}}
	if err := p.act(t.Context(), Expose); err != nil {
		t.Fatal(err)
	}
	select {
	case event := <-recorder.Events:
		if !strings.Contains(event, "NoConsumer No pod came.") {
			t.Error(event)
		}
	default:
		t.Error("there is no event")
	}
}
