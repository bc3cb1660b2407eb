package image

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/resource"
	"github.com/varvebackup/varve/internal/errclass"
)

// diskCommand is a command that changes what is wanted of an image on one disk.
type diskCommand struct {
	use, short, long, example string
	// done says what was done; goal completes "until image NAME", with the disk at its end.
	done, goal string
	wait       string
	// apply changes the image, which is then written.
	apply func(ctx context.Context, s *resource.Session, c *cluster.Client, b *longhornv1.BackingImage, uuid string) error
	until func(*resource.Session, *cluster.Client, *longhornv1.BackingImage, string) resource.WaitFunc
	// isOffered selects the disks that completion offers.
	isOffered func(*longhornv1.BackingImage, string) bool
}

func (d *diskCommand) newCommand(s *resource.Session) *cobra.Command {
	var uuid string
	var w resource.Waiting
	c := &cobra.Command{
		Use: d.use + " NAME", Short: d.short, Long: d.long, Example: d.example,
		Args: cmdline.ExactArgs(1, "the name of an image"), ValidArgsFunction: s.CompleteArgs(newList, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if uuid == "" {
				return failure.Usage("--disk is missing: give the UUID of the disk")
			}
			c, err := s.Connect()
			if err != nil {
				return err
			}
			b, err := getImage(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			before := b.DeepCopy()
			if err := d.apply(cmd.Context(), s, c, b, uuid); err != nil {
				return err
			}
			// It has this disk alone. The controller, which writes others all the time, is no conflict.
			if err := c.Patch(cmd.Context(), b, client.MergeFrom(before)); err != nil {
				return fmt.Errorf("%s image %s/%s: %w", d.use, b.Namespace, b.Name, err)
			}
			if err := output.PrintDone(cmd.OutOrStdout(), b, d.done); err != nil || !w.Wait {
				return err
			}
			return w.RunEach(cmd.Context(), s, "image "+b.Name+" "+d.goal+" disk "+uuid, "image describe "+b.Name,
				d.until(s, c, b, uuid))
		},
	}
	c.Flags().StringVar(&uuid, "disk", "", "the UUID of the disk")
	cmdline.RegisterCompletion(c, "disk",
		func(c *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
			return d.complete(c.Context(), s, args, typed)
		})
	w.AddFlags(c, d.wait, copyTimeout)
	return c
}

// complete offers the UUIDs of disks, with their nodes.
func (d *diskCommand) complete(
	ctx context.Context, s *resource.Session, args []string, typed string,
) ([]string, cobra.ShellCompDirective) {
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, cmdline.CompletionTimeout)
	defer cancel()
	c, err := s.Connect()
	if err != nil || len(args) == 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return d.offer(ctx, c, args[0], typed), cobra.ShellCompDirectiveNoFileComp
}

// offer returns what completes the typed UUID of a disk. It offers nothing if the cluster does not answer.
func (d *diskCommand) offer(ctx context.Context, c *cluster.Client, image, typed string) []string {
	b, err := getImage(ctx, c, image)
	if err != nil {
		return nil
	}
	disks, err := listDisks(ctx, c)
	if err != nil {
		return nil
	}
	var offered []string
	for uuid, known := range disks {
		if strings.HasPrefix(uuid, typed) && d.isOffered(b, uuid) {
			offered = append(offered, uuid+"\t"+known.node+"/"+known.name)
		}
	}
	slices.Sort(offered)
	return offered
}

func hasDisk(b *longhornv1.BackingImage, uuid string) bool {
	_, has := b.Spec.DiskFileSpecMap[uuid]
	return has
}

var syncing = &diskCommand{
	use: "sync", short: "Copy an image to a disk",
	long: `Copy an image to a disk, from one that has it. The image stays there until it is evicted or
deleted. An eviction from the disk that has not ended is canceled.`,
	example: `  varve image sync debian --disk 6ba7b810-9dad-41d1-80b4-00c04fd430c8 --wait`,
	done:    "copy requested", goal: "is ready on", wait: "the copy is ready",
	apply:     applySync,
	until:     untilOnDisk,
	isOffered: func(b *longhornv1.BackingImage, uuid string) bool { return !hasDisk(b, uuid) },
}

func newSyncCommand(s *resource.Session) *cobra.Command { return syncing.newCommand(s) }

// applySync adds a disk that some node has.
func applySync(
	ctx context.Context, _ *resource.Session, c *cluster.Client, b *longhornv1.BackingImage, uuid string,
) error {
	disks, err := listDisks(ctx, c)
	if err != nil {
		return err
	}
	if _, known := disks[uuid]; !known {
		return &failure.Error{
			Err:  errclass.Errorf(errclass.NotFound, "--disk %s: no node has a disk with this UUID", uuid),
			Code: errclass.ExitNotFound,
			Hint: "`kubectl get nodes.longhorn.io -n " + c.Namespace + " -o yaml` shows the disks in status.diskStatus",
		}
	}
	if b.Spec.DiskFileSpecMap == nil {
		b.Spec.DiskFileSpecMap = map[string]*longhornv1.BackingImageDiskFileSpec{}
	}
	b.Spec.DiskFileSpecMap[uuid] = &longhornv1.BackingImageDiskFileSpec{DataEngine: longhornv1.DataEngineV2, Keep: true}
	return nil
}

var evicting = &diskCommand{
	use: "evict", short: "Remove the copy of an image from a disk",
	long: `Remove the copy of an image from a disk. It goes when enough other copies are ready, which Varve
makes first if there are too few, and when no volume on the disk is a clone of it any more. 'varve
image sync' cancels it.`,
	example: `  varve image evict debian --disk 6ba7b810-9dad-41d1-80b4-00c04fd430c8 --wait`,
	done:    "eviction requested", goal: "is gone from", wait: "the disk has no copy any more",
	apply: applyEviction,
	until: untilEvicted,
	isOffered: func(b *longhornv1.BackingImage, uuid string) bool {
		spec := b.Spec.DiskFileSpecMap[uuid]
		return hasDisk(b, uuid) && (spec == nil || !spec.EvictionRequested)
	},
}

func newEvictCommand(s *resource.Session) *cobra.Command { return evicting.newCommand(s) }

func applyEviction(
	_ context.Context, s *resource.Session, _ *cluster.Client, b *longhornv1.BackingImage, uuid string,
) error {
	spec, has := b.Spec.DiskFileSpecMap[uuid]
	if !has {
		return &failure.Error{
			Err:  errclass.Errorf(errclass.NotFound, "--disk %s: image %s has no copy on this disk", uuid, b.Name),
			Code: errclass.ExitNotFound,
			Hint: s.CommandHint("image describe "+b.Name) + " shows its disks",
		}
	}
	if spec == nil {
		spec = &longhornv1.BackingImageDiskFileSpec{}
		b.Spec.DiskFileSpecMap[uuid] = spec
	}
	spec.EvictionRequested, spec.Keep = true, false
	return nil
}
