package location

import (
	"cmp"
	"strings"

	corev1 "k8s.io/api/core/v1"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/datamove"
)

// credentialOf returns where a location's keys are.
func credentialOf(l *velerov1.BackupStorageLocation) corev1.SecretKeySelector {
	if c := l.Spec.Credential; c != nil {
		return *c
	}
	return corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: DefaultCredential}, Key: DefaultCredentialKey}
}

// read returns a key of a Secret.
func (s Secrets) read(field, namespace, name, key string) ([]byte, error) {
	data, exists := s[name]
	if !exists {
		return nil, refuse(field, "there is no Secret %s/%s", namespace, name)
	}
	text := data[key]
	if len(text) == 0 {
		return nil, refuse(field, "Secret %s/%s has no key %q", namespace, name, key)
	}
	return text, nil
}

// addKeys sets the keys of the profile. They are in a credentials file as Amazon's tools have it.
func addKeys(s *datamove.S3Access, l *velerov1.BackupStorageLocation, secrets Secrets) error {
	const field = "spec.credential"
	c := credentialOf(l)
	if l.Spec.Credential == nil && l.Spec.Config["credentialsFile"] != "" {
		return refuse("spec.config.credentialsFile", "the file is in Velero's pod: name its Secret in spec.credential")
	}
	text, err := secrets.read(field, l.Namespace, c.Name, c.Key)
	if err != nil {
		return err
	}
	profile := cmp.Or(l.Spec.Config["profile"], "default")
	values, found := readProfile(string(text), profile)
	where := "key " + c.Key + " of Secret " + l.Namespace + "/" + c.Name
	if !found {
		return refuse(field, "%s has no profile [%s]", where, profile)
	}
	s.AccessKey, s.SecretKey, s.SessionToken = values["aws_access_key_id"], values["aws_secret_access_key"], values["aws_session_token"]
	switch {
	case s.AccessKey == "" && s.SecretKey == "" && (values["role_arn"] != "" || values["credential_process"] != "" || values["sso_session"] != ""):
		return refuse(field, "%s: profile [%s] takes a role: name it in the annotation %s in place of spec.credential, or give the profile aws_access_key_id and aws_secret_access_key", where, profile, AnnotationRole)
	case s.AccessKey == "":
		return refuse(field, "%s: profile [%s] has no aws_access_key_id", where, profile)
	case s.SecretKey == "":
		return refuse(field, "%s: profile [%s] has no aws_secret_access_key", where, profile)
	}
	s.Region = cmp.Or(s.Region, values["region"])
	return nil
}

// readProfile returns the values of a profile. Sections are [name], as in a credentials file, or [profile name], as in a config file:
// Velero reads the Secret as both.
func readProfile(text, profile string) (values map[string]string, found bool) {
	values = map[string]string{}
	inside := false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' || line[0] == ';' {
			continue
		}
		if line[0] == '[' {
			name, _, _ := strings.Cut(line[1:], "]")
			name = strings.TrimSpace(name)
			if rest, ok := strings.CutPrefix(name, "profile "); ok {
				name = strings.TrimSpace(rest)
			}
			inside = name == profile
			found = found || inside
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if !inside || !ok {
			continue
		}
		for _, comment := range []string{" #", " ;", "\t#", "\t;"} {
			value, _, _ = strings.Cut(value, comment)
		}
		values[strings.ToLower(strings.TrimSpace(key))] = strings.TrimSpace(value)
	}
	return values, found
}
