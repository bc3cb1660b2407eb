package location

import (
	"cmp"
	"net/url"
	"strings"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/datamove"
)

// DefaultAudience is the audience of tokens for roles, as Amazon's documentation has it.
const DefaultAudience = "sts.amazonaws.com"

// usesRole says whether a location's keys are those of a role: it names one, or names neither a role nor a credential while the Secret that
// would stand for that is not there. Then the role is that of the pods' account.
func usesRole(l *velerov1.BackupStorageLocation, secrets Secrets) (bool, error) {
	role := l.Annotations[AnnotationRole]
	for _, key := range []string{AnnotationSTS, AnnotationAudience} {
		if l.Annotations[key] != "" && l.Spec.Credential != nil {
			return false, refuse(annotation(key), "spec.credential is set as well: a location has keys or a role")
		}
	}
	switch {
	case role != "" && l.Spec.Credential != nil:
		return false, refuse(annotation(AnnotationRole), "spec.credential is set as well: a location has keys or a role; remove one of them")
	case role != "" && (l.Spec.Config["credentialsFile"] != "" || l.Spec.Config["profile"] != ""):
		return false, refuse(annotation(AnnotationRole), "spec.config names a credential as well (credentialsFile or profile): a location has keys or a role; remove one of them")
	case role != "":
		return true, nil
	case l.Annotations[AnnotationAudience] != "":
		return false, refuse(annotation(AnnotationAudience), "it is for a role: name one in the annotation %s", AnnotationRole)
	case l.Spec.Credential != nil || l.Spec.Config["credentialsFile"] != "" || l.Spec.Config["profile"] != "":
		return false, nil
	}
	// Elsewhere than at Amazon's there is no STS to guess, and the Secret was forgotten.
	_, exists := secrets[DefaultCredential]
	return !exists && (l.Annotations[AnnotationSTS] != "" || isAmazon(l.Spec.Config["s3Url"])), nil
}

func annotation(key string) string { return "metadata.annotations[" + key + "]" }

// isAmazon says whether an s3Url is Amazon's; "" is.
func isAmazon(text string) bool {
	u, err := url.Parse(text)
	return text == "" || err == nil && (strings.HasSuffix(u.Hostname(), ".amazonaws.com") || strings.HasSuffix(u.Hostname(), ".amazonaws.com.cn"))
}

// addRole adds the role of a location whose endpoint is known.
func (p *Place) addRole(l *velerov1.BackupStorageLocation) error {
	role := &datamove.RoleAccess{ARN: l.Annotations[AnnotationRole], STS: l.Annotations[AnnotationSTS]}
	if strings.ContainsFunc(role.ARN, func(r rune) bool { return r <= ' ' || r > '~' }) || len(role.ARN) > 2048 {
		return refuse(annotation(AnnotationRole), "%q is not the name (ARN) of a role", role.ARN)
	}
	if role.STS == "" {
		if !isAmazon(l.Spec.Config["s3Url"]) {
			return refuse(annotation(AnnotationSTS), "it is missing: %s is not Amazon's, so its security token service must be named", p.S3.Endpoint)
		}
		role.STS = amazonSTS(p.S3.Region)
	}
	u, err := url.Parse(role.STS)
	switch {
	case err != nil || u.User != nil || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "" || u.Scheme != "https" && u.Scheme != "http":
		return refuse(annotation(AnnotationSTS), "not a URL such as https://sts.example.org")
	case u.Scheme == "http" && !p.S3.PlainHTTP:
		return refuse(annotation(AnnotationSTS), "it must be https, as the bucket is: whoever reads the token on its way has the role")
	}
	if role.ARN != "" {
		p.Audience = cmp.Or(l.Annotations[AnnotationAudience], DefaultAudience)
		if !datamove.IsTokenAudience(p.Audience) {
			return refuse(annotation(AnnotationAudience), "%q does not begin with \"sts.\": a token for another audience is not given away", p.Audience)
		}
	}
	p.S3.Role = role
	return nil
}

func amazonSTS(region string) string {
	switch {
	case region == "":
		return "https://sts.amazonaws.com"
	case strings.HasPrefix(region, "cn-"):
		return "https://sts." + region + ".amazonaws.com.cn"
	}
	return "https://sts." + region + ".amazonaws.com"
}
