package handler

import (
	"fmt"

	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/handler/datamover"
	"github.com/varvebackup/varve/internal/handler/metric"
)

// exposers returns what makes volumes accessible: for DataUploads by snapshotType, and for DataDownloads.
func exposers(ctrl.Manager, Options) (map[string]datamover.Exposer[*velerov2.DataUpload], datamover.Exposer[*velerov2.DataDownload]) {
	return nil, nil
}

// addDataMover adds the data mover, if there is an image for its pods and anything that it can expose.
func addDataMover(mgr ctrl.Manager, o Options, recorder events.EventRecorder, measures *metric.Set) error {
	log := o.Logger.WithName("datamover")
	uploads, downloads := exposers(mgr, o)
	if o.VarveImage.Name == "" || len(uploads) == 0 && downloads == nil {
		log.Info("DataUploads and DataDownloads are not served", "image", o.VarveImage.Name, "snapshotTypes", len(uploads))
		return nil
	}
	err := datamover.Setup(mgr, &datamover.Mover{
		NodeName: o.NodeName, Namespace: o.Namespace, Image: o.VarveImage, Live: mgr.GetAPIReader(), Writer: mgr.GetClient(), Uploads: uploads, Downloads: downloads,
		Settings: &datamover.CurrentSettings{Namespace: o.Namespace, Events: recorder, Log: log},
		Events:   recorder, Measures: measures, Clock: o.Clock, Log: log,
	})
	if err != nil {
		return fmt.Errorf("set up the data mover: %w", err)
	}
	return nil
}
