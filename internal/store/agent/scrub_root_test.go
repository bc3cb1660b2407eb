//go:build root

package agent

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/names"
	"github.com/varvebackup/varve/test/verdict"
)

// newScrubbed returns a cluster whose first node's images are read now and then, and a second one with a copy of the
// image if one is wanted there.
func newScrubbed(t *testing.T, data []byte, others bool) (c *cluster, a, good *node) {
	t.Helper()
	c = newCluster(t)
	c.scrub = ScrubOptions{BytesPerSecond: 20 << 20, Interval: time.Hour}
	a = c.addNode("a")
	c.scrub = ScrubOptions{}
	c.makeFirst(a, data)
	if !others {
		return c, a, nil
	}
	good = c.addNode("good")
	c.addDisk(good)
	good.await(longhornv1.StateReady)
	c.noteReady(good)
	return c, a, good
}

// clone makes a volume of the image.
func (n *node) clone(handle string, size int64) {
	n.c.t.Helper()
	n.disk().NewHead(names.Head(handle), disk.UID(handle), names.Image(imageName, imageUUID), size)
}

// writeVolume overwrites a block of a volume.
func (n *node) writeVolume(handle string, offset int64) {
	n.c.t.Helper()
	n.disk().Write(names.Head(handle), offset, bytes.Repeat([]byte{7}, 4096))
}

// awaitIntact waits until the disk's condition VolumesIntact has a status, and returns its message.
func (n *node) awaitIntact(want metav1.ConditionStatus) (message string) {
	n.c.t.Helper()
	n.c.eventually("VolumesIntact "+string(want), func() error {
		s := n.diskStatus()
		if s == nil {
			return errors.New("no status")
		}
		c := meta.FindStatusCondition(s.Conditions, longhornv1.ConditionVolumesIntact)
		if c == nil || c.Status != want {
			return fmt.Errorf("%+v", c)
		}
		message = c.Message
		return nil
	})
	return message
}

// wantContent checks what the node's copy has, on the disk and not in the page cache.
func (n *node) wantContent(want []byte) {
	n.c.t.Helper()
	image := names.Image(imageName, imageUUID)
	err := withFile(n.c.t.Context(), n.set.All()[0], image, os.O_RDONLY, func(f *os.File) error {
		got := make([]byte, len(want))
		err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
		_, errRead := f.ReadAt(got, 0)
		if !bytes.Equal(got, want) {
			verdict.Errorf(n.c.t, "the copy has other bytes")
		}
		return errors.Join(err, errRead)
	})
	if err != nil {
		n.c.t.Fatal(err)
	}
}

// A flipped bit is found, and repaired with the MiB of another copy. Volumes that share the wrong block are named until
// they have overwritten it; those that do not are not.
func TestScrub_findsAndRepairsAFlippedBit(t *testing.T) {
	t.Parallel()
	const at = 5*mib + 8192 + 17
	data := withHole(2, 6*mib)
	c, a, _ := newScrubbed(t, data, true)
	for _, handle := range []string{"pvc-shares", "pvc-wrote", "pvc-wrote-near"} {
		a.clone(handle, 8*mib)
	}
	a.writeVolume("pvc-wrote", at/4096*4096)
	a.writeVolume("pvc-wrote-near", at/4096*4096-4096)
	c.eventually("a whole pass", func() error {
		if s := a.diskStatus(); s == nil || s.LastScrubTime == nil {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	a.awaitIntact(metav1.ConditionTrue)
	before := a.diskStatus().LastScrubTime.Time
	a.disk().FlipBit(a.fs.Device, names.Image(imageName, imageUUID), at)
	c.clock.Step(time.Hour)

	message := a.awaitIntact(metav1.ConditionFalse)
	c.eventually("the repair", func() error {
		message = a.awaitIntact(metav1.ConditionFalse)
		if !strings.Contains(message, fmt.Sprintf("volume pvc-shares has 4096 bytes at offset %d ", at/4096*4096)) {
			return errors.New(message)
		}
		return nil
	})
	if !strings.Contains(message, "pvc-wrote-near has 4096 bytes") || strings.Contains(message, "pvc-wrote has") {
		t.Error(message)
	}
	a.await(longhornv1.StateReady)
	a.wantContent(data)
	for _, want := range []string{
		"Warning CopyDamaged the copy on disk default-disk of node a is damaged: MiB 5 is not what was sealed",
		"Normal CopyRepaired the copy on disk default-disk of node a is repaired: 1 MiB were replaced with those of other " +
			"copies",
	} {
		if got := <-a.events.Events; got != want {
			t.Errorf("the event %q, and not %q", got, want)
		}
	}
	c.eventually("the pass to end", func() error {
		if s := a.diskStatus(); !s.LastScrubTime.After(before) {
			return fmt.Errorf("%v", s.LastScrubTime)
		}
		return nil
	})
	a.kill() // what is known of the volumes survives
	c.scrub = ScrubOptions{BytesPerSecond: 20 << 20, Interval: time.Hour}
	a.start()
	c.eventually("the disk to be open", func() error {
		if n := len(a.set.All()); n != 1 {
			return fmt.Errorf("%d disks", n)
		}
		return nil
	})
	a.awaitIntact(metav1.ConditionFalse)
	a.writeVolume("pvc-shares", at/4096*4096)
	if err := a.set.All()[0].Delete(t.Context(), names.Head("pvc-wrote-near")); err != nil {
		t.Fatal(err)
	}
	a.awaitIntact(metav1.ConditionTrue)
	a.wantContent(data)
}

// Without another copy a flipped bit is found, and the copy has failed. It is repaired when there is one.
func TestScrub_repairsLater(t *testing.T) {
	t.Parallel()
	data := withHole(3, 3*mib+5)
	c, a, _ := newScrubbed(t, data, false)
	a.damage(3*mib + 2)
	c.clock.Step(time.Hour) // the pass may have read it before
	a.await(longhornv1.StateFailed)
	if got := <-a.events.Events; !strings.HasPrefix(got, "Warning CopyDamaged the copy on disk default-disk of node a ") {
		t.Error(got)
	}
	got := <-a.events.Events
	if !strings.HasPrefix(got, "Warning CopyNotRepaired the copy on disk default-disk of node a ") ||
		!strings.Contains(got, "make one more") {
		t.Error(got)
	}
	good := c.addNode("good")
	c.addDisk(good)
	good.putImage(data)
	good.await(longhornv1.StateReady)
	c.noteReady(good)
	c.clock.Step(time.Hour)
	a.await(longhornv1.StateReady)
	a.wantContent(data)
}

// A copy is read at once, and repaired, if the image has an annotation that asks for it, as after a backup that failed.
func TestScrub_checksACopyThatIsAskedFor(t *testing.T) {
	t.Parallel()
	data := withHole(4, 3*mib+5)
	c, a, _ := newScrubbed(t, data, true)
	c.eventually("a whole pass", func() error {
		if s := a.diskStatus(); s == nil || s.LastScrubTime == nil {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	a.disk().FlipBit(a.fs.Device, names.Image(imageName, imageUUID), 3*mib+2)
	image := &longhornv1.BackingImage{}
	if err := c.client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: imageName}, image); err != nil {
		t.Fatal(err)
	}
	metav1.SetMetaDataAnnotation(&image.ObjectMeta, longhornv1.AnnotationCheckCopy+a.uuid(), "backup")
	if err := c.client.Update(t.Context(), image); err != nil {
		t.Fatal(err)
	}
	c.eventually("the repair", func() error {
		select {
		case text := <-a.events.Events:
			if strings.HasPrefix(text, "Normal CopyRepaired ") {
				return nil
			}
		default:
		}
		return errors.New("no event says so")
	})
	a.wantContent(data)
}

// Two copies that are damaged in different places repair each other, although neither of them is ready.
func TestScrub_damagedCopiesRepairEachOther(t *testing.T) {
	t.Parallel()
	data := withHole(5, 5*mib+5)
	c := newCluster(t)
	c.scrub = ScrubOptions{BytesPerSecond: 20 << 20, Interval: time.Hour}
	a := c.addNode("a")
	c.makeFirst(a, data)
	c.noteReady(a)
	b := c.addNode("b")
	c.addDisk(b)
	b.await(longhornv1.StateReady)
	nodes := map[*node]int64{a: 2, b: 5*mib + 2}
	c.editImage(func(image *longhornv1.BackingImage) {
		for n := range nodes {
			image.Status.DiskFileStatusMap[n.diskStatus().DiskUUID] = &longhornv1.BackingImageDiskFileStatus{
				State: longhornv1.StateFailed,
			}
		}
	})
	image := names.Image(imageName, imageUUID)
	for n, at := range nodes {
		n.disk().FlipBit(n.fs.Device, image, at)
		if err := n.set.All()[0].MarkDamaged(t.Context(), image, imageUUID, "a bit"); err != nil {
			t.Fatal(err)
		}
	}
	for n := range nodes {
		c.eventually("the repair on "+n.name, func() error {
			c.clock.Step(time.Minute) // the first attempt may have been before the bits were wrong
			if state := n.disk().Find(image).State; state != disk.StateReady {
				return fmt.Errorf("it is %s", state)
			}
			return nil
		})
		n.wantContent(data)
	}
}

// putImage makes a copy on a node's disk, as if it had been there before.
func (n *node) putImage(data []byte) {
	n.c.t.Helper()
	n.condition(longhornv1.ReasonDiskReady)
	d := n.disk()
	d.NewImage(names.Image(imageName, imageUUID), imageUUID, data)
}
