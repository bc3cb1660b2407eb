//go:build peers

package moverpod

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/repositoryaccess"
	"github.com/varvebackup/varve/test/s3"
	"github.com/varvebackup/varve/test/verdict"
)

const prefix = "plugins/varve/app/"

// bucket is a repository in a bucket behind faults.
type bucket struct {
	*site

	server *s3.Server
	faults *s3.Faults
	// sent and fetched are the bytes of packs with data.
	sent, fetched atomic.Int64
}

func newBucket(t *testing.T, tls bool) *bucket {
	t.Helper()
	server := s3.Start(t, s3.Options{TLS: tls})
	b := &bucket{server: server, faults: s3.StartFaults(t, server, 0)}
	e := b.faults.Endpoint
	access := datamove.Access{Password: testPassword, S3: &datamove.S3Access{
		Endpoint: e.Address, Bucket: e.Bucket, Prefix: prefix, Region: e.Region, PlainHTTP: !tls, RootCA: e.Authority, AccessKey: e.AccessKey, SecretKey: e.SecretKey,
	}}
	b.site = makeSite(t, t.TempDir(), repositoryaccess.Locate(access), access)
	return b
}

// set replaces the faults. What moves is counted in any case.
func (b *bucket) set(rules ...s3.Rule) {
	b.faults.Set(append(rules, s3.Rule{Key: prefix + "p", Fault: b.count})...)
}

func (b *bucket) count(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if r.Method == http.MethodPut {
		b.sent.Add(r.ContentLength)
	}
	next.ServeHTTP(countingWriter{w, &b.fetched}, r)
}

// throttle takes the bytes of all requests at 50 MiB a second, and counts those of a request that has come as a whole:
// not what a client that is gone has begun to send.
func (b *bucket) throttle() s3.Fault {
	limiter := rate.NewLimiter(rate.Limit(50*mib), int(mib))
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		var body bytes.Buffer
		for {
			n, err := io.CopyN(&body, r.Body, mib)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil || limiter.WaitN(r.Context(), int(n)) != nil {
				panic(http.ErrAbortHandler)
			}
		}
		r.Body = io.NopCloser(&body)
		b.count(w, r, next)
	}
}

type countingWriter struct {
	http.ResponseWriter

	bytes *atomic.Int64
}

func (w countingWriter) Write(p []byte) (int, error) {
	w.bytes.Add(int64(len(p)))
	return w.ResponseWriter.Write(p)
}

// hang answers nothing for as long as the client waits.
func hang(_ http.ResponseWriter, r *http.Request, _ http.Handler) {
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
	panic(http.ErrAbortHandler)
}

// waitFor waits until something holds.
func waitFor(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited for %s", what)
		}
	}
}

// wantReport is what a mover must have left.
func (p *pod) wantReport(t *testing.T, want datamove.Outcome) datamove.Report {
	t.Helper()
	report, ok := p.api.report(t)
	if !ok || report.Outcome != want {
		t.Fatalf("report %+v, want %s\n%s", report, want, p.output)
	}
	return report
}

// A mover that is killed goes on when it is started again: one restore point, the same bytes, and not all of them twice.
func TestKilledMover_goesOn(t *testing.T) {
	t.Parallel()
	b := newBucket(t, true)
	device := filepath.Join(t.TempDir(), "device")
	content := writeSparse(t, device, 192*mib, map[int64][]byte{0: noise(192*mib, 1)})
	up := b.newPod(t, newUpload(block), device)
	up.limits.flush = 200 * time.Millisecond
	var indexed atomic.Int64 // what was sent before the latest index that is stored
	noteIndex := func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		sent := b.sent.Load()
		next.ServeHTTP(w, r)
		indexed.Store(sent)
	}
	b.set(s3.Rule{Method: http.MethodPut, Key: prefix + "p", Fault: b.throttle()},
		s3.Rule{Method: http.MethodPut, Key: prefix + "xn", Fault: noteIndex})
	first := up.startChild(t)
	waitFor(t, "an index of half of the data", func() bool { return indexed.Load() >= 96*mib })
	first.kill()
	if report, ok := up.api.report(t); ok {
		t.Fatalf("a mover that was killed has reported %+v", report)
	}
	before := b.sent.Load()
	b.set()
	if code := up.startChild(t).wait(t, patience); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	report := up.wantReport(t, datamove.Succeeded)
	if again := b.sent.Load() - before; again > 140*mib || report.TotalBytes != 192*mib || report.IncrementalBytes != 192*mib {
		t.Errorf("%d MiB before the death, %d MiB after it; %+v", before/mib, again/mib, report)
	}
	if points := b.points(t); len(points) != 1 {
		verdict.Errorf(t, "%d restore points", len(points))
	}
	b.restoreKilled(t, report.SnapshotID, content)
}

// restoreKilled restores a disk of three regions with a death behind the first one.
func (b *bucket) restoreKilled(t *testing.T, snapshotID string, content []byte) {
	t.Helper()
	volume := t.TempDir()
	down := b.newPod(t, newDownload(filesystem, snapshotID), volume)
	down.Job.Parallel = 1
	b.fetched.Store(0)
	// The journal is written at most every 5 seconds, when a region is finished.
	b.set(s3.Rule{Method: http.MethodGet, Key: prefix + "p", Times: 1, Fault: s3.Delay(6 * time.Second)},
		s3.Rule{Method: http.MethodGet, Key: prefix + "p", Match: func(*http.Request) bool { return b.fetched.Load() > 100*mib }, Fault: hang})
	first := down.startChild(t)
	waitFor(t, "a hanging request", func() bool { return b.faults.Fired(1) > 0 })
	first.kill()
	if _, err := os.Stat(filepath.Join(volume, datamove.ImageFile+".varve-restore")); err != nil {
		t.Fatal(err)
	}
	b.fetched.Store(0)
	b.set()
	if code := down.startChild(t).wait(t, patience); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	down.wantReport(t, datamove.Succeeded)
	if again := b.fetched.Load(); again > 140*mib {
		t.Errorf("%d MiB were fetched again", again/mib)
	}
	wantContent(t, filepath.Join(volume, datamove.ImageFile), content)
	if left, err := os.ReadDir(volume); err != nil || len(left) != 1 {
		t.Errorf("the volume has %v, %v", left, err)
	}
}

// A cancellation ends a mover within 10 seconds, whichever request the storage does not answer.
func TestCancel_endsAMoverWhoseStorageHangs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		download bool
		rule     s3.Rule
	}{
		"opening":                 {false, s3.Rule{Key: prefix + "kopia.repository"}},
		"the index":               {false, s3.Rule{Method: http.MethodGet, Match: func(r *http.Request) bool { return strings.Contains(r.URL.RawQuery, "xn") }}},
		"storing data":            {false, s3.Rule{Method: http.MethodPut, Key: prefix + "p"}},
		"storing the index":       {false, s3.Rule{Method: http.MethodPut, Key: prefix + "xn"}},
		"publishing":              {false, s3.Rule{Method: http.MethodPut, Key: prefix + "xn", Skip: 2}},
		"everything, storing":     {false, s3.Rule{}},
		"taking a lease":          {true, s3.Rule{Method: http.MethodPut}},
		"reading data":            {true, s3.Rule{Method: http.MethodGet, Key: prefix + "p"}},
		"everything, downloading": {true, s3.Rule{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBucket(t, false)
			device := newDevice(t, 32*mib)
			job := newUpload(block)
			if c.download {
				job = newDownload(block, b.upload(t, block, device).SnapshotID)
			}
			p := b.newPod(t, job, device)
			c.rule.Fault = hang
			b.set(c.rule)
			mover := p.startChild(t)
			waitFor(t, "a request that hangs", func() bool { return b.faults.Fired(0) > 0 })
			time.Sleep(200 * time.Millisecond)
			p.api.cancel()
			began := time.Now()
			if code := mover.wait(t, patience); code != 0 {
				t.Errorf("exit code %d", code)
			}
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("it took %s", took)
			}
			p.wantReport(t, datamove.Canceled)
		})
	}
}

// A storage that is away is waited for.
func TestStorage_downAndUp(t *testing.T) {
	t.Parallel()
	b := newBucket(t, false)
	p := b.newPod(t, newUpload(block), newDevice(t, 8*mib))
	b.server.Kill(t)
	mover := p.startChild(t)
	p.waitForNote(t, "Connection closed by foreign host")
	b.server.Restart(t)
	if code := mover.wait(t, patience); code != 0 {
		t.Errorf("exit code %d", code)
	}
	p.wantReport(t, datamove.Succeeded)
}

// What a bucket refuses for good is reported.
func TestStorage_thatRefuses(t *testing.T) {
	t.Parallel()
	b := newBucket(t, true)
	device := newDevice(t, 8*mib)
	with := func(edit func(*site)) *site {
		s, a := *b.site, *b.access.S3
		s.access.S3 = &a
		edit(&s)
		return &s
	}
	for name, c := range map[string]struct {
		site *site
		text string
	}{
		"wrong key": {
			with(func(s *site) { s.access.S3.SecretKey = "another-secret-key" }),
			"refuses its credentials",
		},
		"wrong password": {with(func(s *site) { s.access.Password = "another password" }), "put it into the Secret"},
		"no bucket":      {with(func(s *site) { s.access.S3.Bucket = "absent" }), "no such bucket"},
		"no repository":  {with(func(s *site) { s.access.S3.Prefix = "plugins/varve/other/" }), "no repository is in"},
		"another one":    {with(func(s *site) { s.access.UniqueID = strings.Repeat("0", 64) }), "somebody has replaced it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.site.newPod(t, newUpload(block), device).fails(t, c.text)
		})
	}
}

// A full store is reported. This is what versitygw answers, and MinIO with another code.
func TestStorage_full(t *testing.T) {
	t.Parallel()
	b := newBucket(t, false)
	b.set(s3.Rule{Method: http.MethodPut, Key: prefix + "p", Fault: func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(http.StatusInsufficientStorage)
		fmt.Fprint(w, `<?xml version="1.0"?><Error><Code>InsufficientStorage</Code><Message>No space left on device.</Message></Error>`)
	}})
	b.newPod(t, newUpload(block), newDevice(t, 8*mib)).fails(t, "takes no more data: make room there")
	b.set()
	b.newPod(t, newUpload(block), newDevice(t, 8*mib)).run(t, datamove.Succeeded)
}

// A pod that is deleted is told so first. What it has stored is not stored again, also if the storage takes half of the time that there is.
func TestInterruption_keepsWhatWasStored(t *testing.T) {
	t.Parallel()
	b := newBucket(t, false)
	p := b.newPod(t, newUpload(block), newDevice(t, 192*mib))
	p.limits.interrupted = time.Minute
	slow := func(by time.Duration) {
		b.set(s3.Rule{Method: http.MethodPut, Key: prefix + "p", Fault: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			b.sent.Add(r.ContentLength)
			time.Sleep(by)
			next.ServeHTTP(w, r)
		}})
	}
	slow(300 * time.Millisecond)
	mover := p.startChild(t)
	waitFor(t, "some data", func() bool { return b.sent.Load() > 40*mib })
	slow(4 * time.Second)
	if err := mover.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := mover.wait(t, 2*time.Minute); code != 1 {
		t.Errorf("exit code %d", code)
	}
	if report, ok := p.api.report(t); ok {
		t.Errorf("%+v", report)
	}
	before := b.sent.Load()
	b.set()
	if code := p.startChild(t).wait(t, patience); code != 0 {
		t.Errorf("exit code %d", code)
	}
	p.wantReport(t, datamove.Succeeded)
	if again := b.sent.Load() - before; again > 76*mib {
		t.Errorf("%d MiB before, %d MiB after it", before/mib, again/mib)
	}
	if points, err := b.open(t).ListSelected(t.Context(), repository.Filter{Labels: map[string]string{datamove.LabelUploadName: "b1-x"}}); err != nil || len(points) != 1 {
		verdict.JudgeErrorf(t, err == nil, "%d restore points, %v", len(points), err)
	}
}
