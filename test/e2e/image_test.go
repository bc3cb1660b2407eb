//go:build e2e

package e2e

import (
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"hash"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/store/names"
	"github.com/varvebackup/varve/test/lab"
	"github.com/varvebackup/varve/test/verdict"
)

const imageTimeout = 5 * time.Minute

// TestImage_isClonedBackedUpAndBack has a Debian image on a disk of each node, once from a qcow2 file and once from the
// raw one, and once more from a qcow2 file that is uploaded. The first image is downloaded to a file. A machine boots
// from a clone, is backed up twice, the second time by what changed, is lost, and comes back; its disk becomes an image
// itself, and so does its backup.
func TestImage_isClonedBackedUpAndBack(t *testing.T) {
	s := newScene(t, "image")
	ctx := t.Context()
	files := t.TempDir()
	qcow2, raw := filepath.Join(files, "debian-13.1.qcow2"), filepath.Join(files, "debian-13.1.raw")
	s.must(os.Link(filepath.Join(s.GuestDir, lab.Debian.RootDisk), qcow2))
	out, err := exec.CommandContext(ctx, "qemu-img", "convert", "-f", "qcow2", "-O", "raw", qcow2, raw).CombinedOutput()
	if err != nil {
		t.Fatalf("qemu-img: %v: %s", err, out)
	}
	address, stop, err := lab.ServeFiles(ctx, os.Getenv("VARVE_BOX_DIR"), files)
	s.must(err)
	t.Cleanup(stop)

	var images []string
	for _, file := range []string{qcow2, raw} {
		name := "e2e-" + filepath.Base(file)
		images = append(images, name)
		s.freshImage(name)
		began := time.Now()
		image, err := s.DownloadImage(ctx, name, address+"/"+filepath.Base(file), 2, imageTimeout)
		s.must(err)
		t.Logf("image %s: 2 copies of %d MiB (%d MiB on the disk) after %s", name, image.Status.Size/mib,
			image.Status.RealSize/mib, time.Since(began).Round(100*time.Millisecond))
		if sum, size := sumFile(t, raw); image.Status.Checksum != sum || image.Status.Size != size {
			verdict.Errorf(t, "image %s has %d bytes with the SHA-512 %s, and its source %d with %s", name,
				image.Status.Size, image.Status.Checksum, size, sum)
		}
		s.cloneHolds(name, raw)
	}
	s.freshImage("e2e-clone")
	clone, err := s.CloneImage(ctx, "e2e-clone", images[1], imageTimeout)
	s.must(err)
	s.must(s.DeleteImage(ctx, images[1], time.Minute))
	if sum, _ := sumFile(t, raw); clone.Status.Checksum != sum {
		verdict.Errorf(t, "the clone of the image has the SHA-512 %s, and its source %s", clone.Status.Checksum, sum)
	}
	s.uploadsImage("e2e-upload", qcow2, raw)
	s.downloadsImage(images[0], raw)
	s.bootClone(images[0])
}

// cloneHolds attaches a volume that is a clone of an image, and compares what the pod reads of it with a raw file. The
// volume and its class go afterwards.
func (s *scene) cloneHolds(image, raw string) {
	s.t.Helper()
	ctx := s.t.Context()
	sum, size := hashFile(s.t, raw, sha256.New())
	const name = "of-image"
	s.compareClone(name, image, size, sum)
	volume := &longhornv1.Volume{ObjectMeta: metav1.ObjectMeta{Namespace: layout.Namespace, Name: s.volumeOf(name)}}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: name}}
	s.must(s.Delete(ctx, claim))
	s.must(s.WaitGone(ctx, claim, 2*time.Minute))
	s.must(s.WaitGone(ctx, volume, 2*time.Minute)) // until then the image has a clone
	s.must(s.DeleteImageClass(ctx, image))
}

// compareClone makes a claim that is a clone of an image, and compares what a pod reads of it with a SHA-256.
func (s *scene) compareClone(claim, image string, size int64, sum string) {
	s.t.Helper()
	ctx := s.t.Context()
	s.must(s.ImageClass(ctx, image))
	s.must(s.ClassClaim(ctx, claim, image, size))
	clone := harvesterv1.PersistentVolumeClaimSourceSpec{}
	clone.ObjectMeta.Name, clone.Spec.VolumeMode = claim, ptr.To(corev1.PersistentVolumeBlock)
	s.holds(clone, sum)
}

// uploadsImage uploads a qcow2 file, which must become an image of what is in raw.
func (s *scene) uploadsImage(name, qcow2, raw string) {
	s.t.Helper()
	ctx := s.t.Context()
	s.freshImage(name)
	began := time.Now()
	image, err := s.UploadImage(ctx, varveProgram(), cluster.kubeconfig, name, qcow2, imageTimeout)
	s.must(err)
	s.t.Logf("image %s was uploaded and ready after %s", name, time.Since(began).Round(100*time.Millisecond))
	if sum, size := sumFile(s.t, raw); image.Status.Checksum != sum || image.Status.Size != size {
		verdict.Errorf(s.t, "image %s has %d bytes with the SHA-512 %s, and its file %d with %s", name, image.Status.Size,
			image.Status.Checksum, size, sum)
	}
	s.must(s.DeleteImage(ctx, name, time.Minute))
}

// downloadsImage downloads an image, which must be what is in raw, and take no more space than that.
func (s *scene) downloadsImage(name, raw string) {
	s.t.Helper()
	file := filepath.Join(s.t.TempDir(), name+".raw")
	began := time.Now()
	s.must(s.SaveImage(s.t.Context(), varveProgram(), cluster.kubeconfig, name, file, imageTimeout))
	sum, size := sumFile(s.t, raw)
	s.t.Logf("image %s of %d MiB was downloaded after %s", name, size/mib, time.Since(began).Round(100*time.Millisecond))
	if got, bytes := sumFile(s.t, file); got != sum || bytes != size {
		verdict.Errorf(s.t, "the file of image %s has %d bytes with the SHA-512 %s, and its source %d with %s", name, bytes,
			got, size, sum)
	}
	if got, want := allocatedBytes(s.t, file), allocatedBytes(s.t, raw); got > want+want/4 {
		s.t.Errorf("the file of image %s takes %d MiB, and its source %d", name, got/mib, want/mib)
	}
}

// allocatedBytes returns how much space a file takes.
func allocatedBytes(t *testing.T, file string) int64 {
	t.Helper()
	var stat unix.Stat_t
	if err := unix.Stat(file, &stat); err != nil {
		t.Fatal(err)
	}
	return stat.Blocks * 512
}

// freshImage removes an image and its storage class, which an earlier run may have left, now and after the test.
func (s *scene) freshImage(name string) {
	s.t.Helper()
	remove := func(ctx context.Context) {
		s.must(s.DeleteImageClass(ctx, name))
		s.must(s.DeleteImage(ctx, name, time.Minute))
	}
	remove(s.t.Context())
	s.t.Cleanup(func() { // after the volumes are gone
		ctx := context.WithoutCancel(s.t.Context())
		if err := s.DeleteNamespace(ctx, 4*time.Minute); err != nil {
			s.t.Error(err)
		}
		remove(ctx)
	})
}

// bootClone boots a machine from a clone of an image, and takes it through backups, loss and restore.
func (s *scene) bootClone(image string) {
	s.t.Helper()
	ctx := s.t.Context()
	s.must(s.ImageClass(ctx, image))
	claim := lab.ClaimName(s.vm, "root")
	s.must(s.ClassClaim(ctx, claim, image, 3*gib))
	bound := make(chan time.Duration, 1)
	go func() {
		d, err := s.MeasureBinding(ctx, claim, bootTimeout)
		if err != nil {
			s.t.Error(err)
		}
		bound <- d
	}()
	s.disks = []lab.Disk{{Name: "root", Bytes: 3 * gib, Block: true}}
	s.must(s.StartTracked(ctx, s.vm, lab.Debian, 2*bootTimeout, s.disks...))
	s.t.Logf("a clone of 3 GiB was bound after %s", (<-bound).Round(time.Millisecond))
	if got := strings.TrimSpace(s.guest("cat /sys/block/vda/queue/logical_block_size")); got != "512" {
		s.t.Errorf("the guest sees sectors of %s bytes", got)
	}
	err := s.Delete(ctx, &longhornv1.BackingImage{ObjectMeta: metav1.ObjectMeta{Namespace: layout.Namespace, Name: image}})
	if err == nil || !strings.Contains(err.Error(), s.volumeOf(claim)) {
		s.t.Errorf("an image that a volume is cloned from was deleted: %v", err)
	}

	location, err := s.BucketLocation(ctx, "e2e-image", os.Getenv("VARVE_BOX_DIR"))
	s.must(err)
	s.t.Cleanup(func() { s.must(location.Remove(context.WithoutCancel(ctx))) })
	s.guest("echo alive >/root/proof; sync")
	_, err = s.BackUpMachine(ctx, "image-1", s.vm, "true", moveTimeout, location)
	s.must(err)
	s.guest("echo again >>/root/proof; sync")
	second, err := s.BackUpMachine(ctx, "image-2", s.vm, "true", moveTimeout, location)
	s.must(err)
	for _, v := range second.Status.VolumeBackups {
		s.t.Logf("volume %s: %d MiB changed", v.VolumeName, v.ChangedBytes/mib)
		if v.FullReason != "" || v.ChangedBytes >= 100*mib {
			s.t.Errorf("volume %s of the second backup: %+v", v.VolumeName, v)
		}
	}
	own := s.ownBytes(s.volumeOf(claim))
	s.must(s.DeleteMachine(ctx, s.vm, 2*time.Minute))
	r, err := s.RestoreMachine(ctx, second, s.vm, moveTimeout)
	s.must(err)
	for _, v := range r.Status.VolumeRestores {
		s.sharesImage(v, image, own)
		s.holds(v.PersistentVolumeClaim, second.Sums[v.VolumeName])
		s.freshImage("e2e-export")
		_, err := s.ExportVolume(ctx, "e2e-export", s.volumeOf(v.PersistentVolumeClaim.ObjectMeta.Name), second.Sums[v.VolumeName],
			imageTimeout)
		s.must(err)
		s.restoreImage(second, v.VolumeName)
	}
	s.strategy("Always")
	_, err = s.WaitAgent(ctx, s.vm, 2*bootTimeout)
	s.must(err)
	if got := s.guest("cat /root/proof"); strings.TrimSpace(got) != "alive\nagain" {
		verdict.Errorf(s.t, "the restored machine has %q", got)
	}
}

// sharesImage checks that a restored volume is a clone of an image again, and that it shares with the image all that the
// lost machine's volume did: no more bytes are its own.
func (s *scene) sharesImage(v harvesterv1.VolumeRestore, image string, before int64) {
	s.t.Helper()
	replica := &longhornv1.Replica{}
	key := client.ObjectKey{Namespace: layout.Namespace, Name: s.volumeOf(v.PersistentVolumeClaim.ObjectMeta.Name)}
	s.must(s.Get(s.t.Context(), key, replica))
	if replica.Spec.BackingImage != image {
		verdict.Errorf(s.t, "restored volume %s is a clone of %q, not of %s", key.Name, replica.Spec.BackingImage, image)
	}
	own := s.ownBytes(key.Name)
	s.t.Logf("volume %s: %d MiB were its own, and of the restored one %d MiB", v.VolumeName, before/mib, own/mib)
	if own > before+16*mib {
		verdict.Errorf(s.t, "%d MiB of the restored volume are its own, and of the lost one %d MiB", own/mib, before/mib)
	}
}

// ownBytes returns how many bytes a volume shares with no other file.
func (s *scene) ownBytes(volume string) int64 {
	s.t.Helper()
	disks := filepath.Join(os.Getenv("VARVE_BOX_DIR"), "volumes", "*", "store")
	heads, err := filepath.Glob(filepath.Join(disks, "volumes", volume, "*", "head"))
	s.must(err)
	if len(heads) != 1 {
		s.t.Fatalf("volume %s has the files %v", volume, heads)
	}
	out, err := exec.CommandContext(s.t.Context(), "filefrag", "-s", "-v", heads[0]).CombinedOutput()
	if err != nil {
		s.t.Fatalf("filefrag: %v: %s", err, out)
	}
	const block = 4096
	var own int64
	for line := range strings.Lines(string(out)) {
		// number: first..last of the file: first..last of the disk: length: expected: flags
		fields := strings.Split(line, ":")
		if len(fields) < 5 || strings.Contains(line, "shared") {
			continue
		}
		if n, err := strconv.ParseInt(strings.TrimSpace(fields[3]), 10, 64); err == nil {
			own += n * block
		}
	}
	return own
}

// restoreImage makes an image of a disk in a backup, and compares a clone of the image with the disk. The volume and the
// machine are not needed.
func (s *scene) restoreImage(b *lab.MachineBackup, volume string) {
	s.t.Helper()
	const name = "e2e-restore"
	ctx := s.t.Context()
	i := slices.IndexFunc(b.Status.VolumeBackups, func(v harvesterv1.VolumeBackup) bool { return v.VolumeName == volume })
	stored := b.Status.VolumeBackups[i]
	s.freshImage(name)
	began := time.Now()
	image, err := s.RestoreImage(ctx, name, b.Status.Location.Name, stored.SnapshotID, b.Sums[volume], imageTimeout)
	s.must(err)
	s.t.Logf("an image of %d MiB (%d MiB on the disk) was restored after %s", image.Status.Size/mib,
		image.Status.RealSize/mib, time.Since(began).Round(100*time.Millisecond))
	if image.Status.Size != stored.VolumeSize {
		verdict.Errorf(s.t, "the image has %d bytes, and the disk had %d", image.Status.Size, stored.VolumeSize)
	}
	s.compareClone("of-backup", name, image.Status.Size, b.Sums[volume])
	s.backUpImage(image)
}

// backUpImage stores an image that was restored, deletes it, and brings it back. Its backup goes with its restore point.
func (s *scene) backUpImage(image *longhornv1.BackingImage) {
	s.t.Helper()
	const name = "e2e-image-backup"
	ctx := s.t.Context()
	location := string(image.Spec.SourceParameters[longhornv1.ParameterLocation])
	left := &longhornv1.BackupBackingImage{ObjectMeta: metav1.ObjectMeta{Namespace: layout.Namespace, Name: name}}
	s.must(client.IgnoreNotFound(s.Delete(ctx, left))) // of an earlier run
	s.must(s.WaitGone(ctx, left, imageTimeout))
	b, err := s.BackUpImage(ctx, name, image.Name, location, imageTimeout)
	s.must(err)
	s.freshImage("e2e-again")
	again, err := s.RestoreImage(ctx, "e2e-again", location, b.Status.SnapshotID, b.Status.Checksum, imageTimeout)
	s.must(err)
	if again.Status.Size != image.Status.Size || again.Status.Checksum != image.Status.Checksum {
		verdict.Errorf(s.t, "the image came back with %d bytes and %s, and had %d and %s", again.Status.Size,
			again.Status.Checksum, image.Status.Size, image.Status.Checksum)
	}
	s.must(s.Delete(ctx, b))
	s.must(s.WaitGone(ctx, b, imageTimeout))
}

// volumeOf returns the volume of a claim.
func (s *scene) volumeOf(claim string) string {
	s.t.Helper()
	pvc := &corev1.PersistentVolumeClaim{}
	s.must(s.Get(s.t.Context(), client.ObjectKey{Namespace: s.Namespace, Name: claim}, pvc))
	return names.VolumeHandle(pvc.Spec.VolumeName)
}

// sumFile returns the SHA-512 of a file in hexadecimal, and its size.
func sumFile(t *testing.T, path string) (sum string, size int64) {
	t.Helper()
	return hashFile(t, path, sha512.New())
}

// hashFile returns what a hash makes of a file, in hexadecimal, and the file's size.
func hashFile(t *testing.T, path string, h hash.Hash) (sum string, size int64) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if size, err = io.Copy(h, f); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(h.Sum(nil)), size
}
