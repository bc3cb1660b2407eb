package handler

import (
	"context"
	"fmt"

	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/handler/datamover"
	"github.com/varvebackup/varve/internal/handler/exposer"
	"github.com/varvebackup/varve/internal/handler/metric"
)

// exposerOptions returns the part of the settings that exposers follow.
func exposerOptions(current *datamover.CurrentSettings) func() exposer.Options {
	return func() exposer.Options {
		settings := current.Current(context.Background())
		o := exposer.Options{Classes: map[string]exposer.Class{}, PrepareTimeout: settings.PrepareTimeout.Duration}
		for source, class := range settings.StorageClasses {
			o.Classes[source] = exposer.Class{StorageClass: class.StorageClass, ReadOnly: class.ReadOnly, ReadWhole: class.ReadWhole, KeepSnapshot: class.KeepSnapshot}
		}
		return o
	}
}

// addDataMover adds the data mover, if there is an image for its pods.
func addDataMover(mgr ctrl.Manager, o Options, recorder events.EventRecorder, measures *metric.Set) error {
	log := o.Logger.WithName("datamover")
	if o.VarveImage.Name == "" {
		log.Info("DataUploads and DataDownloads are not served: the handler was given no image for mover pods")
		return nil
	}
	current := &datamover.CurrentSettings{Namespace: o.Namespace, Events: recorder, Log: log}
	access := exposer.Access{
		Live: mgr.GetAPIReader(), Writer: mgr.GetClient(), Namespace: o.Namespace, Clock: o.Clock, Options: exposerOptions(current),
	}
	err := datamover.Setup(mgr, &datamover.Mover{
		NodeName: o.NodeName, Namespace: o.Namespace, Image: o.VarveImage, Live: mgr.GetAPIReader(), Writer: mgr.GetClient(),
		Uploads: map[string]datamover.Exposer[*velerov2.DataUpload]{
			velerov2.SnapshotCSI: &exposer.CSI{Access: access},
			velerov2.SnapshotMachineBackup: &exposer.MachineBackups{
				Tunnel:    &exposer.Tunnel{Access: access},
				Endpoints: &exposer.Endpoints{Access: access}, Exports: &exposer.Exports{Access: access},
			},
		},
		Downloads: &exposer.Downloads{Volumes: &exposer.Restore{Access: access}},
		Deleter:   datamover.ControllerDeletes{},
		Settings:  current, Events: recorder, Measures: measures, Clock: o.Clock, Log: log,
	})
	if err != nil {
		return fmt.Errorf("set up the data mover: %w", err)
	}
	return nil
}
