//go:build root

package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/disk/disktest"
	"github.com/varvebackup/varve/internal/store/names"
	"github.com/varvebackup/varve/test/verdict"
)

const (
	localName = "golden"
	localUUID = "0a1b2c3d-0000-4000-8000-000000000002"
	volume    = "pvc-1"
)

// makeLocal makes an image of what a node's disk has.
func (c *cluster) makeLocal(n *node, from longhornv1.SourceType, parameter, value, checksum string) {
	c.t.Helper()
	uuid := n.uuid()
	image := &longhornv1.BackingImage{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: localName, Finalizers: []string{longhornv1.BackingImageFinalizer},
		},
		Spec: longhornv1.BackingImageSpec{
			SourceType: from, Checksum: checksum,
			SourceParameters: map[string]longhornv1.ParameterValue{parameter: longhornv1.ParameterValue(value)},
			DiskFileSpecMap:  map[string]*longhornv1.BackingImageDiskFileSpec{uuid: {}},
		},
	}
	err := c.client.Create(c.t.Context(), image)
	image.Status = longhornv1.BackingImageStatus{
		UUID: localUUID, V2FirstCopyDisk: uuid, V2FirstCopyStatus: longhornv1.StateInProgress,
	}
	if err = errors.Join(err, c.client.Status().Update(c.t.Context(), image)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) cloneImage(n *node, checksum string) {
	c.t.Helper()
	c.makeLocal(n, longhornv1.SourceClone, longhornv1.ParameterBackingImage, imageName, checksum)
}

func (c *cluster) exportVolume(n *node) {
	c.t.Helper()
	c.makeLocal(n, longhornv1.SourceExport, longhornv1.ParameterVolumeName, volume, "")
}

// awaitLocal waits for a state of the image that is made of what the disk has, and for words.
func (n *node) awaitLocal(state longhornv1.BackingImageState, words string) (c longhornv1.BackingImageV2CopyInfo) {
	n.c.t.Helper()
	n.c.eventually(fmt.Sprintf("a copy that is %s: %s", state, words), func() error {
		im := &longhornv1.InstanceManager{}
		key := client.ObjectKey{Namespace: namespace, Name: n.name}
		if err := n.c.client.Get(context.Background(), key, im); err != nil {
			return err
		}
		c = im.Status.BackingImages[n.diskStatus().DiskUUID+"/"+localUUID]
		if c.State != state || !strings.Contains(c.Message, words) {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	return c
}

// localIs compares the image with what it must be, and the disk's objects.
func (n *node) localIs(data []byte, objects ...disk.Name) {
	n.c.t.Helper()
	if got := n.disk().Read(names.Image(localName, localUUID)); !bytes.Equal(got, data) {
		verdict.Errorf(n.c.t, "the image has %d bytes, which differ from the %d of its source", len(got), len(data))
	}
	n.holds(append(objects, names.Image(localName, localUUID))...)
}

// holds waits until the disk has these objects, and no others.
func (n *node) holds(objects ...disk.Name) {
	n.c.t.Helper()
	n.c.eventually("the disk's objects", func() error {
		var missing []disk.Name
		have := n.disk().Objects()
		for _, name := range objects {
			found := false
			for _, o := range have {
				found = found || o.Name == name
			}
			if !found {
				missing = append(missing, name)
			}
		}
		if len(have) != len(objects) || len(missing) > 0 {
			return fmt.Errorf("%+v, want %v", have, objects)
		}
		return nil
	})
}

// A clone has the bytes of the other image, also if that has no whole number of blocks, and outlives it.
func TestClone_outlivesItsSource(t *testing.T) {
	t.Parallel()
	data := withHole(21, 1_000_001)
	c := newCluster(t)
	a := c.addNode("a")
	first := c.makeFirst(a, data)
	c.cloneImage(a, "")
	r := a.awaitLocal(longhornv1.StateReady, "")
	if r.Size != first.Size || r.CurrentChecksum != first.CurrentChecksum || r.RealSize != first.RealSize {
		t.Errorf("the image %+v\nits clone %+v", first, r)
	}
	a.localIs(data, names.Image(imageName, imageUUID))
	if parent := a.disk().Find(names.Image(localName, localUUID)).Parent; parent != "" {
		t.Errorf("the clone depends on %s", parent)
	}
	c.removeDisk(a)
	a.localIs(data)
}

// A clone of an image that has rotted is not made, nor one that is not what spec.checksum says.
func TestClone_refusesOtherBytes(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		rotten          bool
		checksum, words string
	}{
		"a flipped bit":    {true, "", "the disk's copy of the image ubuntu-22.04 is not what was sealed"},
		"another checksum": {false, disktest.Checksum(nil), "correct spec.checksum or the source"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			a := c.addNode("a")
			c.makeFirst(a, disktest.Noise(22, 3*mib+7))
			if x.rotten {
				a.damage(2*mib + 3)
			}
			c.cloneImage(a, x.checksum)
			a.awaitLocal(longhornv1.StateFailed, x.words)
			want := disk.StateReady
			if x.rotten {
				want = disk.StateDamaged
			}
			if got := a.disk().Find(names.Image(imageName, imageUUID)).State; got != want {
				t.Errorf("the image that was cloned is %s, not %s", got, want)
			}
			a.holds(names.Image(imageName, imageUUID))
		})
	}
}

// Kills at each step end in the same clone, and in no other object.
func TestClone_survivesKills(t *testing.T) {
	t.Parallel()
	data := disktest.Noise(23, 5001)
	for _, step := range []string{"seal", "sealed", "head deleted"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			a := c.addNode("a")
			c.makeFirst(a, data)
			a.kill()
			var killed atomic.Bool
			a.reached = func(at string) error {
				if at == step && killed.CompareAndSwap(false, true) {
					a.cancel()
					return context.Canceled
				}
				return nil
			}
			a.start()
			c.cloneImage(a, "")
			c.eventually("the kill", func() error {
				if !killed.Load() {
					return errors.New("the step was not reached")
				}
				return nil
			})
			a.kill()
			a.start()
			a.awaitLocal(longhornv1.StateReady, "")
			a.localIs(data, names.Image(imageName, imageUUID))
		})
	}
}

// makeVolume makes a volume that is a clone of the image with something written to it, and returns its bytes.
func (c *cluster) makeVolume(n *node) []byte {
	c.t.Helper()
	image := withHole(24, 1_000_001)
	c.makeFirst(n, image)
	d := n.disk()
	d.NewHead(names.Head(volume), volume, names.Image(imageName, imageUUID), 4*mib+512)
	d.Write(names.Head(volume), 3*mib+1, []byte("what the guest wrote"))
	return d.Read(names.Head(volume))
}

// A volume is exported when nobody has attached it, and stays as it is.
func TestExport_waitsUntilNobodyWrites(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a := c.addNode("a")
	data := c.makeVolume(a)
	d := a.disk()
	lease, err := d.Open(t.Context(), names.Head(volume))
	if err != nil {
		t.Fatal(err)
	}
	c.exportVolume(a)
	a.awaitLocal(longhornv1.StateInProgress, "the volume pvc-1 is attached: stop what uses it")
	a.holds(names.Image(imageName, imageUUID), names.Head(volume))
	if err := lease.Close(); err != nil {
		t.Fatal(err)
	}
	r := a.awaitLocal(longhornv1.StateReady, "")
	if r.Size != int64(len(data)) || r.CurrentChecksum != disktest.Checksum(data) {
		t.Errorf("%+v", r)
	}
	a.localIs(data, names.Image(imageName, imageUUID), names.Head(volume))
	d.Write(names.Head(volume), 0, []byte("afterwards"))
	a.localIs(data, names.Image(imageName, imageUUID), names.Head(volume))
	if err := d.Delete(t.Context(), names.Head(volume)); err != nil {
		t.Fatal(err)
	}
	a.localIs(data, names.Image(imageName, imageUUID))
}

// A volume that is attached at the last moment is not exported before it is detached.
func TestExport_losesAgainstAnAttach(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a := c.addNode("a")
	before := c.makeVolume(a)
	a.kill()
	leases := make(chan disk.Lease, 1)
	a.reached = func(step string) error {
		if step != "seal" || len(leases) > 0 {
			return nil
		}
		lease, err := a.set.All()[0].Open(context.Background(), names.Head(volume))
		leases <- lease
		return err
	}
	a.start()
	c.exportVolume(a)
	a.awaitLocal(longhornv1.StateInProgress, "it is in use (1 times)")
	a.awaitLocal(longhornv1.StateInProgress, "the volume pvc-1 is attached")
	a.holds(names.Image(imageName, imageUUID), names.Head(volume))
	d := a.disk()
	d.Write(names.Head(volume), 0, []byte("by who attached it"))
	a.kill()
	a.reached = nil
	if err := (<-leases).Close(); err != nil {
		t.Fatal(err)
	}
	a.start()
	a.awaitLocal(longhornv1.StateReady, "")
	after := bytes.Clone(before)
	copy(after, "by who attached it")
	a.localIs(after, names.Image(imageName, imageUUID), names.Head(volume))
}

// A volume may be deleted while its export waits.
func TestExport_endsWithItsVolume(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a := c.addNode("a")
	c.makeVolume(a)
	lease, err := a.disk().Open(t.Context(), names.Head(volume))
	if err != nil {
		t.Fatal(err)
	}
	c.exportVolume(a)
	a.awaitLocal(longhornv1.StateInProgress, "attached")
	d := a.disk()
	c.eventually("that the volume is deleted", func() error {
		return errors.Join(lease.Close(), d.Delete(t.Context(), names.Head(volume)))
	})
	a.awaitLocal(longhornv1.StateFailed, "the disk does not have the volume pvc-1: it was deleted")
	a.holds(names.Image(imageName, imageUUID))
}
