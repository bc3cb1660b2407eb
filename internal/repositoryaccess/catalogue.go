package repositoryaccess

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/format"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/repository/storage"
)

// MaxCatalogued is how many namespaces of a location a catalogue knows. Whoever can write to a bucket could make any number, and the names of
// those that are known must fit into a variable of a pod.
const MaxCatalogued = 1000

// maxUniqueIDBytes is the length of kopia's unique IDs.
const maxUniqueIDBytes = 32

// blobSuffix is what the files of blobs end with.
const blobSuffix = ".f"

// Found is a repository that is in a location.
type Found struct {
	// Namespace is the one whose volumes it has, and UniqueID the repository's.
	Namespace string `json:"namespace"`
	UniqueID  string `json:"uniqueID"`
}

// Catalogue is what is in a location beside what was known.
type Catalogue struct {
	// Found is sorted by namespace. More says that there are others, which another look finds when these are known.
	Found []Found `json:"found,omitempty"`
	More  bool    `json:"more,omitempty"`
	// Unread says which directories may be repositories whose format cannot be read, and why; "" if there are none.
	Unread string `json:"unread,omitempty"`
}

// List returns the repositories below root that known does not name, at most limit of them. It reads their formats, for which it needs no
// password, and writes nothing. A directory without a format is no repository.
func (s *Store) List(ctx context.Context, root datamove.Access, known []string, limit int) (Catalogue, error) {
	at := s.locate(root)
	names, read, done, err := directoriesOf(ctx, at)
	if err != nil {
		return Catalogue{}, fmt.Errorf("list the repositories: %w", err)
	}
	var c Catalogue
	for _, name := range names {
		if slices.Contains(known, name) || len(validation.IsDNS1123Label(name)) > 0 {
			continue
		}
		id, err := uniqueIDOf(func(blobID blob.ID) ([]byte, error) { return read(name, blobID) })
		if ctx.Err() != nil {
			return Catalogue{}, errors.Join(ctx.Err(), done())
		}
		switch {
		case err != nil && c.Unread == "":
			c.Unread = name + ": " + err.Error()
		case id == "":
		case len(c.Found) == limit:
			c.More = true
			return c, done()
		default:
			c.Found = append(c.Found, Found{Namespace: name, UniqueID: id})
		}
	}
	return c, done()
}

// errEnough ends a listing.
var errEnough = errors.New("enough")

// directoriesOf returns the names of the directories in a place, at most MaxCatalogued, and what reads a blob in one of them. done ends that.
func directoriesOf(ctx context.Context, at repository.Location) (names []string, read func(name string, id blob.ID) ([]byte, error), done func() error, err error) {
	if at.S3 == nil {
		read = func(name string, id blob.ID) ([]byte, error) { return readFile(at.Directory, name, id) }
		entries, err := os.ReadDir(at.Directory)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, nil, nil, err
		}
		for _, e := range entries[:min(len(entries), MaxCatalogued)] {
			if e.IsDir() {
				names = append(names, e.Name())
			}
		}
		return names, read, func() error { return nil }, nil
	}
	st, err := at.Open(ctx, false)
	if err != nil {
		return nil, nil, nil, err
	}
	// What has a slash in its name is listed by its first part alone.
	err = st.ListBlobs(ctx, "", func(b blob.Metadata) error {
		if name, ok := strings.CutSuffix(string(b.BlobID), "/"); ok && name != "" {
			names = append(names, name)
		}
		if len(names) == MaxCatalogued {
			return errEnough
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return nil, nil, nil, errors.Join(err, st.Close(ctx))
	}
	slices.Sort(names)
	read = func(name string, id blob.ID) ([]byte, error) { return storage.ReadBlob(ctx, st, blob.ID(name+"/")+id) }
	return names, read, func() error { return st.Close(ctx) }, nil
}

// readFile returns a blob of the repository in a directory below root; nil if there is none. kopia would write into a directory that it opens.
// Blobs with names as short as those of formats are files beside each other.
func readFile(root, name string, id blob.ID) ([]byte, error) {
	data, err := os.ReadFile(filepath.Join(root, name, string(id)+blobSuffix))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

// uniqueIDOf returns the unique ID of a repository; "" if there is none.
func uniqueIDOf(read func(blob.ID) ([]byte, error)) (string, error) {
	data, err := read(format.KopiaRepositoryBlobID)
	if err != nil {
		return "", err
	}
	if data == nil {
		if data, err = read(storage.FormatCopy); err == nil && data != nil {
			err = errors.New("its format is lost, and a copy is there")
		}
		return "", err
	}
	unique, err := storage.ParseUniqueID(data)
	if err != nil {
		return "", fmt.Errorf("its format: %w", err)
	}
	if len(unique) > maxUniqueIDBytes {
		return "", fmt.Errorf("its format: a unique ID of %d bytes", len(unique))
	}
	return hex.EncodeToString(unique), nil
}
