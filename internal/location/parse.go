package location

import (
	"cmp"
	"slices"
	"strings"
	"time"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/layout"
)

// Providers that Varve serves, and that Velero has no plugin for.
const (
	// ProviderClaim is a claim in Varve's namespace: its name is the bucket.
	ProviderClaim = layout.Prefix + "claim"
	// ProviderNFS is an NFS export.
	ProviderNFS = layout.Prefix + "nfs"
)

// Object lock is asked for by these keys of spec.config or, because Velero refuses a location whose config has keys that it does not
// know, by annotations.
const (
	lockModeKey   = "objectLockMode"
	lockPeriodKey = "objectLockPeriod"

	// AnnotationLockMode and AnnotationLockPeriod stand for the keys.
	AnnotationLockMode   = layout.Prefix + "object-lock-mode"
	AnnotationLockPeriod = layout.Prefix + "object-lock-period"
	// AnnotationRole names a role (IAM) whose keys open the bucket, in place of spec.credential. AnnotationSTS is the URL of the service
	// that has its keys, unless that is Amazon's. AnnotationAudience is the audience of the token that is shown to it.
	AnnotationRole     = layout.Prefix + "role-arn"
	AnnotationSTS      = layout.Prefix + "sts-url"
	AnnotationAudience = layout.Prefix + "token-audience"
	// AnnotationCheck asks for the location to be tried now, whenever its value changes.
	AnnotationCheck = layout.Prefix + "check"
)

// DefaultCredential is the Secret that a location without spec.credential uses, in its own namespace, and its key: the one that
// `velero install` makes.
const (
	DefaultCredential    = "cloud-credentials"
	DefaultCredentialKey = "cloud"
)

// Secrets are the Secrets of the location's namespace, by name. One that does not exist is missing.
type Secrets map[string]map[string][]byte

// isS3 reports whether a provider is Velero's plugin for S3.
func isS3(provider string) bool { return provider == "aws" || provider == "velero.io/aws" }

// SecretNames returns the names of the Secrets that Parse needs.
func SecretNames(l *velerov1.BackupStorageLocation) []string {
	if !isS3(l.Spec.Provider) {
		return nil
	}
	var names []string
	if l.Annotations[AnnotationRole] == "" {
		names = append(names, credentialOf(l).Name)
	}
	if o := l.Spec.ObjectStorage; o != nil && o.CACertRef != nil {
		names = append(names, o.CACertRef.Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Parse returns where a location is.
func Parse(l *velerov1.BackupStorageLocation, secrets Secrets) (Place, error) {
	if l.Spec.ObjectStorage == nil {
		return Place{}, refuse("spec.objectStorage", "it is missing")
	}
	if f := l.Spec.ValidationFrequency; f != nil && f.Invalid != "" {
		return Place{}, refuse("spec.validationFrequency", "%.80q is not a duration, such as 1m or 24h", f.Invalid)
	}
	if f := l.Spec.BackupSyncPeriod; f != nil && f.Invalid != "" {
		return Place{}, refuse("spec.backupSyncPeriod", "%.80q is not a duration, such as 1m or 24h", f.Invalid)
	}
	p := Place{Prefix: strings.Trim(l.Spec.ObjectStorage.Prefix, "/")}
	switch l.Spec.AccessMode {
	case "", velerov1.AccessReadWrite:
	case velerov1.AccessReadOnly:
		p.ReadOnly = true
	default:
		return Place{}, refuse("spec.accessMode", "%q is neither ReadWrite nor ReadOnly", l.Spec.AccessMode)
	}
	var err error
	switch {
	case isS3(l.Spec.Provider):
		err = p.addBucket(l, secrets)
	case l.Spec.Provider == ProviderClaim:
		err = p.addClaim(l)
	case l.Spec.Provider == ProviderNFS:
		err = p.addNFS(l)
	default:
		err = refuse("spec.provider", "%q is not served: use aws for anything that speaks S3, %s or %s", l.Spec.Provider, ProviderClaim, ProviderNFS)
	}
	if err != nil {
		return Place{}, err
	}
	return p, nil
}

// addLock reads the wish for object lock. Only a bucket can have it.
func (p *Place) addLock(l *velerov1.BackupStorageLocation) error {
	p.Lock.Mode = cmp.Or(l.Spec.Config[lockModeKey], l.Annotations[AnnotationLockMode])
	period := cmp.Or(l.Spec.Config[lockPeriodKey], l.Annotations[AnnotationLockPeriod])
	if p.Lock.Mode == "" && period == "" {
		return nil
	}
	if p.Lock.Mode != "GOVERNANCE" && p.Lock.Mode != "COMPLIANCE" {
		return refuse("spec.config."+lockModeKey, "%q is neither GOVERNANCE nor COMPLIANCE", p.Lock.Mode)
	}
	var err error
	if p.Lock.Period, err = time.ParseDuration(period); err != nil || p.Lock.Period < 24*time.Hour {
		return refuse("spec.config."+lockPeriodKey, "%q is not a time of at least 24h, such as 720h", period)
	}
	return nil
}

// refuse returns the error for a field. Its text must not hold a secret.
func refuse(field, format string, args ...any) error {
	return errclass.Errorf(errclass.Invalid, field+": "+format, args...)
}
