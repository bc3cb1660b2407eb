package lab

import (
	"context"
	"fmt"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/test/wait"
)

// NewSnapshot returns a snapshot of a claim, to be created.
func (l *Lab) NewSnapshot(name, claim, class string) *snapshotv1.VolumeSnapshot {
	return &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: l.Namespace, Name: name},
		Spec: snapshotv1.VolumeSnapshotSpec{
			VolumeSnapshotClassName: &class,
			Source:                  snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &claim},
		},
	}
}

// Snapshot makes a snapshot of a claim, and waits until it is ready.
func (l *Lab) Snapshot(ctx context.Context, name, claim, class string, timeout time.Duration) error {
	made := l.NewSnapshot(name, claim, class)
	if err := l.Create(ctx, made); err != nil {
		return fmt.Errorf("create snapshot %s: %w", name, err)
	}
	what := "snapshot " + name + " to be ready"
	return wait.For(ctx, timeout, what, func(ctx context.Context) (bool, string, error) {
		if err := l.Get(ctx, client.ObjectKeyFromObject(made), made); err != nil || made.Status == nil {
			return false, "no status", err
		}
		seen := ""
		if e := made.Status.Error; e != nil {
			seen = ptr.Deref(e.Message, "")
		}
		return ptr.Deref(made.Status.ReadyToUse, false), seen, nil
	})
}

// UploadSnapshot creates a DataUpload of a snapshot of a claim. class is the name of both the storage class and the
// snapshot class. prepare bounds how long the data mover prepares the snapshot.
func (l *Lab) UploadSnapshot(
	ctx context.Context, upload, snapshot, claim, class string, at *Location, prepare time.Duration,
) (*velerov2.DataUpload, error) {
	u := &velerov2.DataUpload{
		ObjectMeta: metav1.ObjectMeta{Namespace: at.Namespace, Name: upload},
		Spec: velerov2.DataUploadSpec{
			SnapshotType: velerov2.SnapshotCSI, SourceNamespace: l.Namespace, SourcePVC: claim, DataMover: datamove.Mover,
			BackupStorageLocation: at.Name,
			CSISnapshot: &velerov2.CSISnapshotSpec{
				VolumeSnapshot: snapshot, StorageClass: class, SnapshotClass: class,
			},
			OperationTimeout: velerov1.Duration{Duration: prepare},
		},
	}
	if err := l.Create(ctx, u); err != nil {
		return nil, fmt.Errorf("create upload %s: %w", u.Name, err)
	}
	return u, nil
}

// WaitUpload waits until a DataUpload is complete. One that ends otherwise is an error.
func (l *Lab) WaitUpload(ctx context.Context, u *velerov2.DataUpload, timeout time.Duration) error {
	return wait.For(ctx, timeout, "upload "+u.Name, func(ctx context.Context) (bool, string, error) {
		seen, err := l.lookAtUpload(ctx, u, velerov2.PhaseCompleted)
		return u.Status.Phase == velerov2.PhaseCompleted, seen, err
	})
}

// lookAtUpload reads a DataUpload. It is an error if the upload has ended in another phase than want.
func (l *Lab) lookAtUpload(ctx context.Context, u *velerov2.DataUpload, want velerov2.Phase) (string, error) {
	if err := l.Get(ctx, client.ObjectKeyFromObject(u), u); err != nil {
		return "", err
	}
	if u.Status.Phase.Ended() && u.Status.Phase != want {
		return "", fmt.Errorf("upload %s is %s: %s", u.Name, u.Status.Phase, u.Status.Message)
	}
	return fmt.Sprintf("upload %s %s: %s", u.Name, u.Status.Phase, u.Status.Message), nil
}
