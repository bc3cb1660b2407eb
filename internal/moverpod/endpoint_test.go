package moverpod

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/exporttest"
	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/exportsite"
	"github.com/varvebackup/varve/test/verdict"
)

// bothDialects are the values of EndpointSource.KubeVirt.
var bothDialects = map[string]bool{"Spec": false, "KubeVirt": true}

// newEndpointUpload returns a job for the volume in a pull backup. The base is of the backup that made it.
func newEndpointUpload(backup, base string, kubeVirt bool) datamove.Job {
	job := newUpload("")
	uid := func(backup string) types.UID {
		if kubeVirt {
			return "uid-tracker"
		}
		return types.UID("uid-" + backup)
	}
	job.Endpoint = &datamove.EndpointSource{
		Map: "https://localhost/exports/root/map", Data: "https://localhost/exports/root/data", KubeVirt: kubeVirt, Volume: "root",
		BackupUID: types.UID("uid-" + backup), Checkpoint: "daily-" + backup, CheckpointUID: uid(backup),
	}
	if base != "" {
		job.Endpoint.BaseCheckpoint, job.Endpoint.BaseUID = "daily-"+base, uid(base)
	}
	return job
}

// newEndpointPod returns a pod with what opens an export server.
func (s *site) newEndpointPod(t *testing.T, server *exportsite.Site, job datamove.Job) *pod {
	t.Helper()
	p := s.newPod(t, job, "")
	p.giveEndpoint(t, exportsite.Token, server.CA)
	o := server.Options()
	p.DialEndpoint, p.dialAt = o.Dial, server.Address
	p.limits.endpoint = 20 * time.Second
	return p
}

// giveEndpoint gives the pod the Secret for its endpoints. The token must not leave it.
func (p *pod) giveEndpoint(t *testing.T, token string, authorities []byte) {
	t.Helper()
	dir := t.TempDir()
	p.Files.EndpointToken, p.Files.EndpointAuthorities = filepath.Join(dir, datamove.EndpointTokenKey), filepath.Join(dir, datamove.EndpointAuthoritiesKey)
	p.Files.EndpointEnded = filepath.Join(dir, datamove.EndpointEndedKey)
	for path, content := range map[string][]byte{p.Files.EndpointToken: []byte(token + "\n"), p.Files.EndpointAuthorities: authorities, p.Files.EndpointEnded: nil} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		object, _ := p.api.text()
		termination, _ := os.ReadFile(p.Files.Termination)
		if text := p.output.String() + string(object) + string(termination); strings.Contains(text, token) {
			t.Errorf("the token of the endpoints has left the pod:\n%s", text)
		}
	})
}

// A full backup, and two incrementals that read what has changed and nothing else, in both dialects.
func TestEndpointUpload_fullAndIncrementals(t *testing.T) {
	t.Parallel()
	for name, kubeVirt := range bothDialects {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, m := newSite(t), newMachine(diskBytes, 1)
			server := exportsite.Open(t, m.volume)
			full := s.newEndpointPod(t, server, newEndpointUpload("1", "", kubeVirt)).run(t, datamove.Succeeded)
			if full.TotalBytes != diskBytes || full.FullReason != "" || full.Repository == "" {
				t.Errorf("%+v", full)
			}
			s.wantRestored(t, full, m)
			for i, backup := range []string{"2", "3"} {
				m.change(uint64(100*i), 3, 4, 77+i)
				server.Kill()
				server.Serve(m.volume)
				server.Start()
				report := s.newEndpointPod(t, server, newEndpointUpload(backup, []string{"1", "2"}[i], kubeVirt)).run(t, datamove.Succeeded)
				if report.FullReason != "" || report.IncrementalBytes == 0 || report.IncrementalBytes > 3*256<<10 {
					t.Errorf("%+v", report)
				}
				if read := m.volume.bytes.Load(); read > 6*mib {
					t.Errorf("%d bytes were read for 3 blocks", read)
				}
				s.wantRestored(t, report, m)
			}
		})
	}
}

// Without its base, an incremental is read as a whole: clean regions are asked for, and count as data.
func TestEndpointUpload_isFullWithoutTheBase(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		base, told, reason string
		before             func(*datamove.EndpointSource)
	}{
		"nobody knows the base":         {base: ""},
		"the base does not count":       {base: "", told: "ForceFullBackup", reason: "ForceFullBackup"},
		"the base is of an earlier run": {base: "0", told: "MachineRestarted", reason: "MachineRestarted"},
		"another checkpoint":            {base: "0", reason: "OtherBase"},
		"the same name of another backup": {base: "1", reason: "OtherBase", before: func(e *datamove.EndpointSource) {
			e.CheckpointUID = "uid-of-another"
		}},
		"the same checkpoint of another disk": {base: "1", reason: "OtherBase", before: func(e *datamove.EndpointSource) {
			e.Volume, e.Map, e.Data = "data", "https://localhost/exports/data/map", "https://localhost/exports/data/data"
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, m := newSite(t), newMachine(diskBytes, 2)
			other := newMachine(diskBytes, 9)
			other.volume.Description.Name = "data"
			server := exportsite.Open(t, m.volume, other.volume)
			first := newEndpointUpload("1", "", false)
			if c.before != nil {
				c.before(first.Endpoint)
			}
			s.newEndpointPod(t, server, first).run(t, datamove.Succeeded)
			m.change(5, 9)
			server.Kill()
			server.Serve(m.volume)
			server.Start()
			second := newEndpointUpload("2", c.base, false)
			second.Endpoint.FullReason = c.told
			report := s.newEndpointPod(t, server, second).run(t, datamove.Succeeded)
			if report.FullReason != c.reason {
				t.Errorf("full because of %q, want %q", report.FullReason, c.reason)
			}
			s.wantRestored(t, report, m)
		})
	}
}

// The server holds the data back. Until it gives it, nothing but holes is done, also if changes were offered that nothing is there for: it
// once said "3.6 of 3.6 GiB" from the first second on.
func TestEndpointUpload_progressIsTrueWithoutTheBase(t *testing.T) {
	t.Parallel()
	for name, kubeVirt := range bothDialects {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, m := newSite(t), newMachine(diskBytes, 1)
			m.change(5, 9)
			server := exportsite.Open(t, m.volume)
			p := s.newEndpointPod(t, server, newEndpointUpload("2", "1", kubeVirt))
			p.limits.progress, p.limits.smallProgress = 5*time.Millisecond, 5*time.Millisecond
			var atFirst atomic.Int64
			m.volume.setHook(func(ctx context.Context, _ extent.Extent) error {
				deadline, cancel := context.WithTimeout(ctx, patience)
				defer cancel()
				for len(p.api.progress()) == 0 && deadline.Err() == nil {
					runtime.Gosched()
				}
				atFirst.CompareAndSwap(0, p.api.lastBytesDone()+1)
				return nil
			})
			report := p.run(t, datamove.Succeeded)
			if done := atFirst.Load() - 1; done < 0 || done > diskBytes/2 {
				t.Errorf("%d of %d bytes are done before any was read", done, int64(diskBytes))
			}
			if report.FullReason != "NoParent" && report.FullReason != "OtherBase" {
				t.Errorf("full because of %q", report.FullReason)
			}
			s.wantRestored(t, report, m)
		})
	}
}

// Connections break, and the server is restarted again and again. One restore point comes of it, and no byte is wrong.
func TestEndpointUpload_survivesChaos(t *testing.T) {
	t.Parallel()
	for name, kubeVirt := range bothDialects {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, m := newSite(t), newMachine(48*mib, 4)
			server := exportsite.Open(t, m.volume)
			var restarts atomic.Int64
			m.volume.setHook(func(_ context.Context, e extent.Extent) error {
				if n := restarts.Load(); n < 3 && e.Offset > (n+1)*10*mib && restarts.CompareAndSwap(n, n+1) {
					go func() { server.Kill(); server.Start() }()
				}
				return nil
			})
			p := s.newEndpointPod(t, server, newEndpointUpload("1", "", kubeVirt))
			p.DialEndpoint = exportsite.Cut(server.Options(), 7, 3*mib, 12).Dial
			p.limits.endpoint = 2 * time.Minute
			report := p.run(t, datamove.Succeeded)
			if restarts.Load() == 0 || !strings.Contains(p.output.String(), "the endpoints are asked again") {
				t.Errorf("%d restarts: nothing was cut", restarts.Load())
			}
			s.wantRestored(t, report, m)
			if points := s.points(t); len(points) != 1 {
				verdict.Errorf(t, "%d restore points", len(points))
			}
		})
	}
}

// What says that the backup is over, or that the server cannot be trusted, fails the upload at once, and says what to do.
func TestEndpointUpload_judgesRefusals(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status int
		text   string
		says   string
	}{
		"wrong token":    {http.StatusUnauthorized, "no: " + exportsite.Token, "the token is not that of the pull backup"},
		"forbidden":      {http.StatusForbidden, "no", "the token is not that of the pull backup"},
		"no such volume": {http.StatusNotFound, "no", "the pull backup is over"},
		"over":           {http.StatusGone, "over", "the pull backup is over"},
		"full":           {http.StatusInsufficientStorage, "full", "larger claim"},
		"a bad map":      {http.StatusOK, `{"regions":[{"offset":0,"length":1024,"type":"data"}],"next_offset":null,"size":512}`, "contradicts itself"},
		"a map too long": {http.StatusOK, `{"regions":[` + strings.Repeat(" ", 17<<20), "contradicts itself"},
		"another point":  {http.StatusPreconditionFailed, "no", "made again"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hostile := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(c.status)
				_, _ = fmt.Fprint(w, c.text)
			}))
			t.Cleanup(hostile.Close)
			s := newSite(t)
			p := s.newHostilePod(t, hostile, newEndpointUpload("1", "", false))
			p.fails(t, c.says)
			if points := s.points(t); len(points) != 0 {
				t.Errorf("%d restore points", len(points))
			}
		})
	}
}

// A server may send the token back where nobody looks for it.
func TestEndpointUpload_hidesEchoedTokens(t *testing.T) {
	t.Parallel()
	echo := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/map") {
			_, _ = fmt.Fprint(w, `{"regions":[{"offset":0,"length":65536,"type":"data"}],"next_offset":null,"size":65536}`)
			return
		}
		w.Header().Set("Content-Range", "bytes "+r.Header.Get(podspec.TokenHeader))
		w.WriteHeader(http.StatusPartialContent)
	}))
	t.Cleanup(echo.Close)
	newSite(t).newHostilePod(t, echo, newEndpointUpload("1", "", false)).fails(t, "status 206 and range")
}

// newHostilePod returns a pod that reads a server of httptest.
func (s *site) newHostilePod(t *testing.T, server *httptest.Server, job datamove.Job) *pod {
	t.Helper()
	p := s.newPod(t, job, "")
	p.giveEndpoint(t, exportsite.Token, certificateOf(server))
	job.Endpoint.Map, job.Endpoint.Data = server.URL+"/exports/root/map", server.URL+"/exports/root/data"
	return p
}

func certificateOf(server *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
}

// A server that is silent ends the process, and not the DataUpload: whoever made the backup may bring it back.
func TestEndpointUpload_waitsForTheServer(t *testing.T) {
	t.Parallel()
	s, m := newSite(t), newMachine(diskBytes, 5)
	server := exportsite.Open(t, m.volume)
	server.Kill()
	p := s.newEndpointPod(t, server, newEndpointUpload("1", "", false))
	p.limits.endpoint = 200 * time.Millisecond
	if err := Run(t.Context(), p.Options); err == nil || !strings.Contains(err.Error(), "nothing came for 200ms") {
		t.Error(err)
	}
	if report, ok := p.api.report(t); ok {
		t.Errorf("%+v", report)
	}
	p.limits.endpoint = time.Minute
	time.AfterFunc(100*time.Millisecond, server.Start)
	s.wantRestored(t, p.run(t, datamove.Succeeded), m)
}

// A backup that has ended takes its server with it. The mover is told, and does not wait for it to come back.
func TestEndpointUpload_isToldThatTheBackupHasEnded(t *testing.T) {
	t.Parallel()
	s, m := newSite(t), newMachine(diskBytes, 5)
	server := exportsite.Open(t, m.volume)
	p := s.newEndpointPod(t, server, newEndpointUpload("1", "", false))
	p.limits.endpoint = time.Hour
	p.DialEndpoint = func(context.Context, string, string) (net.Conn, error) {
		if err := os.WriteFile(p.Files.EndpointEnded, []byte("VirtualMachineBackup app/web-1 was deleted"), 0o600); err != nil {
			t.Error(err)
		}
		return nil, errors.New("no such host")
	}
	p.fails(t, "app/web-1 was deleted: the pull backup is over")
}

// A backup that was made again at the same address is another one, also for the next process of the pod.
func TestEndpointUpload_refusesAnotherPointInTime(t *testing.T) {
	t.Parallel()
	s, m := newSite(t), newMachine(diskBytes, 6)
	server := exportsite.Open(t, m.volume)
	p := s.newEndpointPod(t, server, newEndpointUpload("1", "", false))
	p.limits.endpoint = time.Millisecond
	m.volume.setHook(func(context.Context, extent.Extent) error { return context.DeadlineExceeded })
	if err := Run(t.Context(), p.Options); err == nil {
		t.Fatal("it was read")
	}
	m.change(3, 1)
	server.Kill()
	server.Serve(m.volume)
	server.Start()
	p.limits.endpoint = time.Minute
	p.fails(t, "made again")
	if points := s.points(t); len(points) != 0 {
		t.Errorf("%d restore points", len(points))
	}
}

// The mover is killed again and again. Its successors make one restore point, of the same moment.
func TestEndpointUpload_survivesKills(t *testing.T) {
	t.Parallel()
	s, m := newSite(t), newMachine(64*mib, 8)
	server := exportsite.Open(t, m.volume)
	p := s.newEndpointPod(t, server, newEndpointUpload("1", "", false))
	p.limits.flush, p.limits.progress = 50*time.Millisecond, 10*time.Millisecond
	reading := make(chan struct{}, 1)
	m.volume.setHook(func(_ context.Context, e extent.Extent) error {
		if e.Offset > 16*mib {
			select {
			case reading <- struct{}{}:
			default:
			}
		}
		return nil
	})
	for range 2 {
		c := p.startChild(t)
		select {
		case <-reading:
		case <-time.After(time.Minute):
			t.Fatalf("nothing is read\n%s", p.output)
		}
		_ = c.Process.Signal(syscall.SIGKILL)
		<-c.ended
	}
	c := p.startChild(t)
	if code := c.wait(t, patience); code != 0 {
		t.Fatalf("exit code %d\n%s", code, p.output)
	}
	report, ok := p.api.report(t)
	if !ok || report.Outcome != datamove.Succeeded {
		t.Fatalf("%+v", report)
	}
	s.wantRestored(t, report, m)
	if points := s.points(t); len(points) != 1 {
		verdict.Errorf(t, "%d restore points", len(points))
	}
}

// A cancel ends the work although the server answers nothing.
func TestEndpointUpload_cancelsInTime(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	var once sync.Once
	asked, release := make(chan struct{}), make(chan struct{})
	silent := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		once.Do(func() { close(asked) })
		<-release
	}))
	t.Cleanup(silent.Close)
	t.Cleanup(func() { close(release) })
	p := s.newHostilePod(t, silent, newEndpointUpload("1", "", false))
	go func() { <-asked; p.api.cancel() }()
	p.run(t, datamove.Canceled)
	if points := s.points(t); len(points) != 0 {
		t.Errorf("%d restore points", len(points))
	}
}

// The owner of a backup may rotate its token and its certificates while it is read.
func TestEndpointUpload_readsRotatedSecrets(t *testing.T) {
	t.Parallel()
	s, m := newSite(t), newMachine(diskBytes, 7)
	server := exportsite.Open(t, m.volume)
	p := s.newEndpointPod(t, server, newEndpointUpload("1", "", false))
	p.limits.endpoint = 200 * time.Millisecond
	authorities, err := os.ReadFile(p.Files.EndpointAuthorities)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(p.Files.EndpointAuthorities); err != nil {
		t.Fatal(err)
	}
	if err := Run(t.Context(), p.Options); err == nil || !strings.Contains(err.Error(), "read what opens the endpoints") {
		t.Errorf("without its Secret: %v", err)
	}
	p.limits.endpoint = time.Minute
	if err := os.WriteFile(p.Files.EndpointAuthorities, authorities, 0o600); err != nil {
		t.Fatal(err)
	}
	s.wantRestored(t, p.run(t, datamove.Succeeded), m)
}

// A backup of KubeVirt 1.8 tells neither its size nor its point in time.
func TestEndpointUpload_readsServersWithoutTags(t *testing.T) {
	t.Parallel()
	content := noise(3*exporttest.BlockBytes, 3)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/map") {
			fmt.Fprintf(w, `{"extents":[{"offset":0,"length":%d,"type":0,"description":"data"}],"next_offset":null}`, len(content))
			return
		}
		var offset, length int
		_, _ = fmt.Sscan(r.URL.Query().Get("offset"), &offset)
		_, _ = fmt.Sscan(r.URL.Query().Get("length"), &length)
		if offset >= len(content) {
			panic(http.ErrAbortHandler)
		}
		_, _ = w.Write(content[offset:min(offset+length, len(content))])
	}))
	t.Cleanup(server.Close)
	s := newSite(t)
	p := s.newHostilePod(t, server, newEndpointUpload("1", "", true))
	report := p.run(t, datamove.Succeeded)
	s.wantRestored(t, report, &machine{volume: &readVolume{Volume: &exporttest.Volume{Content: bytes.Clone(content), Description: export.Info{Bytes: int64(len(content))}}}})
}
