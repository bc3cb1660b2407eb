//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1alpha1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/lab"
	"github.com/varvebackup/varve/test/s3"
	"github.com/varvebackup/varve/test/wait"
)

// machineUploads is one moment of the scene's machine that DataUploads store: those of its disks, by volume, and what the disks held.
type machineUploads struct {
	group   string
	uploads map[string]*velerov2.DataUpload
	sums    map[string]string
}

// The disks of a running machine go by changed blocks into a repository on S3, while the guest overwrites what is stored. Each moment
// comes back into new claims as it was, no CSI snapshot and no export is made, and nothing is left.
func TestMachineUpload_movesChangedBlocksAndBringsThemBack(t *testing.T) {
	s := newScene(t, "blocks")
	ctx := t.Context()
	s.boot(lab.Disk{Name: "fs", Bytes: 96 * mib}, lab.Disk{Name: "blk", Bytes: 48 * mib, Block: true})
	s.target("scratch", 512*mib)
	s.tracker("daily")
	location := s.bucketLocation("e2e-blocks")
	const device = `b=/dev/$(grep -lx blk /sys/block/*/serial | cut -d/ -f4); `
	s.guest(device + `mkdir /disks/fs/x; for i in 1 2 3; do head -c 3000000 /dev/urandom >/disks/fs/x/$i; done; head -c 10000000 /dev/urandom | dd of=$b bs=1M conv=notrunc; sync`)
	overwrite := device + `for i in 1 2 3; do head -c 3000000 /dev/urandom >/disks/fs/x/$i; done; head -c 12000000 /dev/urandom | dd of=$b bs=1M conv=notrunc,fsync; sync`

	var moments []*machineUploads
	moments = append(moments, s.uploadMachine("m1", location, overwrite))
	s.guest(device + `head -c 2000000 /dev/urandom | dd of=$b bs=1M seek=20 conv=notrunc,fsync; sync`)
	moments = append(moments, s.uploadMachine("m2", location, overwrite))

	// Nobody has stored this one: the tracker stays where it is.
	stays := s.checkpoint("daily")
	s.canceledMachine("m3", location)
	if c := s.checkpoint("daily"); c == nil || stays == nil || c.Name != stays.Name {
		t.Errorf("the tracker has %+v, had %+v", c, stays)
	}
	s.must(s.Restart(ctx, s.vm))
	_, err := s.WaitAgent(ctx, s.vm, bootTimeout)
	s.must(err)
	s.guest(device + `head -c 1000000 /dev/urandom | dd of=$b bs=1M seek=30 conv=notrunc,fsync; sync`)
	moments = append(moments, s.uploadMachine("m4", location, `true`))

	for i, m := range moments {
		for volume, u := range m.uploads {
			t.Logf("%s %s: %d of %d bytes new or changed, full because %q", m.group, volume, u.Status.IncrementalBytes, u.Status.Progress.TotalBytes, u.Status.DataMoverResult["fullReason"])
			if i > 0 && (u.Status.DataMoverResult["fullReason"] != "" || u.Status.IncrementalBytes >= 40*mib) {
				t.Errorf("%s %s is not incremental: %+v", m.group, volume, u.Status)
			}
		}
	}
	for _, m := range moments {
		s.comesBack(m)
	}
	s.nothingServed()
	s.nothingOfMovesIsLeft()
	s.deletesUploads()
}

// bucketLocation makes a location on the box's S3 service in Varve's namespace, for as long as the test runs.
func (s *scene) bucketLocation(name string) *velerov1.BackupStorageLocation {
	s.t.Helper()
	ctx := s.t.Context()
	store, _, err := s3.OnBox(os.Getenv("VARVE_BOX_DIR"))
	s.must(err)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: layout.Namespace, Name: name}}
	location := &velerov1.BackupStorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: layout.Namespace, Name: name}}
	remove := func() {
		for _, o := range []client.Object{location, secret} {
			s.must(client.IgnoreNotFound(s.Delete(context.WithoutCancel(ctx), o)))
		}
	}
	remove() // what a test left that was killed
	secret.Data = map[string][]byte{"cloud": fmt.Appendf(nil, "[default]\naws_access_key_id=%s\naws_secret_access_key=%s\n", store.AccessKey, store.SecretKey)}
	s.must(s.Create(ctx, secret))
	location.Spec = velerov1.BackupStorageLocationSpec{
		Provider: "aws",
		StorageType: velerov1.StorageType{ObjectStorage: &velerov1.ObjectStorageLocation{
			Bucket: store.Bucket, Prefix: fmt.Sprintf("%s-%d", name, time.Now().UnixNano()), CACert: store.Authority,
		}},
		Config: map[string]string{"region": store.Region, "s3ForcePathStyle": "true", "s3Url": store.URL()},
		Credential: &corev1.SecretKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: secret.Name}, Key: "cloud",
		},
	}
	s.must(s.Create(ctx, location))
	s.t.Cleanup(remove)
	return location
}

// newMachineUploads creates the DataUploads of one moment.
func (s *scene) newMachineUploads(group string, location *velerov1.BackupStorageLocation) map[string]*velerov2.DataUpload {
	s.t.Helper()
	uploads := map[string]*velerov2.DataUpload{}
	for _, d := range s.disks {
		disk := datamove.MachineDisk{
			Machine: s.vm, Volume: d.Name, Tracker: "daily", ScratchClaim: "scratch", SkipQuiesce: true, Group: s.Namespace + "-" + group, Disks: len(s.disks),
		}
		u := &velerov2.DataUpload{
			ObjectMeta: metav1.ObjectMeta{Namespace: location.Namespace, Name: disk.Group + "-" + d.Name},
			Spec: velerov2.DataUploadSpec{
				SnapshotType: velerov2.SnapshotMachineBackup, SourceNamespace: s.Namespace, SourcePVC: lab.ClaimName(s.vm, d.Name), DataMover: datamove.Mover,
				BackupStorageLocation: location.Name, OperationTimeout: metav1.Duration{Duration: 5 * time.Minute}, DataMoverConfig: disk.Config(),
			},
		}
		s.must(s.Create(s.t.Context(), u))
		uploads[d.Name] = u
	}
	return uploads
}

// uploadMachine stores the machine as it is frozen. The guest runs a script while it is stored.
func (s *scene) uploadMachine(group string, location *velerov1.BackupStorageLocation, script string) *machineUploads {
	s.t.Helper()
	ctx := s.t.Context()
	began := time.Now()
	g, err := s.Guest(ctx, s.vm)
	s.must(err)
	_, err = g.Run(ctx, "sync")
	s.must(err)
	s.must(g.Freeze(ctx))
	m := &machineUploads{group: group}
	m.sums, err = g.DiskSums(ctx, s.instance())
	s.must(err)
	m.uploads = s.newMachineUploads(group, location)
	s.machineServes(group, m.uploads)
	s.must(g.Thaw(ctx))
	s.guest(script)
	for _, u := range m.uploads {
		s.ended(u, velerov2.PhaseCompleted)
	}
	s.machineBackupGone(group)
	s.t.Logf("%s took %s with the guest's writes", group, time.Since(began).Round(100*time.Millisecond))
	return m
}

// machineServes waits until the point in time of a group is fixed.
func (s *scene) machineServes(group string, uploads map[string]*velerov2.DataUpload) {
	s.t.Helper()
	s.must(wait.For(s.t.Context(), 2*time.Minute, "the point in time of "+group, func(ctx context.Context) (bool, string, error) {
		var seen []string
		for _, u := range uploads {
			if err := s.Get(ctx, client.ObjectKeyFromObject(u), u); err != nil {
				return false, "", err
			}
			if u.Status.Phase.Ended() && u.Status.Phase != velerov2.PhaseCompleted {
				return false, "", fmt.Errorf("upload %s %s: %s", u.Name, u.Status.Phase, u.Status.Message)
			}
			seen = append(seen, u.Name+" "+string(u.Status.Phase)+": "+u.Status.Message)
		}
		b := &backupv1alpha1.VirtualMachineBackup{}
		err := s.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: s.Namespace + "-" + group}, b)
		seen = append(seen, fmt.Sprintf("backup %s: %s", b.Status.Phase, b.Status.Message))
		return b.Status.Phase == backupv1alpha1.BackupServing, strings.Join(seen, "; "), client.IgnoreNotFound(err)
	}))
}

// ended waits until an upload is in a phase that is the last one.
func (s *scene) ended(u *velerov2.DataUpload, want velerov2.Phase) {
	s.t.Helper()
	s.must(wait.For(s.t.Context(), moveTimeout, "upload "+u.Name+" to be "+string(want), func(ctx context.Context) (bool, string, error) {
		if err := s.Get(ctx, client.ObjectKeyFromObject(u), u); err != nil {
			return false, "", err
		}
		if u.Status.Phase.Ended() && u.Status.Phase != want {
			return false, "", fmt.Errorf("it is %s: %s", u.Status.Phase, u.Status.Message)
		}
		return u.Status.Phase == want, string(u.Status.Phase) + ": " + u.Status.Message, nil
	}))
}

// machineBackupGone waits until the backup of a group is gone.
func (s *scene) machineBackupGone(group string) {
	s.t.Helper()
	s.must(wait.For(s.t.Context(), 2*time.Minute, "the backup of "+group+" to be gone", func(ctx context.Context) (bool, string, error) {
		b := &backupv1alpha1.VirtualMachineBackup{}
		err := s.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: s.Namespace + "-" + group}, b)
		return apierrors.IsNotFound(err), fmt.Sprintf("%s: %s", b.Status.Phase, b.Status.Message), client.IgnoreNotFound(err)
	}))
}

// canceledMachine begins to store the machine and cancels that.
func (s *scene) canceledMachine(group string, location *velerov1.BackupStorageLocation) {
	s.t.Helper()
	uploads := s.newMachineUploads(group, location)
	for _, u := range uploads {
		s.must(s.Patch(s.t.Context(), u, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"cancel":true}}`))))
	}
	for _, u := range uploads {
		s.ended(u, velerov2.PhaseCanceled)
	}
	s.machineBackupGone(group)
}

// comesBack restores a moment into new claims, and compares them.
func (s *scene) comesBack(m *machineUploads) {
	s.t.Helper()
	ctx := s.t.Context()
	for _, d := range s.disks {
		claim, u := m.group+"-"+d.Name, m.uploads[d.Name]
		mode, path := corev1.PersistentVolumeFilesystem, "/mnt/"+claim+"/disk.img"
		if d.Block {
			mode, path = corev1.PersistentVolumeBlock, "/dev/"+claim
		}
		out, err := exec.CommandContext(ctx, filepath.Join(cluster.build, "bin", "varve"), "data", "download", "create", u.Name, "--kubeconfig", cluster.kubeconfig, "-n", u.Namespace,
			"--from-upload", u.Name, "--to-pvc", claim, "--to-namespace", s.Namespace, "--create-claim", "--volume-mode", string(mode), "--wait").CombinedOutput()
		if err != nil {
			s.t.Fatalf("download of %s: %v: %s", u.Name, err, out)
		}
		s.t.Cleanup(func() {
			_ = s.Delete(context.WithoutCancel(ctx), &velerov2.DataDownload{ObjectMeta: metav1.ObjectMeta{Namespace: u.Namespace, Name: u.Name}})
		})
		box, err := s.Toolbox(ctx, "compare-"+claim, claim)
		s.must(err)
		text, err := box.Run(ctx, "sha256sum "+path)
		s.must(errors.Join(err, box.Close(ctx)))
		if got, _, _ := strings.Cut(text, " "); got != m.sums[d.Name] {
			s.t.Errorf("%s, volume %s: restored %s, the disk held %s", m.group, d.Name, got, m.sums[d.Name])
		}
	}
}

// deletesUploads deletes the scene's DataUploads, and their restore points with them.
func (s *scene) deletesUploads() {
	s.t.Helper()
	ctx := s.t.Context()
	s.must(wait.For(ctx, 3*time.Minute, "the DataUploads to be gone", func(ctx context.Context) (bool, string, error) {
		var list velerov2.DataUploadList
		if err := s.List(ctx, &list, client.InNamespace(layout.Namespace)); err != nil {
			return false, "", err
		}
		var left []string
		for i := range list.Items {
			u := &list.Items[i]
			if u.Spec.SourceNamespace != s.Namespace {
				continue
			}
			left = append(left, u.Name+": "+u.Status.Message)
			if u.DeletionTimestamp == nil {
				if err := s.Delete(ctx, u); client.IgnoreNotFound(err) != nil {
					return false, "", err
				}
			}
		}
		return len(left) == 0, strings.Join(left, "; "), nil
	}))
	if n := s.countRestorePoints(layout.Namespace); n != 0 {
		s.t.Errorf("%d restore points are left", n)
	}
}
