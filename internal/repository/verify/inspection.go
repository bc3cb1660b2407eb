package verify

import (
	"context"
	"errors"
	"fmt"

	"github.com/kopia/kopia/repo/blob"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/storage"
)

// Inspection is a connection that reads from the storage only, together with what keeps kopia from opening the repository as it
// is. The connection does without the latter.
type Inspection struct {
	*engine.Connection
	Storage blob.Storage
	// DamagedFormat holds the format blobs that are damaged or missing, with what they should be.
	DamagedFormat map[blob.ID][]byte
	// lostFormat lists the format blobs that are missing and whose copy the password does not open.
	lostFormat []blob.ID
	// lacksFormatCopy says that the format has no copy, or a damaged one.
	lacksFormatCopy bool
	// DamagedIndexes are the index blobs that cannot be read.
	DamagedIndexes []blob.ID
	// View is what the connection shows of the storage.
	View *storage.View
}

// Inspect connects to a repository, whatever state its format and its indexes are in. If that is not possible, the error is that of
// the repository as it is.
func Inspect(ctx context.Context, a *engine.Access) (*Inspection, error) {
	st, err := a.OpenStorage(ctx)
	if err != nil {
		return nil, fmt.Errorf("open the storage of %s: %w", a.Name, err)
	}
	return InspectStorage(ctx, st, a)
}

// InspectStorage is Inspect for a storage that is open. It closes the storage when it fails, and so does Close.
func InspectStorage(ctx context.Context, st blob.Storage, a *engine.Access) (*Inspection, error) {
	i := &Inspection{Storage: st}
	if err := i.connectPastDamage(ctx, a); err != nil {
		return nil, errors.Join(err, i.Close(ctx))
	}
	return i, nil
}

func (i *Inspection) connectPastDamage(ctx context.Context, a *engine.Access) error {
	saved, err := engine.ReadFormatCopy(ctx, i.Storage)
	if err != nil {
		return err
	}
	i.lacksFormatCopy = saved == nil
	now, err := storage.ReadFormat(ctx, i.Storage)
	if err != nil {
		return err
	}
	if i.DamagedFormat, err = engine.FindFormatDamage(ctx, now, saved, a.Password); err != nil {
		return engine.WrapOpenError(a.Name, err)
	}
	for id := range saved {
		if now[id] == nil && i.DamagedFormat[id] == nil {
			i.lostFormat = append(i.lostFormat, id)
		}
	}
	v := storage.NewView(i.Storage, storage.IsIndex, i.DamagedFormat)
	if i.Connection, err = engine.OpenView(ctx, v, a, nil); err != nil {
		return err
	}
	return i.findDamagedIndexes(ctx, v)
}

// findDamagedIndexes finds the index blobs that cannot be read. It shows kopia each one alone, unless kopia can read all of them at
// once.
func (i *Inspection) findDamagedIndexes(ctx context.Context, v *storage.View) error {
	i.View = v
	v.Hide(nil)
	if i.Kopia.Refresh(ctx) == nil {
		return nil
	}
	all, err := storage.ListBlobs(ctx, i.Storage, storage.IndexPrefix)
	if err != nil {
		return err
	}
	bad := map[blob.ID]bool{}
	for _, b := range all {
		damaged, err := i.IsDamagedIndex(ctx, b.BlobID)
		if err != nil {
			return err
		}
		if damaged {
			bad[b.BlobID] = true
			i.DamagedIndexes = append(i.DamagedIndexes, b.BlobID)
		}
	}
	v.Hide(func(id blob.ID) bool { return bad[id] })
	if err := i.Kopia.Refresh(ctx); err != nil {
		return fmt.Errorf("load the indexes: %w", err)
	}
	return nil
}

// IsDamagedIndex says whether kopia cannot read an index blob although the storage can. A storage that does not answer is not
// damage. So kopia reads the blob's bytes from memory, and its failure counts only between two requests that the storage answers.
// The caller decides what is shown afterwards.
func (i *Inspection) IsDamagedIndex(ctx context.Context, index blob.ID) (bool, error) {
	alone := func(id blob.ID) bool { return storage.IsIndex(id) && id != index }
	i.View.Hide(alone)
	if i.Kopia.Refresh(ctx) == nil {
		return false, nil
	}
	data, err := storage.ReadBlob(ctx, i.Storage, index)
	if err != nil || data == nil {
		return false, err
	}
	i.View.Replace(index, data)
	defer i.View.Replace(index, nil)
	for range 2 {
		i.View.Hide(storage.IsIndex)
		if err := i.Kopia.Refresh(ctx); err != nil {
			return false, fmt.Errorf("load no index: %w", err)
		}
		i.View.Hide(alone)
		if i.Kopia.Refresh(ctx) == nil {
			return false, nil
		}
	}
	return true, nil
}

// Damage returns what is wrong as an error; nil if nothing is.
func (i *Inspection) Damage() error {
	var all []error
	for id := range i.DamagedFormat {
		all = append(all, engine.DamagedFormatBlob(id))
	}
	for _, id := range i.lostFormat {
		all = append(all, fmt.Errorf("%w: blob %s is missing, and this password does not open the copy", errclass.Corrupt, id))
	}
	if i.lacksFormatCopy {
		all = append(all, fmt.Errorf("%w: blob %s is damaged or missing; maintenance stores it again", errclass.Corrupt, storage.FormatCopy))
	}
	for _, id := range i.DamagedIndexes {
		all = append(all, fmt.Errorf("%w: index blob %s cannot be read", errclass.Corrupt, id))
	}
	return errors.Join(all...)
}

// Close ends the connection.
func (i *Inspection) Close(ctx context.Context) error {
	var err error
	if i.Connection != nil {
		err = i.Connection.Close(ctx)
	}
	return errors.Join(err, i.Storage.Close(ctx))
}
