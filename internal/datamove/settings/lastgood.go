package settings

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/internal/reconcile"
)

// LastGood is the settings of a ConfigMap, as far as they are good: bad ones change nothing, and are the defaults after a start. The zero value has
// those. It is safe for concurrent use.
type LastGood struct {
	mu   sync.Mutex
	good *Settings
}

// Current returns the settings that hold.
func (l *LastGood) Current() Settings {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.good == nil {
		return Default()
	}
	return *l.good
}

// Update takes the settings of m, which may be nil, and returns those that hold then, and why those of m do not.
func (l *LastGood) Update(m *corev1.ConfigMap) (Settings, error) {
	read, err := OfConfigMap(m)
	if err != nil {
		return l.Current(), err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.good = &read
	return read, nil
}

// Read returns the settings that hold by the ConfigMap in Varve's namespace. The driver tells of bad ones; an error
// is one of reading.
func (l *LastGood) Read(ctx context.Context, from client.Reader, namespace string) (Settings, error) {
	m, err := reconcile.Find(ctx, from, types.NamespacedName{Namespace: namespace, Name: ConfigMap}, &corev1.ConfigMap{})
	if err != nil {
		return Settings{}, err
	}
	current, _ := l.Update(m) // the driver tells of what is bad
	return current, nil
}
