package drive

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/datamove/settings"
	"github.com/varvebackup/varve/internal/nodeselector"
	"github.com/varvebackup/varve/internal/reconcile"
)

// targetWait is how long an object is left alone whose target claim does not exist yet: the claim says where it is
// needed.
const targetWait = 10 * time.Second

// annotationSelectedNode is the scheduler's, on a claim: the node of the pod that waits for the claim.
const annotationSelectedNode = "volume.kubernetes.io/selected-node"

// volumePlace is which nodes reach an object's volume.
type volumePlace struct {
	// nodes are those; nil: all of them, as far as is known.
	nodes *corev1.NodeSelector
	// preferred: all others reach it, too, over the network.
	preferred bool
}

// survey is what one look at the cluster's nodes has found. It remembers where the storages of locations can be used.
type survey struct {
	*Mover
	settings *settings.Settings
	// open are the nodes that take pods, and takers those of them that may take objects by the settings.
	open, takers []*corev1.Node
	storages     map[datamove.Location]*storagePlace
}

func (m *Mover) surveyNodes(ctx context.Context, current *settings.Settings) (*survey, error) {
	nodes, err := m.listNodes(ctx)
	if err != nil {
		return nil, err
	}
	return m.newSurvey(nodes, current), nil
}

func (m *Mover) newSurvey(nodes []*corev1.Node, current *settings.Settings) *survey {
	s := &survey{Mover: m, settings: current, storages: map[datamove.Location]*storagePlace{}}
	s.open = nodesWhere(nodes, func(n *corev1.Node) bool { return takesPods(n, current.Pod.Tolerations) })
	s.takers = nodesWhere(s.open, func(n *corev1.Node) bool { return current.PerNode(n.Labels) > 0 })
	return s
}

// choice is the nodes that may run the pod of an object.
type choice struct {
	nodes []*corev1.Node
	// reach: they reach the volume. Otherwise they are all that take pods, and the object says there what is wrong.
	reach bool
	// wait is how long to leave the object alone; 0: no time.
	wait time.Duration
}

// nodesFor returns the nodes that may run the pod of an object: those that take pods and reach both its volume and the
// storage of its location, as far as there are any.
func (s *survey) nodesFor(ctx context.Context, o client.Object, v *Object) (choice, error) {
	volume, wait, err := s.placeOf(ctx, o, v)
	if err != nil || wait > 0 {
		return choice{wait: wait}, err
	}
	storage, err := s.rememberedStorage(ctx, v)
	if err != nil {
		return choice{}, err
	}
	return s.chooseNodes(volume, storage), nil
}

// chooseNodes decides among the nodes. Nodes that take no object by the settings count only if no other one will do:
// then the object waits for the settings. A volume that every node reaches goes to where the storage is, and a storage
// that one node uses at a time has one node.
func (s *survey) chooseNodes(volume volumePlace, storage *storagePlace) choice {
	reachesVolume := func(n *corev1.Node) bool { return nodeselector.Selects(volume.nodes, n) }
	reachesBoth := func(n *corev1.Node) bool { return reachesVolume(n) && storage.selects(n) }
	from := s.takers
	if !slices.ContainsFunc(from, func(n *corev1.Node) bool {
		return (volume.preferred || reachesVolume(n)) && storage.selects(n)
	}) {
		from = s.open
	}
	found := nodesWhere(from, reachesBoth)
	if len(found) == 0 && volume.preferred {
		found = nodesWhere(from, storage.selects)
	}
	if len(found) == 0 {
		if found = nodesWhere(from, reachesVolume); len(found) == 0 {
			return choice{nodes: from}
		}
		return choice{nodes: found, reach: true}
	}
	if storage != nil && storage.oneNode {
		found = []*corev1.Node{slices.MinFunc(found, compareNodes)}
	}
	return choice{nodes: found, reach: true}
}

// nodesWhere returns the nodes that fit.
func nodesWhere(nodes []*corev1.Node, fits func(*corev1.Node) bool) []*corev1.Node {
	var found []*corev1.Node
	for _, n := range nodes {
		if fits(n) {
			found = append(found, n)
		}
	}
	return found
}

// nodeOfName returns the node of a name, or nil.
func nodeOfName(nodes []*corev1.Node, name string) *corev1.Node {
	i := slices.IndexFunc(nodes, func(n *corev1.Node) bool { return n.Name == name })
	if i < 0 {
		return nil
	}
	return nodes[i]
}

// freestNode returns the node with the most free places, or nil if none has one.
func freestNode(nodes []*corev1.Node, free map[string]int) *corev1.Node {
	var best *corev1.Node
	for _, n := range nodes {
		if free[n.Name] > 0 && (best == nil || free[n.Name] > free[best.Name]) {
			best = n
		}
	}
	return best
}

// places are the places that this process has given away, and that its cache may not know of yet. Whoever counts
// places holds mu until those that it gives away are noted.
type places struct {
	mu    sync.Mutex
	given map[types.UID]place
	// yielded are the objects that give their places back, and since when. Such a place is free when the cache says so.
	yielded map[types.UID]time.Time
}

type place struct {
	node string
	at   time.Time
	// written: the object in the API server has the place, even if the cache does not show it yet. Until then the write
	// is still to come, or got no answer.
	written bool
	// again: the object had given a place back before it got this one. Until the cache shows this one, it shows that.
	again bool
}

// placeMemory is how long a place counts that may not have been written.
const placeMemory = time.Minute

// countTaken returns how many places of each node are taken, and forgets what the cache knows by now.
func (p *places) countTaken(objects []openObject, now time.Time) map[string]int {
	taken := map[string]int{}
	present := map[types.UID]bool{}
	for i := range objects {
		v := &objects[i].view
		present[v.UID] = true
		if given, ok := p.given[v.UID]; ok && v.Driver == given.node && (!given.again || v.Memory.Yielded == nil) {
			delete(p.given, v.UID)
		}
		if node := p.nodeOf(v); node != "" {
			taken[node]++
		}
	}
	for uid, given := range p.given {
		if !present[uid] || !given.written && now.Sub(given.at) > placeMemory {
			delete(p.given, uid)
		}
	}
	return taken
}

// nodeOf returns the node whose place an object has, or "".
func (p *places) nodeOf(v *Object) string {
	if given, ok := p.given[v.UID]; ok {
		return given.node
	}
	if isRunning(v) {
		return v.Driver
	}
	return ""
}

// giveTo notes that an object is about to get a place on a node, markWritten that it has it, and takeBack that it does
// not.
func (p *places) giveTo(v *Object, node string, now time.Time) {
	if p.given == nil {
		p.given = map[types.UID]place{}
	}
	p.given[v.UID] = place{node: node, at: now, again: v.Memory.Yielded != nil}
}

func (p *places) markWritten(uid types.UID) {
	given := p.given[uid]
	given.written = true
	p.given[uid] = given
}

func (p *places) takeBack(uid types.UID) { delete(p.given, uid) }

// mayYield says whether an object may give its place back, and notes that it does: at most limit objects are prepared
// without one.
func (p *places) mayYield(objects []openObject, uid types.UID, limit int, now time.Time) bool {
	maps.DeleteFunc(p.yielded, func(_ types.UID, at time.Time) bool { return now.Sub(at) > placeMemory })
	preparing := 0
	for i := range objects {
		v := &objects[i].view
		_, yields := p.yielded[v.UID]
		if v.UID != uid && (yields || isPrepared(v)) {
			preparing++
		}
	}
	if preparing >= limit {
		return false
	}
	if p.yielded == nil {
		p.yielded = map[types.UID]time.Time{}
	}
	p.yielded[uid] = now
	return true
}

// mayYield says whether the object may give its place back while what it needs takes long.
func (p *pass) mayYield(ctx context.Context) (bool, error) {
	p.places.mu.Lock()
	defer p.places.mu.Unlock()
	objects, err := p.listOpen(ctx, &p.settings)
	if err != nil {
		return false, err
	}
	return p.places.mayYield(objects, p.in.Object.UID, p.settings.Concurrency.Preparing, p.Clock.Now()), nil
}

// freePlaces returns how many places are left on each node that may take objects.
func (s *survey) freePlaces(taken map[string]int) map[string]int {
	free := map[string]int{}
	for _, n := range s.takers {
		if left := s.settings.PerNode(n.Labels) - taken[n.Name]; left > 0 {
			free[n.Name] = left
		}
	}
	return free
}

// placeAgain gives an object whose node is lost or closed a place on another one that reaches its volume; "" if there
// is none.
func (p *pass) placeAgain(ctx context.Context) (string, error) {
	p.places.mu.Lock()
	defer p.places.mu.Unlock()
	s, err := p.surveyNodes(ctx, &p.settings)
	if err != nil {
		return "", err
	}
	may, err := s.nodesFor(ctx, p.object, &p.in.Object)
	if err != nil || !may.reach {
		return "", err
	}
	objects, err := p.listOpen(ctx, &p.settings)
	if err != nil {
		return "", err
	}
	uid, now := p.in.Object.UID, p.Clock.Now()
	p.places.takeBack(uid) // of a pass whose write failed
	node := freestNode(may.nodes, s.freePlaces(p.places.countTaken(objects, now)))
	if node == nil {
		return "", nil
	}
	p.places.giveTo(&p.in.Object, node.Name, now)
	return node.Name, nil
}

// nodesElsewhere returns the nodes that the object's pod may run on if that is not the one whose place it has: because
// that one does not reach the volume, or not the storage, and others reach both.
func (p *pass) nodesElsewhere(ctx context.Context, volume *Volume) (*corev1.NodeSelector, error) {
	nodes, err := p.listNodes(ctx)
	if err != nil {
		return nil, err
	}
	self := nodeOfName(nodes, p.in.Object.Driver)
	if self == nil {
		return nil, nil //nolint:nilnil // the pod waits for its node
	}
	storage, err := p.placeOfStorage(ctx, &p.in.Object)
	if err != nil {
		return nil, err
	}
	if storage != nil {
		both := nodeselector.Both(volume.NodeAffinity, storage.nodes)
		reachesBoth := func(n *corev1.Node) bool { return nodeselector.Selects(both, n) }
		if !reachesBoth(self) && slices.ContainsFunc(nodes, reachesBoth) {
			return both, nil
		}
	}
	if nodeselector.Selects(volume.NodeAffinity, self) {
		return nil, nil //nolint:nilnil // the pod runs there
	}
	return volume.NodeAffinity, nil
}

// placeOf returns which nodes reach an object's volume.
func (m *Mover) placeOf(ctx context.Context, o client.Object, v *Object) (volumePlace, time.Duration, error) {
	switch o := o.(type) {
	case *velerov2.DataUpload:
		if node, err := m.nodeOfMachine(ctx, o); err != nil || node != "" {
			return volumePlace{nodes: nodeNamed(node), preferred: true}, 0, err
		}
		claim, err := m.findClaim(ctx, o.Spec.SourceNamespace, o.Spec.SourcePVC)
		if err != nil || claim == nil || claim.Spec.VolumeName == "" {
			return volumePlace{}, 0, err
		}
		nodes, err := m.volumes.nodesOf(ctx, m, claim.Spec.VolumeName)
		if err != nil || nodes == nil {
			return volumePlace{}, 0, err
		}
		// What is in a backup of a machine comes over the network.
		return volumePlace{nodes: nodes, preferred: o.Spec.SnapshotType == velerov2.SnapshotMachineBackup}, 0, nil
	case *velerov2.DataDownload:
		if datamove.ReadsDefinition(o.Spec.DataMoverConfig) {
			return volumePlace{}, 0, nil
		}
		claim, err := m.findClaim(ctx, o.Spec.TargetVolume.Namespace, o.Spec.TargetVolume.PVC)
		if err != nil {
			return volumePlace{}, 0, err
		}
		if claim == nil {
			return volumePlace{}, max(0, targetWait-m.Clock.Since(v.Created)), nil
		}
		if node := claim.Annotations[annotationSelectedNode]; node != "" {
			return volumePlace{nodes: nodeNamed(node)}, 0, nil
		}
		if claim.Spec.VolumeName != "" && datamove.WritesImage(o.Spec.DataMoverConfig) {
			nodes, err := m.volumes.nodesOf(ctx, m, claim.Spec.VolumeName)
			return volumePlace{nodes: nodes}, 0, err
		}
	}
	return volumePlace{}, 0, nil
}

// nodeOfMachine returns the node of the running machine whose disk a DataUpload moves, or "": its launcher need not
// send the disk over the network.
func (m *Mover) nodeOfMachine(ctx context.Context, o *velerov2.DataUpload) (string, error) {
	config := o.Spec.DataMoverConfig
	if o.Spec.SnapshotType != velerov2.SnapshotMachineBackup || datamove.ReadsEndpoints(config) ||
		config[datamove.ConfigMachine] == "" {
		return "", nil
	}
	key := types.NamespacedName{Namespace: o.Spec.SourceNamespace, Name: config[datamove.ConfigMachine]}
	instance, err := reconcile.Find(ctx, m.Cluster, key, &kubevirtv1.VirtualMachineInstance{})
	if err != nil || instance == nil {
		return "", err
	}
	return instance.Status.NodeName, nil
}

func (m *Mover) findClaim(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	key := types.NamespacedName{Namespace: namespace, Name: name}
	return reconcile.Find(ctx, m.Cluster, key, &corev1.PersistentVolumeClaim{})
}

// volumeNodes remembers which nodes reach PersistentVolumes, so that waiting objects are not read for again and again.
// It is safe for concurrent use.
type volumeNodes struct {
	mu sync.Mutex
	of map[string]readNodes
	// pruned is when what is old was last forgotten.
	pruned time.Time
}

type readNodes struct {
	nodes *corev1.NodeSelector
	at    time.Time
}

// volumeMemory is how long it is remembered. The affinity of a volume does not change, but a name may be used again.
const volumeMemory = 5 * time.Minute

// nodesOf returns the nodes that can reach a PersistentVolume. It is nil if every node can, or if the
// volume does not exist.
func (n *volumeNodes) nodesOf(ctx context.Context, m *Mover, name string) (*corev1.NodeSelector, error) {
	now := m.Clock.Now()
	n.mu.Lock()
	read, known := n.of[name]
	n.mu.Unlock()
	if known && now.Sub(read.at) < volumeMemory {
		return read.nodes, nil
	}
	volume, err := reconcile.Find(ctx, m.Live, types.NamespacedName{Name: name}, &corev1.PersistentVolume{})
	if err != nil {
		return nil, fmt.Errorf("find the nodes of PersistentVolume %s: %w", name, err)
	}
	if volume == nil {
		return nil, nil //nolint:nilnil // it may come
	}
	read = readNodes{at: now}
	if volume.Spec.NodeAffinity != nil {
		read.nodes = volume.Spec.NodeAffinity.Required
	}
	n.remember(name, read)
	return read.nodes, nil
}

func (n *volumeNodes) remember(name string, read readNodes) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.of == nil {
		n.of = map[string]readNodes{}
	}
	if read.at.Sub(n.pruned) > volumeMemory {
		maps.DeleteFunc(n.of, func(_ string, old readNodes) bool { return read.at.Sub(old.at) > volumeMemory })
		n.pruned = read.at
	}
	n.of[name] = read
}
