package backingimage

import (
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
)

// deletions remember what each store had reported last when this process first saw that an image is being deleted. A
// report that differs is from after the deletion, whatever the clocks of nodes and of the API server say. After a
// restart the controller waits for another report. The zero value is ready for use, also by several goroutines.
type deletions struct {
	mu    sync.Mutex
	known map[types.NamespacedName]deletion
}

// deletion is what the stores had reported last when an image was deleted.
type deletion struct {
	image   types.UID
	reports map[types.UID]metav1.MicroTime // by their InstanceManagers
}

// reportedSince returns the nodes whose stores have reported since this process first saw that an image is being
// deleted. The InstanceManagers must be what the API server has, and not a cache.
func (d *deletions) reportedSince(
	image *longhornv1.BackingImage, managers []longhornv1.InstanceManager,
) map[string]bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := client.ObjectKeyFromObject(image)
	known, ok := d.known[key]
	if !ok || known.image != image.UID {
		known = deletion{image: image.UID, reports: map[types.UID]metav1.MicroTime{}}
		for i := range managers {
			if t := managers[i].Status.HeartbeatTime; t != nil {
				known.reports[managers[i].UID] = *t
			}
		}
		if d.known == nil {
			d.known = map[types.NamespacedName]deletion{}
		}
		d.known[key] = known
	}
	since := map[string]bool{}
	for i := range managers {
		m := &managers[i]
		before, ok := known.reports[m.UID]
		since[m.Name] = m.Status.HeartbeatTime != nil && (!ok || !before.Equal(m.Status.HeartbeatTime))
	}
	return since
}

// forget forgets an image that is gone.
func (d *deletions) forget(key types.NamespacedName) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.known, key)
}
