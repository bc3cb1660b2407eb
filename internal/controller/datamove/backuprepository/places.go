package backuprepository

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/varvebackup/varve/internal/datamove"
)

const (
	// MaxJobs is how many Jobs of a kind, maintenance or deletion, run at a time in the cluster.
	MaxJobs = 4
	// forgetWaiting is how long a repository that does not ask again stays in line. Each asks again within lookEvery.
	forgetWaiting = 2 * time.Minute
	// showUp is how long a Job may take to be in the cache.
	showUp = time.Minute
)

// JobPlaces bounds how many repositories have a Job of one kind at a time. Those that wait are in line, the longest
// overdue first. It is safe for concurrent use. What is in memory alone is who waits, and who asks again within a
// minute.
type JobPlaces struct {
	label string
	limit int
	woken chan event.GenericEvent

	mu      sync.Mutex
	waiting map[string]waiting
	// taken are the repositories whose Job may not be in the cache yet, and since when.
	taken map[string]time.Time
}

// waiting is a repository in line: since when its Job is due, and when it asked last.
type waiting struct{ due, asked time.Time }

// NewJobPlaces returns the places of Jobs that have a label, as Work.Label is.
func NewJobPlaces(label string) *JobPlaces {
	return &JobPlaces{
		label: label, limit: MaxJobs, woken: make(chan event.GenericEvent, MaxJobs),
		waiting: map[string]waiting{}, taken: map[string]time.Time{},
	}
}

// Source tells a controller of repositories that wait while there are places.
func (p *JobPlaces) Source() source.Source {
	return source.Channel(p.woken, &handler.EnqueueRequestForObject{})
}

// Take says whether the Job of a repository, which is due, may be made now. If so, the repository has a place until
// its Job ends, or until Leave. Otherwise it is in line as long as it asks again.
func (p *JobPlaces) Take(
	ctx context.Context, cached client.Reader, repository client.ObjectKey, due, now time.Time,
) (bool, error) {
	busy, err := p.repositoriesWithJobs(ctx, cached, repository.Namespace)
	if err != nil {
		return false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forgetAbsent(busy, now)
	if busy[repository.Name] {
		return true, nil
	}
	p.waiting[repository.Name] = waiting{due: due, asked: now}
	if !slices.Contains(p.firstInLine(p.limit-len(busy)), repository.Name) {
		return false, nil
	}
	delete(p.waiting, repository.Name)
	p.taken[repository.Name] = now
	return true, nil
}

// Leave says that a repository has no Job, and waits for none, and wakes the next in line.
func (p *JobPlaces) Leave(ctx context.Context, cached client.Reader, repository client.ObjectKey, now time.Time) error {
	busy, err := p.repositoriesWithJobs(ctx, cached, repository.Namespace)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.waiting, repository.Name)
	delete(p.taken, repository.Name)
	delete(busy, repository.Name)
	p.forgetAbsent(busy, now)
	for _, name := range p.firstInLine(p.limit - len(busy)) {
		meta := metav1.ObjectMeta{Namespace: repository.Namespace, Name: name}
		select {
		case p.woken <- event.GenericEvent{Object: &metav1.PartialObjectMetadata{ObjectMeta: meta}}:
		default: // it asks again by itself
		}
	}
	return nil
}

// firstInLine returns the n repositories that are first in line. The caller holds mu.
func (p *JobPlaces) firstInLine(n int) []string {
	line := slices.SortedFunc(maps.Keys(p.waiting), func(a, b string) int {
		return cmp.Or(p.waiting[a].due.Compare(p.waiting[b].due), cmp.Compare(a, b))
	})
	return line[:max(0, min(n, len(line)))]
}

// forgetAbsent forgets who does not ask any more, and adds to busy who has taken a place. The caller holds mu.
func (p *JobPlaces) forgetAbsent(busy map[string]bool, now time.Time) {
	maps.DeleteFunc(p.waiting, func(_ string, w waiting) bool { return now.Sub(w.asked).Abs() > forgetWaiting })
	maps.DeleteFunc(p.taken, func(_ string, at time.Time) bool { return now.Sub(at).Abs() > showUp })
	for name := range p.taken {
		busy[name] = true
	}
}

// repositoriesWithJobs returns the repositories that have a Job which has not ended.
func (p *JobPlaces) repositoriesWithJobs(
	ctx context.Context, cached client.Reader, namespace string,
) (map[string]bool, error) {
	jobs := &batchv1.JobList{}
	err := cached.List(ctx, jobs, client.InNamespace(namespace), client.MatchingLabels{p.label: "true"})
	if err != nil {
		return nil, fmt.Errorf("list jobs: %w", err)
	}
	busy := map[string]bool{}
	for i := range jobs.Items {
		if job := &jobs.Items[i]; EndOf(job) == nil {
			busy[job.Labels[datamove.LabelRepository]] = true
		}
	}
	return busy, nil
}
