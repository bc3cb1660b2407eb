package data

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/resource"
	"github.com/varvebackup/varve/internal/datamove"
)

// operationTimeout is the default of --operation-timeout, as Velero has it.
const operationTimeout = 10 * time.Minute

// snapshotKind is that of CSI snapshots.
var snapshotKind = schema.GroupVersionKind{Group: "snapshot.storage.k8s.io", Version: "v1", Kind: "VolumeSnapshot"}

// uploadRequest is what the flags of `data upload create` say.
type uploadRequest struct {
	snapshot, namespace, location string
	timeout                       time.Duration
	labels                        map[string]string
}

func newUploadCreateCommand(s *resource.Session) *cobra.Command {
	var r uploadRequest
	var w resource.Waiting
	var form string
	c := &cobra.Command{
		Use: "create [NAME] --snapshot SNAPSHOT --location LOCATION", Short: "Put a volume snapshot into a repository",
		Long: `Put a volume snapshot into the repository of a backup storage location.

The snapshot is used up: the upload deletes it when its data is stored, and also when the upload
fails or is cancelled. Take a snapshot for each upload.

Without a NAME, the name begins with that of the snapshot. The upload is made in the namespace of
the location.`,
		Example: `  # Store a snapshot of a claim in namespace app, with progress
  varve data upload create --snapshot data-monday --from-namespace app --location default -n varve --wait`,
		Args: cmdline.AtMostOne("at most a name"), ValidArgsFunction: cobra.NoFileCompletions,
		PreRunE: func(*cobra.Command, []string) error { return r.validateFlags() },
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := s.Connect()
			if err != nil {
				return err
			}
			u, err := r.newObject(cmd.Context(), c, args)
			if err != nil {
				return err
			}
			if err := c.Create(cmd.Context(), u); err != nil {
				return fmt.Errorf("create upload: %w", err)
			}
			if form == "" {
				if err := output.PrintDone(cmd.OutOrStdout(), u, "created"); err != nil {
					return err
				}
			}
			if w.Wait {
				wait := uploads.untilEnded(s, c, u, func(m *movement) { m.object.(*velerov2.DataUpload).DeepCopyInto(u) })
				if err := w.Run(cmd.Context(), s, "upload "+u.Name+" has completed", "data upload describe "+u.Name, wait); err != nil {
					return err
				}
			}
			return printUpload(cmd.OutOrStdout(), form, u, w.Wait)
		},
	}
	c.Flags().StringVar(&r.snapshot, "snapshot", "", "the VolumeSnapshot; it is deleted in the end")
	c.Flags().StringVar(&r.namespace, "from-namespace", "", "the snapshot's namespace (default: that of the upload)")
	c.Flags().StringVar(&r.location, "location", "", "the backup storage location, in the namespace of the upload")
	c.Flags().DurationVar(&r.timeout, "operation-timeout", operationTimeout, "how long the upload waits for one thing, such as the snapshot")
	c.Flags().StringToStringVar(&r.labels, "labels", nil, "labels of the upload, such as app=web")
	output.AddFlag(c, &form, output.AsJSON, output.AsYAML, output.AsName)
	w.AddFlags(c, "the upload has completed or failed", 0)
	return c
}

func (r *uploadRequest) validateFlags() error {
	switch {
	case r.snapshot == "":
		return failure.Usage("--snapshot is required: the VolumeSnapshot to store")
	case r.location == "":
		return failure.Usage("--location is required: the backup storage location to store it in")
	case r.timeout <= 0:
		return failure.Usage("--operation-timeout %s: it must be positive", r.timeout)
	}
	return nil
}

// newObject returns the upload to create. It reads the snapshot, to name the claim and the classes, and to refuse one that cannot be
// stored. Without a name, the server generates one.
func (r *uploadRequest) newObject(ctx context.Context, c *cluster.Client, args []string) (*velerov2.DataUpload, error) {
	if r.namespace == "" {
		r.namespace = c.Namespace
	}
	snapshot := &unstructured.Unstructured{}
	snapshot.SetGroupVersionKind(snapshotKind)
	key := client.ObjectKey{Namespace: r.namespace, Name: r.snapshot}
	if err := c.Get(ctx, key, snapshot); err != nil {
		return nil, fmt.Errorf("get snapshot %s: %w", key, err)
	}
	name, _, _ := unstructured.NestedString(snapshot.Object, "spec", "source", "persistentVolumeClaimName")
	if name == "" {
		return nil, failure.New("take a snapshot of the claim", "snapshot %s is of no claim", key)
	}
	class, _, _ := unstructured.NestedString(snapshot.Object, "spec", "volumeSnapshotClassName")
	claim := &corev1.PersistentVolumeClaim{}
	claimKey := client.ObjectKey{Namespace: r.namespace, Name: name}
	if err := c.Get(ctx, claimKey, claim); err != nil {
		return nil, fmt.Errorf("get claim %s, which the snapshot is of: %w", claimKey, err)
	}
	storageClass := ""
	if claim.Spec.StorageClassName != nil {
		storageClass = *claim.Spec.StorageClassName
	}
	u := &velerov2.DataUpload{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Labels: r.labels},
		Spec: velerov2.DataUploadSpec{
			SnapshotType:    velerov2.SnapshotCSI,
			CSISnapshot:     &velerov2.CSISnapshotSpec{VolumeSnapshot: r.snapshot, StorageClass: storageClass, SnapshotClass: class},
			SourceNamespace: r.namespace, SourcePVC: name, DataMover: datamove.Mover, BackupStorageLocation: r.location,
			OperationTimeout: metav1.Duration{Duration: r.timeout},
		},
	}
	setName(u, args, r.snapshot)
	return u, nil
}

// setName gives an object the name that the user gave, or lets the server generate one that begins with prefix.
func setName(o client.Object, args []string, prefix string) {
	if len(args) == 1 {
		o.SetName(args[0])
		return
	}
	o.SetGenerateName(prefix + "-")
}

func printUpload(w io.Writer, form string, u *velerov2.DataUpload, waited bool) error {
	if form != "" {
		return output.PrintObject(w, form, u)
	}
	if !waited {
		return nil
	}
	m := newMovement(u)
	text := fmt.Sprintf("upload %s completed: %s, %s new or changed, took %s", u.Name, human.Bytes(u.Status.Progress.TotalBytes), human.Bytes(u.Status.IncrementalBytes), human.Or(m.took(time.Time{})))
	_, err := fmt.Fprintln(w, human.Line(text+", snapshot ID "+u.Status.SnapshotID))
	return err
}
