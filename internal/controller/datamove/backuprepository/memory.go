package backuprepository

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/varvebackup/varve/internal/repositoryaccess"
)

// attempt is how an errand ended.
type attempt struct {
	// UID is the BackupRepository's, and Fingerprint stands for what the errand was given.
	UID         types.UID
	Fingerprint string
	Task        repositoryaccess.Task
	// At is its end.
	At time.Time
	// Seen is what it has seen.
	repositoryaccess.Seen
	// Failures is how many attempts have failed in a row.
	Failures int
}

// memory keeps the last attempt for each BackupRepository. After a restart everything is looked at again.
type memory struct {
	mu   sync.Mutex
	last map[types.NamespacedName]attempt
}

func newMemory() *memory { return &memory{last: map[types.NamespacedName]attempt{}} }

// remember keeps an attempt, and counts failures.
func (m *memory) remember(key types.NamespacedName, a attempt) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a.Failure != "" {
		a.Failures = 1
		if before := m.last[key]; before.UID == a.UID {
			a.Failures += before.Failures
		}
	}
	m.last[key] = a
}

func (m *memory) recall(key types.NamespacedName, uid types.UID) *attempt {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a, ok := m.last[key]; ok && a.UID == uid {
		return &a
	}
	return nil
}

func (m *memory) forget(key types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.last, key)
}
