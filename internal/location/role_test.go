package location

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/errclass"
)

const testRole = "arn:aws:iam::111122223333:role/varve-backups"

// roleBucket returns a location with annotations and no credential.
func roleBucket(config, annotations map[string]string, edit ...func(*velerov1.BackupStorageLocation)) *velerov1.BackupStorageLocation {
	return bucket(config, append([]func(*velerov1.BackupStorageLocation){func(l *velerov1.BackupStorageLocation) {
		l.Spec.Credential = nil
		for key, value := range annotations {
			metav1.SetMetaDataAnnotation(&l.ObjectMeta, key, value)
		}
	}}, edit...)...)
}

func TestParse_role(t *testing.T) {
	t.Parallel()
	type config = map[string]string
	for name, c := range map[string]struct {
		l        *velerov1.BackupStorageLocation
		want     datamove.RoleAccess
		audience string
	}{
		"at Amazon's": {roleBucket(nil, config{AnnotationRole: testRole}), datamove.RoleAccess{ARN: testRole, STS: "https://sts.amazonaws.com"}, DefaultAudience},
		"in a region": {roleBucket(config{"region": "eu-central-1"}, config{AnnotationRole: testRole}), datamove.RoleAccess{ARN: testRole, STS: "https://sts.eu-central-1.amazonaws.com"}, DefaultAudience},
		"in China": {
			roleBucket(config{"region": "cn-north-1"}, config{AnnotationRole: testRole, AnnotationAudience: "sts.amazonaws.com.cn"}),
			datamove.RoleAccess{ARN: testRole, STS: "https://sts.cn-north-1.amazonaws.com.cn"},
			"sts.amazonaws.com.cn",
		},
		"at Amazon's by URL": {roleBucket(config{"s3Url": "https://s3.eu-west-1.amazonaws.com"}, config{AnnotationRole: testRole}), datamove.RoleAccess{ARN: testRole, STS: "https://sts.amazonaws.com"}, DefaultAudience},
		"at MinIO's": {
			roleBucket(config{"s3Url": "https://minio.lan:9000"}, config{AnnotationRole: testRole, AnnotationSTS: "https://minio.lan:9000"}),
			datamove.RoleAccess{ARN: testRole, STS: "https://minio.lan:9000"},
			DefaultAudience,
		},
		"without TLS": {
			roleBucket(config{"s3Url": "http://minio.lan:9000"}, config{AnnotationRole: testRole, AnnotationSTS: "http://minio.lan:9000"}),
			datamove.RoleAccess{ARN: testRole, STS: "http://minio.lan:9000"},
			DefaultAudience,
		},
		"of the account": {roleBucket(nil, nil), datamove.RoleAccess{STS: "https://sts.amazonaws.com"}, ""},
		"of the account, elsewhere": {
			roleBucket(config{"s3Url": "https://minio.lan:9000"}, config{AnnotationSTS: "https://sts.lan"}),
			datamove.RoleAccess{STS: "https://sts.lan"},
			"",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			secrets := Secrets{}
			p, err := Parse(c.l, secrets)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&c.want, p.S3.Role); diff != "" || p.Audience != c.audience || p.S3.HasKeys() || !p.NeedsPod() {
				t.Errorf("%s %q %v", diff, p.Audience, p)
			}
			if identity := p.RoleStorage().Identity; identity.Audience != c.audience {
				t.Errorf("%+v", identity)
			}
			if a := p.Access("shop"); a.S3.Role == nil || a.S3.Prefix == "" {
				t.Errorf("%+v", a.S3)
			}
		})
	}
	// The Secret that stands for a credential that is not named counts before the role of the account, and not before one that is named.
	secrets := testSecrets(t)
	if p, err := Parse(roleBucket(nil, nil), secrets); err != nil || p.S3.Role != nil || !p.S3.HasKeys() {
		t.Errorf("%v %v", p, err)
	}
	if p, err := Parse(roleBucket(nil, map[string]string{AnnotationRole: testRole}), secrets); err != nil || p.S3.Role == nil || p.S3.HasKeys() {
		t.Errorf("%v %v", p, err)
	}
}

func TestParse_roleRefusals(t *testing.T) {
	t.Parallel()
	type config = map[string]string
	role := config{AnnotationRole: testRole}
	and := func(key, value string) config { return config{AnnotationRole: testRole, key: value} }
	withCredential := func(l *velerov1.BackupStorageLocation) { l.Spec.Credential = selector("cloud-credentials", "cloud") }
	for name, c := range map[string]struct {
		l           *velerov1.BackupStorageLocation
		field, says string
	}{
		"role and credential":             {roleBucket(nil, role, withCredential), annotation(AnnotationRole), "remove one of them"},
		"role and profile":                {roleBucket(config{"profile": "x"}, role), annotation(AnnotationRole), "remove one of them"},
		"STS and credential":              {roleBucket(nil, config{AnnotationSTS: "https://sts.lan"}, withCredential), annotation(AnnotationSTS), "keys or a role"},
		"audience and credential":         {roleBucket(nil, config{AnnotationAudience: "sts.lan"}, withCredential), annotation(AnnotationAudience), "keys or a role"},
		"an audience alone":               {roleBucket(nil, config{AnnotationAudience: "sts.lan"}), annotation(AnnotationAudience), AnnotationRole},
		"no STS elsewhere":                {roleBucket(config{"s3Url": "https://minio.lan:9000"}, role), annotation(AnnotationSTS), "minio.lan:9000 is not Amazon's"},
		"a host like Amazon's":            {roleBucket(config{"s3Url": "https://amazonaws.com.evil.lan"}, role), annotation(AnnotationSTS), "is not Amazon's"},
		"neither, elsewhere":              {roleBucket(config{"s3Url": "https://minio.lan:9000"}, nil), "spec.credential", "there is no Secret velero/cloud-credentials"},
		"a file of Velero's, no role":     {roleBucket(config{"credentialsFile": "/x"}, nil), "spec.config.credentialsFile", "spec.credential"},
		"a profile of no Secret":          {roleBucket(config{"profile": "x"}, nil), "spec.credential", "there is no Secret"},
		"a role with spaces":              {roleBucket(nil, config{AnnotationRole: "a b"}), annotation(AnnotationRole), "ARN"},
		"an STS that is no URL":           {roleBucket(nil, and(AnnotationSTS, "sts.lan")), annotation(AnnotationSTS), "not a URL"},
		"an STS with keys":                {roleBucket(nil, and(AnnotationSTS, "https://u:"+testSecret+"@sts.lan")), annotation(AnnotationSTS), "not a URL"},
		"an STS without TLS":              {roleBucket(nil, and(AnnotationSTS, "http://sts.lan")), annotation(AnnotationSTS), "https"},
		"the API server as audience":      {roleBucket(nil, and(AnnotationAudience, "https://kubernetes.default.svc")), annotation(AnnotationAudience), `"sts."`},
		"the API server's other name":     {roleBucket(nil, and(AnnotationAudience, "kubernetes")), annotation(AnnotationAudience), `"sts."`},
		"an audience that is two of them": {roleBucket(nil, and(AnnotationAudience, "sts.lan,kubernetes")), annotation(AnnotationAudience), `"sts."`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Parse(c.l, Secrets{})
			if !errors.Is(err, errclass.Invalid) || !strings.HasPrefix(err.Error(), c.field+": ") || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), testSecret) {
				t.Errorf("%v, want %s and %q", err, c.field, c.says)
			}
		})
	}
}
