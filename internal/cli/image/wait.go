package image

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/progress"
	"github.com/varvebackup/varve/internal/cli/resource"
)

// countDisks returns "1 disk" or "2 disks".
func countDisks(n int) string { return human.Count(n, "disk") }

// follower waits for what becomes of an image, and shows the copy on each disk.
type follower struct {
	session *resource.Session
	client  *cluster.Client
	name    string
	uid     types.UID
	disks   map[string]disk
	// asked has the disks that were not known when the disks were listed last.
	asked map[string]bool
}

func newFollower(s *resource.Session, c *cluster.Client, b *longhornv1.BackingImage) *follower {
	return &follower{session: s, client: c, name: b.Name, uid: b.UID, asked: map[string]bool{}}
}

// follow calls check for each state of the image until it is done or fails.
func (f *follower) follow(
	ctx context.Context, show func(progress.Report), check func(*longhornv1.BackingImage, []diskCopy) (bool, error),
) error {
	key := client.ObjectKey{Namespace: f.client.Namespace, Name: f.name}
	return cluster.Follow(ctx, f.client, key, &longhornv1.BackingImage{}, newList(),
		func(b *longhornv1.BackingImage, exists bool) (bool, error) {
			if !exists || b.UID != f.uid {
				return false, failure.New("", "image %s was deleted", f.name)
			}
			copies, err := f.copies(ctx, b)
			if err != nil {
				return false, err
			}
			f.showCopies(show, b, copies)
			return check(b, copies)
		})
}

// copies returns the copies of an image. The disks are listed anew when it has one that is not known.
func (f *follower) copies(ctx context.Context, b *longhornv1.BackingImage) ([]diskCopy, error) {
	for _, d := range listCopies(b, f.disks) {
		if d.node != "" || f.asked[d.uuid] {
			continue
		}
		disks, err := listDisks(ctx, f.client)
		if err != nil {
			return nil, err
		}
		f.disks, f.asked[d.uuid] = disks, true
	}
	return listCopies(b, f.disks), nil
}

func (f *follower) showCopies(show func(progress.Report), b *longhornv1.BackingImage, copies []diskCopy) {
	if message := readMessage(b); message != "" || len(copies) == 0 {
		show(progress.Report{Name: b.Name, Phase: "Pending", Message: cmp.Or(message, "no disk has been chosen yet")})
	}
	for i := range copies {
		d := &copies[i]
		message := d.message
		if d.state == longhornv1.StateInProgress {
			message = strings.TrimSpace(d.formatProgress() + " " + message)
		}
		show(progress.Report{Name: b.Name + " on " + d.title(), Phase: phases[d.state], Message: message})
	}
}

// phases are the states as progress shows them.
var phases = map[longhornv1.BackingImageState]string{
	longhornv1.StatePending: "Pending", longhornv1.StateInProgress: "InProgress", longhornv1.StateReady: "Ready",
	longhornv1.StateFailed: "Failed", longhornv1.StateUnknown: "Unknown",
}

// untilReady waits until so many copies are ready. A first copy that failed and is to be tried again may still become
// ready.
func untilReady(s *resource.Session, c *cluster.Client, b *longhornv1.BackingImage, copies int) resource.WaitFunc {
	return func(ctx context.Context, show func(progress.Report)) error {
		f := newFollower(s, c, b)
		return f.follow(ctx, show, func(b *longhornv1.BackingImage, _ []diskCopy) (bool, error) {
			return int(b.Status.ReadyCopies) >= copies, f.checkFailure(show, b)
		})
	}
}

// checkFailure returns an error if the first copy failed for good, and shows why it failed if it is to be tried again.
func (f *follower) checkFailure(show func(progress.Report), b *longhornv1.BackingImage) error {
	if b.Status.V2FirstCopyStatus != longhornv1.StateFailed {
		return nil
	}
	if b.Status.FirstCopyRetryTime == nil {
		return f.fail("the first copy failed: %s", firstMessage(b))
	}
	show(progress.Report{
		Name: b.Name, Phase: "Failed", Message: fmt.Sprintf("attempt %d; the next is at %s: %s",
			b.Status.FirstCopyAttempts, output.FormatTime(b.Status.FirstCopyRetryTime.Time), firstMessage(b)),
	})
	return nil
}

// fail returns an error with a hint at what shows more.
func (f *follower) fail(format string, args ...any) error {
	hint := f.session.CommandHint("image describe "+f.name) + " shows each disk"
	return failure.New(hint, "image %s: %s", f.name, fmt.Sprintf(format, args...))
}

// firstMessage returns why the first copy failed.
func firstMessage(b *longhornv1.BackingImage) string {
	return cmp.Or(b.Status.FirstCopyMessage, readMessage(b), "no reason is known yet")
}

// untilOnDisk waits until the copy on a disk is ready.
func untilOnDisk(s *resource.Session, c *cluster.Client, b *longhornv1.BackingImage, uuid string) resource.WaitFunc {
	return func(ctx context.Context, show func(progress.Report)) error {
		f := newFollower(s, c, b)
		return f.follow(ctx, show, func(b *longhornv1.BackingImage, _ []diskCopy) (bool, error) {
			if _, wanted := b.Spec.DiskFileSpecMap[uuid]; !wanted {
				return false, f.fail("its copy on disk %s is not wanted any more", uuid)
			}
			d := b.Status.DiskFileStatusMap[uuid]
			return d != nil && d.State == longhornv1.StateReady, nil
		})
	}
}

// untilEvicted waits until a disk has no copy any more.
func untilEvicted(s *resource.Session, c *cluster.Client, b *longhornv1.BackingImage, uuid string) resource.WaitFunc {
	return func(ctx context.Context, show func(progress.Report)) error {
		f := newFollower(s, c, b)
		return f.follow(ctx, show, func(b *longhornv1.BackingImage, _ []diskCopy) (bool, error) {
			spec, wanted := b.Spec.DiskFileSpecMap[uuid]
			if wanted && (spec == nil || !spec.EvictionRequested) {
				return false, f.fail("the eviction from disk %s was canceled", uuid)
			}
			_, there := b.Status.DiskFileStatusMap[uuid]
			return !wanted && !there, nil
		})
	}
}
