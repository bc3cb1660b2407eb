package csi

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	kubernetesfake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"github.com/varvebackup/varve/internal/store/diskset"
)

// ownHandler is an informer that lets a test see what the provisioner's handler gets.
type ownHandler struct {
	cache.SharedIndexInformer

	handlers int
}

func (o *ownHandler) AddEventHandlerWithResyncPeriod(
	cache.ResourceEventHandler, time.Duration,
) (cache.ResourceEventHandlerRegistration, error) {
	o.handlers++
	return nil, nil //nolint:nilnil // nobody asks for it
}

// A claim that waits for its image is provisioned as soon as the image is there, and no other claim is disturbed.
func TestWakeClaims_tellsTheProvisioner(t *testing.T) {
	t.Parallel()
	d := New(Options{Disks: &diskset.Set{}, Kubernetes: kubernetesfake.NewClientset()})
	d.WakeClaims() // there is no provisioner yet
	d.pending = map[string]pending{
		"pvc-1": {waiting: "the copy is in-progress"}, "pvc-2": {waiting: "the copy is pending"}, "pvc-made": {},
		"another-driver's-name": {waiting: "it has no claim"},
	}
	claims := informers.NewSharedInformerFactory(d.options.Kubernetes, 0).Core().V1().PersistentVolumeClaims().Informer()
	below := &ownHandler{SharedIndexInformer: claims}
	d.newProvisioner(below)
	if d.wakeClaim == nil || below.handlers != 1 {
		t.Fatalf("the provisioner cannot be woken, or does not listen (%d)", below.handlers)
	}
	d.WakeClaims() // the real one takes it

	var woken []string
	handler := cache.ResourceEventHandlerFuncs{UpdateFunc: func(_, o any) {
		if claim, ok := o.(*corev1.PersistentVolumeClaim); ok {
			woken = append(woken, string(claim.UID))
		}
	}}
	if _, err := d.makeWakeable(below).AddEventHandlerWithResyncPeriod(handler, 0); err != nil {
		t.Fatal(err)
	}
	d.WakeClaims()
	slices.Sort(woken)
	if !slices.Equal(woken, []string{"1", "2"}) {
		t.Errorf("woken: %q", woken)
	}
}
