package csi

import (
	"context"
	"errors"
	"fmt"
	"slices"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/diskset"
	"github.com/varvebackup/varve/internal/store/names"
)

// setContents notes what knows the VolumeSnapshotContents from now on.
func (d *Driver) setContents(known cache.Store) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.contents = known
}

// ownsSnapshot says whether a snapshot on a disk belongs to a content, made or being made.
func ownsSnapshot(c *snapshotv1.VolumeSnapshotContent, on, uid disk.UID) bool {
	if c.Spec.Driver != names.Driver {
		return false
	}
	handle := names.SnapshotHandle(on, uid)
	return contentHandle(c) == handle || ptr.Deref(c.Spec.Source.SnapshotHandle, "") == handle ||
		names.SnapshotUID(snapshotNamePrefix+string(c.Spec.VolumeSnapshotRef.UID)) == uid
}

// DescribeOrphans names the snapshots on a disk that no VolumeSnapshotContent names. It deletes those of them whose
// UIDs a user has written into the annotation longhornv1.AnnotationDeleteOrphans of the Node.
func (d *Driver) DescribeOrphans(ctx context.Context, on diskset.Disk, deletable map[string]bool) []string {
	d.mu.Lock()
	contents := d.contents
	d.mu.Unlock()
	if contents == nil { // the cluster has no such kind, or it is not known yet what there is
		return nil
	}
	objects, err := on.List(ctx)
	if err != nil {
		return []string{fmt.Sprintf("its snapshots are not known: %v", err)}
	}
	known := contents.List()
	var orphans, notes []string
	for _, o := range objects {
		_, uid, ok := names.IsSnapshot(o.Name)
		if !ok || o.Kind != disk.KindSnapshot || slices.ContainsFunc(known, func(c any) bool {
			content, ok := c.(*snapshotv1.VolumeSnapshotContent)
			return ok && ownsSnapshot(content, on.UUID, uid)
		}) {
			continue
		}
		if !deletable[string(uid)] {
			orphans = append(orphans, string(o.Name))
			continue
		}
		if err := d.deleteOrphanSnapshot(ctx, on, o); err != nil {
			notes = append(notes, fmt.Sprintf("%s is to be deleted, and cannot be yet: %v", o.Name, err))
		}
	}
	if len(orphans) > 0 {
		notes = append(notes, fmt.Sprintf("snapshots that no VolumeSnapshotContent names, so that they are not deleted "+
			"unless the annotation %s of the Node has their UIDs: %s", longhornv1.AnnotationDeleteOrphans,
			names.ListSome(orphans)))
	}
	return notes
}

// deleteOrphanSnapshot deletes a snapshot that no content names, as the API server says now.
func (d *Driver) deleteOrphanSnapshot(ctx context.Context, on diskset.Disk, o disk.Object) error {
	now, err := d.options.Snapshots.SnapshotV1().VolumeSnapshotContents().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list VolumeSnapshotContents: %w", err)
	}
	for i := range now.Items {
		if ownsSnapshot(&now.Items[i], on.UUID, o.UID) {
			return errclass.Errorf(errclass.Conflict, "VolumeSnapshotContent %s names it", now.Items[i].Name)
		}
	}
	if err := on.Delete(ctx, o.Name); err != nil && !errors.Is(err, errclass.NotFound) {
		return err
	}
	d.log.Info("deleted a snapshot that no VolumeSnapshotContent names, as the Node's annotation asks", "disk", on.Name,
		"object", o.Name)
	return nil
}
