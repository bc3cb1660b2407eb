package machinegroup

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	polling "k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/reconcile"
)

const (
	// endedPage is how many backups that have ended are read at a time.
	endedPage = 500
	// endedRetry is how long a failed read waits.
	endedRetry = 15 * time.Second
)

// endedBackups finds, once, the backups of groups that have ended. No cache has them, and if their DataUploads were deleted while no
// controller looked, nothing else tells of them.
type endedBackups struct {
	live  client.Reader
	found chan event.GenericEvent
}

// Start returns when all are found. The manager calls it when this process has the lease.
func (e *endedBackups) Start(ctx context.Context) error {
	err := polling.PollUntilContextCancel(ctx, endedRetry, true, func(ctx context.Context) (bool, error) {
		if err := e.find(ctx); err != nil {
			log.FromContext(ctx).Error(err, "look for ended backups of DataUploads; trying again")
			return false, nil
		}
		return true, nil
	})
	if ctx.Err() != nil {
		return nil //nolint:nilerr // the manager stops
	}
	return err
}

// find reads no more of a backup than its metadata.
func (e *endedBackups) find(ctx context.Context) error {
	newList := func() *metav1.PartialObjectMetadataList {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(backupv1.GroupVersion.WithKind("VirtualMachineBackupList"))
		return list
	}
	err := reconcile.ListPages(ctx, e.live, endedPage, newList, func(page *metav1.PartialObjectMetadataList) error {
		for i := range page.Items {
			if page.Items[i].Annotations[datamove.AnnotationGroup] == "" {
				continue
			}
			select {
			case e.found <- event.GenericEvent{Object: &page.Items[i]}:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	}, client.HasLabels{layout.LabelEnded})
	if err != nil {
		return fmt.Errorf("list backups: %w", err)
	}
	return nil
}
