package repository

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
)

// A backup that is interrupted, or whose source fails, keeps what it has uploaded, even if no flush was due.
func TestBackup_keepsWhatItUploadedWhenInterrupted(t *testing.T) {
	t.Parallel()
	broken := errors.New("the source broke")
	for name, want := range map[string]error{"cancelled": context.Canceled, "source": broken} {
		for _, do := range []string{"full", "next"} {
			t.Run(name+"/"+do, func(t *testing.T) {
				t.Parallel()
				c := newCrashed(t)
				random := rand.New(rand.NewPCG(1, 5))
				for at := int64(0); at < 80*mib; at += 2 * mib {
					c.now.write(noise(random, mib), at)
				}
				r := c.open(t)
				before := indexed(t, r)
				j := c.job(t, do)
				j.Workers = 1 // so that what lies before the gate is stored when a read reaches the gate
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var uploaded atomic.Int64
				q := j.request(&uploaded)
				q.Disks[0].Reader = &gatedReader{Reader: q.Disks[0].Reader, gate: 70 * mib, reached: func(ctx context.Context) error {
					if errors.Is(want, broken) {
						return broken
					}
					cancel()
					<-ctx.Done()
					return ctx.Err()
				}}
				if _, err := r.Backup(ctx, q); !errors.Is(err, want) {
					t.Fatalf("%v, want %v", err, want)
				}
				refresh(t, r)
				c.check(t, r) // no additional restore point
				stored := indexed(t, r) - before
				put := c.site.stored.Load()
				o := j.do(t.Context(), r)
				if o.Error != "" {
					t.Fatal(o.Error)
				}
				put = c.site.stored.Load() - put
				refresh(t, r)
				missing := indexed(t, r) - before - stored
				t.Logf("%d bytes were kept, %d were missing; the storage took %d", stored, missing, put)
				if stored < 4*missing {
					t.Errorf("only %d bytes are kept, %d are missing", stored, missing)
				}
				if put > missing+missing/10+300*kib {
					t.Errorf("%d bytes were uploaded, where %d were missing", put, missing)
				}
				c.done(j)
				c.check(t, r)
			})
		}
	}
}

// gatedReader calls reached instead of a read at or behind the gate.
type gatedReader struct {
	Reader
	gate    int64
	reached func(context.Context) error
}

func (r *gatedReader) ReadAt(ctx context.Context, p []byte, offset int64) error {
	if offset >= r.gate {
		return r.reached(ctx)
	}
	return r.Reader.ReadAt(ctx, p, offset)
}
