package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// restoredVolume is the label that the selector of a claim asks for while the claim waits for its volume.
const restoredVolume = "velero.io/dynamic-pv-restore"

// expose returns the directory to copy and the one to make. Where the latter is there, the former may be gone.
func (m *mover) expose(ctx context.Context, o *unstructured.Unstructured) (from, to string, err error) {
	to = m.target(o)
	switch {
	case exists(to):
		return "", to, nil
	case o.GetKind() == upload:
		from, err = m.snapshotDirectory(ctx, o)
	default:
		from, err = inside(m.store, text(o, "spec", "snapshotID"))
	}
	if err == nil && !exists(from) {
		err = lasting{fmt.Errorf("this node has no %s", from)}
	}
	return from, to, err
}

// target returns the directory that is made for an object.
func (m *mover) target(o *unstructured.Unstructured) string {
	if o.GetKind() == upload {
		return filepath.Join(m.store, string(o.GetUID()))
	}
	return filepath.Join(m.volumes, string(o.GetUID()))
}

// snapshotDirectory returns where the snapshot of a DataUpload is on the storage.
func (m *mover) snapshotDirectory(ctx context.Context, o *unstructured.Unstructured) (string, error) {
	snapshot, content, err := m.snapshotOf(ctx, o)
	switch {
	case err != nil:
		return "", err
	case snapshot == nil:
		return "", lasting{errors.New("the VolumeSnapshot is gone")}
	case content == nil || content.Status == nil || content.Status.SnapshotHandle == nil || !ptr.Deref(content.Status.ReadyToUse, false):
		return "", waiting{"VolumeSnapshot " + snapshot.Name, o.GetCreationTimestamp().Time}
	case ptr.Deref(content.Spec.SourceVolumeMode, corev1.PersistentVolumeFilesystem) != corev1.PersistentVolumeFilesystem:
		return "", lasting{errors.New("this mover copies files, and the volume has the mode Block")}
	}
	return inside(m.snapshots, *content.Status.SnapshotHandle)
}

// snapshotOf returns the snapshot of a DataUpload and its content, as far as they exist. They count if each names the other.
func (m *mover) snapshotOf(ctx context.Context, o *unstructured.Unstructured) (*snapshotv1.VolumeSnapshot, *snapshotv1.VolumeSnapshotContent, error) {
	snapshot, content := &snapshotv1.VolumeSnapshot{}, &snapshotv1.VolumeSnapshotContent{}
	key := client.ObjectKey{Namespace: text(o, "spec", "sourceNamespace"), Name: text(o, "spec", "csiSnapshot", "volumeSnapshot")}
	if err := m.Get(ctx, key, snapshot); err != nil {
		return nil, nil, client.IgnoreNotFound(err)
	}
	if snapshot.Status == nil || snapshot.Status.BoundVolumeSnapshotContentName == nil {
		return snapshot, nil, nil
	}
	err := m.Get(ctx, client.ObjectKey{Name: *snapshot.Status.BoundVolumeSnapshotContentName}, content)
	if err != nil || content.Spec.VolumeSnapshotRef.UID != snapshot.UID {
		return snapshot, nil, client.IgnoreNotFound(err)
	}
	return snapshot, content, nil
}

// disposeOfSnapshot deletes the snapshot of a DataUpload. Its class may say Retain, which would leave the data on the storage.
func (m *mover) disposeOfSnapshot(ctx context.Context, o *unstructured.Unstructured) error {
	snapshot, content, err := m.snapshotOf(ctx, o)
	if err != nil || snapshot == nil {
		return err
	}
	if content != nil && content.Spec.DeletionPolicy != snapshotv1.VolumeSnapshotContentDelete {
		before := content.DeepCopy()
		content.Spec.DeletionPolicy = snapshotv1.VolumeSnapshotContentDelete
		if err := m.Patch(ctx, content, client.MergeFrom(before)); err != nil {
			return err
		}
	}
	return client.IgnoreNotFound(m.Delete(ctx, snapshot))
}

// giveToClaim makes a volume of a directory, for the claim that waits for it, and waits until the claim has it.
func (m *mover) giveToClaim(ctx context.Context, o *unstructured.Unstructured, dir string) error {
	volume := &corev1.PersistentVolume{}
	switch err := m.Get(ctx, client.ObjectKey{Name: volumeName(o)}, volume); {
	case err == nil && volume.Status.Phase == corev1.VolumeBound:
		return nil
	case err == nil:
		return waiting{"the claim to take its volume", volume.CreationTimestamp.Time}
	case !apierrors.IsNotFound(err):
		return err
	}
	claim := &corev1.PersistentVolumeClaim{}
	key := client.ObjectKey{Namespace: text(o, "spec", "targetVolume", "namespace"), Name: text(o, "spec", "targetVolume", "pvc")}
	if err := m.Get(ctx, key, claim); apierrors.IsNotFound(err) {
		return waiting{"claim " + key.String(), started(o)}
	} else if err != nil {
		return err
	}
	if claim.Spec.VolumeName != "" || claim.Spec.Selector == nil || claim.Spec.Selector.MatchLabels[restoredVolume] == "" {
		return lasting{fmt.Errorf("claim %s does not wait for a restored volume", key)}
	}
	volume.Name = volumeName(o)
	volume.Labels = map[string]string{restoredVolume: claim.Spec.Selector.MatchLabels[restoredVolume]}
	volume.Spec = corev1.PersistentVolumeSpec{
		ClaimRef:                      &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
		AccessModes:                   claim.Spec.AccessModes,
		Capacity:                      claim.Spec.Resources.Requests,
		StorageClassName:              ptr.Deref(claim.Spec.StorageClassName, ""),
		VolumeMode:                    claim.Spec.VolumeMode,
		PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		PersistentVolumeSource:        corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: dir}},
		NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{m.node}}},
		}}}},
	}
	if err := m.Create(ctx, volume); err != nil {
		return err
	}
	return waiting{"the claim to take its volume", volume.CreationTimestamp.Time}
}

// removeData removes what was made for an object, but not a volume that a claim has.
func (m *mover) removeData(ctx context.Context, o *unstructured.Unstructured) error {
	if o.GetKind() != upload {
		volume := &corev1.PersistentVolume{}
		err := m.Get(ctx, client.ObjectKey{Name: volumeName(o)}, volume)
		if err == nil && volume.Status.Phase == corev1.VolumeBound {
			return nil
		}
		if err == nil { // With the version that was read: the claim may be taking it at this moment.
			err = m.Delete(ctx, volume, client.Preconditions{ResourceVersion: &volume.ResourceVersion})
		}
		if client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	return errors.Join(os.RemoveAll(m.target(o)), os.RemoveAll(partial(m.target(o))))
}

// copyTree copies a directory, with owners, modes, links and attributes if it runs as root. It calls report each second and ends early
// when that says so. The copy has its name only when it is whole and stored.
func copyTree(ctx context.Context, from, to string, report func(done int64) (stop bool)) error {
	if exists(to) {
		return nil // It was finished before the mover was restarted.
	}
	if err := errors.Join(os.RemoveAll(partial(to)), os.MkdirAll(partial(to), 0o700)); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, "cp", "--archive", "--", from+"/.", partial(to)) }()
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			if report(size(partial(to))) {
				stop()
				<-ended
				return nil
			}
		case err := <-ended:
			if err == nil {
				err = run(ctx, "sync", "--file-system", partial(to))
			}
			if err == nil {
				err = os.Rename(partial(to), to)
			}
			if err == nil {
				err = run(ctx, "sync", filepath.Dir(to))
			}
			return err
		}
	}
}

// run runs a program. Its failure lasts unless it is the end of the mover.
func run(ctx context.Context, name string, args ...string) error {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil && ctx.Err() == nil {
		return lasting{fmt.Errorf("%s: %w: %s", name, err, out)}
	}
	return errors.Join(err, ctx.Err())
}

// size returns the sum of the sizes of the files below a directory, in bytes, as far as they are there.
func size(dir string) int64 {
	var total int64
	_ = filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			if info, err := entry.Info(); err == nil {
				total += info.Size()
			}
		}
		return nil
	})
	return total
}

// inside returns the path of a directory's entry. Names in objects are not trusted to stay inside.
func inside(dir, name string) (string, error) {
	if !filepath.IsLocal(name) || filepath.Base(name) != name || name == "." {
		return "", lasting{fmt.Errorf("%q is not the name of a volume", name)}
	}
	return filepath.Join(dir, name), nil
}

func exists(path string) bool { _, err := os.Lstat(path); return err == nil }

func partial(path string) string { return path + ".partial" }

func volumeName(o *unstructured.Unstructured) string { return moverName + "-" + string(o.GetUID()) }

// fields are fields of an object in JSON.
type fields = map[string]any

// text returns a string field, or "".
func text(o *unstructured.Unstructured, path ...string) string {
	value, _, _ := unstructured.NestedString(o.Object, path...)
	return value
}

// cancelled says that an object is to end. A deletion that the finalizer holds up is a cancellation.
func cancelled(o *unstructured.Unstructured) bool {
	cancel, _, _ := unstructured.NestedBool(o.Object, "spec", "cancel")
	return cancel || o.GetDeletionTimestamp() != nil
}

// operationTimeout returns how long each wait may last.
func operationTimeout(o *unstructured.Unstructured) time.Duration {
	timeout, err := time.ParseDuration(text(o, "spec", "operationTimeout"))
	if err != nil {
		return 10 * time.Minute
	}
	return timeout
}

// started returns when data began to move.
func started(o *unstructured.Unstructured) time.Time {
	t, _ := time.Parse(time.RFC3339, text(o, "status", "startTimestamp"))
	return t
}

func now() string { return metav1.Now().UTC().Format(time.RFC3339) }

// waiting is what an object waits for. It fails when it has waited for spec.operationTimeout.
type waiting struct {
	what  string
	since time.Time
}

func (w waiting) Error() string { return "waited too long for " + w.what }

// lasting is an error that does not pass by itself.
type lasting struct{ error }
