// Package runepoch records on a PersistentVolumeClaim which run mounted it writable last, which instances hold it,
// and whether a guest has had a disk on it.
//
// A run is one period in which a pod that Varve made mounts the claim writable. The controller writes the run on
// the claim before it makes the pod, with optimistic concurrency, so that each run knows the one before it. The
// launcher keeps an overlay only if that previous run is the overlay's own. The package is pure: callers read and
// write the claim.
//
// The record names the claim's UID. A record that came with a copy of the object (a restore, a clone, kubectl
// apply) is ignored.
package runepoch

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/varvebackup/varve/internal/layout"
)

// Epoch is the record of a claim's runs.
type Epoch struct {
	// Claim is the UID of the claim that the record is about.
	Claim types.UID `json:"claim"`
	// Run is the last run that was to mount the claim writable. It is empty if there was none.
	Run string `json:"run,omitempty"`
	// Previous is the run before Run. It is empty if there was none, or if somebody else may have written to the
	// claim after it.
	Previous string `json:"previous,omitempty"`
	// Holders are the instances whose guests may write to the claim.
	Holders []Holder `json:"holders,omitempty"`
	// Strangers are the UIDs of pods that Varve did not make, that may have written to the claim, and that existed
	// and had ended when the last run began. They no longer write.
	Strangers []types.UID `json:"strangers,omitempty"`
	// Generation is the generation of the claim's content when the last run of an instance began.
	Generation string `json:"generation,omitempty"`
	// HadDisk says that a guest has run with a disk on the claim in that generation.
	HadDisk bool `json:"hadDisk,omitempty"`
}

// mostStrangers limits the size of the annotation. A pod beyond the limit counts as a new one at each run.
const mostStrangers = 64

// Holder is an instance whose guest may write to a claim.
type Holder struct {
	Instance string    `json:"instance"`
	UID      types.UID `json:"uid"`
	// Shared says that the instance's disk on the claim is shareable.
	Shared bool `json:"shared,omitempty"`
}

// InstanceRun returns the run of an instance's launcher pod.
func InstanceRun(instance types.UID) string { return string(instance) }

// AttachmentRun returns the run of the attachment pods of an instance's utility volume.
func AttachmentRun(instance types.UID, volume string) string {
	return string(instance) + "/" + volume
}

// Of reads a claim's record. The record is empty if the claim has none, or has one of another claim. An error means
// that the annotation cannot be read, so that nothing is known about the claim's runs and holders.
func Of(claim *corev1.PersistentVolumeClaim) (Epoch, error) {
	none := Epoch{Claim: claim.UID}
	text, ok := claim.Annotations[layout.AnnotationRunEpoch]
	if !ok {
		return none, nil
	}
	var e Epoch
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		return none, fmt.Errorf("read annotation %s of claim %s: %w", layout.AnnotationRunEpoch, claim.Name, err)
	}
	if e.Claim != claim.UID {
		return none, nil
	}
	return e, nil
}

// Begin returns the record of a claim that run mounts next. If run is already the last one, the record stays as it
// is.
func (e Epoch) Begin(run string) Epoch {
	if e.Run != run {
		e.Run, e.Previous = run, e.Run
	}
	return e
}

// Undo takes back run if it is the last one, for a run that mounted nothing: the next run then follows the one
// before it. The run that becomes the last one has no previous run, so that it is trusted no more than the record
// shows.
func (e Epoch) Undo(run string) Epoch {
	if e.Run == run {
		e.Run, e.Previous = e.Previous, ""
	}
	return e
}

// WithHolders returns the record with these holders.
func (e Epoch) WithHolders(holders []Holder) Epoch {
	e.Holders = holders
	return e
}

// WithGeneration returns the record for an instance's run on this generation of the claim's content. In a new
// generation no guest has had a disk yet.
func (e Epoch) WithGeneration(generation string) Epoch {
	e.HadDisk = e.HadDisk && e.Generation == generation
	e.Generation = generation
	return e
}

// WithDisk returns the record of a claim on which a guest runs.
func (e Epoch) WithDisk() Epoch {
	e.HadDisk = true
	return e
}

// KnowsDisk reports whether a guest has run with a disk on the claim, in this generation of its content.
func (e Epoch) KnowsDisk(generation string) bool { return e.HadDisk && e.Generation == generation }

// Stranger is a pod that Varve did not make and that can write to a claim.
type Stranger struct {
	UID types.UID
	// Ended says that the pod's containers have ended for good.
	Ended bool
}

// WithStrangers returns the record with the pods that Varve did not make and that may have written to the claim
// before the run begins. A pod that did not exist, or had not ended, when the previous run began may have written
// since then. In that case the previous run was not the last that could write, so Previous becomes empty.
func (e Epoch) WithStrangers(pods []Stranger) Epoch {
	known := e.Strangers
	e.Strangers = nil
	for _, p := range pods {
		if !p.Ended || !slices.Contains(known, p.UID) {
			e.Previous = ""
		}
		if p.Ended && len(e.Strangers) < mostStrangers {
			e.Strangers = append(e.Strangers, p.UID)
		}
	}
	slices.Sort(e.Strangers)
	return e
}

// Equal reports whether two records say the same.
func (e Epoch) Equal(o Epoch) bool {
	return e.Claim == o.Claim && e.Run == o.Run && e.Previous == o.Previous && slices.Equal(e.Holders, o.Holders) && slices.Equal(e.Strangers, o.Strangers) &&
		e.Generation == o.Generation && e.HadDisk == o.HadDisk
}

// Write puts the record on the claim.
func (e Epoch) Write(claim *corev1.PersistentVolumeClaim) error {
	text, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("write annotation %s of claim %s: %w", layout.AnnotationRunEpoch, claim.Name, err)
	}
	if claim.Annotations == nil {
		claim.Annotations = map[string]string{}
	}
	claim.Annotations[layout.AnnotationRunEpoch] = string(text)
	return nil
}
