package pull

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/extent"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/launcher/target"
)

// clumsy is a volume with a mistake.
type clumsy struct{ *served }

func (clumsy) Read(context.Context, extent.Extent, export.Scope, func(export.Chunk) error) error {
	panic("a mistake")
}

func (clumsy) Regions(context.Context, extent.Extent, func(export.Region) bool) error {
	panic("a mistake")
}

// A mistake in what serves a volume fails the backup. The launcher, and with it the guest, goes on.
func TestPanics_failTheBackup(t *testing.T) {
	t.Parallel()
	use := func(read func(v export.Volume) error) func(*testing.T, *bench, *Job) {
		return func(t *testing.T, b *bench, j *Job) {
			j.mu.Lock()
			j.volumes["root"] = clumsy{b.volumes["root"]}
			j.mu.Unlock()
			v, err := j.Open(t.Context(), "root")
			if err == nil {
				err = read(v)
			}
			if err == nil {
				t.Error("no error")
			}
		}
	}
	whole := extent.Extent{Length: 1 << 20}
	for name, serving := range map[string]func(t *testing.T, b *bench, j *Job){
		"read": use(func(v export.Volume) error {
			return v.Read(context.Background(), whole, export.Everything, func(export.Chunk) error { return nil })
		}),
		"map": use(func(v export.Volume) error {
			return v.Regions(context.Background(), whole, func(export.Region) bool { return true })
		}),
		"watch": nil,
		"close": func(_ *testing.T, b *bench, j *Job) {
			b.volumes["root"].closing = func() { panic("a mistake") }
			_ = j.Finish()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				var j *Job
				b.whenServing(&j, func(j *Job) {
					if serving != nil {
						serving(t, b, j)
					}
				})
				opened, looks := b.cfg.OpenTarget, 0
				b.cfg.OpenTarget = func(name string) (*target.Volume, error) {
					v, err := opened(name)
					v.Before = func(access string) error {
						if access != "free" || serving != nil {
							return nil
						}
						if looks++; looks == 5 {
							panic("a mistake")
						}
						return nil
					}
					return v, err
				}
				j = b.job()
				began := time.Now()
				j.Run()
				if got := j.Snapshot(); got.Failure != pb.Backup_HYPERVISOR_ERROR || !strings.Contains(got.Message, "internal error: a mistake") || time.Since(began) > time.Minute {
					t.Errorf("%v", got)
				}
				if b.guest.JobInfo.Active {
					t.Error("the job runs on")
				}
				b.endLife()
				b.freezer.Wait()
				synctest.Wait()
			})
		})
	}
}
