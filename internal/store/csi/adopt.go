package csi

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/diskset"
	"github.com/varvebackup/varve/internal/store/names"
)

// adoptHeads makes Volume and Replica of each volume on the node's disks that has a PersistentVolume and no Replica:
// Varve was uninstalled, which deletes them, and installed again. Without them the volume has neither snapshots nor
// clones, and cannot grow. hasReplica says which volumes have one.
func (d *Driver) adoptHeads(ctx context.Context, hasReplica map[string]bool) error {
	return d.forEachHead(ctx, func(on diskset.Disk, handle string) error {
		if names.IsOfImage(handle) || hasReplica[handle] {
			return nil
		}
		if err := d.adoptHead(ctx, on, handle); err != nil && !errors.Is(err, errBusy) {
			return fmt.Errorf("make Volume and Replica of volume %s: %w", handle, err)
		}
		return nil
	})
}

// adoptHead makes Volume and Replica of a volume, unless its PersistentVolume is missing, is being deleted, or says
// that the volume is elsewhere.
func (d *Driver) adoptHead(ctx context.Context, on diskset.Disk, handle string) error {
	end, err := d.begin(handle)
	if err != nil {
		return err
	}
	defer end()
	pv, err := d.options.Kubernetes.CoreV1().PersistentVolumes().Get(ctx, handle, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get PersistentVolume %s: %w", handle, err)
	}
	if !pv.DeletionTimestamp.IsZero() || !d.isAt(pv, handle, on.UUID) {
		return nil
	}
	head, err := findObject(ctx, on, names.Head(handle)) // a call may have deleted it meanwhile
	if errors.Is(err, errclass.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	v := volume{handle: handle, bytes: head.Bytes}
	if ref := pv.Spec.ClaimRef; ref != nil {
		v.claim = longhornv1.KubernetesStatus{PVName: handle, Namespace: ref.Namespace, PVCName: ref.Name}
	}
	if v.image, err = d.findLivingImage(ctx, on, head); err != nil {
		return err
	}
	_, err = d.writeObjects(ctx, v, on.UUID)
	if apierrors.IsAlreadyExists(err) { // it was made since the Replicas were listed
		return nil
	}
	if err != nil {
		return err
	}
	d.log.Info("made Volume and Replica of a volume that had a PersistentVolume and no Replica", "volume", handle, "disk",
		on.Name)
	d.changed.Add(handle)
	return nil
}

// isAt says whether a PersistentVolume is that of a volume on a disk of this node.
func (d *Driver) isAt(pv *corev1.PersistentVolume, handle string, on disk.UID) bool {
	source := pv.Spec.CSI
	return source != nil && source.Driver == names.Driver && source.VolumeHandle == handle &&
		source.VolumeAttributes[names.ContextDisk] == string(on) && d.isOfNode(pv)
}

// findLivingImage returns the image that a head is a clone of, or nothing if no BackingImage is that image any more:
// one that was made anew under the same name is another.
func (d *Driver) findLivingImage(ctx context.Context, on diskset.Disk, head disk.Object) (string, error) {
	name, uuid, err := findImage(ctx, on, head)
	if err != nil || name == "" {
		return "", err
	}
	image := &longhornv1.BackingImage{}
	if err := client.IgnoreNotFound(d.options.Client.Get(ctx, d.objectKey(name), image)); err != nil {
		return "", fmt.Errorf("get BackingImage %s: %w", name, err)
	}
	if image.Status.UUID != uuid {
		return "", nil
	}
	return name, nil
}
