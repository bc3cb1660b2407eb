package backingimage

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// sealBegins is how long a store that reports may take to say that all of the source is on its disk.
	sealBegins = time.Minute
	// pollSeal is the pause before another look at a heartbeat: no event reports a heartbeat alone.
	pollSeal = 15 * time.Second
)

// seals remember what the store of a first copy has reported since this process first saw that its source is written. A
// store that is being replaced says nothing new, and loses nothing. Heartbeats are only compared with each other:
// clocks of nodes differ. After a restart the controller starts to wait again. The zero value is ready for use, also by
// several goroutines.
type seals struct {
	mu    sync.Mutex
	known map[types.NamespacedName]seal
}

// seal is what a store has reported since its source was written.
type seal struct {
	uuid, disk string
	// heartbeat is the last one, by the clock of its node.
	heartbeat time.Time
	// begunAt is when the first new one came, and heardAt when the last one did. Zero: none has.
	begunAt, heardAt time.Time
}

// isOverdue notes the heartbeat of a store, and says whether reports have come for long enough that the store would
// have said by now that the source is on its disk. The report to judge is the one with this heartbeat.
func (s *seals) isOverdue(key types.NamespacedName, uuid, disk string, heartbeat, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known == nil {
		s.known = map[types.NamespacedName]seal{}
	}
	known, ok := s.known[key]
	if !ok || known.uuid != uuid || known.disk != disk {
		known = seal{uuid: uuid, disk: disk, heartbeat: heartbeat}
	}
	if !known.heartbeat.Equal(heartbeat) {
		known.heartbeat, known.heardAt = heartbeat, now
		if known.begunAt.IsZero() {
			known.begunAt = now
		}
	}
	s.known[key] = known
	return !known.begunAt.IsZero() && known.heardAt.Sub(known.begunAt) >= sealBegins
}

// forget forgets an image that is gone, or that has no source to be sealed.
func (s *seals) forget(key types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.known, key)
}
