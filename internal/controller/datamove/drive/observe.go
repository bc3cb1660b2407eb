package drive

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/datamove/settings"
	"github.com/varvebackup/varve/internal/diagnosis"
	"github.com/varvebackup/varve/internal/reconcile"
)

// quietTime is how long a pod may take to start until its events are read.
const quietTime = 3 * time.Second

// pass is one pass of the Reconciler for one object.
type pass struct {
	*Reconciler
	object   client.Object
	settings settings.Settings
	pod      *corev1.Pod
	// storage is what the object's pod mounts beside its volume; or nil.
	storage *datamove.Storage
	// contents is how many contents the index of the object's repository has.
	contents int64
	in       Input
}

// observe reads what a decision depends on. What the pass was answered before stays.
func (p *pass) observe(ctx context.Context) error {
	v, err := viewOf(p.object)
	if err != nil {
		return err
	}
	in := &p.in
	in.Now, in.Object = p.Clock.Now(), v
	in.Served, in.Unserved = isServed(&p.settings, &v), p.unserved(&v)
	in.PrepareTimeout, in.KeepsPoint = p.settings.PrepareTimeout.Duration, p.Deleter != nil
	nodes, err := p.listNodes(ctx)
	if err != nil {
		return err
	}
	if v.Phase == velerov2.PhaseNew && v.Driver == "" {
		in.Takers = len(p.newSurvey(nodes, &p.settings).takers)
		return nil
	}
	if in.DriverNode, err = p.findNodeState(ctx, nodes, v.Driver); err != nil {
		return err
	}
	if err := p.observePod(ctx, nodes); err != nil {
		return err
	}
	if v.Phase.Ended() || v.Memory.Ending != nil {
		return nil
	}
	if n := nodeOfName(nodes, v.Driver); n != nil {
		in.DriverNode.Closed = isClosed(n, p.settings.Pod.Tolerations)
	}
	if v.Phase == velerov2.PhaseAccepted {
		if err := p.observeLocation(ctx); err != nil {
			return err
		}
	}
	return p.observeRepository(ctx) // also for a pod that replaces another one
}

func (p *pass) podKey() types.NamespacedName {
	return types.NamespacedName{Namespace: p.Namespace, Name: datamove.ChildName(p.Kind, p.object.GetUID())}
}

func (p *pass) observePod(ctx context.Context, nodes []*corev1.Node) error {
	pod, err := reconcile.Find(ctx, p.Live, p.podKey(), &corev1.Pod{})
	if err != nil {
		return err
	}
	p.pod, p.in.Pod, p.in.PodNode = pod, nil, NodeState{}
	node := ""
	if pod != nil {
		p.in.Pod = stateOfPod(pod)
		node = p.in.Pod.Node
		if !p.in.Pod.Running && !p.in.Pod.Ended && p.Clock.Since(pod.CreationTimestamp.Time) > quietTime {
			p.in.Pod.Trouble = because(p.in.Pod.Trouble, p.lastWarning(ctx, pod, p.in.Pod.Trouble))
		}
	} else if p.in.Object.Memory.Pod != "" {
		node = p.in.Object.Node
	}
	if node != "" {
		p.in.PodNode, err = p.findNodeState(ctx, nodes, node)
	}
	return err
}

// lastWarning returns the last warning of a pod's events that known does not say, or "".
func (p *pass) lastWarning(ctx context.Context, pod *corev1.Pod, known string) string {
	const enough = 50
	var list corev1.EventList
	err := p.Live.List(ctx, &list, client.InNamespace(pod.Namespace), client.MatchingFields{"involvedObject.uid": string(pod.UID)}, client.Limit(enough))
	if err != nil {
		p.Log.V(1).Info("read events", "pod", pod.Name, "error", err.Error()) // they are only an explanation
		return ""
	}
	return diagnosis.LatestWarning(list.Items, known)
}

// unserved says why this version can never serve an object, or "".
func (m *Mover) unserved(v *Object) string {
	if v.BadSpec != "" {
		return v.BadSpec
	}
	if v.Kind == datamove.Upload {
		if _, ok := m.Uploads[v.SnapshotType]; !ok {
			types := make([]string, 0, len(m.Uploads))
			for t := range m.Uploads {
				types = append(types, t)
			}
			slices.Sort(types)
			return fmt.Sprintf("snapshotType %.80q is not served by the data mover %s: it serves %s", v.SnapshotType, datamove.Mover, strings.Join(types, ", "))
		}
		return ""
	}
	if m.Downloads == nil {
		return fmt.Sprintf("DataDownloads are not served by this version of the data mover %s", datamove.Mover)
	}
	if _, err := datamove.ParseSnapshotID(v.SnapshotID); err != nil {
		return err.Error()
	}
	return ""
}

func (p *pass) observeLocation(ctx context.Context) error {
	v := &p.in.Object
	location, err := reconcile.Find(ctx, p.Cached, types.NamespacedName{Namespace: v.Namespace, Name: v.Location}, &velerov1.BackupStorageLocation{})
	if err != nil {
		return err
	}
	p.in.Location = LocationState{Found: location != nil, ReadOnly: location != nil && location.Spec.AccessMode == velerov1.AccessReadOnly}
	return nil
}

// volumeNamespace returns the namespace whose repository an object needs.
func (p *pass) volumeNamespace() string {
	switch o := p.object.(type) {
	case *velerov2.DataUpload:
		return o.Spec.SourceNamespace
	case *velerov2.DataDownload:
		if id, err := datamove.ParseSnapshotID(o.Spec.SnapshotID); err == nil {
			return id.Namespace
		}
	}
	return ""
}

func (p *pass) repositoryName() string {
	v := &p.in.Object
	return datamove.RepositoryName(p.volumeNamespace(), datamove.Location{Namespace: v.Namespace, Name: v.Location})
}

func (p *pass) observeRepository(ctx context.Context) error {
	name := p.repositoryName()
	repository, err := reconcile.Find(ctx, p.Cached, types.NamespacedName{Namespace: p.Namespace, Name: name}, &velerov1.BackupRepository{})
	if err != nil {
		return err
	}
	s := RepositoryState{Name: name, Found: p.in.Repository.Found || repository != nil}
	if repository != nil {
		s.Ready, s.Message = repository.Status.Phase == velerov1.RepositoryReady, repository.Status.Message
		p.contents = datamove.ContentsOf(repository)
		if p.storage, err = datamove.StorageOf(repository); err != nil {
			s.Ready, s.NoStorage, s.Message = false, true, err.Error()
		}
	}
	p.in.Repository = s
	return nil
}

// makeRepository creates the BackupRepository. A controller makes the repository itself.
func (p *pass) makeRepository(ctx context.Context) error {
	v := &p.in.Object
	repository := &velerov1.BackupRepository{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.repositoryName()},
		Spec: velerov1.BackupRepositorySpec{
			VolumeNamespace: p.volumeNamespace(), BackupStorageLocation: v.Location, RepositoryType: velerov1.RepositoryKopia,
			RepositoryConfig: map[string]string{datamove.ConfigLocationNamespace: v.Namespace},
		},
	}
	if err := p.Writer.Create(ctx, repository); err != nil && !apierrors.IsAlreadyExists(err) {
		p.in.Repository.Err = fmt.Errorf("create BackupRepository %s: %w", repository.Name, err)
		return nil
	}
	p.in.Repository.Found = true // the cache will know
	return nil
}

// expose, finish and dispose ask the exposer of the object.
func (p *pass) expose(ctx context.Context) (Exposure, error) {
	switch o := p.object.(type) {
	case *velerov2.DataUpload:
		return p.Uploads[o.Spec.SnapshotType].Expose(ctx, o)
	case *velerov2.DataDownload:
		return p.Downloads.Expose(ctx, o)
	}
	return Exposure{}, fmt.Errorf("%T has no volume", p.object)
}

func (p *pass) finish(ctx context.Context) (Progress, error) {
	switch o := p.object.(type) {
	case *velerov2.DataUpload:
		return p.Uploads[o.Spec.SnapshotType].Finish(ctx, o)
	case *velerov2.DataDownload:
		return p.Downloads.Finish(ctx, o)
	}
	return Progress{}, fmt.Errorf("%T has no volume", p.object)
}

// dispose has nothing to do for an object that nobody could serve.
func (p *pass) dispose(ctx context.Context) (Progress, error) {
	switch o := p.object.(type) {
	case *velerov2.DataUpload:
		if e, ok := p.Uploads[o.Spec.SnapshotType]; ok {
			return e.Dispose(ctx, o)
		}
	case *velerov2.DataDownload:
		if p.Downloads != nil {
			return p.Downloads.Dispose(ctx, o)
		}
	}
	return Progress{Done: true}, nil
}

func (m *Mover) listNodes(ctx context.Context) ([]*corev1.Node, error) {
	var list corev1.NodeList
	if err := m.Cached.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	nodes := make([]*corev1.Node, len(list.Items))
	for i := range list.Items {
		nodes[i] = &list.Items[i]
	}
	return nodes, nil
}

// findNodeState returns the state of a node. That it is gone is believed of the API server alone: what runs on a node
// that is gone is killed.
func (m *Mover) findNodeState(ctx context.Context, cached []*corev1.Node, name string) (NodeState, error) {
	if node := nodeOfName(cached, name); node != nil || name == "" {
		return stateOfNode(name, node), nil
	}
	node, err := reconcile.Find(ctx, m.Live, types.NamespacedName{Name: name}, &corev1.Node{})
	if err != nil {
		return NodeState{}, err
	}
	return stateOfNode(name, node), nil
}
