package storage

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/blob/s3"
	"github.com/minio/minio-go/v7"

	"github.com/varvebackup/varve/internal/errclass"
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
	// Role gets keys in place of these, and new ones before they expire.
	Role *Role
	// AnswerTimeout is how long the server may take to answer the first request; 0: 30 seconds.
	AnswerTimeout time.Duration
}

// Options returns the bucket as kopia's configuration has it.
func (s *S3) Options() *s3.Options {
	return &s3.Options{
		BucketName: s.Bucket, Prefix: s.Prefix, Endpoint: s.Endpoint, Region: s.Region, DoNotUseTLS: s.PlainHTTP, RootCA: s.RootCA,
		AccessKeyID: s.AccessKey, SecretAccessKey: s.SecretKey, SessionToken: s.SessionToken,
	}
}

// openBucket returns the storage once the server has answered and has the bucket.
func (s *S3) openBucket(ctx context.Context) (blob.Storage, error) {
	open := func(ctx context.Context) (blob.Storage, error) { return newS3(ctx, s.Options(), false) }
	if s.Role != nil {
		open = func(ctx context.Context) (blob.Storage, error) {
			return newRoleS3(ctx, &roleOptions{Bucket: *s.Options(), Role: *s.Role}, false)
		}
	}
	st, err := openAnsweringS3(ctx, s.Endpoint, s.AnswerTimeout, open)
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

// CodeClock is the code with which S3 servers refuse a request whose time differs too much from theirs, most of them with status 403.
const CodeClock = "RequestTimeTooSkewed"

// openAnsweringS3 returns the storage that open opens, once the server has answered a request.
func openAnsweringS3(ctx context.Context, endpoint string, timeout time.Duration, open func(context.Context) (blob.Storage, error)) (blob.Storage, error) {
	if timeout == 0 {
		timeout = defaultAnswerTimeout
	}
	within, cancel := context.WithTimeoutCause(ctx, timeout, ErrUnreachable)
	defer cancel()
	st, err := open(within)
	var answer minio.ErrorResponse
	switch {
	case err == nil:
		return st, nil
	case context.Cause(within) == ErrUnreachable: //nolint:errorlint // exactly this cause
		err = fmt.Errorf("%w from %s within %s", ErrUnreachable, endpoint, timeout)
	case refusedAsFull(err):
		err = markFull(err)
	case errors.As(err, &answer) && answer.Code != CodeClock && (answer.StatusCode == http.StatusForbidden || answer.StatusCode == http.StatusUnauthorized):
		err = fmt.Errorf("%w: %w", errclass.Denied, answer)
	case errors.Is(err, blob.ErrInvalidCredentials):
		err = fmt.Errorf("%w: %w", errclass.Denied, err)
	}
	return nil, err
}

// newS3 opens a bucket. It limits how long a silent server is waited for; a file system that hangs would not heed such a limit.
func newS3(ctx context.Context, o *s3.Options, create bool) (blob.Storage, error) {
	st, err := s3.New(ctx, o, create)
	if err != nil {
		return nil, err
	}
	return MarkFull(NewStallDetector(st, StallLimit)), nil
}

// CheckReachable fails if a storage is an S3 server that does not answer within the timeout; 0: 30 seconds.
func CheckReachable(ctx context.Context, info blob.ConnectionInfo, timeout time.Duration) error {
	var bucket s3.Options
	var open func(context.Context) (blob.Storage, error)
	switch o := info.Config.(type) {
	case *s3.Options:
		bucket, open = *o, func(ctx context.Context) (blob.Storage, error) { return newS3(ctx, o, false) }
	case *roleOptions:
		bucket, open = o.Bucket, func(ctx context.Context) (blob.Storage, error) { return newRoleS3(ctx, o, false) }
	default:
		return nil
	}
	st, err := openAnsweringS3(ctx, bucket.Endpoint, timeout, open)
	if err != nil {
		return fmt.Errorf("bucket %s at %s: %w", bucket.BucketName, bucket.Endpoint, err)
	}
	return st.Close(ctx)
}
