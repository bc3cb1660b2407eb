package catalogue

import (
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/repositoryaccess"
)

// defaultPeriod is how often a bucket is looked at unless its location says otherwise. Velero's is a minute, in which it reads much more.
const defaultPeriod = 5 * time.Minute

// moreEvery is the pause between two looks while there is more than one look takes.
const moreEvery = 10 * time.Second

// attempt is how a location was looked at.
type attempt struct {
	// Fingerprint stands for what was looked at, and Spec is the location's.
	Fingerprint string
	Spec        velerov1.BackupStorageLocationSpec
	At          time.Time
	repositoryaccess.Catalogue
	// Failure is what went wrong, in words for users; "" if nothing did.
	Failure string
}

// input is all that decide looks at.
type input struct {
	Now      time.Time
	Location *velerov1.BackupStorageLocation
	// Own says that the location is in Varve's namespace, so that its phase is Varve's.
	Own bool
	// Last is how it was looked at last; nil if it was not. Running says that it is being looked at.
	Last    *attempt
	Running bool
}

// decide says whether to look at a location now, and when to decide again; 0: when something changes.
func decide(in *input) (look bool, after time.Duration) {
	l := in.Location
	switch {
	case !IsWanted(l), l.Status.Phase == velerov1.LocationUnavailable, in.Own && l.Status.Phase != velerov1.LocationAvailable, in.Running:
		return false, 0
	case in.Last == nil || !equality.Semantic.DeepEqual(in.Last.Spec, l.Spec):
		return true, 0
	}
	every := defaultPeriod
	if p := l.Spec.BackupSyncPeriod; p != nil {
		every = max(p.Duration, moreEvery)
	}
	if in.Last.More {
		every = moreEvery
	}
	if wait := every - in.Now.Sub(in.Last.At); wait > 0 {
		return false, wait
	}
	return true, 0
}
