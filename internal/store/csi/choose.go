package csi

import (
	"fmt"
	"slices"
	"strings"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
)

// candidate is an open disk of the node.
type candidate struct {
	name      string // in spec.disks of the node
	uuid      disk.UID
	available int64 // bytes
	hasImage  bool  // has a ready copy of the volume's image
	missing   int64 // how many bytes the copy of the image still needs on the disk, as far as that is known
	// needsCopy: the disk is not one of those that the image is to be on already, so that its copy must be allowed there.
	needsCopy bool
}

// chooseDisk returns the disk for a new volume: one that has the image, and of those the one with most space. An error
// is of class Exhausted, and says of each disk why it is not chosen.
func chooseDisk(node *longhornv1.Node, disks []candidate, v volume) (disk.UID, error) {
	if !node.Spec.AllowScheduling {
		return "", errclass.Errorf(errclass.Exhausted,
			"spec.allowScheduling of Node %s is false: set it, or use another node", node.Name)
	}
	if missing := findMissing(v.nodeSelector, node.Spec.Tags); missing != "" {
		return "", errclass.Errorf(errclass.Exhausted, "spec.tags of Node %s lacks %s, which %s asks for", node.Name, missing,
			parameterNodeSelector)
	}
	var best *candidate
	var reasons []string
	for i, c := range disks {
		free, reason := checkDisk(node, c, v)
		if reason != "" {
			reasons = append(reasons, reason)
			continue
		}
		disks[i].available = free
		better := best == nil || (c.hasImage && !best.hasImage) || (c.hasImage == best.hasImage && free > best.available)
		if better {
			best = &disks[i]
		}
	}
	if best != nil {
		return best.uuid, nil
	}
	for name := range node.Spec.Disks {
		if !slices.ContainsFunc(disks, func(c candidate) bool { return c.name == name }) {
			reasons = append(reasons, fmt.Sprintf("disk %s is not open", name))
		}
	}
	if len(reasons) == 0 {
		reasons = []string{"it has none: add one to spec.disks"}
	}
	slices.Sort(reasons)
	return "", errclass.Errorf(errclass.Exhausted, "Node %s has no disk for the volume: %s", node.Name,
		strings.Join(reasons, "; "))
}

// checkDisk returns how many bytes of a disk volumes may still take, or why it is not used.
func checkDisk(node *longhornv1.Node, c candidate, v volume) (free int64, reason string) {
	spec, ok := node.Spec.Disks[c.name]
	missing := findMissing(v.diskSelector, spec.Tags)
	free = c.available - spec.StorageReserved
	forbidden := ""
	if c.needsCopy {
		forbidden = v.explainForbidden(node, c.name)
	}
	switch {
	case !ok:
		return 0, fmt.Sprintf("disk %s is not in spec.disks", c.name)
	case !spec.AllowScheduling:
		return 0, fmt.Sprintf("allowScheduling of disk %s is false", c.name)
	case spec.EvictionRequested:
		return 0, fmt.Sprintf("evictionRequested of disk %s is true", c.name)
	case missing != "":
		return 0, fmt.Sprintf("tags of disk %s lacks %s, which %s asks for", c.name, missing, parameterDiskSelector)
	case forbidden != "":
		return 0, forbidden
	case free <= 0:
		return 0, fmt.Sprintf("disk %s has %d bytes free, and storageReserved is %d", c.name, c.available,
			spec.StorageReserved)
	case free <= c.missing:
		return 0, fmt.Sprintf("disk %s lacks %d bytes of the image, has %d bytes free, and storageReserved is %d", c.name,
			c.missing, c.available, spec.StorageReserved)
	}
	return free, ""
}

// explainForbidden says which tag of a node or of its disk the volume's image asks for and does not find, or "".
func (v *volume) explainForbidden(node *longhornv1.Node, name string) string {
	if v.base == nil {
		return ""
	}
	if missing := findMissing(v.base.Spec.DiskSelector, node.Spec.Disks[name].Tags); missing != "" {
		return fmt.Sprintf("tags of disk %s lacks %s, which spec.diskSelector of BackingImage %s asks for", name, missing,
			v.base.Name)
	}
	if missing := findMissing(v.base.Spec.NodeSelector, node.Spec.Tags); missing != "" {
		return fmt.Sprintf("disk %s cannot have a copy of BackingImage %s, because spec.tags of Node %s lacks %s, which "+
			"spec.nodeSelector of the image asks for", name, v.base.Name, node.Name, missing)
	}
	return ""
}

// missingBytes returns how many bytes an image still takes on a disk that has no ready copy of it. That is 0 as long as
// nobody knows it.
func missingBytes(image *longhornv1.BackingImage, on disk.UID) int64 {
	percent := int64(0)
	if copied := image.Status.DiskFileStatusMap[string(on)]; copied != nil {
		percent = min(max(int64(copied.Progress), 0), 100)
	}
	return image.Status.RealSize / 100 * (100 - percent)
}

// findMissing returns a tag that is wanted and not there, or nothing.
func findMissing(wanted, tags []string) string {
	for _, tag := range wanted {
		if !slices.Contains(tags, tag) {
			return tag
		}
	}
	return ""
}
