package moverpod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/repositoryaccess"
)

// openRepository opens the repository that the pod was given, and no other one. It waits for a storage that does not
// answer, and so do all requests to the repository.
func (r *run) openRepository(ctx context.Context) (repo *repository.Repository, err error) {
	err = r.patience.Do(ctx, func() error {
		// The access is read each time: the kubelet brings it up to date meanwhile.
		repo, err = r.tryOpen(ctx)
		return err
	})
	return repo, judge(err)
}

func (r *run) tryOpen(ctx context.Context) (*repository.Repository, error) {
	access, err := r.readAccess()
	if err != nil {
		return nil, err
	}
	at := repositoryaccess.Locate(access)
	o := repository.ConnectOptions{
		ReadOnly: access.ReadOnly, Host: r.PodName, User: datamove.HistoryUser,
		Patience: r.patience,
	}
	if info, err := os.Stat(r.Files.Cache); err == nil && info.IsDir() {
		o.CacheDirectory, o.CacheBytes = filepath.Join(r.Files.Cache, "repository"), datamove.CacheBytes
	}
	r.Log.Info("opening the repository", "location", at)
	repo, err := repository.OpenLocation(ctx, at, access.Password, o)
	if err != nil {
		return nil, judgeAbsence(err, "the repository was deleted, or its storage is not there: restore the storage, or delete the BackupRepository so that a new one is made")
	}
	if repo.ID() != access.UniqueID {
		err := errclass.Errorf(errclass.Conflict, "%s has the repository %s, and not %s, which this location had", at, repo.ID(), access.UniqueID)
		return nil, errors.Join(lasting(err, "somebody has replaced it: bring the old one back, or delete the BackupRepository so that the new one is used"), repo.Close(context.WithoutCancel(ctx)))
	}
	if why := repo.WithoutCache(); why != nil {
		r.warn(fmt.Errorf("the repository is used without a cache: %w", why))
	}
	return repo, nil
}

// readAccess reads what it takes to open the repository.
func (r *run) readAccess() (datamove.Access, error) {
	text, err := os.ReadFile(r.Files.Access)
	if err != nil {
		return datamove.Access{}, fmt.Errorf("read the access to the repository: %w", err)
	}
	access, err := datamove.DecodeAccess(text)
	if err != nil {
		return access, lasting(err, "the controllers and the mover must be of the same version of Varve")
	}
	r.Secrets.Hide(access.Secrets()...)
	if access.UniqueID == "" {
		return access, errors.New("the repository has not been made yet") // The kubelet brings the Secret up to date.
	}
	if access.ReadOnly && r.Job.Kind == datamove.Upload {
		return access, lasting(errclass.Errorf(errclass.Denied, "the backup location is read-only"), "set its accessMode to ReadWrite, or choose another location")
	}
	return access, nil
}
