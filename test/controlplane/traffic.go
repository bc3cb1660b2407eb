package controlplane

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/gen"
)

// Traffic counts a controller's requests to the API server, except watches and events.
type Traffic struct {
	mu   sync.Mutex
	cost Cost
}

// Cost is the requests since the last Reset.
type Cost struct {
	// Requests are the methods and paths of the requests.
	Requests []string
	// Bytes is the size of the answers.
	Bytes int
	// Lists are the paths of the requests that list objects.
	Lists []string
}

// String implements fmt.Stringer. It has a line for each request that differs.
func (c Cost) String() string {
	times := map[string]int{}
	for _, r := range c.Requests {
		times[r]++
	}
	text := fmt.Sprintf("%d requests, %d bytes, %d lists: %v", len(c.Requests), c.Bytes, len(c.Lists), c.Lists)
	for _, r := range slices.Sorted(maps.Keys(times)) {
		text += fmt.Sprintf("\n%4d %s", times[r], r)
	}
	return text
}

// Wrap makes c count the requests of clients that are created with cfg.
func (c *Traffic) Wrap(cfg *rest.Config) {
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return counting{c, next} })
}

// Reset restarts the count.
func (c *Traffic) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cost = Cost{}
}

// Cost returns the requests since the last Reset.
func (c *Traffic) Cost() Cost {
	c.mu.Lock()
	defer c.mu.Unlock()
	cost := c.cost
	cost.Requests, cost.Lists = slices.Clone(cost.Requests), slices.Clone(cost.Lists)
	return cost
}

type counting struct {
	*Traffic
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (c counting) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := c.next.RoundTrip(r)
	if err != nil || r.URL.Query().Get("watch") != "" || strings.Contains(r.URL.Path, "/events") {
		return response, err
	}
	c.mu.Lock()
	c.cost.Requests = append(c.cost.Requests, r.Method+" "+r.URL.RequestURI())
	// The paths of core kinds have one part less.
	core, parts := strings.HasPrefix(r.URL.Path, "/api/"), strings.Count(r.URL.Path, "/")
	if r.Method == http.MethodGet && (parts%2 == 0) != core {
		c.cost.Lists = append(c.cost.Lists, r.URL.RequestURI())
	}
	c.mu.Unlock()
	response.Body = countedBody{response.Body, c.Traffic}
	return response, nil
}

type countedBody struct {
	io.ReadCloser
	*Traffic
}

// Read implements io.Reader.
func (b countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.mu.Lock()
	b.cost.Bytes += n
	b.mu.Unlock()
	return n, err
}

// EndedBackups returns n backups that have ended, each of another machine with its own tracker, in the state in which
// the controller leaves them, and the trackers.
func EndedBackups(ns string, n int) []client.Object {
	var objects []client.Object
	for i := range n {
		when := metav1.NewTime(time.Now().Add(-time.Duration(i) * time.Hour).Truncate(time.Second))
		tracker := gen.Tracker(gen.Meta(ns, fmt.Sprintf("tracker-%d", i)), fmt.Sprintf("vm-%d", i))
		tracker.CreationTimestamp = when
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
