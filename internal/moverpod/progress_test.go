package moverpod

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/repository"
)

// Each write goes to every node that watches the objects, so an upload of a week writes as often as people look, and
// not once a second.
func TestProgress_isWrittenSeldom(t *testing.T) {
	t.Parallel()
	const disk = 1 << 40
	for name, c := range map[string]struct {
		took        time.Duration
		least, most int // writes
	}{
		"an hour":  {time.Hour, 360, 460}, // each 10 s, and each percent
		"a minute": {time.Minute, 55, 61}, // more than a percent a second
		"a moment": {1500 * time.Millisecond, 2, 3},
		"a day":    {24 * time.Hour, 8_540, 8_760}, // a day has 8,640 times 10 s
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				writes := 0
				var last time.Time
				var latest any
				p := &progress{
					follower: newFollower(nil, "pod-1", slog.New(slog.DiscardHandler), time.Second),
					log:      slog.New(slog.DiscardHandler),
					limits:   limits{}.withDefaults(),
					patch: func(_ context.Context, _ string, _, status map[string]any) (object, error) {
						if !last.IsZero() && time.Since(last) < time.Second {
							t.Errorf("two writes within %s", time.Since(last))
						}
						writes, last, latest = writes+1, time.Now(), status["progress"].(map[string]any)["bytesDone"]
						return object{phase: velerov2.PhaseInProgress}, nil
					},
				}
				stop := p.start(t.Context())
				began := time.Now()
				block := time.NewTicker(max(100*time.Millisecond, c.took/100_000))
				defer block.Stop()
				for at := began; ; at = <-block.C {
					done := min(at.Sub(began), c.took)
					p.set(disk, int64(float64(disk)*float64(done)/float64(c.took)))
					if done == c.took {
						break
					}
				}
				stop()
				last = time.Time{} // The last write does not wait.
				p.write(t.Context())
				if writes < c.least || writes > c.most || latest != int64(disk) {
					t.Errorf("%d writes in %s, want %d to %d; the last one says %v", writes, c.took, c.least, c.most,
						latest)
				}
			})
		})
	}
}

// Nothing is known before the plan, what is not read is done with the plan, and progress goes back only with another
// plan: that of a disk whose parent could not be used after all.
func TestProgress_followsThePlans(t *testing.T) {
	t.Parallel()
	r := &run{progress: &progress{}}
	plans := 0
	for _, step := range []struct {
		report repository.Progress
		want   velerov2.Progress
	}{
		{repository.Progress{TotalBytes: 100, PlannedBytes: 1}, velerov2.Progress{}},
		{repository.Progress{TotalBytes: 100, PlannedBytes: 40, Plans: 1}, velerov2.Progress{TotalBytes: 100, BytesDone: 60}},
		{
			repository.Progress{TotalBytes: 100, PlannedBytes: 40, ReadBytes: 30, Plans: 1},
			velerov2.Progress{TotalBytes: 100, BytesDone: 90},
		},
		{repository.Progress{TotalBytes: 100, PlannedBytes: 80, Plans: 2}, velerov2.Progress{TotalBytes: 100, BytesDone: 20}},
		{
			repository.Progress{TotalBytes: 100, PlannedBytes: 80, ReadBytes: 80, Plans: 2},
			velerov2.Progress{TotalBytes: 100, BytesDone: 100},
		},
	} {
		plans = r.noteBackup(&step.report, plans)
		if got := r.progress.current().moved; got != step.want {
			t.Errorf("after %+v: %+v, want %+v", step.report, got, step.want)
		}
	}
}

// The beginning of a wait and its end are written at once, whatever else changes meanwhile.
func TestProgress_writesANoteAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var written []time.Duration
		began := time.Now()
		p := &progress{
			follower: newFollower(nil, "pod-1", slog.New(slog.DiscardHandler), time.Second),
			log:      slog.New(slog.DiscardHandler),
			limits:   limits{}.withDefaults(),
			patch: func(context.Context, string, map[string]any, map[string]any) (object, error) {
				written = append(written, time.Since(began))
				return object{phase: velerov2.PhaseInProgress}, nil
			},
		}
		stop := p.start(t.Context())
		over := make(chan struct{})
		time.AfterFunc(time.Minute, func() { close(over) })
		for at, note := range map[time.Duration]string{
			30500 * time.Millisecond: "refused", 32500 * time.Millisecond: "timeout", 50500 * time.Millisecond: "",
		} {
			time.AfterFunc(at, func() { p.setNote(note) })
		}
		<-over
		stop()
		want := []time.Duration{31 * time.Second, 41 * time.Second, 51 * time.Second}
		if len(written) != len(want) || written[0] != want[0] || written[1] != want[1] || written[2] != want[2] {
			t.Errorf("written after %v, want %v", written, want)
		}
	})
}
