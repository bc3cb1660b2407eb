//go:build root

package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/disk/disktest"
	"github.com/varvebackup/varve/internal/store/diskset"
	"github.com/varvebackup/varve/internal/store/handover"
	"github.com/varvebackup/varve/internal/store/names"
	"github.com/varvebackup/varve/internal/store/peer"
	"github.com/varvebackup/varve/test/loop"
	"github.com/varvebackup/varve/test/verdict"
)

// editNode changes the node's object.
func (n *node) editNode(edit func(*longhornv1.NodeSpec)) {
	n.c.t.Helper()
	var o longhornv1.Node
	err := n.c.client.Get(n.c.t.Context(), client.ObjectKey{Namespace: namespace, Name: n.name}, &o)
	if err == nil {
		edit(&o.Spec)
		err = n.c.client.Update(n.c.t.Context(), &o)
	}
	if err != nil {
		n.c.t.Fatal(err)
	}
}

// awaitReport waits for a report of the node's copy that has words in its message.
func (n *node) awaitReport(state longhornv1.BackingImageState, words string) {
	n.c.t.Helper()
	n.c.eventually(fmt.Sprintf("%s with %q", state, words), func() error {
		if r, _ := n.report(); r.State != state || !strings.Contains(r.Message, words) {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
}

// A copy for another disk of the same node needs no other store.
func TestSync_betweenDisksOfANode(t *testing.T) {
	t.Parallel()
	data := withHole(6, 2*mib+3)
	c := newCluster(t)
	a := c.addNode("a")
	first := c.makeFirst(a, data)
	second := loop.NewFileSystem(t, "xfs")
	t.Cleanup(a.kill) // before the file system goes
	a.editNode(func(s *longhornv1.NodeSpec) { s.Disks["second"] = longhornv1.DiskSpec{Path: second.Dir} })
	c.eventually("the second disk", func() error {
		if n := len(a.set.All()); n != 2 {
			return fmt.Errorf("%d disks", n)
		}
		return nil
	})
	d := a.set.All()[1]
	c.editImage(func(image *longhornv1.BackingImage) {
		image.Spec.DiskFileSpecMap[string(d.UUID)] = nil
	})
	c.eventually("the second copy", func() error {
		all, _ := a.agent.ListCopies()
		for _, r := range all {
			if r.DiskUUID == string(d.UUID) && r.State == longhornv1.StateReady && r.CurrentChecksum == first.CurrentChecksum {
				return nil
			}
		}
		return fmt.Errorf("%+v", all)
	})
	if !bytes.Equal((disktest.Disk{Disk: d.Disk, TB: t}).Read(names.Image(imageName, imageUUID)), data) {
		verdict.Errorf(t, "the second copy")
	}
}

// A copy on the same node that is damaged is reported at once, and one of another node is read.
func TestSync_localFlippedBit(t *testing.T) {
	t.Parallel()
	data := withHole(14, 6*mib)
	c := newCluster(t)
	a, good := c.addNode("a"), c.addNode("good")
	first := c.makeFirst(a, data)
	c.addDisk(good)
	good.await(longhornv1.StateReady)
	goodUUID := good.uuid()
	a.damage(mib + 17)
	second := loop.NewFileSystem(t, "xfs")
	t.Cleanup(a.kill) // before the file system goes
	a.editNode(func(s *longhornv1.NodeSpec) { s.Disks["second"] = longhornv1.DiskSpec{Path: second.Dir} })
	c.eventually("the second disk", func() error {
		if n := len(a.set.All()); n != 2 {
			return fmt.Errorf("%d disks", n)
		}
		return nil
	})
	d := a.set.All()[1]
	c.editImage(func(image *longhornv1.BackingImage) {
		image.Spec.DiskFileSpecMap[string(d.UUID)] = nil
		image.Status.DiskFileStatusMap[goodUUID] = &longhornv1.BackingImageDiskFileStatus{State: longhornv1.StateReady}
	})
	want := map[string]longhornv1.BackingImageState{
		first.DiskUUID: longhornv1.StateFailed, string(d.UUID): longhornv1.StateReady,
	}
	c.eventually("the second copy", func() error {
		got := map[string]longhornv1.BackingImageState{}
		all, _ := a.agent.ListCopies()
		for _, r := range all {
			got[r.DiskUUID] = r.State
		}
		if !maps.Equal(want, got) {
			return fmt.Errorf("%+v", all)
		}
		return nil
	})
	if !bytes.Equal((disktest.Disk{Disk: d.Disk, TB: t}).Read(names.Image(imageName, imageUUID)), data) {
		verdict.Errorf(t, "the second copy")
	}
}

// After a restart, who has attached a volume leases it before anything on the disk is sealed or deleted.
func TestOpened_comesFirst(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a := c.addNode("a")
	c.makeImage(a, "")
	s := a.attachSource()
	s.write(handover.Record{Bytes: 3, Complete: true}, map[int64][]byte{0: []byte("abc")})
	a.kill()
	s.detach()
	fail := errclass.Errorf(errclass.Transient, "losetup failed")
	var lease disk.Lease
	a.opened = func(ctx context.Context, d diskset.Disk) (err error) {
		if all := a.set.All(); len(all) > 0 {
			t.Error("the disk is in the set before its leases are open")
		}
		if fail != nil {
			return fail
		}
		lease, err = d.Open(ctx, names.SourceHead(imageUUID))
		return err
	}
	a.start()
	if m := a.condition(longhornv1.ReasonDiskUnusable); !strings.Contains(m, "losetup failed") || len(a.set.All()) > 0 {
		t.Error(m)
	}
	a.kill()
	fail = nil
	a.start()
	a.awaitReport(longhornv1.StateInProgress, "detached")
	if err := lease.Close(); err != nil {
		t.Fatal(err)
	}
	a.await(longhornv1.StateReady)
}

// A store that does not answer is asked again, then the copy has failed, and later it is tried again.
func TestSync_storeIsGone(t *testing.T) {
	t.Parallel()
	data := disktest.Noise(7, 5000)
	c := newCluster(t)
	a, b := c.addNode("a"), c.addNode("b")
	c.makeFirst(a, data)
	a.kill()
	c.addDisk(b)
	b.awaitReport(longhornv1.StateInProgress, "attempt 2 failed")
	b.await(longhornv1.StateFailed)
	if n := len(a.c.nodes); n != 2 {
		t.Fatal(n)
	}
	a.start()
	b.await(longhornv1.StateReady)
	if !bytes.Equal(b.disk().Read(names.Image(imageName, imageUUID)), data) {
		verdict.Errorf(t, "the copy")
	}
}

// holdSync has a node copy the image to its disk, and returns when the copy stands still at a piece, until the channel
// is closed.
func (c *cluster) holdSync(n *node) (gate chan struct{}) {
	c.t.Helper()
	n.kill()
	gate = make(chan struct{})
	begun := make(chan struct{})
	var once sync.Once
	n.reached = func(step string) error {
		if step == "piece" {
			once.Do(func() { close(begun) })
			<-gate
		}
		return nil
	}
	n.start()
	c.addDisk(n)
	c.eventually("the first piece", func() error {
		select {
		case <-begun:
			return nil
		default:
			return errors.New("not yet")
		}
	})
	return gate
}

// A copy that nobody wants any more ends in the middle, and goes.
func TestSync_endsWhenItIsUnwanted(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a, b := c.addNode("a"), c.addNode("b")
	c.makeFirst(a, disktest.Noise(8, 40*mib))
	gate := c.holdSync(b)
	c.removeDisk(b)
	b.awaitReport(longhornv1.StateInProgress, "is to be deleted")
	close(gate)
	b.awaitNone()
	a.await(longhornv1.StateReady)
}

// A copy with clones stays until they are gone, and says so. Nothing but the API server's word deletes it.
func TestDelete_waitsForClones(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a := c.addNode("a")
	first := c.makeFirst(a, disktest.Noise(9, 5000))
	d := a.disk()
	d.NewHead("volume/pvc-1", "pvc-1", names.Image(imageName, imageUUID), 10000)
	of := peer.Copy{Image: imageName, UUID: imageUUID, DiskUUID: first.DiskUUID}
	if got, err := a.agent.CreateCopy(t.Context(), of); err != nil || got.State != longhornv1.StateReady {
		t.Error(got, err)
	}
	wanted := a.agent.DeleteCopy(t.Context(), of)
	c.removeDisk(a)
	a.awaitReport(longhornv1.StateReady, `"volume/pvc-1"`)
	for words, err := range map[string]error{
		"remove the disk there": wanted, `"volume/pvc-1"`: a.agent.DeleteCopy(t.Context(), of),
		"does not exist": a.agent.DeleteCopy(t.Context(), peer.Copy{Image: "x", UUID: imageUUID, DiskUUID: first.DiskUUID}),
		"another UUID":   a.agent.DeleteCopy(t.Context(), peer.Copy{Image: imageName, UUID: "y", DiskUUID: first.DiskUUID}),
	} {
		if !errors.Is(err, errclass.Conflict) || !strings.Contains(fmt.Sprint(err), words) {
			t.Errorf("%q: %v", words, err)
		}
	}
	if _, err := a.agent.CreateCopy(t.Context(), of); !errors.Is(err, errclass.Conflict) {
		t.Error(err)
	}
	other := of
	other.DiskUUID = "d-9"
	_, err := a.agent.CreateCopy(t.Context(), other)
	if !errors.Is(err, errclass.NotFound) || !errors.Is(a.agent.DeleteCopy(t.Context(), other), errclass.NotFound) {
		t.Error(err)
	}
	if err := d.Delete(t.Context(), "volume/pvc-1"); err != nil {
		t.Fatal(err)
	}
	a.awaitNone()
	if err := a.agent.DeleteCopy(t.Context(), of); err != nil { // again is success
		t.Error(err)
	}
}

// The copy of an image that is gone is in the way of none with its name, and goes when the Node's annotation says so.
func TestDelete_orphans(t *testing.T) {
	t.Parallel()
	const oldUUID = "0a1b2c3d-0000-4000-8000-000000000000"
	c := newCluster(t)
	a := c.addNode("a")
	a.uuid()
	d := a.disk()
	old := names.Image(imageName, oldUUID)
	d.NewImage(old, oldUUID, disktest.Noise(11, 5000))
	d.NewHead(names.Copy(oldUUID), "copy-"+oldUUID, "", 5000)
	d.NewHead("volume/pvc-1", "pvc-1", old, 5000)
	data := disktest.Noise(12, 6000)
	c.makeFirst(a, data)
	if !bytes.Equal(d.Read(names.Image(imageName, imageUUID)), data) {
		verdict.Errorf(t, "the new image")
	}
	wantMessage := func(all ...string) {
		t.Helper()
		c.eventually("a message", func() error {
			m := a.condition(longhornv1.ReasonDiskReady)
			for _, words := range all {
				if !strings.Contains(m, words) {
					return errors.New(m)
				}
			}
			return nil
		})
	}
	wantMessage(string(old), longhornv1.AnnotationDeleteOrphans)
	if n := len(d.Objects()); n != 4 {
		t.Errorf("%d objects", n)
	}
	var o longhornv1.Node
	err := c.client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "a"}, &o)
	o.Annotations = map[string]string{longhornv1.AnnotationDeleteOrphans: "x, " + oldUUID + "," + imageUUID}
	if err = errors.Join(err, c.client.Update(t.Context(), &o)); err != nil {
		t.Fatal(err)
	}
	wantMessage("cannot be yet", `"volume/pvc-1"`)
	if err := d.Delete(t.Context(), "volume/pvc-1"); err != nil {
		t.Fatal(err)
	}
	c.eventually("that the old image is gone", func() error {
		if objects := d.Objects(); len(objects) != 1 || objects[0].UID != imageUUID {
			return fmt.Errorf("%+v", objects)
		}
		return nil
	})
}

// An empty directory on the root file system of the node is probably a mount point without its file system. It becomes a
// disk only if its spec says so, and stays one.
func TestDisk_onTheRootFilesystem(t *testing.T) {
	t.Parallel()
	root, mounted := loop.NewFileSystem(t, "xfs"), loop.NewFileSystem(t, "xfs")
	for _, dir := range []string{"/store", "/other"} {
		if err := os.Mkdir(root.Dir+dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	spec := longhornv1.DiskSpec{Path: "/store"}
	_, err := findDisk(root.Dir, defaultDiskName, spec, "")
	for _, words := range []string{"/store is on the root file system", "mount an XFS", longhornv1.TagRootFilesystem} {
		if !errors.Is(err, errclass.Invalid) || !strings.Contains(fmt.Sprint(err), words) {
			t.Errorf("%v lacks %q", err, words)
		}
	}
	if entries, err := os.ReadDir(root.Dir + spec.Path); err != nil || len(entries) > 0 {
		t.Errorf("%v, %v", entries, err)
	}
	if err := unix.Mount(mounted.Dir, root.Dir+"/other", "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(root.Dir+"/other", 0) })
	if _, err := findDisk(root.Dir, "other", longhornv1.DiskSpec{Path: "/other"}, ""); err != nil {
		t.Error(err)
	}
	spec.Tags = []string{"fast", longhornv1.TagRootFilesystem}
	uuid, err := findDisk(root.Dir, defaultDiskName, spec, "")
	if err != nil {
		t.Error(err)
	}
	spec.Tags = nil
	if again, err := findDisk(root.Dir, defaultDiskName, spec, ""); err != nil || again != uuid {
		t.Errorf("%s, and then %s: %v", uuid, again, err)
	}
}

// A disk over which another file system is mounted is not used, and comes back.
func TestDisk_mountedOver(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a := c.addNode("a")
	uuid := a.uuid()
	if err := unix.Mount("none", a.fs.Dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	if m := a.condition(longhornv1.ReasonDiskUnusable); !strings.Contains(m, uuid) || !strings.Contains(m, "mount it") {
		t.Error(m)
	}
	if all := a.set.All(); len(all) > 0 {
		t.Errorf("%v", all)
	}
	if err := unix.Unmount(a.fs.Dir, 0); err != nil {
		t.Fatal(err)
	}
	if got := a.uuid(); got != uuid {
		t.Errorf("%s became %s", uuid, got)
	}
}

// A tenth of the first disk is reserved when it is first opened, also if nothing is mounted there when the store
// begins. What a user has set stays.
func TestDisk_reservesATenth(t *testing.T) {
	t.Parallel()
	const set = 5 * mib
	for name, c := range map[string]struct {
		before int64 // reserved before the disk is mounted
		after  int64 // and after it was opened
		want   func(capacity int64) int64
	}{
		"nothing is set":                {-1, -1, func(capacity int64) int64 { return capacity / 10 }},
		"a user set it":                 {set, -1, func(int64) int64 { return set }},
		"a user sets it later":          {-1, set, func(int64) int64 { return set }},
		"a user wants nothing reserved": {-1, 0, func(int64) int64 { return 0 }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fs := loop.NewFileSystem(t, "xfs")
			fs.Unmount(t)
			n := newCluster(t).addNodeWith("a", fs)
			n.condition(longhornv1.ReasonDiskUnusable)
			if c.before >= 0 {
				n.reserve(c.before)
			}
			n.fs.Mount(t, "")
			n.uuid()
			if c.after >= 0 {
				n.reserve(c.after)
				n.disk().NewHead("volume/v", "v", "", 3*mib)
				n.c.eventually("another look", func() error {
					if st := n.diskStatus(); st.StorageScheduled != 3*mib {
						return fmt.Errorf("%+v", st)
					}
					return nil
				})
			}
			var o longhornv1.Node
			if err := n.c.client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: n.name}, &o); err != nil {
				t.Fatal(err)
			}
			got, want := o.Spec.Disks[defaultDiskName].StorageReserved, c.want(n.diskStatus().StorageMaximum)
			if got != want {
				t.Errorf("%d bytes are reserved, want %d", got, want)
			}
		})
	}
}

// A disk with less free space than is reserved says so, and gets no copy. Heads of sources do not count as volumes.
func TestDisk_pressure(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a, b := c.addNode("a"), c.addNode("b")
	a.uuid()
	c.makeImage(a, "")
	s := a.attachSource()
	a.disk().NewHead("volume/v", "v", "", 3*mib)
	c.eventually("the volume's size", func() error {
		if st := a.diskStatus(); st.StorageScheduled != 3*mib || st.StorageMaximum <= st.StorageAvailable {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	s.write(handover.Record{Bytes: 1, Complete: true}, map[int64][]byte{0: []byte("x")})
	s.detach()
	c.finishFirst(a.await(longhornv1.StateReady))
	uuid := b.uuid()
	b.editNode(func(s *longhornv1.NodeSpec) {
		d := s.Disks[defaultDiskName]
		d.StorageReserved = 1 << 40
		s.Disks[defaultDiskName] = d
	})
	if m := b.condition(longhornv1.ReasonDiskPressure); !strings.Contains(m, "storageReserved") {
		t.Error(m)
	}
	c.editImage(func(image *longhornv1.BackingImage) { image.Spec.DiskFileSpecMap[uuid] = nil })
	b.awaitReport(longhornv1.StatePending, "storageReserved")
	b.editNode(func(s *longhornv1.NodeSpec) {
		d := s.Disks[defaultDiskName]
		d.StorageReserved = 0
		s.Disks[defaultDiskName] = d
	})
	b.await(longhornv1.StateReady)
}

// reserve has so many bytes of the node's disk stay free.
func (n *node) reserve(bytes int64) {
	n.c.t.Helper()
	n.editNode(func(s *longhornv1.NodeSpec) {
		d := s.Disks[defaultDiskName]
		d.StorageReserved = bytes
		s.Disks[defaultDiskName] = d
	})
}

// A copy in the making ends when it takes what is reserved, before it takes the space of volumes that run.
func TestDisk_pressureEndsCopies(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a, b := c.addNode("a"), c.addNode("b")
	a.uuid()
	var o longhornv1.Node
	if err := c.client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "a"}, &o); err != nil {
		t.Fatal(err)
	}
	if got, all := o.Spec.Disks[defaultDiskName].StorageReserved, a.diskStatus().StorageMaximum; got != all/10 || got == 0 {
		t.Errorf("%d of %d bytes are reserved", got, all)
	}
	c.makeImage(a, "")
	s := a.attachSource()
	s.write(handover.Record{Done: 30, Total: 100}, nil)
	a.awaitReport(longhornv1.StateInProgress, "")
	a.reserve(1 << 40)
	a.awaitReport(longhornv1.StateFailed, "storageReserved")
	s.detach()
	c.eventually("that the head is gone", func() error {
		if objects := a.disk().Objects(); len(objects) > 0 {
			return fmt.Errorf("%+v", objects)
		}
		return nil
	})
	a.awaitReport(longhornv1.StateFailed, "storageReserved") // until the controller tries again
	if r, _ := a.report(); !r.DiskFull {
		t.Errorf("%+v does not say that the disk is full", r)
	}
	a.reserve(0)
	c.editImage(func(image *longhornv1.BackingImage) { image.Status.FirstCopyAttempts++ })
	data := disktest.Noise(13, 40*mib)
	s = a.attachSource()
	s.write(handover.Record{Bytes: int64(len(data)), Complete: true}, map[int64][]byte{0: data})
	s.detach()
	c.finishFirst(a.await(longhornv1.StateReady))

	gate := c.holdSync(b)
	b.reserve(1 << 40)
	b.awaitReport(longhornv1.StateFailed, "storageReserved")
	close(gate)
	c.eventually("that nothing is left of the copy", func() error {
		if objects := b.disk().Objects(); len(objects) > 0 {
			return fmt.Errorf("%+v", objects)
		}
		return nil
	})
	b.reserve(0)
	b.await(longhornv1.StateReady)
}

// What was written is compared as a whole, by its pieces or by the hash of all: data that changed after its piece was
// compared is not sealed, and what was read of it goes.
func TestSync_comparesTheWhole(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ known, words string }{
		"by pieces":          {"known", "MiB 0 is not what it must be"},
		"by the hash of all": {"", "SHA-512"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkWhole(t, c.known != "", c.words)
		})
	}
}

func checkWhole(t *testing.T, piecesKnown bool, words string) {
	t.Helper()
	data := disktest.Noise(10, mib+1)
	c := newCluster(t)
	a, b := c.addNode("a"), c.addNode("b")
	c.makeFirst(a, data)
	if !piecesKnown {
		c.editImage(func(image *longhornv1.BackingImage) { image.Status.PiecesChecksum = "" })
	}
	b.kill()
	var copied atomic.Int32
	b.reached = func(step string) error {
		if step != "copied" || copied.Add(1) > 1 {
			return nil
		}
		d := b.disk()
		d.Write(names.Copy(imageUUID), 5, []byte{data[5] ^ 1}) // after its piece was compared
		return nil
	}
	b.start()
	c.addDisk(b)
	b.awaitReport(longhornv1.StateInProgress, words)
	b.await(longhornv1.StateReady)
	if !bytes.Equal(b.disk().Read(names.Image(imageName, imageUUID)), data) || copied.Load() < 2 {
		verdict.Errorf(t, "the copy, after %d attempts", copied.Load())
	}
	first, _ := a.report()
	if second, _ := b.report(); second.CurrentChecksum != disktest.Checksum(data) ||
		second.PiecesChecksum == "" || second.PiecesChecksum != first.PiecesChecksum {
		t.Errorf("the copy is reported as %+v, and the first one as %+v", second, first)
	}
}

// A copy whose hashes are not those of the image is not read at all.
func TestSync_refusesOtherHashes(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a, b := c.addNode("a"), c.addNode("b")
	c.makeFirst(a, disktest.Noise(11, mib+1))
	c.editImage(func(image *longhornv1.BackingImage) { image.Status.PiecesChecksum = strings.Repeat("0", 64) })
	c.addDisk(b)
	b.awaitReport(longhornv1.StateInProgress, "the hashes of the other copy are those of")
	for _, o := range b.disk().Objects() {
		t.Errorf("%s is there", o.Name)
	}
}
