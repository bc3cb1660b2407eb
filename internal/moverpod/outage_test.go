package moverpod

import (
	"context"
	"encoding/json"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kopia/kopia/repo/blob"
	kopiadir "github.com/kopia/kopia/repo/blob/filesystem"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/test/wait"
)

// outages holds the outages of storages, by their directories.
var outages sync.Map

// registerOutages makes directories that have an outage refuse requests as a server does that is down. Everything
// above the storage is the real thing.
func registerOutages() {
	storage.Register()
	blob.AddSupportedStorage("filesystem", kopiadir.Options{},
		func(ctx context.Context, o *kopiadir.Options, create bool) (blob.Storage, error) {
			out, ok := outages.Load(o.Path)
			if ok {
				if err := out.(*outage).refuse("open", ""); err != nil {
					return nil, err
				}
			}
			st, err := storage.NewDirectory(ctx, o, create)
			if err == nil && ok {
				st = &unreliable{st, out.(*outage)}
				out.(*outage).count(1)
			}
			if err != nil {
				return nil, err
			}
			return storage.NewGuard(st), nil
		})
}

// outage says when a storage is down.
type outage struct {
	mu sync.Mutex
	// begins says whether a request finds the storage down first, and from then on every one does.
	begins  func(request string, id blob.ID) bool
	down    bool
	refused int
	// opened counts the connections to the storage.
	opened int
	// err is what requests end with; nil: the connection is refused.
	err error
}

func (o *outage) refuse(request string, id blob.ID) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.down && o.begins != nil && o.begins(request, id) {
		o.down, o.begins = true, nil
	}
	switch {
	case !o.down:
		return nil
	case o.err != nil:
		return o.err
	}
	o.refused++
	return &url.Error{
		Op: request, URL: "https://s3.lan/backups",
		Err: &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED},
	}
}

func (o *outage) count(opened int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.opened += opened
}

// waitUnused waits for work that was abandoned.
func (o *outage) waitUnused(t *testing.T) {
	t.Helper()
	wait.Until(t, time.Minute, "the end of the work", func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.opened == 0
	})
}

// end ends the outage, and returns how many requests were refused.
func (o *outage) end() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.down, o.begins = false, nil
	return o.refused
}

// atRequest returns what begins an outage at the nth request of a kind for a blob whose name begins with prefix.
func atRequest(n int, request, prefix string) func(string, blob.ID) bool {
	return func(r string, id blob.ID) bool {
		if r == request && strings.HasPrefix(string(id), prefix) {
			n--
		}
		return n <= 0
	}
}

// unreliable is a storage with outages.
type unreliable struct {
	blob.Storage

	outage *outage
}

func (s *unreliable) GetBlob(ctx context.Context, id blob.ID, offset, length int64, out blob.OutputBuffer) error {
	if err := s.outage.refuse("get", id); err != nil {
		return err
	}
	return s.Storage.GetBlob(ctx, id, offset, length, out)
}

func (s *unreliable) GetMetadata(ctx context.Context, id blob.ID) (blob.Metadata, error) {
	if err := s.outage.refuse("stat", id); err != nil {
		return blob.Metadata{}, err
	}
	return s.Storage.GetMetadata(ctx, id)
}

func (s *unreliable) PutBlob(ctx context.Context, id blob.ID, data blob.Bytes, o blob.PutOptions) error {
	if err := s.outage.refuse("put", id); err != nil {
		return err
	}
	return s.Storage.PutBlob(ctx, id, data, o)
}

func (s *unreliable) ListBlobs(ctx context.Context, prefix blob.ID, call func(blob.Metadata) error) error {
	if err := s.outage.refuse("list", prefix); err != nil {
		return err
	}
	return s.Storage.ListBlobs(ctx, prefix, call)
}

func (s *unreliable) DeleteBlob(ctx context.Context, id blob.ID) error {
	if err := s.outage.refuse("delete", id); err != nil {
		return err
	}
	return s.Storage.DeleteBlob(ctx, id)
}

func (s *unreliable) Close(ctx context.Context) error {
	defer s.outage.count(-1)
	return s.Storage.Close(ctx)
}

// newOutage gives the site's storage an outage until the test ends.
func (s *site) newOutage(t *testing.T, begins func(request string, id blob.ID) bool) *outage {
	t.Helper()
	o := &outage{begins: begins}
	outages.Store(s.access.Directory, o)
	t.Cleanup(func() { outages.Delete(s.access.Directory) })
	return o
}

// newPatientPod returns a pod that asks a storage that is down again at once.
func (s *site) newPatientPod(t *testing.T, job datamove.Job, volume string) *pod {
	t.Helper()
	p := s.newPod(t, job, volume)
	p.limits.storagePause, p.limits.storageLongestPause = time.Millisecond, 5*time.Millisecond
	return p
}

// note returns the note on the object, if there is one.
func (a *fakeAPI) note(t *testing.T) (note datamove.Note, ok bool) {
	t.Helper()
	text, _ := a.text()
	o := &unstructured.Unstructured{}
	if err := json.Unmarshal(text, &o.Object); err != nil {
		t.Fatal(err)
	}
	annotation := o.GetAnnotations()[datamove.AnnotationNote]
	if annotation == "" {
		return note, false
	}
	note, err := datamove.DecodeNote(annotation)
	if err != nil {
		t.Fatal(err)
	}
	return note, true
}

// waitForNote waits until the object says that the pod waits for its storage, and why.
func (p *pod) waitForNote(t *testing.T, reason string) {
	t.Helper()
	wait.Until(t, time.Minute, "a note on the object", func() bool { _, ok := p.api.note(t); return ok })
	note, _ := p.api.note(t)
	want := "waiting for the storage since " + note.Since.UTC().Format("15:04:05") + " UTC: " + reason
	if !strings.HasPrefix(note.Waiting, want) || note.Pod != p.PodUID {
		t.Errorf("note %+v, want %q", note, want)
	}
}

// goesOn waits until the pod waits for its storage, ends the outage, and wants the pod to succeed as if nothing had
// been.
func (p *pod) goesOn(t *testing.T, o *outage) datamove.Report {
	t.Helper()
	ended := p.start(t.Context())
	p.waitForNote(t, "connection refused")
	if _, ok := p.api.report(t); ok {
		t.Error("it has reported while the storage was down")
	}
	if refused := o.end(); refused == 0 {
		t.Error("nothing was refused")
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	report, _ := p.api.report(t)
	if report.Outcome != datamove.Succeeded {
		t.Fatalf("%+v", report)
	}
	if note, ok := p.api.note(t); ok {
		t.Errorf("the note %+v is left", note)
	}
	return report
}

// The storage refuses connections when a mover starts, or when it has begun. The mover waits, says so, and goes on
// where it was.
func TestOutage_ofTheStorageIsWaitedFor(t *testing.T) {
	t.Parallel()
	const size = 64 * mib
	for name, begins := range map[string]struct{ up, down func(string, blob.ID) bool }{
		"at the start":   {atRequest(1, "open", ""), atRequest(1, "open", "")},
		"while it opens": {atRequest(2, "get", ""), atRequest(2, "get", "")},
		// Half of the disk is noise, which is in two packs.
		"in the middle": {atRequest(2, "put", "p"), atRequest(1, "get", "p")},
		"at the end":    {atRequest(2, "put", "x"), atRequest(2, "get", "p")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, device := newSite(t), newDevice(t, size)
			report := s.newPatientPod(t, newUpload(corev1.PersistentVolumeBlock), device).goesOn(t,
				s.newOutage(t, begins.up))
			if points := s.points(t); len(points) != 1 {
				t.Errorf("%d restore points, want 1", len(points))
			}
			target := filepath.Join(t.TempDir(), "target")
			writeSparse(t, target, size, nil)
			s.newPatientPod(t, newDownload(corev1.PersistentVolumeBlock, report.SnapshotID), target).goesOn(t,
				s.newOutage(t, begins.down))
			want, err := os.ReadFile(device)
			if err != nil {
				t.Fatal(err)
			}
			wantContent(t, target, want)
		})
	}
}

// A cancel is heard while the mover waits, also by one that has nothing but the address of a server that is down.
func TestOutage_canBeCanceled(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(t *testing.T, s *site) *outage{
		"at the start":  func(t *testing.T, s *site) *outage { return s.newOutage(t, atRequest(1, "open", "")) },
		"in the middle": func(t *testing.T, s *site) *outage { return s.newOutage(t, atRequest(2, "put", "p")) },
		"S3": func(_ *testing.T, s *site) *outage {
			s.access.Directory = ""
			s.access.S3 = &datamove.S3Access{
				Endpoint: "127.0.0.1:9", Bucket: "backups", Prefix: "plugins/varve/app/", PlainHTTP: true,
				AccessKey: "key-for-tests", SecretKey: "5ecret-for-tests",
			}
			return &outage{}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			o := prepare(t, s)
			p := s.newPatientPod(t, newUpload(corev1.PersistentVolumeBlock), newDevice(t, 64*mib))
			p.limits.grace = 100 * time.Millisecond
			ended := p.start(t.Context())
			p.waitForNote(t, "connection refused")
			p.api.cancel()
			err := <-ended
			o.end()
			o.waitUnused(t)
			if err != nil {
				t.Fatal(err)
			}
			if report, _ := p.api.report(t); report.Outcome != datamove.Canceled {
				t.Errorf("%+v", report)
			}
			if note, ok := p.api.note(t); ok {
				t.Errorf("the note %+v is left", note)
			}
		})
	}
}

// A storage that stays away fails the job when its time is over, and not the process.
func TestOutage_hasALimit(t *testing.T) {
	t.Parallel()
	for name, begins := range map[string]func(string, blob.ID) bool{"at the start": atRequest(1, "open", ""), "in the middle": atRequest(2, "put", "p")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			o := s.newOutage(t, begins)
			job := newUpload(corev1.PersistentVolumeBlock)
			job.StoragePatience = &metav1.Duration{Duration: 50 * time.Millisecond}
			s.newPatientPod(t, job, newDevice(t, 64*mib)).fails(t, "the storage did not answer for 50ms: ",
				"connection refused", "bring the storage of the backup location back")
			o.end()
			if points := s.points(t); len(points) != 0 {
				t.Errorf("%d restore points", len(points))
			}
		})
	}
}

// What is no outage is not waited for.
func TestOutage_isNoOtherFailure(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	o := s.newOutage(t, atRequest(1, "put", "p"))
	o.err = &fs.PathError{Op: "write", Path: "/x", Err: syscall.EIO}
	p := s.newPatientPod(t, newUpload(corev1.PersistentVolumeBlock), newDevice(t, 64*mib))
	if err := Run(t.Context(), p.Options); err == nil || !strings.Contains(err.Error(), syscall.EIO.Error()) {
		t.Error(err)
	}
	for what, ok := range map[string]func() bool{
		"a report": func() bool { _, ok := p.api.report(t); return ok },
		"a note":   func() bool { _, ok := p.api.note(t); return ok },
	} {
		if ok() {
			t.Errorf("it has left %s", what)
		}
	}
}

// A process that died while it waited has left a note, and the next one takes it away.
func TestOutage_noteOfADeadProcessGoes(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.newPod(t, newUpload(corev1.PersistentVolumeBlock), newDevice(t, mib))
	p.api.change(func(o map[string]any) {
		note := datamove.Note{Pod: "pod-1", Waiting: "waiting"}
		o["metadata"].(map[string]any)["annotations"] = map[string]any{datamove.AnnotationNote: note.Encode()}
	})
	p.run(t, datamove.Succeeded)
	if note, ok := p.api.note(t); ok {
		t.Errorf("the note %+v is left", note)
	}
}
