//go:build e2e

package e2e

import (
	"context"
	"errors"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/lab"
	"github.com/varvebackup/varve/test/s3"
	"github.com/varvebackup/varve/test/verdict"
)

// The disks of a running machine go by changed blocks into a repository on S3, while the guest overwrites what is stored. Each moment
// comes back into new claims as it was, no CSI snapshot and no export is made, and nothing is left.
func TestMachineUpload_movesChangedBlocksAndBringsThemBack(t *testing.T) {
	s := newScene(t, "blocks")
	ctx := t.Context()
	s.boot(lab.Disk{Name: "fs", Bytes: 96 * mib}, lab.Disk{Name: "blk", Bytes: 48 * mib, Block: true})
	s.target("scratch", 512*mib)
	s.tracker("daily")
	s.must(s.DeleteUploads(ctx, 12*time.Minute)) // what a run left that was killed: without its location it goes after ten minutes
	location, err := s.BucketLocation(ctx, "e2e-blocks", os.Getenv("VARVE_BOX_DIR"))
	s.must(err)
	t.Cleanup(func() {
		s.must(errors.Join(s.DeleteUploads(context.WithoutCancel(ctx), 3*time.Minute), location.Remove(context.WithoutCancel(ctx))))
	})
	const device = `b=/dev/$(grep -lx blk /sys/block/*/serial | cut -d/ -f4); `
	s.guest(device + `mkdir /disks/fs/x; for i in 1 2 3; do head -c 3000000 /dev/urandom >/disks/fs/x/$i; done; head -c 10000000 /dev/urandom | dd of=$b bs=1M conv=notrunc; sync`)
	overwrite := device + `for i in 1 2 3; do head -c 3000000 /dev/urandom >/disks/fs/x/$i; done; head -c 12000000 /dev/urandom | dd of=$b bs=1M conv=notrunc,fsync; sync`

	var moments []*lab.MachineUploads
	moments = append(moments, s.uploadMachine("m1", location, overwrite))
	s.guest(device + `head -c 2000000 /dev/urandom | dd of=$b bs=1M seek=20 conv=notrunc,fsync; sync`)
	moments = append(moments, s.uploadMachine("m2", location, overwrite))
	for _, m := range moments {
		s.comesBack(m)
	}

	// Nobody has stored this one: the tracker stays where it is.
	stays := s.checkpoint("daily")
	s.canceledMachine("m3", location)
	if c := s.checkpoint("daily"); c == nil || stays == nil || c.Name != stays.Name {
		t.Errorf("the tracker has %+v, had %+v", c, stays)
	}
	s.must(s.Restart(ctx, s.vm))
	_, err = s.WaitAgent(ctx, s.vm, bootTimeout)
	s.must(err)
	s.guest(device + `head -c 1000000 /dev/urandom | dd of=$b bs=1M seek=30 conv=notrunc,fsync; sync`)
	// What the bucket has lost is stored again, although nothing of it has changed on the disks.
	s.losePack(location)
	moments = append(moments, s.uploadMachine("m4", location, `true`))
	s.comesBack(moments[2])

	for i, m := range moments {
		for volume, u := range m.Uploads {
			t.Logf("%s %s: %d of %d bytes new or changed, full because %q", m.Group, volume, u.Status.IncrementalBytes, u.Status.Progress.TotalBytes, u.Status.DataMoverResult["fullReason"])
			if i > 0 && (u.Status.DataMoverResult["fullReason"] != "" || u.Status.IncrementalBytes >= 40*mib) {
				t.Errorf("%s %s is not incremental: %+v", m.Group, volume, u.Status)
			}
		}
	}
	s.nothingServed()
	s.nothingOfMovesIsLeft()
	s.must(s.DeleteUploads(ctx, 3*time.Minute))
	if n := s.countRestorePoints(client.ObjectKeyFromObject(location)); n != 0 {
		t.Errorf("%d restore points are left", n)
	}
	s.step("as the documents say", (*scene).uploadByTheBook)
	s.step("lost and back", func(s *scene) { s.backedUpLostAndBack(location, overwrite) })
}

// uploadMachine stores the machine as it is frozen. The guest runs a script while it is stored.
func (s *scene) uploadMachine(name string, at *lab.Location, script string) *lab.MachineUploads {
	s.t.Helper()
	began := time.Now()
	m, err := s.UploadMoment(s.t.Context(), name, s.vm, "daily", "scratch", script, moveTimeout, at, s.disks...)
	s.must(err)
	s.t.Logf("%s took %s with the guest's writes", name, time.Since(began).Round(100*time.Millisecond))
	return m
}

// losePack deletes the largest pack of the location's repository from the bucket.
func (s *scene) losePack(at *lab.Location) {
	s.t.Helper()
	store, _, err := s3.OnBox(os.Getenv("VARVE_BOX_DIR"))
	s.must(err)
	bucket := store.Client(s.t)
	var largest minio.ObjectInfo
	for o := range bucket.ListObjects(s.t.Context(), store.Bucket, minio.ListObjectsOptions{Prefix: at.Spec.ObjectStorage.Prefix, Recursive: true}) {
		s.must(o.Err)
		if strings.HasPrefix(path.Base(o.Key), "p") && o.Size > largest.Size {
			largest = o
		}
	}
	if largest.Size < mib {
		s.t.Fatalf("the largest pack is %q of %d bytes", largest.Key, largest.Size)
	}
	s.must(bucket.RemoveObject(s.t.Context(), store.Bucket, largest.Key, minio.RemoveObjectOptions{}))
	s.t.Logf("the bucket has lost %s, %d bytes", largest.Key, largest.Size)
}

// canceledMachine begins to store the machine and cancels that.
func (s *scene) canceledMachine(name string, at *lab.Location) {
	s.t.Helper()
	m, err := s.UploadDisks(s.t.Context(), name, s.vm, "daily", "scratch", at, s.disks...)
	s.must(err)
	for _, u := range m.Uploads {
		s.must(s.Patch(s.t.Context(), u, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"cancel":true}}`))))
	}
	s.must(s.WaitUploads(s.t.Context(), m, velerov2.PhaseCanceled, moveTimeout))
}

// comesBack restores a moment into new claims, and compares them.
func (s *scene) comesBack(m *lab.MachineUploads) {
	s.t.Helper()
	ctx := s.t.Context()
	for _, d := range s.disks {
		u := m.Uploads[d.Name]
		claim := u.Name
		mode, path := corev1.PersistentVolumeFilesystem, "/mnt/"+claim+"/disk.img"
		if d.Block {
			mode, path = corev1.PersistentVolumeBlock, "/dev/"+claim
		}
		s.must(s.Download(ctx, varveProgram(), cluster.kubeconfig, u, claim, mode))
		box, err := s.Toolbox(ctx, "compare-"+claim, claim)
		s.must(err)
		text, err := box.Run(ctx, "sha256sum "+path)
		s.must(errors.Join(err, box.Close(ctx)))
		if got, _, _ := strings.Cut(text, " "); got != m.Sums[d.Name] {
			verdict.Errorf(s.t, "%s, volume %s: restored %s, the disk held %s", m.Group, d.Name, got, m.Sums[d.Name])
		}
	}
}

// uploadByTheBook runs what docs/locations.md says about running machines, word for word but for names and the size of the scratch claim.
func (s *scene) uploadByTheBook() {
	s.t.Helper()
	ctx := s.t.Context()
	shelf := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: layout.Namespace, Name: s.Namespace + "-backups"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
	s.must(client.IgnoreNotFound(s.Delete(ctx, shelf.DeepCopy())))
	s.must(s.WaitGone(ctx, shelf.DeepCopy(), time.Minute))
	s.must(s.Create(ctx, shelf))
	location, file := s.Namespace+"-shelf", filepath.Join(s.t.TempDir(), "web-root.img")
	s.t.Cleanup(func() {
		// In this order: without their location, or its claim, DataUploads wait.
		ctx := context.WithoutCancel(ctx)
		s.must(s.DeleteUploads(ctx, 3*time.Minute))
		at := &velerov1.BackupStorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: layout.Namespace, Name: location}}
		var downloads velerov2.DataDownloadList
		s.must(errors.Join(client.IgnoreNotFound(s.Delete(ctx, at)), client.IgnoreNotFound(s.Delete(ctx, shelf)), s.List(ctx, &downloads, client.InNamespace(layout.Namespace))))
		for i := range downloads.Items {
			if d := &downloads.Items[i]; d.Spec.TargetVolume.Namespace == s.Namespace {
				s.must(client.IgnoreNotFound(s.Delete(ctx, d)))
			}
		}
	})
	script := s.commands("docs/locations.md", "Running machines, by changed blocks")
	repositories := s.commands("docs/locations.md", "Repositories by the name of their location")
	if len(script) < 12 || len(repositories) != 2 {
		s.t.Fatalf("the sections have the commands %q and %q", script, repositories)
	}
	s.shell("varve location delete " + location + " -n varve --wait || true") // what a run left that was killed
	replace := strings.NewReplacer(
		"claim://backups", "claim://"+shelf.Name, " shelf ", " "+location+" ", "--location shelf", "--location "+location, "20Gi", "512Mi",
		"-n app", "-n "+s.Namespace, "namespace app", "namespace "+s.Namespace, "--vm web", "--vm "+s.vm,
		"app/web-root", s.Namespace+"/"+lab.ClaimName(s.vm, s.disks[0].Name), "web-root.img", file,
		"web-monday-root", s.Namespace+"-monday-"+s.disks[0].Name, "web-monday", s.Namespace+"-monday", "root-restored", "by-the-book",
	)
	out := s.shell(replace.Replace(strings.Join(append(script, repositories...), "\n")))
	for _, want := range []string{s.Namespace + "-monday-" + s.disks[0].Name, s.Namespace + "/" + lab.ClaimName(s.vm, s.disks[0].Name), "2 restore points good"} {
		if !strings.Contains(out, want) {
			s.t.Errorf("%s is not shown:\n%s", want, out)
		}
	}
	s.noStorageIsServed()
	box, err := s.Toolbox(ctx, "compare-by-the-book", "by-the-book")
	s.must(err)
	_, err = box.Run(ctx, "e2fsck -fn /mnt/by-the-book/disk.img")
	s.must(err)
	restored, err := box.Run(ctx, "sha256sum < /mnt/by-the-book/disk.img")
	s.must(errors.Join(err, box.Close(ctx)))
	if local := s.shell("sha256sum < " + file); !strings.HasSuffix(strings.TrimSpace(local), strings.TrimSpace(restored)) {
		verdict.Errorf(s.t, "the claim has %s, and the file %s", restored, local)
	}
	s.restoreElsewhere(shelf.Name, location, restored)
}

// restoreElsewhere restores a disk as another cluster does, from the claim and the password alone: by a read-only location of another name, and
// by the snapshot ID that a list shows. sum is what sha256sum says of the disk.
func (s *scene) restoreElsewhere(claim, location, sum string) {
	s.t.Helper()
	ctx := s.t.Context()
	elsewhere := s.Namespace + "-elsewhere"
	s.t.Cleanup(func() {
		at := &velerov1.BackupStorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: layout.Namespace, Name: elsewhere}}
		s.must(client.IgnoreNotFound(s.Delete(context.WithoutCancel(ctx), at)))
	})
	s.shell(strings.NewReplacer("$FROM", location, "$AT", elsewhere, "$CLAIM", claim, "$NAMESPACE", s.Namespace, "$DISK", s.Namespace+"/"+lab.ClaimName(s.vm, s.disks[0].Name),
		"$PASSWORD", filepath.Join(s.t.TempDir(), "password")).Replace(`
		varve location delete $AT -n varve --wait || true # what a run left that was killed
		varve location password export $FROM -n varve > $PASSWORD
		varve location create $AT claim://$CLAIM -n varve --read-only --wait
		varve location password import $AT -n varve --password-file $PASSWORD
		id=$(varve disk list --location varve/$AT -n $NAMESPACE -o wide | awk '$4 == "$DISK" {print $NF}')
		varve data download create --snapshot-id "$id" --location $AT -n varve --to-pvc elsewhere --to-namespace $NAMESPACE --create-claim --size 512Mi --wait`))
	box, err := s.Toolbox(ctx, "compare-elsewhere", "elsewhere")
	s.must(err)
	got, err := box.Run(ctx, "sha256sum < /mnt/elsewhere/disk.img")
	s.must(errors.Join(err, box.Close(ctx)))
	if got != sum {
		verdict.Errorf(s.t, "elsewhere, the disk has %s, not %s", got, sum)
	}
}

// noStorageIsServed checks that no command has left its pod.
func (s *scene) noStorageIsServed() {
	s.t.Helper()
	var jobs batchv1.JobList
	s.must(s.List(s.t.Context(), &jobs, client.InNamespace(layout.Namespace), client.HasLabels{datamove.LabelLook}))
	for i := range jobs.Items {
		if jobs.Items[i].DeletionTimestamp == nil {
			s.t.Errorf("Job %s is left", jobs.Items[i].Name)
		}
	}
}
