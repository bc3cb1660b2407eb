package virtualmachineexport

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
)

// memory is what the process remembers of exports beyond what the API server has. Losing it costs nothing but a delay or
// an early attempt.
type memory struct {
	mu      sync.Mutex
	exports map[types.NamespacedName]*remembered
}

type remembered struct {
	uid     types.UID
	pods    podHistory
	refusal string
}

func newMemory() *memory { return &memory{exports: map[types.NamespacedName]*remembered{}} }

// of returns what is remembered of an export. The caller holds mu.
func (m *memory) of(export *exportv1.VirtualMachineExport) *remembered {
	key := types.NamespacedName{Namespace: export.Namespace, Name: export.Name}
	if known := m.exports[key]; known == nil || known.uid != export.UID {
		m.exports[key] = &remembered{uid: export.UID}
	}
	return m.exports[key]
}

func (m *memory) recall(export *exportv1.VirtualMachineExport) (podHistory, string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := m.of(export)
	return known.pods, known.refusal
}

func (m *memory) podCreated(export *exportv1.VirtualMachineExport, at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := m.of(export)
	known.pods.created++
	known.pods.last = at
}

// podServes notes that a pod has come as far as to serve.
func (m *memory) podServes(export *exportv1.VirtualMachineExport) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.of(export).pods.created = 1
}

// refused notes what the API server said. Empty: it accepted everything.
func (m *memory) refused(export *exportv1.VirtualMachineExport, words string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.of(export).refusal = words
}

func (m *memory) forget(export types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.exports, export)
}
