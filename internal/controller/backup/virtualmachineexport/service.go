package virtualmachineexport

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/intstr"

	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/internal/layout"
)

// exportService returns the Service in front of the export's pod. It selects by a label that only Varve may set on pods.
func exportService(export *exportv1.VirtualMachineExport, source sourceHandler) *corev1.Service {
	clients := corev1.ServicePort{Name: "https", Protocol: corev1.ProtocolTCP, Port: podspec.ServicePort, TargetPort: intstr.FromInt32(podspec.HTTPSPort)}
	return &corev1.Service{
		ObjectMeta: childMeta(export, podspec.Service(export.Name)),
		Spec: corev1.ServiceSpec{
			Selector:                 map[string]string{layout.LabelExport: string(export.UID)},
			Ports:                    append([]corev1.ServicePort{clients}, source.ports()...),
			PublishNotReadyAddresses: source.reachableUnready(),
		},
	}
}

// serviceLeadsTo reports whether a Service leads where wanted does. What the API server has added does not matter.
func serviceLeadsTo(have, wanted *corev1.Service) bool {
	return equality.Semantic.DeepEqual(have.Spec.Selector, wanted.Spec.Selector) &&
		equality.Semantic.DeepEqual(have.Spec.Ports, wanted.Spec.Ports) &&
		have.Spec.PublishNotReadyAddresses == wanted.Spec.PublishNotReadyAddresses
}
