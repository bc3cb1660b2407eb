package expose

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/varvebackup/varve/internal/csichanges"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/errclass"
)

// maxAuthorityBytes bounds the certificates of a SnapshotMetadata service: they are in the pod's environment.
const maxAuthorityBytes = 64 << 10

const (
	// lookupPatience is how long the API server is asked for a driver's service in vain. Then the volume is read as a whole. It is a share of
	// prepareTimeout at most, after which the upload would fail.
	lookupPatience      = 2 * time.Minute
	lookupPatienceShare = 4
	// lookupTimeout is how long one request for it may take.
	lookupTimeout = 10 * time.Second
)

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
	service, err := e.findService(ctx, s)
	switch {
	case hasNoService(err):
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

// hasNoService says that an error is an answer: the driver has no service that could be asked.
func hasNoService(err error) bool {
	return errors.Is(err, errclass.NotFound) || errors.Is(err, errclass.Invalid) || apierrors.IsForbidden(err)
}

// findService is csichanges.FindService for the driver of the snapshot. An API server that does not answer is asked
// again, and since when it does not is noted on the DataUpload: no process that goes on begins anew. After
// lookupPatience the error is errclass.NotFound.
func (e *CSI) findService(ctx context.Context, s *snapshotState) (*csichanges.Service, error) {
	lookup, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	service, err := csichanges.FindService(lookup, e.Live, s.note.Driver)
	if err == nil || hasNoService(err) {
		s.note.UnansweredSince = nil
		if err := e.remember(ctx, s.upload, s.note); err != nil {
			return nil, err
		}
		return service, err
	}
	now := metav1.NewTime(e.Clock.Now()).Rfc3339Copy()
	if s.note.UnansweredSince == nil {
		s.note.UnansweredSince = &now
		return nil, errors.Join(err, e.remember(ctx, s.upload, s.note))
	}
	if since := s.note.UnansweredSince; now.Sub(since.Time) >= e.lookupPatience() {
		return nil, errclass.Errorf(errclass.NotFound, "nobody knows whether the CSI driver has a service, since %s: %w", since.UTC().Format(time.TimeOnly), err)
	}
	return nil, err
}

func (e *CSI) lookupPatience() time.Duration {
	if limit := e.options().PrepareTimeout; limit > 0 {
		return min(lookupPatience, limit/lookupPatienceShare)
	}
	return lookupPatience
}
