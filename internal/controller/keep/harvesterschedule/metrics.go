package harvesterschedule

import (
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/varvebackup/varve/internal/controller/metric"
)

// measures are the metrics of all schedules. A process that gets the lease deals with each schedule once, so that it
// knows all of them from then on.
var measures = metric.NewSchedules()

func init() { metrics.Registry.MustRegister(measures) }
