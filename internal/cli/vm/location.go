package vm

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/machinebackup"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/repoaccess"
	"github.com/varvebackup/varve/internal/cli/resource"
	"github.com/varvebackup/varve/internal/cli/restorepoint"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/repository"
)

// storedBackup is the backup of a whole machine as a location has it. It needs no object.
type storedBackup struct {
	// name is the backup's, group what its restore points have in common, and machine that of the machine.
	name, group, machine string
	time                 time.Time
	disks                int
	bytes                int64
	// snapshotID names one of its disks.
	snapshotID string
}

// listStored returns the backups of whole machines of a namespace that a repository has, by machine, the oldest first.
// Restore points that cannot be read are an error beside them.
func listStored(ctx context.Context, r *repository.Repository, namespace string) ([]*storedBackup, error) {
	l, err := restorepoint.ReadAll(ctx, r)
	if err != nil {
		return nil, err
	}
	var all []*storedBackup
	groups := map[string]*storedBackup{}
	for _, p := range l.All {
		d, err := p.Disk(datamove.DiskName)
		if err != nil || p.Group == "" || p.Definition == nil {
			continue // it is of no whole machine
		}
		b := groups[p.Group]
		if b == nil {
			id := datamove.SnapshotID{Form: datamove.Disk, Point: p.ID, Namespace: namespace}
			b = &storedBackup{
				name: p.Labels[datamove.LabelMachineBackup], machine: p.Labels[datamove.LabelMachine],
				group: p.Group, time: p.Time, snapshotID: id.String(),
			}
			groups[p.Group] = b
			all = append(all, b)
		}
		b.disks++
		b.bytes += d.Bytes
	}
	slices.SortStableFunc(all, func(a, b *storedBackup) int { return strings.Compare(a.machine, b.machine) })
	return all, l.Unreadable
}

// readStored lists what a location has of a client's namespace. Restore points that cannot be read are a warning.
func readStored(ctx context.Context, s *resource.Session, c *cluster.Client, location string) (all []*storedBackup, err error) {
	err = repoaccess.WithLocation(ctx, s.Session, c, location,
		func(ctx context.Context, r *repository.Repository) error {
			var unreadable error
			if all, unreadable = listStored(ctx, r, c.Namespace); unreadable != nil {
				s.Warn(fmt.Errorf("some restore points are not listed: %w", unreadable))
			}
			return nil
		})
	return all, err
}

// printStored prints what a location has.
func printStored(p *output.Printer, empty io.Writer, all []*storedBackup, now time.Time) error {
	if len(all) == 0 {
		_, err := fmt.Fprintln(empty, "The location has no backups of whole machines of this namespace.")
		return err
	}
	t := &output.Table{Header: []string{"NAME", "VM", "DISKS", "SIZE", "AGE", "GROUP", "SNAPSHOT-ID"}}
	for _, b := range all {
		t.Add(b.name, b.machine, fmt.Sprint(b.disks), human.Bytes(b.bytes), human.Age(now, b.time), b.group,
			b.snapshotID)
	}
	return p.PrintTable(t)
}

// findStored makes the VirtualMachineBackup of a backup that a location has, and returns when it is ready.
func (r *restoreRequest) findStored(ctx context.Context, s *resource.Session, c *cluster.Client, w *resource.Waiting, backup string) error {
	if namespace, name, qualified := strings.Cut(r.location, "/"); qualified {
		if namespace != layout.Namespace {
			return failure.Usage("--from-location %s: machines are restored from locations of the namespace %s",
				r.location, layout.Namespace)
		}
		r.location = name
	}
	all, err := readStored(ctx, s, c, layout.Namespace+"/"+r.location)
	if err != nil {
		return err
	}
	stored, err := chooseStored(all, backup, r.location, c.Namespace)
	if err != nil {
		return err
	}
	b := &harvesterv1.VirtualMachineBackup{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: backup, Annotations: map[string]string{
			harvesterv1.AnnotationLocation: r.location, harvesterv1.AnnotationSnapshotID: stored.snapshotID,
		}},
		Spec: harvesterv1.VirtualMachineBackupSpec{
			Source: machinebackup.MachineReference(stored.machine),
			Type:   harvesterv1.Backup,
		},
	}
	err = c.Create(ctx, b)
	if apierrors.IsAlreadyExists(err) {
		if err := c.Get(ctx, client.ObjectKeyFromObject(b), b); err != nil {
			return fmt.Errorf("get machine backup %s/%s: %w", b.Namespace, b.Name, err)
		}
		if b.Annotations[harvesterv1.AnnotationSnapshotID] != stored.snapshotID {
			return &failure.Error{
				Err: fmt.Errorf("machine backup %s/%s is there, and is not the one in location %s", b.Namespace,
					b.Name, r.location),
				Code: errclass.ExitRefused, Hint: "without --from-location, the one that is there is restored",
			}
		}
	} else if err != nil {
		return fmt.Errorf("create machine backup %s/%s: %w", b.Namespace, b.Name, err)
	}
	return w.RunEach(ctx, s, "machine backup "+b.Name+" is found in location "+r.location, "vm backups",
		machinebackup.UntilReady(c, b))
}

// chooseStored returns the backup that has a name, or a group.
func chooseStored(all []*storedBackup, name, location, namespace string) (*storedBackup, error) {
	var found []*storedBackup
	for _, b := range all {
		if b.name == name || b.group == name {
			found = append(found, b)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return nil, &failure.Error{
			Err:  fmt.Errorf("location %s has no machine backup %s of namespace %s", location, name, namespace),
			Code: errclass.ExitNotFound,
			Hint: "`varve vm backups --from-location " + location + " -n " + namespace + "` shows what it has",
		}
	}
	var groups []string
	for _, b := range found {
		groups = append(groups, b.group)
	}
	return nil, failure.Usage("location %s has several machine backups %s: name one by its group: %s", location, name,
		strings.Join(groups, ", "))
}

var errTwoSources = failure.Usage("--from-namespace and --from-location exclude each other: with a location, the backup is of the namespace of -n")
