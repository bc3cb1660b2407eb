package metric

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
)

var scheduleLabels = []string{"namespace", "schedule", "vm"}

// Gauges of schedules.
var (
	scheduleSuccess = prometheus.NewDesc("varve_schedule_last_success_timestamp_seconds",
		"When the schedule's newest backup that can be restored was complete, in Unix time. Absent if there is none.",
		scheduleLabels, nil)
	scheduleUnmet = prometheus.NewDesc("varve_schedule_unmet_since_timestamp_seconds",
		"When the first run was due since the schedule's last run that succeeded, in Unix time. Runs that were skipped "+
			"because the schedule was suspended do not count. Absent if the newest run succeeded.", scheduleLabels, nil)
	scheduleNext = prometheus.NewDesc("varve_schedule_next_run_timestamp_seconds",
		"When the schedule's next run begins, in Unix time. Absent if it is suspended, or never runs.", scheduleLabels, nil)
	scheduleFailures = prometheus.NewDesc("varve_schedule_consecutive_failures",
		"How many of the schedule's backups have failed since the last one that succeeded.", scheduleLabels, nil)
	scheduleSuspended = prometheus.NewDesc("varve_schedule_suspended",
		"1 while the schedule is suspended by its user, or after too many failures, or is to go on and cannot yet (reason "+
			"user, failures or waiting), otherwise 0.",
		[]string{"namespace", "schedule", "vm", "reason"}, nil)
)

// scheduleDescriptions describes what Schedules reports, without what it counts.
var scheduleDescriptions = []*prometheus.Desc{
	scheduleSuccess, scheduleUnmet, scheduleNext, scheduleFailures, scheduleSuspended,
}

// Reasons of a schedule that is suspended.
const (
	suspendedByUser     = "user"
	suspendedByFailures = "failures"
	suspendedWaiting    = "waiting"
)

// Schedules are the metrics of ScheduleVMBackups: one record per schedule, as of the last time that it was dealt with.
// The controller of schedules deals with each one when it gets the lease. Its methods are safe for concurrent use.
type Schedules struct {
	runs *prometheus.CounterVec

	mu      sync.Mutex
	records map[types.NamespacedName]scheduleRecord
}

// scheduleRecord is what is reported of a schedule. A time that is zero is not reported.
type scheduleRecord struct {
	vm                   string
	success, unmet, next time.Time
	failures             int
	// suspended is why the schedule is suspended, or "".
	suspended string
}

// NewSchedules returns the metrics of no schedules.
func NewSchedules() *Schedules {
	return &Schedules{
		records: map[types.NamespacedName]scheduleRecord{},
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "varve_schedule_runs_total",
			Help: "Runs of schedules that have ended, or made no backup, by result (Succeeded, Failed, Deleted, Skipped " +
				"or Missed).",
		}, []string{"namespace", "schedule", "vm", "result"}),
	}
}

// Describe implements prometheus.Collector.
func (s *Schedules) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range scheduleDescriptions {
		ch <- d
	}
	s.runs.Describe(ch)
}

// Collect implements prometheus.Collector.
func (s *Schedules) Collect(ch chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, r := range s.records {
		labels := []string{key.Namespace, key.Name, r.vm}
		for _, g := range []struct {
			desc *prometheus.Desc
			at   time.Time
		}{{scheduleSuccess, r.success}, {scheduleUnmet, r.unmet}, {scheduleNext, r.next}} {
			if !g.at.IsZero() {
				sendGauge(ch, g.desc, unixSeconds(g.at), labels...)
			}
		}
		sendGauge(ch, scheduleFailures, float64(r.failures), labels...)
		for _, reason := range []string{suspendedByUser, suspendedByFailures, suspendedWaiting} {
			sendGauge(ch, scheduleSuspended, oneIf(r.suspended == reason), append(labels, reason)...)
		}
	}
	s.runs.Collect(ch)
}

// Record takes what the status of a schedule says after a pass, and counts the runs that have ended since before it.
func (s *Schedules) Record(before, after *harvesterv1.ScheduleVMBackup) {
	status, key := &after.Status, client.ObjectKeyFromObject(after)
	r := scheduleRecord{
		vm: after.Spec.VMBackupSpec.Source.Name, failures: status.Failure, suspended: whySuspended(after),
		success: timeOf(status.LastSuccessfulTime), next: timeOf(status.NextScheduleTime), unmet: unmetSince(status.Runs),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, known := s.records[key]; known && old.vm != r.vm { // another schedule of the same name
		s.forgetCounts(key)
	}
	s.records[key] = r
	counted := countEnded(before.Status.Runs)
	for run, n := range countEnded(status.Runs) {
		if more := n - counted[run]; more > 0 {
			s.runs.WithLabelValues(key.Namespace, key.Name, r.vm, string(run.result)).Add(float64(more))
		}
	}
}

// whySuspended returns why a schedule is suspended, or "".
func whySuspended(o *harvesterv1.ScheduleVMBackup) string {
	if !o.Status.Suspended {
		return ""
	}
	for _, c := range o.Status.Conditions {
		if c.Type == harvesterv1.ConditionBackupSuspend && c.Reason == harvesterv1.ReasonMaxFailure {
			return suspendedByFailures
		}
	}
	if !o.Spec.Suspend {
		return suspendedWaiting
	}
	return suspendedByUser
}

// Forget ends the series of a schedule.
func (s *Schedules) Forget(key types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.records[key]; known {
		delete(s.records, key)
		s.forgetCounts(key)
	}
}

// forgetCounts ends what is counted of a schedule. The caller holds s.mu.
func (s *Schedules) forgetCounts(key types.NamespacedName) {
	s.runs.DeletePartialMatch(prometheus.Labels{"namespace": key.Namespace, "schedule": key.Name})
}

// unmetSince returns when the oldest run was due of those since the last one that succeeded, or zero. runs are the
// newest first.
func unmetSince(runs []harvesterv1.ScheduledRun) (since time.Time) {
	for _, r := range runs {
		switch {
		case r.Result == harvesterv1.RunSucceeded:
			return since
		case r.Result == harvesterv1.RunSkipped && r.Reason == harvesterv1.SkippedSuspended:
		default:
			since = r.Time.Time
		}
	}
	return since
}

// endedRun names an entry of a status: a run that has ended, or several that made no backup for the same reason.
type endedRun struct {
	due    int64
	result harvesterv1.RunResult
	reason string
}

func countEnded(runs []harvesterv1.ScheduledRun) map[endedRun]int {
	counts := map[endedRun]int{}
	for _, r := range runs {
		if r.Result != harvesterv1.RunStarted && r.Result != harvesterv1.RunRetrying {
			counts[endedRun{r.Time.Unix(), r.Result, r.Reason}] += max(r.Count, 1)
		}
	}
	return counts
}
