package harvesterrestore

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/definition"
	"github.com/varvebackup/varve/internal/layout"
)

// Names that Harvester gives.
const (
	// annotationRestore is on the machine and the claims that a restore makes: the restore's name.
	annotationRestore = "restore.harvesterhci.io/name"
	// annotationRestoreUID is on the machine: `<name>-<UID>` of the restore that made it.
	annotationRestoreUID = "restore.harvesterhci.io/last-restore-uid"
)

// Finalizer keeps a restore until what it has made and nobody needs is deleted.
const Finalizer = layout.Prefix + "machine-restore"

// LabelRestore is on everything that is made for a restore but the machine; its value is the restore's UID.
const LabelRestore = layout.Prefix + "machine-restore-uid"

// annotationSelectedNode is the scheduler's, on a claim: the node that its volume is made for. The data mover heeds it.
const annotationSelectedNode = "volume.kubernetes.io/selected-node"

// maxName is how long the name of a claim may be.
const maxName = 253

// input is what a plan follows from.
type input struct {
	restore *harvesterv1.VirtualMachineRestore
	// backup is nil if there is none. machine is the one that has the target's name, nil if that is free.
	backup  *harvesterv1.VirtualMachineBackup
	machine *unstructured.Unstructured
	// instance is that of the machine, nil if there is none, claims those of its volumes, and others the restores in the
	// namespace that go on. They are read for a machine that is replaced.
	instance *unstructured.Unstructured
	claims   []harvesterv1.ReplacedClaim
	others   []harvesterv1.VirtualMachineRestore
	// nodes are the cluster's, and waiting its StorageClasses by their names: true for one whose volumes are made for the
	// node of the first pod.
	nodes   []corev1.Node
	waiting map[string]bool
	// provisioners are those of the StorageClasses by their names.
	provisioners map[string]string
	// snapshots are the VolumeSnapshots that a backup of type snapshot names and that exist, by their names, and missing is
	// what its machine refers to and the namespace does not have, or "".
	snapshots map[string]*snapshotv1.VolumeSnapshot
	missing   string
}

// makePlan writes into the status what the restore is going to make, or says why it cannot.
func makePlan(in *input, s *harvesterv1.VirtualMachineRestoreStatus) (refused string) {
	spec, b := &in.restore.Spec, in.backup
	name := spec.VirtualMachineBackupNamespace + "/" + spec.VirtualMachineBackupName
	if refused := in.checkBackup(name); refused != "" {
		return refused
	}
	if spec.NewVM && in.machine != nil {
		return fmt.Sprintf("VM %s is already exists: choose another name in spec.target.name, or set spec.newVM to false to replace the machine", spec.Target.Name)
	}
	if !spec.NewVM {
		if refused := in.checkTarget(); refused != "" {
			return refused
		}
	}
	node, err := chooseNode(b, in.nodes)
	if err != nil {
		return fmt.Sprintf("the machine in VMBackup %s: %v", name, err)
	}
	choices, err := parseChoices(in.restore)
	if err != nil {
		return err.Error()
	}
	if err := choices.checkNames(b, in.waiting); err != nil {
		return fmt.Sprintf("VMBackup %s: %v", name, err)
	}
	all, refused := in.planVolumes(choices, node)
	if refused != "" {
		return refused
	}
	s.VolumeRestores, s.BackupUID, s.Location = all, b.UID, b.Status.Location.DeepCopy()
	s.ExcludedVolumes = choices.addExcluded(othersVolumes(in.restore, b))
	secrets, configMaps, err := definition.References(b.Status.Source.Spec)
	if err != nil {
		return fmt.Sprintf("the machine in VMBackup %s: %v", name, err)
	}
	if len(secrets)+len(configMaps) > 0 && !isSnapshot(b) {
		s.DefinitionDownload = definitionName(in.restore)
	}
	if !spec.NewVM {
		s.Replaced = &harvesterv1.ReplacedMachine{UID: in.machine.GetUID(), Claims: in.claims}
	}
	return ""
}

// checkBackup says why the backup cannot be restored, or "".
func (in *input) checkBackup(name string) (refused string) {
	switch b := in.backup; {
	case b == nil:
		return fmt.Sprintf("VMBackup %s does not exist: name one that does in spec.virtualMachineBackupName", name)
	case b.DeletionTimestamp != nil:
		return fmt.Sprintf("VMBackup %s is being deleted", name)
	case !b.IsReady() || b.Status.Source == nil || b.Status.Location == nil && !isSnapshot(b):
		return fmt.Sprintf("VMBackup %s is not ready", name)
	case isSnapshot(b):
		return in.checkSnapshot(name)
	}
	return ""
}

// planVolumes returns what is made for the disks, or says why it cannot be.
func (in *input) planVolumes(choices *choices, node string) (all []harvesterv1.VolumeRestore, refused string) {
	b := in.backup
	name := b.Namespace + "/" + b.Name
	for i := range b.Status.VolumeBackups {
		v := &b.Status.VolumeBackups[i]
		if slices.Contains(choices.without, v.VolumeName) {
			continue
		}
		restore, err := in.planVolume(choices, node, v)
		if err != nil {
			return nil, fmt.Sprintf("volume %s of VMBackup %s: %v", v.VolumeName, name, err)
		}
		all = append(all, restore)
	}
	return all, ""
}

// planVolume returns what is made for a disk.
func (in *input) planVolume(choices *choices, node string, v *harvesterv1.VolumeBackup) (restore harvesterv1.VolumeRestore, err error) {
	restore = newVolumeRestore(in.restore, in.backup, v)
	if isSnapshot(in.backup) {
		return in.planFromSnapshot(choices, restore, v)
	}
	id, err := datamove.ParseSnapshotID(v.SnapshotID)
	switch {
	case err != nil:
		return restore, err
	case id.Namespace != in.backup.Namespace:
		return restore, fmt.Errorf("it is in the repository of namespace %s, and not in that of its own", id.Namespace)
	}
	if err := choices.applyTo(&restore, in.waiting); err != nil {
		return restore, err
	}
	if claim := &restore.PersistentVolumeClaim; node != "" && in.waiting[ptr.Deref(claim.Spec.StorageClassName, "")] {
		claim.ObjectMeta.Annotations[annotationSelectedNode] = node
	}
	return restore, nil
}

// othersVolumes returns the volumes of the machine that are not in the backup and whose claims are not for the restored
// machine: it would write to the disks of the machine that has them. The machine itself, under its name, keeps them,
// and so does another one those that machines share or only read.
func othersVolumes(r *harvesterv1.VirtualMachineRestore, b *harvesterv1.VirtualMachineBackup) []harvesterv1.ExcludedVolume {
	was := b.Status.Source.ObjectMeta
	sameNamespace := r.Namespace == was.Namespace
	itself := sameNamespace && r.Spec.Target.Name == was.Name
	var others []harvesterv1.ExcludedVolume
	for _, v := range b.Status.ExcludedVolumes {
		shared := v.Reason == harvesterv1.Shareable || v.Reason == harvesterv1.ReadOnly
		if v.Reason == harvesterv1.NoClaim || itself || sameNamespace && shared {
			continue
		}
		v.Message = "it is not in the backup, and its claim is for another machine"
		others = append(others, v)
	}
	return others
}

// chooseNode returns the node whose volumes the restored disks are, where volumes are made for a node: all of them must
// be reached from one. It is the node that the machine ran on, or another one that its nodeSelector allows; "": none
// can take pods.
func chooseNode(b *harvesterv1.VirtualMachineBackup, nodes []corev1.Node) (string, error) {
	selector, err := definition.NodeSelector(b.Status.Source)
	if err != nil {
		return "", err
	}
	chosen := ""
	for i := range nodes {
		n := &nodes[i]
		switch {
		case !takesPods(n) || !labels.SelectorFromSet(selector).Matches(labels.Set(n.Labels)):
		case n.Name == b.Status.NodeName:
			return n.Name, nil
		case chosen == "" || n.Name < chosen:
			chosen = n.Name
		}
	}
	return chosen, nil
}

// takesPods says whether a node is ready, not cordoned, and not for special pods alone.
func takesPods(n *corev1.Node) bool {
	kept := slices.ContainsFunc(n.Spec.Taints,
		func(t corev1.Taint) bool { return t.Effect != corev1.TaintEffectPreferNoSchedule })
	return !kept && !n.Spec.Unschedulable && n.DeletionTimestamp == nil &&
		slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
}

// newVolumeRestore returns what is made for a disk.
func newVolumeRestore(r *harvesterv1.VirtualMachineRestore, b *harvesterv1.VirtualMachineBackup, v *harvesterv1.VolumeBackup) harvesterv1.VolumeRestore {
	claim := newClaim(r, v)
	return harvesterv1.VolumeRestore{
		VolumeName: v.VolumeName, VolumeBackupName: ptr.Deref(v.Name, ""), VolumeSize: v.VolumeSize,
		SnapshotID: v.SnapshotID,
		PersistentVolumeClaim: harvesterv1.PersistentVolumeClaimSourceSpec{
			ObjectMeta: harvesterv1.ObjectMetadata{
				Namespace: r.Namespace, Name: claimName(b.Name, r, v.VolumeName),
				Labels: claim.Labels, Annotations: claim.Annotations,
			},
			Spec: claim.Spec,
		},
		DataDownload: downloadName(r, v.VolumeName),
	}
}

// claimName is Harvester's, cut where it would be too long: the UID tells it from every other one.
func claimName(backup string, r *harvesterv1.VirtualMachineRestore, volume string) string {
	end := "-" + string(r.UID) + "-" + volume
	start := "restore-" + backup
	return strings.TrimRight(start[:min(len(start), maxName-len(end))], "-.") + end
}

func downloadName(r *harvesterv1.VirtualMachineRestore, volume string) string {
	const readable = 40
	sum := sha256.Sum256([]byte(r.UID))
	name := strings.TrimRight(r.Name[:min(len(r.Name), readable)], "-.")
	return name + "-" + hex.EncodeToString(sum[:5]) + "-" + volume
}

// newClaim returns the claim of a disk, without its name. Only the volume that the DataDownload makes can be bound to
// it.
func newClaim(r *harvesterv1.VirtualMachineRestore, v *harvesterv1.VolumeBackup) *corev1.PersistentVolumeClaim {
	from := &v.PersistentVolumeClaim
	request := from.Spec.Resources.Requests.Storage().DeepCopy()
	if request.Value() < v.VolumeSize {
		request = *resource.NewQuantity(v.VolumeSize, resource.BinarySI)
	}
	sum := sha256.Sum256([]byte(string(r.UID) + "/" + v.VolumeName))
	kept := maps.Clone(from.ObjectMeta.Labels)
	maps.DeleteFunc(kept, func(key, _ string) bool { return isClusters(key) })
	annotations := maps.Clone(from.ObjectMeta.Annotations)
	maps.DeleteFunc(annotations, func(key, _ string) bool { return isClusters(key) })
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[annotationRestore] = r.Name
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Labels: kept, Annotations: annotations},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: from.Spec.AccessModes, StorageClassName: from.Spec.StorageClassName,
			VolumeMode:                from.Spec.VolumeMode,
			VolumeAttributesClassName: from.Spec.VolumeAttributesClassName,
			Resources:                 corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: request}},
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{
				datamove.LabelRestoredVolume: datamove.RestoredVolume(r.Namespace,
					v.PersistentVolumeClaim.ObjectMeta.Name, hex.EncodeToString(sum[:5])),
			}},
		},
	}
}

// isClusters says whether a label or an annotation says something of the claim's old volume, or of who made it, and is
// not the user's.
func isClusters(key string) bool {
	for _, prefix := range []string{
		"pv.kubernetes.io", "volume.kubernetes.io", "volume.beta.kubernetes.io", "cdi.kubevirt.io",
		"kubectl.kubernetes.io", layout.Prefix, "velero.io", annotationRestore,
	} {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}
	return false
}
