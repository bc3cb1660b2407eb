package drive

import (
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
)

// memoryVersion is the version of memory that this package writes and reads.
const memoryVersion = 1

// memory is what the driver of an object must know, and cannot read anywhere else. It is the object's AnnotationDriver.
type memory struct {
	Version int `json:"version"`
	// Pod is the UID of the mover pod whose report counts. Mover pods read it: datamove.CountedPod.
	Pod types.UID `json:"pod,omitempty"`
	// Lost is the UID of the last pod that ended or disappeared without a report.
	Lost types.UID `json:"lost,omitempty"`
	// Deaths is how often the mover died in pods that are lost, and LastWords what it said last.
	Deaths    int    `json:"deaths,omitempty"`
	LastWords string `json:"lastWords,omitempty"`
	// SeenDeaths is how many deaths have been noted, in all pods, and ForgottenDeaths how many of them count no more,
	// because more was moved afterwards. DeathBytes is the most that was moved when one was noted, in bytes.
	SeenDeaths      int   `json:"seenDeaths,omitempty"`
	ForgottenDeaths int   `json:"forgottenDeaths,omitempty"`
	DeathBytes      int64 `json:"deathBytes,omitempty"`
	// Yielded is since when the object has no place, although it was taken: what it needs before its pod takes long.
	// Ready says that it needs nothing but a place again.
	Yielded *metav1.Time `json:"yielded,omitempty"`
	Ready   bool         `json:"ready,omitempty"`
	// PrepareSince is since when the time counts that it may take until the pod runs; nil: since it was accepted.
	PrepareSince *metav1.Time `json:"prepareSince,omitempty"`
	// RetryAt is when the next pod may be made.
	RetryAt *metav1.Time `json:"retryAt,omitempty"`
	// Stalled is since when no pod runs, although data was moving.
	Stalled *metav1.Time `json:"stalled,omitempty"`
	// Finishing is since when the data is moved.
	Finishing *metav1.Time `json:"finishing,omitempty"`
	// Ending is how the object ends, once that is decided.
	Ending *ending `json:"ending,omitempty"`
	// Disposed says that nothing is left of what was made.
	Disposed bool `json:"disposed,omitempty"`
}

// ending is a terminal phase that is reached when nothing is left, or after too long.
type ending struct {
	Phase   velerov2.Phase `json:"phase"`
	Message string         `json:"message,omitempty"`
	// Reason is why it fails.
	Reason FailureReason `json:"reason,omitempty"`
	Since  metav1.Time   `json:"since"`
}

// encode returns the memory as the annotation has it; "" if there is nothing to remember.
func (m memory) encode() string {
	m.Version = 0
	if m == (memory{}) {
		return ""
	}
	m.Version = memoryVersion
	text, err := json.Marshal(m)
	if err != nil {
		panic(err) // strings, numbers and times
	}
	return string(text)
}

// badMemoryError says that a memory was not written by a driver.
type badMemoryError struct{ why string }

func (e *badMemoryError) Error() string {
	return fmt.Sprintf("the annotation %s is not what the object's driver wrote: %s", datamove.AnnotationDriver, e.why)
}

// decodeMemory reads what encode wrote; anything else is a *badMemoryError. A later version's memory is another
// error, which passes when a driver of that version drives.
func decodeMemory(text string) (memory, error) {
	var m memory
	if text == "" {
		return m, nil
	}
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		return memory{}, &badMemoryError{err.Error()}
	}
	switch {
	case m.Version > memoryVersion:
		return memory{}, fmt.Errorf("decode %s: version %d, want %d", datamove.AnnotationDriver, m.Version, memoryVersion)
	case m.Version != memoryVersion:
		return memory{}, &badMemoryError{fmt.Sprintf("it has version %d", m.Version)}
	case m.Deaths < 0 || m.SeenDeaths < 0 || m.ForgottenDeaths < 0:
		return memory{}, &badMemoryError{fmt.Sprintf("it counts %d deaths", min(m.Deaths, m.SeenDeaths,
			m.ForgottenDeaths))}
	case m.Ending != nil && !m.Ending.Phase.Ended():
		return memory{}, &badMemoryError{fmt.Sprintf("it ends as %.80q", m.Ending.Phase)}
	}
	return m, nil
}
