package lab

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/internal/repositoryaccess"
)

// Repository returns the repository of the lab's namespace in a location, or nil if there is none yet.
func (l *Lab) Repository(ctx context.Context, location client.ObjectKey) (*velerov1.BackupRepository, error) {
	var repositories velerov1.BackupRepositoryList
	if err := l.List(ctx, &repositories, client.InNamespace(layout.Namespace)); err != nil {
		return nil, fmt.Errorf("list the repositories: %w", err)
	}
	for i := range repositories.Items {
		r := &repositories.Items[i]
		at := client.ObjectKey{
			Namespace: r.Spec.RepositoryConfig[datamove.ConfigLocationNamespace], Name: r.Spec.BackupStorageLocation,
		}
		if r.Spec.VolumeNamespace == l.Namespace && at == location {
			return r, nil
		}
	}
	return nil, nil //nolint:nilnil // there is none
}

// CountRestorePoints counts what is in the repository of the lab's namespace in a location, with the access that
// Varve's own pods have.
func (l *Lab) CountRestorePoints(ctx context.Context, location client.ObjectKey) (n int, err error) {
	r, err := l.Repository(ctx, location)
	if err == nil && r == nil {
		err = fmt.Errorf("no repository of namespace %s in location %s", l.Namespace, location)
	}
	if err != nil {
		return 0, err
	}
	var secret corev1.Secret
	if err := l.Get(ctx, client.ObjectKeyFromObject(r), &secret); err != nil {
		return 0, fmt.Errorf("read the access to repository %s: %w", r.Name, err)
	}
	access, err := datamove.DecodeAccess(secret.Data[datamove.AccessKey])
	if err != nil {
		return 0, fmt.Errorf("read the access to repository %s: %w", r.Name, err)
	}
	storage.Register()
	opened, err := repositoryaccess.NewStore(time.Now, nil).Open(ctx, access,
		repository.ConnectOptions{ReadOnly: true})
	if err != nil {
		return 0, fmt.Errorf("open repository %s: %w", r.Name, err)
	}
	defer func() { err = errors.Join(err, opened.Close(ctx)) }()
	points, err := opened.List(ctx, nil)
	if err != nil {
		return 0, fmt.Errorf("list the restore points of repository %s: %w", r.Name, err)
	}
	return len(points), nil
}
