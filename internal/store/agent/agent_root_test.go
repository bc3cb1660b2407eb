//go:build root

package agent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/store/disk/disktest"
	"github.com/varvebackup/varve/internal/store/handover"
	"github.com/varvebackup/varve/internal/store/names"
	"github.com/varvebackup/varve/test/verdict"
)

const mib = 1 << 20

// An image is made from what a source wrote, read by another node, and deleted when nobody wants it.
func TestAgent_copiesFromTheFirstToTheLast(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]int64{"less than a piece": 1_000_001, "many pieces": 9*mib + 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data := withHole(1, size)
			c := newCluster(t)
			a, b := c.addNode("a"), c.addNode("b")
			first := c.makeFirst(a, data)
			if first.Size != size || first.CurrentChecksum != disktest.Checksum(data) || first.Progress != 100 ||
				first.RealSize <= 0 || first.RealSize > size {
				t.Errorf("%+v", first)
			}
			c.addDisk(b)
			second := b.await(longhornv1.StateReady)
			if second.Size != size || second.CurrentChecksum != first.CurrentChecksum || second.RealSize < first.RealSize ||
				second.RealSize > first.RealSize+2*zeroUnit {
				t.Errorf("first %+v\nsecond %+v", first, second)
			}
			for _, n := range []*node{a, b} {
				if got := n.disk().Read(names.Image(imageName, imageUUID)); !bytes.Equal(got, data) {
					verdict.Errorf(t, "the copy on %s", n.name)
				}
				if objects := n.disk().Objects(); len(objects) != 1 {
					t.Errorf("%s has more than the image: %+v", n.name, objects)
				}
			}
			c.removeDisk(b)
			b.awaitNone()
			if n := len(a.disk().Objects()); n != 1 {
				t.Errorf("%d objects on a", n)
			}
			var image longhornv1.BackingImage
			err := c.client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: imageName}, &image)
			if err = errors.Join(err, c.client.Delete(t.Context(), &image)); err != nil {
				t.Fatal(err)
			}
			a.awaitNone()
		})
	}
}

// While the source has its device, nothing is sealed, and its progress is reported.
func TestAgent_waitsForTheSource(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a := c.addNode("a")
	c.makeImage(a, "")
	s := a.attachSource()
	s.write(handover.Record{Done: 30, Total: 100}, nil)
	c.eventually("30 percent", func() error {
		if r, _ := a.report(); r.Progress != 30 || r.State != longhornv1.StateInProgress {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	s.write(handover.Record{Bytes: 10, Complete: true}, map[int64][]byte{0: []byte("0123456789")})
	c.eventually("that it waits", func() error {
		if r, _ := a.report(); !strings.Contains(r.Message, "detached") || r.Size != 10 {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	s.detach()
	a.await(longhornv1.StateReady)
	if got := a.disk().Read(names.Image(imageName, imageUUID)); string(got) != "0123456789" {
		verdict.Errorf(t, "the image: %q", got)
	}
}

func TestAgent_refusesAWrongChecksum(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a := c.addNode("a")
	good, other := []byte("what was asked for"), []byte("something else")
	wanted := sha256.Sum256(good)
	c.makeImage(a, hex.EncodeToString(wanted[:]))
	s := a.attachSource()
	s.write(handover.Record{Bytes: int64(len(other)), Complete: true}, map[int64][]byte{0: other})
	s.detach()
	r := a.await(longhornv1.StateFailed)
	got := sha256.Sum256(other)
	for _, sum := range [][sha256.Size]byte{wanted, got} {
		if digits := hex.EncodeToString(sum[:])[:16]; !strings.Contains(r.Message, digits) {
			t.Errorf("%q does not have %s", r.Message, digits)
		}
	}
	if r.RefusedChecksum != hex.EncodeToString(wanted[:]) {
		t.Errorf("the refused checksum is %q", r.RefusedChecksum)
	}
	c.eventually("that the head is gone", func() error {
		if objects := a.disk().Objects(); len(objects) > 0 {
			return fmt.Errorf("%+v", objects)
		}
		return nil
	})
	a.kill()
	a.start()
	c.eventually("that the new process knows the failure, too", func() error {
		if all, _ := a.agent.ListCopies(); len(all) != 1 || all[0].State != longhornv1.StateFailed ||
			all[0].RefusedChecksum != r.RefusedChecksum {
			return fmt.Errorf("%+v", all)
		}
		return nil
	})
	c.editImage(func(image *longhornv1.BackingImage) { image.Status.FirstCopyAttempts++ })
	s = a.attachSource()
	s.write(handover.Record{Bytes: int64(len(good)), Complete: true}, map[int64][]byte{0: good})
	s.detach()
	a.await(longhornv1.StateReady)
}

// damage changes a byte of the copy on a node's disk.
func (n *node) damage(offset int64) {
	n.c.t.Helper()
	lease, err := n.disk().Open(n.c.t.Context(), names.Image(imageName, imageUUID))
	if err != nil {
		n.c.t.Fatal(err)
	}
	setFlags := func(flags int) error {
		f, err := os.Open(lease.Path())
		if err != nil {
			return err
		}
		return errors.Join(unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags), f.Close())
	}
	err = setFlags(0)
	f, openErr := os.OpenFile(lease.Path(), os.O_RDWR, 0)
	if err = errors.Join(err, openErr); err != nil {
		n.c.t.Fatal(err)
	}
	one := make([]byte, 1)
	_, err = f.ReadAt(one, offset)
	one[0] ^= 1
	_, writeErr := f.WriteAt(one, offset)
	const immutable = 0x10
	if err = errors.Join(err, writeErr, f.Sync(), f.Close(), setFlags(immutable), lease.Close()); err != nil {
		n.c.t.Fatal(err)
	}
}

// A piece that is not what was sealed is refused. The store that has it reports its copy as failed, also after a restart,
// and a good copy is read instead.
func TestSync_refusesAFlippedBit(t *testing.T) {
	t.Parallel()
	data := withHole(2, 6*mib)
	c := newCluster(t)
	a, b, good := c.addNode("a"), c.addNode("b"), c.addNode("good")
	c.makeFirst(a, data)
	c.addDisk(good)
	good.await(longhornv1.StateReady)
	a.damage(5*mib + 17)
	c.addDisk(b)
	b.awaitReport(longhornv1.StateInProgress, "MiB 5 of the other copy is not what was sealed")
	a.awaitReport(longhornv1.StateFailed, "damaged")
	a.kill()
	a.start()
	a.awaitReport(longhornv1.StateFailed, "damaged")
	b.await(longhornv1.StateFailed)
	for _, o := range b.disk().Objects() {
		if o.Name == names.Image(imageName, imageUUID) {
			verdict.Errorf(t, "a copy with a flipped bit is an image: %+v", o)
		}
	}
	c.noteReady(good)
	b.await(longhornv1.StateReady)
	if !bytes.Equal(b.disk().Read(names.Image(imageName, imageUUID)), data) {
		verdict.Errorf(t, "the copy")
	}
}

// After a kill in the middle, pieces that are there are not read again.
func TestSync_resumes(t *testing.T) {
	t.Parallel()
	const pieces, atKill = 40, 12
	data := disktest.Noise(3, pieces*mib)
	c := newCluster(t)
	a, b := c.addNode("a"), c.addNode("b")
	c.makeFirst(a, data)
	var read atomic.Int32
	b.kill()
	stop := errors.New("killed")
	b.reached = func(step string) error {
		if step == "piece" && read.Add(1) >= atKill {
			b.cancel()
			return stop
		}
		return nil
	}
	b.start()
	c.addDisk(b)
	c.eventually("the kill", func() error {
		if read.Load() < atKill {
			return errors.New("not yet")
		}
		return nil
	})
	b.kill()
	before := read.Load()
	var again atomic.Int32
	b.reached = func(step string) error {
		if step == "piece" {
			again.Add(1)
		}
		return nil
	}
	b.start()
	b.await(longhornv1.StateReady)
	if n := again.Load(); n > pieces-before || n == 0 {
		t.Errorf("%d pieces of %d read after a kill at %d", n, pieces, before)
	}
	if !bytes.Equal(b.disk().Read(names.Image(imageName, imageUUID)), data) {
		verdict.Errorf(t, "the copy")
	}
}

// A kill after any step changes nothing in the end.
func TestAgent_killedAfterEachStep(t *testing.T) {
	t.Parallel()
	data := withHole(4, 3*mib+5)
	for _, step := range []string{
		"seal", "sealed", "head deleted", "copy created", "piece", "copied", "copy sealed",
	} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			a, b := c.addNode("a"), c.addNode("b")
			var killed atomic.Int32
			for _, n := range []*node{a, b} {
				n.kill()
				n.reached = func(at string) error {
					if at == step && killed.CompareAndSwap(0, 1) {
						n.cancel()
						return context.Canceled
					}
					return nil
				}
				n.start()
			}
			restart := func() error {
				for _, n := range c.nodes {
					select {
					case <-n.ended:
						n.kill()
						n.start()
					default:
					}
				}
				return nil
			}
			awaitReady := func(n *node) longhornv1.BackingImageV2CopyInfo {
				c.eventually("a copy on "+n.name, func() error {
					if r, _ := n.report(); r.State != longhornv1.StateReady {
						return errors.Join(fmt.Errorf("%+v", r), restart())
					}
					return restart()
				})
				return n.await(longhornv1.StateReady)
			}
			c.makeImage(a, "")
			s := a.attachSource()
			s.write(handover.Record{Bytes: int64(len(data)), Complete: true}, map[int64][]byte{0: data})
			s.detach()
			c.finishFirst(awaitReady(a))
			c.addDisk(b)
			awaitReady(b)
			c.eventually("that nothing is left", func() error {
				for _, n := range c.nodes {
					if err := restart(); err != nil {
						return err
					}
					if len(n.set.All()) != 1 {
						return fmt.Errorf("the disk of %s is not open", n.name)
					}
					if objects := n.disk().Objects(); len(objects) != 1 {
						return fmt.Errorf("%s: %+v", n.name, objects)
					}
				}
				return nil
			})
			if killed.Load() == 0 {
				t.Error("the step was not reached")
			}
			for _, n := range c.nodes {
				if !bytes.Equal(n.disk().Read(names.Image(imageName, imageUUID)), data) {
					verdict.Errorf(t, "the copy on %s", n.name)
				}
			}
		})
	}
}

// A disk that is not mounted is not made anew in the directory below it.
func TestDisk_unmountedIsNotFormatted(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a := c.addNode("a")
	uuid := a.uuid()
	a.kill()
	a.fs.Unmount(t)
	a.start()
	message := a.condition(longhornv1.ReasonDiskUnusable)
	for _, words := range []string{uuid, a.fs.Dir, "mount it"} {
		if !strings.Contains(message, words) {
			t.Errorf("%q does not say %q", message, words)
		}
	}
	if entries, err := os.ReadDir(a.fs.Dir); err != nil || len(entries) > 0 {
		t.Errorf("%v, %v", entries, err)
	}
	a.fs.Mount(t, "")
	if got := a.uuid(); got != uuid {
		t.Errorf("%s became %s", uuid, got)
	}
}

// Errors of the API server, and objects that are missing, delete nothing.
func TestDelete_onlyWhatAnImageDoesNotWant(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a := c.addNode("a")
	c.makeFirst(a, disktest.Noise(5, 5000))
	c.unreadable.Store(true)
	// removeDisk reads the image, too, so the test takes the disk out by a list.
	var images longhornv1.BackingImageList
	err := c.client.List(t.Context(), &images)
	if err == nil {
		images.Items[0].Spec.DiskFileSpecMap = nil
		err = c.client.Update(t.Context(), &images.Items[0])
	}
	if err != nil {
		t.Fatal(err)
	}
	c.eventually("that it cannot be deleted yet", func() error {
		r, _ := a.report()
		if r.State != longhornv1.StateReady || !strings.Contains(r.Message, "connection refused") {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	// Without the image nobody says that the copy is not wanted.
	image := &images.Items[0]
	image.Finalizers = nil
	if err := errors.Join(c.client.Update(t.Context(), image), c.client.Delete(t.Context(), image)); err != nil {
		t.Fatal(err)
	}
	c.unreadable.Store(false)
	c.eventually("that the copy is named", func() error {
		if m := a.condition(longhornv1.ReasonDiskReady); !strings.Contains(m, imageName) || !strings.Contains(m, imageUUID) {
			return errors.New(m)
		}
		return nil
	})
	if n := len(a.disk().Objects()); n != 1 {
		t.Errorf("%d objects", n)
	}
}

// A disk that leaves spec.disks stays open as long as something on it is in use.
func TestDisk_leavesWhenNothingIsInUse(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a := c.addNode("a")
	a.uuid()
	d := a.disk()
	d.NewHead("volume/v", "v", "", mib)
	lease, err := d.Open(t.Context(), "volume/v")
	if err != nil {
		t.Fatal(err)
	}
	var o longhornv1.Node
	err = c.client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "a"}, &o)
	o.Spec.Disks = nil
	if err = errors.Join(err, c.client.Update(t.Context(), &o)); err != nil {
		t.Fatal(err)
	}
	if m := a.condition(longhornv1.ReasonDiskUnusable); !strings.Contains(m, "not in spec.disks any more") {
		t.Error(m)
	}
	if n := len(a.set.All()); n != 1 {
		t.Errorf("%d disks", n)
	}
	if err := lease.Close(); err != nil {
		t.Fatal(err)
	}
	c.eventually("that the disk is closed", func() error {
		if all := a.set.All(); len(all) > 0 || a.diskStatus() != nil {
			return fmt.Errorf("%v", all)
		}
		return nil
	})
}
