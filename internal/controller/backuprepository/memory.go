package backuprepository

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// task is what an errand does.
type task string

const (
	// lookAround looks whether a password may be made.
	lookAround task = "look"
	// prepareIt makes the repository, or opens it with its password.
	prepareIt task = "prepare"
	// checkIt looks whether the repository is still there.
	checkIt task = "check"
)

// attempt is how an errand ended.
type attempt struct {
	// UID is the BackupRepository's, and Fingerprint stands for what the errand was given.
	UID         types.UID
	Fingerprint string
	Task        task
	// At is its end.
	At time.Time
	// Failure is what went wrong, in words for users; "" if nothing did.
	Failure string
	// UniqueID is the repository's, after prepareIt and checkIt.
	UniqueID string
	// Exists says whether the repository is there, and Found names a directory of the location with a repository; "" if there is none.
	Exists bool
	Found  string
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
