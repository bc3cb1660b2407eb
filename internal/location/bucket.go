package location

import (
	"crypto/x509"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/datamove"
)

// ignoredKeys are the keys of Velero's plugin that Varve does not follow, and why backups are as safe without them.
var ignoredKeys = map[string]string{
	"publicUrl":                   "it is for downloads by Velero's client",
	"signatureVersion":            "it is for downloads by Velero's client",
	"enableSharedConfig":          "the profile must have the keys themselves",
	"checksumAlgorithm":           "every upload has an MD5 sum, and every blob is authenticated when it is read",
	"serverSideEncryption":        "repositories are encrypted before they leave the cluster; a bucket whose policy demands the header refuses them",
	"kmsKeyId":                    "repositories are encrypted before they leave the cluster; a bucket whose policy demands the header refuses them",
	"customerKeyEncryptionFile":   "repositories are encrypted before they leave the cluster",
	"customerKeyEncryptionSecret": "repositories are encrypted before they leave the cluster",
	"tagging":                     "objects of repositories have no tags; rules of the bucket that select by tag do not see them",
}

// knownKeys are the keys that are followed.
var knownKeys = []string{"region", "s3Url", "s3ForcePathStyle", "insecureSkipTLSVerify", "profile", "credentialsFile", lockModeKey, lockPeriodKey}

// addBucket reads a location of Velero's plugin for S3 (velero-plugin-for-aws, backupstoragelocation.md).
func (p *Place) addBucket(l *velerov1.BackupStorageLocation, secrets Secrets) error {
	config, bucket := l.Spec.Config, l.Spec.ObjectStorage.Bucket
	for _, key := range slices.Sorted(maps.Keys(config)) {
		why, ignored := ignoredKeys[key]
		switch {
		case ignored && config[key] != "":
			p.Ignored = append(p.Ignored, "spec.config."+key+" is not used: "+why)
		case !ignored && !slices.Contains(knownKeys, key):
			return refuse("spec.config."+key, "unknown key")
		}
	}
	if bucket == "" || strings.Contains(bucket, "/") {
		return refuse("spec.objectStorage.bucket", "%q is not the name of a bucket; what follows a slash belongs into prefix", bucket)
	}
	if err := checkFlags(config); err != nil {
		return err
	}
	p.S3 = &datamove.S3Access{Bucket: bucket, Region: config["region"]}
	role, err := usesRole(l, secrets)
	if err != nil {
		return err
	}
	if !role {
		if err := addKeys(p.S3, l, secrets); err != nil {
			return err
		}
	}
	if err := addEndpoint(p.S3, config["s3Url"]); err != nil {
		return err
	}
	if role {
		if err := p.addRole(l); err != nil {
			return err
		}
	}
	if err := addAuthorities(p.S3, l, secrets); err != nil {
		return err
	}
	return p.addLock(l)
}

// checkFlags checks the keys that are true or false. Whether buckets are part of the path or of the host's name follows from the
// endpoint: Amazon and two others have them in the name, and everybody else in the path.
func checkFlags(config map[string]string) error {
	if text := config["s3ForcePathStyle"]; text != "" {
		if _, err := strconv.ParseBool(text); err != nil {
			return refuse("spec.config.s3ForcePathStyle", "%q is neither true nor false", text)
		}
	}
	if text := config["insecureSkipTLSVerify"]; text != "" {
		skip, err := strconv.ParseBool(text)
		if err != nil {
			return refuse("spec.config.insecureSkipTLSVerify", "%q is neither true nor false", text)
		}
		if skip {
			return refuse("spec.config.insecureSkipTLSVerify", "unsupported: put the certificate of the server's authority into objectStorage.caCert or caCertRef")
		}
	}
	return nil
}

// addEndpoint sets where the server is: s3Url or, without it, Amazon's for the region.
func addEndpoint(s *datamove.S3Access, text string) error {
	const field = "spec.config.s3Url"
	if text == "" {
		s.Endpoint = amazonEndpoint(s.Region)
		return nil
	}
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return refuse(field, "not a URL") // the error repeats it, and it may have a password
	case u.User != nil:
		return refuse(field, "keys belong into the Secret of spec.credential, not into the URL")
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return refuse(field, "%q is not http://host:port or https://host:port", text)
	case strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
		return refuse(field, "%q has more than scheme, host and port: the bucket belongs into objectStorage.bucket", text)
	}
	s.Endpoint, s.PlainHTTP = u.Host, u.Scheme == "http"
	return nil
}

func amazonEndpoint(region string) string {
	switch {
	case region == "":
		return "s3.amazonaws.com"
	case strings.HasPrefix(region, "cn-"):
		return "s3." + region + ".amazonaws.com.cn"
	}
	return "s3." + region + ".amazonaws.com"
}

// addAuthorities sets the authorities that the server's certificate may come from.
func addAuthorities(s *datamove.S3Access, l *velerov1.BackupStorageLocation, secrets Secrets) error {
	field, text := "spec.objectStorage.caCert", l.Spec.ObjectStorage.CACert
	if ref := l.Spec.ObjectStorage.CACertRef; ref != nil {
		if len(text) > 0 {
			return refuse("spec.objectStorage.caCertRef", "caCert is set as well: remove one of them")
		}
		field = "spec.objectStorage.caCertRef"
		var err error
		if text, err = secrets.read(field, l.Namespace, ref.Name, ref.Key); err != nil {
			return err
		}
	}
	if len(text) == 0 {
		return nil
	}
	if !x509.NewCertPool().AppendCertsFromPEM(text) {
		return refuse(field, "no certificate in PEM")
	}
	s.RootCA = text
	return nil
}
