package lab

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1alpha1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/datamove/settings"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/s3"
	"github.com/varvebackup/varve/test/wait"
)

// Location is a BackupStorageLocation in Varve's namespace, in a directory of its own of the box's bucket, with its keys.
type Location struct {
	*velerov1.BackupStorageLocation

	lab    *Lab
	secret *corev1.Secret
}

// BucketLocation makes a location on the S3 service of the box in boxDir. It replaces one of that name, which an earlier run left.
func (l *Lab) BucketLocation(ctx context.Context, name, boxDir string) (*Location, error) {
	store, _, err := s3.OnBox(boxDir)
	if err != nil {
		return nil, err
	}
	at := &Location{
		lab: l, secret: &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: layout.Namespace, Name: name}},
		BackupStorageLocation: &velerov1.BackupStorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: layout.Namespace, Name: name}},
	}
	if err := at.Remove(ctx); err != nil {
		return nil, err
	}
	at.secret.Data = map[string][]byte{"cloud": fmt.Appendf(nil, "[default]\naws_access_key_id=%s\naws_secret_access_key=%s\n", store.AccessKey, store.SecretKey)}
	at.Spec = velerov1.BackupStorageLocationSpec{
		Provider: "aws",
		StorageType: velerov1.StorageType{ObjectStorage: &velerov1.ObjectStorageLocation{
			Bucket: store.Bucket, Prefix: fmt.Sprintf("%s-%d", name, time.Now().UnixNano()), CACert: store.Authority,
		}},
		Config:     map[string]string{"region": store.Region, "s3ForcePathStyle": "true", "s3Url": store.URL()},
		Credential: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: name}, Key: "cloud"},
	}
	for _, o := range []client.Object{at.secret, at.BackupStorageLocation} {
		if err := l.Create(ctx, o); err != nil {
			return nil, fmt.Errorf("create location %s: %w", name, err)
		}
	}
	return at, nil
}

// Remove removes the location and its keys. What is in the bucket stays.
func (at *Location) Remove(ctx context.Context) error {
	var failed []error
	for _, o := range []client.Object{at.BackupStorageLocation, at.secret} {
		failed = append(failed, client.IgnoreNotFound(at.lab.Delete(ctx, o)))
	}
	return errors.Join(failed...)
}

// MachineUploads are the DataUploads of one moment of a machine, by the names of its disks.
type MachineUploads struct {
	// Group is the group's ID, and the name of the VirtualMachineBackup.
	Group   string
	Uploads map[string]*velerov2.DataUpload
	// Sums are the SHA-256 of what the disks held, by their names.
	Sums map[string]string
	// DirtyBytes is how much had changed since the tracker's checkpoint, or 0 if it had none.
	DirtyBytes int64
}

// UploadDisks creates the DataUploads of a machine's disks. The guest is not frozen for them: the caller does that.
func (l *Lab) UploadDisks(ctx context.Context, name, vm, tracker, scratch string, at *Location, disks ...Disk) (*MachineUploads, error) {
	m := &MachineUploads{Group: l.Namespace + "-" + name, Uploads: map[string]*velerov2.DataUpload{}}
	for _, d := range disks {
		disk := datamove.MachineDisk{Machine: vm, Volume: d.Name, Tracker: tracker, ScratchClaim: scratch, SkipQuiesce: true, Group: m.Group, Disks: len(disks)}
		u := &velerov2.DataUpload{
			ObjectMeta: metav1.ObjectMeta{Namespace: at.Namespace, Name: m.Group + "-" + d.Name},
			Spec: velerov2.DataUploadSpec{
				SnapshotType: velerov2.SnapshotMachineBackup, SourceNamespace: l.Namespace, SourcePVC: ClaimName(vm, d.Name), DataMover: datamove.Mover,
				BackupStorageLocation: at.Name, OperationTimeout: velerov1.Duration{Duration: 5 * time.Minute}, DataMoverConfig: disk.Config(),
			},
		}
		if err := l.Create(ctx, u); err != nil {
			return nil, fmt.Errorf("create upload %s: %w", u.Name, err)
		}
		m.Uploads[d.Name] = u
	}
	return m, nil
}

// UploadMoment stores a machine as it is frozen, and runs a script in the guest while its disks are read. It returns when the disks are
// stored and the backup has ended.
func (l *Lab) UploadMoment(ctx context.Context, name, vm, tracker, scratch, script string, timeout time.Duration, at *Location, disks ...Disk) (m *MachineUploads, err error) {
	sums, dirty, err := l.whileFrozen(ctx, vm, timeout, func() (err error) {
		if m, err = l.UploadDisks(ctx, name, vm, tracker, scratch, at, disks...); err != nil {
			return err
		}
		return l.waitServing(ctx, m, timeout)
	})
	if err != nil {
		return nil, err
	}
	if err := l.runInGuest(ctx, vm, script); err != nil {
		return nil, err
	}
	m.Sums, m.DirtyBytes = sums, dirty
	return m, l.WaitUploads(ctx, m, velerov2.PhaseCompleted, timeout)
}

// whileFrozen calls act while the guest is frozen, and returns the SHA-256 of its disks, by their names, and how much had changed since the
// checkpoint.
func (l *Lab) whileFrozen(ctx context.Context, vm string, timeout time.Duration, act func() error) (sums map[string]string, dirty int64, err error) {
	g, err := l.Guest(ctx, vm)
	if err != nil {
		return nil, 0, err
	}
	if _, err := g.Run(ctx, "sync"); err != nil {
		return nil, 0, err
	}
	instance, err := l.WaitAgent(ctx, vm, timeout)
	if err != nil {
		return nil, 0, err
	}
	if err := g.Freeze(ctx); err != nil {
		return nil, 0, err
	}
	sums, err = g.DiskSums(ctx, instance)
	if err == nil {
		dirty, err = g.DirtyBytes(ctx)
	}
	if err == nil {
		err = act()
	}
	return sums, dirty, errors.Join(err, g.Thaw(context.WithoutCancel(ctx)))
}

func (l *Lab) runInGuest(ctx context.Context, vm, script string) error {
	g, err := l.Guest(ctx, vm)
	if err != nil {
		return err
	}
	_, err = g.Run(ctx, script)
	return err
}

// waitServing waits until the point in time is fixed.
func (l *Lab) waitServing(ctx context.Context, m *MachineUploads, timeout time.Duration) error {
	return wait.For(ctx, timeout, "the point in time of "+m.Group, func(ctx context.Context) (bool, string, error) {
		seen, err := l.lookAtUploads(ctx, m, velerov2.PhaseCompleted)
		if err != nil {
			return false, "", err
		}
		b := &backupv1alpha1.VirtualMachineBackup{}
		err = client.IgnoreNotFound(l.Get(ctx, client.ObjectKey{Namespace: l.Namespace, Name: m.Group}, b))
		return b.Status.Phase == backupv1alpha1.BackupServing, fmt.Sprintf("backup %s: %s; %s", b.Status.Phase, b.Status.Message, seen), err
	})
}

// lookAtUploads reads the DataUploads. One that ends in another phase than want is an error.
func (l *Lab) lookAtUploads(ctx context.Context, m *MachineUploads, want velerov2.Phase) (string, error) {
	var seen []string
	for _, u := range m.Uploads {
		one, err := l.lookAtUpload(ctx, u, want)
		if err != nil {
			return "", err
		}
		seen = append(seen, one)
	}
	return strings.Join(seen, "; "), nil
}

// WaitUploads waits until all DataUploads have ended in a phase, and until their backup is gone.
func (l *Lab) WaitUploads(ctx context.Context, m *MachineUploads, want velerov2.Phase, timeout time.Duration) error {
	err := wait.For(ctx, timeout, "the uploads of "+m.Group+" to be "+string(want), func(ctx context.Context) (bool, string, error) {
		seen, err := l.lookAtUploads(ctx, m, want)
		all := err == nil
		for _, u := range m.Uploads {
			all = all && u.Status.Phase == want
		}
		return all, seen, err
	})
	if err != nil {
		return err
	}
	b := &backupv1alpha1.VirtualMachineBackup{ObjectMeta: metav1.ObjectMeta{Namespace: l.Namespace, Name: m.Group}}
	return l.WaitGone(ctx, b, timeout)
}

// Download makes a claim of what a DataUpload has stored, with the command that users have.
func (l *Lab) Download(ctx context.Context, program, kubeconfig string, u *velerov2.DataUpload, claim string, mode corev1.PersistentVolumeMode) error {
	out, err := exec.CommandContext(ctx, filepath.Clean(program), "data", "download", "create", u.Name+"-again", "--kubeconfig", kubeconfig, "-n", u.Namespace, "--from-upload", u.Name,
		"--to-pvc", claim, "--to-namespace", l.Namespace, "--create-claim", "--volume-mode", string(mode), "--wait").CombinedOutput()
	if err != nil {
		return fmt.Errorf("download of %s: %w: %s", u.Name, err, out)
	}
	d := &velerov2.DataDownload{ObjectMeta: metav1.ObjectMeta{Namespace: u.Namespace, Name: u.Name + "-again"}}
	return client.IgnoreNotFound(l.Delete(context.WithoutCancel(ctx), d))
}

// DeleteUploads deletes the DataUploads of the lab's namespace, and with them their restore points.
func (l *Lab) DeleteUploads(ctx context.Context, timeout time.Duration) error {
	return wait.For(ctx, timeout, "the DataUploads to be gone", func(ctx context.Context) (bool, string, error) {
		var list velerov2.DataUploadList
		if err := l.List(ctx, &list, client.InNamespace(layout.Namespace)); err != nil {
			return false, "", err
		}
		var left []string
		for i := range list.Items {
			u := &list.Items[i]
			if u.Spec.SourceNamespace != l.Namespace {
				continue
			}
			left = append(left, u.Name+": "+u.Status.Message)
			if u.DeletionTimestamp == nil {
				if err := l.Delete(ctx, u); client.IgnoreNotFound(err) != nil {
					return false, "", err
				}
			}
		}
		return len(left) == 0, strings.Join(left, "; "), nil
	})
}

func moverSettings() *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: layout.Namespace, Name: settings.ConfigMap}}
}

// SetMover replaces the settings of the data mover, which hold for all of the cluster.
func (l *Lab) SetMover(ctx context.Context, text string) error {
	m := moverSettings()
	m.Data = map[string]string{settings.Key: text}
	err := l.Update(ctx, m)
	if apierrors.IsNotFound(err) {
		err = l.Create(ctx, m)
	}
	return err
}

// ResetMover takes the settings of the data mover back.
func (l *Lab) ResetMover(ctx context.Context) error {
	return client.IgnoreNotFound(l.Delete(ctx, moverSettings()))
}
