package virtualmachinesnapshot

import (
	"encoding/json"
	"fmt"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	vmsnapshotv1 "github.com/varvebackup/varve/api/snapshot/v1beta1"
	"github.com/varvebackup/varve/internal/layout"
)

// Finalizer keeps a snapshot until its guest is thawed and what it has made is gone, and ContentFinalizer a content until
// its snapshot is gone. Both have KubeVirt's names.
const (
	Finalizer        = "snapshot.kubevirt.io/vmsnapshot-protection"
	ContentFinalizer = "snapshot.kubevirt.io/vmsnapshotcontent-protection"
)

// LabelSnapshot is on everything that is made for a snapshot; its value is the snapshot's UID.
const LabelSnapshot = layout.Prefix + "machine-snapshot-uid"

// Labels by which KubeVirt finds the VolumeSnapshots of a machine.
const (
	labelSourceName      = "restore.kubevirt.io/source-vm-name"
	labelSourceNamespace = "restore.kubevirt.io/source-vm-namespace"
)

// annotationClasses is on a content: the VolumeSnapshotClass of each volume, as a JSON object.
const annotationClasses = layout.Prefix + "volume-snapshot-classes"

func contentName(s *vmsnapshotv1.VirtualMachineSnapshot) string {
	return "vmsnapshot-content-" + string(s.UID)
}

func volumeSnapshotPrefix(uid types.UID) string { return "vmsnapshot-" + string(uid) + "-volume-" }

// newContent returns the content of a plan.
func newContent(in *input, p *volumePlan) (*vmsnapshotv1.VirtualMachineSnapshotContent, error) {
	metadata, _ := in.machine.DeepCopy().Object["metadata"].(map[string]any)
	delete(metadata, "managedFields")
	machine, err := json.Marshal(map[string]any{"metadata": metadata, "spec": in.machine.Object["spec"]})
	if err != nil {
		return nil, fmt.Errorf("encode virtual machine %s: %w", in.machine.GetName(), err)
	}
	classes, err := json.Marshal(p.classes)
	if err != nil {
		return nil, fmt.Errorf("encode the classes of the snapshot: %w", err)
	}
	return &vmsnapshotv1.VirtualMachineSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: in.snapshot.Namespace, Name: contentName(in.snapshot), Finalizers: []string{ContentFinalizer},
			Annotations: map[string]string{annotationClasses: string(classes)},
		},
		Spec: vmsnapshotv1.VirtualMachineSnapshotContentSpec{
			VirtualMachineSnapshotName: ptr.To(in.snapshot.Name),
			Source:                     vmsnapshotv1.SourceSpec{VirtualMachine: &runtime.RawExtension{Raw: machine}},
			VolumeBackups:              p.included,
		},
	}, nil
}

// newVolumeBackup returns a volume of the content.
func newVolumeBackup(snapshot types.UID, volume string, c *corev1.PersistentVolumeClaim) vmsnapshotv1.VolumeBackup {
	metadata := c.ObjectMeta.DeepCopy()
	metadata.ManagedFields = nil
	return vmsnapshotv1.VolumeBackup{
		VolumeName: volume, VolumeSnapshotName: ptr.To(volumeSnapshotPrefix(snapshot) + volume),
		PersistentVolumeClaim: vmsnapshotv1.PersistentVolumeClaim{ObjectMeta: *metadata, Spec: *c.Spec.DeepCopy()},
	}
}

// newVolumeSnapshots returns the VolumeSnapshots of a content that have not been made.
func newVolumeSnapshots(in *input) ([]*snapshotv1.VolumeSnapshot, error) {
	content := in.content
	classes := map[string]string{}
	if err := json.Unmarshal([]byte(content.Annotations[annotationClasses]), &classes); err != nil {
		return nil, fmt.Errorf("annotation %s of VirtualMachineSnapshotContent %s: %w", annotationClasses,
			content.Name, err)
	}
	var missing []*snapshotv1.VolumeSnapshot
	for _, v := range content.Spec.VolumeBackups {
		if in.made[*v.VolumeSnapshotName] != nil {
			continue
		}
		missing = append(missing, &snapshotv1.VolumeSnapshot{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: content.Namespace, Name: *v.VolumeSnapshotName,
				Labels: map[string]string{
					labelSourceName: labelValue(in.snapshot.Spec.Source.Name), labelSourceNamespace: content.Namespace,
				},
				OwnerReferences: []metav1.OwnerReference{{
					APIVersion: vmsnapshotv1.GroupVersion.String(), Kind: "VirtualMachineSnapshotContent",
					Name: content.Name, UID: content.UID, Controller: ptr.To(true),
				}},
			},
			Spec: snapshotv1.VolumeSnapshotSpec{
				Source: snapshotv1.VolumeSnapshotSource{
					PersistentVolumeClaimName: ptr.To(v.PersistentVolumeClaim.Name),
				},
				VolumeSnapshotClassName: ptr.To(classes[v.VolumeName]),
			},
		})
	}
	return missing, nil
}

// labelValue cuts a name to what a label's value may have.
func labelValue(name string) string {
	const longest = 63
	return name[:min(len(name), longest)]
}
