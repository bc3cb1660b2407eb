package repo

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/s3utils"
	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/repoaccess"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/retention"
)

// locationHelp is the part of the help that `repo create` and `repo connect` share.
const locationHelp = `LOCATION is a directory, or s3://ENDPOINT/BUCKET[/PREFIX]. The keys for S3 come from
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN or from the file of
--s3-credentials-file, never from an argument. They are kept in the file of --repo-config,
which only its owner can read. With --s3-role, none are kept.`

// s3Flags are what an S3 location needs besides its address.
type s3Flags struct {
	region, caFile, credentialsFile string
	plainHTTP, role                 bool
}

func (f *s3Flags) addFlags(c *cobra.Command) {
	c.Flags().StringVar(&f.region, "s3-region", "", "the region of the bucket (default: ask the server)")
	c.Flags().StringVar(&f.caFile, "s3-ca-file", "", "a file with the certificates (PEM) of the server's authority (default: those of the system)")
	c.Flags().BoolVar(&f.plainHTTP, "s3-plain-http", false, "use HTTP without TLS")
	c.Flags().BoolVar(&f.role, "s3-role", false, "take keys from the role (IAM) of this machine, container or service account whenever they are needed")
	c.Flags().StringVar(&f.credentialsFile, "s3-credentials-file", "", "a file with keys, in the format of the AWS CLI ([default], aws_access_key_id, aws_secret_access_key)")
}

func (f *s3Flags) isUsed() bool { return *f != s3Flags{} }

// parseLocation reads a LOCATION. It does not repeat what it refuses: somebody may have put keys into it.
func parseLocation(s *repoaccess.Session, text string, f *s3Flags) (repository.Location, error) {
	none := repository.Location{}
	if !strings.Contains(text, "://") {
		if f.isUsed() {
			return none, failure.Usage("--s3-… flags need a location that begins with s3://")
		}
		dir, err := filepath.Abs(text)
		if err != nil || text == "" {
			return none, failure.Usage("the location is not a directory: give a path, or s3://endpoint/bucket/prefix")
		}
		return repository.Location{Directory: dir}, nil
	}
	u, err := url.Parse(text)
	if err != nil {
		return none, failure.Usage("the location is not a URL: use s3://endpoint/bucket/prefix")
	}
	bucket, prefix, _ := strings.Cut(strings.TrimPrefix(u.Path, "/"), "/")
	switch {
	case u.User != nil:
		return none, failure.Usage("do not put keys into the location, which others on this machine can see: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give --s3-credentials-file")
	case u.Scheme != "s3":
		return none, failure.Usage("location %s://…: give a directory, or s3://endpoint/bucket/prefix", u.Scheme)
	case u.Host == "" || bucket == "" || u.RawQuery != "" || u.Fragment != "":
		return none, failure.Usage("the location needs an endpoint and a bucket, and takes nothing behind the prefix: use s3://endpoint/bucket/prefix")
	}
	if err := s3utils.CheckValidBucketName(bucket); err != nil {
		return none, failure.Usage("bucket %s: %s", bucket, err)
	}
	if prefix != "" && !strings.HasSuffix(prefix, "/") {
		prefix += "/"
	}
	at := &repository.S3{Endpoint: u.Host, Bucket: bucket, Prefix: prefix, Region: f.region, PlainHTTP: f.plainHTTP}
	if err := f.readAuthority(at); err != nil {
		return none, err
	}
	return repository.Location{S3: at}, readKeys(s, at, f)
}

func (f *s3Flags) readAuthority(at *repository.S3) error {
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

func readKeys(s *repoaccess.Session, at *repository.S3, f *s3Flags) error {
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

// lockFlags are the flags of an object lock.
type lockFlags struct{ mode, period string }

func (f *lockFlags) addFlags(c *cobra.Command) {
	c.Flags().StringVar(&f.mode, "object-lock", "", "keep the storage from deleting what was written: GOVERNANCE (users with a special permission can) or COMPLIANCE (nobody can)")
	c.Flags().StringVar(&f.period, "object-lock-period", "", "with --object-lock: for how long, such as 30d; maintenance extends the lock of what is in use")
	cmdline.CompleteFixed(c, "object-lock", "GOVERNANCE", "COMPLIANCE")
}

func (f *lockFlags) newCreateOptions(at repository.Location) (repository.CreateOptions, error) {
	var o repository.CreateOptions
	if f.mode == "" && f.period == "" {
		return o, nil
	}
	o.LockMode = strings.ToUpper(f.mode)
	period, err := parseDays(f.period)
	switch {
	case f.mode == "" || f.period == "":
		return o, failure.Usage("--object-lock and --object-lock-period need each other")
	case o.LockMode != "GOVERNANCE" && o.LockMode != "COMPLIANCE":
		return o, failure.Usage("--object-lock %s: use GOVERNANCE or COMPLIANCE", f.mode)
	case err != nil:
		return o, failure.Usage("--object-lock-period: %s", err)
	case period < 24*time.Hour:
		return o, failure.Usage("--object-lock-period %s: give at least 1d", f.period)
	case at.S3 == nil:
		return o, failure.Usage("--object-lock needs a bucket with object lock: a directory cannot refuse to delete")
	}
	o.LockPeriod = period
	return o, nil
}

// parseDays reads a span of weeks, days and hours, which have a fixed length.
func parseDays(text string) (time.Duration, error) {
	span, err := retention.ParseSpan(text)
	if err != nil {
		return 0, err
	}
	if span.Years != 0 || span.Months != 0 {
		return 0, errors.New("years and months have no fixed length: use weeks, days or hours, such as 30d")
	}
	hours := span.Hours + 24*(span.Days+7*span.Weeks)
	if hours > 24*365*100 {
		return 0, fmt.Errorf("%s is more than a century", text)
	}
	return time.Duration(hours) * time.Hour, nil
}
