package backingimage

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/store/handover"
)

// sourceStarts is how long a source pod may take until it runs.
const sourceStarts = 10 * time.Minute

// decideFirstCopy advances the first copy, and says what it waits for.
func (in *input) decideFirstCopy(p *plan) reason {
	s := &p.status
	if pod := in.source.pod; s.FirstCopyFile == "" && pod != nil && pod.Status.Phase == corev1.PodSucceeded {
		s.FirstCopyFile = findUploadedFile(pod)
	}
	for disk, copied := range s.DiskFileStatusMap {
		if copied.State == longhornv1.StateReady && p.disks[disk] != nil {
			if s.V2FirstCopyStatus != longhornv1.StateReady {
				s.V2FirstCopyStatus, s.V2FirstCopyDisk = longhornv1.StateReady, disk
			}
			s.FirstCopyMessage, s.FirstCopyRetryTime, s.FirstCopyWrittenTime = "", nil, nil
			s.FirstCopyMismatch = nil
			break
		}
	}
	switch s.V2FirstCopyStatus {
	case longhornv1.StateReady:
		in.removeSource(p)
		return reason{}
	case longhornv1.StateInProgress, longhornv1.StateUnknown:
		return in.followFirstCopy(p)
	case longhornv1.StatePending, longhornv1.StateFailed:
	}
	return in.startFirstCopy(p)
}

// removeSource removes what the source has, if it has anything, and looks again until it is gone.
func (in *input) removeSource(p *plan) {
	if !in.source.hasObjects() {
		return
	}
	p.source = removeSource
	if s, _ := in.storeOf(p.status.V2FirstCopyDisk); !s.fresh {
		p.source = abandonSource
	}
	p.lookWithin(pollSource)
}

// startFirstCopy chooses the first copy's disk when nothing is left of the last attempt, and its pause is over.
func (in *input) startFirstCopy(p *plan) reason {
	s := &p.status
	in.removeSource(p)
	_, kept := in.image.Spec.DiskFileSpecMap[s.V2FirstCopyDisk]
	delete(p.disks, s.V2FirstCopyDisk)
	waits := reason{longhornv1.ReasonFirstCopyInProgress, "what is left of the last attempt is being removed"}
	if s.V2FirstCopyStatus == longhornv1.StateFailed {
		retry := ptr.Deref(s.FirstCopyRetryTime, metav1.Time{}).Time
		waits = reason{longhornv1.ReasonFirstCopyFailed, fmt.Sprintf("attempt %d failed: %s; the next one begins at %s",
			s.FirstCopyAttempts, s.FirstCopyMessage, retry.UTC().Format(time.RFC3339))}
		if s.FirstCopyMismatch != nil {
			waits.message += ", or as soon as spec.checksum is another one"
		}
		if left := retry.Sub(in.now); left > 0 && !in.isCorrected(s) {
			p.lookWithin(left)
			return waits
		}
	}
	if in.source.hasObjects() || kept {
		p.lookWithin(pollSource)
		return waits
	}
	s.V2FirstCopyStatus = longhornv1.StatePending
	if _, missing := in.listOriginDisks(); missing != "" {
		p.lookWithin(pollDisks)
		return reason{longhornv1.ReasonSourceNotReady, missing + afterFailure(s)}
	}
	disk, why := in.chooseDisk(p, true)
	if disk == "" {
		p.lookWithin(pollDisks)
		return reason{longhornv1.ReasonNoDisk, why + afterFailure(s)}
	}
	s.V2FirstCopyStatus, s.V2FirstCopyDisk = longhornv1.StateInProgress, disk
	s.FirstCopyWrittenTime, s.FirstCopyRetryTime, s.FirstCopyFile = nil, nil, ""
	in.addCopy(p, disk)
	return reason{longhornv1.ReasonFirstCopyInProgress, in.describeDisk(disk) + " gets the first copy" + afterFailure(s)}
}

// afterFailure names the last failure, for the end of a message.
func afterFailure(s *longhornv1.BackingImageStatus) string {
	if s.FirstCopyMessage == "" {
		return ""
	}
	return fmt.Sprintf("; attempt %d failed: %s", s.FirstCopyAttempts, s.FirstCopyMessage)
}

// followFirstCopy follows a first copy that is being made.
func (in *input) followFirstCopy(p *plan) reason {
	s := &p.status
	disk := s.V2FirstCopyDisk
	if p.disks[disk] == nil {
		in.addCopy(p, disk)
	}
	copied := s.DiskFileStatusMap[disk]
	r, reported := in.freshReport(disk)
	if !reported || copied == nil {
		return in.awaitFirstCopy(p, copied)
	}
	s.V2FirstCopyStatus = longhornv1.StateInProgress
	place := in.describeDisk(disk)
	switch {
	case copied.State == longhornv1.StateFailed:
		return in.refuseFirstCopy(p, place+": "+copied.Message, refusal{r.RefusedChecksum, r.DiskFull})
	case r.State != longhornv1.StateInProgress: // it has not begun, for example because the disk has got full
		return in.awaitFirstCopy(p, copied)
	case in.image.Spec.SourceType.IsLocal():
		return in.followLocalCopy(place, r)
	}
	return in.followSource(p, r, place)
}

// followSource follows the source pod, or the DataDownload, that writes a first copy.
func (in *input) followSource(p *plan, r report, place string) reason {
	s := &p.status
	switch failure := in.explainSourceFailure(r); {
	case s.FirstCopyWrittenTime != nil, in.source.isWritten():
		if s.FirstCopyWrittenTime == nil {
			s.FirstCopyWrittenTime = ptr.To(metav1.NewTime(in.now).Rfc3339Copy())
		}
		if r.Progress < 99 && in.sealOverdue {
			return in.failFirstCopy(p, place+": what the source has written is not on the disk any more")
		} else if r.Progress < 99 {
			p.lookWithin(pollSeal)
		}
		in.removeSource(p)
		return reason{longhornv1.ReasonFirstCopyInProgress, joinReason(place+": the image is there, and is read back and "+
			"sealed", r.Message)}
	case failure != "":
		return in.refuseFirstCopy(p, failure, refusal{full: in.source.isDiskFull()})
	}
	p.source, p.sourceNode = makeSource, r.store.node
	if in.source.claim == nil || in.source.volume == nil || !in.source.isWorking() {
		p.lookWithin(pollSource)
	}
	text := fmt.Sprintf("%s: %d %% of the source were read", place, max(r.Progress, in.source.percentRestored()))
	text = joinReason(joinReason(text, r.Message), in.source.explainWait())
	return reason{longhornv1.ReasonFirstCopyInProgress, text + afterFailure(s)}
}

// explainSourceFailure says why the source will not write the image, or "".
func (in *input) explainSourceFailure(r report) string {
	if in.source.download != nil {
		return explainDownloadFailure(in.source.download)
	}
	pod := in.source.pod
	switch {
	case pod != nil && pod.Status.Phase == corev1.PodFailed:
		return explainPodFailure(pod)
	case pod != nil && pod.Status.Phase == corev1.PodPending && in.now.Sub(pod.CreationTimestamp.Time) > sourceStarts:
		return joinReason("the source pod has not begun to run on node "+r.store.node, in.source.waitsFor)
	}
	return ""
}

// isWritten says whether the source has said that the whole image is written.
func (s *sourceObjects) isWritten() bool {
	return s.pod != nil && s.pod.Status.Phase == corev1.PodSucceeded ||
		s.download != nil && s.download.Status.Phase == velerov2.PhaseCompleted
}

// isWorking says whether events tell how far the source is.
func (s *sourceObjects) isWorking() bool {
	return s.pod != nil && s.pod.Status.Phase == corev1.PodRunning || s.download != nil
}

// explainWait says why the source does not write yet, or "".
func (s *sourceObjects) explainWait() string {
	switch {
	case s.download != nil:
		return s.download.Status.Message
	case s.pod == nil && s.claim != nil && s.claim.Status.Phase != corev1.ClaimBound:
		return "PersistentVolumeClaim " + s.claim.Name + " is not bound yet"
	}
	return s.waitsFor
}

// awaitFirstCopy waits for a store to report the first copy, and gives up after a while.
func (in *input) awaitFirstCopy(p *plan, copied *longhornv1.BackingImageDiskFileStatus) reason {
	s := &p.status
	silence, since := in.explainSilence(s.V2FirstCopyDisk), in.now
	if copied != nil {
		silence = copied.Message
		if t, err := time.Parse(time.RFC3339, copied.LastStateTransitionTime); err == nil {
			since = t
		}
		if copied.State == longhornv1.StateUnknown {
			s.V2FirstCopyStatus = longhornv1.StateUnknown
		}
	}
	giveUp := since.Add(in.GiveUpUnknown)
	if left := giveUp.Sub(in.now); left > 0 {
		p.lookWithin(left)
		why := longhornv1.ReasonFirstCopyInProgress
		if s.V2FirstCopyStatus == longhornv1.StateUnknown {
			why = longhornv1.ReasonFirstCopyUnknown
		}
		return reason{why, fmt.Sprintf("%s: %s; another disk is chosen at %s", in.describeDisk(s.V2FirstCopyDisk),
			silence, giveUp.UTC().Format(time.RFC3339)) + afterFailure(s)}
	}
	s.V2FirstCopyStatus, s.FirstCopyWrittenTime = longhornv1.StatePending, nil
	delete(p.disks, s.V2FirstCopyDisk)
	in.removeSource(p)
	p.lookWithin(pollSource)
	return reason{longhornv1.ReasonFirstCopyUnknown, in.describeDisk(s.V2FirstCopyDisk) + ": " + silence +
		"; the first copy is made again"}
}

// failFirstCopy ends an attempt.
func (in *input) failFirstCopy(p *plan, why string) reason {
	return in.refuseFirstCopy(p, why, refusal{})
}

// refusal says what another attempt would fail at again.
type refusal struct {
	checksum string // that the data does not match, or ""
	full     bool   // the disk has too little space for the image
}

// refuseFirstCopy ends an attempt.
func (in *input) refuseFirstCopy(p *plan, why string, r refusal) reason {
	s := &p.status
	s.FirstCopyAttempts++
	s.V2FirstCopyStatus, s.FirstCopyMessage, s.FirstCopyWrittenTime = longhornv1.StateFailed, why, nil
	pause := firstCopyPause(s.FirstCopyAttempts)
	isUpload := in.image.Spec.SourceType == longhornv1.SourceUpload
	if isUpload {
		pause = firstCopyPause(1) // A longer pause spares nobody, and the user who uploads again waits.
	}
	if r.full && !isUpload {
		pause = fullPause(s.FirstCopyAttempts)
	}
	switch m := ptr.Deref(s.FirstCopyMismatch, longhornv1.FirstCopyMismatch{}); {
	case r.checksum != "":
		if m.Checksum != r.checksum {
			m = longhornv1.FirstCopyMismatch{Checksum: r.checksum}
		}
		m.Count++
		s.FirstCopyMismatch = &m
		pause = mismatchPause(in.image.Spec.SourceType, m.Count)
	case in.isCorrected(s):
		s.FirstCopyMismatch = nil
	}
	s.FirstCopyRetryTime = ptr.To(metav1.NewTime(in.now.Add(pause)).Rfc3339Copy())
	return in.startFirstCopy(p)
}

// isCorrected says whether spec.checksum has changed since attempts failed to match it.
func (in *input) isCorrected(s *longhornv1.BackingImageStatus) bool {
	return s.FirstCopyMismatch != nil && s.FirstCopyMismatch.Checksum != in.image.Spec.Checksum
}

// firstCopyPause returns the pause after so many failures: 1, 2, 4, and then 5 minutes.
func firstCopyPause(attempts int32) time.Duration {
	return min(time.Minute<<min(max(attempts-1, 0), 3), 5*time.Minute)
}

// fullPause returns the pause after so many failures of which the last one was that the disk is full: 1, 2, 4, and so
// on to 60 minutes. What fits is not known before, and is fetched again each time.
func fullPause(attempts int32) time.Duration {
	return min(time.Minute<<min(max(attempts-1, 0), 6), time.Hour)
}

// longestPause is the longest pause before another attempt.
const longestPause = 24 * time.Hour

// mismatchPause returns the pause after count attempts in a row that did not match one checksum. What a repository or a
// disk has does not change: it is tried once more, if possible on another disk, because the first one may be bad, and
// then once a day. What an address serves may change at any time, so the pauses grow more slowly.
func mismatchPause(source longhornv1.SourceType, count int32) time.Duration {
	switch {
	case count <= 1:
		return firstCopyPause(1)
	case source.IsLocal() || source == longhornv1.SourceRestore:
		return longestPause
	}
	doublings := min(max(count-4, 0), 16)
	return min(firstCopyPause(count)<<doublings, longestPause)
}

// findUploadedFile returns what a pod says of the uploaded file that it has written, or "".
func findUploadedFile(pod *corev1.Pod) string {
	for i := range pod.Status.ContainerStatuses {
		if t := pod.Status.ContainerStatuses[i].State.Terminated; t != nil {
			return handover.ParseResult(t.Message).File
		}
	}
	return ""
}

// isDiskFull says whether the source pod has failed because the disk is full.
func (s *sourceObjects) isDiskFull() bool {
	if s.pod == nil {
		return false
	}
	return slices.ContainsFunc(s.pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
		return c.State.Terminated != nil && handover.IsFull(c.State.Terminated.Message)
	})
}

// explainPodFailure says why a source pod failed: what the program says, or what became of it.
func explainPodFailure(pod *corev1.Pod) string {
	if pod.Status.Reason != "" { // it was evicted, or took too long
		return joinReason("the source pod failed: "+pod.Status.Reason, pod.Status.Message)
	}
	for i := range pod.Status.ContainerStatuses {
		t := pod.Status.ContainerStatuses[i].State.Terminated
		switch {
		case t == nil:
		case t.Message != "":
			return t.Message
		case t.ExitCode != 0:
			return fmt.Sprintf("the source pod ended with exit code %d: %s", t.ExitCode, t.Reason)
		}
	}
	return joinReason("the source pod failed", pod.Status.Message)
}

// joinReason appends what is known of a reason to a text, if anything is.
func joinReason(text, more string) string {
	if more == "" {
		return text
	}
	return text + ": " + more
}
