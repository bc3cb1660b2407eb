// Package location has the commands of `varve location`: the places that backups go to.
package location

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/resource"
	"github.com/varvebackup/varve/internal/location"
)

// NewCommand makes `varve location`.
func NewCommand(s *resource.Session) *cobra.Command {
	return s.GroupCommand("location", "Create, list, describe, check and delete backup storage locations",
		`Create, list, describe, check and delete backup storage locations.

A location (BackupStorageLocation) is a bucket on an S3 service, a claim or an NFS export that
backups go to. Each namespace whose volumes are backed up has a repository of its own in it. Varve
serves the locations in its own namespace and in Velero's.`,
		`  varve location create default s3://s3.example.com/backups -n varve
  varve location check default -n varve`,
		[]string{"locations", "bsl", "backupstoragelocation", "backupstoragelocations"},
		newCreateCommand(s), newListCommand(s), newDescribeCommand(s), newCheckCommand(s), newPasswordCommand(s), newDeleteCommand(s))
}

func newLocationList() client.ObjectList { return &velerov1.BackupStorageLocationList{} }

func newListCommand(s *resource.Session) *cobra.Command {
	return s.ListCommand(resource.Listing{
		Short: "List locations",
		Long: `List locations: where they are, and whether they can be used.

-o wide adds why a location cannot be used.`,
		Example: `  varve location list -A -o wide`,
		Noun:    "locations", NewList: newLocationList,
		Sort: func(list client.ObjectList) {
			slices.SortFunc(list.(*velerov1.BackupStorageLocationList).Items, func(a, b velerov1.BackupStorageLocation) int {
				return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
			})
		},
		Rows: func(_ context.Context, _ *cluster.Client, list client.ObjectList, wide bool, _ []client.ListOption) (*output.Table, error) {
			t := &output.Table{Header: []string{"NAME", "PLACE", "PHASE", "ACCESS", "VALIDATED", "DEFAULT", "AGE"}}
			if wide {
				t.Header = append(t.Header, "MESSAGE")
			}
			items := list.(*velerov1.BackupStorageLocationList).Items
			for i := range items {
				l := &items[i]
				row := []string{l.Name, placeOf(l), phaseOf(l), accessOf(l), ageOf(s, l.Status.LastValidationTime), yes(l.Spec.Default), human.Age(s.Now(), l.CreationTimestamp.Time)}
				if wide {
					row = append(row, l.Status.Message)
				}
				t.Add(row...)
			}
			return t, nil
		},
	})
}

// placeOf returns where a location is, in the form that `create` takes.
func placeOf(l *velerov1.BackupStorageLocation) string {
	o := l.Spec.ObjectStorage
	if o == nil {
		return ""
	}
	var text string
	switch l.Spec.Provider {
	case location.ProviderClaim:
		text = "claim://" + o.Bucket
	case location.ProviderNFS:
		text = "nfs://" + l.Spec.Config["server"] + l.Spec.Config["path"]
	case "aws", "velero.io/aws":
		_, endpoint, found := strings.Cut(l.Spec.Config["s3Url"], "://")
		if !found {
			endpoint = "s3.amazonaws.com"
		}
		text = "s3://" + endpoint + "/" + o.Bucket
	default:
		text = l.Spec.Provider + ":" + o.Bucket
	}
	if prefix := strings.Trim(o.Prefix, "/"); prefix != "" {
		text += "/" + prefix
	}
	return text
}

// phaseOf returns the phase. A location that nobody has tried has none.
func phaseOf(l *velerov1.BackupStorageLocation) string { return string(l.Status.Phase) }

func accessOf(l *velerov1.BackupStorageLocation) string {
	return string(cmp.Or(l.Spec.AccessMode, velerov1.AccessReadWrite))
}

func ageOf(s *resource.Session, t *metav1.Time) string {
	if t == nil {
		return ""
	}
	return human.Age(s.Now(), t.Time)
}

func yes(is bool) string {
	if is {
		return "yes"
	}
	return ""
}

// get reads a location in the selected namespace.
func get(ctx context.Context, c *cluster.Client, name string) (*velerov1.BackupStorageLocation, error) {
	l := &velerov1.BackupStorageLocation{}
	key := client.ObjectKey{Namespace: c.Namespace, Name: name}
	if err := c.Get(ctx, key, l); err != nil {
		return nil, fmt.Errorf("get location %s: %w", key, err)
	}
	return l, nil
}

func newDeleteCommand(s *resource.Session) *cobra.Command {
	return s.DeleteCommand(resource.Deletion{
		Noun: "location", Argument: "the name of a location",
		Short: "Delete locations; what is stored in them stays",
		Long: `Delete locations from the cluster. What is stored in them stays, and so do the Secrets with the
passwords of their repositories: a location that is created again at the same place finds its
repositories.`,
		Example: `  varve location delete old -n varve --wait`,
		Object:  func() client.Object { return &velerov1.BackupStorageLocation{} }, NewList: newLocationList,
		State: func(o client.Object) (string, string) {
			l := o.(*velerov1.BackupStorageLocation)
			return phaseOf(l), "finalizers " + strings.Join(l.Finalizers, ", ")
		},
	})
}
