package repositoryaccess

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/kopia/kopia/repo/blob"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/repository/storage"
)

// backupsDirectory is where Velero keeps backups in a location, below its prefix: a directory for each, with the file backupFile, which is
// the backup's object.
const (
	backupsDirectory = "backups/"
	backupFile       = "velero-backup.json"
)

// Backups are the backups of Velero's in the location of a repository.
type Backups struct {
	bucket    blob.Storage // nil for a directory
	directory string
}

// Backups opens the location that the repository of an access is in. An access whose path is not that of a repository in a location is
// errclass.Invalid.
func (s *Store) Backups(ctx context.Context, a datamove.Access) (*Backups, error) {
	at := s.locate(a)
	if at.S3 == nil {
		root, ok := datamove.LocationPrefix(at.Directory)
		if !ok {
			return nil, errclass.Errorf(errclass.Invalid, "%s is not the repository of a namespace in a location", at)
		}
		return &Backups{directory: root}, nil
	}
	prefix, ok := datamove.LocationPrefix(at.S3.Prefix)
	if !ok {
		return nil, errclass.Errorf(errclass.Invalid, "%s is not the repository of a namespace in a location", at)
	}
	bucket := *at.S3
	// Velero cleans the prefix for its backups (pkg/persistence, NewObjectStoreLayout); Varve takes it as it is for repositories.
	if bucket.Prefix = path.Clean(prefix) + "/"; prefix == "" {
		bucket.Prefix = ""
	}
	st, err := repository.Location{S3: &bucket}.Open(ctx, false)
	if err != nil {
		return nil, err
	}
	return &Backups{bucket: st}, nil
}

// Close lets go of the location.
func (b *Backups) Close(ctx context.Context) error {
	if b.bucket == nil {
		return nil
	}
	return b.bucket.Close(ctx)
}

// Labels returns the labels (datamove.BackupLabel) of all backups of which anything is in the location. With an error it returns none.
func (b *Backups) Labels(ctx context.Context) (map[string]bool, error) { return b.list(ctx, "") }

// Has says whether anything of a backup with this label is in the location. It asks in two ways, and the answer is no only if both say so:
// a listing that is cut short must not look like an absence.
func (b *Backups) Has(ctx context.Context, label string) (bool, error) {
	if label == "" || strings.Contains(label, "/") {
		return false, errclass.Errorf(errclass.Invalid, "%q is not the label of a backup", label)
	}
	found, err := b.list(ctx, datamove.BackupStem(label))
	if err != nil || found[label] {
		return found[label], err
	}
	return b.hasFile(ctx, backupsDirectory+label+"/"+backupFile)
}

// list returns the labels of the backups whose names begin with stem.
func (b *Backups) list(ctx context.Context, stem string) (map[string]bool, error) {
	labels := map[string]bool{}
	add := func(name string) {
		if name != "" {
			labels[datamove.BackupLabel(name)] = true
		}
	}
	if b.bucket == nil {
		entries, err := os.ReadDir(filepath.Join(b.directory, backupsDirectory))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("list backups: %w", err)
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), stem) {
				add(e.Name())
			}
		}
		return labels, nil
	}
	// What has a slash in its name is listed by its first part alone.
	err := b.bucket.ListBlobs(ctx, blob.ID(backupsDirectory+stem), func(m blob.Metadata) error {
		name, _, _ := strings.Cut(strings.TrimPrefix(string(m.BlobID), backupsDirectory), "/")
		add(name)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list backups: %w", err)
	}
	return labels, nil
}

// maxBackupFileBytes bounds what is read of a backup. Velero's objects have some kilobytes.
const maxBackupFileBytes = 4 << 20

// HasOther says whether the location has another backup than that with this UID under a label: the name was used
// again. It says no if it cannot tell, because the file with the backup is not there or is none.
func (b *Backups) HasOther(ctx context.Context, label, uid string) (bool, error) {
	if uid == "" || label == "" || strings.Contains(label, "/") {
		return false, nil
	}
	data, err := b.readFile(ctx, backupsDirectory+label+"/"+backupFile)
	if err != nil {
		return false, err
	}
	var backup struct {
		Metadata struct {
			Name string `json:"name"`
			UID  string `json:"uid"`
		} `json:"metadata"`
	}
	if json.Unmarshal(data, &backup) != nil || backup.Metadata.Name != label || backup.Metadata.UID == "" {
		return false, nil //nolint:nilerr // what is no backup tells nothing
	}
	return backup.Metadata.UID != uid, nil
}

// readFile returns a file of a backup; nil if there is none, or one that is too long.
func (b *Backups) readFile(ctx context.Context, name string) ([]byte, error) {
	if b.bucket == nil {
		file := filepath.Join(b.directory, name)
		info, err := os.Stat(file)
		if err == nil && info.Mode().IsRegular() && info.Size() <= maxBackupFileBytes {
			var data []byte
			if data, err = os.ReadFile(file); err == nil {
				return data, nil
			}
		}
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		return nil, err
	}
	m, err := b.bucket.GetMetadata(ctx, blob.ID(name))
	if errors.Is(err, blob.ErrBlobNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look at %s: %w", name, err)
	}
	if m.Length > maxBackupFileBytes {
		return nil, nil
	}
	return storage.ReadBlob(ctx, b.bucket, blob.ID(name))
}

func (b *Backups) hasFile(ctx context.Context, name string) (bool, error) {
	if b.bucket == nil {
		_, err := os.Lstat(path.Join(b.directory, name))
		if errors.Is(err, os.ErrNotExist) {
			return false, nil
		}
		return err == nil, err
	}
	data, err := storage.ReadBlob(ctx, b.bucket, blob.ID(name))
	return data != nil, err
}
