package virtualmachineinstance

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/utils/ptr"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/layout"
)

// use is how an instance uses a claim that its launcher pod mounts writable.
type use struct {
	claim string
	// writes says that the guest or the launcher writes to the claim.
	writes bool
	// shared says that the guest may share the claim with other guests.
	shared bool
	// volumes are the instance's volumes on the claim.
	volumes []string
}

// writableUses returns how the instance uses each claim that its launcher pod mounts writable, sorted by the claims' names.
// It mounts a state claim only if that exists.
func writableUses(instance *kubevirtv1.VirtualMachineInstance) []use {
	var all []use
	add := func(u use) {
		i := slices.IndexFunc(all, func(other use) bool { return other.claim == u.claim })
		if i < 0 {
			all = append(all, u)
			return
		}
		if u.writes {
			all[i].shared = u.shared && (all[i].shared || !all[i].writes)
			all[i].writes = true
		}
		all[i].volumes = append(all[i].volumes, u.volumes...)
	}
	for _, v := range instance.Spec.Volumes {
		if v.PersistentVolumeClaim == nil || v.PersistentVolumeClaim.ReadOnly {
			continue
		}
		u := use{claim: v.PersistentVolumeClaim.ClaimName, volumes: []string{v.Name}}
		u.writes, u.shared = guestAccess(instance, v.Name)
		add(u)
	}
	if Tracked(instance) {
		for _, name := range layout.StatePVCs(instance.Name) {
			add(use{claim: name, writes: true, volumes: []string{"the overlays"}})
		}
	}
	slices.SortFunc(all, func(a, b use) int { return strings.Compare(a.claim, b.claim) })
	return all
}

// guestAccess returns what the guest may do with a volume. A volume without a disk counts as one that the guest writes.
func guestAccess(instance *kubevirtv1.VirtualMachineInstance, volume string) (writes, shared bool) {
	for _, d := range instance.Spec.Domain.Devices.Disks {
		if d.Name == volume {
			return d.Disk == nil || !d.Disk.ReadOnly, ptr.Deref(d.Shareable, false)
		}
	}
	return true, false
}

// conflictsWithin says why the instance's own uses conflict with each other. It returns nil if they do not.
func conflictsWithin(all []use, instance *kubevirtv1.VirtualMachineInstance) *obstacle {
	for _, u := range all {
		var writers []string
		for _, v := range u.volumes {
			if writes, _ := guestAccess(instance, v); writes {
				writers = append(writers, v)
			}
		}
		if len(writers) > 1 && !u.shared {
			return &obstacle{ReasonClaimInUse, fmt.Sprintf(
				"PersistentVolumeClaim %s is used by %s, which would overwrite each other; give each a claim of its own, or make the disks shareable.",
				u.claim, strings.Join(writers, " and "))}
		}
	}
	return nil
}
