package repository

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/blob/filesystem"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/format"
	"github.com/minio/minio-go/v7"
)

const (
	// hashAlgorithm and encryptionAlgorithm are the fastest that kopia offers on today's processors (docs/format.md).
	hashAlgorithm       = "BLAKE3-256-128"
	encryptionAlgorithm = "AES256-GCM-HMAC-SHA256"
)

// Location is where a repository's blobs are: exactly one of its fields is set.
type Location struct {
	// Directory is an absolute path.
	Directory string
	S3        *S3
}

// CreateOptions are permanent properties of a repository.
type CreateOptions struct {
	// LockMode is GOVERNANCE or COMPLIANCE. LockPeriod is how long after it was written no blob can be deleted. Empty: no object
	// lock.
	LockMode   string
	LockPeriod time.Duration
}

// ConnectOptions are properties of this machine's connection.
type ConnectOptions struct {
	// CacheDirectory is for a cache of indexes, metadata and CacheBytes of data. One without the other is ErrInvalid; "" and 0:
	// no cache.
	CacheDirectory string
	CacheBytes     int64
	ReadOnly       bool
	// Host and User identify this machine in the repository; "": as the system says.
	Host, User string
}

// Create makes a repository at an empty location. It is always encrypted.
func Create(ctx context.Context, at Location, password string, o CreateOptions) error {
	if err := create(ctx, at, password, o); err != nil {
		return fmt.Errorf("create a repository in %s: %w", at, err)
	}
	return nil
}

func create(ctx context.Context, at Location, password string, o CreateOptions) error {
	options := &repo.NewRepositoryOptions{
		BlockFormat: format.ContentFormat{
			Hash: hashAlgorithm, Encryption: encryptionAlgorithm, EnablePasswordChange: true,
		},
		RetentionMode: blob.RetentionMode(o.LockMode), RetentionPeriod: o.LockPeriod,
	}
	switch {
	case password == "":
		return fmt.Errorf("%w: an empty password", ErrInvalid)
	case o.LockMode != "" && !options.RetentionMode.IsValid():
		return fmt.Errorf("%w: object lock mode %q: GOVERNANCE or COMPLIANCE", ErrInvalid, o.LockMode)
	}
	st, err := at.open(ctx, true)
	if err != nil {
		return err
	}
	err = vacant(ctx, st)
	if err == nil {
		err = at.free(ctx, st)
	}
	if err == nil {
		err = repo.Initialize(ctx, st, options, password)
	}
	var answer minio.ErrorResponse
	switch {
	case errors.Is(err, repo.ErrAlreadyInitialized):
		err = fmt.Errorf("%w: there is a repository already: connect to it", ErrConflict)
	case o.LockMode != "" && errors.As(err, &answer) && answer.StatusCode == http.StatusBadRequest:
		err = fmt.Errorf("%w: the bucket must have been made with object lock: %w", ErrInvalid, answer)
	}
	if err == nil {
		err = copyFormat(ctx, st, blob.PutOptions{RetentionMode: options.RetentionMode, RetentionPeriod: o.LockPeriod})
	}
	return errors.Join(err, st.Close(ctx))
}

// ownName matches the names of the format's copy, indexes and packs. Other names that begin with p or q, say photos and queues,
// are other people's.
var ownName = regexp.MustCompile(`^(varve\.format$|xn[0-9]+_|[pq][0-9a-f]{32}-)`)

// vacant makes sure that a repository can be made. It removes what a killed creation left. It refuses the remains of a repository
// that has lost its format, because a new repository would replace its keys for good.
func vacant(ctx context.Context, st blob.Storage) error {
	for _, prefix := range append([]blob.ID{formatCopy, indexPrefix}, content.PackBlobIDPrefixes...) {
		blobs, err := listBlobs(ctx, st, prefix)
		if err != nil {
			return err
		}
		mine := slices.IndexFunc(blobs, func(b blob.Metadata) bool { return ownName.MatchString(string(b.BlobID)) })
		if mine < 0 {
			continue
		}
		now, err := readBlob(ctx, st, format.KopiaRepositoryBlobID)
		if err != nil || now != nil {
			return err // kopia reports that there is a repository
		}
		return fmt.Errorf("%w: there is a repository without its format, as blob %s shows: connect to it", ErrConflict, blobs[mine].BlobID)
	}
	// A killed creation leaves the first of its two blobs, which kopia takes for damage.
	now, err := readFormat(ctx, st)
	if err != nil || now[format.KopiaBlobCfgBlobID] == nil || now[format.KopiaRepositoryBlobID] != nil {
		return err
	}
	return st.DeleteBlob(ctx, format.KopiaBlobCfgBlobID)
}

// errFound ends a listing early.
var errFound = errors.New("found")

// free refuses a location that holds anything but a repository: whoever names it has made a mistake, or would delete it with the
// repository some day. It returns nil for a repository, and for the remains of a killed creation; those are for kopia to judge.
func (l Location) free(ctx context.Context, st blob.Storage) error {
	if now, err := readFormat(ctx, st); err != nil || now[format.KopiaRepositoryBlobID] != nil {
		return err
	}
	if l.Directory != "" {
		return freeDirectory(l.Directory)
	}
	var name blob.ID
	err := st.ListBlobs(ctx, "", func(b blob.Metadata) error {
		// Consoles represent a folder by an empty object with the prefix's own name.
		if b.BlobID == "" || strings.HasPrefix(string(b.BlobID), "kopia.") {
			return nil
		}
		name = b.BlobID
		return errFound
	})
	switch {
	case name != "":
		return fmt.Errorf("%w: the location is not empty (%s): give the repository a prefix of its own", ErrConflict, name)
	case err != nil:
		return fmt.Errorf("list blobs: %w", err)
	}
	return nil
}

// lostAndFound is a directory in the root of every ext4 file system.
const lostAndFound = "lost+found"

func freeDirectory(path string) error {
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if name := e.Name(); name != lostAndFound && name != ".shards" && !strings.HasPrefix(name, "kopia.") && !unfinishedName.MatchString(name) {
			return fmt.Errorf("%w: the directory is not empty (%s): name a new one in it", ErrConflict, e.Name())
		}
	}
	return nil
}

// Connect writes configFile, which Open reads. It replaces an existing file once the password has opened the repository; until
// then the old connection stays. The file holds the keys of the storage, but not the password.
func Connect(ctx context.Context, configFile string, at Location, password string, o ConnectOptions) error {
	if err := connect(ctx, configFile, at, password, o); err != nil {
		return fmt.Errorf("connect to the repository in %s: %w", at, err)
	}
	return nil
}

func connect(ctx context.Context, configFile string, at Location, password string, o ConnectOptions) error {
	if (o.CacheDirectory == "") != (o.CacheBytes == 0) || o.CacheBytes < 0 {
		return fmt.Errorf("%w: a cache of %d bytes in directory %q", ErrInvalid, o.CacheBytes, o.CacheDirectory)
	}
	st, err := at.open(ctx, false)
	if err != nil {
		return err
	}
	caching := content.CachingOptions{
		CacheDirectory: o.CacheDirectory, ContentCacheSizeBytes: o.CacheBytes, MetadataCacheSizeBytes: max(o.CacheBytes, 256*mib),
	}
	if err := forgetFormat(&caching); err != nil {
		return errors.Join(err, st.Close(ctx))
	}
	candidate, err := besideConfig(configFile)
	if err == nil && !o.ReadOnly {
		err = restoreFormat(ctx, st, password)
	}
	if err != nil {
		return errors.Join(err, st.Close(ctx))
	}
	err = repo.Connect(ctx, candidate, st, password, &repo.ConnectOptions{
		ClientOptions:  repo.ClientOptions{Hostname: o.Host, Username: o.User, ReadOnly: o.ReadOnly},
		CachingOptions: caching,
	})
	switch {
	case errors.Is(err, repo.ErrInvalidPassword):
		err = ErrPassword
	case errors.Is(err, repo.ErrRepositoryNotInitialized):
		err = fmt.Errorf("%w: no repository is there: create one", ErrNotFound)
	}
	if err = errors.Join(err, st.Close(ctx)); err == nil {
		err = os.Rename(candidate, configFile)
	}
	if err != nil {
		_ = os.Remove(candidate) // kopia may have removed it
	}
	return err
}

// besideConfig makes an empty file in the directory of configFile, and that directory if necessary. It has to be the same
// directory because the path of the cache is stored relative to the file.
func besideConfig(configFile string) (string, error) {
	dir := filepath.Dir(configFile)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	f, err := os.CreateTemp(dir, ".connect-*.config")
	if err != nil {
		return "", err
	}
	return f.Name(), f.Close()
}

// ConnectedTo returns the location that configFile names, without its keys, in the form of Location.String. The error is
// fs.ErrNotExist if there is no such file, and ErrInvalid if Connect did not write it.
func ConnectedTo(configFile string) (string, error) {
	lc, err := loadConnection(configFile)
	if err != nil {
		return "", fmt.Errorf("connection %s: %w", configFile, err)
	}
	if lc.Storage == nil {
		return lc.APIServer.BaseURL, nil
	}
	return location(*lc.Storage), nil
}

// gone returns err, or ErrNotFound if the reason for err is that the repository of a connection no longer exists: for instance
// because the directory is empty and nothing is mounted there.
func gone(ctx context.Context, configFile string, err error) error {
	if !errors.Is(err, blob.ErrBlobNotFound) {
		return err
	}
	lc, broken := repo.LoadConfigFromFile(configFile)
	if broken != nil || lc.Storage == nil {
		return err
	}
	st, closed := blob.NewStorage(ctx, *lc.Storage, false)
	if closed != nil {
		return err
	}
	defer st.Close(ctx) //nolint:errcheck // nothing was written
	if _, absent := st.GetMetadata(ctx, format.KopiaRepositoryBlobID); !errors.Is(absent, blob.ErrBlobNotFound) {
		return err
	}
	return fmt.Errorf("%w: no repository is in %s any more", ErrNotFound, location(st.ConnectionInfo()))
}

// ReadOnly says whether the connection was made for reading only.
func (r *Repository) ReadOnly() bool { return r.rep.ClientOptions().ReadOnly }

// String returns the location without its keys.
func (l Location) String() string {
	if l.S3 != nil {
		return "s3://" + l.S3.Endpoint + "/" + l.S3.Bucket + "/" + l.S3.Prefix
	}
	return l.Directory
}

func (l Location) open(ctx context.Context, create bool) (blob.Storage, error) {
	switch {
	case l.S3 != nil && l.Directory == "":
		return l.S3.open(ctx)
	case l.S3 == nil && filepath.IsAbs(l.Directory):
		return openDirectory(ctx, l.Directory, create)
	}
	return nil, fmt.Errorf("%w: location %q: an absolute directory or an S3 bucket", ErrInvalid, l)
}

func openDirectory(ctx context.Context, path string, create bool) (blob.Storage, error) {
	if info, err := os.Stat(path); err == nil && !info.IsDir() {
		return nil, fmt.Errorf("%w: %s is not a directory", ErrInvalid, path)
	}
	if create {
		if err := os.MkdirAll(path, 0o700); err != nil {
			return nil, err
		}
	}
	st, err := newDirectory(ctx, &filesystem.Options{Path: path}, create)
	if err != nil {
		return nil, fmt.Errorf("open directory %s: %w", path, err)
	}
	return st, nil
}
