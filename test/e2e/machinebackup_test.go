//go:build e2e

package e2e

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/controller/keep/harvesterbackup"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/lab"
	"github.com/varvebackup/varve/test/verdict"
)

// backedUpLostAndBack: the machine is backed up by one object, twice, and the second time what has changed is read. It
// is deleted with its claims, and comes back by the commands of docs/restore.md: it boots with the disks, the labels
// and the hardware address that it had. Then it is put back to the first backup.
func (s *scene) backedUpLostAndBack(location *lab.Location, overwrite string) {
	s.t.Helper()
	ctx := s.t.Context()
	vm := s.vmObject()
	vm.Labels["tier"] = "front"
	s.must(s.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: "pull"},
		StringData: map[string]string{"key": "hidden"},
	}))
	vm.Spec.Template.Spec.Domain.Firmware.KernelBoot.Container.ImagePullSecret = "pull"
	s.must(s.Update(ctx, vm))
	s.guest("echo alive >/disks/fs/proof; sync")
	full, err := s.BackUpMachine(ctx, "whole-1", s.vm, overwrite, moveTimeout, location)
	s.must(err)
	s.guest("echo again >>/disks/fs/proof; sync")
	began := time.Now()
	second, err := s.BackUpMachine(ctx, "whole-2", s.vm, overwrite, moveTimeout, location)
	s.must(err)
	s.t.Logf("the second backup took %s with the guest's writes", time.Since(began).Round(100*time.Millisecond))
	for _, v := range second.Status.VolumeBackups {
		if v.FullReason != "" || v.ChangedBytes >= 40*mib || v.SnapshotID == "" {
			s.t.Errorf("volume %s of the second backup: %+v", v.VolumeName, v)
		}
	}
	address := s.instance().Status.Interfaces[0].MAC

	// Beside the machine: each block of each disk.
	for _, b := range []*lab.MachineBackup{full, second} {
		beside := "beside-" + b.Name
		r, err := s.RestoreMachine(ctx, b, beside, moveTimeout)
		s.must(err)
		for _, v := range r.Status.VolumeRestores {
			s.holds(v.PersistentVolumeClaim, b.Sums[v.VolumeName])
		}
		s.must(s.DeleteMachine(ctx, beside, 2*time.Minute))
	}

	s.snapshottedAndBack()
	s.backedUpStopped(location, overwrite)

	s.must(s.DeleteMachine(ctx, s.vm, 2*time.Minute))
	s.shell(strings.NewReplacer("-n app", "-n "+s.Namespace, "namespace: app", "namespace: "+s.Namespace,
		"Namespace: app", "Namespace: "+s.Namespace,
		"web-monday", second.Name, "name: web}", "name: "+s.vm+"}").Replace(strings.Join(s.commands("docs/restore.md",
		"Get it back"), "\n")))
	_, err = s.WaitAgent(ctx, s.vm, bootTimeout)
	s.must(err)
	if got := s.guest("cat /disks/fs/proof"); strings.TrimSpace(got) != "alive\nagain" {
		verdict.Errorf(s.t, "the restored machine has %q", got)
	}
	again := s.vmObject()
	if mac := s.instance().Status.Interfaces[0].MAC; mac != address || again.Labels["tier"] != "front" ||
		again.Spec.Strategy() != kubevirtv1.RunStrategyAlways {
		s.t.Errorf("the machine had the address %s, and has %s; labels %v, strategy %s", address, mac, again.Labels,
			again.Spec.Strategy())
	}

	s.putBackToAnEarlierState(full)

	// One backup goes, with its restore points, and the other one stays.
	before := s.countRestorePoints(client.ObjectKeyFromObject(location.BackupStorageLocation))
	s.must(s.Delete(ctx, full.VirtualMachineBackup))
	s.must(s.WaitGone(ctx, full.VirtualMachineBackup, 3*time.Minute))
	if n := s.countRestorePoints(client.ObjectKeyFromObject(location.BackupStorageLocation)); n != before-len(s.disks) {
		s.t.Errorf("%d restore points before the deletion of a backup, %d after it", before, n)
	}
	var left corev1.PersistentVolumeClaimList
	s.must(s.List(ctx, &left, client.InNamespace(s.Namespace), client.HasLabels{harvesterbackup.LabelBackup}))
	for i := range left.Items {
		s.t.Errorf("claim %s is left", left.Items[i].Name)
	}
	s.theClusterIsGone(location, second, address)
}

// snapshottedAndBack: the machine's storage makes snapshots of its disks, of a moment at which the guest is frozen, and
// each block comes back beside the machine. Varve freezes and thaws the guest if nobody else has. A deleted snapshot
// leaves nothing in the storage.
func (s *scene) snapshottedAndBack() {
	s.t.Helper()
	ctx := s.t.Context()
	exact, err := s.SnapshotMachine(ctx, "snap-1", s.vm, true, moveTimeout)
	s.must(err)
	r, err := s.RestoreMachine(ctx, exact, "beside-snap", moveTimeout)
	s.must(err)
	if len(r.Status.VolumeRestores) != len(s.disks) {
		s.t.Errorf("%d of %d disks are restored", len(r.Status.VolumeRestores), len(s.disks))
	}
	for _, v := range r.Status.VolumeRestores {
		s.holds(v.PersistentVolumeClaim, exact.Sums[v.VolumeName])
	}
	s.must(s.DeleteMachine(ctx, "beside-snap", 2*time.Minute))

	own, err := s.SnapshotMachine(ctx, "snap-2", s.vm, false, moveTimeout)
	s.must(err)
	var indications []string
	for _, i := range own.Status.SourceIndications {
		indications = append(indications, i.Indication)
	}
	if !slices.Contains(indications, "GuestAgent") || s.instance().Status.FSFreezeStatus != "" {
		s.t.Errorf("indications %v; the guest is %q", indications, s.instance().Status.FSFreezeStatus)
	}
	s.guest("echo thawed >/disks/fs/thawed; sync")
	for _, b := range []*lab.MachineBackup{exact, own} {
		s.must(s.Delete(ctx, b.VirtualMachineBackup))
		s.must(s.WaitGone(ctx, b.VirtualMachineBackup, 2*time.Minute))
	}
	left := &unstructured.UnstructuredList{}
	left.SetGroupVersionKind(schema.GroupVersionKind{
		Group: "snapshot.storage.k8s.io", Version: "v1", Kind: "VolumeSnapshotList",
	})
	s.must(s.List(ctx, left, client.InNamespace(s.Namespace)))
	for i := range left.Items {
		s.t.Errorf("VolumeSnapshot %s is left", left.Items[i].GetName())
	}
}

// theClusterIsGone: the namespace is gone with the machine, its Secret and its backups, and Varve knows of the location by
// another name, read-only, with the password alone. The commands of docs/restore.md bring the machine back.
func (s *scene) theClusterIsGone(location *lab.Location, b *lab.MachineBackup, address string) {
	s.t.Helper()
	ctx := s.t.Context()
	s.must(s.DeleteNamespace(ctx, 5*time.Minute))
	elsewhere := &velerov1.BackupStorageLocation{
		ObjectMeta: metav1.ObjectMeta{Namespace: layout.Namespace, Name: s.Namespace + "-again"},
		Spec:       *location.Spec.DeepCopy(),
	}
	elsewhere.Spec.Default, elsewhere.Spec.AccessMode = false, velerov1.AccessReadOnly
	s.must(client.IgnoreNotFound(s.Delete(ctx, elsewhere.DeepCopy()))) // what a run left that was killed
	s.must(s.Create(ctx, elsewhere))
	s.t.Cleanup(func() {
		s.must(client.IgnoreNotFound(s.Delete(context.WithoutCancel(ctx), elsewhere)))
	})
	password := filepath.Join(s.t.TempDir(), "password")
	s.shell("varve location password export " + location.Name + " -n varve > " + password +
		"\nvarve location password import " + elsewhere.Name + " -n varve --password-file " + password)
	out := s.shell(strings.NewReplacer("namespace app", "namespace "+s.Namespace, "-n app", "-n "+s.Namespace,
		"web-monday", b.Name, "--from-location default", "--from-location "+elsewhere.Name).Replace(strings.Join(
		s.commands("docs/restore.md", "The cluster is gone"), "\n")))
	if !strings.Contains(out, b.Name+" ") || !strings.Contains(out, "virtual machine "+s.vm+" runs") {
		s.t.Errorf("the commands say\n%s", out)
	}
	_, err := s.WaitAgent(ctx, s.vm, bootTimeout)
	s.must(err)
	if got := s.guest("cat /disks/fs/proof"); strings.TrimSpace(got) != "alive\nagain" {
		verdict.Errorf(s.t, "the machine of the lost cluster has %q", got)
	}
	secret := &corev1.Secret{}
	s.must(s.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: "pull"}, secret))
	if mac := s.instance().Status.Interfaces[0].MAC; mac != address || string(secret.Data["key"]) != "hidden" ||
		s.vmObject().Spec.Template.Spec.Domain.Firmware.KernelBoot.Container.ImagePullSecret != "pull" {
		s.t.Errorf("address %s, want %s; the Secret has %d bytes", mac, address, len(secret.Data["key"]))
	}
	beside, err := s.RestoreMachine(ctx, b, "found", moveTimeout)
	s.must(err)
	for _, v := range beside.Status.VolumeRestores {
		s.holds(v.PersistentVolumeClaim, b.Sums[v.VolumeName])
	}
}

// putBackToAnEarlierState: the machine, which runs and has been written to since, gets the disks of an earlier backup by
// the commands of docs/restore.md. It is the same object, and its old claims are gone.
func (s *scene) putBackToAnEarlierState(b *lab.MachineBackup) {
	s.t.Helper()
	ctx := s.t.Context()
	s.guest("echo spoiled >/disks/fs/proof; sync")
	before := s.vmObject()
	s.shell(strings.NewReplacer("-n app", "-n "+s.Namespace, "namespace: app", "namespace: "+s.Namespace,
		"Namespace: app", "Namespace: "+s.Namespace, "web-monday", b.Name, "name: web}",
		"name: "+s.vm+"}").Replace(strings.Join(s.commands("docs/restore.md",
		"Put a machine back to an earlier state"), "\n")))
	_, err := s.WaitAgent(ctx, s.vm, bootTimeout)
	s.must(err)
	if got := s.guest("cat /disks/fs/proof"); strings.TrimSpace(got) != "alive" {
		verdict.Errorf(s.t, "the machine that was put back has %q", got)
	}
	after := s.vmObject()
	if after.UID != before.UID || after.Spec.Strategy() != before.Spec.Strategy() {
		s.t.Errorf("UID %s was %s, strategy %s was %s", after.UID, before.UID, after.Spec.Strategy(),
			before.Spec.Strategy())
	}
	for _, v := range before.Spec.Template.Spec.Volumes {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
			Namespace: s.Namespace,
			Name:      v.PersistentVolumeClaim.ClaimName,
		}}
		s.must(s.WaitGone(ctx, claim, 2*time.Minute))
	}
}

// holds compares what a claim of a stopped machine has with a SHA-256.
func (s *scene) holds(claim harvesterv1.PersistentVolumeClaimSourceSpec, sum string) {
	s.t.Helper()
	ctx := s.t.Context()
	name := claim.ObjectMeta.Name
	path := "/mnt/" + name + "/disk.img"
	if m := claim.Spec.VolumeMode; m != nil && *m == corev1.PersistentVolumeBlock {
		path = "/dev/" + name
	}
	box, err := s.Toolbox(ctx, "compare", name)
	s.must(err)
	text, err := box.Run(ctx, "sha256sum "+path)
	s.must(errors.Join(err, box.Close(ctx)))
	if got, _, _ := strings.Cut(text, " "); got != sum {
		verdict.Errorf(s.t, "claim %s: restored %s, the disk held %s", name, got, sum)
	}
}
