package backupstoragelocation

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/location"
)

func TestDecide(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	bucket := location.Place{S3: &datamove.S3Access{}}
	every := func(d time.Duration) *velerov1.Duration { return &velerov1.Duration{Duration: d} }
	tried := func(ago, wrote time.Duration, failure string) *attempt {
		return &attempt{At: now.Add(-ago), WroteAt: now.Add(-wrote), Failure: failure}
	}
	available := velerov1.BackupStorageLocationStatus{Phase: velerov1.LocationAvailable, LastValidationTime: &metav1.Time{Time: now.Add(-time.Hour)}}
	refused := velerov1.BackupStorageLocationStatus{Phase: velerov1.LocationUnavailable, Message: "spec.x: no", LastValidationTime: &metav1.Time{Time: now}}
	shelf := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "shelf"}}
	for name, c := range map[string]struct {
		in         input
		every      *velerov1.Duration
		status     velerov1.BackupStorageLocationStatus
		phase      velerov1.BackupStorageLocationPhase
		says       string
		try, write bool
		after      time.Duration
		at         time.Time
		check      string
	}{
		"a new location":          {in: input{Place: bucket}, try: true, write: true},
		"it is being tried":       {in: input{Place: bucket, Running: true}},
		"a refusal":               {in: input{Refusal: "spec.x: no"}, phase: velerov1.LocationUnavailable, says: "spec.x: no", after: defaultFrequency, at: now},
		"a refusal that is shown": {in: input{Refusal: "spec.x: no"}, status: refused, phase: velerov1.LocationUnavailable, says: "spec.x: no", after: defaultFrequency, at: now},
		"a refusal, and a check is asked for": {
			in: input{Refusal: "spec.x: no"}, status: refused, check: "1", phase: velerov1.LocationUnavailable, says: "spec.x: no", after: defaultFrequency, at: now.Add(time.Second),
		},
		"a refusal, and the check is answered": {
			in: input{Refusal: "spec.x: no", Last: &attempt{Check: "1"}}, status: refused, check: "1", phase: velerov1.LocationUnavailable, says: "spec.x: no", after: defaultFrequency, at: now,
		},
		"a claim that was tried": {
			in: input{Last: tried(time.Minute, time.Minute, ""), Storage: datamove.Storage{Volume: shelf, OneNode: true}}, phase: velerov1.LocationAvailable,
			says: datamove.Storage{Volume: shelf, OneNode: true}.Remark(), after: directoryFrequency - time.Minute, at: now.Add(-time.Minute),
		},
		"it answered":             {in: input{Place: bucket, Last: tried(10*time.Second, 10*time.Second, "")}, phase: velerov1.LocationAvailable, after: 50 * time.Second, at: now.Add(-10 * time.Second)},
		"it did not":              {in: input{Place: bucket, Last: tried(10*time.Second, time.Hour, "x")}, status: available, phase: velerov1.LocationUnavailable, says: "x", after: 50 * time.Second, at: now.Add(-10 * time.Second)},
		"it is due":               {in: input{Place: bucket, Last: tried(time.Minute, time.Minute, "")}, phase: velerov1.LocationAvailable, try: true, at: now.Add(-time.Minute)},
		"it is due for writing":   {in: input{Place: bucket, Last: tried(time.Minute, writeEvery, "")}, phase: velerov1.LocationAvailable, try: true, write: true, at: now.Add(-time.Minute)},
		"after a failure":         {in: input{Place: bucket, Last: tried(time.Minute, time.Minute, "x")}, phase: velerov1.LocationUnavailable, says: "x", try: true, write: true, at: now.Add(-time.Minute)},
		"its own frequency":       {in: input{Place: bucket, Last: tried(time.Minute, time.Minute, "")}, every: every(time.Hour), phase: velerov1.LocationAvailable, after: 59 * time.Minute, at: now.Add(-time.Minute)},
		"never, and it is new":    {in: input{Place: bucket}, every: every(0), try: true, write: true},
		"never, and it was tried": {in: input{Place: bucket, Last: tried(time.Hour, time.Hour, "")}, every: every(0), phase: velerov1.LocationAvailable, at: now.Add(-time.Hour)},
		"a check is asked for": {
			in: input{Place: bucket, Last: &attempt{At: now.Add(-time.Second), WroteAt: now, Check: "1"}}, check: "2",
			phase: velerov1.LocationAvailable, try: true, write: true, at: now.Add(-time.Second),
		},
		"the check was made": {
			in: input{Place: bucket, Last: &attempt{At: now.Add(-10 * time.Second), Check: "2"}}, check: "2",
			phase: velerov1.LocationAvailable, after: 50 * time.Second, at: now.Add(-10 * time.Second),
		},
		"never, but a check is asked for": {
			in: input{Place: bucket, Last: tried(time.Hour, time.Hour, "")}, every: every(0), check: "1",
			phase: velerov1.LocationAvailable, try: true, write: true, at: now.Add(-time.Hour),
		},
		"never, after a restart": {in: input{Place: bucket}, every: every(0), status: available, phase: velerov1.LocationAvailable, at: now.Add(-time.Hour)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.in.Now, c.in.Location = now, &velerov1.BackupStorageLocation{Status: c.status}
			c.in.Location.Spec.ValidationFrequency = c.every
			if c.check != "" {
				c.in.Location.Annotations = map[string]string{location.AnnotationCheck: c.check}
			}
			d := decide(&c.in)
			if d.Status.Phase != c.phase || d.Status.Message != c.says || d.Try != c.try || d.Write != c.write || d.After != c.after {
				t.Errorf("%+v", d)
			}
			if got := d.Status.LastValidationTime; (got == nil) != c.at.IsZero() || got != nil && !got.Time.Equal(c.at) {
				t.Errorf("tried %v, want %s", got, c.at)
			}
		})
	}
}
