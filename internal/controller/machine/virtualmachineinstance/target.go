package virtualmachineinstance

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/controller/machine/holdpod"
	"github.com/varvebackup/varve/internal/layout"
)

// Target says what the target pod of a migration is made of.
type Target struct {
	// Migration is the UID of the migration.
	Migration types.UID
	// Instance has the guest.
	Instance *kubevirtv1.VirtualMachineInstance
	// Claims are those of ClaimNames that exist.
	Claims map[string]*corev1.PersistentVolumeClaim
	Images Images
	// Configuration is the KubeVirt object.
	Configuration *kubevirtv1.KubeVirt
	// NodeSelector restricts the nodes further. Where the instance has a key too, the instance's value counts.
	NodeSelector map[string]string
}

// TargetPod returns the launcher pod that a migration moves an instance to. It is the instance's launcher pod on
// another node, with the migration's token.
func TargetPod(t Target) *corev1.Pod {
	pod := launcherPod(podInput{
		Instance: t.Instance, Claims: t.Claims, Images: t.Images, Configuration: t.Configuration, UseEmulation: useEmulation(t.Configuration),
	})
	pod.Name = layout.MigrationPod(t.Instance.Name, t.Instance.UID, t.Migration)
	pod.Labels[layout.LabelMigrationJob] = string(t.Migration)
	selector := maps.Clone(t.NodeSelector)
	if selector == nil {
		selector = map[string]string{}
	}
	maps.Copy(selector, t.Instance.Spec.NodeSelector)
	pod.Spec.NodeSelector = selector
	pod.Spec.Affinity = NodeAffinity(corev1.NodeSelectorOpNotIn, t.Instance.Status.NodeName)
	AddMigrationToken(&pod.Spec, t.Migration)
	return pod
}

// NodeAffinity returns the affinity of a pod that must run on a node, or must not.
func NodeAffinity(operator corev1.NodeSelectorOperator, node string) *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: operator, Values: []string{node}}},
		}},
	}}}
}

// migrationDirectory is where the first container of a pod has the token of its migration. The kubelet leaves out a
// volume that no container has.
const migrationDirectory = "/run/varve/migration"

// AddMigrationToken has the token of a migration brought to the pod's node, where the handler reads it from the
// kubelet's directory: the handler may not read Secrets. The Secret is there before the pod. It goes when the
// migration has ended, and the guest's pod must not miss it then.
func AddMigrationToken(pod *corev1.PodSpec, migration types.UID) {
	holdpod.AddToken(pod, holdpod.Token{
		Volume: layout.MigrationVolume, Path: migrationDirectory,
		Secret: layout.MigrationSecret(migration), Key: layout.MigrationToken,
	})
}
