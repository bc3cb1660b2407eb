package vm

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/machinebackup"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/resource"
)

// backupNameTime is how the time of a backup is written in a name that nobody chose.
const backupNameTime = "20060102-150405"

// backupRequest is what the flags of `vm backup` say.
type backupRequest struct {
	name string
	machinebackup.Choices
}

func newBackupCommand(s *resource.Session) *cobra.Command {
	var r backupRequest
	var w resource.Waiting
	c := &cobra.Command{
		Use: "backup NAME", Short: "Back up a whole virtual machine: its disks and its definition",
		Long: `Back up a whole virtual machine: its disks, all of one moment, and its definition, with the
Secrets that it refers to. Both go into the repository of its namespace, encrypted.

What was stored before is not read again: only what has changed. Of a machine that is stopped,
all that is allocated is read; leave it stopped until the backup is ready. Everything that the
backup needs is made and removed for it. The backup is an object, a VirtualMachineBackup of
harvesterhci.io; 'varve backup' has those of backup.kubevirt.io, jobs on the hypervisor, from
which no machine comes back by itself.

--snapshot takes snapshots of all disks in the machine's own storage instead, tracked or not, and
stores nothing in a location: it is quick, it is restored in its namespace, and it is lost with
the storage.`,
		Example: `  varve vm backup web --wait

  # Under a name, to a location that is not the default one
  varve vm backup web --as web-before-upgrade --location shelf --wait

  # Quickly, in the machine's own storage
  varve vm backup web --snapshot --wait`,
		Args:              cmdline.ExactArgs(1, "the name of a virtual machine"),
		ValidArgsFunction: s.CompleteArgs(resource.NewVMs, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := r.Check("a backup"); err != nil {
				return err
			}
			c, err := s.Connect()
			if err != nil {
				return err
			}
			if _, _, err := getVM(cmd.Context(), c, args[0]); err != nil {
				return err
			}
			b := r.newObject(c.Namespace, args[0], s.Now())
			if err := c.Create(cmd.Context(), b); err != nil {
				return fmt.Errorf("create machine backup %s/%s: %w", b.Namespace, b.Name, err)
			}
			if err := output.PrintDone(cmd.OutOrStdout(), b, "created"); err != nil || !w.Wait {
				return err
			}
			if err := w.RunEach(cmd.Context(), s, "machine backup "+b.Name+" is ready", "vm backups",
				machinebackup.UntilReady(c, b)); err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), human.Line(machinebackup.DescribeStored(b)))
			return err
		},
	}
	c.Flags().StringVar(&r.name, "as", "", "the backup's name (default: the machine's, with the time)")
	r.AddFlags(c)
	w.AddFlags(c, "the backup is ready", 0)
	return c
}

func (r *backupRequest) newObject(namespace, machine string, now time.Time) *harvesterv1.VirtualMachineBackup {
	b := &harvesterv1.VirtualMachineBackup{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: r.name, Annotations: r.Annotations()},
		Spec:       r.Spec(machine),
	}
	if b.Name == "" {
		b.Name = machine + "-" + now.UTC().Format(backupNameTime)
	}
	return b
}

func newBackupsCommand(s *resource.Session) *cobra.Command {
	c := s.ListCommand(resource.Listing{
		Short: "List the backups of whole virtual machines",
		Long: `List the backups of whole virtual machines, by machine, the oldest first. 'varve vm restore' brings
a machine back from one that is Ready. TYPE is backup for one in a location, and snapshot for one
in the machine's own storage.

-o wide adds the location, and what a backup waits for or why it failed. --from-location reads the
repository instead: it lists the backups of other clusters, and of this one before it was made
again, which 'varve vm restore --from-location' restores.`,
		Example: `  varve vm backups

  # With the location and the reason of failures
  varve vm backups -A -o wide

  # What a location has of the namespace app, and no object tells of
  varve vm backups --from-location default -n app`,
		Noun:    "machine backups",
		NewList: machinebackup.NewList,
		Sort: func(list client.ObjectList) {
			slices.SortFunc(list.(*harvesterv1.VirtualMachineBackupList).Items,
				func(a, b harvesterv1.VirtualMachineBackup) int {
					if d := strings.Compare(a.Namespace+"/"+a.Spec.Source.Name,
						b.Namespace+"/"+b.Spec.Source.Name); d != 0 {
						return d
					}
					return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
				})
		},
		Rows: func(_ context.Context, _ *cluster.Client, list client.ObjectList, wide bool, _ []client.ListOption) (*output.Table, error) {
			return newBackupTable(list.(*harvesterv1.VirtualMachineBackupList), wide, s.Now()), nil
		},
	})
	c.Use, c.Aliases = "backups", nil
	location, list := "", c.RunE
	c.Flags().StringVar(&location, "from-location", "",
		"list what a location, [NAMESPACE/]NAME, has of the namespace of -n, whichever cluster has stored it")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if location == "" {
			return list(cmd, args)
		}
		for _, name := range []string{"all-namespaces", "selector", "watch", "output"} {
			if cmd.Flags().Changed(name) {
				return failure.Usage("--%s is for objects: with --from-location, leave it out", name)
			}
		}
		client, err := s.Connect()
		if err != nil {
			return err
		}
		all, err := readStored(cmd.Context(), s, client, location)
		if err != nil {
			return err
		}
		return printStored(&output.Printer{Out: cmd.OutOrStdout()}, cmd.ErrOrStderr(), all, s.Now())
	}
	return c
}

func newBackupTable(list *harvesterv1.VirtualMachineBackupList, wide bool, now time.Time) *output.Table {
	t := &output.Table{Header: []string{"NAME", "VM", "TYPE", "STATE", "PROGRESS", "DISKS", "SIZE", "CHANGED", "AGE"}}
	if wide {
		t.Header = append(t.Header, "LOCATION", "MESSAGE")
	}
	for i := range list.Items {
		b := &list.Items[i]
		size, changed := machinebackup.StoredBytes(b)
		row := []string{
			b.Name, b.Spec.Source.Name, string(b.Spec.Type), machinebackup.Phase(b), fmt.Sprintf("%d%%", b.Status.Progress),
			fmt.Sprint(len(b.Status.VolumeBackups)), human.Bytes(size), human.Bytes(changed),
			human.Age(now, b.CreationTimestamp.Time),
		}
		if wide {
			location := ""
			if l := b.Status.Location; l != nil {
				location = l.Name
			}
			row = append(row, location, machinebackup.Message(b.Status.Conditions))
		}
		t.Add(row...)
	}
	return t
}
