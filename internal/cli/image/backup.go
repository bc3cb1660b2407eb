package image

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/progress"
	"github.com/varvebackup/varve/internal/cli/resource"
)

func newBackupCommand(s *resource.Session) *cobra.Command {
	var name, location string
	var w resource.Waiting
	c := &cobra.Command{
		Use: "backup NAME", Short: "Store an image in a repository",
		Long: `Store an image in the repository of a backup storage location, from which it comes back with its
size and its checksum: 'varve image create OTHER --from-image-backup BACKUP'.

The backup is a BackupBackingImage. It waits until the image is ready, and keeps the image from
being deleted while it is read. Deleting the backup deletes what is stored.`,
		Example: `  varve image backup golden --wait
  varve image create golden-again --from-image-backup golden-x7k2p --wait

  # In another location, under a name of its own
  varve image backup golden --name golden-monday --location offsite`,
		Args: cmdline.ExactArgs(1, "the name of an image"), ValidArgsFunction: s.CompleteArgs(newList, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := s.Connect()
			if err != nil {
				return err
			}
			if _, err := getImage(cmd.Context(), c, args[0]); err != nil {
				return err
			}
			b := newBackup(c.Namespace, args[0], name, location)
			if err := c.Create(cmd.Context(), b); err != nil {
				return fmt.Errorf("create the backup of image %s/%s: %w", c.Namespace, args[0], err)
			}
			if err := output.PrintDone(cmd.OutOrStdout(), b, "created"); err != nil || !w.Wait {
				return err
			}
			return w.RunEach(cmd.Context(), s, "image "+args[0]+" is stored as "+b.Name, "image describe "+args[0],
				untilStored(c, b))
		},
	}
	c.Flags().StringVar(&name, "name", "", "the name of the backup (default: that of the image and some letters)")
	c.Flags().StringVar(&location, "location", "",
		"the backup storage location, in the image's namespace (default: the default one)")
	w.AddFlags(c, "the image is stored", copyTimeout)
	return c
}

// newBackup returns the backup of an image. Without a name, the server generates one.
func newBackup(namespace, image, name, location string) *longhornv1.BackupBackingImage {
	b := &longhornv1.BackupBackingImage{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       longhornv1.BackupBackingImageSpec{BackingImage: image, BackupTargetName: location},
	}
	if name == "" {
		b.GenerateName = image + "-"
	}
	return b
}

// untilStored waits until a backup is complete.
func untilStored(c *cluster.Client, b *longhornv1.BackupBackingImage) resource.WaitFunc {
	return func(ctx context.Context, show func(progress.Report)) error {
		key, uid := client.ObjectKeyFromObject(b), b.UID
		return cluster.Follow(ctx, c, key, &longhornv1.BackupBackingImage{}, &longhornv1.BackupBackingImageList{},
			func(b *longhornv1.BackupBackingImage, exists bool) (bool, error) {
				switch state := b.Status.State; {
				case !exists || b.UID != uid || b.DeletionTimestamp != nil:
					return false, failure.New("", "image backup %s was deleted", key.Name)
				case state == longhornv1.BackupError:
					return false, failure.New("", "image backup %s failed: %s", key.Name, b.Status.Error)
				default:
					show(progress.Report{
						Name: b.Name, Phase: cmp.Or(string(state), string(longhornv1.BackupPending)),
						Message: fmt.Sprintf("%d%% %s", b.Status.Progress, b.Status.Message),
					})
					return state == longhornv1.BackupCompleted, nil
				}
			})
	}
}
