package definition

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
)

// MachineKind is that of virtual machines.
var MachineKind = schema.GroupVersionKind{Group: "kubevirt.io", Version: "v1", Kind: harvesterv1.SourceKind}

// lastApplied is the annotation in which kubectl has a copy of the object.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// ownPrefix begins the annotations in which Varve remembers something of a machine's life. They mean nothing for
// another one.
const ownPrefix = "varvebackup.io/"

// NewMachine returns an empty object of kind VirtualMachine, to read one into.
func NewMachine() *unstructured.Unstructured {
	vm := &unstructured.Unstructured{}
	vm.SetGroupVersionKind(MachineKind)
	return vm
}

// Source returns what a backup keeps of a machine. addresses are the hardware addresses of the instance that runs, by
// the names of its networks: a machine that names none has other ones under another name.
func Source(vm *unstructured.Unstructured, addresses map[string]string) (*harvesterv1.VirtualMachineSourceSpec, error) {
	spec, _, err := unstructured.NestedMap(vm.Object, "spec")
	if err != nil {
		return nil, fmt.Errorf("spec of virtual machine %s/%s: %w", vm.GetNamespace(), vm.GetName(), err)
	}
	err = editInterfaces(spec, func(i map[string]any) {
		name, _ := i["name"].(string)
		if address := addresses[name]; address != "" {
			i["macAddress"] = address
		}
	})
	if err != nil {
		return nil, fmt.Errorf("virtual machine %s/%s: %w", vm.GetNamespace(), vm.GetName(), err)
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("encode spec of virtual machine %s/%s: %w", vm.GetNamespace(), vm.GetName(), err)
	}
	annotations := vm.GetAnnotations()
	delete(annotations, lastApplied)
	return &harvesterv1.VirtualMachineSourceSpec{
		ObjectMeta: harvesterv1.ObjectMetadata{
			Name: vm.GetName(), Namespace: vm.GetNamespace(),
			Labels: vm.GetLabels(), Annotations: annotations,
		},
		Spec: runtime.RawExtension{Raw: text},
	}, nil
}

// Target says what is to be made of a machine.
type Target struct {
	// Namespace and Name are those of the restored machine.
	Namespace, Name string
	// Claims are the restored claims by the names of the volumes.
	Claims map[string]string
	// Without are the names of volumes that the restored machine does not have.
	Without []string
	// KeepAddresses keeps the hardware addresses.
	KeepAddresses bool
	// Secrets and ConfigMaps are other names for what the machine refers to, by its names in the backup. Those that are
	// not there stay as they are.
	Secrets, ConfigMaps map[string]string
	// Annotations are added to the machine's own.
	Annotations map[string]string
}

// Restored returns the machine that a restore makes, halted, and the run strategy that it had.
func Restored(source *harvesterv1.VirtualMachineSourceSpec, to Target) (vm *unstructured.Unstructured, strategy string, err error) {
	var spec map[string]any
	if err := json.Unmarshal(source.Spec.Raw, &spec); err != nil {
		return nil, "", fmt.Errorf("decode the spec of the machine in the backup: %w", err)
	}
	if strategy, err = strategyOf(spec); err != nil {
		return nil, "", err
	}
	delete(spec, "running")
	spec["runStrategy"] = "Halted"
	if err := editVolumes(spec, to.Claims); err != nil {
		return nil, "", err
	}
	for _, field := range []string{"instancetype", "preference"} {
		// It names a copy that KubeVirt made for the machine, and deleted with it. The restored machine gets one of its own.
		unstructured.RemoveNestedField(spec, field, "revisionName")
	}
	for _, path := range [][]string{{"template", "spec", "volumes"}, {"template", "spec", "domain", "devices", "disks"}} {
		if err := removeNamed(spec, to.Without, path); err != nil {
			return nil, "", err
		}
	}
	names := map[referenceKind]map[string]string{toSecret: to.Secrets, toConfigMap: to.ConfigMaps}
	visitReferences(spec, func(kind referenceKind, name string) string { return cmp.Or(names[kind][name], name) })
	if !to.KeepAddresses {
		if err := editInterfaces(spec, func(i map[string]any) { delete(i, "macAddress") }); err != nil {
			return nil, "", err
		}
	}
	vm = NewMachine()
	vm.SetNamespace(to.Namespace)
	vm.SetName(to.Name)
	vm.SetLabels(maps.Clone(source.ObjectMeta.Labels))
	annotations := map[string]string{}
	for key, value := range source.ObjectMeta.Annotations {
		if !strings.HasPrefix(key, ownPrefix) {
			annotations[key] = value
		}
	}
	maps.Copy(annotations, to.Annotations)
	vm.SetAnnotations(annotations)
	vm.Object["spec"] = spec
	return vm, strategy, nil
}

// NodeSelector returns the labels of nodes that the machine can run on.
func NodeSelector(source *harvesterv1.VirtualMachineSourceSpec) (map[string]string, error) {
	var spec map[string]any
	if err := json.Unmarshal(source.Spec.Raw, &spec); err != nil {
		return nil, fmt.Errorf("decode the spec of the machine: %w", err)
	}
	selector, _, err := unstructured.NestedStringMap(spec, "template", "spec", "nodeSelector")
	return selector, err
}

// AboutToRun says why a machine without a guest is about to have one, or "".
func AboutToRun(vm *kubevirtv1.VirtualMachine) (why string) {
	starts := func(r kubevirtv1.StateChangeRequest) bool { return r.Action == kubevirtv1.StartRequest }
	switch {
	case vm.Spec.Strategy() == kubevirtv1.RunStrategyAlways:
		return fmt.Sprintf("its runStrategy is %s, and it has no instance that runs", kubevirtv1.RunStrategyAlways)
	case slices.ContainsFunc(vm.Status.StateChangeRequests, starts):
		return "somebody has started it"
	}
	return ""
}

// RunStrategy returns the run strategy of a machine, whichever of its two fields says it.
func RunStrategy(vm *unstructured.Unstructured) (string, error) {
	spec, _, err := unstructured.NestedMap(vm.Object, "spec")
	if err != nil {
		return "", fmt.Errorf("spec of virtual machine %s/%s: %w", vm.GetNamespace(), vm.GetName(), err)
	}
	return strategyOf(spec)
}

// SetRunStrategy gives a machine a run strategy.
func SetRunStrategy(vm *unstructured.Unstructured, strategy string) error {
	unstructured.RemoveNestedField(vm.Object, "spec", "running")
	return unstructured.SetNestedField(vm.Object, strategy, "spec", "runStrategy")
}

// strategyOf returns the run strategy of a machine's spec.
func strategyOf(spec map[string]any) (string, error) {
	strategy, has, err := unstructured.NestedString(spec, "runStrategy")
	if err != nil || has {
		return strategy, err
	}
	running, _, err := unstructured.NestedBool(spec, "running")
	if running {
		return "Always", err
	}
	return "Halted", err
}

// NameClaims turns the DataVolumes of the volumes at a path of a machine or an instance into the claims that they are on,
// which have their names.
func NameClaims(o *unstructured.Unstructured, path ...string) error {
	volumes, has, err := unstructured.NestedSlice(o.Object, path...)
	if err != nil || !has {
		return err
	}
	for i := range volumes {
		fields, _ := volumes[i].(map[string]any)
		if claim := dataVolumeOf(fields); claim != "" {
			volumes[i] = map[string]any{
				"name": fields["name"], "persistentVolumeClaim": map[string]any{"claimName": claim},
			}
		}
	}
	return unstructured.SetNestedSlice(o.Object, volumes, path...)
}

// dataVolumeOf returns the DataVolume of a volume, or "".
func dataVolumeOf(volume map[string]any) string {
	name, _, _ := unstructured.NestedString(volume, "dataVolume", "name")
	return name
}

// editVolumes puts the restored claims under the machine's volumes. The templates of DataVolumes go whose claims these
// replace: they would be filled with what they had at first.
func editVolumes(spec map[string]any, claims map[string]string) error {
	volumes, _, err := unstructured.NestedSlice(spec, "template", "spec", "volumes")
	if err != nil {
		return err
	}
	left := maps.Clone(claims)
	var replaced []string
	for i := range volumes {
		volume, ok := volumes[i].(map[string]any)
		name, _ := volume["name"].(string)
		claim, restored := claims[name]
		if !ok || !restored {
			continue
		}
		if old := dataVolumeOf(volume); old != "" {
			replaced = append(replaced, old)
		}
		volumes[i] = map[string]any{"name": name, "persistentVolumeClaim": map[string]any{"claimName": claim}}
		delete(left, name)
	}
	if len(left) > 0 {
		return fmt.Errorf("the machine in the backup has no volume %s",
			strings.Join(slices.Sorted(maps.Keys(left)), ", "))
	}
	if len(volumes) == 0 {
		return nil
	}
	if err := unstructured.SetNestedSlice(spec, volumes, "template", "spec", "volumes"); err != nil {
		return err
	}
	return removeTemplates(spec, replaced)
}

// removeTemplates removes the templates of these DataVolumes.
func removeTemplates(spec map[string]any, names []string) error {
	templates, has, err := unstructured.NestedSlice(spec, "dataVolumeTemplates")
	if err != nil || !has {
		return err
	}
	templates = slices.DeleteFunc(templates, func(t any) bool {
		fields, _ := t.(map[string]any)
		name, _, _ := unstructured.NestedString(fields, "metadata", "name")
		return slices.Contains(names, name)
	})
	if len(templates) == 0 {
		unstructured.RemoveNestedField(spec, "dataVolumeTemplates")
		return nil
	}
	return unstructured.SetNestedSlice(spec, templates, "dataVolumeTemplates")
}

// removeNamed removes the items with these names from a list.
func removeNamed(spec map[string]any, names, path []string) error {
	items, has, err := unstructured.NestedSlice(spec, path...)
	if err != nil || !has || len(names) == 0 {
		return err
	}
	items = slices.DeleteFunc(items, func(item any) bool {
		fields, _ := item.(map[string]any)
		name, _ := fields["name"].(string)
		return slices.Contains(names, name)
	})
	return unstructured.SetNestedSlice(spec, items, path...)
}

// editInterfaces calls edit for each network interface of a machine's template.
func editInterfaces(spec map[string]any, edit func(map[string]any)) error {
	path := []string{"template", "spec", "domain", "devices", "interfaces"}
	interfaces, has, err := unstructured.NestedSlice(spec, path...)
	if err != nil || !has {
		return err
	}
	for _, i := range interfaces {
		if fields, ok := i.(map[string]any); ok {
			edit(fields)
		}
	}
	return unstructured.SetNestedSlice(spec, interfaces, path...)
}
