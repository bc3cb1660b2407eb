package moverpod

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/export/exporttest"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/exportsite"
	"github.com/varvebackup/varve/test/verdict"
)

// newExportUpload returns a job for the disk of a stopped machine in an export.
func newExportUpload() datamove.Job {
	job := newUpload("")
	job.Endpoint = &datamove.EndpointSource{
		Map: "https://localhost/exports/root/map", Data: "https://localhost/exports/root/data", Export: true,
		Volume:    "root",
		BackupUID: "uid-export",
	}
	return job
}

// A machine is backed up while it runs, while it is stopped, and when it runs again: the last one reads what has changed
// since the first one, and the one between them what is allocated.
func TestExportUpload_leavesTheChainAsItIs(t *testing.T) {
	t.Parallel()
	s, m := newSite(t), newMachine(diskBytes, 21)
	server := exportsite.Open(t, m.volume)
	serve := func(volume *readVolume) {
		server.Kill()
		server.Serve(volume)
		server.Start()
	}
	s.newEndpointPod(t, server, newEndpointUpload("1", "", false)).run(t, datamove.Succeeded)
	m.change(300, 3, 4)

	running := m.volume.Volume
	off := &readVolume{Volume: &exporttest.Volume{
		Description: running.Description, Content: running.Content,
		Dirty: running.Dirty,
	}}
	off.Description.Incremental, off.Description.PointInTime = false, "the run of an export's pod"
	serve(off)
	job := newExportUpload()
	job.Definition = true
	p := s.newEndpointPod(t, server, job)
	const definition = `{"of":"the machine"}`
	p.Files.Definition = filepath.Join(t.TempDir(), datamove.DefinitionKey)
	if err := os.WriteFile(p.Files.Definition, []byte(definition), 0o400); err != nil {
		t.Fatal(err)
	}
	stopped := p.run(t, datamove.Succeeded)
	if stopped.FullReason != "MachineStopped" || stopped.TotalBytes != diskBytes || stopped.ReadBytes >= diskBytes {
		t.Errorf("of the stopped machine: %+v", stopped)
	}
	if stopped.StoredBytes > 3*256<<10 {
		t.Errorf("%d bytes were stored anew for 2 blocks", stopped.StoredBytes)
	}
	s.wantRestored(t, stopped, m)
	r, point := s.open(t), s.points(t)[1]
	if got, err := r.Definition(t.Context(), point); err != nil || string(got) != definition {
		verdict.JudgeErrorf(t, err == nil, "the definition: %q, %v", got, err)
	}
	if d, err := point.Disk(datamove.DiskName); err != nil || d.Change != "" {
		t.Errorf("the disk of a stopped machine has a checkpoint: %+v, %v", d, err)
	}

	m.change(400, 5)
	m.volume.Dirty[3], m.volume.Dirty[4] = true, true
	serve(m.volume)
	again := s.newEndpointPod(t, server, newEndpointUpload("2", "1", false)).run(t, datamove.Succeeded)
	if again.FullReason != "" || again.IncrementalBytes == 0 || again.IncrementalBytes > 3*256<<10 {
		t.Errorf("of the machine that runs again: %+v", again)
	}
	s.wantRestored(t, again, m)
}

// What says that the export is over, or another one, fails the upload at once.
func TestExportUpload_judgesRefusals(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status int
		says   string
	}{
		"another export": {http.StatusUnauthorized, "the export of the stopped machine is over, or another one"},
		"no map":         {http.StatusNotFound, "the export of the stopped machine is over, or another one"},
		"another run":    {http.StatusPreconditionFailed, "the pod of the export was started again"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hostile := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(c.status)
				_, _ = fmt.Fprint(w, "no")
			}))
			t.Cleanup(hostile.Close)
			s := newSite(t)
			s.newHostilePod(t, hostile, newExportUpload()).fails(t, c.says)
			if points := s.points(t); len(points) != 0 {
				t.Errorf("%d restore points", len(points))
			}
		})
	}
}

// A mover pod finds the export in a cluster that has no DNS.
func TestExportUpload_needsNoDNS(t *testing.T) {
	t.Parallel()
	s, m := newSite(t), newMachine(diskBytes, 24)
	server := exportsite.Open(t, m.volume)
	job := newExportUpload()
	job.Endpoint.Address = server.Address
	p := s.newEndpointPod(t, server, job)
	p.DialEndpoint = nil
	s.wantRestored(t, p.run(t, datamove.Succeeded), m)
}

// The pod of an export that is started again while the disk is read may serve other bytes.
func TestExportUpload_readsOneRunOfTheExport(t *testing.T) {
	t.Parallel()
	s, m := newSite(t), newMachine(48*mib, 22)
	server := exportsite.Open(t, m.volume)
	p := s.newEndpointPod(t, server, newExportUpload())
	other := newMachine(48*mib, 23)
	other.volume.Description.PointInTime = "another run"
	var once sync.Once
	m.volume.setHook(func(_ context.Context, e extent.Extent) error {
		if e.Offset > 8*mib {
			once.Do(func() {
				go func() { server.Kill(); server.Serve(other.volume); server.Start() }()
			})
		}
		return nil
	})
	p.fails(t, "the pod of the export was started again")
	if points := s.points(t); len(points) != 0 {
		verdict.Errorf(t, "%d restore points of two runs", len(points))
	}
}
