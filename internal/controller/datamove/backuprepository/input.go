package backuprepository

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/location"
	"github.com/varvebackup/varve/internal/reconcile"
)

// input is all that decide looks at.
type input struct {
	Now  time.Time
	Repo *velerov1.BackupRepository
	// Namespace is Varve's own.
	Namespace string
	// Served says whether locations of this one's namespace are served.
	Served bool
	// Location is nil if it does not exist. Refusal is why it cannot be used; otherwise Place says where it is.
	Location *velerov1.BackupStorageLocation
	Refusal  string
	Place    location.Place
	// Storage is what pods mount of a place that is a directory.
	Storage datamove.Storage
	// PasswordPerNamespace is the setting.
	PasswordPerNamespace bool
	// Passwords has the passwords that are there by the names of their Secrets; an empty one is in a Secret without a password.
	Passwords map[string]string
	// PasswordUsed says whether another repository that was made uses the location's password.
	PasswordUsed string
	// OthersPasswords are the namespaces whose repositories in the location have a password of their own.
	OthersPasswords []string
	// Access is the repository's Secret; nil if there is none.
	Access *corev1.Secret
	// Last is how the last errand ended; nil if there was none. Running says that one runs.
	Last    *attempt
	Running bool
	// Job is the maintenance Job; nil if there is none. JobMessage is what its pod said at its end.
	Job        *batchv1.Job
	JobMessage string
}

// gather reads everything. Secrets are read from the API server, because nobody caches them.
func (r *reconciler) gather(ctx context.Context, repo *velerov1.BackupRepository) (*input, error) {
	key := client.ObjectKeyFromObject(repo)
	in := &input{Now: r.Clock.Now(), Repo: repo, Namespace: r.Namespace, Passwords: map[string]string{}, Running: r.errands.Running(key), Last: r.memory.recall(key, repo.UID)}
	if refuseSpec(repo) != "" {
		return in, nil
	}
	where := locationOf(repo)
	served, err := r.Namespaces(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the settings: %w", err)
	}
	in.Served = slices.Contains(served, where.Namespace)
	if in.PasswordPerNamespace, err = r.PasswordPerNamespace(ctx); err != nil {
		return nil, fmt.Errorf("read the settings: %w", err)
	}
	if in.Location, err = r.findLocation(ctx, where); err != nil || in.Location == nil {
		return in, err
	}
	if err := r.readSecrets(ctx, in); err != nil {
		return nil, err
	}
	if err := r.readOthers(ctx, in); err != nil {
		return nil, err
	}
	return in, r.readJob(ctx, in)
}

// findLocation returns a location. That there is none is believed of the API server alone.
func (r *reconciler) findLocation(ctx context.Context, where datamove.Location) (*velerov1.BackupStorageLocation, error) {
	found, err := reconcile.Find(ctx, r.cached, where, &velerov1.BackupStorageLocation{})
	if err != nil || found != nil {
		return found, err
	}
	return reconcile.Find(ctx, r.live, where, &velerov1.BackupStorageLocation{})
}

func (r *reconciler) secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	return reconcile.Find(ctx, r.live, types.NamespacedName{Namespace: namespace, Name: name}, &corev1.Secret{})
}

func (r *reconciler) readSecrets(ctx context.Context, in *input) error {
	secrets, err := location.ReadSecrets(ctx, r.live, in.Location)
	if err != nil {
		return err
	}
	in.Place, err = location.Parse(in.Location, secrets)
	switch {
	case err != nil:
		in.Refusal = err.Error()
	case in.Place.S3 == nil:
		if in.Storage, in.Refusal, err = r.Looker.Find(ctx, *in.Place.Volume); err != nil {
			return err
		}
	case in.Place.NeedsPod():
		in.Storage = in.Place.RoleStorage()
	}
	for _, name := range passwordSecrets(in) {
		s, err := r.secret(ctx, r.Namespace, name)
		if err != nil {
			return err
		}
		if s != nil {
			in.Passwords[name] = string(bytes.TrimRight(s.Data[datamove.PasswordKey], "\r\n"))
		}
	}
	in.Access, err = r.secret(ctx, r.Namespace, in.Repo.Name)
	return err
}

// passwordSecrets returns the names of the Secrets that may have the password, the likeliest first.
func passwordSecrets(in *input) []string {
	if name := in.Repo.Annotations[datamove.AnnotationPasswordSecret]; name != "" {
		return []string{name}
	}
	where := locationOf(in.Repo)
	names := []string{datamove.LocationPasswordSecret(where), datamove.NamespacePasswordSecret(in.Repo.Spec.VolumeNamespace, where)}
	if in.PasswordPerNamespace {
		slices.Reverse(names)
	}
	return names
}

// readOthers looks at the other repositories of the location that were made.
func (r *reconciler) readOthers(ctx context.Context, in *input) error {
	list := &velerov1.BackupRepositoryList{}
	if err := r.cached.List(ctx, list, client.InNamespace(r.Namespace)); err != nil {
		return fmt.Errorf("list backup repositories: %w", err)
	}
	where := locationOf(in.Repo)
	for i := range list.Items {
		other := &list.Items[i]
		if other.UID == in.Repo.UID || locationOf(other) != where || other.Annotations[datamove.AnnotationUniqueID] == "" {
			continue
		}
		switch other.Annotations[datamove.AnnotationPasswordSecret] {
		case "": // it is known from a catalogue, and nobody has opened it
		case datamove.LocationPasswordSecret(where):
			in.PasswordUsed = other.Name
		default:
			in.OthersPasswords = append(in.OthersPasswords, other.Spec.VolumeNamespace)
		}
	}
	return nil
}

// fingerprint stands for an access in the place of an input, and shows nothing of it.
func fingerprint(in *input, a datamove.Access) string {
	a.UniqueID = ""
	sum := sha256.Sum256(fmt.Appendf(a.Encode(), "%s %s %s", in.Place.Lock.Mode, in.Place.Lock.Period, in.Storage.Encode()))
	return hex.EncodeToString(sum[:])
}
