package storage

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/blob/s3"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"k8s.io/utils/clock"

	"github.com/varvebackup/varve/internal/errclass"
)

// roleType is the type of storage in the configuration of a connection to a bucket by a role. It holds no keys.
const roleType = "varve-s3-role"

// roleOptions is a bucket without keys, and the role that has them.
type roleOptions struct {
	Bucket s3.Options `json:"bucket"`
	Role   Role       `json:"role"`
}

// renewalPause is the pause between two attempts to get new keys while the old ones are good.
const renewalPause = 15 * time.Second

// refusedKeys are the codes with which servers refuse keys that have expired.
var refusedKeys = []string{"ExpiredToken", "ExpiredTokenException", "InvalidToken", "InvalidTokenId", "InvalidAccessKeyId"}

// roleStorage is a bucket whose keys change. kopia's S3 client has one set of keys for its life, so each set has a client of its own. What
// is on the way when keys change goes on with the old ones: they are good for another fifth of their life.
type roleStorage struct {
	options roleOptions
	keys    *credentials.Credentials
	clock   clock.PassiveClock

	mu      sync.Mutex
	client  blob.Storage
	used    credentials.Value // the client's
	failure error             // of the last attempt to get new keys
	failed  time.Time
}

func newRoleS3(ctx context.Context, o *roleOptions, _ bool) (blob.Storage, error) {
	keys, err := o.Role.newKeys(o.Bucket.RootCA)
	if err != nil {
		return nil, err
	}
	s := &roleStorage{options: *o, keys: keys, clock: clock.RealClock{}}
	if _, err := s.open(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// open returns a client whose keys are good. If new keys cannot be had, the old ones are used until they expire.
func (s *roleStorage) open(ctx context.Context) (blob.Storage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	good := s.client != nil && s.clock.Now().Before(s.used.Expiration)
	if good && s.failure != nil && s.clock.Since(s.failed) < renewalPause {
		return s.client, nil
	}
	value, err := s.keys.GetWithContext(nil)
	if err == nil && (value.AccessKeyID == "" || value.SecretAccessKey == "") {
		s.keys.Expire()
		err = errors.New("the answer has no keys") // with which kopia would look for those of the node
	}
	if err != nil {
		s.failure, s.failed = s.options.Role.explain(err), s.clock.Now()
		if good {
			return s.client, nil
		}
		return nil, s.failure
	}
	s.failure = nil
	if s.client != nil && value == s.used {
		return s.client, nil
	}
	o := s.options.Bucket
	o.AccessKeyID, o.SecretAccessKey, o.SessionToken = value.AccessKeyID, value.SecretAccessKey, value.SessionToken
	client, err := newS3(ctx, &o, false)
	if err != nil {
		return nil, err
	}
	s.client, s.used = client, value
	return client, nil
}

// with calls f with a client, and once more with new keys if the server refuses the client's while again says so.
func (s *roleStorage) with(ctx context.Context, again func() bool, f func(blob.Storage) error) error {
	client, err := s.open(ctx)
	if err != nil {
		return err
	}
	err = f(client)
	if err == nil || !keysRefused(err) || !again() {
		return err
	}
	s.expire(client)
	client, renewal := s.open(ctx)
	if renewal != nil {
		return errors.Join(errclass.Errorf(errclass.Denied, "the keys of role %s are refused", s.options.Role.ARN), err, renewal)
	}
	return f(client)
}

// expire has the next open get new keys, unless somebody else has got them already.
func (s *roleStorage) expire(refused blob.Storage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client == refused {
		s.keys.Expire()
		s.client, s.failure = nil, nil
	}
}

func keysRefused(err error) bool {
	var answer minio.ErrorResponse
	return errors.Is(err, blob.ErrInvalidCredentials) || errors.As(err, &answer) && slices.Contains(refusedKeys, answer.Code)
}

func always() bool { return true }

func (s *roleStorage) GetBlob(ctx context.Context, id blob.ID, offset, length int64, out blob.OutputBuffer) error {
	return s.with(ctx, always, func(st blob.Storage) error { return st.GetBlob(ctx, id, offset, length, out) })
}

func (s *roleStorage) GetMetadata(ctx context.Context, id blob.ID) (m blob.Metadata, err error) {
	err = s.with(ctx, always, func(st blob.Storage) error {
		m, err = st.GetMetadata(ctx, id)
		return err
	})
	return m, err
}

func (s *roleStorage) PutBlob(ctx context.Context, id blob.ID, data blob.Bytes, o blob.PutOptions) error {
	return s.with(ctx, always, func(st blob.Storage) error { return st.PutBlob(ctx, id, data, o) })
}

func (s *roleStorage) DeleteBlob(ctx context.Context, id blob.ID) error {
	return s.with(ctx, always, func(st blob.Storage) error { return st.DeleteBlob(ctx, id) })
}

func (s *roleStorage) ExtendBlobRetention(ctx context.Context, id blob.ID, o blob.ExtendOptions) error {
	return s.with(ctx, always, func(st blob.Storage) error { return st.ExtendBlobRetention(ctx, id, o) })
}

// ListBlobs tells call of no blob twice.
func (s *roleStorage) ListBlobs(ctx context.Context, prefix blob.ID, call func(blob.Metadata) error) error {
	told := false
	return s.with(ctx, func() bool { return !told }, func(st blob.Storage) error {
		return st.ListBlobs(ctx, prefix, func(m blob.Metadata) error {
			told = true
			return call(m)
		})
	})
}

func (s *roleStorage) ConnectionInfo() blob.ConnectionInfo {
	o := s.options
	return blob.ConnectionInfo{Type: roleType, Config: &o}
}

func (s *roleStorage) DisplayName() string { return Describe(s.ConnectionInfo()) }

func (*roleStorage) GetCapacity(context.Context) (blob.Capacity, error) {
	return blob.Capacity{}, blob.ErrNotAVolume
}

// Close and FlushCaches do nothing, as with kopia's S3 client.
func (*roleStorage) Close(context.Context) error       { return nil }
func (*roleStorage) FlushCaches(context.Context) error { return nil }
func (*roleStorage) IsReadOnly() bool                  { return false }
