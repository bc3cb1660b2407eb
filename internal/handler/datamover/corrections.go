package datamover

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// corrections remembers when this process last corrected what an object that nobody has taken says it waits for. It is safe for concurrent use.
type corrections struct {
	mu   sync.Mutex
	when map[types.UID]time.Time
}

// lastTime returns when an object was corrected last, or the zero time. What is longer ago than correctInterval may be forgotten.
func (c *corrections) lastTime(uid types.UID) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.when[uid]
}

func (c *corrections) noteTime(uid types.UID, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.when == nil {
		c.when = map[types.UID]time.Time{}
	}
	for other, when := range c.when {
		if now.Sub(when) > correctInterval {
			delete(c.when, other)
		}
	}
	c.when[uid] = now
}

// isCorrection says that one message replaces another one.
func isCorrection(before, after string) bool { return before != "" && before != after }
