package image

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/resource"
)

func newDescribeCommand(s *resource.Session) *cobra.Command {
	var form string
	c := &cobra.Command{
		Use: "describe NAME", Short: "Show an image and its copy on each disk",
		Long: `Show an image: where it comes from, its size and checksum, its copy on each disk with state,
progress and what it waits for, and recent events.`,
		Example: `  varve image describe debian

  # The API object
  varve image describe debian -o yaml`,
		Args: cmdline.ExactArgs(1, "the name of an image"), ValidArgsFunction: s.CompleteArgs(newList, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := s.Connect()
			if err != nil {
				return err
			}
			b, err := getImage(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			if form != "" {
				return output.PrintObject(cmd.OutOrStdout(), form, b)
			}
			disks, err := listDisks(cmd.Context(), c)
			if err != nil {
				return err
			}
			events, err := resource.ReadEvents(cmd.Context(), c, b.Namespace, b.UID)
			if err != nil {
				return err
			}
			p := &output.Page{Out: cmd.OutOrStdout(), Now: s.Now()}
			writeImage(p, b)
			writeCopies(p, listCopies(b, disks))
			resource.WriteEvents(p, events)
			return p.Err
		},
	}
	output.AddFlag(c, &form, output.AsJSON, output.AsYAML, output.AsName)
	return c
}

func writeImage(p *output.Page, b *longhornv1.BackingImage) {
	attempts, retry := "", ""
	if n := b.Status.FirstCopyAttempts; n > 0 {
		attempts = strconv.Itoa(int(n))
		retry = p.Timestamp(b.Status.FirstCopyRetryTime)
	}
	p.Fields(
		"Name", b.Name,
		"Namespace", b.Namespace,
		"Created", p.Moment(b.CreationTimestamp.Time),
		"Source", formatSource(b),
		"UUID", b.Status.UUID,
		"Size", formatSize(b.Status.Size),
		"Size on disk", formatSize(b.Status.RealSize),
		"Checksum", b.Status.Checksum,
		"Wanted checksum", b.Spec.Checksum,
		"Copies", fmt.Sprintf("%d ready, %d wanted", b.Status.ReadyCopies, wantedCopies(b)),
		"Disk tags", strings.Join(b.Spec.DiskSelector, ", "),
		"Node tags", strings.Join(b.Spec.NodeSelector, ", "),
		"First copy", string(b.Status.V2FirstCopyStatus),
		"Failed attempts", attempts,
		"Last failure", b.Status.FirstCopyMessage,
		"Next attempt", retry,
		"Ready", formatReady(b),
		"Message", readMessage(b),
	)
}

func writeCopies(p *output.Page, copies []diskCopy) {
	t := &output.Table{Header: []string{"NODE", "DISK", "UUID", "STATE", "PROGRESS", "MESSAGE"}}
	for i := range copies {
		d := &copies[i]
		t.Add(d.node, d.name, d.uuid, d.formatState(), d.formatProgress(), d.message)
	}
	p.Section("Disks", t, "none yet")
}

func newDeleteCommand(s *resource.Session) *cobra.Command {
	return s.DeleteCommand(resource.Deletion{
		Noun: "image", Argument: "the name of an image",
		Short: "Delete images from all disks",
		Long: `Delete images from all disks. An image that volumes were cloned from is not deleted: the
error names the volumes, whose claims have to be deleted first. Claims that are still to be
cloned from an image that was deleted wait until there is one of this name.`,
		Example: `  varve image delete debian --wait`,
		Object:  func() client.Object { return &longhornv1.BackingImage{} }, NewList: newList,
		State: func(o client.Object) (string, string) {
			b := o.(*longhornv1.BackingImage)
			var left []string
			for _, d := range listCopies(b, nil) {
				if _, there := b.Status.DiskFileStatusMap[d.uuid]; there {
					left = append(left, d.uuid)
				}
			}
			if len(left) == 0 {
				return "no copy is left", "finalizers " + strings.Join(b.Finalizers, ", ")
			}
			return countDisks(len(left)) + " left", "copies on the disks " + strings.Join(left, ", ")
		},
	})
}
