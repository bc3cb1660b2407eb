//go:build box

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	snapshotapi "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// What the driver does not offer, csi-sanity skips: attaching by a controller, expansion, ListVolumes, GetCapacity,
// modification, groups.
func TestDriver_passesCSISanity(t *testing.T) {
	program := filepath.Join(string(dir), "csi-sanity") // where the node sees it
	data, err := os.ReadFile(filepath.Join(bin, "../csi-sanity/bin/csi-sanity"))
	if err == nil {
		err = os.WriteFile(program, data, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	mustRun(t, "exec", "node1", "--", "mkdir", "-p", "/tmp/sanity")
	for _, kind := range []string{"mount", "block"} {
		out := mustRun(t, "exec", "node1", "--", program,
			"--csi.endpoint=unix:///var/lib/kubelet/plugins/csi.box.varvebackup.io/csi.sock",
			"--csi.mountdir=/tmp/sanity/mount", "--csi.stagingdir=/tmp/sanity/staging",
			"--csi.testvolumesize=67108864", "--csi.testvolumeaccesstype="+kind, "--ginkgo.no-color")
		if !strings.Contains(out, " 56 Passed") {
			t.Errorf("%s: fewer tests ran than the driver's capabilities ask for:\n%s", kind, out)
		}
	}
	nothingStored(t)
}

// nothingStored fails unless every volume and snapshot is gone from the disk.
func nothingStored(t *testing.T) {
	t.Helper()
	eventually(t, "the files of volumes and snapshots to be deleted", func() error {
		return filepath.WalkDir(dir.Volumes(), func(path string, e fs.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				err = errors.New(path + " is there")
			}
			return err
		})
	})
}

// takeSnapshot makes a VolumeSnapshot of a claim, and removes it with the test.
func takeSnapshot(t *testing.T, name, claim, class string) {
	t.Helper()
	snap := &snapshotapi.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       snapshotapi.VolumeSnapshotSpec{Source: snapshotapi.VolumeSnapshotSource{PersistentVolumeClaimName: &claim}},
	}
	if class != "" {
		snap.Spec.VolumeSnapshotClassName = &class
	}
	if _, err := snapshots.VolumeSnapshots(namespace).Create(context.Background(), snap, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dropSnapshot(t, name) })
}

// dropSnapshot deletes a VolumeSnapshot and waits until it is gone.
func dropSnapshot(t *testing.T, name string) {
	t.Helper()
	eventually(t, "the VolumeSnapshot "+name+" to be deleted", func() error {
		err := snapshots.VolumeSnapshots(namespace).Delete(context.Background(), name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errors.New("it is still there"))
	})
}

// readyContent waits until a VolumeSnapshot can be used, and returns its content.
func readyContent(t *testing.T, name string) *snapshotapi.VolumeSnapshotContent {
	t.Helper()
	var content *snapshotapi.VolumeSnapshotContent
	eventually(t, "the VolumeSnapshot "+name, func() error {
		snap, err := snapshots.VolumeSnapshots(namespace).Get(context.Background(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if s := snap.Status; s == nil || s.ReadyToUse == nil || !*s.ReadyToUse || s.BoundVolumeSnapshotContentName == nil {
			return fmt.Errorf("not ready: %+v", s)
		}
		content, err = snapshots.VolumeSnapshotContents().Get(context.Background(), *snap.Status.BoundVolumeSnapshotContentName, metav1.GetOptions{})
		return err
	})
	return content
}

func snapshotFile(content *snapshotapi.VolumeSnapshotContent) string {
	return filepath.Join(dir.Volumes(), "snapshots", *content.Status.SnapshotHandle+".snap")
}

// waitRemoved waits until a file is gone.
func waitRemoved(t *testing.T, file string) {
	t.Helper()
	eventually(t, file+" to be deleted", func() error {
		if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("it is still there (%w)", err)
		}
		return nil
	})
}

// from gives a claim the content of a snapshot, or of another claim.
func from(kind, name string) func(*corev1.PersistentVolumeClaim) {
	return func(p *corev1.PersistentVolumeClaim) {
		p.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: kind, Name: name}
		if kind == "VolumeSnapshot" {
			group := snapshotapi.GroupName
			p.Spec.DataSource.APIGroup = &group
		}
	}
}

// The logs of records that the probe writes: two files, and the two halves of a device.
var (
	fileLogs   = []string{"/data/a", "/data/b"}
	deviceLogs = []string{"/dev/data@0", "/dev/data@33554432"}
)

// count returns the number of records in a pod's logs, which are consistent.
func count(t *testing.T, pod string, logs []string) int {
	t.Helper()
	n, err := strconv.Atoi(probe(t, pod, "count", logs[0], logs[1]))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// startWriting lets a pod write records until the test's end, and waits until some are there.
func startWriting(t *testing.T, pod string, logs []string) {
	t.Helper()
	cmd := exec.Command(dir.Program("kubectl"), "exec", pod, "--", "/probe", "append", logs[0], logs[1])
	cmd.Env = append(os.Environ(), "KUBECONFIG="+dir.Kubeconfig())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	})
	eventually(t, "the first records", func() error {
		n, err := kubectl("exec", pod, "--", "/probe", "count", logs[1])
		if err == nil && len(n) < 2 {
			err = fmt.Errorf("%s records are there", n)
		}
		return err
	})
}

// A snapshot of a volume that is written all the time is one moment of it: every record before it, and none after a gap.
// The volumes are on node2, and the snapshotter on node1.
func TestSnapshots_arePointsInTime(t *testing.T) {
	claim(t, "files", "", "64Mi", corev1.PersistentVolumeFilesystem)
	claim(t, "device", "", "64Mi", corev1.PersistentVolumeBlock)
	start(t, probePod("writer", "node2", withClaim("files", corev1.PersistentVolumeFilesystem), withDevice("device")))
	startWriting(t, "writer", fileLogs)
	startWriting(t, "writer", deviceLogs)

	least := map[string]int{}
	for name, logs := range map[string][]string{"files": fileLogs, "device": deviceLogs} {
		eventually(t, "a count of "+name, func() error { // a record may come while it is counted
			text, err := kubectl("exec", "writer", "--", "/probe", "count", logs[1]) // both logs would move meanwhile
			if err == nil {
				least[name], err = strconv.Atoi(text)
			}
			return err
		})
	}
	takeSnapshot(t, "files", "files", "box")
	takeSnapshot(t, "device", "device", "box-retain")
	files, device := readyContent(t, "files"), readyContent(t, "device")

	claim(t, "files2", "", "100Mi", corev1.PersistentVolumeFilesystem, from("VolumeSnapshot", "files"))
	claim(t, "device2", "", "64Mi", corev1.PersistentVolumeBlock, from("VolumeSnapshot", "device"))
	claim(t, "clone", "", "64Mi", corev1.PersistentVolumeFilesystem, from("PersistentVolumeClaim", "files"))
	start(t, probePod("reader", "node2", withClaim("files2", corev1.PersistentVolumeFilesystem), withDevice("device2")))
	start(t, probePod("cloned", "node2", withClaim("clone", corev1.PersistentVolumeFilesystem)))
	have := map[string]int{"files": count(t, "reader", fileLogs), "device": count(t, "reader", deviceLogs)}
	for name, n := range have {
		if n < least[name] {
			t.Errorf(wrongData+"the snapshot of %s has %d records, and %d were there before it", name, n, least[name])
		}
		t.Logf("%s: %d records before, %d in the snapshot", name, least[name], n)
	}
	if n := count(t, "cloned", fileLogs); n < have["files"] {
		t.Errorf(wrongData+"the clone has %d records, and the snapshot before it %d", n, have["files"])
	}
	if bytes, err := strconv.Atoi(probe(t, "reader", "capacity", "/data")); err != nil || bytes < 80*mib {
		t.Errorf("the file system of the larger claim has %d bytes, %v", bytes, err)
	}
	stop(t, "writer")
	stop(t, "reader")
	start(t, probePod("source", "node2", withClaim("files", corev1.PersistentVolumeFilesystem)))
	if n := count(t, "source", fileLogs); n <= have["files"] {
		t.Errorf("the volume has %d records, and the snapshot %d: nobody wrote meanwhile", n, have["files"])
	}

	// The class box deletes, and box-retain does not.
	dropSnapshot(t, "files")
	waitRemoved(t, snapshotFile(files))
	dropSnapshot(t, "device")
	deletePolicy(t, device)
	waitRemoved(t, snapshotFile(device))
}

// deletePolicy checks that a content outlives its VolumeSnapshot, and deletes it with its snapshot.
func deletePolicy(t *testing.T, content *snapshotapi.VolumeSnapshotContent) {
	t.Helper()
	patch := []byte(`{"spec":{"deletionPolicy":"Delete"}}`)
	_, err := snapshots.VolumeSnapshotContents().Patch(t.Context(), content.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		t.Fatalf("the retained content: %v", err)
	}
	if _, err := os.Stat(snapshotFile(content)); err != nil {
		t.Errorf("the retained snapshot: %v", err)
	}
	if err := snapshots.VolumeSnapshotContents().Delete(t.Context(), content.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// Many pods of a node may read a snapshot at once, and none may write.
func TestSnapshots_areReadByMany(t *testing.T) {
	claim(t, "files", "", "32Mi", corev1.PersistentVolumeFilesystem)
	start(t, probePod("writer", "node1", withClaim("files", corev1.PersistentVolumeFilesystem)))
	want := probe(t, "writer", "fill", "/data/file", fmt.Sprint(mib))
	takeSnapshot(t, "files", "files", "")
	readyContent(t, "files")
	claim(t, "readers", "", "32Mi", corev1.PersistentVolumeFilesystem, from("VolumeSnapshot", "files"), func(p *corev1.PersistentVolumeClaim) {
		p.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}
	})
	for _, name := range []string{"reader1", "reader2"} {
		start(t, probePod(name, "node1", withClaim("readers", corev1.PersistentVolumeFilesystem)))
		if got := probe(t, name, "sum", "/data/file", fmt.Sprint(mib)); got != want {
			t.Errorf(wrongData+"%s reads %s, not %s", name, got, want)
		}
		if _, err := kubectl("exec", name, "--", "/probe", "fill", "/data/file", "1"); err == nil || !strings.Contains(err.Error(), "read-only") {
			t.Errorf("%s writes: %v", name, err)
		}
	}
}

// The class box-nosnap is of a driver as there are many: no snapshot is ever made, and the VolumeSnapshot says why.
func TestSnapshots_failWithoutTheCapability(t *testing.T) {
	claim(t, "plain", "box-nosnap", "16Mi", corev1.PersistentVolumeFilesystem)
	start(t, probePod("plain", "node1", withClaim("plain", corev1.PersistentVolumeFilesystem)))
	boundVolume(t, "plain")
	// One after the other: while two that failed are there, the snapshot controller leaves its finalizer on the claim for ever.
	for name, class := range map[string]string{"none": "", "others": "box"} {
		takeSnapshot(t, name, "plain", class)
		eventually(t, "the VolumeSnapshot "+name+" to fail", func() error {
			snap, err := snapshots.VolumeSnapshots(namespace).Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if snap.Status == nil || snap.Status.Error == nil || snap.Status.Error.Message == nil {
				return fmt.Errorf("its status is %+v", snap.Status)
			}
			t.Logf("%s: %s", name, *snap.Status.Error.Message)
			return nil
		})
		dropSnapshot(t, name)
	}
}

// A claim with a selector gets no volume of the driver, as with upstream's external-provisioner. It waits for one that
// somebody makes for it, as Velero's claims do while a data mover restores.
func TestSelector_waitsForAVolume(t *testing.T) {
	const label, chosen = "velero.io/dynamic-pv-restore", "volume.kubernetes.io/selected-node"
	onNode2 := func(p *corev1.PersistentVolumeClaim) { p.Annotations = map[string]string{chosen: "node2"} }
	claim(t, "target", "", "16Mi", corev1.PersistentVolumeFilesystem, onNode2, func(p *corev1.PersistentVolumeClaim) {
		p.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{label: "default.target.x"}}
	})
	eventually(t, "the event of the refusal", func() error {
		out, err := kubectl("get", "events", "--field-selector=reason=ProvisioningFailed,involvedObject.name=target", "-o=jsonpath={.items[*].message}")
		if err == nil && !strings.Contains(out, "claim Selector is not supported") {
			err = fmt.Errorf("the events say %q", out)
		}
		return err
	})
	claim(t, "restore", "", "16Mi", corev1.PersistentVolumeFilesystem, onNode2)
	volume := boundVolume(t, "restore")
	target, err := client.CoreV1().PersistentVolumeClaims(namespace).Get(t.Context(), "target", metav1.GetOptions{})
	if err != nil || target.Status.Phase != corev1.ClaimPending || target.Annotations[chosen] != "node2" {
		t.Errorf("the claim is %s, with %v, %v", target.Status.Phase, target.Annotations, err)
	}

	patchVolume(t, volume, `{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}`)
	if err := client.CoreV1().PersistentVolumeClaims(namespace).Delete(t.Context(), "restore", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the volume to be released", func() error {
		pv, err := client.CoreV1().PersistentVolumes().Get(t.Context(), volume, metav1.GetOptions{})
		if err == nil && pv.Status.Phase != corev1.VolumeReleased {
			err = fmt.Errorf("it is %s", pv.Status.Phase)
		}
		return err
	})
	patchVolume(t, volume, `{"metadata":{"labels":{"`+label+`":"default.target.x"},"annotations":{"pv.kubernetes.io/bound-by-controller":null}},
		"spec":{"claimRef":{"name":"target","uid":null,"resourceVersion":null}}}`)
	if got := boundVolume(t, "target"); got != volume {
		t.Errorf("the claim has the volume %s, not %s", got, volume)
	}
	patchVolume(t, volume, `{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`) // not before: a Released volume would be deleted
}

func patchVolume(t *testing.T, name, patch string) {
	t.Helper()
	_, err := client.CoreV1().PersistentVolumes().Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

func TestSnapshots_leaveNothing(t *testing.T) {
	contents, err := snapshots.VolumeSnapshotContents().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(contents.Items) > 0 {
		t.Errorf("%d contents stay, %v", len(contents.Items), err)
	}
	noLoops(t)
	nothingStored(t)
}
