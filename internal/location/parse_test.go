package location

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/test/authority"
)

const (
	testKey, testSecret, testToken = "AKIDTEST", "s3cr3t/with=signs+", "t0ken"

	testCredentials = "# a comment\n[default]\naws_access_key_id=" + testKey + "\naws_secret_access_key = " + testSecret + "\naws_session_token=" + testToken +
		"\n\n[profile other]\nAWS_ACCESS_KEY_ID=OTHER\naws_secret_access_key=other # not a part of it\nregion=eu-west-9\n[role]\nrole_arn=arn:x\n[half]\naws_access_key_id=H\n[empty]\n"
)

func selector(name, key string) *corev1.SecretKeySelector {
	return &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: name}, Key: key}
}

// bucket returns a location as Velero's users have it.
func bucket(config map[string]string, edit ...func(*velerov1.BackupStorageLocation)) *velerov1.BackupStorageLocation {
	l := &velerov1.BackupStorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "default"}}
	l.Spec.Provider, l.Spec.Config = "aws", config
	l.Spec.Credential = selector("keys", "cloud")
	l.Spec.ObjectStorage = &velerov1.ObjectStorageLocation{Bucket: "b", Prefix: "/cluster-a/"}
	for _, f := range edit {
		f(l)
	}
	return l
}

func testSecrets(t *testing.T) Secrets {
	t.Helper()
	ca, err := os.ReadFile(filepath.Join(authority.New(t).Files(t), "ca-cert.pem"))
	if err != nil {
		t.Fatal(err)
	}
	return Secrets{
		"keys":              {"cloud": []byte(testCredentials), "empty": {}},
		"cloud-credentials": {"cloud": []byte(testCredentials)},
		"ca":                {"pem": ca, "text": []byte("no certificate")},
	}
}

func TestParse_bucket(t *testing.T) {
	t.Parallel()
	secrets := testSecrets(t)
	ca := secrets["ca"]["pem"]
	type config = map[string]string
	for name, c := range map[string]struct {
		l    *velerov1.BackupStorageLocation
		want func(*Place)
	}{
		"nothing but a bucket":         {bucket(nil), func(p *Place) { p.S3.Endpoint = "s3.amazonaws.com" }},
		"the provider's other name":    {bucket(nil, func(l *velerov1.BackupStorageLocation) { l.Spec.Provider = "velero.io/aws" }), func(p *Place) { p.S3.Endpoint = "s3.amazonaws.com" }},
		"Velero's own Secret":          {bucket(nil, func(l *velerov1.BackupStorageLocation) { l.Spec.Credential = nil }), func(p *Place) { p.S3.Endpoint = "s3.amazonaws.com" }},
		"region":                       {bucket(config{"region": "eu-central-1"}), func(p *Place) { p.S3.Endpoint, p.S3.Region = "s3.eu-central-1.amazonaws.com", "eu-central-1" }},
		"a region in China":            {bucket(config{"region": "cn-north-1"}), func(p *Place) { p.S3.Endpoint, p.S3.Region = "s3.cn-north-1.amazonaws.com.cn", "cn-north-1" }},
		"s3Url":                        {bucket(config{"s3Url": "https://minio.example.org/", "region": "r"}), func(p *Place) { p.S3.Endpoint, p.S3.Region = "minio.example.org", "r" }},
		"s3Url with http and a port":   {bucket(config{"s3Url": "http://[fd00::1]:9000"}), func(p *Place) { p.S3.Endpoint, p.S3.PlainHTTP = "[fd00::1]:9000", true }},
		"s3ForcePathStyle":             {bucket(config{"s3Url": "http://m:1", "s3ForcePathStyle": "true"}), func(p *Place) { p.S3.Endpoint, p.S3.PlainHTTP = "m:1", true }},
		"insecureSkipTLSVerify: false": {bucket(config{"insecureSkipTLSVerify": "false"}), func(p *Place) { p.S3.Endpoint = "s3.amazonaws.com" }},
		"profile": {bucket(config{"profile": "other"}), func(p *Place) {
			p.S3.Endpoint, p.S3.Region, p.S3.AccessKey, p.S3.SecretKey, p.S3.SessionToken = "s3.eu-west-9.amazonaws.com", "eu-west-9", "OTHER", "other", ""
		}},
		"credentialsFile beside credential": {bucket(config{"credentialsFile": "/credentials/x"}), func(p *Place) { p.S3.Endpoint = "s3.amazonaws.com" }},
		"caCert": {bucket(nil, func(l *velerov1.BackupStorageLocation) { l.Spec.ObjectStorage.CACert = ca }), func(p *Place) {
			p.S3.Endpoint, p.S3.RootCA = "s3.amazonaws.com", ca
		}},
		"caCertRef": {bucket(nil, func(l *velerov1.BackupStorageLocation) { l.Spec.ObjectStorage.CACertRef = selector("ca", "pem") }), func(p *Place) {
			p.S3.Endpoint, p.S3.RootCA = "s3.amazonaws.com", ca
		}},
		"read-only":        {bucket(nil, func(l *velerov1.BackupStorageLocation) { l.Spec.AccessMode = velerov1.AccessReadOnly }), func(p *Place) { p.S3.Endpoint, p.ReadOnly = "s3.amazonaws.com", true }},
		"without a prefix": {bucket(nil, func(l *velerov1.BackupStorageLocation) { l.Spec.ObjectStorage.Prefix = "" }), func(p *Place) { p.S3.Endpoint, p.Prefix = "s3.amazonaws.com", "" }},
		"object lock": {bucket(config{"objectLockMode": "GOVERNANCE", "objectLockPeriod": "720h"}), func(p *Place) {
			p.S3.Endpoint, p.Lock = "s3.amazonaws.com", Lock{Mode: "GOVERNANCE", Period: 720 * time.Hour}
		}},
		"object lock by annotations": {bucket(nil, func(l *velerov1.BackupStorageLocation) {
			l.Annotations = map[string]string{AnnotationLockMode: "COMPLIANCE", AnnotationLockPeriod: "24h"}
		}), func(p *Place) {
			p.S3.Endpoint, p.Lock = "s3.amazonaws.com", Lock{Mode: "COMPLIANCE", Period: 24 * time.Hour}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := Place{Prefix: "cluster-a", S3: &datamove.S3Access{Bucket: "b", AccessKey: testKey, SecretKey: testSecret, SessionToken: testToken}}
			c.want(&want)
			got, err := Parse(c.l, secrets)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
			for _, needed := range SecretNames(c.l) {
				if secrets[needed] == nil {
					t.Errorf("it asks for Secret %s", needed)
				}
			}
		})
	}
}

// Every key of Velero's plugin is followed, refused, or said to be ignored.
func TestParse_ignoredKeysAreNamed(t *testing.T) {
	t.Parallel()
	for key := range ignoredKeys {
		p, err := Parse(bucket(map[string]string{key: "x"}), testSecrets(t))
		if err != nil || len(p.Ignored) != 1 || !strings.HasPrefix(p.Ignored[0], "spec.config."+key+" is not used: ") {
			t.Errorf("%s: %q, %v", key, p.Ignored, err)
		}
		if p, err := Parse(bucket(map[string]string{key: ""}), testSecrets(t)); err != nil || len(p.Ignored) > 0 {
			t.Errorf("%s without a value: %q, %v", key, p.Ignored, err)
		}
	}
	plugin := []string{
		"region", "s3Url", "publicUrl", "kmsKeyId", "customerKeyEncryptionFile", "customerKeyEncryptionSecret", "s3ForcePathStyle", "signatureVersion",
		"credentialsFile", "profile", "serverSideEncryption", "insecureSkipTLSVerify", "enableSharedConfig", "tagging", "checksumAlgorithm",
	}
	for _, key := range plugin {
		if ignoredKeys[key] == "" && !slices.Contains(knownKeys, key) {
			t.Errorf("%s of velero-plugin-for-aws 1.14 is unknown", key)
		}
	}
}

func TestParse_directories(t *testing.T) {
	t.Parallel()
	directory := func(provider, bucket string, config map[string]string) *velerov1.BackupStorageLocation {
		l := &velerov1.BackupStorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: "disk"}}
		l.Spec.Provider, l.Spec.Config, l.Spec.AccessMode = provider, config, velerov1.AccessReadOnly
		l.Spec.ObjectStorage = &velerov1.ObjectStorageLocation{Bucket: bucket, Prefix: "a/b"}
		return l
	}
	p, err := Parse(directory(ProviderClaim, "backups", nil), nil)
	if err != nil || p.String() != "claim backups/a/b" || !p.Volume.PersistentVolumeClaim.ReadOnly {
		t.Errorf("%v %v", p, err)
	}
	if got := p.Access("shop").Directory; got != "/run/varve/storage/a/b/plugins/varve/shop" {
		t.Error(got)
	}
	if got := p.Root().Directory; got != "/run/varve/storage/a/b/plugins/varve" {
		t.Error(got)
	}
	p, err = Parse(directory(ProviderNFS, "", map[string]string{"server": "nas", "path": "/export"}), nil)
	if err != nil || p.String() != "nfs://nas/export/a/b" || p.Volume.NFS.Server != "nas" || p.Volume.NFS.Path != "/export" {
		t.Errorf("%v %v", p, err)
	}
	for name, c := range map[string]struct {
		l     *velerov1.BackupStorageLocation
		field string
	}{
		"a claim without a name":   {directory(ProviderClaim, "", nil), "spec.objectStorage.bucket"},
		"a claim's path":           {directory(ProviderClaim, "../x", nil), "spec.objectStorage.bucket"},
		"an unknown key":           {directory(ProviderClaim, "c", map[string]string{"region": "x"}), "spec.config.region"},
		"an export without server": {directory(ProviderNFS, "", map[string]string{"path": "/export"}), "spec.config.server"},
		"an export without path":   {directory(ProviderNFS, "", map[string]string{"server": "nas"}), "spec.config.path"},
		"a path with dots":         {directory(ProviderNFS, "", map[string]string{"server": "nas", "path": "/export/../etc"}), "spec.config.path"},
	} {
		if _, err := Parse(c.l, nil); !errors.Is(err, errclass.Invalid) || !strings.HasPrefix(err.Error(), c.field+": ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	l := directory(ProviderClaim, "c", nil)
	for _, prefix := range []string{"..", "a/../../b", "a//b", "./a"} {
		l.Spec.ObjectStorage.Prefix = prefix
		if _, err := Parse(l, nil); err == nil || !strings.HasPrefix(err.Error(), "spec.objectStorage.prefix: ") {
			t.Errorf("prefix %s: %v", prefix, err)
		}
	}
}

func TestParse_refusals(t *testing.T) {
	t.Parallel()
	type config = map[string]string
	with := func(edit func(*velerov1.BackupStorageLocation)) *velerov1.BackupStorageLocation {
		return bucket(nil, edit)
	}
	for name, c := range map[string]struct {
		l           *velerov1.BackupStorageLocation
		field, says string
	}{
		"another provider":          {with(func(l *velerov1.BackupStorageLocation) { l.Spec.Provider = "gcp" }), "spec.provider", "aws"},
		"no storage":                {with(func(l *velerov1.BackupStorageLocation) { l.Spec.ObjectStorage = nil }), "spec.objectStorage", ""},
		"no bucket":                 {with(func(l *velerov1.BackupStorageLocation) { l.Spec.ObjectStorage.Bucket = "" }), "spec.objectStorage.bucket", ""},
		"a bucket with a prefix":    {with(func(l *velerov1.BackupStorageLocation) { l.Spec.ObjectStorage.Bucket = "b/p" }), "spec.objectStorage.bucket", "prefix"},
		"another mode":              {with(func(l *velerov1.BackupStorageLocation) { l.Spec.AccessMode = "x" }), "spec.accessMode", ""},
		"an unknown key":            {bucket(config{"s3URL": "http://x"}), "spec.config.s3URL", "unknown"},
		"no verification":           {bucket(config{"insecureSkipTLSVerify": "true"}), "spec.config.insecureSkipTLSVerify", "caCert"},
		"a flag that is none":       {bucket(config{"insecureSkipTLSVerify": "x"}), "spec.config.insecureSkipTLSVerify", ""},
		"another flag":              {bucket(config{"s3ForcePathStyle": "x"}), "spec.config.s3ForcePathStyle", ""},
		"a URL without scheme":      {bucket(config{"s3Url": "minio:9000"}), "spec.config.s3Url", ""},
		"a URL without host":        {bucket(config{"s3Url": "http://:9000"}), "spec.config.s3Url", ""},
		"a URL with a path":         {bucket(config{"s3Url": "http://m/b"}), "spec.config.s3Url", "bucket"},
		"a URL with keys":           {bucket(config{"s3Url": "http://u:" + testToken + "@m"}), "spec.config.s3Url", "spec.credential"},
		"a URL that is none":        {bucket(config{"s3Url": "http://u:" + testSecret + "@m:x"}), "spec.config.s3Url", ""},
		"no such Secret":            {with(func(l *velerov1.BackupStorageLocation) { l.Spec.Credential = selector("x", "cloud") }), "spec.credential", "velero/x"},
		"no such key":               {with(func(l *velerov1.BackupStorageLocation) { l.Spec.Credential.Key = "x" }), "spec.credential", `"x"`},
		"an empty key":              {with(func(l *velerov1.BackupStorageLocation) { l.Spec.Credential.Key = "empty" }), "spec.credential", `"empty"`},
		"no such profile":           {bucket(config{"profile": "x"}), "spec.credential", "[x]"},
		"a profile without secret":  {bucket(config{"profile": "half"}), "spec.credential", "aws_secret_access_key"},
		"a profile without keys":    {bucket(config{"profile": "empty"}), "spec.credential", "aws_access_key_id"},
		"a role":                    {bucket(config{"profile": "role"}), "spec.credential", "role"},
		"a file of Velero's pod":    {bucket(config{"credentialsFile": "/x"}, func(l *velerov1.BackupStorageLocation) { l.Spec.Credential = nil }), "spec.config.credentialsFile", "spec.credential"},
		"an authority that is none": {with(func(l *velerov1.BackupStorageLocation) { l.Spec.ObjectStorage.CACert = []byte("x") }), "spec.objectStorage.caCert", ""},
		"a reference to none":       {with(func(l *velerov1.BackupStorageLocation) { l.Spec.ObjectStorage.CACertRef = selector("ca", "text") }), "spec.objectStorage.caCertRef", "PEM"},
		"a reference to nothing":    {with(func(l *velerov1.BackupStorageLocation) { l.Spec.ObjectStorage.CACertRef = selector("x", "text") }), "spec.objectStorage.caCertRef", "velero/x"},
		"both authorities": {with(func(l *velerov1.BackupStorageLocation) {
			l.Spec.ObjectStorage.CACert, l.Spec.ObjectStorage.CACertRef = []byte("x"), selector("ca", "pem")
		}), "spec.objectStorage.caCertRef", "caCert"},
		"a lock without a period": {bucket(config{"objectLockMode": "GOVERNANCE"}), "spec.config.objectLockPeriod", "24h"},
		"a period without a lock": {bucket(config{"objectLockPeriod": "720h"}), "spec.config.objectLockMode", ""},
		"a short lock":            {bucket(config{"objectLockMode": "GOVERNANCE", "objectLockPeriod": "1h"}), "spec.config.objectLockPeriod", "24h"},
		"another lock":            {bucket(config{"objectLockMode": "x", "objectLockPeriod": "720h"}), "spec.config.objectLockMode", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Parse(c.l, testSecrets(t))
			if !errors.Is(err, errclass.Invalid) || !strings.HasPrefix(err.Error(), c.field+": ") || !strings.Contains(err.Error(), c.says) {
				t.Fatalf("%v, want %s and %q", err, c.field, c.says)
			}
			if strings.Contains(err.Error(), testSecret) || strings.Contains(err.Error(), testToken) {
				t.Errorf("it shows a secret: %v", err)
			}
		})
	}
}

func TestPlace_showsNoSecret(t *testing.T) {
	t.Parallel()
	p, err := Parse(bucket(map[string]string{"s3Url": "http://m:9000"}), testSecrets(t))
	if err != nil {
		t.Fatal(err)
	}
	a := p.Access("shop")
	a.Password = "pa55"
	for _, text := range []string{fmt.Sprintf("%v %+v %#v %s", p, p, p, p), fmt.Sprintf("%v %+v %#v", a, a, a)} {
		for _, secret := range []string{testKey, testSecret, testToken, "pa55"} {
			if strings.Contains(text, secret) {
				t.Errorf("%s", text)
			}
		}
	}
	if p.String() != "s3://m:9000/b/cluster-a" {
		t.Error(p)
	}
	if a.S3.Prefix != "cluster-a/plugins/varve/shop/" || p.Root().S3.Prefix != "cluster-a/plugins/varve/" || p.S3.Prefix != "" {
		t.Errorf("%q %q %q", a.S3.Prefix, p.Root().S3.Prefix, p.S3.Prefix)
	}
}

func FuzzReadProfile(f *testing.F) {
	f.Add(testCredentials, "default")
	f.Add("[a\nb]=c\n=\n[]", "a")
	f.Fuzz(func(t *testing.T, text, profile string) {
		values, found := readProfile(text, profile)
		if len(values) > 0 && !found {
			t.Errorf("values %v of no profile", slices.Sorted(maps.Keys(values)))
		}
	})
}
