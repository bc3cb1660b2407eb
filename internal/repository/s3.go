package repository

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/blob/s3"
	"github.com/minio/minio-go/v7"
)

var (
	// ErrUnreachable: the storage does not answer.
	ErrUnreachable = errors.New("no answer")
	// ErrDenied: the storage does not accept the keys, or what they are used for.
	ErrDenied = errors.New("access denied")
	// ErrNoBucket: the storage has no bucket of this name. It is also ErrNotFound.
	ErrNoBucket = fmt.Errorf("%w: no such bucket", ErrNotFound)
)

// defaultAnswerTimeout is how long a server may take to answer the first request. kopia and its S3 client would try for minutes,
// or forever.
const defaultAnswerTimeout = 30 * time.Second

// S3 is a bucket on anything that speaks S3.
type S3 struct {
	// Endpoint is host or host:port.
	Endpoint string
	Bucket   string
	// Prefix begins the blobs' names, for instance "varve/".
	Prefix string
	Region string
	// PlainHTTP turns TLS off. RootCA is PEM, for an authority that the system does not know.
	PlainHTTP bool
	RootCA    []byte
	// SessionToken is for temporary keys only.
	AccessKey, SecretKey, SessionToken string
	// AnswerTimeout is how long the server may take to answer the first request; 0: 30 seconds.
	AnswerTimeout time.Duration
}

func (s *S3) options() *s3.Options {
	return &s3.Options{
		BucketName: s.Bucket, Prefix: s.Prefix, Endpoint: s.Endpoint, Region: s.Region, DoNotUseTLS: s.PlainHTTP, RootCA: s.RootCA,
		AccessKeyID: s.AccessKey, SecretAccessKey: s.SecretKey, SessionToken: s.SessionToken,
	}
}

// open returns the storage once the server has answered and has the bucket.
func (s *S3) open(ctx context.Context) (blob.Storage, error) {
	st, err := openS3(ctx, s.options(), s.AnswerTimeout)
	if err != nil {
		return nil, err
	}
	// A missing bucket looks like an empty one until it is listed. Whoever may not list learns that where it matters.
	err = st.ListBlobs(ctx, "kopia.repository", func(blob.Metadata) error { return nil })
	if minio.ToErrorResponse(err).Code == minio.NoSuchBucket {
		return nil, errors.Join(fmt.Errorf("%w: %s at %s", ErrNoBucket, s.Bucket, s.Endpoint), st.Close(ctx))
	}
	return st, nil
}

// openS3 returns the storage once the server has answered a request.
func openS3(ctx context.Context, o *s3.Options, timeout time.Duration) (blob.Storage, error) {
	if timeout == 0 {
		timeout = defaultAnswerTimeout
	}
	within, cancel := context.WithTimeoutCause(ctx, timeout, ErrUnreachable)
	defer cancel()
	st, err := newS3(within, o, false)
	var answer minio.ErrorResponse
	switch {
	case err == nil:
		return st, nil
	case context.Cause(within) == ErrUnreachable: //nolint:errorlint // exactly this cause
		err = fmt.Errorf("%w from %s within %s", ErrUnreachable, o.Endpoint, timeout)
	case errors.As(err, &answer) && (answer.StatusCode == http.StatusForbidden || answer.StatusCode == http.StatusUnauthorized):
		err = fmt.Errorf("%w: %w", ErrDenied, answer)
	case errors.Is(err, blob.ErrInvalidCredentials):
		err = fmt.Errorf("%w: %w", ErrDenied, err)
	}
	return nil, err
}

// newS3 opens a bucket. It limits how long a silent server is waited for; a file system that hangs would not heed such a limit.
func newS3(ctx context.Context, o *s3.Options, create bool) (blob.Storage, error) {
	st, err := s3.New(ctx, o, create)
	if err != nil {
		return nil, err
	}
	return newStalling(st, stallLimit), nil
}

// loadConnection reads the file of a connection. Either its storage is set, or its server.
func loadConnection(configFile string) (*repo.LocalConfig, error) {
	lc, err := repo.LoadConfigFromFile(configFile)
	if err == nil && lc.Storage == nil && lc.APIServer == nil {
		err = errors.New("it names no storage")
	}
	var file *fs.PathError
	switch {
	case errors.As(err, &file):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("%w: it is not what connecting writes: connect again: %w", ErrInvalid, err)
	}
	return lc, nil
}

// reach fails if the file of a connection is broken, or if its storage is an S3 server that does not answer.
func reach(ctx context.Context, configFile string, timeout time.Duration) error {
	lc, err := loadConnection(configFile)
	if err != nil || lc.Storage == nil {
		return err
	}
	o, ok := lc.Storage.Config.(*s3.Options)
	if !ok {
		return nil
	}
	st, err := openS3(ctx, o, timeout)
	if err != nil {
		return fmt.Errorf("bucket %s at %s: %w", o.BucketName, o.Endpoint, err)
	}
	return st.Close(ctx)
}
