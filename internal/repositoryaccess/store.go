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
	"time"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/format"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/location"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/repository/storage"
)

// answerTimeout is how long a server may take to answer the first request.
const answerTimeout = 10 * time.Second

// user is what restore points, logs and locks call whoever prepares repositories.
const user = "varve"

// derivations is how many keys are derived from passwords at a time. Each takes 64 MiB.
const derivations = 2

// Store does the work. It is safe for concurrent use.
type Store struct {
	locate func(datamove.Access) repository.Location
	now    func() time.Time
	keys   chan struct{}
}

// NewStore returns a Store. A nil locate is Locate; tests have others. now tells the time, with which that of servers is compared.
func NewStore(now func() time.Time, locate func(datamove.Access) repository.Location) *Store {
	if locate == nil {
		locate = Locate
	}
	return &Store{locate: locate, now: now, keys: make(chan struct{}, derivations)}
}

// Locate returns where the repository of an access is.
func Locate(a datamove.Access) repository.Location {
	if a.S3 == nil {
		return repository.Location{Directory: a.Directory}
	}
	s := a.S3
	return repository.Location{S3: &repository.S3{
		Endpoint: s.Endpoint, Bucket: s.Bucket, Prefix: s.Prefix, Region: s.Region, PlainHTTP: s.PlainHTTP, RootCA: s.RootCA,
		AccessKey: s.AccessKey, SecretKey: s.SecretKey, SessionToken: s.SessionToken, Role: locateRole(s.Role), AnswerTimeout: answerTimeout,
	}}
}

// locateRole returns how this pod gets the keys of a role. EKS puts the role of a pod's account into these variables.
func locateRole(r *datamove.RoleAccess) *repository.Role {
	switch {
	case r == nil:
		return nil
	case r.ARN == "":
		return &repository.Role{ARN: os.Getenv("AWS_ROLE_ARN"), STS: r.STS, TokenFile: os.Getenv("AWS_WEB_IDENTITY_TOKEN_FILE")}
	}
	return &repository.Role{ARN: r.ARN, STS: r.STS, TokenFile: filepath.Join(datamove.IdentityDirectory, datamove.IdentityToken)}
}

// Exists says whether there is a repository, with its format or without it.
func (s *Store) Exists(ctx context.Context, a datamove.Access) (bool, error) {
	at := s.locate(a)
	if at.Directory != "" {
		if _, err := os.Stat(at.Directory); errors.Is(err, os.ErrNotExist) {
			return false, nil
		}
	}
	st, err := at.Open(ctx, false)
	if err != nil {
		return false, err
	}
	exists, err := hasFormat(ctx, st)
	return exists, errors.Join(err, st.Close(ctx))
}

// formatBlobs are the blobs that only a repository has: the format, and its copy, from which the format can be restored.
var formatBlobs = []blob.ID{format.KopiaRepositoryBlobID, storage.FormatCopy}

func hasFormat(ctx context.Context, st blob.Reader) (bool, error) {
	for _, id := range formatBlobs {
		data, err := storage.ReadBlob(ctx, st, id)
		if err != nil || data != nil {
			return data != nil, err
		}
	}
	return false, nil
}

// Find returns the name of a directory below root's that has a repository, and that known does not name; "" if there is none.
func (s *Store) Find(ctx context.Context, root datamove.Access, known []string) (string, error) {
	at := s.locate(root)
	if at.S3 == nil {
		return findInDirectory(at.Directory, known)
	}
	st, err := at.Open(ctx, false)
	if err != nil {
		return "", err
	}
	var directories []string
	// What has a slash in its name is listed by its first part alone.
	err = st.ListBlobs(ctx, "", func(b blob.Metadata) error {
		if name, ok := strings.CutSuffix(string(b.BlobID), "/"); ok && name != "" && !slices.Contains(known, name) {
			directories = append(directories, name)
		}
		return nil
	})
	if err := errors.Join(err, st.Close(ctx)); err != nil {
		return "", fmt.Errorf("list what is there: %w", err)
	}
	for _, name := range directories {
		if exists, err := s.Exists(ctx, below(root, name)); err != nil || exists {
			return name, err
		}
	}
	return "", nil
}

func findInDirectory(path string, known []string) (string, error) {
	entries, err := os.ReadDir(path)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		if !e.IsDir() || slices.Contains(known, e.Name()) {
			continue
		}
		for _, id := range formatBlobs {
			data, err := readFile(path, e.Name(), id)
			if err != nil || data != nil {
				return e.Name(), err
			}
		}
	}
	return "", nil
}

// Prepare makes the repository, or checks that the password opens the one that is there, and returns its unique ID. It
// reads the format and no index: the controller prepares repositories of any size. One with another ID than the
// access's is refused (storage.ErrReplaced), and one that is gone (ErrGone) is not made again.
func (s *Store) Prepare(ctx context.Context, a datamove.Access, lock location.Lock) (uniqueID string, err error) {
	exists, err := s.Exists(ctx, a)
	if err != nil {
		return "", err
	}
	select {
	case s.keys <- struct{}{}:
		defer func() { <-s.keys }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if !exists {
		switch {
		case a.UniqueID != "":
			return "", ErrGone
		case a.ReadOnly:
			return "", ErrNothingToRead
		}
		if err := s.create(ctx, a, lock); err != nil {
			return "", err
		}
	}
	o := repository.ConnectOptions{ReadOnly: true, Host: user, User: user}
	if !a.ReadOnly && a.UniqueID != "" {
		o.ReadOnly = false // so that a lost format is restored from its copy
	}
	id, err := repository.CheckPassword(ctx, s.locate(a), a.Password, o)
	if err != nil {
		return "", err
	}
	return id, checkSame(id, a)
}

// create makes the repository, once the storage has shown that it can be written.
func (s *Store) create(ctx context.Context, a datamove.Access, lock location.Lock) error {
	return repository.Create(ctx, s.locate(a), a.Password, repository.CreateOptions{LockMode: lock.Mode, LockPeriod: lock.Period})
}

// Open opens the repository of an access, and no other one.
func (s *Store) Open(ctx context.Context, a datamove.Access, o repository.ConnectOptions) (*repository.Repository, error) {
	o.ReadOnly = o.ReadOnly || a.ReadOnly
	r, err := repository.OpenLocation(ctx, s.locate(a), a.Password, o)
	if err != nil {
		return nil, err
	}
	if err := checkSame(r.ID(), a); err != nil {
		return nil, errors.Join(err, r.Close(ctx))
	}
	return r, nil
}

func checkSame(id string, a datamove.Access) error {
	if a.UniqueID != "" && id != a.UniqueID {
		return storage.ErrReplaced
	}
	return nil
}

// Check is a quick look whether the storage answers and still has the repository of the access. It does not try the password.
func (s *Store) Check(ctx context.Context, a datamove.Access) error {
	id, err := hex.DecodeString(a.UniqueID)
	if err != nil || len(id) == 0 {
		return fmt.Errorf("%w: unique ID %q", errclass.Invalid, a.UniqueID)
	}
	at := s.locate(a)
	if at.Directory != "" {
		if _, err := os.Stat(at.Directory); errors.Is(err, os.ErrNotExist) {
			return ErrGone
		}
	}
	st, err := at.Open(ctx, false)
	if err != nil {
		return err
	}
	return errors.Join(storage.CheckRepository(ctx, st, id), st.Close(ctx))
}
