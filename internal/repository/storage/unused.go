package storage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/format"

	"github.com/varvebackup/varve/internal/errclass"
)

// repositoryBlobName matches the names of the format's copy, indexes and packs. Other names that begin with p or q, say photos and
// queues, are other people's.
var repositoryBlobName = regexp.MustCompile(`^(varve\.format$|xn[0-9]+_|[pq][0-9a-f]{32}-)`)

// PrepareForCreation makes sure that a repository can be made. It removes what a killed creation left. It refuses the remains of a
// repository that has lost its format, because a new repository would replace its keys for good.
func PrepareForCreation(ctx context.Context, st blob.Storage) error {
	for _, prefix := range append([]blob.ID{FormatCopy, IndexPrefix}, content.PackBlobIDPrefixes...) {
		blobs, err := ListBlobs(ctx, st, prefix)
		if err != nil {
			return err
		}
		mine := slices.IndexFunc(blobs, func(b blob.Metadata) bool { return repositoryBlobName.MatchString(string(b.BlobID)) })
		if mine < 0 {
			continue
		}
		now, err := ReadBlob(ctx, st, format.KopiaRepositoryBlobID)
		if err != nil || now != nil {
			return err // kopia reports that there is a repository
		}
		return fmt.Errorf("%w: there is a repository without its format, as blob %s shows: connect to it", errclass.Conflict, blobs[mine].BlobID)
	}
	// A killed creation leaves the first of its two blobs, which kopia takes for damage.
	now, err := ReadFormat(ctx, st)
	if err != nil || now[format.KopiaBlobCfgBlobID] == nil || now[format.KopiaRepositoryBlobID] != nil {
		return err
	}
	return st.DeleteBlob(ctx, format.KopiaBlobCfgBlobID)
}

// errOccupied ends a listing early.
var errOccupied = errors.New("found")

// CheckUnused refuses a location that holds anything but a repository: whoever names it has made a mistake, or would delete it
// with the repository some day. It returns nil for a repository, and for the remains of a killed creation; those are for kopia to
// judge.
func (l Location) CheckUnused(ctx context.Context, st blob.Storage) error {
	if now, err := ReadFormat(ctx, st); err != nil || now[format.KopiaRepositoryBlobID] != nil {
		return err
	}
	if l.Directory != "" {
		return checkUnusedDirectory(l.Directory)
	}
	var name blob.ID
	err := st.ListBlobs(ctx, "", func(b blob.Metadata) error {
		// Consoles represent a folder by an empty object with the prefix's own name.
		if b.BlobID == "" || strings.HasPrefix(string(b.BlobID), "kopia.") {
			return nil
		}
		name = b.BlobID
		return errOccupied
	})
	switch {
	case name != "":
		return fmt.Errorf("%w: the location is not empty (%s): give the repository a prefix of its own", errclass.Conflict, name)
	case err != nil:
		return fmt.Errorf("list blobs: %w", err)
	}
	return nil
}

// lostAndFound is a directory in the root of every ext4 file system.
const lostAndFound = "lost+found"

func checkUnusedDirectory(path string) error {
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if name := e.Name(); name != lostAndFound && name != ".shards" && name != reserveFile && !strings.HasPrefix(name, "kopia.") && !unfinishedName.MatchString(name) {
			return fmt.Errorf("%w: the directory is not empty (%s): name a new one in it", errclass.Conflict, e.Name())
		}
	}
	return nil
}
