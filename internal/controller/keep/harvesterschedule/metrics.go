package harvesterschedule

import (
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/controller/metric"
)

// measures are the metrics of all schedules. A process that gets the lease deals with each schedule once, so that it
// knows all of them from then on.
var measures = metric.NewSchedules()

func init() { metrics.Registry.MustRegister(measures) }

// recordMetrics takes what the status of a schedule says now, and counts the runs that have ended since before.
func recordMetrics(before, after *harvesterv1.ScheduleVMBackup) { measures.Record(before, after) }

// forgetMetrics ends the series of a schedule that is gone.
func forgetMetrics(key types.NamespacedName) { measures.Forget(key) }
