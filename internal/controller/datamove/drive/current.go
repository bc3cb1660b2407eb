package drive

import (
	"context"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/internal/datamove/settings"
	"github.com/varvebackup/varve/internal/reconcile"
)

// CurrentSettings are those of the ConfigMap, as far as they are good. Bad ones change nothing: the last good ones stay, or the defaults
// after a start, and the ConfigMap gets an event.
type CurrentSettings struct {
	// Cached reads ConfigMaps of Namespace.
	Cached    client.Reader
	Namespace string
	Events    events.EventRecorder
	Log       logr.Logger

	good settings.LastGood

	mu   sync.Mutex
	read string // the version that good was last updated by
}

// Current returns the settings that hold now.
func (c *CurrentSettings) Current(ctx context.Context) settings.Settings {
	c.mu.Lock()
	defer c.mu.Unlock()
	m, err := reconcile.Find(ctx, c.Cached, types.NamespacedName{Namespace: c.Namespace, Name: settings.ConfigMap}, &corev1.ConfigMap{})
	if err != nil {
		return c.good.Current() // the cache fails only when the process ends
	}
	version := "none"
	if m != nil {
		version = string(m.UID) + "/" + m.ResourceVersion
	}
	if version == c.read {
		return c.good.Current()
	}
	c.read = version
	current, err := c.good.Update(m)
	if err != nil {
		c.Log.Error(err, "the settings stay as they were", "configMap", c.Namespace+"/"+settings.ConfigMap)
		c.Events.Eventf(m, nil, corev1.EventTypeWarning, "BadSettings", "Read", "The settings stay as they were: %v", err)
	}
	return current
}
