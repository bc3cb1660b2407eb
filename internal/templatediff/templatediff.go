// Package templatediff compares the template of a virtual machine with the instance that runs: what only the machine's
// next instance will have. It is pure, and modifies none of its arguments.
package templatediff

import (
	"cmp"
	"encoding/json"
	"maps"
	"reflect"
	"slices"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
)

// defaultGrace is the grace period in seconds of an instance whose spec names none.
const defaultGrace = 30

// Fields returns the paths of the fields in which the template's spec differs from the running instance's, sorted, as
// in "spec.domain.memory.guest" and "spec.volumes[data]". Utility volumes, which the controllers attach, and values
// that are spelled out on one side and are the default on the other one are no difference.
func Fields(template, running *kubevirtv1.VirtualMachineInstanceSpec) []string {
	var paths []string
	compareValues("spec", fieldsOf(template), fieldsOf(running), &paths)
	slices.Sort(paths)
	return paths
}

// NewDisks returns the names of the disks that the template has and the running instance does not have, in the
// template's order: a disk with a new name, or one whose volume is another claim.
func NewDisks(template, running *kubevirtv1.VirtualMachineInstanceSpec) []string {
	var names []string
	for _, d := range template.Domain.Devices.Disks {
		attached := slices.ContainsFunc(running.Domain.Devices.Disks, func(r kubevirtv1.Disk) bool { return r.Name == d.Name })
		if !attached || claimOf(template, d.Name) != claimOf(running, d.Name) {
			names = append(names, d.Name)
		}
	}
	return names
}

// claimOf returns the claim of a volume, or "".
func claimOf(spec *kubevirtv1.VirtualMachineInstanceSpec, volume string) string {
	for _, v := range spec.Volumes {
		if v.Name == volume && v.PersistentVolumeClaim != nil {
			return v.PersistentVolumeClaim.ClaimName
		}
	}
	return ""
}

// fieldsOf returns what a spec makes of a guest, as decoded JSON.
func fieldsOf(spec *kubevirtv1.VirtualMachineInstanceSpec) map[string]any {
	encoded, err := json.Marshal(withDefaults(spec))
	if err != nil {
		panic("encode an instance's spec: " + err.Error()) // no field of it can fail
	}
	var fields map[string]any
	if err := json.Unmarshal(encoded, &fields); err != nil {
		panic("decode an instance's spec: " + err.Error())
	}
	return fields
}

// withDefaults returns a copy of spec in which the defaults are spelled out, without utility volumes.
func withDefaults(spec *kubevirtv1.VirtualMachineInstanceSpec) *kubevirtv1.VirtualMachineInstanceSpec {
	s := spec.DeepCopy()
	s.UtilityVolumes = nil
	if s.TerminationGracePeriodSeconds == nil {
		grace := int64(defaultGrace)
		s.TerminationGracePeriodSeconds = &grace
	}
	d := &s.Domain
	if d.CPU == nil {
		d.CPU = &kubevirtv1.CPU{}
	}
	d.CPU.Cores, d.CPU.Sockets, d.CPU.Threads = max(d.CPU.Cores, 1), max(d.CPU.Sockets, 1), max(d.CPU.Threads, 1)
	if d.Machine == nil || d.Machine.Type == "" {
		d.Machine = &kubevirtv1.Machine{Type: "q35"}
	}
	for i := range d.Devices.Disks {
		disk := &d.Devices.Disks[i]
		if disk.Disk != nil {
			disk.Disk.Bus = cmp.Or(disk.Disk.Bus, "virtio")
		}
		if disk.Shareable != nil && !*disk.Shareable {
			disk.Shareable = nil
		}
	}
	for i := range d.Devices.Interfaces {
		d.Devices.Interfaces[i].Model = cmp.Or(d.Devices.Interfaces[i].Model, "virtio")
	}
	return s
}

// compareValues appends the paths in which a and b differ. Objects are compared field by field, and lists of named
// objects name by name.
func compareValues(path string, a, b any, paths *[]string) {
	if reflect.DeepEqual(a, b) {
		return
	}
	prefix, suffix := path+".", ""
	fieldsA, okA := a.(map[string]any)
	fieldsB, okB := b.(map[string]any)
	if !okA || !okB {
		fieldsA, okA = byName(a)
		fieldsB, okB = byName(b)
		prefix, suffix = path+"[", "]"
	}
	if !okA || !okB {
		*paths = append(*paths, path)
		return
	}
	before := len(*paths)
	names := maps.Clone(fieldsA)
	maps.Copy(names, fieldsB)
	for name := range names {
		va, hasA := fieldsA[name]
		vb, hasB := fieldsB[name]
		if hasA && hasB {
			compareValues(prefix+name+suffix, va, vb, paths)
		} else {
			*paths = append(*paths, prefix+name+suffix)
		}
	}
	if len(*paths) == before {
		*paths = append(*paths, path) // The same elements in another order: the guest finds its devices by it.
	}
}

// byName returns the elements of a list by their field "name".
func byName(list any) (elements map[string]any, ok bool) {
	all, ok := list.([]any)
	if !ok {
		return nil, false
	}
	elements = map[string]any{}
	for _, e := range all {
		fields, _ := e.(map[string]any)
		name, isText := fields["name"].(string)
		if !isText {
			return nil, false
		}
		elements[name] = e
	}
	return elements, true
}
