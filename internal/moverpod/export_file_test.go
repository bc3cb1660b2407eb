package moverpod

import (
	"net/http"
	"sync"
	"testing"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/test/exportsite"
	"github.com/varvebackup/varve/test/verdict"
)

// newFileUpload returns a job for the disk of a stopped machine in an export of KubeVirt's.
func newFileUpload() datamove.Job {
	job := newExportUpload()
	job.Endpoint.Map, job.Endpoint.Data = "", "https://localhost"+exportsite.FakeFilePath
	return job
}

// KubeVirt's exports have no map: all of the disk is read, in requests for ranges, and what is zero is not stored. The
// next backup reads all of it again, and stores what differs.
func TestExportUpload_readsAFile(t *testing.T) {
	t.Parallel()
	s, m := newSite(t), newMachine(diskBytes, 31)
	server := exportsite.OpenFakeFile(t, m.volume.Content)
	first := s.newEndpointPod(t, server.Site, newFileUpload()).run(t, datamove.Succeeded)
	if first.FullReason != "MachineStopped" || first.TotalBytes != diskBytes || first.ReadBytes != diskBytes {
		t.Errorf("%+v", first)
	}
	if server.Requests.Load() < 4 {
		t.Errorf("%d requests", server.Requests.Load())
	}
	s.wantRestored(t, first, m)
	m.change(500, 3, 4)
	server.Kill()
	server.Start(m.volume.Content)
	second := s.newEndpointPod(t, server.Site, newFileUpload()).run(t, datamove.Succeeded)
	if second.StoredBytes > 3*256<<10 {
		t.Errorf("%d bytes were stored anew for 2 blocks", second.StoredBytes)
	}
	s.wantRestored(t, second, m)
}

// The export of a snapshot is read as that of a stopped machine, and why everything is read is another reason.
func TestExportUpload_ofASnapshot(t *testing.T) {
	t.Parallel()
	s, m := newSite(t), newMachine(diskBytes, 34)
	server := exportsite.OpenFakeFile(t, m.volume.Content)
	job := newFileUpload()
	job.Endpoint.FullReason = datamove.FullNotTracked
	report := s.newEndpointPod(t, server.Site, job).run(t, datamove.Succeeded)
	if report.FullReason != "NotTracked" || report.ReadBytes != diskBytes {
		t.Errorf("%+v", report)
	}
	s.wantRestored(t, report, m)
}

// A claim that is empty has no disk, which is not the end of the export.
func TestExportUpload_ofAnEmptyClaim(t *testing.T) {
	t.Parallel()
	s, m := newSite(t), newMachine(diskBytes, 35)
	server := exportsite.OpenFakeFile(t, m.volume.Content)
	job := newFileUpload()
	job.Endpoint.Data = "https://localhost/volumes/empty/dir/disk.img"
	s.newEndpointPod(t, server.Site, job).fails(t, "PersistentVolumeClaim "+job.Endpoint.Volume+" has no disk.img")
}

// The pod of an export that is started again while the disk is read may serve other bytes: KubeVirt does so after a run
// of the machine.
func TestExportUpload_readsOneRunOfAFile(t *testing.T) {
	t.Parallel()
	s, m := newSite(t), newMachine(48*mib, 32)
	server := exportsite.OpenFakeFile(t, m.volume.Content)
	other := newMachine(48*mib, 33)
	var once sync.Once
	server.Asked = func(*http.Request) {
		if server.Requests.Load() > 3 {
			once.Do(func() { go func() { server.Kill(); server.Start(other.volume.Content) }() })
		}
	}
	s.newEndpointPod(t, server.Site, newFileUpload()).fails(t, "the pod of the export was started again")
	if points := s.points(t); len(points) != 0 {
		verdict.Errorf(t, "%d restore points of two runs", len(points))
	}
}
