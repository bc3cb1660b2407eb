package main

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
)

// download makes a new Filesystem claim of what a DataUpload has stored, with cold caches.
func (b *bench) download(ctx context.Context, u *velerov2.DataUpload, claim string, bytes int64) (*course, *usage, error) {
	target := claimNamed(claim)
	target.Spec = corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(bytes, resource.BinarySI)}},
		Selector:    &metav1.LabelSelector{MatchLabels: map[string]string{datamove.LabelRestoredVolume: datamove.RestoredVolume(namespace, claim, "bench")}},
	}
	d := &velerov2.DataDownload{
		ObjectMeta: metav1.ObjectMeta{Namespace: u.Namespace, Name: namespace + "-" + claim},
		Spec: velerov2.DataDownloadSpec{
			TargetVolume: velerov2.TargetVolumeSpec{Namespace: namespace, PVC: claim}, BackupStorageLocation: u.Spec.BackupStorageLocation, DataMover: datamove.Mover,
			SnapshotID: u.Status.SnapshotID, SourceNamespace: namespace, OperationTimeout: velerov1.Duration{Duration: 5 * time.Minute},
		},
	}
	if err := client.IgnoreNotFound(b.Delete(ctx, d)); err != nil { // of a run that was killed
		return nil, nil, err
	}
	if err := b.WaitGone(ctx, d, time.Minute); err != nil {
		return nil, nil, err
	}
	d.ResourceVersion, d.UID = "", ""
	meter, err := b.startMeter(ctx, d)
	if err != nil {
		return nil, nil, err
	}
	if err := dropCaches(); err != nil {
		return nil, nil, err
	}
	if err := b.Create(ctx, target); err != nil {
		return nil, nil, err
	}
	courses, err := b.follow(ctx, &velerov2.DataDownloadList{}, d)
	used := meter.stop()
	if err != nil {
		return nil, nil, fmt.Errorf("download %s: %w", claim, err)
	}
	fmt.Fprintf(b.log, "restore: %s\n  %s\n", courses[0], used)
	return courses[0], used, b.Delete(ctx, d)
}
