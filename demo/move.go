package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/test/lab"
)

const (
	// location, repositoryTracker and scratch are those of the machine's way into a repository.
	location          = "demo"
	repositoryTracker = "repository"
	scratch           = "scratch"
)

// storeMoments puts the disks of the running machine into a repository on S3, in full and then by changed blocks.
func (s *story) storeMoments(ctx context.Context) error {
	s.tellStep("a repository on the S3 service, which is encrypted and deduplicates")
	at, err := s.lab.BucketLocation(ctx, location, s.boxDir)
	if err != nil {
		return err
	}
	if err := s.lab.Claim(ctx, scratch, gib, corev1.PersistentVolumeFilesystem); err != nil {
		return err
	}
	if err := s.lab.Create(ctx, s.lab.Tracker(repositoryTracker, vmName)); err != nil {
		return fmt.Errorf("create tracker: %w", err)
	}
	for _, name := range []string{"thursday", "friday"} {
		s.tellStep("upload %s: freeze the guest and hash its disks; the guest goes on while they are stored", name)
		began := time.Now()
		s.stored, err = s.lab.UploadMoment(ctx, name, vmName, repositoryTracker, scratch, `head -c 3000000 /dev/urandom >/data/a/9; echo `+name+` is over >/etc/note; sync`,
			backupTimeout, at, disks...)
		if err != nil {
			return err
		}
		r := uploadResult{Name: name, Seconds: time.Since(began).Seconds()}
		for _, d := range disks {
			u := s.stored.Uploads[d.Name]
			r.Volumes = append(r.Volumes, storedResult{
				Name: d.Name, VirtualBytes: u.Status.Progress.TotalBytes, NewBytes: u.Status.IncrementalBytes, FullReason: u.Status.DataMoverResult["fullReason"],
			})
			s.tellStep("  %s: %s new or changed of %s", d.Name, formatMiB(u.Status.IncrementalBytes), formatMiB(u.Status.Progress.TotalBytes))
		}
		s.result.Uploads = append(s.result.Uploads, r)
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

// bringBack makes the disks again from the repository, compares them, and boots the machine from them.
func (s *story) bringBack(ctx context.Context) error {
	s.tellStep("make the disks again from what %s stored", s.stored.Group)
	r := &s.result.Uploads[len(s.result.Uploads)-1]
	var claims []string
	for _, d := range disks {
		claim := lab.ClaimName(vmName, d.Name)
		claims = append(claims, claim)
		if err := s.lab.Download(ctx, filepath.Join(s.build, "bin", "varve"), s.kubeconfig, s.stored.Uploads[d.Name], claim, corev1.PersistentVolumeFilesystem); err != nil {
			return err
		}
	}
	s.tellStep("compare every block")
	for i, d := range disks {
		restored, err := s.hashDisk(ctx, claims[i])
		if err != nil {
			return err
		}
		v := &r.Volumes[i]
		v.SHA256Expected, v.SHA256Restored = s.stored.Sums[d.Name], restored
		v.Identical = restored == s.stored.Sums[d.Name]
	}
	s.tellStep("boot the machine from them")
	if err := s.lab.StartMachine(ctx, vmName, lab.Debian, map[string]string{lab.TrackingLabel: "true"}, bootTimeout, disks...); err != nil {
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

// hashDisk returns the SHA-256 of the disk on a claim.
func (s *story) hashDisk(ctx context.Context, claim string) (string, error) {
	tool, err := s.lab.Toolbox(ctx, "compare-"+claim, claim)
	if err != nil {
		return "", err
	}
	out, err := tool.Run(ctx, "sha256sum /mnt/"+claim+"/disk.img")
	sum, _, _ := strings.Cut(out, " ")
	return sum, errors.Join(err, tool.Close(ctx))
}
