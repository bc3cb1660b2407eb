package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/minio/minio-go/v7"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/lab"
	"github.com/varvebackup/varve/test/wait"
)

// place is a location with an empty repository, and a tracker for it.
type place struct {
	*lab.Location

	repository *velerov1.BackupRepository
	tracker    client.Object
}

// openPlace makes a location, and waits until the repository in it is ready.
func (b *bench) openPlace(ctx context.Context) (*place, error) {
	b.count++
	name := fmt.Sprintf("%s-%d", namespace, b.count)
	p := &place{tracker: b.Tracker(name, vmName)}
	var err error
	if p.Location, err = b.BucketLocation(ctx, name, b.boxDir); err != nil {
		return nil, err
	}
	if err := b.Create(ctx, p.tracker); err != nil {
		return nil, err
	}
	p.repository = &velerov1.BackupRepository{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: layout.Namespace, Name: datamove.RepositoryName(namespace, datamove.Location{Namespace: p.Namespace, Name: p.Name}),
		},
		Spec: velerov1.BackupRepositorySpec{
			VolumeNamespace: namespace, BackupStorageLocation: p.Name, RepositoryType: velerov1.RepositoryKopia,
			RepositoryConfig: map[string]string{datamove.ConfigLocationNamespace: p.Namespace},
		},
	}
	if err := client.IgnoreNotFound(b.Delete(ctx, p.repository)); err != nil { // of a run that was killed
		return nil, err
	}
	p.repository.ResourceVersion = ""
	if err := b.Create(ctx, p.repository); err != nil {
		return nil, err
	}
	return p, wait.For(ctx, time.Minute, "repository "+p.repository.Name, func(ctx context.Context) (bool, string, error) {
		err := b.Get(ctx, client.ObjectKeyFromObject(p.repository), p.repository)
		return p.repository.Status.Phase == velerov1.RepositoryReady, string(p.repository.Status.Phase) + ": " + p.repository.Status.Message, err
	})
}

// closePlace removes the location with all that is in it. Uploads to it must have ended.
func (b *bench) closePlace(ctx context.Context, p *place) error {
	if err := b.DeleteUploads(ctx, 3*time.Minute); err != nil {
		return err
	}
	for _, o := range []client.Object{p.tracker, p.repository} {
		if err := client.IgnoreNotFound(b.Delete(ctx, o)); err != nil {
			return err
		}
	}
	return errors.Join(p.Remove(ctx), b.empty(ctx, p.Spec.ObjectStorage.Prefix+"/"))
}

// empty removes the objects of the bucket whose names begin with a prefix.
func (b *bench) empty(ctx context.Context, prefix string) error {
	c, err := b.store.NewClient()
	if err != nil {
		return err
	}
	listed := c.ListObjects(ctx, b.store.Bucket, minio.ListObjectsOptions{Prefix: prefix, Recursive: true})
	var failed []error
	for r := range c.RemoveObjects(ctx, b.store.Bucket, listed, minio.RemoveObjectsOptions{}) {
		failed = append(failed, fmt.Errorf("remove %s: %w", r.ObjectName, r.Err))
	}
	return errors.Join(failed...)
}
