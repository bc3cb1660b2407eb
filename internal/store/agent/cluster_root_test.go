//go:build root

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/disk/disktest"
	"github.com/varvebackup/varve/internal/store/diskset"
	"github.com/varvebackup/varve/internal/store/handover"
	"github.com/varvebackup/varve/internal/store/names"
	"github.com/varvebackup/varve/internal/store/peer"
	"github.com/varvebackup/varve/test/authority"
	"github.com/varvebackup/varve/test/loop"
	"github.com/varvebackup/varve/test/wait"
)

const (
	namespace = "varve"
	imageName = "ubuntu-22.04"
	imageUUID = "0a1b2c3d-0000-4000-8000-000000000001"
)

// cluster is the API server of a test, which plays the controller and the source pods.
type cluster struct {
	t         *testing.T
	client    client.Client
	authority *authority.Authority
	clock     *clocktesting.FakeClock
	port      int
	nodes     []*node
	// scrub is what agents that are started have.
	scrub ScrubOptions
	// unreadable makes reads of BackingImages fail.
	unreadable atomic.Bool
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := longhornv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, authority: authority.New(t), clock: clocktesting.NewFakeClock(time.Now()), port: peer.DefaultPort}
	c.client = fake.NewClientBuilder().WithScheme(scheme).
		WithStatusSubresource(&longhornv1.Node{}, &longhornv1.InstanceManager{}, &longhornv1.BackingImage{}).
		WithInterceptorFuncs(interceptor.Funcs{Get: func(
			ctx context.Context, w client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption,
		) error {
			if _, ok := o.(*longhornv1.BackingImage); ok && c.unreadable.Load() {
				return errors.New("connection refused")
			}
			return w.Get(ctx, key, o, options...)
		}}).Build()
	return c
}

// node is a node whose agent may be killed and started again.
type node struct {
	c          *cluster
	name, ip   string
	fs         *loop.FileSystem
	set        *diskset.Set
	agent      *agent
	events     *events.FakeRecorder
	reached    func(step string) error
	opened     func(context.Context, diskset.Disk) error
	cancel     context.CancelFunc
	ended      chan struct{}
	peersEnded chan struct{}
}

// addNode adds a node with a disk of its own, and starts its agent.
func (c *cluster) addNode(name string) *node {
	c.t.Helper()
	return c.addNodeWith(name, loop.NewFileSystem(c.t, "xfs"))
}

// addNodeWith adds a node whose disk is in the directory of a file system, mounted or not.
func (c *cluster) addNodeWith(name string, fs *loop.FileSystem) *node {
	c.t.Helper()
	n := &node{c: c, name: name, ip: newAddress(), fs: fs}
	c.nodes = append(c.nodes, n)
	c.t.Cleanup(n.kill)
	n.start()
	return n
}

// start starts the agent as a new process does.
func (n *node) start() {
	n.c.t.Helper()
	n.set, n.events = &diskset.Set{}, events.NewFakeRecorder(1000)
	n.agent = newAgent(Options{
		Node: n.name, Namespace: namespace, DefaultDisk: n.fs.Dir, Disks: n.set, PodIP: n.ip, Port: n.c.port,
		TLSDir: n.c.authority.ServiceFiles(n.c.t, names.StoreHost), Clock: n.c.clock, Logger: slog.New(slog.DiscardHandler),
		Opened: n.opened, Scrub: n.c.scrub, Events: n.events,
	}, n.c.client, n.c.client)
	n.agent.reached, n.agent.diskClock = n.reached, clock.RealClock{}
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel, n.ended, n.peersEnded = cancel, make(chan struct{}), make(chan struct{})
	a, ended, peersEnded := n.agent, n.ended, n.peersEnded
	go func() {
		defer close(ended)
		_ = a.loop(ctx) // it returns nil
	}()
	o := peer.Options{
		IP: n.ip, Port: n.c.port, TLSDir: a.TLSDir, Disks: n.set, Copies: a, Clock: clock.RealClock{},
		Logger: slog.New(slog.DiscardHandler),
	}
	go func() {
		defer close(peersEnded)
		err := peer.Run(ctx, o)
		// A program that another test starts has the listeners of before until its exec ends.
		for errors.Is(err, unix.EADDRINUSE) && ctx.Err() == nil {
			err = peer.Run(ctx, o)
		}
		if err != nil && ctx.Err() == nil {
			n.c.t.Error(err)
		}
	}()
	wait.Succeeds(n.c.t, time.Minute, "the peer's port", func() error {
		var d net.Dialer
		conn, err := d.DialContext(n.c.t.Context(), "tcp", net.JoinHostPort(n.ip, strconv.Itoa(n.c.port)))
		if err == nil {
			err = conn.Close()
		}
		return err
	})
}

// kill ends the agent, and with it everything that is only in memory.
func (n *node) kill() {
	n.cancel()
	<-n.ended
	<-n.peersEnded
	for _, d := range n.agent.disks {
		_ = d.files.Close() // as the end of the process does, whatever is leased
	}
}

// eventually lets time pass until check holds.
func (c *cluster) eventually(what string, check func() error) {
	c.t.Helper()
	wait.Succeeds(c.t, time.Minute, what, func() error {
		c.clock.Step(500 * time.Millisecond)
		for _, n := range c.nodes {
			n.agent.wakeUp()
		}
		return check()
	})
}

// diskStatus returns what the node says of its disk.
func (n *node) diskStatus() *longhornv1.DiskStatus {
	var o longhornv1.Node
	if err := n.c.client.Get(context.Background(), client.ObjectKey{Namespace: namespace, Name: n.name}, &o); err != nil {
		return nil
	}
	return o.Status.DiskStatus[defaultDiskName]
}

// condition waits until the disk's condition has a reason, and returns its message.
func (n *node) condition(reason string) (message string) {
	n.c.t.Helper()
	n.c.eventually("the disk's condition "+reason, func() error {
		s := n.diskStatus()
		if s == nil || len(s.Conditions) == 0 || s.Conditions[0].Reason != reason {
			return fmt.Errorf("%+v", s)
		}
		message = s.Conditions[0].Message
		return nil
	})
	return message
}

// uuid waits for the disk, and returns its UUID.
func (n *node) uuid() string {
	n.c.t.Helper()
	n.condition(longhornv1.ReasonDiskReady)
	return n.diskStatus().DiskUUID
}

// disk returns the node's disk for the test to look at.
func (n *node) disk() disktest.Disk {
	n.c.t.Helper()
	all := n.set.All()
	if len(all) != 1 {
		n.c.t.Fatalf("%d disks are open", len(all))
	}
	return disktest.Disk{Disk: all[0].Disk, TB: n.c.t}
}

// report returns what the node's store reports of its copy of the image.
func (n *node) report() (longhornv1.BackingImageV2CopyInfo, bool) {
	var im longhornv1.InstanceManager
	if err := n.c.client.Get(context.Background(), client.ObjectKey{Namespace: namespace, Name: n.name}, &im); err != nil {
		return longhornv1.BackingImageV2CopyInfo{}, false
	}
	for key, c := range im.Status.BackingImages {
		if key != c.DiskUUID+"/"+c.UUID {
			n.c.t.Errorf("key %s of %+v", key, c)
		}
		return c, true
	}
	return longhornv1.BackingImageV2CopyInfo{}, false
}

// await waits for a state of the copy.
func (n *node) await(state longhornv1.BackingImageState) (c longhornv1.BackingImageV2CopyInfo) {
	n.c.t.Helper()
	n.c.eventually("a copy that is "+string(state)+" on "+n.name, func() error {
		var ok bool
		if c, ok = n.report(); !ok || c.State != state {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	return c
}

// awaitNone waits until no copy is on the node, nor reported.
func (n *node) awaitNone() {
	n.c.t.Helper()
	n.c.eventually("no copy on "+n.name, func() error {
		if c, ok := n.report(); ok {
			return fmt.Errorf("%+v", c)
		}
		if objects := n.disk().Objects(); len(objects) > 0 {
			return fmt.Errorf("%+v", objects)
		}
		return nil
	})
}

// makeImage makes the image with its first copy on a node, as the controller does.
func (c *cluster) makeImage(first *node, checksum string) {
	c.t.Helper()
	image := &longhornv1.BackingImage{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: imageName, Finalizers: []string{longhornv1.BackingImageFinalizer},
		},
		Spec: longhornv1.BackingImageSpec{
			SourceType: longhornv1.SourceUpload, Checksum: checksum,
			DiskFileSpecMap: map[string]*longhornv1.BackingImageDiskFileSpec{first.uuid(): {}},
		},
	}
	err := c.client.Create(c.t.Context(), image)
	image.Status = longhornv1.BackingImageStatus{
		UUID: imageUUID, V2FirstCopyDisk: first.uuid(), V2FirstCopyStatus: longhornv1.StateInProgress,
	}
	if err = errors.Join(err, c.client.Status().Update(c.t.Context(), image)); err != nil {
		c.t.Fatal(err)
	}
}

// noteReady has the image's status say that a node's copy is ready.
func (c *cluster) noteReady(n *node) {
	c.t.Helper()
	uuid := n.uuid()
	c.editImage(func(image *longhornv1.BackingImage) {
		image.Status.DiskFileStatusMap[uuid] = &longhornv1.BackingImageDiskFileStatus{State: longhornv1.StateReady}
	})
}

// editImage changes the image and its status.
func (c *cluster) editImage(edit func(*longhornv1.BackingImage)) {
	c.t.Helper()
	var image longhornv1.BackingImage
	err := c.client.Get(c.t.Context(), client.ObjectKey{Namespace: namespace, Name: imageName}, &image)
	if err == nil {
		edit(&image)
		status := image.Status
		err = c.client.Update(c.t.Context(), &image)
		image.Status = status
	}
	if err == nil {
		err = c.client.Status().Update(c.t.Context(), &image)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// finishFirst writes into the image's status what the controller does when the first copy is ready.
func (c *cluster) finishFirst(first longhornv1.BackingImageV2CopyInfo) {
	c.t.Helper()
	c.editImage(func(image *longhornv1.BackingImage) {
		image.Status.V2FirstCopyStatus = longhornv1.StateReady
		image.Status.Size, image.Status.Checksum = first.Size, first.CurrentChecksum
		image.Status.PiecesChecksum = first.PiecesChecksum
		image.Status.DiskFileStatusMap = map[string]*longhornv1.BackingImageDiskFileStatus{
			first.DiskUUID: {State: longhornv1.StateReady},
		}
	})
}

// addDisk has a further copy made on a node's disk, and removeDisk has it deleted.
func (c *cluster) addDisk(n *node) {
	c.t.Helper()
	uuid := n.uuid()
	c.editImage(func(image *longhornv1.BackingImage) {
		image.Spec.DiskFileSpecMap[uuid] = &longhornv1.BackingImageDiskFileSpec{}
	})
}

func (c *cluster) removeDisk(n *node) {
	c.t.Helper()
	uuid := n.diskStatus().DiskUUID
	c.editImage(func(image *longhornv1.BackingImage) { delete(image.Spec.DiskFileSpecMap, uuid) })
}

// source is the source pod of an image, which has its device.
type source struct {
	n     *node
	lease disk.Lease
	file  *os.File
}

// attachSource waits for the head of the source and opens it, as the CSI driver does.
func (n *node) attachSource() *source {
	n.c.t.Helper()
	s := &source{n: n}
	n.c.eventually("the head of the source", func() (err error) {
		all := n.set.All()
		if len(all) != 1 {
			return errors.New("its disk is not open")
		}
		s.lease, err = all[0].Open(context.Background(), names.SourceHead(imageUUID))
		return err
	})
	var err error
	if s.file, err = os.OpenFile(s.lease.Path(), os.O_RDWR, 0); err != nil {
		n.c.t.Fatal(err)
	}
	return s
}

// write writes parts of the image, and a record.
func (s *source) write(r handover.Record, parts map[int64][]byte) {
	s.n.c.t.Helper()
	var err error
	for offset, data := range parts {
		_, writeErr := s.file.WriteAt(data, offset)
		err = errors.Join(err, writeErr)
	}
	if err = errors.Join(err, handover.Write(s.file, r), s.file.Sync()); err != nil {
		s.n.c.t.Fatal(err)
	}
}

func (s *source) detach() {
	s.n.c.t.Helper()
	if err := errors.Join(s.file.Close(), s.lease.Close()); err != nil {
		s.n.c.t.Fatal(err)
	}
}

// makeFirst makes an image of data, whose zeroes are holes, and its first copy.
func (c *cluster) makeFirst(n *node, data []byte) longhornv1.BackingImageV2CopyInfo {
	c.t.Helper()
	c.makeImage(n, "")
	s := n.attachSource()
	parts := map[int64][]byte{}
	for offset := 0; offset < len(data); offset += 4096 {
		part := data[offset:min(len(data), offset+4096)]
		if part[0] != 0 || part[len(part)-1] != 0 {
			parts[int64(offset)] = part
		}
	}
	s.write(handover.Record{Bytes: int64(len(data)), Complete: true}, parts)
	s.detach()
	first := n.await(longhornv1.StateReady)
	c.finishFirst(first)
	return first
}

// withHole returns data of a size whose middle third is zero.
func withHole(seed byte, size int64) []byte {
	data := disktest.Noise(seed, size)
	clear(data[size/3&^4095 : size*2/3&^4095])
	return data
}
