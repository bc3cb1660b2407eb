package backuprepository

import (
	"fmt"
	"slices"
	"strings"
	"time"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/repositoryaccess"
)

const (
	// lookEvery is the pause between two looks at the Secrets of a location, of whose changes nothing tells.
	lookEvery = 45 * time.Second
	// checkEvery is the pause between two looks at a repository that is Ready.
	checkEvery = 5 * time.Minute
	// checkDirectoryEvery is the same for one that takes a pod: in a claim, in an NFS export, or in a bucket by a role.
	checkDirectoryEvery = time.Hour
	// firstRetry is the pause after a failure. It doubles up to lastRetry.
	firstRetry, lastRetry = 10 * time.Second, 2 * time.Minute
)

// decision is what is to be done about one BackupRepository.
type decision struct {
	// Discard deletes it with what belongs to it, because its location is gone.
	Discard bool
	// Phase and Message are its status.
	Phase   velerov1.BackupRepositoryPhase
	Message string
	// UniqueID and PasswordSecret are noted on it; "" leaves the note as it is.
	UniqueID, PasswordSecret string
	// CreatePassword names a Secret that is to get a new password; "": none.
	CreatePassword string
	// Task is the errand to run with Access; "": none.
	Task   repositoryaccess.Task
	Access datamove.Access
	// WriteAccess writes Access to the repository's Secret.
	WriteAccess bool
	// Maintenance is what is to be done about maintenance.
	Maintenance maintenance
	// After is when to look again.
	After time.Duration
}

// refuseSpec says why nothing is done about a BackupRepository; "" if its spec is in order. Its name must follow from its spec: otherwise
// two of them would be for one repository.
func refuseSpec(repo *velerov1.BackupRepository) string {
	where := locationOf(repo)
	switch {
	case repo.Spec.RepositoryType != "" && repo.Spec.RepositoryType != velerov1.RepositoryKopia:
		return fmt.Sprintf("spec.repositoryType: %q is not served: use %s", repo.Spec.RepositoryType, velerov1.RepositoryKopia)
	case repo.Spec.VolumeNamespace == "" || strings.ContainsAny(repo.Spec.VolumeNamespace, "./"):
		return fmt.Sprintf("spec.volumeNamespace: %q is not a namespace", repo.Spec.VolumeNamespace)
	case repo.Spec.MaintenanceFrequency.Invalid != "":
		return fmt.Sprintf("spec.maintenanceFrequency: %.80q is not a duration, such as 24h", repo.Spec.MaintenanceFrequency.Invalid)
	case where.Namespace == "" || where.Name == "":
		return "spec.backupStorageLocation and spec.repositoryConfig." + datamove.ConfigLocationNamespace + " must name the location"
	}
	if name := datamove.RepositoryName(repo.Spec.VolumeNamespace, where); name != repo.Name {
		return "the name does not match the spec: nothing is done; the repository of namespace " + repo.Spec.VolumeNamespace + " in location " + where.String() + " is " + name
	}
	return ""
}

// decide says what is to be done.
func decide(in *input) decision {
	if why := refuseSpec(in.Repo); why != "" {
		return notReady(why, 0)
	}
	where := locationOf(in.Repo)
	switch {
	case in.Location == nil:
		return decision{Discard: true}
	case !in.Served:
		return notReady("locations of namespace "+where.Namespace+" are not served: add it to the settings", lookEvery)
	case in.Refusal != "":
		return notReady("location "+where.String()+": "+in.Refusal, lookEvery)
	}
	d := decideRepository(in)
	d.Maintenance = decideMaintenance(in, d.Phase == velerov1.RepositoryReady)
	if after := d.Maintenance.After; after > 0 {
		d.After = min(d.After, after)
	}
	return d
}

func notReady(message string, after time.Duration) decision {
	return decision{Phase: velerov1.RepositoryNotReady, Message: message, After: after}
}

// unchanged leaves the status as it is while an errand runs.
func unchanged(in *input) decision {
	d := decision{Phase: in.Repo.Status.Phase, Message: in.Repo.Status.Message, After: lookEvery}
	if d.Phase == "" || d.Phase == velerov1.RepositoryNew {
		d.Phase, d.Message = velerov1.RepositoryNew, "looking at "+in.Place.String()
	}
	return d
}

// decideRepository decides about a repository whose place is known.
func decideRepository(in *input) decision {
	for _, name := range passwordSecrets(in) {
		password, exists := in.Passwords[name]
		if !exists {
			continue
		}
		if password == "" {
			return notReady(fmt.Sprintf("Secret %s/%s has no key %s", in.Namespace, name, datamove.PasswordKey), lookEvery)
		}
		if name != passwordSecrets(in)[0] && !existsWithoutPassword(in) {
			break // the other password is for others, unless a repository is there already
		}
		return decideWithPassword(in, name, password)
	}
	return decideWithoutPassword(in, passwordSecrets(in)[0])
}

// existsWithoutPassword says whether a look or a catalogue has found the repository, and the Secret that has its password by the settings is
// not there.
func existsWithoutPassword(in *input) bool {
	if in.Repo.Annotations[datamove.AnnotationUniqueID] != "" {
		return in.Repo.Annotations[datamove.AnnotationPasswordSecret] == ""
	}
	return in.Last != nil && in.Last.Exists
}

// checkEvery is the pause between two looks at what is there.
func (in *input) checkEvery() time.Duration {
	if in.Place.NeedsPod() {
		return checkDirectoryEvery
	}
	return checkEvery
}

// decideWithoutPassword makes a password, if no repository can be there that has one.
func decideWithoutPassword(in *input, name string) decision {
	ask := ": put it into the key " + datamove.PasswordKey + " of Secret " + in.Namespace + "/" + name
	if in.Repo.Annotations[datamove.AnnotationUniqueID] != "" {
		return decideLocked(in, ask)
	}
	shared := name == datamove.LocationPasswordSecret(locationOf(in.Repo))
	if shared && in.PasswordUsed != "" {
		return notReady("repository "+in.PasswordUsed+" of the location exists, and its password is not here"+ask, lookEvery)
	}
	a := in.Place.Access(in.Repo.Spec.VolumeNamespace)
	look := fingerprint(in, a)
	d := unchanged(in)
	switch last := in.Last; {
	case in.Running:
		return d
	case last == nil || last.Task != repositoryaccess.LookAround || last.Fingerprint != look:
		d.Task, d.Access = repositoryaccess.LookAround, a
		return d
	case last.Failure != "":
		return retry(in, repositoryaccess.LookAround, a)
	case last.Exists || shared && last.Found != "":
		d := notReady("a repository is in "+in.Place.String()+" already (of namespace "+foundName(in)+"), and its password is not here"+ask, lookEvery)
		if in.Now.Sub(last.At) >= in.checkEvery() {
			d.Task, d.Access = repositoryaccess.LookAround, a
		}
		return d
	case in.Place.ReadOnly:
		return notReady("there is no repository in "+in.Place.String()+", and none is made because the location is read-only", lookEvery)
	case in.Now.Sub(last.At) >= in.checkEvery():
		d.Task, d.Access = repositoryaccess.LookAround, a // what was seen is old
		return d
	}
	d.CreatePassword, d.After = name, time.Second
	return d
}

// decideLocked asks for the password of a repository that is known, and looks whether it is still there, for which nobody needs that.
func decideLocked(in *input, ask string) decision {
	a := in.Place.Access(in.Repo.Spec.VolumeNamespace)
	a.UniqueID = in.Repo.Annotations[datamove.AnnotationUniqueID]
	d := notReady("the repository in "+in.Place.String()+" exists, and its password is not here"+ask, lookEvery)
	d.Access = a
	last := in.Last
	switch {
	case in.Running:
	case last == nil || last.Task != repositoryaccess.CheckRepository || last.Fingerprint != fingerprint(in, a) || last.Failure == "" && last.UniqueID != a.UniqueID:
		d.Task = repositoryaccess.CheckRepository
	case last.Failure != "":
		return retry(in, repositoryaccess.CheckRepository, a)
	case in.Now.Sub(last.At) >= in.checkEvery():
		d.Task = repositoryaccess.CheckRepository
	}
	return d
}

func foundName(in *input) string {
	if in.Last.Exists {
		return in.Repo.Spec.VolumeNamespace
	}
	return in.Last.Found
}

// decideWithPassword makes the repository or tries it.
func decideWithPassword(in *input, secret, password string) decision {
	a := in.Place.Access(in.Repo.Spec.VolumeNamespace)
	a.Password, a.UniqueID = password, in.Repo.Annotations[datamove.AnnotationUniqueID]
	d := unchanged(in)
	if leadsElsewhere(in, a) || mountsElsewhere(in) {
		d = notReady("the location is "+in.Place.String()+" now: looking whether the repository is there", lookEvery)
	}
	d.Access = a
	last := in.Last
	if last != nil && (last.Task == repositoryaccess.LookAround || last.Fingerprint != fingerprint(in, a) || last.Failure == "" && a.UniqueID != "" && last.UniqueID != a.UniqueID) {
		last = nil // it was about something else
	}
	switch {
	case in.Running && (last == nil || last.Failure != ""):
		return d
	case last == nil:
		d.Task = repositoryaccess.PrepareRepository
		return d
	case last.Failure != "":
		return retry(in, repositoryaccess.PrepareRepository, a)
	}
	a.UniqueID = last.UniqueID
	remarks := slices.Clone(in.Place.Ignored)
	if remark := in.Storage.Remark(); remark != "" {
		remarks = append(remarks, remark)
	}
	d = decision{
		Phase: velerov1.RepositoryReady, Message: strings.Join(remarks, "; "), UniqueID: last.UniqueID, PasswordSecret: secret, Access: a,
		WriteAccess: !hasAccess(in, a), // what was not tried is not handed to movers
		After:       min(lookEvery, max(time.Second, in.checkEvery()-in.Now.Sub(last.At))),
	}
	if leadsElsewhere(in, a) {
		d.Phase, d.Message, d.After = velerov1.RepositoryNotReady, "the location is "+in.Place.String()+" now: movers do not know it yet", time.Second
	}
	if !in.Running && in.Now.Sub(last.At) >= in.checkEvery() {
		d.Task = repositoryaccess.CheckRepository
	}
	return d
}

// leadsElsewhere says that the repository's Secret leads movers to another place than a: the location was pointed to it since. What they
// store there is not in the location.
func leadsElsewhere(in *input, a datamove.Access) bool {
	if in.Access == nil {
		return false
	}
	have, err := datamove.DecodeAccess(in.Access.Data[datamove.AccessKey])
	if err != nil {
		return false // movers cannot read it either
	}
	if have.S3 == nil || a.S3 == nil {
		return have.Directory != a.Directory || (have.S3 == nil) != (a.S3 == nil)
	}
	return have.S3.Endpoint != a.S3.Endpoint || have.S3.Bucket != a.S3.Bucket || have.S3.Prefix != a.S3.Prefix
}

// mountsElsewhere says whether movers would mount another claim or NFS export than the location's.
func mountsElsewhere(in *input) bool {
	have, err := datamove.StorageOf(in.Repo)
	return err == nil && have != nil && in.Place.NeedsPod() && have.Label() != in.Storage.Label()
}

// retry shows the last failure, and tries again when it is time.
func retry(in *input, what repositoryaccess.Task, a datamove.Access) decision {
	pause := firstRetry
	for range min(in.Last.Failures-1, 10) {
		pause = min(2*pause, lastRetry)
	}
	d := notReady(in.Last.Failure, min(lookEvery, max(time.Second, pause-in.Now.Sub(in.Last.At))))
	d.Access = a
	if in.Now.Sub(in.Last.At) >= pause {
		d.Task = what
	}
	return d
}

// hasAccess says whether the repository's Secret has this access.
func hasAccess(in *input, a datamove.Access) bool {
	s := in.Access
	return s != nil && s.Labels[datamove.LabelRepository] == in.Repo.Name && string(s.Data[datamove.AccessKey]) == string(a.Encode())
}
