package lostvolume

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
)

// What may come back is never lost.
func TestFindLost(t *testing.T) {
	t.Parallel()
	none, node, disk := lost{}, lost{"node", "a"}, lost{"disk", "disk-a"}
	newNode := func(name string, disks map[string]string) longhornv1.Node {
		n := longhornv1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		n.Spec.Disks, n.Status.DiskStatus = map[string]longhornv1.DiskSpec{}, map[string]*longhornv1.DiskStatus{}
		for disk, uuid := range disks {
			n.Spec.Disks[disk] = longhornv1.DiskSpec{}
			n.Status.DiskStatus[disk] = &longhornv1.DiskStatus{DiskUUID: uuid}
		}
		return n
	}
	for name, c := range map[string]struct {
		nodes []longhornv1.Node
		state string // of the store of node a
		want  lost
	}{
		"there":      {[]longhornv1.Node{newNode("a", map[string]string{"default": "disk-a"})}, longhornv1.ManagerRunning, none},
		"down":       {[]longhornv1.Node{newNode("a", map[string]string{"default": "disk-a"})}, longhornv1.ManagerUnknown, none},
		"gone":       {nil, longhornv1.ManagerUnknown, node},
		"never seen": {nil, "", node},
		"its Node is deleted, and its store makes another one": {nil, longhornv1.ManagerRunning, none},
		"the disk is in another node": {
			[]longhornv1.Node{newNode("b", map[string]string{"moved": "disk-a"})}, longhornv1.ManagerUnknown, none,
		},
		"the disk is removed":               {[]longhornv1.Node{newNode("a", nil)}, longhornv1.ManagerRunning, disk},
		"the disk is removed, node is down": {[]longhornv1.Node{newNode("a", nil)}, longhornv1.ManagerUnknown, none},
		"another disk": {
			[]longhornv1.Node{newNode("a", map[string]string{"default": "disk-b"})}, longhornv1.ManagerRunning, disk,
		},
		"a disk of which nobody knows which one it is": {
			[]longhornv1.Node{newNode("a", map[string]string{"default": "", "more": "disk-b"})}, longhornv1.ManagerRunning, none,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			manager := longhornv1.InstanceManager{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
			manager.Status.CurrentState = c.state
			known := findPlaces(c.nodes, []longhornv1.InstanceManager{manager})
			if got := known.findLost(place{"a", "disk-a"}); got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
			if got := known.findLost(place{"", "disk-a"}); got != none {
				t.Errorf("a volume of which nobody knows where it is: %+v", got)
			}
		})
	}
}

// A PersistentVolume that a claim may use stays, whatever became of its disk.
func TestDecideVolume(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		phase    corev1.PersistentVolumePhase
		deleting bool
		edit     func(*corev1.PersistentVolume)
		want     action
	}{
		"bound":                        {corev1.VolumeBound, false, nil, keepVolume},
		"bound, and to be deleted":     {corev1.VolumeBound, true, nil, keepVolume},
		"available":                    {corev1.VolumeAvailable, false, nil, keepVolume},
		"available, and to be deleted": {corev1.VolumeAvailable, true, nil, releaseVolume},
		"released":                     {corev1.VolumeReleased, false, nil, deleteVolume},
		"released, and to be deleted":  {corev1.VolumeReleased, true, nil, releaseVolume},
		"could not be deleted":         {corev1.VolumeFailed, false, nil, deleteVolume},
		"retained": {corev1.VolumeReleased, false, func(pv *corev1.PersistentVolume) {
			pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		}, keepVolume},
		"kept by somebody else": {corev1.VolumeReleased, true, func(pv *corev1.PersistentVolume) {
			pv.Finalizers = []string{"example.com/mine"}
		}, keepVolume},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Finalizers: []string{finalizer}}}
			pv.Spec.PersistentVolumeReclaimPolicy, pv.Status.Phase = corev1.PersistentVolumeReclaimDelete, c.phase
			if c.deleting {
				pv.DeletionTimestamp = ptr.To(metav1.Now())
			}
			if c.edit != nil {
				c.edit(pv)
			}
			if got := decideVolume(pv); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// The volumes in which images are made and from which they are read belong to the controllers of images.
func TestIsOurs(t *testing.T) {
	t.Parallel()
	for handle, want := range map[string]bool{"pvc-1": true, "source-u1": false, "image-b1": false} {
		pv := &corev1.PersistentVolume{}
		pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "store.varvebackup.io", VolumeHandle: handle}
		if got := isOurs(pv); got != want {
			t.Errorf("%s: %t", handle, got)
		}
	}
}
