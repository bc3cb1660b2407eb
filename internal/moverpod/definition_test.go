package moverpod

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/types"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/mover"
	"github.com/varvebackup/varve/test/verdict"
)

// storeDefined stores a disk of a claim of the namespace app as a part of a group.
func (s *site) storeDefined(t *testing.T, claim, group string, definition []byte) datamove.SnapshotID {
	t.Helper()
	repo := s.open(t)
	id := strings.ReplaceAll(uuid.NewString(), "-", "")
	_, err := mover.Backup(t.Context(), repo, mover.BackupRequest{
		ID: id, History: repo.Source(datamove.HistoryHost, datamove.HistoryUser, mover.HistoryPath("app/"+claim)),
		Group: group, Definition: definition,
		Sources: []mover.Source{{
			Name: datamove.DiskName, Location: newDevice(t, mib),
			Options: disk.SourceOptions{Format: disk.Raw},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return datamove.SnapshotID{Form: datamove.Disk, Point: id, Namespace: "app"}
}

func newDefinitionJob(id datamove.SnapshotID) datamove.Job {
	return datamove.Job{
		Version: datamove.JobVersion, Kind: datamove.Download, Namespace: "velero", Name: "r1-definition",
		UID: types.UID(uuid.NewString()), SnapshotID: id.String(), ReadDefinition: true,
	}
}

// The definition and the disks that were stored with it get into the Secret of the pod's name, and nowhere else.
func TestDownloadDefinition(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	const definition = `{"version":1,"secrets":[{"name":"key","data":{"password":"aHVudGVyMg=="}}]}`
	root := s.storeDefined(t, "web-root", "g1", []byte(definition))
	data := s.storeDefined(t, "web-data", "g1", []byte(definition))
	plain := s.storeDefined(t, "web-more", "g1", nil)
	s.storeDefined(t, "web-root", "g2", []byte(definition))

	p := s.newPod(t, newDefinitionJob(root), "")
	p.api.makeSecret()
	p.run(t, datamove.Succeeded)
	got := p.api.secretData()
	if string(got[datamove.DefinitionKey]) != definition {
		verdict.Errorf(t, "the Secret has %q", got[datamove.DefinitionKey])
	}
	disks, err := datamove.DecodeDisks(got[datamove.DisksKey])
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, d := range disks {
		found[d.Claim] = d.SnapshotID
		if d.Bytes != mib || time.Since(d.Time) > time.Hour {
			t.Errorf("%+v", d)
		}
	}
	if len(disks) != 2 || found["web-root"] != root.String() || found["web-data"] != data.String() {
		verdict.Errorf(t, "%+v, want %s and %s", disks, root, data)
	}
	if object, _ := p.api.text(); strings.Contains(string(object)+p.output.String(), "aHVudGVyMg") {
		t.Errorf("a secret of the machine is on the object or in the log: %s\n%s", object, p.output)
	}

	s.newPod(t, newDefinitionJob(plain), "").fails(t, "has no definition of a virtual machine", "restore its disk")
}

// A Secret that comes later than the pod is waited for, and one that never comes ends the run with the reason.
func TestDownloadDefinition_waitsForItsSecret(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	root := s.storeDefined(t, "web-root", "g1", []byte(`{"version":1}`))
	late := s.newPod(t, newDefinitionJob(root), "")
	asked := make(chan struct{}, 1)
	late.api.setRefuse(func(r *http.Request) int {
		if strings.Contains(r.URL.Path, "/secrets/") {
			select {
			case asked <- struct{}{}:
			default:
			}
		}
		return 0
	})
	ended := late.start(t.Context())
	<-asked
	late.api.makeSecret()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if got := late.api.secretData(); len(got) != 2 {
		t.Errorf("the Secret has %d keys", len(got))
	}

	never := s.newPod(t, newDefinitionJob(root), "")
	never.limits.secret = 100 * time.Millisecond
	never.fails(t, "nobody waits for the definition", fmt.Sprintf("dd-%s", never.Job.UID))
}
