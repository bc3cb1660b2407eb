package repository

import (
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// death describes how a process dies, and what it leaves behind.
type death struct {
	// do is a job of crashed.job that dies at a failpoint when it passes there for the pass-th time; 0: the first time.
	do   string
	pass int64
	// done says that the job has achieved what it was for. lease (or a session manifest) and lock say what is left.
	done, lease, lock bool
}

// deaths holds the deaths at each failpoint of the product.
var deaths = map[string][]death{
	"lease put":      {{do: "read"}},
	"lease stored":   {{do: "read", lease: true}},
	"session put":    {{do: "next"}, {do: "full"}, {do: "asleep", pass: 2, lease: true}},
	"session stored": {{do: "next", lease: true}, {do: "full", lease: true}, {do: "asleep", pass: 2, lease: true}},
	// The process that dies is not the one whose session manifest was left behind.
	"stale lease's end put":   {{do: "maintain after another", lease: true, lock: true}},
	"flush due":               {{do: "gated", lease: true}},
	"flush stored":            {{do: "gated", lease: true}},
	"data put":                {{do: "next", lease: true}, {do: "full", lease: true}},
	"data stored":             {{do: "next", lease: true}, {do: "full", lease: true}},
	"definition put":          {{do: "next", lease: true}},
	"description put":         {{do: "next", lease: true}},
	"directory put":           {{do: "next", lease: true}},
	"restore point put":       {{do: "next", lease: true}, {do: "full", lease: true}},
	"lease's end put":         {{do: "read", lease: true}},
	"lease's end stored":      {{do: "read", done: true}},
	"restore point stored":    {{do: "next", done: true}, {do: "full", done: true}},
	"restore point recorded":  {{do: "next", done: true}},
	"deletion announced":      {{do: "remove"}},
	"record removed":          {{do: "remove"}},
	"deletion put":            {{do: "remove"}},
	"deletion stored":         {{do: "remove", done: true}},
	"pin put":                 {{do: "pin"}},
	"pin stored":              {{do: "pin", done: true}},
	"lock put":                {{do: "maintain"}, {do: "hold", pass: 2, lock: true}},
	"lock stored":             {{do: "maintain", lock: true}, {do: "hold", pass: 2, lock: true}},
	"merged manifests put":    {{do: "quick", lock: true}},
	"merged manifests stored": {{do: "quick", lock: true}},
	"lock taken":              {{do: "maintain", lock: true}},
	"owner put":               {{do: "maintain", lock: true}},
	"owner stored":            {{do: "maintain", lock: true}},
	"garbage marked":          {{do: "maintain", lock: true}},
	"maintained":              {{do: "maintain", lock: true}, {do: "quick", lock: true}},
	"lock's end put":          {{do: "maintain", lock: true}},
	"lock's end stored":       {{do: "maintain"}},
}

// Every failpoint of the product has a death.
func TestFailpoints_haveADeathEach(t *testing.T) {
	t.Parallel()
	call := regexp.MustCompile(`\bReached\("([^"]*)"\)`)
	var found []string
	err := filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range call.FindAllSubmatch(text, -1) {
			found = append(found, string(m[1]))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(found)
	if diff := cmp.Diff(found, slices.Sorted(slices.Values(append(slices.Collect(maps.Keys(deaths)), ownFilesSteps...)))); diff != "" {
		t.Errorf("failpoints and deaths (-source +test):\n%s", diff)
	}
}

// A process that is killed at any step leaves what was complete and nothing else, and the next one goes on.
func TestKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	template := newCrashed(t)
	for step, all := range deaths {
		for _, d := range all {
			t.Run(step+"/"+d.do, func(t *testing.T) {
				t.Parallel()
				c := template.copy(t)
				j := c.job(t, d.do)
				j.Failpoint, j.Pass = step, max(1, d.pass)
				if o := j.run(t, c.site, 0); !o.Killed {
					t.Fatalf("it was not reached: %+v", o)
				}
				c.recovers(t, j, &d)
			})
		}
	}
}

// The same holds between any two blobs that are written or deleted, including kopia's own.
func TestKilledAfterEveryBlob(t *testing.T) {
	t.Parallel()
	template := newCrashed(t)
	seed := setting(t, "VARVE_TEST_SEED", time.Now().UnixNano())
	t.Logf("again: VARVE_TEST_SEED=%d", seed)
	random := rand.New(rand.NewPCG(uint64(seed), 2))
	for _, do := range []string{"next", "full", "remove", "pin", "maintain", "quick", "maintain with others"} {
		whole := template.copy(t)
		o := whole.job(t, do).run(t, whole.site, 0)
		if o.Killed || o.Error != "" || o.Changes == 0 {
			t.Fatalf("%s: %+v", do, o)
		}
		after := random.Perm(int(o.Changes))
		if !soak {
			after = after[:1]
		}
		for _, n := range after {
			t.Run(fmt.Sprintf("%s/%d of %d", do, n+1, o.Changes), func(t *testing.T) {
				t.Parallel()
				c := template.copy(t)
				j := c.job(t, do)
				j.Dies = int64(n) + 1
				if o := j.run(t, c.site, 0); !o.Killed { // Logs are blobs, too, and their number varies.
					t.Logf("it ended before: %+v", o)
				}
				c.recovers(t, j, nil)
			})
		}
	}
}

// Consecutive backups that are killed at any time store more and more of the disk. The one that ends stores only what is missing.
func TestKilledAtAnyTime(t *testing.T) {
	t.Parallel()
	seed := setting(t, "VARVE_TEST_SEED", time.Now().UnixNano())
	t.Logf("again, but for the time that things take: VARVE_TEST_SEED=%d", seed)
	random := rand.New(rand.NewPCG(uint64(seed), 3))
	kills := 3
	if soak {
		kills = 30
	}
	c := newCrashed(t)
	r := c.open(t)
	for i := range kills {
		c.write(uint64(seed) + uint64(i))
		j := c.backUp(int64(10_000 + i))
		j.Slow, j.Every = 5*time.Millisecond, 50*time.Millisecond
		j.run(t, c.site, time.Duration(1+random.Int64N(int64(time.Second))))
		refresh(t, r)
		c.settle(t, r, j)
		c.check(t, r)
	}
	c.recovers(t, c.backUp(20_000), nil)
}

// What a backup stored up to its last flush is not stored again by the next one, be it full or incremental.
func TestResumeMovesOnlyWhatIsMissing(t *testing.T) {
	t.Parallel()
	for _, do := range []string{"full", "next"} {
		t.Run(do, func(t *testing.T) {
			t.Parallel()
			c := newCrashed(t)
			random := rand.New(rand.NewPCG(1, 4))
			for at := int64(0); at < 80*mib; at += 2 * mib { // on both sides of a region's end
				c.now.write(noise(random, mib), at)
			}
			r := c.open(t)
			before := indexed(t, r)
			j := c.job(t, do)
			j.Workers, j.Every, j.Gate, j.Failpoint, j.Pass = 1, 20*time.Millisecond, 70*mib, "flush stored", 2
			if o := j.run(t, c.site, 0); !o.Killed {
				t.Fatalf("%+v", o)
			}
			refresh(t, r)
			stored := indexed(t, r) - before
			put := c.site.stored.Load()
			j = c.job(t, do)
			o := j.do(t.Context(), r)
			if o.Error != "" {
				t.Fatal(o.Error)
			}
			put = c.site.stored.Load() - put
			refresh(t, r)
			missing := indexed(t, r) - before - stored
			t.Logf("%d bytes were stored before the kill, %d after it; Progress says %d, the storage took %d", stored, missing, o.Uploaded, put)
			if stored < 4*missing {
				t.Errorf("only %d bytes are found after the kill, %d are missing", stored, missing)
			}
			for name, n := range map[string]int64{"Progress": o.Uploaded, "the storage": put} {
				if n < missing || n > missing+missing/10+300*kib {
					t.Errorf("%s: %d bytes, where %d were missing", name, n, missing)
				}
			}
			c.done(j)
			c.check(t, r)
		})
	}
}
