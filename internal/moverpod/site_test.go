package moverpod

import (
	"bytes"
	"context"
	"crypto/sha256"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/repositoryaccess"
	"github.com/varvebackup/varve/test/verdict"
)

const (
	mib = 1 << 20
	// testPassword is looked for in everything that a mover says.
	testPassword = "secret-password \"quoted\" & more"
)

// site is a repository, and what the pods that use it are given.
type site struct {
	access datamove.Access
	at     repository.Location
	dir    string
}

// newSite makes a repository in a directory.
func newSite(t *testing.T) *site {
	t.Helper()
	dir := t.TempDir()
	at := filepath.Join(dir, "blobs")
	return makeSite(t, dir, repository.Location{Directory: at}, datamove.Access{Password: testPassword, Directory: at})
}

func makeSite(t *testing.T, dir string, at repository.Location, access datamove.Access) *site {
	t.Helper()
	if err := repository.Create(t.Context(), at, access.Password, repository.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s := &site{access: access, at: at, dir: dir}
	s.access.UniqueID = s.open(t).ID()
	return s
}

// open opens the repository until the test ends.
func (s *site) open(t *testing.T) *repository.Repository {
	t.Helper()
	r, err := repository.OpenLocation(t.Context(), s.at, s.access.Password, repository.ConnectOptions{Host: "test", User: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return r
}

// points returns all restore points.
func (s *site) points(t *testing.T) []*repository.RestorePoint {
	t.Helper()
	points, err := s.open(t).List(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return points
}

// pod is a mover pod.
type pod struct {
	Options

	api    *fakeAPI
	output *output
	// listenAt is where a pod with a tunnel listens if it is a process of its own.
	listenAt string
	// dialAt is where the endpoints of a job that reads some are.
	dialAt string
}

// output is what a mover prints.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// newUpload returns a job for a volume of the claim app/data.
func newUpload(mode corev1.PersistentVolumeMode) datamove.Job {
	return datamove.Job{
		Version: datamove.JobVersion, Kind: datamove.Upload, Namespace: "velero", Name: "b1-x", UID: types.UID(uuid.NewString()), VolumeMode: mode,
		SourceNamespace: "app", SourceClaim: "data", SourceUID: "claim-1", Labels: map[string]string{datamove.LabelBackupName: "b1"},
	}
}

// newDownload returns a job that restores what a report tells of.
func newDownload(mode corev1.PersistentVolumeMode, snapshotID string) datamove.Job {
	return datamove.Job{
		Version: datamove.JobVersion, Kind: datamove.Download, Namespace: "velero", Name: "r1-x", UID: types.UID(uuid.NewString()), VolumeMode: mode, SnapshotID: snapshotID,
	}
}

// newPod returns a pod with a volume, whose object is InProgress.
func (s *site) newPod(t *testing.T, job datamove.Job, volume string) *pod {
	t.Helper()
	dir := t.TempDir()
	files := Files{
		Access: filepath.Join(dir, datamove.AccessKey), Cache: filepath.Join(dir, "cache"), Volume: volume, Termination: filepath.Join(dir, "termination-log"),
	}
	s.give(t, files)
	if err := os.Mkdir(files.Cache, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(files.Termination, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p := &pod{api: newFakeAPI(t, job, velerov2.PhaseInProgress), output: &output{}}
	secrets := &repositoryaccess.Secrets{}
	p.Options = Options{
		Job: job, PodName: "du-pod", PodUID: "pod-1", Config: &rest.Config{Host: p.api.URL}, Files: files, Secrets: secrets,
		Log:    slog.New(slog.NewTextHandler(secrets.Writer(p.output), &slog.HandlerOptions{Level: slog.LevelDebug})),
		limits: limits{retry: 20 * time.Millisecond, progress: 10 * time.Millisecond},
	}
	t.Cleanup(func() { p.checkSecrets(t, &s.access) })
	return p
}

// give writes the access where a pod reads it.
func (s *site) give(t *testing.T, files Files) {
	t.Helper()
	if err := os.WriteFile(files.Access, s.access.Encode(), 0o600); err != nil {
		t.Fatal(err)
	}
}

// checkSecrets looks for secrets in everything that has left the pod.
func (p *pod) checkSecrets(t *testing.T, access *datamove.Access) {
	t.Helper()
	object, _ := p.api.text()
	termination, err := os.ReadFile(p.Files.Termination)
	if err != nil {
		t.Error(err)
	}
	secrets := &repositoryaccess.Secrets{}
	secrets.Hide(access.Secrets()...)
	for where, text := range map[string]string{"the log": p.output.String(), "the object": string(object), "the termination message": string(termination)} {
		if secrets.Redact(text) != text {
			t.Errorf("a secret is in %s: %s", where, text)
		}
	}
	if t.Failed() {
		t.Logf("the mover's log:\n%s", p.output)
	}
}

// run runs the pod to its end. Its report must have the outcome.
func (p *pod) run(t *testing.T, want datamove.Outcome) datamove.Report {
	t.Helper()
	if err := Run(t.Context(), p.Options); err != nil {
		t.Fatalf("%v\n%s", err, p.output)
	}
	report, ok := p.api.report(t)
	if !ok || report.Outcome != want || report.Pod != p.PodUID {
		t.Fatalf("report %+v, want %s\n%s", report, want, p.output)
	}
	return report
}

// fails runs the pod. It must report a failure whose message has these texts.
func (p *pod) fails(t *testing.T, texts ...string) {
	t.Helper()
	report := p.run(t, datamove.Failed)
	termination, _ := os.ReadFile(p.Files.Termination)
	for _, text := range texts {
		if !strings.Contains(report.Message, text) || !bytes.Contains(termination, []byte(text)) {
			t.Errorf("the report says %q, and the termination message %q: want %q", report.Message, termination, text)
		}
	}
}

// upload stores a volume and returns the report.
func (s *site) upload(t *testing.T, mode corev1.PersistentVolumeMode, volume string) datamove.Report {
	t.Helper()
	return s.newPod(t, newUpload(mode), volume).run(t, datamove.Succeeded)
}

// noise returns bytes that do not compress, from a seed.
func noise(n int, seed uint64) []byte {
	out := make([]byte, n)
	key := sha256.Sum256([]byte{byte(seed), byte(seed >> 8)})
	_, _ = rand.NewChaCha8(key).Read(out)
	return out
}

// writeSparse makes a file of a size with a piece of data at each offset, and returns its content.
func writeSparse(t *testing.T, path string, size int64, pieces map[int64][]byte) []byte {
	t.Helper()
	content := make([]byte, size)
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	for at, piece := range pieces {
		copy(content[at:], piece)
		if _, err := f.WriteAt(piece, at); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return content
}

// wantContent compares a file, or the beginning of a device, with what it should hold.
func wantContent(t *testing.T, path string, want []byte) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(f, got); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		verdict.Errorf(t, "%s differs from what was stored", path)
	}
}
