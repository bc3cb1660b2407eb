// Package v1beta1 has the fields of templates that KubeVirt reads when it exports one.
package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"kubevirt.io/virt-template-api/core"
)

// ConditionReady is the type of the condition of a template that can be used.
const ConditionReady = "Ready"

// GroupVersion is that of the kind.
var GroupVersion = schema.GroupVersion{Group: core.GroupName, Version: "v1beta1"}

// VirtualMachineTemplate is a machine with parameters.
type VirtualMachineTemplate struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   VirtualMachineTemplateSpec   `json:"spec"`
	Status VirtualMachineTemplateStatus `json:"status,omitempty"`
}

// VirtualMachineTemplateSpec is the machine, and its parameters.
type VirtualMachineTemplateSpec struct {
	VirtualMachine *runtime.RawExtension `json:"virtualMachine"`
	Parameters     []Parameter           `json:"parameters,omitempty"`
}

// VirtualMachineTemplateStatus says whether the template can be used.
type VirtualMachineTemplateStatus struct {
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Parameter is replaced by its value wherever the machine names it.
type Parameter struct {
	Name  string `json:"name"`
	Value string `json:"value,omitempty"`
}

// DeepCopy returns a copy that shares nothing with t.
func (t *VirtualMachineTemplate) DeepCopy() *VirtualMachineTemplate {
	c := *t
	t.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	c.Spec.VirtualMachine = t.Spec.VirtualMachine.DeepCopy()
	c.Spec.Parameters = append([]Parameter(nil), t.Spec.Parameters...)
	c.Status.Conditions = nil
	for i := range t.Status.Conditions {
		c.Status.Conditions = append(c.Status.Conditions, *t.Status.Conditions[i].DeepCopy())
	}
	return &c
}

// DeepCopyObject implements runtime.Object.
func (t *VirtualMachineTemplate) DeepCopyObject() runtime.Object { return t.DeepCopy() }
