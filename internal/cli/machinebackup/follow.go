package machinebackup

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/progress"
	"github.com/varvebackup/varve/internal/cli/resource"
)

// NewList returns an empty list of backups of machines.
func NewList() client.ObjectList { return &harvesterv1.VirtualMachineBackupList{} }

// FollowUntilEnded waits until a backup is ready or has failed, and stores its last state in it. It returns false if
// the backup does not exist, or no longer. Each disk is shown by itself.
func FollowUntilEnded(
	ctx context.Context, c *cluster.Client, b *harvesterv1.VirtualMachineBackup, show func(progress.Report),
) (exists bool, err error) {
	uid := b.UID
	err = cluster.Follow(ctx, c, client.ObjectKeyFromObject(b), &harvesterv1.VirtualMachineBackup{}, NewList(),
		func(seen *harvesterv1.VirtualMachineBackup, found bool) (bool, error) {
			exists = found && (uid == "" || seen.UID == uid)
			if !exists {
				return true, nil
			}
			uid = seen.UID
			seen.DeepCopyInto(b)
			showDisks(seen, show)
			return seen.HasFailed() || seen.IsReady(), nil
		})
	return exists, err
}

func showDisks(b *harvesterv1.VirtualMachineBackup, show func(progress.Report)) {
	message := Message(b.Status.Conditions)
	if len(b.Status.VolumeBackups) == 0 {
		show(progress.Report{Name: b.Name, Phase: Phase(b), Message: message})
	}
	for _, v := range b.Status.VolumeBackups {
		done := v.VolumeSize / 100 * int64(v.Progress)
		show(progress.Report{
			Name: v.VolumeName, Phase: Phase(b), Message: message,
			Percent: v.Progress, ProcessedBytes: done, TotalBytes: v.VolumeSize,
		})
	}
}

// UntilReady waits until a backup is ready, and stores its last state in it. Each disk is shown by itself.
func UntilReady(c *cluster.Client, b *harvesterv1.VirtualMachineBackup) resource.WaitFunc {
	return func(ctx context.Context, show func(progress.Report)) error {
		exists, err := FollowUntilEnded(ctx, c, b, show)
		switch {
		case err != nil:
			return err
		case !exists:
			return failure.New("", "machine backup %s was deleted while it ran", b.Name)
		case b.HasFailed():
			return failure.New("", "machine backup %s failed: %s", b.Name, ptr.Deref(b.Status.Error.Message, ""))
		}
		return nil
	}
}

// UntilGone waits until a backup that is being deleted is gone, and shows what holds it.
func UntilGone(c *cluster.Client, b *harvesterv1.VirtualMachineBackup) resource.WaitFunc {
	return func(ctx context.Context, show func(progress.Report)) error {
		return cluster.Follow(ctx, c, client.ObjectKeyFromObject(b), &harvesterv1.VirtualMachineBackup{}, NewList(),
			func(seen *harvesterv1.VirtualMachineBackup, exists bool) (bool, error) {
				if !exists || seen.UID != b.UID {
					show(progress.Report{Name: b.Name, Phase: "Deleted"})
					return true, nil
				}
				show(progress.Report{Name: b.Name, Phase: "Deleting", Message: Message(seen.Status.Conditions)})
				return false, nil
			})
	}
}

// Message returns what an object says that it does.
func Message(all []harvesterv1.Condition) string {
	for _, c := range all {
		if c.Type == harvesterv1.ConditionProgressing {
			return c.Message
		}
	}
	return ""
}

// Phase says in a word what a backup is like.
func Phase(b *harvesterv1.VirtualMachineBackup) string {
	switch {
	case b.DeletionTimestamp != nil:
		return "Deleting"
	case b.IsReady():
		return "Ready"
	case b.HasFailed():
		return "Failed"
	case b.Status.Group == "":
		return "Pending"
	}
	return "Progressing"
}

// DescribeStored says in one line what a backup has stored, and what it has not.
func DescribeStored(b *harvesterv1.VirtualMachineBackup) string {
	size, changed := StoredBytes(b)
	text := fmt.Sprintf("machine backup %s is ready: %s of %s", b.Name,
		human.Count(len(b.Status.VolumeBackups), "disk"), human.Bytes(size))
	if b.Spec.Type == harvesterv1.Snapshot {
		text += " in snapshots of the storage"
		if how := DescribeConsistency(b); how != "" {
			text += ", " + how
		}
	} else {
		text += fmt.Sprintf(", %s new or changed", human.Bytes(changed))
	}
	for _, v := range b.Status.VolumeBackups {
		if v.FullReason != "" {
			text += fmt.Sprintf(", volume %s full because %s", v.VolumeName, v.FullReason)
		}
	}
	if b.Status.Untracked != nil && DescribeConsistency(b) != "" {
		text += ", " + DescribeConsistency(b)
	}
	for _, v := range b.Status.ExcludedVolumes {
		text += fmt.Sprintf(", without volume %s (%s)", v.Name, v.Reason)
	}
	if why := DescribeUntracked(b); why != "" {
		text += "; " + why
	}
	return text
}

// DescribeUntracked says why the changes of a machine that ran were not tracked, and how they get tracked, or "".
func DescribeUntracked(b *harvesterv1.VirtualMachineBackup) string {
	if b.Status.Untracked == nil {
		return ""
	}
	return b.Status.Untracked.Message
}

// StoredBytes returns the size of a backup's disks, and how much of it was new or changed, in bytes.
func StoredBytes(b *harvesterv1.VirtualMachineBackup) (size, changed int64) {
	for _, v := range b.Status.VolumeBackups {
		size += v.VolumeSize
		changed += v.ChangedBytes
	}
	return size, changed
}

// DescribeConsistency says what a snapshot says of the guest at its moment, or "".
func DescribeConsistency(b *harvesterv1.VirtualMachineBackup) string {
	var texts []string
	for _, i := range b.Status.SourceIndications {
		text := i.Indication
		if i.Message != "" {
			text += " (" + i.Message + ")"
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, ", ")
}
