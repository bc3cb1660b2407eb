package datamove

import (
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/varvebackup/varve/internal/layout"
)

// Outcome is how the work of a mover pod ended.
type Outcome string

const (
	// Succeeded: an upload's restore point is published and synced, or a download's volume is written and synced.
	Succeeded Outcome = "Succeeded"
	// Failed: it failed, and doing it again would fail in the same way.
	Failed Outcome = "Failed"
	// Canceled: it saw spec.cancel and ended. What was stored will be collected.
	Canceled Outcome = "Canceled"
)

// Report is what a mover pod leaves on its object, in AnnotationReport, when it has ended. The pod writes it in one patch with the
// object's resource version and its own UID, so that a pod that was given up cannot report for its successor.
//
// A pod that dies without a report, or that fails in a way that may pass, leaves none: it is started again.
type Report struct {
	Outcome Outcome `json:"outcome"`
	// Message says why it failed, and what to do.
	Message string `json:"message,omitempty"`
	// Pod is the UID of the pod that reports.
	Pod types.UID `json:"pod"`
	// SnapshotID is an upload's SnapshotID, if it Succeeded.
	SnapshotID string `json:"snapshotID,omitempty"`
	// Repository is the unique ID of the repository that an upload's restore point is in.
	Repository string `json:"repository,omitempty"`
	// TotalBytes is the volume's size, ReadBytes how many of them an upload read, IncrementalBytes how many were new or changed, StoredBytes
	// how many went to the repository after deduplication and compression.
	TotalBytes       int64 `json:"totalBytes,omitempty"`
	ReadBytes        int64 `json:"readBytes,omitempty"`
	IncrementalBytes int64 `json:"incrementalBytes,omitempty"`
	StoredBytes      int64 `json:"storedBytes,omitempty"`
	// WrittenBytes is how many of them a download with Job.SkipEqual has written, because the volume had others.
	WrittenBytes int64 `json:"writtenBytes,omitempty"`
	// FullReason says why an upload that could have been incremental was not.
	FullReason string `json:"fullReason,omitempty"`
	// FullDetail says it in plain words, if there is more to say.
	FullDetail string `json:"fullDetail,omitempty"`
}

// FullReasons of uploads of CSI snapshots. FullDetail says more.
const (
	// FullNoSnapshotMetadata: the driver offers no SnapshotMetadata service, or that gave no answer that can be used.
	FullNoSnapshotMetadata = "NoSnapshotMetadata"
	// FullNoBaseSnapshot: no restore point has a snapshot that the changes could be counted from, or the driver has deleted
	// that snapshot. What is allocated may be known all the same.
	FullNoBaseSnapshot = "NoBaseSnapshot"
)

// Encode returns the report as AnnotationReport has it.
func (r Report) Encode() string { return encodeJSON(r) }

// AnnotationNote is on a DataUpload or a DataDownload while its mover pod has something to say before it ends: a Note.
const AnnotationNote = layout.Prefix + "mover-note"

// Note is what a mover pod says while it works, in AnnotationNote. The pod removes it when it is over.
type Note struct {
	// Pod is the UID of the pod that says it.
	Pod types.UID `json:"pod"`
	// Waiting says what the pod waits for, since when and why, as in "waiting for the storage since 12:03:04 UTC:
	// connection refused".
	Waiting string `json:"waiting,omitempty"`
	// Since is when it began to wait.
	Since metav1.Time `json:"since,omitzero"`
}

// Encode returns the note as AnnotationNote has it.
func (n Note) Encode() string { return encodeJSON(n) }

// DecodeNote reads AnnotationNote. Fields that it does not know are ignored: the pod may be newer.
func DecodeNote(text string) (Note, error) {
	var n Note
	if err := json.Unmarshal([]byte(text), &n); err != nil {
		return Note{}, fmt.Errorf("decode %s: %w", AnnotationNote, err)
	}
	return n, nil
}

// CountedPod returns the UID of the pod whose report counts, by what AnnotationDriver has; "" if the driver knows of
// none yet. It is the one field of that annotation that is not the driver's alone.
func CountedPod(driver string) types.UID {
	var counted struct {
		Pod types.UID `json:"pod"`
	}
	if json.Unmarshal([]byte(driver), &counted) != nil {
		return ""
	}
	return counted.Pod
}

// DecodeReport reads AnnotationReport. Fields that it does not know are ignored: the pod may be newer.
func DecodeReport(text string) (Report, error) {
	var r Report
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return Report{}, fmt.Errorf("decode %s: %w", AnnotationReport, err)
	}
	switch r.Outcome {
	case Succeeded, Failed, Canceled:
		return r, nil
	default:
		return Report{}, fmt.Errorf("decode %s: unknown outcome %q", AnnotationReport, r.Outcome)
	}
}
