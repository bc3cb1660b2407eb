package image

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/names"
)

// checkSource refuses flags that do not name one source, or that name it in the wrong form.
func (r *request) checkSource(name string) error {
	given := 0
	for _, text := range []string{
		r.url, r.fromImage, r.fromClaim, r.fromVolume, r.fromBackup, r.fromImageBackup, r.fromSnapshot,
	} {
		if text != "" {
			given++
		}
	}
	switch {
	case given != 1:
		return failure.Usage("give exactly one of --url, --from-image, --from-claim, --from-volume, --from-backup, " +
			"--from-image-backup and --from-snapshot-id: where the image comes from")
	case r.caFile != "" && r.url == "":
		return failure.Usage("--ca-file is for --url alone: leave it out")
	case r.fromImage == name:
		return failure.Usage("--from-image %s: an image cannot be a clone of itself: give another one", name)
	case r.fromClaim != "" && !isNamespaced(r.fromClaim):
		return failure.Usage("--from-claim %s: give NAMESPACE/NAME, such as app/web-root", r.fromClaim)
	case r.fromBackup != "" && !isNamespaced(r.fromBackup):
		return failure.Usage("--from-backup %s: give NAMESPACE/NAME, such as app/web-monday", r.fromBackup)
	}
	return r.checkPoint()
}

// checkPoint refuses flags of a restore that need another one, and a restore point that has no disk.
func (r *request) checkPoint() error {
	switch {
	case r.volume != "" && r.fromBackup == "":
		return failure.Usage("--volume is for --from-backup alone: leave it out")
	case (r.location == "") != (r.fromSnapshot == ""):
		return failure.Usage("--from-snapshot-id and --location need each other: a backup has its own location")
	case r.fromSnapshot == "":
		return nil
	}
	id, err := datamove.ParseSnapshotID(r.fromSnapshot)
	switch {
	case err != nil:
		return failure.Usage("--from-snapshot-id: %s", err)
	case id.Form != datamove.Disk:
		return failure.Usage("--from-snapshot-id %s: it is of files, which are no disk: give one of a disk", r.fromSnapshot)
	}
	return nil
}

// isNamespaced reports whether a text has the form NAMESPACE/NAME.
func isNamespaced(text string) bool {
	namespace, name, _ := strings.Cut(text, "/")
	return namespace != "" && name != "" && !strings.Contains(name, "/")
}

// describeSource returns the source that the flags name, or a usage error. That of a claim or of a backup has no
// parameters yet.
func (r *request) describeSource(name string) (
	from longhornv1.SourceType, parameters map[string]longhornv1.ParameterValue, err error,
) {
	if err := r.checkSource(name); err != nil {
		return "", nil, err
	}
	parameters = map[string]longhornv1.ParameterValue{}
	if r.url != "" {
		u, err := url.Parse(r.url)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return "", nil, failure.Usage("--url: give an address that begins with http:// or https://")
		}
		parameters[longhornv1.ParameterURL] = longhornv1.ParameterValue(r.url)
		return longhornv1.SourceDownload, parameters, nil
	}
	switch {
	case r.fromSnapshot != "":
		setPoint(parameters, r.location, r.fromSnapshot)
		return longhornv1.SourceRestore, parameters, nil
	case r.fromBackup != "", r.fromImageBackup != "":
		return longhornv1.SourceRestore, parameters, nil
	case r.fromImage != "":
		parameters[longhornv1.ParameterBackingImage] = longhornv1.ParameterValue(r.fromImage)
		return longhornv1.SourceClone, parameters, nil
	case r.fromVolume != "":
		parameters[longhornv1.ParameterVolumeName] = longhornv1.ParameterValue(r.fromVolume)
	}
	return longhornv1.SourceExport, parameters, nil
}

// findVolume adds the volume of --from-claim to an image.
func (r *request) findVolume(ctx context.Context, c *cluster.Client, b *longhornv1.BackingImage) error {
	if r.fromClaim == "" {
		return nil
	}
	namespace, name, _ := strings.Cut(r.fromClaim, "/")
	claim, volume := &corev1.PersistentVolumeClaim{}, &corev1.PersistentVolume{}
	if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, claim); err != nil {
		return fmt.Errorf("get claim %s: %w", r.fromClaim, err)
	}
	if claim.Spec.VolumeName == "" {
		return errclass.Errorf(errclass.Conflict, "claim %s has no volume yet: start a pod that uses it, or wait",
			r.fromClaim)
	}
	if err := c.Get(ctx, client.ObjectKey{Name: claim.Spec.VolumeName}, volume); err != nil {
		return fmt.Errorf("get the volume of claim %s: get PersistentVolume %s: %w", r.fromClaim, claim.Spec.VolumeName,
			err)
	}
	if volume.Spec.CSI == nil || volume.Spec.CSI.Driver != names.Driver {
		return errclass.Errorf(errclass.Invalid, "the volume of claim %s is not of the driver %s: only volumes of that one "+
			"can become images in place; serve the image over http or https, and use --url", r.fromClaim, names.Driver)
	}
	b.Spec.SourceParameters[longhornv1.ParameterVolumeName] = longhornv1.ParameterValue(volume.Spec.CSI.VolumeHandle)
	return nil
}
