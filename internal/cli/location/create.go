package location

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/repoaccess"
	"github.com/varvebackup/varve/internal/cli/resource"
	"github.com/varvebackup/varve/internal/location"
)

// locationRequest is what the flags of `location create` say.
type locationRequest struct {
	s3                 repoaccess.S3Flags
	secret             string
	role, sts          string
	readOnly, standard bool
	frequency          time.Duration
	labels             map[string]string
}

func newCreateCommand(s *resource.Session) *cobra.Command {
	var r locationRequest
	var w resource.Waiting
	var form string
	c := &cobra.Command{
		Use: "create NAME PLACE", Short: "Create a location",
		Long: `Create a location. PLACE is

  s3://ENDPOINT/BUCKET[/PREFIX]   a bucket on anything that speaks S3
  claim://CLAIM[/PREFIX]          a claim in the namespace varve
  nfs://SERVER/EXPORT             an NFS export

The keys for S3 come from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN or
from the file of --s3-credentials-file, never from an argument. They go into a Secret that is
deleted with the location. --credential-secret names a Secret that is there already: its key
cloud has the keys in the format of the AWS CLI. With --role-arn there are none: Varve's pods
show a token of their account, system:serviceaccount:varve:varve-mover, to the security token
service (STS), and get keys of that role that live for an hour.`,
		Example: `  # A bucket; the keys are in the environment
  varve location create default s3://s3.eu-central-1.amazonaws.com/backups -n varve --default --wait

  # A server with a certificate of its own authority
  varve location create lan s3://minio.lan:9000/backups/varve -n varve --s3-ca-file ca.pem

  # A bucket that a role opens, on Amazon's S3
  varve location create cold s3://s3.eu-central-1.amazonaws.com/backups -n varve --s3-region eu-central-1 \
    --role-arn arn:aws:iam::111122223333:role/varve-backups

  # A claim
  varve location create shelf claim://backups -n varve`,
		Args: cmdline.ExactArgs(2, "a name and a place: s3://endpoint/bucket/prefix, claim://claim or nfs://server/export"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			l, keys, err := r.newObjects(s, args[0], args[1])
			if err != nil {
				return err
			}
			c, err := s.Connect()
			if err != nil {
				return err
			}
			l.Namespace = c.Namespace
			if err := createWithKeys(cmd.Context(), c, l, keys); err != nil {
				return err
			}
			if form == "" {
				if err := output.PrintDone(cmd.OutOrStdout(), l, "created"); err != nil {
					return err
				}
			}
			if w.Wait {
				if err := w.Run(cmd.Context(), s, "location "+l.Name+" is available", "location describe "+l.Name, untilAvailable(c, l)); err != nil {
					return err
				}
			}
			if form != "" {
				return output.PrintObject(cmd.OutOrStdout(), form, l)
			}
			return nil
		},
	}
	r.s3.AddFlags(c)
	c.Flags().StringVar(&r.secret, "credential-secret", "", "a Secret in the location's namespace whose key cloud has the keys for S3")
	c.Flags().StringVar(&r.role, "role-arn", "", "the role (IAM) whose keys open the bucket, in place of keys of its own")
	c.Flags().StringVar(&r.sts, "sts-url", "", "with --role-arn: the security token service that has the role's keys, such as https://minio.lan:9000 (default: Amazon's)")
	c.Flags().BoolVar(&r.readOnly, "read-only", false, "restore from the location only: nothing is written or deleted")
	c.Flags().BoolVar(&r.standard, "default", false, "use the location where none is named")
	c.Flags().DurationVar(&r.frequency, "validate-every", 0, "how often to try the location (default 1m)")
	c.Flags().StringToStringVar(&r.labels, "labels", nil, "labels of the location, such as site=lab")
	output.AddFlag(c, &form, output.AsJSON, output.AsYAML, output.AsName)
	w.AddFlags(c, "the location can be used", checkTimeout)
	return c
}

// newObjects returns the location to create, and the keys that go into a Secret of its own; "" if there is none.
func (r *locationRequest) newObjects(s *resource.Session, name, place string) (*velerov1.BackupStorageLocation, string, error) {
	l := &velerov1.BackupStorageLocation{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: r.labels},
		Spec:       velerov1.BackupStorageLocationSpec{Default: r.standard, AccessMode: velerov1.AccessReadWrite},
	}
	if r.readOnly {
		l.Spec.AccessMode = velerov1.AccessReadOnly
	}
	if r.frequency < 0 {
		return nil, "", failure.Usage("--validate-every %s: it must not be negative", r.frequency)
	}
	if r.frequency > 0 {
		l.Spec.ValidationFrequency = &velerov1.Duration{Duration: r.frequency}
	}
	if strings.HasPrefix(place, "s3://") {
		keys, err := r.setBucket(s, l, place)
		return l, keys, err
	}
	if r.secret != "" || r.role != "" || r.sts != "" || r.s3.IsUsed() {
		return nil, "", failure.Usage("--credential-secret, --role-arn, --sts-url and --s3-… flags need a place that begins with s3://")
	}
	return l, "", setDirectory(l, place)
}

// setBucket makes l a bucket, and returns its keys in the format of the AWS CLI.
func (r *locationRequest) setBucket(s *resource.Session, l *velerov1.BackupStorageLocation, place string) (string, error) {
	at, err := repoaccess.ParseBucket(place, &r.s3)
	if err != nil {
		return "", err
	}
	scheme := "https://"
	if at.PlainHTTP {
		scheme = "http://"
	}
	l.Spec.Provider = "aws"
	l.Spec.ObjectStorage = &velerov1.ObjectStorageLocation{Bucket: at.Bucket, Prefix: strings.Trim(at.Prefix, "/"), CACert: at.RootCA}
	l.Spec.Config = map[string]string{"s3Url": scheme + at.Endpoint, "s3ForcePathStyle": "true"}
	if at.Region != "" {
		l.Spec.Config["region"] = at.Region
	}
	if r.role != "" || r.sts != "" {
		return "", r.setRole(l)
	}
	secret := r.secret
	if secret == "" {
		secret = l.Name + "-credentials"
	}
	l.Spec.Credential = &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: secret}, Key: location.DefaultCredentialKey}
	if r.secret != "" {
		return "", nil
	}
	if err := repoaccess.ReadKeys(s.Session, at, &r.s3); err != nil {
		return "", err
	}
	keys := fmt.Sprintf("[default]\naws_access_key_id=%s\naws_secret_access_key=%s\n", at.AccessKey, at.SecretKey)
	if at.SessionToken != "" {
		keys += "aws_session_token=" + at.SessionToken + "\n"
	}
	return keys, nil
}

// setRole makes l take the keys of a role.
func (r *locationRequest) setRole(l *velerov1.BackupStorageLocation) error {
	switch {
	case r.role == "":
		return failure.Usage("--sts-url needs --role-arn")
	case r.secret != "" || r.s3.NamesKeys():
		return failure.Usage("--role-arn takes the keys of a role: omit --credential-secret and --s3-credentials-file")
	}
	l.Annotations = map[string]string{location.AnnotationRole: r.role}
	if r.sts != "" {
		l.Annotations[location.AnnotationSTS] = r.sts
	}
	if _, err := location.Parse(l, nil); err != nil {
		return failure.Usage("%s", err)
	}
	return nil
}
