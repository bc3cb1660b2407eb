package repositoryaccess

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/kopia/kopia/repo/blob"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/repository/storage"
)

// probe is the name of what is written and deleted to try a location. Whoever tries it at the same time may delete it first.
const probe = "varve-probe"

// maxSkew is how far the clocks of this machine and of the storage may be apart: kopia refuses maintenance beyond it, and S3 refuses
// requests beyond 15 minutes.
const maxSkew = 5 * time.Minute

// Try lists root and, if write is set and the access is not read-only, writes something there and deletes it.
func (s *Store) Try(ctx context.Context, root datamove.Access, write bool) error {
	at := s.locate(root)
	write = write && !root.ReadOnly
	if at.S3 == nil {
		return tryDirectory(at, write)
	}
	st, err := at.Open(ctx, false)
	if err != nil {
		return err
	}
	err = st.ListBlobs(ctx, probe, func(blob.Metadata) error { return nil })
	if err == nil && write {
		err = s.tryWriting(ctx, st)
	}
	return errors.Join(err, st.Close(ctx))
}

// tryWriting writes something, and compares the time that the storage gave it with this machine's.
func (s *Store) tryWriting(ctx context.Context, st blob.Storage) error {
	before := s.now()
	if err := st.PutBlob(ctx, probe, storage.Bytes("written by varve to try the location"), blob.PutOptions{}); err != nil {
		return fmt.Errorf("write %s: %w", probe, err)
	}
	written, err := st.GetMetadata(ctx, probe)
	if err != nil && !errors.Is(err, blob.ErrBlobNotFound) { // another one has deleted it
		return fmt.Errorf("look at %s: %w", probe, err)
	}
	after := s.now()
	if err := st.DeleteBlob(ctx, probe); err != nil {
		return fmt.Errorf("delete %s: %w", probe, err)
	}
	if t := written.Timestamp; !t.IsZero() && (t.Before(before.Add(-maxSkew)) || t.After(after.Add(maxSkew))) {
		return &SkewError{Here: after, There: t}
	}
	return nil
}

// SkewError says that the clocks of this machine and of the storage are too far apart.
type SkewError struct{ Here, There time.Time }

func (e *SkewError) Error() string {
	return fmt.Sprintf("the clock of the storage says %s, and that of the controller %s: set the one that is wrong", e.There.UTC().Format(time.RFC3339), e.Here.UTC().Format(time.RFC3339))
}

func tryDirectory(at repository.Location, write bool) error {
	if !write {
		if _, err := os.ReadDir(at.Directory); !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil // a repository makes it
	}
	if err := os.MkdirAll(at.Directory, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(at.Directory, probe)
	if err != nil {
		return err
	}
	_, err = f.WriteString("written by varve to try the location")
	return errors.Join(err, f.Sync(), f.Close(), os.Remove(f.Name()))
}
