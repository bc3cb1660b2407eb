//go:build controlplane

package backup

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/controlplane"
)

// traffic counts what a controller asks of the API server.
type traffic struct {
	mu              sync.Mutex
	requests, bytes int
	lists           []string
}

func (c *traffic) wrap(cfg *rest.Config) {
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return counting{c, next} })
}

type counting struct {
	*traffic
	next http.RoundTripper
}

func (c counting) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := c.next.RoundTrip(r)
	if err != nil || r.URL.Query().Get("watch") != "" || strings.Contains(r.URL.Path, "/events") {
		return response, err
	}
	c.mu.Lock()
	c.requests++
	// Core kinds have one part less in their paths.
	core, parts := strings.HasPrefix(r.URL.Path, "/api/"), strings.Count(r.URL.Path, "/")
	if r.Method == http.MethodGet && (parts%2 == 0) != core {
		c.lists = append(c.lists, r.URL.RequestURI())
	}
	c.mu.Unlock()
	response.Body = countedBody{response.Body, c.traffic}
	return response, nil
}

type countedBody struct {
	io.ReadCloser
	*traffic
}

func (b countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.mu.Lock()
	b.bytes += n
	b.mu.Unlock()
	return n, err
}

func (c *traffic) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests, c.bytes, c.lists = 0, 0, nil
}

// history is n backups that ended, of n machines with a tracker each, as an earlier controller left them.
func history(ns string, n int) []client.Object {
	var objects []client.Object
	for i := range n {
		when := metav1.NewTime(time.Now().Add(-time.Duration(i) * time.Hour).Truncate(time.Second))
		tracker := &backupv1.VirtualMachineBackupTracker{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: fmt.Sprintf("tracker-%d", i), CreationTimestamp: when}}
		tracker.Spec.Source = *source()
		tracker.Spec.Source.Name = fmt.Sprintf("vm-%d", i)
		tracker.Status.LatestCheckpoint = &backupv1.Checkpoint{Name: fmt.Sprintf("tracker-%d-c", i), CreationTime: when, Disks: []string{"root"}}
		b := &backupv1.VirtualMachineBackup{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: fmt.Sprintf("ended-%d", i), CreationTimestamp: when, Labels: map[string]string{layout.LabelEnded: "true"}}}
		b.Spec = backupv1.VirtualMachineBackupSpec{BackupTracker: tracker.Name, PVCName: "target", Mode: backupv1.PushMode}
		b.Status = backupv1.VirtualMachineBackupStatus{
			Phase: backupv1.BackupDone, Reason: backupv1.ReasonCompleted, Message: "1 disk of VirtualMachine vm is in vm/ended on PersistentVolumeClaim target.",
			Result: backupv1.BackupSucceeded, SourceName: tracker.Spec.Source.Name, NodeName: "node-1", Directory: "vm/ended", CompletionTimestamp: &when,
			CheckpointName:  tracker.Status.LatestCheckpoint.Name,
			IncludedVolumes: []backupv1.IncludedVolume{{Name: "root", Type: backupv1.Full, SHA256: strings.Repeat("0", 64)}},
		}
		objects = append(objects, tracker, b)
	}
	return objects
}

// What a backup costs the API server and the controller does not depend on how many backups and trackers there are.
// docs/scale.md states the formulas.
func TestScale_costOfABackupDoesNotDependOnHistory(t *testing.T) {
	t.Parallel()
	const ended = 5000
	for _, n := range []int{0, ended} {
		t.Run(fmt.Sprintf("%d ended", n), func(t *testing.T) {
			t.Parallel()
			l := newLab(t, Limits{})
			l.stop()
			cluster.Seed(t, history(l.ns, n))
			l.traffic = &traffic{}
			l.start()
			l.tracker("tracker")
			l.traffic.reset()
			b := l.backup("b", "tracker")
			l.bring(b, backupv1.BackupDone)

			var cached backupv1.VirtualMachineBackupList
			controlplane.Eventually(t, func() error { // the backup that has just ended leaves the cache, too
				if err := l.cached.List(t.Context(), &cached, client.InNamespace(l.ns)); err != nil || len(cached.Items) > 0 {
					return fmt.Errorf("%d backups in memory (%v)", len(cached.Items), err)
				}
				return nil
			})
			l.traffic.mu.Lock()
			defer l.traffic.mu.Unlock()
			t.Logf("%d ended: %d requests, %d bytes, %d lists: %v", n, l.traffic.requests, l.traffic.bytes, len(l.traffic.lists), l.traffic.lists)
			if l.traffic.requests > requestsPerBackup || l.traffic.bytes > bytesPerBackup || len(l.traffic.lists) > listsPerBackup {
				t.Errorf("more than %d requests, %d bytes or %d lists", requestsPerBackup, bytesPerBackup, listsPerBackup)
			}
		})
	}
}

// What docs/scale.md says of one backup with a tracker that nothing disturbs.
const (
	requestsPerBackup = 160
	bytesPerBackup    = 256 << 10
	listsPerBackup    = 1
)
