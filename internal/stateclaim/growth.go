package stateclaim

import (
	"encoding/json"
	"fmt"
	"maps"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/varvebackup/varve/internal/layout"
)

// Step is what is being tried to give the overlays more room.
type Step string

const (
	// NoStep: nothing is being tried.
	NoStep Step = ""
	// StepExpand: the claim is being expanded.
	StepExpand Step = "Expand"
	// StepMove: a larger claim is being made, which the overlays move to.
	StepMove Step = "Move"
)

const (
	// ExpandTime is how long an expansion may keep a machine from starting. Then the overlays move instead.
	ExpandTime = 3 * time.Minute
	// MoveTime is how long the larger claim may keep a machine from starting. Then the old claim is deleted, which may make
	// the place that the larger one needs, and the next backup is full.
	MoveTime = 3 * time.Minute
)

// Growth records on an instance what is being tried and since when. It is gone with the instance, so that every start of a
// machine has the whole time.
type Growth struct {
	Step Step `json:"step,omitempty"`
	// Since is when the step began.
	Since metav1.Time `json:"since"`
	// Refusal is why the step before, or this one so far, has not succeeded. It may be empty.
	Refusal string `json:"refusal,omitempty"`
}

// Begin returns the record of a step that begins now, because of what refused the one before.
func Begin(step Step, now time.Time, refusal string) Growth {
	return Growth{Step: step, Since: metav1.NewTime(now.UTC()).Rfc3339Copy(), Refusal: refusal}
}

// Deadline returns when the step is given up.
func (g Growth) Deadline() time.Time {
	if g.Step == StepExpand {
		return g.Since.Add(ExpandTime)
	}
	return g.Since.Add(MoveTime)
}

// Equal reports whether two records say the same.
func (g Growth) Equal(o Growth) bool {
	return g.Step == o.Step && g.Refusal == o.Refusal && g.Since.Time.Equal(o.Since.Time)
}

// GrowthOf reads the record from an instance's annotations. One that cannot be read counts as none: the step then begins anew.
func GrowthOf(annotations map[string]string) Growth {
	var g Growth
	if err := json.Unmarshal([]byte(annotations[layout.AnnotationStateGrowth]), &g); err != nil || g.Step != StepExpand && g.Step != StepMove {
		return Growth{}
	}
	return g
}

// Write returns a copy of an instance's annotations with the record, or without one if nothing is being tried.
func (g Growth) Write(annotations map[string]string) (map[string]string, error) {
	next := maps.Clone(annotations)
	if next == nil {
		next = map[string]string{}
	}
	if g.Step == NoStep {
		delete(next, layout.AnnotationStateGrowth)
		return next, nil
	}
	text, err := json.Marshal(g)
	if err != nil {
		return nil, fmt.Errorf("write annotation %s: %w", layout.AnnotationStateGrowth, err)
	}
	next[layout.AnnotationStateGrowth] = string(text)
	return next, nil
}
