package data

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilrand "k8s.io/apimachinery/pkg/util/rand"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/output"
	cliresource "github.com/varvebackup/varve/internal/cli/resource"
	"github.com/varvebackup/varve/internal/datamove"
)

// selectorSuffix is how many random characters the selector of a claim ends with.
const selectorSuffix = 5

// downloadRequest is what the flags of `data download create` say.
type downloadRequest struct {
	upload, snapshotID, location string
	claim, namespace             string
	create                       bool
	size, storageClass, mode     string
	timeout                      time.Duration
	labels                       map[string]string
	sizeQuantity                 resource.Quantity
	bytes                        int64
}

func newDownloadCreateCommand(s *cliresource.Session) *cobra.Command {
	var r downloadRequest
	var w cliresource.Waiting
	var form string
	c := &cobra.Command{
		Use: "create [NAME] --from-upload UPLOAD --to-pvc CLAIM", Short: "Make a volume from what is stored",
		Long: `Make a volume from what an upload has stored, and give it to a claim.

The claim must wait for its volume: it needs a selector for the label
` + datamove.LabelRestoredVolume + `, as Velero's restored claims have. --create-claim makes such a claim.

Without a NAME, the name begins with that of the claim. The download is made in the namespace of
the location.`,
		Example: `  # A new claim of 20 GiB from an upload
  varve data download create --from-upload nightly-x7k2p -n velero \
    --to-pvc data-restored --to-namespace app --create-claim --size 20Gi --wait

  # From a snapshot ID, without the upload
  varve data download create --snapshot-id varve1.disk.0123456789abcdef0123456789abcdef.app --location default -n varve \
    --to-pvc data --to-namespace app`,
		Args: cmdline.AtMostOne("at most a name"), ValidArgsFunction: cobra.NoFileCompletions,
		PreRunE: func(cmd *cobra.Command, _ []string) error { return r.validateFlags(cmd) },
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := s.Connect()
			if err != nil {
				return err
			}
			d, err := r.newObject(cmd.Context(), c, args)
			if err != nil {
				return err
			}
			if err := r.createAll(cmd, c, d, form == ""); err != nil {
				return err
			}
			if w.Wait {
				wait := downloads.untilEnded(s, c, d, func(m *movement) { m.object.(*velerov2.DataDownload).DeepCopyInto(d) })
				if err := w.Run(cmd.Context(), s, "download "+d.Name+" has completed", "data download describe "+d.Name, wait); err != nil {
					return err
				}
			}
			return printDownload(cmd.OutOrStdout(), form, d, w.Wait)
		},
	}
	r.addFlags(s, c)
	output.AddFlag(c, &form, output.AsJSON, output.AsYAML, output.AsName)
	w.AddFlags(c, "the download has completed or failed", 0)
	return c
}

func (r *downloadRequest) addFlags(s *cliresource.Session, c *cobra.Command) {
	c.Flags().StringVar(&r.upload, "from-upload", "", "the upload whose data it is, in the namespace of the download")
	c.Flags().StringVar(&r.snapshotID, "snapshot-id", "", "the snapshot ID of what is stored, instead of --from-upload")
	c.Flags().StringVar(&r.location, "location", "", "with --snapshot-id: the backup storage location, in the namespace of the download")
	c.Flags().StringVar(&r.claim, "to-pvc", "", "the claim that gets the volume")
	c.Flags().StringVar(&r.namespace, "to-namespace", "", "the claim's namespace (default: that of the download)")
	c.Flags().BoolVar(&r.create, "create-claim", false, "create the claim")
	c.Flags().StringVar(&r.size, "size", "",
		"with --create-claim: the claim's size, such as 20Gi (default: that of the disk, and with Filesystem 6 % "+
			"and 64 MiB more)")
	c.Flags().StringVar(&r.storageClass, "storage-class", "", "with --create-claim: the claim's StorageClass (default: the cluster's)")
	c.Flags().StringVar(&r.mode, "volume-mode", string(corev1.PersistentVolumeFilesystem), "with --create-claim: the claim's volume mode, Filesystem or Block")
	c.Flags().DurationVar(&r.timeout, "operation-timeout", operationTimeout, "how long the download waits for one thing, such as a volume")
	c.Flags().StringToStringVar(&r.labels, "labels", nil, "labels of the download, such as app=web")
	s.CompleteFlag(c, "from-upload", uploads.newList)
}

func (r *downloadRequest) validateFlags(c *cobra.Command) error {
	switch {
	case (r.upload == "") == (r.snapshotID == ""):
		return failure.Usage("give exactly one of --from-upload and --snapshot-id")
	case (r.snapshotID == "") != (r.location == ""):
		return failure.Usage("--snapshot-id and --location need each other: an upload has its own location")
	case r.claim == "":
		return failure.Usage("--to-pvc is required: the claim that gets the volume")
	case !r.create && (r.size != "" || r.storageClass != "" || c.Flags().Changed("volume-mode")):
		return failure.Usage("--size, --storage-class and --volume-mode need --create-claim")
	case r.mode != string(corev1.PersistentVolumeFilesystem) && r.mode != string(corev1.PersistentVolumeBlock):
		return failure.Usage("--volume-mode %s: give Filesystem or Block", r.mode)
	case r.timeout <= 0:
		return failure.Usage("--operation-timeout %s: it must be positive", r.timeout)
	}
	if r.size == "" {
		return nil
	}
	size, err := resource.ParseQuantity(r.size)
	if err != nil || size.Sign() <= 0 {
		return failure.Usage("--size %s: give a size, such as 20Gi", r.size)
	}
	r.sizeQuantity = size
	return nil
}

// newObject returns the download to create. Without a name, the server generates one.
func (r *downloadRequest) newObject(ctx context.Context, c *cluster.Client, args []string) (*velerov2.DataDownload, error) {
	if r.namespace == "" {
		r.namespace = c.Namespace
	}
	if err := r.readUpload(ctx, c); err != nil {
		return nil, err
	}
	id, err := datamove.ParseSnapshotID(r.snapshotID)
	if err != nil {
		return nil, failure.New("restore it with the data mover that stored it", "%s", err)
	}
	d := &velerov2.DataDownload{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Labels: r.labels},
		Spec: velerov2.DataDownloadSpec{
			TargetVolume:          velerov2.TargetVolumeSpec{Namespace: r.namespace, PVC: r.claim},
			BackupStorageLocation: r.location, DataMover: datamove.Mover, SnapshotID: r.snapshotID, SourceNamespace: id.Namespace,
			OperationTimeout: velerov1.Duration{Duration: r.timeout}, SnapshotSize: r.bytes,
		},
	}
	setName(d, args, r.claim)
	return d, nil
}

// readUpload takes from the upload what a download needs.
func (r *downloadRequest) readUpload(ctx context.Context, c *cluster.Client) error {
	if r.upload == "" {
		return nil
	}
	m, err := uploads.get(ctx, c, r.upload)
	if err != nil {
		return err
	}
	u := m.object.(*velerov2.DataUpload)
	switch {
	case u.Status.Phase != velerov2.PhaseCompleted:
		return failure.New("", "upload %s has stored nothing yet: it is %s", r.upload, m.phase)
	case u.Spec.DataMover != datamove.Mover:
		if _, err := datamove.ParseSnapshotID(u.Status.SnapshotID); err != nil {
			return failure.New("restore it with that data mover", "upload %s was stored by the data mover %s", r.upload, m.dataMover())
		}
	}
	r.snapshotID, r.location, r.bytes = u.Status.SnapshotID, u.Spec.BackupStorageLocation, u.Status.Progress.TotalBytes
	return nil
}

// createAll creates the claim, if that is asked for, and the download.
func (r *downloadRequest) createAll(cmd *cobra.Command, c *cluster.Client, d *velerov2.DataDownload, tell bool) error {
	if r.create {
		claim, err := r.newClaim()
		if err != nil {
			return err
		}
		if err := c.Create(cmd.Context(), claim); err != nil {
			return fmt.Errorf("create claim %s/%s: %w", claim.Namespace, claim.Name, err)
		}
		if tell {
			if err := output.PrintDone(cmd.OutOrStdout(), claim, "created"); err != nil {
				return err
			}
		}
	}
	if err := c.Create(cmd.Context(), d); err != nil {
		return fmt.Errorf("create download: %w", err)
	}
	if !tell {
		return nil
	}
	return output.PrintDone(cmd.OutOrStdout(), d, "created")
}

// newClaim returns a claim that only the download's volume can be bound to.
func (r *downloadRequest) newClaim() (*corev1.PersistentVolumeClaim, error) {
	size := r.sizeQuantity
	if size.IsZero() {
		if r.bytes == 0 {
			return nil, failure.Usage("--create-claim needs --size: how much is stored is not known")
		}
		bytes, err := claimBytes(r.snapshotID, r.mode, r.bytes)
		if err != nil {
			return nil, err
		}
		size = *resource.NewQuantity(bytes, resource.BinarySI)
	}
	mode := corev1.PersistentVolumeMode(r.mode)
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.namespace, Name: r.claim, Labels: r.labels},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, VolumeMode: &mode,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: size}},
			Selector:  &metav1.LabelSelector{MatchLabels: map[string]string{datamove.LabelRestoredVolume: datamove.RestoredVolume(r.namespace, r.claim, utilrand.String(selectorSuffix))}},
		},
	}
	if r.storageClass != "" {
		claim.Spec.StorageClassName = &r.storageClass
	}
	return claim, nil
}

// claimBytes returns how large a claim has to be for what is stored. A file system keeps a part of its volume for
// itself: the image of a disk fits as long as it is sparse, and then the guest's writes would fail. How much that is
// for files, their bytes do not say.
func claimBytes(snapshotID, mode string, stored int64) (int64, error) {
	const mib = 1 << 20
	id, err := datamove.ParseSnapshotID(snapshotID)
	switch {
	case err != nil:
		return 0, err
	case id.Form == datamove.Files:
		return 0, failure.Usage("--create-claim needs --size: files are stored, and how large a volume they need " +
			"is not known. Give at least the size of the claim that they come from")
	case mode == string(corev1.PersistentVolumeBlock):
		return stored, nil
	}
	withFileSystem := stored + stored/50*3 + 64*mib
	return (withFileSystem + mib - 1) / mib * mib, nil
}

func printDownload(w io.Writer, form string, d *velerov2.DataDownload, waited bool) error {
	if form != "" {
		return output.PrintObject(w, form, d)
	}
	if !waited {
		return nil
	}
	m := newMovement(d)
	_, err := fmt.Fprintln(w, human.Line(fmt.Sprintf("download %s completed: %s to %s, took %s", d.Name, human.Bytes(d.Status.Progress.TotalBytes), m.volume, human.Or(m.took(time.Time{})))))
	return err
}
