//go:build e2e

package e2e

import (
	"errors"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/controller/keep/harvesterbackup"
	"github.com/varvebackup/varve/test/gen"
	"github.com/varvebackup/varve/test/lab"
)

// backedUpStopped: the machine is stopped and backed up. Each block of a restored copy is what its disks held, and when it
// runs again, its next backup reads what has changed.
func (s *scene) backedUpStopped(location *lab.Location, overwrite string) {
	s.t.Helper()
	ctx := s.t.Context()
	s.guest("echo off >/disks/fs/stopped; sync")
	vmi := s.instance()
	s.strategy(kubevirtv1.RunStrategyHalted)
	s.must(s.WaitGone(ctx, vmi, 2*time.Minute))
	sums := s.sumsAtRest()
	off, err := s.BackUpAsItIs(ctx, "whole-off", s.vm, sums, moveTimeout, location)
	s.must(err)
	if len(off.Status.VolumeBackups) != len(sums) {
		s.t.Errorf("%d disks are stored of %d", len(off.Status.VolumeBackups), len(sums))
	}
	for _, v := range off.Status.VolumeBackups {
		if v.FullReason != "MachineStopped" || v.SnapshotID == "" {
			s.t.Errorf("volume %s of the stopped machine: %+v", v.VolumeName, v)
		}
	}
	var exports exportv1.VirtualMachineExportList
	s.must(s.List(ctx, &exports, client.InNamespace(s.Namespace), client.HasLabels{harvesterbackup.LabelBackup}))
	for i := range exports.Items {
		s.must(s.WaitGone(ctx, &exports.Items[i], time.Minute))
	}

	r, err := s.RestoreMachine(ctx, off, "beside-off", moveTimeout)
	s.must(err)
	for _, v := range r.Status.VolumeRestores {
		s.holds(v.PersistentVolumeClaim, sums[v.VolumeName])
	}
	s.must(s.DeleteMachine(ctx, "beside-off", 2*time.Minute))

	s.strategy(kubevirtv1.RunStrategyAlways)
	_, err = s.WaitAgent(ctx, s.vm, bootTimeout)
	s.must(err)
	on, err := s.BackUpMachine(ctx, "whole-on", s.vm, overwrite, moveTimeout, location)
	s.must(err)
	for _, v := range on.Status.VolumeBackups {
		if v.FullReason != "" || v.SnapshotID == "" {
			s.t.Errorf("volume %s of the machine that runs again: %+v", v.VolumeName, v)
		}
	}
}

// sumsAtRest returns the SHA-256 of the disks of the stopped machine by the names of its volumes. Nothing is mounted so that
// it could be written to, which would make the next backup full.
func (s *scene) sumsAtRest() map[string]string {
	s.t.Helper()
	ctx := s.t.Context()
	paths := map[string]string{}
	var claims []string
	for _, v := range s.vmObject().Spec.Template.Spec.Volumes {
		if v.PersistentVolumeClaim == nil {
			continue
		}
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: gen.Meta(s.Namespace, v.PersistentVolumeClaim.ClaimName)}
		s.must(s.Get(ctx, client.ObjectKeyFromObject(claim), claim))
		paths[v.Name] = "/mnt/" + claim.Name + "/disk.img"
		if m := claim.Spec.VolumeMode; m != nil && *m == corev1.PersistentVolumeBlock {
			paths[v.Name] = "/dev/" + claim.Name
		}
		claims = append(claims, claim.Name)
	}
	box, err := s.ReadOnlyToolbox(ctx, "at-rest", claims...)
	s.must(err)
	sums := map[string]string{}
	for volume, path := range paths {
		text, err := box.Run(ctx, "sha256sum "+path)
		if err != nil {
			s.must(errors.Join(err, box.Close(ctx)))
		}
		sums[volume], _, _ = strings.Cut(text, " ")
	}
	s.must(box.Close(ctx))
	return sums
}
