package exposer

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/varvebackup/varve/internal/csichanges"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/errclass"
)

// maxAuthorityBytes bounds the certificates of a SnapshotMetadata service: they are in the pod's environment.
const maxAuthorityBytes = 64 << 10

// describeSnapshot returns what the own snapshot is on the storage, and how its driver can be asked about it. It returns nil for a
// Filesystem volume: a driver knows blocks, and not which of them are those of a file.
func (e *CSI) describeSnapshot(ctx context.Context, s *snapshotState) (*datamove.SnapshotSource, error) {
	n := s.note
	if n.VolumeMode != corev1.PersistentVolumeBlock || n.VolumeHandle == "" {
		return nil, nil //nolint:nilnil // documented
	}
	from := &datamove.SnapshotSource{SnapshotMoment: datamove.SnapshotMoment{Driver: n.Driver, Volume: n.VolumeHandle, Snapshot: n.Handle, Taken: n.Taken}}
	if e.options().Classes[s.upload.Spec.CSISnapshot.StorageClass].ReadWhole {
		from.NoMetadata = "the settings say that volumes of StorageClass " + s.upload.Spec.CSISnapshot.StorageClass + " are read as a whole"
		return from, nil
	}
	service, err := csichanges.FindService(ctx, e.Live, n.Driver)
	switch {
	case errors.Is(err, errclass.NotFound), errors.Is(err, errclass.Invalid), apierrors.IsForbidden(err):
		from.NoMetadata = err.Error()
	case err != nil:
		return nil, err
	case len(service.CA) == 0 || len(service.CA) > maxAuthorityBytes:
		from.NoMetadata = fmt.Sprintf("SnapshotMetadataService %s: caCert has %d bytes: it needs 1 to %d", n.Driver, len(service.CA), maxAuthorityBytes)
	default:
		from.Metadata = &datamove.SnapshotMetadata{
			Address: service.Address, CA: service.CA, Audience: service.Audience, Namespace: e.Namespace, Name: datamove.ChildName(datamove.Upload, s.upload.UID),
		}
	}
	return from, nil
}
