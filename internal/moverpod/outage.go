package moverpod

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/repository/storage"
)

// newPatience returns how the run waits for a storage that does not answer: in this process, and on the object it
// says so. What a mover has read and stored is not lost, and an outage is no death.
func (r *run) newPatience() *storage.Patience {
	var since time.Time // of the outage that is known
	return &storage.Patience{
		Limit: r.Job.WaitForStorage(), FirstPause: r.limits.storagePause, LongestPause: r.limits.storageLongestPause,
		Notify: func(o *storage.Outage) {
			switch {
			case o == nil:
				r.Log.Info("nothing waits for the storage any more", "since", since)
				r.progress.setNote("")
				since = time.Time{}
				return
			case !o.Since.Equal(since):
				r.Log.Warn("the storage does not answer; waiting for it", "since", o.Since, "limit",
					r.Job.WaitForStorage(), "reason", o.Reason)
				since = o.Since
			}
			r.progress.setNote(r.describeOutage(o).Encode())
		},
	}
}

// maxReasonBytes bounds what a note says of a request that got no answer.
const maxReasonBytes = 256

// describeOutage returns what the object says while the storage does not answer.
func (r *run) describeOutage(o *storage.Outage) datamove.Note {
	reason := shortenTo(r.Secrets.Redact(o.Reason), maxReasonBytes)
	return datamove.Note{
		Pod: r.PodUID, Since: metav1.NewTime(o.Since),
		Waiting: "waiting for the storage since " + o.Since.UTC().Format("15:04:05 MST") + ": " + reason,
	}
}
