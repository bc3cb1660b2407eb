package moverpod

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/mover"
	"github.com/varvebackup/varve/internal/repository"
)

// downloadDefinition reads the definition of the machine that a restore point has, and which disks were stored with it,
// and leaves both in the Secret of the pod's name.
func (r *run) downloadDefinition(ctx context.Context, repo *repository.Repository, id datamove.SnapshotID) (datamove.Report, error) {
	point, err := repo.Get(ctx, id.Point)
	if err != nil {
		return datamove.Report{}, judgeAbsence(err,
			"it was deleted, or the backup location is not the one that it was stored in")
	}
	text, err := repo.Definition(ctx, point)
	if err != nil {
		return datamove.Report{}, judgeAbsence(err,
			"it was not stored by the backup of a whole machine: restore its disk")
	}
	disks, err := r.disksOfGroup(ctx, repo, point, id.Namespace)
	if err != nil {
		return datamove.Report{}, err
	}
	r.Log.Info("read the definition of a machine", "restorePoint", point.ID, "bytes", len(text), "disks", len(disks))
	err = r.leaveDefinition(ctx, map[string][]byte{
		datamove.DefinitionKey: text, datamove.DisksKey: datamove.EncodeDisks(disks),
	})
	if err != nil {
		return datamove.Report{}, err
	}
	r.progress.set(int64(len(text)), int64(len(text)))
	return datamove.Report{TotalBytes: int64(len(text))}, nil
}

// disksOfGroup returns the disks of the machine that were stored together with a restore point. Whoever needs all of
// them knows from the definition which these are: one whose restore point is damaged is not among them.
func (r *run) disksOfGroup(ctx context.Context, repo *repository.Repository, point *repository.RestorePoint, namespace string) ([]datamove.StoredDisk, error) {
	points := []*repository.RestorePoint{point}
	if point.Group != "" {
		var err error
		points, err = repo.ListSelected(ctx, repository.Filter{Group: point.Group})
		switch class := errclass.Of(err); {
		case err != nil && class != errclass.Corrupt && class != errclass.Invalid:
			return nil, judge(err)
		case err != nil:
			r.warn(fmt.Errorf("some restore points cannot be read: %w", err))
		}
	}
	var disks []datamove.StoredDisk
	for _, p := range points {
		d, err := p.Disk(datamove.DiskName)
		if err != nil || p.Definition == nil {
			continue // it is of another backup
		}
		id := datamove.SnapshotID{Form: datamove.Disk, Point: p.ID, Namespace: namespace}
		disks = append(disks, datamove.StoredDisk{
			Claim:      path.Base(mover.HistoryName(p.Source)),
			SnapshotID: id.String(), Bytes: d.Bytes, Time: p.Time,
		})
	}
	return disks, nil
}

// leaveDefinition writes data into the Secret of the pod's name. Whoever asked for the definition makes the Secret, perhaps
// a moment later than the pod.
func (r *run) leaveDefinition(ctx context.Context, data map[string][]byte) error {
	name := datamove.ChildName(r.Job.Kind, r.Job.UID)
	trying, cancel := context.WithTimeout(ctx, r.limits.secret)
	defer cancel()
	missing := false
	for attempt := 1; ; attempt++ {
		err := r.objects.patchSecret(trying, name, data)
		if err == nil {
			return nil
		}
		if trying.Err() == nil { // otherwise the request was cut short, and the answer before it counts
			missing = apierrors.IsNotFound(err)
		}
		if attempt == 1 {
			r.Log.Info("the definition cannot be left yet; trying again", "why", err.Error())
		}
		if pause(trying, r.limits.retry) {
			continue
		}
		if missing && ctx.Err() == nil {
			return lasting(fmt.Errorf("nobody waits for the definition: Secret %s does not exist", name),
				"restore the machine by a VirtualMachineRestore, or read the definition with `varve disk definition`")
		}
		return fmt.Errorf("write the definition into Secret %s: %w", name, errors.Join(err, context.Cause(ctx)))
	}
}

// patchSecret adds data to a Secret for a definition, in Varve's namespace. The API server refuses it if the Secret is of
// another type.
func (c *objectClient) patchSecret(ctx context.Context, name string, data map[string][]byte) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	body, err := json.Marshal(map[string]any{"type": datamove.DefinitionSecretType, "data": data})
	if err != nil {
		return err
	}
	// What the API server answers is not read: no answer of it gets into a log.
	o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: layout.Namespace, Name: name}}
	o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	return c.client.Patch(ctx, o, client.RawPatch(types.MergePatchType, body))
}
