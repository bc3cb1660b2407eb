package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/test/lab"
)

// location is the BackupStorageLocation of the demo.
const location = "demo"

// storeMoments backs the whole running machine up into a repository on S3, in full and then by changed blocks.
func (s *story) storeMoments(ctx context.Context) error {
	s.tellStep("a repository on the S3 service, which is encrypted and deduplicates")
	at, err := s.lab.BucketLocation(ctx, location, s.boxDir)
	if err != nil {
		return err
	}
	for _, name := range []string{"thursday", "friday"} {
		s.tellStep("back up the machine, %s: freeze the guest and hash its disks; it goes on while they are stored",
			name)
		began := time.Now()
		s.stored, err = s.lab.BackUpMachine(ctx, name, vmName, `head -c 3000000 /dev/urandom >/data/a/9; echo `+name+
			` is over >/etc/note; sync`, backupTimeout, at)
		if err != nil {
			return err
		}
		r := storedMoment{Name: name, Seconds: time.Since(began).Seconds()}
		for _, v := range s.stored.Status.VolumeBackups {
			r.Volumes = append(r.Volumes, storedResult{
				Name: v.VolumeName, VirtualBytes: v.VolumeSize, NewBytes: v.ChangedBytes, FullReason: v.FullReason,
			})
			s.tellStep("  %s: %s new or changed of %s", v.VolumeName, formatMiB(v.ChangedBytes),
				formatMiB(v.VolumeSize))
		}
		s.result.Stored = append(s.result.Stored, r)
	}
	return nil
}

// loseMachine deletes the machine and its disks.
func (s *story) loseMachine(ctx context.Context) error {
	s.tellStep("delete the machine and its disks")
	lost := []client.Object{&kubevirtv1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: vmName}}}
	for _, d := range disks {
		lost = append(lost, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: lab.ClaimName(vmName, d.Name)}})
	}
	for _, o := range lost {
		if err := s.lab.Delete(ctx, o); err != nil {
			return fmt.Errorf("delete %s: %w", o.GetName(), err)
		}
	}
	for _, o := range lost {
		if err := s.lab.WaitGone(ctx, o, 3*time.Minute); err != nil {
			return err
		}
	}
	return nil
}

// bringBack brings the machine back from the repository, compares its disks, and boots it.
func (s *story) bringBack(ctx context.Context) error {
	if err := s.runVarve(ctx, "vm", "restore", s.stored.Name, "--keep-mac", "--halt", "--wait"); err != nil {
		return err
	}
	s.tellStep("compare every block")
	vm := &kubevirtv1.VirtualMachine{}
	if err := s.lab.Get(ctx, client.ObjectKey{Namespace: namespace, Name: vmName}, vm); err != nil {
		return err
	}
	r := &s.result.Stored[len(s.result.Stored)-1]
	for i := range r.Volumes {
		v := &r.Volumes[i]
		for _, volume := range vm.Spec.Template.Spec.Volumes {
			if volume.Name != v.Name {
				continue
			}
			restored, err := s.hashDisk(ctx, v.Name, volume.PersistentVolumeClaim.ClaimName)
			if err != nil {
				return err
			}
			v.SHA256Expected, v.SHA256Restored = s.stored.Sums[v.Name], restored
			v.Identical = restored == s.stored.Sums[v.Name]
		}
	}
	if err := s.runVarve(ctx, "vm", "start", vmName); err != nil {
		return err
	}
	if _, err := s.lab.WaitAgent(ctx, vmName, bootTimeout); err != nil {
		return err
	}
	g, err := s.lab.Guest(ctx, vmName)
	if err != nil {
		return err
	}
	note, err := g.Run(ctx, "cat /etc/note")
	if err != nil {
		return err
	}
	s.tellStep("  it runs; its note says %q", strings.TrimSpace(note))
	return nil
}

// runVarve runs the command line in the demo's namespace.
func (s *story) runVarve(ctx context.Context, args ...string) error {
	args = append(args, "-n", namespace)
	s.tellStep("varve %s", strings.Join(args, " "))
	program := filepath.Join(s.build, "bin", "varve")
	out, err := exec.CommandContext(ctx, program, append(args, "--kubeconfig", s.kubeconfig)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("varve %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// hashDisk returns the SHA-256 of a disk, which is on a claim.
func (s *story) hashDisk(ctx context.Context, name, claim string) (string, error) {
	tool, err := s.lab.Toolbox(ctx, "compare-"+name, claim)
	if err != nil {
		return "", err
	}
	out, err := tool.Run(ctx, "sha256sum /mnt/"+claim+"/disk.img")
	sum, _, _ := strings.Cut(out, " ")
	return sum, errors.Join(err, tool.Close(ctx))
}
