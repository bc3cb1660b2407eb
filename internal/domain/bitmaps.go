package domain

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// bitmap is a dirty bitmap of a disk as QEMU reports it.
type bitmap struct {
	Name string `json:"name"`
	// Count is the number of dirty bytes.
	Count        uint64 `json:"count"`
	Recording    bool   `json:"recording"`
	Inconsistent bool   `json:"inconsistent"`
}

// defect returns why the bitmap cannot be used, or "".
func (b bitmap) defect() string {
	switch {
	case b.Inconsistent:
		return "the bitmap is inconsistent: QEMU did not end cleanly"
	case !b.Recording:
		return "the bitmap was not recording"
	}
	return ""
}

// bitmapsByVolume maps volume -> name -> bitmap, for the tracked disks.
type bitmapsByVolume map[string]map[string]bitmap

// queryBitmaps is the QMP command whose answer parseBitmaps reads.
const queryBitmaps = `{"execute":"query-named-block-nodes","arguments":{"flat":true}}`

// parseBitmaps reads the bitmaps of the tracked disks from QEMU's answer. Disk n's overlay is the node that libvirt
// names libvirt-<n>-format, where n is the index of the disk's source in the live document.
func parseBitmaps(answer string, disks diskMap) (bitmapsByVolume, error) {
	var reply struct {
		Return []struct {
			Node    string   `json:"node-name"`
			Bitmaps []bitmap `json:"dirty-bitmaps"`
		} `json:"return"`
	}
	if err := json.Unmarshal([]byte(answer), &reply); err != nil {
		return nil, fmt.Errorf("QEMU's block nodes: %w", err)
	}
	out := bitmapsByVolume{}
	for _, d := range disks {
		if !d.Tracked {
			continue
		}
		node := fmt.Sprintf("libvirt-%d-format", d.Node)
		for _, n := range reply.Return {
			if n.Node != node {
				continue
			}
			out[d.Volume] = map[string]bitmap{}
			for _, b := range n.Bitmaps {
				out[d.Volume][b.Name] = b
			}
		}
		if out[d.Volume] == nil {
			return nil, fmt.Errorf("QEMU has no block node %s of disk %s", node, describeDevice(d.Volume, d.Target))
		}
	}
	return out, nil
}

// splitByDefect returns the volumes on which a checkpoint's bitmap can be used, and what is wrong on the others.
func splitByDefect(cp Checkpoint, disks diskMap, bitmaps bitmapsByVolume) (valid []string, lost map[string]string) {
	lost = map[string]string{}
	for _, volume := range cp.Volumes {
		d, ok := disks.findVolume(volume)
		if !ok {
			lost[volume] = "the domain has no such disk"
			continue
		}
		if !d.Tracked {
			lost[volume] = "the disk is not tracked"
			continue
		}
		b, there := bitmaps[volume][cp.Name]
		if !there {
			lost[volume] = "the bitmap is not in the overlay"
			continue
		}
		if defect := b.defect(); defect != "" {
			lost[volume] = defect
			continue
		}
		valid = append(valid, volume)
	}
	return valid, lost
}

// strayBitmaps returns the checkpoint names of the bitmaps that belong to no known checkpoint.
func strayBitmaps(bitmaps bitmapsByVolume, known []Checkpoint) []string {
	stray := map[string]bool{}
	for _, held := range bitmaps {
		for name := range held {
			stray[checkpointName(name)] = true
		}
	}
	for _, cp := range known {
		delete(stray, cp.Name)
	}
	return slices.Sorted(maps.Keys(stray))
}

// dirtyBytes maps volume -> bytes that a checkpoint's bitmaps mark as dirty.
func dirtyBytes(bitmaps bitmapsByVolume, checkpoint string) (map[string]uint64, error) {
	out := map[string]uint64{}
	var errs []error
	for _, volume := range slices.Sorted(maps.Keys(bitmaps)) {
		b, there := bitmaps[volume][checkpoint]
		if !there {
			continue
		}
		if defect := b.defect(); defect != "" {
			errs = append(errs, fmt.Errorf("%w: disk %s: %s", ErrCheckpointLost, volume, defect))
			continue
		}
		out[volume] = b.Count
	}
	if len(out) == 0 && len(errs) == 0 {
		return nil, fmt.Errorf("%w: no disk has a bitmap of this name", ErrCheckpointLost)
	}
	return out, errors.Join(errs...)
}
