package location

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/progress"
	"github.com/varvebackup/varve/internal/cli/resource"
	"github.com/varvebackup/varve/internal/location"
)

// setDirectory makes l a claim or an NFS export.
func setDirectory(l *velerov1.BackupStorageLocation, place string) error {
	u, err := url.Parse(place)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return failure.Usage("the place is none that can be used: give s3://endpoint/bucket/prefix, claim://claim/prefix or nfs://server/export")
	}
	switch u.Scheme {
	case "claim":
		l.Spec.Provider = location.ProviderClaim
		l.Spec.ObjectStorage = &velerov1.ObjectStorageLocation{Bucket: u.Host, Prefix: strings.Trim(path.Clean(u.Path), "/.")}
	case "nfs":
		if u.Path == "" || u.Path == "/" {
			return failure.Usage("nfs://%s: give the export, too: nfs://server/export", u.Host)
		}
		l.Spec.Provider = location.ProviderNFS
		// The field is required. What it holds is for people.
		l.Spec.ObjectStorage = &velerov1.ObjectStorageLocation{Bucket: "nfs"}
		l.Spec.Config = map[string]string{"server": u.Host, "path": path.Clean(u.Path)}
	default:
		return failure.Usage("%s://…: give s3://endpoint/bucket/prefix, claim://claim/prefix or nfs://server/export", u.Scheme)
	}
	return nil
}

// createWithKeys creates a location, and the Secret with its keys, which goes with it. Without the Secret, nothing is left.
func createWithKeys(ctx context.Context, c *cluster.Client, l *velerov1.BackupStorageLocation, keys string) error {
	if err := c.Create(ctx, l); err != nil {
		return fmt.Errorf("create location %s/%s: %w", l.Namespace, l.Name, err)
	}
	if keys == "" {
		return nil
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: l.Namespace, Name: l.Spec.Credential.Name,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: velerov1.GroupVersion.String(), Kind: "BackupStorageLocation", Name: l.Name, UID: l.UID}},
		},
		StringData: map[string]string{l.Spec.Credential.Key: keys},
	}
	err := c.Create(ctx, secret)
	if err == nil {
		return nil
	}
	err = fmt.Errorf("create the Secret %s/%s with the keys of location %s: %w", secret.Namespace, secret.Name, l.Name, err)
	uid := l.UID
	if undone := c.Delete(context.WithoutCancel(ctx), l, client.Preconditions{UID: &uid}); undone != nil {
		err = errors.Join(err, fmt.Errorf("delete location %s again: %w", l.Name, undone))
	}
	return err
}

// untilAvailable waits until a location can be used. One that cannot yet, because its keys are just being written, may still become so.
func untilAvailable(c *cluster.Client, l *velerov1.BackupStorageLocation) resource.WaitFunc {
	uid, name := l.UID, l.Name
	return func(ctx context.Context, show func(progress.Report)) error {
		return cluster.Follow(ctx, c, client.ObjectKeyFromObject(l), &velerov1.BackupStorageLocation{}, newLocationList(),
			func(seen *velerov1.BackupStorageLocation, exists bool) (bool, error) {
				if !exists || seen.UID != uid {
					return false, failure.New("", "location %s was deleted", name)
				}
				seen.DeepCopyInto(l)
				show(progress.Report{Name: name, Phase: phaseOf(seen), Message: seen.Status.Message})
				return seen.Status.Phase == velerov1.LocationAvailable, nil
			})
	}
}
