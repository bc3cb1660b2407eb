package kubevirtbackup

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/backupstate"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/reconcile"
)

// defaultCopiesPerNode is how many backups copy on one node at a time unless the configuration says otherwise.
const defaultCopiesPerNode = 4

// nodeLoad lists the backups that count towards a node's limit: those of the same mode. One that clients pull costs a node
// little, and none that is pushed waits for it.
type nodeLoad struct {
	// Copying are the backups that have a place on the node: those in Attaching, Starting and Copying.
	Copying []types.NamespacedName
	// Ahead are those that wait for a place on the node and get the next one before this backup.
	Ahead []types.NamespacedName
}

// copiesPerNode returns the configured limit. A policy refuses a value that is not a number. If there is one
// nevertheless, the default applies.
func copiesPerNode(configuration *kubevirtv1.KubeVirt) int {
	if configuration == nil {
		return defaultCopiesPerNode
	}
	n, err := strconv.Atoi(configuration.Annotations[layout.AnnotationCopiesPerNode])
	if err != nil || n < 1 {
		return defaultCopiesPerNode
	}
	return n
}

// nodeBusy returns an obstacle if other backups take all places on the node, or nil. A backup takes a place before
// anything is attached, locked or frozen, and gives it back when the copy has ended.
func nodeBusy(in *input) *obstacle {
	limit := copiesPerNode(in.Configuration)
	if len(in.Node.Copying)+len(in.Node.Ahead) < limit {
		return nil
	}
	return waitFor(backupstate.NodeBusy(backupstate.NodePlaces{
		Node: in.Instance.Status.NodeName, Running: len(in.Node.Copying), Limit: limit, Ahead: len(in.Node.Ahead), Here: namesIn(in.Backup.Namespace, in.Node.Copying),
		Annotation: layout.AnnotationCopiesPerNode, Configuration: in.ConfigurationName.String(),
	}))
}

// namesIn returns the names of those in a namespace. Those of others are none of its users' business.
func namesIn(namespace string, backups []types.NamespacedName) []string {
	var names []string
	for _, b := range backups {
		if b.Namespace == namespace {
			names = append(names, b.Name)
		}
	}
	slices.Sort(names)
	return names
}

// readNodeLoad reads only from memory. It also counts what this process granted and the cache does not show yet. After
// a change of leader, the limit may be exceeded by what the cache does not show at that moment.
func (r *reconciler) readNodeLoad(ctx context.Context, b *backupv1.VirtualMachineBackup, node string) (nodeLoad, error) {
	var list backupv1.VirtualMachineBackupList
	if err := r.cached.List(ctx, &list, client.MatchingFields{byNode: node}, client.UnsafeDisableDeepCopy); err != nil {
		return nodeLoad{}, fmt.Errorf("list the backups of node %s: %w", node, err)
	}
	var load nodeLoad
	var waiting []*backupv1.VirtualMachineBackup
	for i := range list.Items {
		o := &list.Items[i]
		switch {
		case o.UID == b.UID || o.Spec.IsPull() != b.Spec.IsPull():
		case backupstate.FindPhase(o.Status.Phase).Copies:
			r.granted.forgetBackup(o.UID)
			load.Copying = append(load.Copying, client.ObjectKeyFromObject(o))
		case isWaiting(o) && o.Status.Reason == backupv1.ReasonNodeBusy && o.DeletionTimestamp == nil && !r.granted.hasBackup(o.UID):
			waiting = append(waiting, o)
		}
	}
	for uid, backup := range r.granted.grantedOn(node, b.UID) {
		// Places are granted to backups that the cache shows. A backup that it no longer shows has vanished without
		// giving its place back.
		o, err := reconcile.Find(ctx, r.cached, backup, &backupv1.VirtualMachineBackup{})
		switch {
		case err != nil:
			return nodeLoad{}, err
		case o == nil || o.UID != uid:
			r.granted.forgetBackup(uid)
		case o.Spec.IsPull() == b.Spec.IsPull():
			load.Copying = append(load.Copying, backup)
		}
	}
	load.Ahead = aheadForPlace(b, waiting, load.Copying)
	return load, nil
}

// aheadForPlace returns those of the waiting backups that get a place before b. Namespaces take turns: the next place goes to
// the one that has the fewest, and within it, as between equals, to the oldest backup.
func aheadForPlace(b *backupv1.VirtualMachineBackup, waiting []*backupv1.VirtualMachineBackup, copying []types.NamespacedName) []types.NamespacedName {
	places := map[string]int{} // those that a namespace has, or will have when the backups so far have got theirs
	for _, c := range copying {
		places[c.Namespace]++
	}
	all := append(slices.Clone(waiting), b)
	slices.SortFunc(all, func(x, y *backupv1.VirtualMachineBackup) int {
		if isOlder(x, y) {
			return -1
		}
		return 1
	})
	turn := make(map[types.UID]int, len(all))
	for _, w := range all {
		turn[w.UID] = places[w.Namespace]
		places[w.Namespace]++
	}
	var ahead []types.NamespacedName
	for _, w := range all {
		if turn[w.UID] < turn[b.UID] || turn[w.UID] == turn[b.UID] && isOlder(w, b) {
			ahead = append(ahead, client.ObjectKeyFromObject(w))
		}
	}
	return ahead
}

// requestsForSameNode wakes the backups that wait for a place on a backup's node.
func (r *reconciler) requestsForSameNode(ctx context.Context, o client.Object) []ctrl.Request {
	node := o.(*backupv1.VirtualMachineBackup).Status.NodeName
	if node == "" {
		return nil
	}
	var list backupv1.VirtualMachineBackupList
	err := r.cached.List(ctx, &list, client.MatchingFields{byNode: node})
	list.Items = slices.DeleteFunc(list.Items, func(b backupv1.VirtualMachineBackup) bool { return !isWaiting(&b) })
	return requestsExcept(ctx, o, list.Items, err)
}

// grantedPlaces are those that this process has granted and that its cache may not show yet.
type grantedPlaces struct {
	mu       sync.Mutex
	byBackup map[types.UID]grantedPlace
}

type grantedPlace struct {
	node   string
	backup types.NamespacedName
}

// recordStatus records the effect of a status write. A backup that enters Attaching has a place. In any other phase it has
// none that the cache does not show yet.
func (p *grantedPlaces) recordStatus(b *backupv1.VirtualMachineBackup, status *backupv1.VirtualMachineBackupStatus) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if status.Phase != backupv1.BackupAttaching {
		delete(p.byBackup, b.UID)
		return
	}
	if b.Status.Phase == backupv1.BackupAttaching {
		return
	}
	if p.byBackup == nil {
		p.byBackup = map[types.UID]grantedPlace{}
	}
	p.byBackup[b.UID] = grantedPlace{node: status.NodeName, backup: client.ObjectKeyFromObject(b)}
}

// forgetBackup drops a place that the cache shows, or whose backup is gone.
func (p *grantedPlaces) forgetBackup(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.byBackup, uid)
}

func (p *grantedPlaces) hasBackup(uid types.UID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ok := p.byBackup[uid]
	return ok
}

// grantedOn returns, by UID, the backups that have a place on a node, except for but.
func (p *grantedPlaces) grantedOn(node string, but types.UID) map[types.UID]types.NamespacedName {
	p.mu.Lock()
	defer p.mu.Unlock()
	backups := map[types.UID]types.NamespacedName{}
	for uid, g := range p.byBackup {
		if g.node == node && uid != but {
			backups[uid] = g.backup
		}
	}
	return backups
}
