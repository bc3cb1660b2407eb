// Package data has the commands of `varve data`: the movement of volumes into repositories and back.
package data

import (
	"context"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/resource"
)

// NewCommand makes `varve data`.
func NewCommand(s *resource.Session) *cobra.Command {
	return s.GroupCommand("data", "Move volumes into repositories and back",
		`Move volumes into repositories and back.

An upload (DataUpload) puts a snapshot of a volume, or a disk of a running virtual machine, into
the repository of a backup storage location. A download (DataDownload) makes a volume from one
and gives it to a claim that waits for it. Velero makes them for the volumes of a backup or a
restore; you can make your own. They are in the namespace of their location.`,
		`  varve data list -n velero --watch
  varve data upload describe nightly-x7k2p -n velero`,
		nil,
		newListAllCommand(s),
		newKindCommand(s, uploads, newUploadCreateCommand(s)), newKindCommand(s, downloads, newDownloadCreateCommand(s)))
}

// newKindCommand makes `varve data upload` or `varve data download`.
func newKindCommand(s *resource.Session, k kind, create *cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use: k.noun, Aliases: []string{k.noun + "s"}, Short: "Create, list, describe and cancel " + k.noun + "s",
		Long:    "Create, list, describe and cancel " + k.noun + "s, and read the logs of their mover pods.",
		Example: "  varve data " + k.noun + " list --watch",
	}
	c.AddCommand(create, newListCommand(s, k), newDescribeCommand(s, k), newCancelCommand(s, k), newLogsCommand(s, k))
	return c
}

func newListCommand(s *resource.Session, k kind) *cobra.Command {
	measured := &rates{}
	return s.ListCommand(resource.Listing{
		Short: "List " + k.noun + "s with their progress",
		Long: `List ` + k.noun + `s, oldest first: the volume, the phase, and how much was moved. With --watch, also how
fast that is and how long the rest takes at this rate.

-o wide adds the data mover, the ID of what is stored, and what the ` + k.noun + ` waits for or why it
failed.` + k.wideHelp,
		Example: `  # Follow those that run
  varve data ` + k.noun + ` list -n velero --watch

  # What does the one that does not begin wait for?
  varve data ` + k.noun + ` list -n velero -o wide`,
		Noun: k.noun + "s", NewList: k.newList, Sort: sortByAge,
		Rows: func(_ context.Context, _ *cluster.Client, list client.ObjectList, wide bool, _ []client.ListOption) (*output.Table, error) {
			return k.newTable(s, measured, list, wide)
		},
	})
}

// newListAllCommand makes `varve data list`.
func newListAllCommand(s *resource.Session) *cobra.Command {
	measured := &rates{}
	return s.ListCommand(resource.Listing{
		Short: "List uploads and downloads with their progress",
		Long: `List uploads and downloads together, oldest first: the volume, the phase, and how much was moved.
With --watch, also how fast that is and how long the rest takes at this rate.

-o wide adds the group of a running machine's disk, the data mover, the ID of what is stored, and
what each waits for or why it failed.`,
		Example: `  # What moves now, and how long it takes
  varve data list -A --watch`,
		Noun: "uploads or downloads", NewList: uploads.newList, Also: []func() client.ObjectList{downloads.newList}, Sort: sortByAge,
		Rows: func(_ context.Context, _ *cluster.Client, list client.ObjectList, wide bool, _ []client.ListOption) (*output.Table, error) {
			return both.newTable(s, measured, list, wide)
		},
	})
}
