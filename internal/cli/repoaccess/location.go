package repoaccess

import (
	"crypto/x509"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/s3utils"
	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/session"
	"github.com/varvebackup/varve/internal/repository"
)

// LocationHelp is the part of the help that `repo create` and `repo connect` share.
const LocationHelp = `LOCATION is a directory, or s3://ENDPOINT/BUCKET[/PREFIX]. The keys for S3 come from
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN or from the file of
--s3-credentials-file, never from an argument. They are kept in the file of --repo-config,
which only its owner can read. With --s3-role, none are kept.`

// S3Flags are what an S3 location needs besides its address.
type S3Flags struct {
	region, caFile, credentialsFile string
	plainHTTP, role                 bool
}

// AddFlags adds the flags.
func (f *S3Flags) AddFlags(c *cobra.Command) {
	c.Flags().StringVar(&f.region, "s3-region", "", "the region of the bucket (default: ask the server)")
	c.Flags().StringVar(&f.caFile, "s3-ca-file", "", "a file with the certificates (PEM) of the server's authority (default: those of the system)")
	c.Flags().BoolVar(&f.plainHTTP, "s3-plain-http", false, "use HTTP without TLS")
	c.Flags().StringVar(&f.credentialsFile, "s3-credentials-file", "", "a file with keys, in the format of the AWS CLI ([default], aws_access_key_id, aws_secret_access_key)")
}

// AddRoleFlag adds the flag for keys that are this machine's own.
func (f *S3Flags) AddRoleFlag(c *cobra.Command) {
	c.Flags().BoolVar(&f.role, "s3-role", false, "take keys from the role (IAM) of this machine, container or service account whenever they are needed")
}

// IsUsed says that the user gave one of them.
func (f *S3Flags) IsUsed() bool { return *f != S3Flags{} }

// NamesKeys says that the user gave a file with keys.
func (f *S3Flags) NamesKeys() bool { return f.credentialsFile != "" }

// ParseLocation reads a LOCATION, with its keys. It does not repeat what it refuses: somebody may have put keys into it.
func ParseLocation(s *session.Session, text string, f *S3Flags) (repository.Location, error) {
	none := repository.Location{}
	if !strings.Contains(text, "://") {
		if f.IsUsed() {
			return none, failure.Usage("--s3-… flags need a location that begins with s3://")
		}
		dir, err := filepath.Abs(text)
		if err != nil || text == "" {
			return none, failure.Usage("the location is not a directory: give a path, or s3://endpoint/bucket/prefix")
		}
		return repository.Location{Directory: dir}, nil
	}
	at, err := ParseBucket(text, f)
	if err != nil {
		return none, err
	}
	return repository.Location{S3: at}, ReadKeys(s, at, f)
}

// ParseBucket reads a LOCATION that is a bucket, without its keys.
func ParseBucket(text string, f *S3Flags) (*repository.S3, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, failure.Usage("the location is not a URL: use s3://endpoint/bucket/prefix")
	}
	bucket, prefix, _ := strings.Cut(strings.TrimPrefix(u.Path, "/"), "/")
	switch {
	case u.User != nil:
		return nil, failure.Usage("do not put keys into the location, which others on this machine can see: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give --s3-credentials-file")
	case u.Scheme != "s3":
		return nil, failure.Usage("location %s://…: give a directory, or s3://endpoint/bucket/prefix", u.Scheme)
	case u.Host == "" || bucket == "" || u.RawQuery != "" || u.Fragment != "":
		return nil, failure.Usage("the location needs an endpoint and a bucket, and takes nothing behind the prefix: use s3://endpoint/bucket/prefix")
	}
	if err := s3utils.CheckValidBucketName(bucket); err != nil {
		return nil, failure.Usage("bucket %s: %s", bucket, err)
	}
	if prefix != "" && !strings.HasSuffix(prefix, "/") {
		prefix += "/"
	}
	at := &repository.S3{Endpoint: u.Host, Bucket: bucket, Prefix: prefix, Region: f.region, PlainHTTP: f.plainHTTP}
	return at, f.readAuthority(at)
}

func (f *S3Flags) readAuthority(at *repository.S3) error {
	if f.caFile == "" {
		return nil
	}
	if f.plainHTTP {
		return failure.Usage("--s3-ca-file and --s3-plain-http exclude each other")
	}
	text, err := os.ReadFile(f.caFile)
	if err != nil {
		return failure.Usage("--s3-ca-file: %s", err)
	}
	if !x509.NewCertPool().AppendCertsFromPEM(text) {
		return failure.Usage("--s3-ca-file %s: the file has no certificate in PEM format", f.caFile)
	}
	at.RootCA = text
	return nil
}

// ReadKeys adds the keys from the environment, or from the file that a flag names.
func ReadKeys(s *session.Session, at *repository.S3, f *S3Flags) error {
	if f.role {
		if f.credentialsFile != "" || s.Getenv("AWS_ACCESS_KEY_ID") != "" || s.Getenv("AWS_SECRET_ACCESS_KEY") != "" {
			return failure.Usage("--s3-role takes the keys of a role: omit --s3-credentials-file, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
		}
		return nil
	}
	at.AccessKey, at.SecretKey, at.SessionToken = s.Getenv("AWS_ACCESS_KEY_ID"), s.Getenv("AWS_SECRET_ACCESS_KEY"), s.Getenv("AWS_SESSION_TOKEN")
	if f.credentialsFile != "" {
		// For an absent file, the library says the same as for an empty one.
		if _, err := os.Stat(f.credentialsFile); err != nil {
			return failure.Usage("--s3-credentials-file: %s", err)
		}
		v, err := credentials.NewFileAWSCredentials(f.credentialsFile, s.Getenv("AWS_PROFILE")).GetWithContext(nil)
		if err != nil {
			return failure.Usage("--s3-credentials-file %s: the file does not have the format of the AWS CLI, or lacks the profile", f.credentialsFile)
		}
		at.AccessKey, at.SecretKey, at.SessionToken = v.AccessKeyID, v.SecretAccessKey, v.SessionToken
	}
	if at.AccessKey == "" || at.SecretKey == "" {
		return failure.Usage("no keys for S3: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give --s3-credentials-file or --s3-role")
	}
	return nil
}
