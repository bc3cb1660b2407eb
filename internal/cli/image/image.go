// Package image has the commands of `varve image`: the images on the disks of the nodes that volumes are cloned from.
package image

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/resource"
)

// NewCommand makes `varve image`.
func NewCommand(s *resource.Session) *cobra.Command {
	return s.GroupCommand("image", "Create, upload, download, list, describe, copy, back up, evict and delete images on disks",
		`Create, upload, download, list, describe, copy, back up, evict and delete images on the disks of
nodes.

An image (BackingImage) lies on a disk once, and volumes are cloned from it within a second. It can
be on several disks: 'varve image sync' copies it to another one, and 'varve image evict' removes
it from one. Images are in the namespace varve, which needs no -n.`,
		`  varve image create debian --url https://example.com/debian.qcow2 --copies 2 --wait
  varve image describe debian`,
		[]string{"images", "bi", "lhbi", "backingimage", "backingimages"},
		newCreateCommand(s), newUploadCommand(s), newDownloadCommand(s), newListCommand(s), newDescribeCommand(s),
		newSyncCommand(s), newEvictCommand(s), newBackupCommand(s), newDeleteCommand(s))
}

func newList() client.ObjectList { return &longhornv1.BackingImageList{} }

func newListCommand(s *resource.Session) *cobra.Command {
	return s.ListCommand(resource.Listing{
		Short: "List images",
		Long: `List images: where they come from, how large they are, how many copies are ready of those that are
wanted, and whether volumes can be cloned from them.

-o wide adds the UUID and why an image is not ready.`,
		Example: `  varve image list -o wide`,
		Noun:    "images", NewList: newList,
		Sort: func(list client.ObjectList) {
			slices.SortFunc(list.(*longhornv1.BackingImageList).Items, func(a, b longhornv1.BackingImage) int {
				return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
			})
		},
		Rows: func(
			_ context.Context, _ *cluster.Client, list client.ObjectList, wide bool, _ []client.ListOption,
		) (*output.Table, error) {
			t := &output.Table{Header: []string{"NAME", "SOURCE", "SIZE", "COPIES", "READY", "AGE"}}
			if wide {
				t.Header = append(t.Header, "UUID", "MESSAGE")
			}
			items := list.(*longhornv1.BackingImageList).Items
			for i := range items {
				b := &items[i]
				row := []string{
					b.Name, string(b.Spec.SourceType), formatSize(b.Status.Size), formatCopies(b), formatReady(b),
					human.Age(s.Now(), b.CreationTimestamp.Time),
				}
				if wide {
					row = append(row, b.Status.UUID, readMessage(b))
				}
				t.Add(row...)
			}
			return t, nil
		},
	})
}

// formatSize returns a size; "" while it is not known.
func formatSize(bytes int64) string {
	if bytes == 0 {
		return ""
	}
	return human.Bytes(bytes)
}

// wantedCopies is how many copies are to be ready.
func wantedCopies(b *longhornv1.BackingImage) int { return max(1, b.Spec.MinNumberOfCopies) }

func formatCopies(b *longhornv1.BackingImage) string {
	return fmt.Sprintf("%d/%d", b.Status.ReadyCopies, wantedCopies(b))
}

// formatReady returns yes, no, or "" as long as nobody has said either.
func formatReady(b *longhornv1.BackingImage) string {
	c := meta.FindStatusCondition(b.Status.Conditions, longhornv1.ConditionReady)
	switch {
	case c == nil:
		return ""
	case c.Status == "True":
		return "yes"
	default:
		return "no"
	}
}

// readMessage returns why an image is not ready.
func readMessage(b *longhornv1.BackingImage) string {
	c := meta.FindStatusCondition(b.Status.Conditions, longhornv1.ConditionReady)
	if c == nil || c.Status == "True" {
		return ""
	}
	return cmp.Or(c.Message, c.Reason)
}

// formatSource returns where an image comes from. An address is shown without password and query, which may be secret.
func formatSource(b *longhornv1.BackingImage) string {
	parameters := b.Spec.SourceParameters
	switch b.Spec.SourceType {
	case longhornv1.SourceDownload:
		u, err := url.Parse(string(parameters[longhornv1.ParameterURL]))
		if err != nil {
			return "an address that cannot be read"
		}
		hidden := u.User != nil || u.RawQuery != ""
		u.User, u.RawQuery = nil, ""
		if hidden {
			return u.String() + " (without its password or query)"
		}
		return u.String()
	case longhornv1.SourceExport:
		return "volume " + string(parameters[longhornv1.ParameterVolumeName])
	case longhornv1.SourceClone:
		return "image " + string(parameters[longhornv1.ParameterBackingImage])
	case longhornv1.SourceRestore:
		return "snapshot ID " + string(parameters[longhornv1.ParameterSnapshotID]) + " in location " +
			string(parameters[longhornv1.ParameterLocation])
	case longhornv1.SourceUpload:
		return "a file that a user uploads"
	}
	return string(b.Spec.SourceType)
}

// getImage reads an image in the selected namespace.
func getImage(ctx context.Context, c *cluster.Client, name string) (*longhornv1.BackingImage, error) {
	b := &longhornv1.BackingImage{}
	key := client.ObjectKey{Namespace: c.Namespace, Name: name}
	if err := c.Get(ctx, key, b); err != nil {
		return nil, fmt.Errorf("get image %s: %w", key, err)
	}
	return b, nil
}

// disk is a disk of a node.
type disk struct{ uuid, node, name string }

// listDisks returns the disks of all nodes by their UUIDs.
func listDisks(ctx context.Context, c *cluster.Client) (map[string]disk, error) {
	var nodes longhornv1.NodeList
	if err := c.List(ctx, &nodes, client.InNamespace(c.Namespace)); err != nil {
		return nil, fmt.Errorf("list the nodes with disks in namespace %s: %w", c.Namespace, err)
	}
	disks := map[string]disk{}
	for i := range nodes.Items {
		for name, status := range nodes.Items[i].Status.DiskStatus {
			if status != nil && status.DiskUUID != "" {
				disks[status.DiskUUID] = disk{status.DiskUUID, nodes.Items[i].Name, name}
			}
		}
	}
	return disks, nil
}

// diskCopy is a copy of an image, or one that is wanted.
type diskCopy struct {
	disk

	state    longhornv1.BackingImageState
	progress int
	message  string
	// wanted is false if the copy is going. evicted is true if it goes when there are enough others.
	wanted, evicted bool
}

// listCopies returns the copies of an image, sorted by node, disk and UUID.
func listCopies(b *longhornv1.BackingImage, disks map[string]disk) []diskCopy {
	uuids := slices.Collect(maps.Keys(b.Spec.DiskFileSpecMap))
	for uuid := range b.Status.DiskFileStatusMap {
		if _, wanted := b.Spec.DiskFileSpecMap[uuid]; !wanted {
			uuids = append(uuids, uuid)
		}
	}
	var copies []diskCopy
	for _, uuid := range uuids {
		d := diskCopy{disk: disks[uuid], state: longhornv1.StatePending}
		d.uuid = uuid
		spec, wanted := b.Spec.DiskFileSpecMap[uuid]
		d.wanted, d.evicted = wanted, wanted && spec != nil && spec.EvictionRequested
		if status := b.Status.DiskFileStatusMap[uuid]; status != nil {
			d.state, d.progress, d.message = cmp.Or(status.State, d.state), status.Progress, status.Message
		}
		copies = append(copies, d)
	}
	slices.SortFunc(copies, func(a, b diskCopy) int {
		return cmp.Or(cmp.Compare(a.node, b.node), cmp.Compare(a.name, b.name), cmp.Compare(a.uuid, b.uuid))
	})
	return copies
}

// formatState returns the state of a copy in a word or two.
func (d *diskCopy) formatState() string {
	switch {
	case !d.wanted:
		return "going"
	case d.evicted:
		return string(d.state) + ", evicted"
	default:
		return string(d.state)
	}
}

func (d *diskCopy) formatProgress() string {
	if d.state == longhornv1.StateReady {
		return "100%"
	}
	return strconv.Itoa(d.progress) + "%"
}

// title names the disk for people.
func (d *diskCopy) title() string {
	if d.node == "" {
		return "disk " + d.uuid
	}
	return d.node + "/" + d.name
}
