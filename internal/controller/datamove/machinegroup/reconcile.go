package machinegroup

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/controller/datamove/moversecret"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/reconcile"
)

// Reconcile takes one group one step further. The request has the machine's namespace, and the group's datamove.GroupKey: two machines may have
// groups of one name.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	result, err := r.advance(ctx, req.NamespacedName)
	if err != nil && !apierrors.IsConflict(err) {
		err = fmt.Errorf("group %s of DataUploads for namespace %s: %w", req.Name, req.Namespace, err)
	}
	return reconcile.RetryConflict(result, err)
}

func (r *reconciler) advance(ctx context.Context, key types.NamespacedName) (ctrl.Result, error) {
	g, err := r.gather(ctx, key)
	if err != nil || g == nil {
		return ctrl.Result{}, err
	}
	d := decide(g)
	result, err := r.apply(ctx, g, d)
	if err != nil {
		return ctrl.Result{}, err
	}
	if d.verdict != wait && d.verdict != serve {
		log.FromContext(ctx).Info("group of DataUploads", "group", key.Name, "machines", key.Namespace, "does", string(d.verdict), "reason", d.reason)
	}
	return result, nil
}

func (r *reconciler) apply(ctx context.Context, g *group, d decision) (ctrl.Result, error) {
	switch d.verdict {
	case create:
		err := r.cached.Create(ctx, newBackup(g))
		if apierrors.IsAlreadyExists(err) {
			return ctrl.Result{RequeueAfter: soon}, nil
		}
		if err != nil {
			r.warn(g, "BackupNotCreated", err.Error())
			return ctrl.Result{}, fmt.Errorf("create VirtualMachineBackup %s: %w", g.name, err)
		}
		return ctrl.Result{RequeueAfter: soon}, nil
	case serve:
		return r.serve(ctx, g)
	case tellEnd:
		for i := range g.members {
			if !moversecret.IsMoving(g.members[i].upload) {
				continue
			}
			if err := r.secrets.TellEnd(ctx, g.members[i].upload, d.reason); err != nil {
				return ctrl.Result{}, err
			}
		}
		return ctrl.Result{RequeueAfter: lookEvery}, nil
	case extend:
		return r.extendBackup(ctx, g, &d)
	case markStored:
		marked := g.backup.DeepCopy()
		if marked.Annotations == nil {
			marked.Annotations = map[string]string{}
		}
		marked.Annotations[layout.AnnotationStored] = "true"
		if err := r.cached.Patch(ctx, marked, reconcile.MergeFrom(g.backup)); err != nil {
			return ctrl.Result{}, fmt.Errorf("mark VirtualMachineBackup %s: %w", g.name, err)
		}
		return ctrl.Result{RequeueAfter: soon}, nil
	case remove:
		err := r.cached.Delete(ctx, g.backup, client.Preconditions{UID: &g.backup.UID, ResourceVersion: &g.backup.ResourceVersion})
		if client.IgnoreNotFound(err) != nil {
			return ctrl.Result{}, fmt.Errorf("delete VirtualMachineBackup %s: %w", g.name, err)
		}
		return ctrl.Result{}, nil
	case wait:
		if g.backup == nil {
			r.warnIfStuck(g)
		}
		if d.unwatched {
			return ctrl.Result{RequeueAfter: lookEvery}, nil
		}
	}
	return ctrl.Result{}, nil
}

// extendBackup lets the backup of a group last longer.
func (r *reconciler) extendBackup(ctx context.Context, g *group, d *decision) (ctrl.Result, error) {
	extended := g.backup.DeepCopy()
	metav1.SetMetaDataAnnotation(&extended.ObjectMeta, layout.AnnotationMovedBytes, strconv.FormatInt(d.moved, 10))
	extended.Spec.TTL, extended.Spec.TTLDuration = &metav1.Duration{Duration: d.ttl}, nil
	if err := r.cached.Patch(ctx, extended, reconcile.MergeFrom(g.backup)); err != nil {
		return ctrl.Result{}, fmt.Errorf("extend VirtualMachineBackup %s: %w", g.name, err)
	}
	return ctrl.Result{RequeueAfter: soon}, nil
}

// warnIfStuck tells the DataUploads of a group that can never be one, or whose definition is missing. What is only not there yet
// needs no warning: their exposers say what they wait for.
func (r *reconciler) warnIfStuck(g *group) {
	switch why := disagreement(g.members); {
	case len(g.members) < disks(g):
	case why != "":
		r.warn(g, "GroupDiffers", why)
	case g.noDefinition != nil:
		r.warn(g, g.noDefinition.reason, g.noDefinition.text)
	}
}

func (r *reconciler) warn(g *group, reason, why string) {
	for i := range g.members {
		r.events.Eventf(g.members[i].upload, nil, corev1.EventTypeWarning, reason, "BackUp", "%s", why)
	}
}

// gather reads a group from the API server. It has no members if nothing of it is served, or taken. A key that names no group has none.
func (r *reconciler) gather(ctx context.Context, key types.NamespacedName) (*group, error) {
	namespace, name, ok := strings.Cut(key.Name, "/")
	if !ok {
		return nil, nil
	}
	known, err := r.listMembers(ctx, key)
	if err != nil {
		return nil, err
	}
	current, err := r.secrets.Settings(ctx)
	if err != nil {
		return nil, err
	}
	g := &group{now: r.Clock.Now(), namespace: namespace, name: name, machines: key.Namespace}
	for i := range known {
		upload, err := reconcile.Find(ctx, r.live, client.ObjectKeyFromObject(&known[i]), &velerov2.DataUpload{})
		if err != nil {
			return nil, err
		}
		if upload == nil {
			continue
		}
		disk, of := diskOf(upload)
		served := moversecret.Serves(current, upload)
		if of != key || !served && !moversecret.IsTaken(upload) {
			continue
		}
		m := member{upload: upload, disk: disk, served: served}
		if note, err := datamove.DecodeReadBackup(upload.Annotations[datamove.AnnotationExposed]); err == nil {
			m.backup, m.moved = note.Backup, note.Moved
		}
		g.members = append(g.members, m)
	}
	slices.SortFunc(g.members, func(a, b member) int {
		return cmp.Or(strings.Compare(a.disk.Volume, b.disk.Volume), a.upload.CreationTimestamp.Compare(b.upload.CreationTimestamp.Time), strings.Compare(a.upload.Name, b.upload.Name))
	})
	g.backup, err = reconcile.Find(ctx, r.live, types.NamespacedName{Namespace: g.machines, Name: g.name}, &backupv1.VirtualMachineBackup{})
	if err == nil && g.backup == nil && len(g.members) > 0 {
		g.noDefinition, err = r.checkDefinition(ctx, g.members[0].disk.Definition)
	}
	return g, err
}

// diskOf returns which disk a DataUpload moves, and the key of its group; the zero key if it moves none of a running machine.
func diskOf(o *velerov2.DataUpload) (datamove.MachineDisk, types.NamespacedName) {
	if o.Spec.SnapshotType != velerov2.SnapshotMachineBackup || o.Spec.DataMoverConfig[datamove.ConfigSource] != "" {
		return datamove.MachineDisk{}, types.NamespacedName{}
	}
	disk, err := datamove.ParseMachineDisk(o.Spec.DataMoverConfig)
	if err != nil || o.Spec.SourceNamespace == "" {
		return datamove.MachineDisk{}, types.NamespacedName{} // its exposer refuses it
	}
	return disk, types.NamespacedName{Namespace: o.Spec.SourceNamespace, Name: datamove.GroupKey(o.Namespace, disk.Group)}
}
