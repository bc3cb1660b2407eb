package instance

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// mountKey is a utility volume in a launcher pod.
type mountKey struct {
	pod  types.UID
	name string
}

// busyMounts remembers since when mounts have been busy. Its zero value is ready to use. It is safe for concurrent use.
type busyMounts struct {
	mu    sync.Mutex
	first map[mountKey]time.Time
}

// busySince returns when the mount was first seen busy, which is now if it was not seen busy before.
func (b *busyMounts) busySince(k mountKey, now time.Time) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.first == nil {
		b.first = map[mountKey]time.Time{}
	}
	if t, ok := b.first[k]; ok {
		return t
	}
	b.first[k] = now
	return now
}

func (b *busyMounts) clearBusy(k mountKey) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.first, k)
}
