package csi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/kubernetes-csi/external-snapshotter/client/v8/informers/externalversions"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/diskset"
	"github.com/varvebackup/varve/internal/store/names"
)

// What external-snapshotter's sidecar and its snapshot-controller agreed on (pkg/utils/util.go).
const (
	contentFinalizer  = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"
	annotationDeleted = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted"
	annotationGroup   = "groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle"
)

// snapshotNamePrefix and the UID of a VolumeSnapshot are the name of its snapshot in CSI.
const snapshotNamePrefix = "snapshot-"

// The pace at which the snapshotter looks at a content again. After failures it tries again for ever. It also looks now
// and then, because a node or a disk may have come.
const (
	snapshotRetryFirst = time.Second
	snapshotRetryMost  = 30 * time.Second
	snapshotResync     = time.Minute
)

// lostPatience is how long a disk that no Node has any more may come back before the deletion of its snapshots ends.
const lostPatience = 10 * time.Minute

// snapshotThreads is how many contents are worked on at once, and snapshotTimeout how long one call may take.
const (
	snapshotThreads = 4
	snapshotTimeout = 5 * time.Minute
)

// contentAction is what is to be done for a VolumeSnapshotContent.
type contentAction int

const (
	contentDone    contentAction = iota
	contentCreate                // make the snapshot of its volume
	contentFind                  // look for the snapshot that it names
	contentDelete                // delete the snapshot, and let the object go
	contentRelease               // keep the snapshot, and let the object go
)

// decideContent says what is to be done for a content of this driver, as external-snapshotter's sidecar does.
func decideContent(c *snapshotv1.VolumeSnapshotContent) contentAction {
	source := c.Spec.Source
	_, groupMember := c.Annotations[annotationGroup]
	_, deleted := c.Annotations[annotationDeleted]
	if c.DeletionTimestamp != nil {
		unbound := source.SnapshotHandle != nil && c.Spec.VolumeSnapshotRef.UID == ""
		switch {
		case !slices.Contains(c.Finalizers, contentFinalizer), !deleted && !unbound:
			return contentDone // snapshot-controller says when
		case c.Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentDelete:
			return contentDelete
		}
		return contentRelease
	}
	switch {
	case groupMember, c.Status != nil && ptr.Deref(c.Status.ReadyToUse, false):
		return contentDone
	case source.SnapshotHandle != nil:
		return contentFind
	case source.VolumeHandle != nil && c.Spec.VolumeSnapshotRef.UID != "":
		return contentCreate
	}
	return contentDone
}

// snapshotter makes and deletes the snapshots of one node for VolumeSnapshotContents: it is what external-snapshotter's
// sidecar is for other drivers. Every node runs one, and each content belongs to one of them: snapshot-controller need
// not know of that (its distributed snapshotting), and there is no leader.
type snapshotter struct{ *controllerServer }

// runSnapshotter waits until the cluster has the kinds of snapshots, and then works on contents until ctx ends.
func (d *Driver) runSnapshotter(ctx context.Context) error {
	if d.options.Snapshots == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	if err := d.waitForSnapshotKinds(ctx); err != nil {
		return err
	}
	s := &snapshotter{&controllerServer{Driver: d}}
	queue := newQueue[string](snapshotRetryFirst, snapshotRetryMost)
	factory := externalversions.NewSharedInformerFactory(s.options.Snapshots, snapshotResync)
	informer := factory.Snapshot().V1().VolumeSnapshotContents().Informer()
	add := func(o any) {
		if c, ok := o.(*snapshotv1.VolumeSnapshotContent); ok && c.Spec.Driver == names.Driver &&
			decideContent(c) != contentDone {
			queue.Add(c.Name)
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: add, UpdateFunc: func(_, o any) { add(o) },
	}); err != nil {
		return fmt.Errorf("watch VolumeSnapshotContents: %w", err)
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return ctx.Err()
	}
	s.setContents(informer.GetStore())
	defer factory.Shutdown()
	return runQueue(ctx, queue, snapshotThreads, s.syncContent, func(name string, err error) {
		s.log.Error("work on a VolumeSnapshotContent, which is tried again", "content", name, "error", err)
	})
}

// waitForSnapshotKinds returns when the cluster has the kinds of snapshots, however late they are installed.
func (d *Driver) waitForSnapshotKinds(ctx context.Context) error {
	ticker := d.options.Clock.NewTicker(snapshotResync)
	defer ticker.Stop()
	for {
		_, err := d.options.Kubernetes.Discovery().ServerResourcesForGroupVersion(snapshotv1.SchemeGroupVersion.String())
		if err == nil {
			return nil
		}
		if !apierrors.IsNotFound(err) {
			d.log.Error("look for the kinds of snapshots, which is tried again", "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C():
		}
	}
}

// syncContent does what is to be done for a content, as the API server has it now.
func (s *snapshotter) syncContent(ctx context.Context, name string) error {
	c, err := s.options.Snapshots.SnapshotV1().VolumeSnapshotContents().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	action := decideContent(c)
	if action == contentDone {
		return nil
	}
	owner, err := s.findOwner(ctx, c)
	if err != nil {
		return err
	}
	if owner != s.options.Node {
		return s.noteSilence(ctx, c, owner)
	}
	limited, cancel := context.WithTimeout(ctx, snapshotTimeout)
	defer cancel()
	if err := s.applyAction(limited, c, action); err != nil {
		return errors.Join(err, s.writeFailure(ctx, c, err))
	}
	return nil
}

// noteSilence writes into the status of a content that the node that owns it does not report. Of the nodes that report,
// only the first one by name writes that.
func (s *snapshotter) noteSilence(ctx context.Context, c *snapshotv1.VolumeSnapshotContent, owner string) error {
	managers := &longhornv1.InstanceManagerList{}
	if err := s.options.Client.List(ctx, managers, client.InNamespace(s.options.Namespace)); err != nil {
		return fmt.Errorf("list the InstanceManagers: %w", err)
	}
	first := ""
	for _, m := range managers.Items {
		if m.Status.CurrentState != longhornv1.ManagerRunning {
			continue
		}
		if m.Name == owner {
			return nil
		}
		if first == "" || m.Name < first {
			first = m.Name
		}
	}
	if first != s.options.Node {
		return nil
	}
	return s.writeFailure(ctx, c, errclass.Errorf(errclass.Transient,
		"it is on node %s, whose store does not report: look at the Pods of varve-store there", owner))
}

// findOwner returns the node that works on a content: the one with the volume or with the snapshot's disk, whatever its
// store does. If no node has it, the first one says so.
func (s *snapshotter) findOwner(ctx context.Context, c *snapshotv1.VolumeSnapshotContent) (string, error) {
	var owner string
	var err error
	if handle := findContentHandle(c); handle != "" {
		owner, err = s.findSnapshotNode(ctx, handle)
	} else {
		owner, err = s.findVolumeNode(ctx, ptr.Deref(c.Spec.Source.VolumeHandle, ""))
	}
	if err != nil || owner != "" {
		return owner, err
	}
	nodes := &longhornv1.NodeList{}
	if err := s.options.Client.List(ctx, nodes, client.InNamespace(s.options.Namespace)); err != nil {
		return "", fmt.Errorf("list the Nodes: %w", err)
	}
	if len(nodes.Items) == 0 {
		return s.options.Node, nil
	}
	return slices.MinFunc(nodes.Items, compareNames).Name, nil
}

// contentHandle returns the handle of the snapshot that was made for a content, or nothing.
func contentHandle(c *snapshotv1.VolumeSnapshotContent) string {
	if c.Status == nil {
		return ""
	}
	return ptr.Deref(c.Status.SnapshotHandle, "")
}

// findContentHandle returns the handle of the snapshot of a content, made or named, or nothing if it is yet to be made.
func findContentHandle(c *snapshotv1.VolumeSnapshotContent) string {
	return cmp.Or(contentHandle(c), ptr.Deref(c.Spec.Source.SnapshotHandle, ""))
}

// applyAction does what was decided for a content.
func (s *snapshotter) applyAction(
	ctx context.Context, c *snapshotv1.VolumeSnapshotContent, action contentAction,
) error {
	switch action {
	case contentCreate:
		parameters, err := s.findParameters(ctx, ptr.Deref(c.Spec.VolumeSnapshotClassName, ""))
		if err != nil {
			return err
		}
		made, err := s.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{
			Name:           snapshotNamePrefix + string(c.Spec.VolumeSnapshotRef.UID),
			SourceVolumeId: *c.Spec.Source.VolumeHandle, Parameters: parameters,
		})
		if err != nil {
			return err
		}
		return s.writeReady(ctx, c, made.GetSnapshot())
	case contentFind:
		on, there, err := s.findSnapshot(ctx, *c.Spec.Source.SnapshotHandle)
		if err != nil {
			return err
		}
		return s.writeReady(ctx, c, s.describeSnapshot(ctx, on, there))
	case contentDelete:
		if err := s.deleteContent(ctx, c); err != nil {
			return err
		}
	case contentDone, contentRelease:
	}
	c.Finalizers = slices.DeleteFunc(c.Finalizers, func(f string) bool { return f == contentFinalizer })
	_, err := s.options.Snapshots.SnapshotV1().VolumeSnapshotContents().Update(ctx, c, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove the finalizer %s: %w", contentFinalizer, err)
	}
	return nil
}

// deleteContent deletes the snapshot of a content, also one whose handle was never written.
func (s *snapshotter) deleteContent(ctx context.Context, c *snapshotv1.VolumeSnapshotContent) error {
	if handle := findContentHandle(c); handle != "" {
		_, err := s.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: handle})
		if !errors.Is(err, errclass.Transient) {
			return err
		}
		lost, lostErr := s.isLost(ctx, c, handle)
		if !lost {
			return errors.Join(err, lostErr)
		}
		s.log.Info("a VolumeSnapshotContent goes whose disk no Node has any more", "content", c.Name, "snapshot", handle)
		return nil
	}
	uid := names.SnapshotUID(snapshotNamePrefix + string(c.Spec.VolumeSnapshotRef.UID))
	disks, err := s.findContentDisks(ctx, ptr.Deref(c.Spec.Source.VolumeHandle, ""))
	if err != nil {
		return fmt.Errorf("find out whether its snapshot was made: %w", err)
	}
	on, there, err := s.findByUID(ctx, disks, uid)
	if errors.Is(err, errclass.NotFound) {
		return nil
	}
	if err == nil && there.Kind == disk.KindSnapshot {
		err = s.deleteSnapshot(ctx, names.SnapshotHandle(on.UUID, uid))
	}
	return err
}

// findContentDisks returns the disks that can have a snapshot of a volume: that of the volume or, if it is gone, all of
// the node. An error is of class Transient while one of them is not open: nobody knows what it has.
func (s *snapshotter) findContentDisks(ctx context.Context, handle string) ([]diskset.Disk, error) {
	replica := &longhornv1.Replica{}
	err := s.options.Client.Get(ctx, s.objectKey(handle), replica)
	switch {
	case err == nil:
		on, err := s.options.Disks.Find(disk.UID(replica.Spec.DiskID))
		if err != nil {
			return nil, errclass.Errorf(errclass.Transient, "%v: look at status.diskStatus of Node %s", err,
				replica.Spec.NodeID)
		}
		return []diskset.Disk{on}, nil
	case !apierrors.IsNotFound(err):
		return nil, errclass.Errorf(errclass.Transient, "get Replica %s: %w", handle, err)
	}
	node := &longhornv1.Node{}
	if err := s.options.Client.Get(ctx, s.objectKey(s.options.Node), node); err != nil {
		return nil, errclass.Errorf(errclass.Transient, "get Node %s: %w", s.options.Node, err)
	}
	open := s.options.Disks.All()
	for name := range node.Spec.Disks {
		isOpen := slices.ContainsFunc(open, func(d diskset.Disk) bool { return d.Name == name })
		if !isOpen && !isNeverUsed(node.Status.DiskStatus[name]) {
			return nil, errclass.Errorf(errclass.Transient, "disk %s of Node %s is not open, and may have it: look at "+
				"status.diskStatus, or remove the disk from spec.disks if it is gone for good", name, node.Name)
		}
	}
	return open, nil
}

// isNeverUsed says whether a store has reported that it cannot use a disk, and has never used it: a disk that was used
// keeps its UUID in its status.
func isNeverUsed(status *longhornv1.DiskStatus) bool {
	if status == nil || status.DiskUUID != "" {
		return false
	}
	ready := meta.FindStatusCondition(status.Conditions, longhornv1.ConditionReady)
	return ready != nil && ready.Status == metav1.ConditionFalse && ready.Reason == longhornv1.ReasonDiskUnusable
}

// isLost says whether the disk of a snapshot is gone for good: the content was deleted a while ago, every Node has said
// which disks it has, or that it never used them, and none of them is this one. If the disk comes back, its Node names
// the snapshot as an orphan.
func (s *snapshotter) isLost(ctx context.Context, c *snapshotv1.VolumeSnapshotContent, handle string) (bool, error) {
	if c.DeletionTimestamp == nil || s.options.Clock.Since(c.DeletionTimestamp.Time) < lostPatience {
		return false, nil
	}
	nodes, managers := &longhornv1.NodeList{}, &longhornv1.InstanceManagerList{}
	within := client.InNamespace(s.options.Namespace)
	if err := errors.Join(
		s.options.Client.List(ctx, nodes, within), s.options.Client.List(ctx, managers, within),
	); err != nil {
		return false, fmt.Errorf("list the Nodes and InstanceManagers: %w", err)
	}
	uuid, _, _ := names.ParseSnapshotHandle(handle)
	for _, node := range nodes.Items {
		if hasReported(&node, uuid) {
			return false, nil
		}
		reports := slices.ContainsFunc(managers.Items, func(m longhornv1.InstanceManager) bool {
			return m.Name == node.Name && m.Status.CurrentState == longhornv1.ManagerRunning
		})
		for name := range node.Spec.Disks {
			status := node.Status.DiskStatus[name]
			if named := status != nil && status.DiskUUID != ""; !named && (!reports || !isNeverUsed(status)) {
				return false, nil
			}
		}
	}
	return len(nodes.Items) > 0, nil
}

// findParameters returns the parameters of a VolumeSnapshotClass, which may be gone.
func (s *snapshotter) findParameters(ctx context.Context, name string) (map[string]string, error) {
	class, err := s.options.Snapshots.SnapshotV1().VolumeSnapshotClasses().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, errclass.Errorf(errclass.Transient, "get VolumeSnapshotClass %s: %w", name, err)
	}
	return class.Parameters, nil
}

// writeReady writes what a snapshot is into the status of its content.
func (s *snapshotter) writeReady(ctx context.Context, c *snapshotv1.VolumeSnapshotContent, made *csi.Snapshot) error {
	if !made.GetReadyToUse() {
		return errclass.Errorf(errclass.Corrupt, "the snapshot %s is damaged: make another one", made.GetSnapshotId())
	}
	next := c.DeepCopy()
	next.Status = &snapshotv1.VolumeSnapshotContentStatus{
		SnapshotHandle: ptr.To(made.GetSnapshotId()), ReadyToUse: ptr.To(true), RestoreSize: ptr.To(made.GetSizeBytes()),
		CreationTime: ptr.To(made.GetCreationTime().AsTime().UnixNano()),
	}
	_, err := s.options.Snapshots.SnapshotV1().VolumeSnapshotContents().UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if err != nil {
		return errclass.Errorf(errclass.Transient, "write the status of VolumeSnapshotContent %s: %w", c.Name, err)
	}
	return nil
}

// writeFailure writes why the work on a content failed into its status, from where snapshot-controller copies it to the
// VolumeSnapshot.
func (s *snapshotter) writeFailure(ctx context.Context, c *snapshotv1.VolumeSnapshotContent, failed error) error {
	next := c.DeepCopy()
	if next.Status == nil {
		next.Status = &snapshotv1.VolumeSnapshotContentStatus{ReadyToUse: ptr.To(false)}
	}
	message := failed.Error()
	if there := next.Status.Error; there != nil && ptr.Deref(there.Message, "") == message {
		return nil
	}
	now := metav1.NewTime(s.options.Clock.Now())
	next.Status.Error = &snapshotv1.VolumeSnapshotError{Time: &now, Message: &message}
	_, err := s.options.Snapshots.SnapshotV1().VolumeSnapshotContents().UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("write that into the status of VolumeSnapshotContent %s: %w", c.Name, err)
	}
	return nil
}
