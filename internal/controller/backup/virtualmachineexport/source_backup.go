package virtualmachineexport

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	"github.com/varvebackup/varve/internal/export/podspec"
)

// Offer is what an export needs to know of a backup in pull mode.
type Offer struct {
	// Volumes are the names of the volumes that the launcher offers. There is at least one.
	Volumes []string
	// TunnelSecret is the Secret in the backup's namespace whose key podspec.TokenKey has the tunnel's token.
	TunnelSecret string
	// Node is the guest's node. The export pod runs there if it can. Empty: anywhere.
	Node string
}

// OfferOf returns what a backup offers, or nil if it offers nothing yet. It is called with backups in pull mode alone
// that have not ended.
type OfferOf func(*backupv1.VirtualMachineBackup) *Offer

// offerFromStatus is the OfferOf of an installation. A backup offers its volumes in the phase Serving.
func offerFromStatus(b *backupv1.VirtualMachineBackup) *Offer {
	if b.Status.Phase != backupv1.BackupServing || len(b.Status.IncludedVolumes) == 0 || b.Status.PullTunnelSecret == "" {
		return nil
	}
	offer := &Offer{TunnelSecret: b.Status.PullTunnelSecret, Node: b.Status.NodeName}
	for i := range b.Status.IncludedVolumes {
		offer.Volumes = append(offer.Volumes, b.Status.IncludedVolumes[i].Name)
	}
	return offer
}

// backupSource serves what the launcher of a backup offers.
type backupSource struct {
	name string
	// backup is nil if it does not exist.
	backup *backupv1.VirtualMachineBackup
	// pull says that the backup is in pull mode.
	pull bool
	// offer is nil if the backup offers nothing yet.
	offer *Offer
	// tunnelSecretExists says that the Secret that offer names is there.
	tunnelSecretExists bool
}

func (s *backupSource) machine() string { return "" }

func (s *backupSource) obstacle() *obstacle {
	switch {
	case s.backup == nil:
		return waitFor(exportv1.ReasonSourceNotFound, "VirtualMachineBackup %s does not exist.", s.name)
	case !s.pull:
		return skip(exportv1.ReasonNotPull, "VirtualMachineBackup %s is not in pull mode: its data goes to its claim.", s.name)
	case s.backup.Status.Phase.Final():
		return terminate(exportv1.ReasonBackupEnded, "VirtualMachineBackup %s has ended: %s.", s.name, s.backup.Status.Phase)
	case s.offer == nil:
		return waitFor(exportv1.ReasonBackupNotReady, "VirtualMachineBackup %s has nothing to pull yet; its status says why.", s.name)
	case !s.tunnelSecretExists:
		return pollFor(exportv1.ReasonBackupNotReady, "Secret %s with the tunnel's token of VirtualMachineBackup %s does not exist yet.", s.offer.TunnelSecret, s.name)
	}
	return nil
}

func (s *backupSource) claimsReady() (*obstacle, bool) { return nil, false }

func (s *backupSource) ports() []corev1.ServicePort {
	return []corev1.ServicePort{{Name: "tunnel", Protocol: corev1.ProtocolTCP, Port: podspec.TunnelPort, TargetPort: intstr.FromInt32(podspec.TunnelPort)}}
}

// reachableUnready is true because the pod becomes ready through the launcher, which dials the Service.
func (s *backupSource) reachableUnready() bool { return true }

func (s *backupSource) describe(config *podspec.Config) {
	config.Backup = &podspec.Backup{Name: s.name, UID: s.backup.UID, Volumes: s.offer.Volumes}
}

func (s *backupSource) equip(pod *corev1.PodSpec) {
	mountSecret(pod, "tunnel", podspec.TunnelDirectory, s.offer.TunnelSecret, podspec.TokenKey)
	pod.Containers[0].Ports = append(pod.Containers[0].Ports, corev1.ContainerPort{Name: "tunnel", ContainerPort: podspec.TunnelPort})
	if s.offer.Node == "" {
		return
	}
	pod.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
			Weight: 100,
			Preference: corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{
				{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{s.offer.Node}},
			}},
		}},
	}}
}

func (s *backupSource) addLinks(link *exportv1.VirtualMachineExportLink, base string) {
	for _, volume := range s.offer.Volumes {
		link.Backups = append(link.Backups, endpointsOf(volume, base))
	}
}
