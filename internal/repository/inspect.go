package repository

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
)

// indexPrefix begins the names of kopia's index blobs.
const indexPrefix = "x"

func isIndex(id blob.ID) bool { return strings.HasPrefix(string(id), indexPrefix) }

// inspection is a connection that reads from the storage only, together with what keeps kopia from opening the repository as it
// is. The connection does without the latter.
type inspection struct {
	*Repository
	storage blob.Storage
	// format holds the format blobs that are damaged or missing, with what they should be.
	format map[blob.ID][]byte
	// noCopy says that the format has no copy, or a damaged one.
	noCopy bool
	// indexes are the index blobs that cannot be read.
	indexes []blob.ID
	// view is what the connection shows of the storage.
	view *view
}

// inspect connects to the repository of a configuration, whatever state its format and its indexes are in. If that is not
// possible, the error is that of the repository as it is.
func inspect(ctx context.Context, configFile, password string) (_ *inspection, err error) {
	c, err := repo.LoadConfigFromFile(configFile)
	if err != nil {
		return nil, fmt.Errorf("configuration %s: %w", configFile, err)
	}
	if c.Storage == nil {
		return nil, fmt.Errorf("%w: %s names no storage", ErrInvalid, configFile)
	}
	st, err := blob.NewStorage(ctx, *c.Storage, false)
	if err != nil {
		return nil, fmt.Errorf("open the storage of %s: %w", configFile, err)
	}
	i := &inspection{storage: st}
	if err := i.look(ctx, c.ClientOptions, configFile, password); err != nil {
		return nil, errors.Join(err, i.Close(ctx))
	}
	return i, nil
}

func (i *inspection) look(ctx context.Context, as repo.ClientOptions, configFile, password string) error {
	saved, err := readFormatCopy(ctx, i.storage)
	if err != nil {
		return err
	}
	i.noCopy = saved == nil
	v := &view{Storage: i.storage, hidden: isIndex}
	now, err := readFormat(ctx, i.storage)
	if err != nil {
		return err
	}
	i.Repository, err = v.connect(ctx, as, configFile, password, nil)
	if err != nil && saved != nil {
		v.replaced = saved
		r, bad := v.connect(ctx, as, configFile, password, nil)
		if bad != nil {
			return err
		}
		i.Repository, err = r, nil
		i.format = maps.Clone(saved)
	}
	if err != nil {
		return err
	}
	if i.format == nil && len(now) < len(saved) {
		i.format = maps.Clone(saved) // If one is missing, kopia takes the repository for one without object lock.
	}
	maps.DeleteFunc(i.format, func(id blob.ID, data []byte) bool { return bytes.Equal(data, now[id]) })
	return i.lookAtIndexes(ctx, v)
}

// lookAtIndexes finds the index blobs that cannot be read. It shows kopia each one alone, unless kopia can read all of them at
// once.
func (i *inspection) lookAtIndexes(ctx context.Context, v *view) error {
	i.view = v
	v.hide(nil)
	if i.rep.Refresh(ctx) == nil {
		return nil
	}
	all, err := listBlobs(ctx, i.storage, indexPrefix)
	if err != nil {
		return err
	}
	bad := map[blob.ID]bool{}
	for _, b := range all {
		damaged, err := i.isDamagedIndex(ctx, b.BlobID)
		if err != nil {
			return err
		}
		if damaged {
			bad[b.BlobID] = true
			i.indexes = append(i.indexes, b.BlobID)
		}
	}
	v.hide(func(id blob.ID) bool { return bad[id] })
	if err := i.rep.Refresh(ctx); err != nil {
		return fmt.Errorf("load the indexes: %w", err)
	}
	return nil
}

// isDamagedIndex says whether kopia cannot read an index blob although the storage can. A storage that does not answer is not
// damage. So kopia reads the blob's bytes from memory, and its failure counts only between two requests that the storage answers.
// The caller decides what is shown afterwards.
func (i *inspection) isDamagedIndex(ctx context.Context, index blob.ID) (bool, error) {
	alone := func(id blob.ID) bool { return isIndex(id) && id != index }
	i.view.hide(alone)
	if i.rep.Refresh(ctx) == nil {
		return false, nil
	}
	data, err := readBlob(ctx, i.storage, index)
	if err != nil || data == nil {
		return false, err
	}
	i.view.replace(index, data)
	defer i.view.replace(index, nil)
	for range 2 {
		i.view.hide(isIndex)
		if err := i.rep.Refresh(ctx); err != nil {
			return false, fmt.Errorf("load no index: %w", err)
		}
		i.view.hide(alone)
		if i.rep.Refresh(ctx) == nil {
			return false, nil
		}
	}
	return true, nil
}

// damage returns what is wrong as an error; nil if nothing is.
func (i *inspection) damage() error {
	var all []error
	for id := range i.format {
		all = append(all, fmt.Errorf("%w: blob %s is damaged or missing (or this is not the newest password); there is a copy", ErrCorrupt, id))
	}
	if i.noCopy {
		all = append(all, fmt.Errorf("%w: blob %s is damaged or missing; maintenance stores it again", ErrCorrupt, formatCopy))
	}
	for _, id := range i.indexes {
		all = append(all, fmt.Errorf("%w: index blob %s cannot be read", ErrCorrupt, id))
	}
	return errors.Join(all...)
}

// Close ends the connection.
func (i *inspection) Close(ctx context.Context) error {
	var err error
	if i.Repository != nil {
		err = i.Repository.Close(ctx)
	}
	return errors.Join(err, i.storage.Close(ctx))
}
