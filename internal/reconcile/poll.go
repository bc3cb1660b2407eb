package reconcile

import "time"

// PollInterval returns the pause before something is looked at again whose changes nobody tells of, after it was waited
// for that long: from 2 seconds to a minute. Somebody who is about to put it right is served at once, and what nobody
// cares for costs one look a minute.
func PollInterval(waited time.Duration) time.Duration {
	return min(max(waited/8, 2*time.Second), time.Minute)
}
