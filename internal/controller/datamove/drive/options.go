package drive

import (
	"context"
	"fmt"

	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/controller/datamove/expose"
	"github.com/varvebackup/varve/internal/controller/metric"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/reconcile"
)

// Options are what Setup needs besides the manager. Only Clock has a default.
type Options struct {
	// Namespace is Varve's own. Mover pods and what is made for them are there.
	Namespace string
	// Image is what mover pods are made of.
	Image datamove.PodImage
	// Measures are told what becomes of the objects.
	Measures *metric.Movements
	// BesideKubeVirt says that machines run under KubeVirt: their disks are read from its pull backups and its exports.
	BesideKubeVirt bool
	// Clock tells the time. Default: the machine's.
	Clock clock.PassiveClock
}

// Setup adds the data mover to mgr.
func Setup(mgr ctrl.Manager, o Options) error {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	log := mgr.GetLogger().WithName("datamove")
	recorder := reconcile.ShortenNotes(mgr.GetEventRecorder("varve-data-mover"))
	current := &CurrentSettings{Namespace: o.Namespace, Events: recorder, Log: log}
	access := expose.Access{
		Live: mgr.GetAPIReader(), Writer: mgr.GetClient(), Namespace: o.Namespace, Clock: o.Clock,
		Options: exposeOptions(current),
	}
	machines := &expose.MachineBackups{
		Endpoints: &expose.Endpoints{Access: access}, Exports: &expose.Exports{Access: access},
	}
	if !o.BesideKubeVirt {
		machines.Tunnel = &expose.Tunnel{Access: access}
	}
	err := addMover(mgr, &Mover{
		Namespace: o.Namespace, Image: o.Image, Live: mgr.GetAPIReader(), Writer: mgr.GetClient(),
		Uploads: map[string]Exposer[*velerov2.DataUpload]{
			velerov2.SnapshotCSI:           &expose.CSI{Access: access},
			velerov2.SnapshotImage:         &expose.StoredImages{Access: access},
			velerov2.SnapshotMachineBackup: machines,
		},
		Downloads: &expose.Downloads{
			Volumes: &expose.Restore{Access: access}, Images: &expose.Images{Access: access},
		},
		Deleter:  ControllerDeletes{},
		Settings: current, Events: recorder, Measures: o.Measures, Clock: o.Clock, Log: log,
	})
	if err != nil {
		return fmt.Errorf("set up the data mover: %w", err)
	}
	return nil
}

// exposeOptions returns the part of the settings that exposers follow.
func exposeOptions(current *CurrentSettings) func() expose.Options {
	return func() expose.Options {
		settings := current.Current(context.Background())
		o := expose.Options{
			Classes: map[string]expose.Class{}, PrepareTimeout: settings.PrepareTimeout.Duration,
			ConsumerWait: settings.EffectiveConsumerWait(),
		}
		for source, class := range settings.StorageClasses {
			o.Classes[source] = expose.Class{
				StorageClass: class.StorageClass, ReadOnly: class.ReadOnly, ReadWhole: class.ReadWhole,
				KeepSnapshot: class.KeepSnapshot,
			}
		}
		return o
	}
}
