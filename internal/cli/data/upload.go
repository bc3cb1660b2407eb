package data

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/failure"
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

	// machine, unless it is empty, asks for the disks of a running virtual machine. The fields below belong to it.
	machine, scratchClaim, tracker string
	volumes                        []string
}

func newUploadCreateCommand(s *resource.Session) *cobra.Command {
	var r uploadRequest
	var w resource.Waiting
	var form string
	c := &cobra.Command{
		Use: "create [NAME] {--snapshot SNAPSHOT | --vm MACHINE --scratch-claim CLAIM} --location LOCATION", Short: "Put a volume snapshot, or the disks of a running machine, into a repository",
		Long: `Put a volume snapshot, or the disks of a running virtual machine, into the repository of a
backup storage location. Uploads are made in the namespace of the location.

With --snapshot: the snapshot is used up. The upload deletes it when its data is stored, and also
when the upload fails or is cancelled. Take a snapshot for each upload. Without a NAME, the name
begins with that of the snapshot.

With --vm: the disks are read at one point in time while the machine runs on, without a snapshot.
Each disk is an upload NAME-VOLUME; together they are the group NAME, and one backup called NAME
is made for them in the machine's namespace. The changes of the machine must be tracked. What the
guest overwrites meanwhile goes to --scratch-claim, a claim in the machine's namespace with
volumeMode Filesystem. If an upload cannot be created, those before it are deleted again.

With --tracker, only what has changed since the tracker's last backup is read; without it,
everything. Use one tracker for each location: a disk whose last restore point is not in the
repository is read in full. The tracker moves when all uploads of the group have completed.

--volume leaves the other disks out of the restore points. A tracker moves for all disks
nevertheless, so that the next upload of those that were left out is full.`,
		Example: `  # Store a snapshot of a claim in namespace app, with progress
  varve data upload create --snapshot data-monday --from-namespace app --location default -n varve --wait

  # What has changed on the disks of the running machine web in namespace app
  varve tracker create web-default --vm web -n app
  varve data upload create web-monday --vm web --tracker web-default --scratch-claim web-scratch \
    --from-namespace app --location default -n varve --wait

  # The uploads of one moment
  varve data upload list -n varve -l ` + datamove.LabelGroup + `=web-monday`,
		Args: cmdline.AtMostOne("at most a name"), ValidArgsFunction: cobra.NoFileCompletions,
		PreRunE: func(_ *cobra.Command, args []string) error { return r.validateFlags(args) },
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := s.Connect()
			if err != nil {
				return err
			}
			all, err := r.newObjects(cmd.Context(), c, args)
			if err != nil {
				return err
			}
			if err := createUploads(cmd.Context(), c, all); err != nil {
				return err
			}
			for _, u := range all {
				if form != "" {
					break
				}
				if err := output.PrintDone(cmd.OutOrStdout(), u, "created"); err != nil {
					return err
				}
			}
			if w.Wait {
				if err := waitForUploads(cmd.Context(), s, c, &w, all); err != nil {
					return err
				}
			}
			return printUploads(cmd.OutOrStdout(), form, all, w.Wait)
		},
	}
	r.addFlags(s, c)
	output.AddFlag(c, &form, output.AsJSON, output.AsYAML, output.AsName)
	w.AddFlags(c, "all uploads have completed or failed", 0)
	return c
}

func (r *uploadRequest) addFlags(s *resource.Session, c *cobra.Command) {
	const from = "from-namespace"
	c.Flags().StringVar(&r.snapshot, "snapshot", "", "the VolumeSnapshot; it is deleted in the end")
	c.Flags().StringVar(&r.machine, "vm", "", "the running virtual machine whose disks are stored, instead of --snapshot")
	c.Flags().StringVar(&r.scratchClaim, "scratch-claim", "", "with --vm: the claim for what the guest overwrites while its disks are read")
	c.Flags().StringVar(&r.tracker, "tracker", "", "with --vm: the tracker whose last backup is the base (default: read everything)")
	c.Flags().StringSliceVar(&r.volumes, "volume", nil, "with --vm: only these volumes of the machine, such as root,data (default: all that are tracked)")
	c.Flags().StringVar(&r.namespace, from, "", "the namespace of the snapshot or the machine (default: that of the upload)")
	c.Flags().StringVar(&r.location, "location", "", "the backup storage location, in the namespace of the upload")
	c.Flags().DurationVar(&r.timeout, "operation-timeout", operationTimeout, "how long the upload waits for one thing, such as the snapshot")
	c.Flags().StringToStringVar(&r.labels, "labels", nil, "labels of the upload, such as app=web")
	s.CompleteFlagIn(c, "vm", from, resource.NewVMs)
	s.CompleteFlagIn(c, "scratch-claim", from, resource.NewClaims)
	s.CompleteFlagIn(c, "tracker", from, resource.NewTrackers)
}

func (r *uploadRequest) validateFlags(args []string) error {
	switch {
	case (r.snapshot == "") == (r.machine == ""):
		return failure.Usage("give exactly one of --snapshot (a VolumeSnapshot) and --vm (a running virtual machine)")
	case r.location == "":
		return failure.Usage("--location is required: the backup storage location to store it in")
	case r.timeout <= 0:
		return failure.Usage("--operation-timeout %s: it must be positive", r.timeout)
	case r.machine != "":
		return r.validateMachineFlags(args)
	case r.scratchClaim != "" || r.tracker != "" || len(r.volumes) > 0:
		return failure.Usage("--scratch-claim, --tracker and --volume need --vm")
	}
	return nil
}

// newObjects returns the uploads to create.
func (r *uploadRequest) newObjects(ctx context.Context, c *cluster.Client, args []string) ([]*velerov2.DataUpload, error) {
	if r.namespace == "" {
		r.namespace = c.Namespace
	}
	if r.machine != "" {
		return r.newMachineUploads(ctx, c, args[0])
	}
	u, err := r.newObject(ctx, c, args)
	return []*velerov2.DataUpload{u}, err
}

// newObject returns the upload of a snapshot. It reads the snapshot, to name the claim and the classes, and to refuse one that cannot be
// stored. Without a name, the server generates one.
func (r *uploadRequest) newObject(ctx context.Context, c *cluster.Client, args []string) (*velerov2.DataUpload, error) {
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
			OperationTimeout: velerov1.Duration{Duration: r.timeout},
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
