package lostvolume

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/store/names"
)

// finalizer is what external-provisioner's library puts on a PersistentVolume until its volume is deleted.
const finalizer = "external-provisioner.volume.kubernetes.io/finalizer"

// places are the nodes and disks that exist.
type places struct {
	nodes   map[string]bool // with a Node
	running map[string]bool // whose store reports
	// complete are the nodes whose stores have said of every disk in spec.disks which one it is.
	complete map[string]bool
	disks    map[string]bool // that a Node lists, by their UUIDs
}

func findPlaces(nodes []longhornv1.Node, managers []longhornv1.InstanceManager) places {
	p := places{
		nodes: map[string]bool{}, running: map[string]bool{}, complete: map[string]bool{}, disks: map[string]bool{},
	}
	for i := range managers {
		p.running[managers[i].Name] = managers[i].Status.CurrentState == longhornv1.ManagerRunning
	}
	for i := range nodes {
		n := &nodes[i]
		p.nodes[n.Name], p.complete[n.Name] = true, true
		for name := range n.Spec.Disks {
			if status := n.Status.DiskStatus[name]; status == nil || status.DiskUUID == "" {
				p.complete[n.Name] = false
			}
		}
		for _, status := range n.Status.DiskStatus {
			if status != nil && status.DiskUUID != "" {
				p.disks[status.DiskUUID] = true
			}
		}
	}
	return p
}

// place is where a volume is.
type place struct{ node, disk string }

// lost is a node or a disk that is gone. The zero value is none.
type lost struct{ kind, name string }

// findLost says which of the two is gone, if one is.
func (p *places) findLost(at place) lost {
	switch {
	case at.node == "" || p.disks[at.disk]:
		return lost{}
	case !p.nodes[at.node] && !p.running[at.node]:
		return lost{"node", at.node}
	case at.disk != "" && p.running[at.node] && p.complete[at.node]:
		return lost{"disk", at.disk}
	}
	return lost{}
}

// action is what to do with a PersistentVolume whose volume is lost.
type action string

const (
	keepVolume    action = ""
	deleteVolume  action = "delete"
	releaseVolume action = "release" // from the finalizer
)

// decideVolume says what to do with a PersistentVolume whose volume is lost. It stays as long as a claim may use it.
func decideVolume(pv *corev1.PersistentVolume) action {
	phase := pv.Status.Phase
	switch {
	case pv.DeletionTimestamp != nil && phase != corev1.VolumeBound && slices.Contains(pv.Finalizers, finalizer):
		return releaseVolume
	case pv.DeletionTimestamp == nil && (phase == corev1.VolumeReleased || phase == corev1.VolumeFailed) &&
		pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete:
		return deleteVolume
	}
	return keepVolume
}

// isOurs says whether a PersistentVolume is a volume of the store, and not one in which an image is made or read.
func isOurs(pv *corev1.PersistentVolume) bool {
	return pv.Spec.CSI != nil && pv.Spec.CSI.Driver == names.Driver && !names.IsOfImage(pv.Spec.CSI.VolumeHandle)
}

// placeOf returns where a PersistentVolume of the store is.
func placeOf(pv *corev1.PersistentVolume) place {
	at := place{disk: pv.Spec.CSI.VolumeAttributes[names.ContextDisk]}
	if pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil {
		return at
	}
	for _, term := range pv.Spec.NodeAffinity.Required.NodeSelectorTerms {
		for _, e := range term.MatchExpressions {
			if e.Key == names.TopologyNode && len(e.Values) == 1 {
				at.node = e.Values[0]
			}
		}
	}
	return at
}
