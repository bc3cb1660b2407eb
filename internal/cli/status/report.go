package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/machinebackup"
	"github.com/varvebackup/varve/internal/cli/schedule"
)

// NoSchedule is the state of a machine that has backups and no schedule.
const NoSchedule schedule.State = "NoSchedule"

// byWeight are the states of which the last one counts if a machine has several schedules.
var byWeight = []schedule.State{
	schedule.Deleting, schedule.Suspended, schedule.New, schedule.OK, schedule.Running, schedule.Overdue,
	schedule.Failed,
}

// report is what `varve status` shows. Its json tags are an interface for programs.
type report struct {
	Items []machine `json:"items"`
	// Locations have the restore points, those of the storage's snapshots aside.
	Locations []place `json:"locations"`
	Total     total   `json:"total"`
}

// machine is a line of the report.
type machine struct {
	Namespace string         `json:"namespace"`
	Machine   string         `json:"machine"`
	State     schedule.State `json:"state"`
	// NeedsAttention says whether the machine lacks a restore point that it should have.
	NeedsAttention bool     `json:"needsAttention"`
	Message        string   `json:"message,omitempty"`
	Schedules      []string `json:"schedules,omitempty"`
	// LastGood is the newest restore point, and RestorePoints how many there are.
	LastGood      *point `json:"lastGood,omitempty"`
	RestorePoints int    `json:"restorePoints"`
	// Growth is how many bytes are new or changed a day, by the backups of the last week, before they are compressed. It
	// is nil if too few backups tell.
	Growth *int64 `json:"growthBytesPerDay,omitempty"`
	// MadeAgain says that the machine was deleted and made again after its last good backup.
	MadeAgain bool `json:"madeAgain,omitempty"`
	// Next is when the next backup is due.
	Next *time.Time `json:"nextScheduleTime,omitempty"`

	schedules []*harvesterv1.ScheduleVMBackup
	backups   []*harvesterv1.VirtualMachineBackup
	exists    bool
	uid       types.UID
}

// point is a restore point: a backup that can be restored.
type point struct {
	Backup string `json:"backup"`
	// Time is when the backup was complete.
	Time         time.Time `json:"time"`
	Bytes        int64     `json:"bytes"`
	ChangedBytes int64     `json:"changedBytes"`
}

// total counts machines by state, and restore points. Unprotected are machines with neither a schedule nor a backup.
type total struct {
	Machines       int                    `json:"machines"`
	NeedAttention  int                    `json:"needAttention"`
	ByState        map[schedule.State]int `json:"byState"`
	RestorePoints  int                    `json:"restorePoints"`
	Growth         *int64                 `json:"growthBytesPerDay,omitempty"`
	Unprotected    int                    `json:"unprotected"`
	unprotectedFew []string
}

// fewUnprotected is how many machines without a schedule are named.
const fewUnprotected = 5

// newReport judges all machines, those first that need attention.
func newReport(seen *objects, now time.Time) *report {
	machines := groupByMachine(seen)
	places := map[harvesterv1.LocationReference]*place{}
	r := &report{Items: []machine{}, Total: total{ByState: map[schedule.State]int{}}}
	for _, m := range machines {
		if len(m.schedules) == 0 && len(m.backups) == 0 {
			r.Total.Unprotected++
			r.Total.unprotectedFew = append(r.Total.unprotectedFew, m.Namespace+"/"+m.Machine)
			continue
		}
		m.judge(now)
		m.Growth = addPlaces(places, m.goodBackups(), now)
		r.Total.Growth = addGrowth(r.Total.Growth, m.Growth)
		r.Items = append(r.Items, *m)
		r.Total.Machines++
		r.Total.ByState[m.State]++
		r.Total.RestorePoints += m.RestorePoints
		if m.NeedsAttention {
			r.Total.NeedAttention++
		}
	}
	r.Locations = sortPlaces(places)
	slices.Sort(r.Total.unprotectedFew)
	slices.SortFunc(r.Items, func(a, b machine) int {
		if a.NeedsAttention != b.NeedsAttention {
			if a.NeedsAttention {
				return -1
			}
			return 1
		}
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Machine, b.Machine))
	})
	return r
}

// groupByMachine returns the machines that exist, that have a schedule, or that have a backup.
func groupByMachine(seen *objects) map[client.ObjectKey]*machine {
	all := map[client.ObjectKey]*machine{}
	of := func(namespace, name string) *machine {
		key := client.ObjectKey{Namespace: namespace, Name: name}
		if all[key] == nil {
			all[key] = &machine{Namespace: namespace, Machine: name}
		}
		return all[key]
	}
	for i := range seen.machines.Items {
		m := of(seen.machines.Items[i].Namespace, seen.machines.Items[i].Name)
		m.exists, m.uid = true, seen.machines.Items[i].UID
	}
	for i := range seen.schedules.Items {
		s := &seen.schedules.Items[i]
		m := of(s.Namespace, s.Spec.VMBackupSpec.Source.Name)
		m.schedules = append(m.schedules, s)
	}
	for i := range seen.backups.Items {
		b := &seen.backups.Items[i]
		m := of(b.Namespace, b.Spec.Source.Name)
		m.backups = append(m.backups, b)
	}
	return all
}

// judge fills in what is shown of a machine.
func (m *machine) judge(now time.Time) {
	slices.SortFunc(m.backups,
		func(a, b *harvesterv1.VirtualMachineBackup) int { return completionTime(b).Compare(completionTime(a)) })
	good := m.goodBackups()
	if m.RestorePoints = len(good); len(good) > 0 {
		m.LastGood = newPoint(good[0])
		of := ptr.Deref(good[0].Status.SourceUID, "")
		m.MadeAgain = m.exists && of != "" && of != m.uid
	}
	m.State, m.Message = m.judgeBackups()
	if len(m.schedules) > 0 {
		m.State, m.Message = m.judgeSchedules(now)
	}
	if m.MadeAgain {
		m.Message = strings.TrimSuffix(madeAgain+"; "+m.Message, "; ")
		if m.State == schedule.OK || m.State == schedule.Running || m.State == schedule.New {
			m.State = schedule.Overdue
		}
	}
	m.NeedsAttention = m.State.NeedsAttention()
}

// madeAgain is the message for a machine that was deleted and made again after its last good backup.
const madeAgain = "the machine was made again since: its last good backup is of the one before"

// goodBackups returns the backups that can be restored. They are in the order of the backups.
func (m *machine) goodBackups() []*harvesterv1.VirtualMachineBackup {
	return slices.DeleteFunc(slices.Clone(m.backups), func(b *harvesterv1.VirtualMachineBackup) bool { return !isGood(b) })
}

// judgeSchedules returns the worst state of a machine's schedules, and what there is to say of each.
func (m *machine) judgeSchedules(now time.Time) (worst schedule.State, message string) {
	slices.SortFunc(m.schedules, func(a, b *harvesterv1.ScheduleVMBackup) int {
		return strings.Compare(a.Name,
			b.Name)
	})
	var messages []string
	for _, s := range m.schedules {
		verdict := m.judgeSchedule(s, now)
		m.Schedules = append(m.Schedules, s.Name)
		if worst == "" || slices.Index(byWeight, verdict.State) > slices.Index(byWeight, worst) {
			worst = verdict.State
		}
		if text := verdict.Message; len(m.schedules) > 1 && verdict.State != schedule.OK {
			messages = append(messages, strings.TrimSuffix(s.Name+": "+string(verdict.State)+", "+text, ", "))
		} else if text != "" {
			messages = append(messages, text)
		}
		next := s.Status.NextScheduleTime
		if schedule.NextRun(s, now) != "" && next.After(now) && (m.Next == nil || next.Time.Before(*m.Next)) {
			m.Next = ptr.To(next.UTC())
		}
	}
	return worst, strings.Join(messages, "; ")
}

// judgeSchedule judges a schedule together with its backups: a backup that has been deleted since does not count.
func (m *machine) judgeSchedule(s *harvesterv1.ScheduleVMBackup, now time.Time) schedule.Verdict {
	verdict := schedule.Judge(s, now)
	if verdict.State != schedule.OK && verdict.State != schedule.Running {
		return verdict
	}
	i := slices.IndexFunc(s.Status.Runs,
		func(r harvesterv1.ScheduledRun) bool { return r.Result == harvesterv1.RunSucceeded })
	if i < 0 {
		return verdict // the first one runs
	}
	made := s.Status.Runs[i].Backup
	if !slices.ContainsFunc(m.backups, func(b *harvesterv1.VirtualMachineBackup) bool {
		return b.Name == made &&
			isGood(b)
	}) {
		return schedule.Verdict{State: schedule.Overdue, Message: "backup " + made + " of the latest run is not " +
			"there any more"}
	}
	return verdict
}

// judgeBackups judges a machine without a schedule by the backup that was made last.
func (m *machine) judgeBackups() (schedule.State, string) {
	var last *harvesterv1.VirtualMachineBackup
	for _, b := range m.backups {
		ended := b.IsReady() || b.HasFailed()
		if ended && (last == nil || b.CreationTimestamp.After(last.CreationTimestamp.Time)) {
			last = b
		}
	}
	switch {
	case !m.exists:
		return NoSchedule, "the machine does not exist any more"
	case last != nil && last.HasFailed():
		return schedule.Failed, "backup " + last.Name + " failed: " + ptr.Deref(last.Status.Error.Message, "")
	}
	return NoSchedule, ""
}

// isGood says whether a backup can be restored, now and later.
func isGood(b *harvesterv1.VirtualMachineBackup) bool {
	return b.IsReady() && b.DeletionTimestamp == nil
}

// completionTime returns when a backup was complete, or else when it began.
func completionTime(b *harvesterv1.VirtualMachineBackup) time.Time {
	if t := b.Status.CreationTime; t != nil {
		return t.Time
	}
	return b.CreationTimestamp.Time
}

func newPoint(b *harvesterv1.VirtualMachineBackup) *point {
	p := &point{Backup: b.Name, Time: completionTime(b).UTC()}
	p.Bytes, p.ChangedBytes = machinebackup.StoredBytes(b)
	return p
}

// describe says the total in a line: "3 machines in namespace app: 1 Failed, 2 OK; 12 restore points".
func (t *total) describe(where string) string {
	text := human.Count(t.Machines, "machine") + " with schedules or backups in " + where
	var counts []string
	for _, state := range append([]schedule.State{NoSchedule}, byWeight...) {
		if n := t.ByState[state]; n > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", n, state))
		}
	}
	slices.Reverse(counts)
	if len(counts) > 0 {
		text += ": " + strings.Join(counts, ", ")
	}
	text += "; " + human.Count(t.RestorePoints, "restore point")
	if t.Growth != nil {
		text += ", " + describeGrowth(t.Growth) + " new or changed"
	}
	if t.Unprotected == 0 {
		return text
	}
	names := t.unprotectedFew[:min(len(t.unprotectedFew), fewUnprotected)]
	if t.Unprotected > len(names) {
		names = append(slices.Clone(names), fmt.Sprintf("and %d more", t.Unprotected-len(names)))
	}
	return text + "; without either: " + strings.Join(names, ", ")
}
