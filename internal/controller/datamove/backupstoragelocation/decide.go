package backupstoragelocation

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/location"
	"github.com/varvebackup/varve/internal/repositoryaccess"
)

const (
	// defaultFrequency is how often a location is tried unless it says otherwise, as with Velero.
	defaultFrequency = time.Minute
	// directoryFrequency is that of what takes a pod: a claim, an NFS export, or a bucket by a role.
	directoryFrequency = 10 * time.Minute
	// moreEvery is the pause between two tries while there are more repositories than one pod can tell of.
	moreEvery = 10 * time.Second
	// writeEvery is how often it is tried by writing.
	writeEvery = time.Hour
)

// attempt is how a location was tried.
type attempt struct {
	// Fingerprint stands for what was tried, and Check is the location's request to be tried, if it had one.
	Fingerprint, Check string
	At                 time.Time
	// Wrote says that something was written, and WroteAt when that succeeded last.
	Wrote   bool
	WroteAt time.Time
	// Catalogue is which repositories a pod found; nil if it did not look.
	Catalogue *repositoryaccess.Catalogue
	// Failure is what went wrong, in words for users; "" if nothing did.
	Failure string
}

// input is all that decide looks at.
type input struct {
	Now      time.Time
	Location *velerov1.BackupStorageLocation
	// Refusal is why the location cannot be used; otherwise Place says where it is, and Fingerprint stands for it.
	Refusal     string
	Place       location.Place
	Fingerprint string
	// Storage is what pods mount of a place that is a directory.
	Storage datamove.Storage
	// Last is how it was tried last; nil if it was not, or if something else was. Running says that it is being tried.
	Last    *attempt
	Running bool
}

// decision is what is to be done about one location.
type decision struct {
	// Status is what the location's status becomes.
	Status velerov1.BackupStorageLocationStatus
	// Answered: the refusal in Status is the answer to a request to try the location.
	Answered bool
	// Try tries the location, with Write by writing too.
	Try, Write bool
	// After is when to look again; 0: when something changes.
	After time.Duration
}

// decide says what is to be done.
func decide(in *input) decision {
	d := decision{Status: in.Location.Status}
	every := defaultFrequency
	if in.Place.NeedsPod() {
		every = directoryFrequency
	}
	if f := in.Location.Spec.ValidationFrequency; f != nil {
		every = f.Duration
	}
	asked := in.Location.Annotations[location.AnnotationCheck]
	unanswered := asked != "" && (in.Last == nil || in.Last.Check != asked)
	if in.Refusal != "" {
		// Secrets may change, and nothing tells of that.
		refuse(&d.Status, in.Refusal, in.Now, unanswered)
		d.Answered = unanswered
		d.After = defaultFrequency
		return d
	}
	if in.Last != nil {
		phase, message := velerov1.LocationAvailable, in.Storage.Remark()
		if in.Last.Failure != "" {
			phase, message = velerov1.LocationUnavailable, in.Last.Failure
		}
		d.Status.Phase, d.Status.Message = phase, message
		d.Status.LastValidationTime = &metav1.Time{Time: in.Last.At.Truncate(time.Second)}
	}
	if in.Running {
		return d
	}
	if unanswered {
		d.Try, d.Write = true, true
		return d
	}
	if every <= 0 && d.Status.LastValidationTime != nil {
		return d // it was tried once
	}
	if in.Last == nil {
		d.Try, d.Write = true, true
		return d
	}
	if c := in.Last.Catalogue; c != nil && c.More {
		every = min(every, moreEvery)
	}
	if wait := every - in.Now.Sub(in.Last.At); wait > 0 {
		d.After = wait
		return d
	}
	d.Try, d.Write = true, in.Last.Failure != "" || in.Now.Sub(in.Last.WroteAt) >= writeEvery
	return d
}

// refuse shows a refusal. One that is shown already keeps its time, unless somebody has asked: who asks waits for a later time.
func refuse(s *velerov1.BackupStorageLocationStatus, message string, now time.Time, asked bool) {
	at := metav1.NewTime(now.Truncate(time.Second))
	if last := s.LastValidationTime; last != nil {
		if s.Phase == velerov1.LocationUnavailable && s.Message == message && !asked {
			return
		}
		if !last.Before(&at) {
			at = metav1.NewTime(last.Add(time.Second))
		}
	}
	s.Phase, s.Message, s.LastValidationTime = velerov1.LocationUnavailable, message, &at
}
