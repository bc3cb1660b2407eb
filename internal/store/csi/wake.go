package csi

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// wakingInformer is an informer of claims. It passes on each handler that is added to it.
type wakingInformer struct {
	cache.SharedIndexInformer

	listens func(cache.ResourceEventHandler)
}

// AddEventHandlerWithResyncPeriod implements [cache.SharedInformer].
func (i wakingInformer) AddEventHandlerWithResyncPeriod(
	h cache.ResourceEventHandler, resync time.Duration,
) (cache.ResourceEventHandlerRegistration, error) {
	i.listens(h)
	return i.SharedIndexInformer.AddEventHandlerWithResyncPeriod(h, resync)
}

// makeWakeable returns the informer of claims for the provisioner. The provisioner hides its queue, so WakeClaims tells
// it of a claim as the informer does.
func (d *Driver) makeWakeable(claims cache.SharedIndexInformer) cache.SharedIndexInformer {
	return wakingInformer{claims, func(h cache.ResourceEventHandler) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.wakeClaim = func(uid types.UID) {
			claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{UID: uid}}
			h.OnUpdate(claim, claim)
		}
	}}
}

// WakeClaims has the claims provisioned that wait for something, without waiting for their next turn. Call it when the
// copy of an image has got ready on a disk of the node.
func (d *Driver) WakeClaims() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for handle, p := range d.pending {
		if uid, ok := strings.CutPrefix(handle, "pvc-"); ok && p.waiting != "" && d.wakeClaim != nil {
			d.wakeClaim(types.UID(uid))
		}
	}
}
