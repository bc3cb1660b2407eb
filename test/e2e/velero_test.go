//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/lab"
	"github.com/varvebackup/varve/test/s3"
	"github.com/varvebackup/varve/test/velero"
	"github.com/varvebackup/varve/test/verdict"
	"github.com/varvebackup/varve/test/wait"
)

const (
	// moveTimeout bounds a backup or a restore by Velero, with the volumes that are moved.
	moveTimeout = 5 * time.Minute

	treeClaim, deviceClaim = "tree", "device"

	// shortConsumerWait are settings of the data mover.
	shortConsumerWait = "consumerWait: 20s"
)

// An unmodified Velero backs a namespace up with a claim of files, a Block claim and a machine's claim, and Varve moves the volumes. The
// namespace is deleted and restored, and restored once more in another cluster: every file and every block is as it was, and nothing is left
// on the way.
func TestVelero_movesVolumesAndBringsThemBack(t *testing.T) {
	s := newScene(t, "velero")
	ctx := t.Context()
	store, _, err := s3.OnBox(os.Getenv("VARVE_BOX_DIR"))
	s.must(err)
	s.disks = []lab.Disk{{Name: "data", Bytes: 96 * mib}}
	s.must(s.Claim(ctx, treeClaim, 64*mib, corev1.PersistentVolumeFilesystem))
	s.must(s.Claim(ctx, deviceClaim, 64*mib, corev1.PersistentVolumeBlock))
	s.must(s.CreateClaims(ctx, s.vm, s.disks...))
	s.must(s.PopulateExt4(ctx, s.vm, "data", 80*mib, "data", 20))
	machine, err := s.Machine(s.vm, lab.TestSystem, nil, s.disks...)
	s.must(err)
	s.must(s.Create(ctx, machine))
	s.fillVolumes()
	before := s.listVolumes()
	// No pod will use two of the restored claims, whose class makes a volume where its pod is.
	s.setMover(shortConsumerWait)

	v := velero.Start(t, velero.Options{Kubeconfig: cluster.kubeconfig, Store: store, Prefix: fmt.Sprintf("e2e-%d", time.Now().UnixNano())})
	t.Cleanup(func() { v.Remove(t, 3*time.Minute) })
	location := client.ObjectKey{Namespace: v.Namespace, Name: velero.Location}

	s.step("backup", func(s *scene) {
		v.Backup(s.t, "first", append(velero.MoveData(datamove.Mover), "--include-namespaces", s.Namespace)...)
		v.WaitForBackup(s.t, "first", velero.Completed, moveTimeout)
		s.uploadsAreComplete(v.Namespace, 3)
		s.nothingOfMovesIsLeft()
	})
	s.step("restore", func(s *scene) {
		s.must(s.DeleteNamespace(ctx, 4*time.Minute))
		v.Restore(s.t, "again", "first")
		v.WaitForRestore(s.t, "again", velero.Completed, moveTimeout)
		if after := s.listVolumes(); after != before {
			verdict.Errorf(s.t, "before:\n%s\nafter:\n%s", before, after)
		}
		s.nothingOfMovesIsLeft()
	})
	s.step("second cluster", func(s *scene) { s.restoreInSecondCluster(v, "first", before) })
	s.step("delete", func(s *scene) {
		if n := s.countRestorePoints(location); n != 3 {
			verdict.Errorf(s.t, "%d restore points, want 3", n)
		}
		v.DeleteBackup(s.t, "first", 2*time.Minute)
		s.must(wait.For(ctx, 2*time.Minute, "the DataUploads to be gone", func(ctx context.Context) (bool, string, error) {
			var list velerov2.DataUploadList
			err := s.List(ctx, &list, client.InNamespace(v.Namespace))
			var seen []string
			for _, u := range list.Items {
				seen = append(seen, u.Name+": "+u.Status.Message)
			}
			return len(seen) == 0, strings.Join(seen, ", "), err
		}))
		if n := s.countRestorePoints(location); n != 0 {
			s.t.Errorf("%d restore points are left", n)
		}
		s.nothingOfMovesIsLeft()
	})
}

// countRestorePoints counts what is in the repository of the scene's namespace in a location.
func (s *scene) countRestorePoints(location client.ObjectKey) int {
	s.t.Helper()
	n, err := s.CountRestorePoints(s.t.Context(), location)
	s.must(err)
	return n
}

// fillVolumes writes files of every kind, and a device with data, zeroes and what nobody wrote.
func (s *scene) fillVolumes() {
	s.t.Helper()
	ctx := s.t.Context()
	box, err := s.Toolbox(ctx, "fill", treeClaim, deviceClaim)
	s.must(err)
	_, err = box.Run(ctx, `
cd /mnt/`+treeClaim+`
mkdir -p deep/er/est empty
for i in $(seq 200); do echo "file $i" > deep/file-$i; done
head -c 5000000 /dev/urandom > deep/er/random
ln deep/er/random hard
ln -s deep/er/random soft
mkfifo pipe
truncate -s 30M sparse
printf end | dd of=sparse bs=1 seek=20000000 conv=notrunc status=none
chmod 4711 deep/file-1; chmod 000 deep/file-2; chown 1234:5678 deep/file-3
touch -d 2001-02-03T04:05:06.789 deep/file-4 deep/er/est
head -c 8M /dev/urandom | dd of=/dev/`+deviceClaim+` bs=1M seek=3 conv=notrunc,fsync status=none
sync`)
	s.must(err)
	s.must(box.Close(ctx))
}

// listVolumes describes every file of the tree and hashes the device and the machine's disk. Each claim has a pod of its own: restored
// volumes that nobody had asked for yet are on any node.
func (s *scene) listVolumes() string {
	s.t.Helper()
	ctx := s.t.Context()
	var list string
	disk := lab.ClaimName(s.vm, "data")
	for _, of := range []struct{ claim, script string }{
		{treeClaim, `
cd /mnt/` + treeClaim + `
find . -mindepth 1 -name lost+found -prune -o -mindepth 1 -type d -printf '%p %y %m %U %G %n - %T@\n' -o -mindepth 1 -printf '%p %y %m %U %G %n %s %T@ %l\n' | sort
find . -type f -print0 | sort -z | xargs -0 sha256sum`},
		{deviceClaim, "sha256sum /dev/" + deviceClaim},
		{disk, "sha256sum /mnt/" + disk + "/disk.img"},
	} {
		box, err := s.Toolbox(ctx, "list-"+of.claim, of.claim)
		s.must(err)
		text, err := box.Run(ctx, of.script)
		s.must(err)
		list += text
		s.must(box.Close(ctx))
	}
	if lines := strings.Count(list, "\n"); lines < 400 {
		s.t.Fatalf("%d lines in the list of what the volumes hold:\n%s", lines, list)
	}
	return list
}

// uploadsAreComplete checks what Velero's DataUploads say in the end.
func (s *scene) uploadsAreComplete(namespace string, want int) {
	s.t.Helper()
	var list velerov2.DataUploadList
	s.must(s.List(s.t.Context(), &list, client.InNamespace(namespace)))
	if len(list.Items) != want {
		s.t.Errorf("%d uploads, want %d", len(list.Items), want)
	}
	forms := map[datamove.Form]int{}
	for _, u := range list.Items {
		id, err := datamove.ParseSnapshotID(u.Status.SnapshotID)
		if err != nil || u.Status.Phase != velerov2.PhaseCompleted || u.Status.Node == "" || u.Status.CompletionTimestamp == nil ||
			u.Status.Progress.TotalBytes == 0 || u.Status.Progress.BytesDone != u.Status.Progress.TotalBytes {
			s.t.Errorf("upload of %s: %v, %+v", u.Spec.SourcePVC, err, u.Status)
		}
		forms[id.Form]++
	}
	if forms[datamove.Disk] != 2 || forms[datamove.Files] != 1 {
		s.t.Errorf("stored as %v, want two disks and a tree of files", forms)
	}
}

// nothingOfMovesIsLeft waits until nothing is left that was made for uploads and downloads: in Varve's namespace, and on the storage.
func (s *scene) nothingOfMovesIsLeft() {
	s.t.Helper()
	s.must(wait.For(s.t.Context(), time.Minute, "nothing of moves to be left", func(ctx context.Context) (bool, string, error) {
		var left []string
		for _, list := range []client.ObjectList{&corev1.PodList{}, &corev1.PersistentVolumeClaimList{}, &snapshotv1.VolumeSnapshotList{}} {
			if err := s.List(ctx, list, client.InNamespace(layout.Namespace), client.HasLabels{datamove.LabelObject}); err != nil {
				return false, "", err
			}
			left = append(left, namesOf(list)...)
		}
		var contents snapshotv1.VolumeSnapshotContentList
		if err := s.List(ctx, &contents); err != nil {
			return false, "", err
		}
		left = append(left, namesOf(&contents)...)
		var volumes corev1.PersistentVolumeList
		if err := s.List(ctx, &volumes); err != nil {
			return false, "", err
		}
		for _, v := range volumes.Items {
			if v.Status.Phase != corev1.VolumeBound {
				left = append(left, "PersistentVolume "+v.Name+" "+string(v.Status.Phase))
			}
		}
		return len(left) == 0, strings.Join(left, ", "), nil
	}))
}
