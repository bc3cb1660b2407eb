package peer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpccredentials "google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/nbd"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/disk/disktest"
	"github.com/varvebackup/varve/internal/store/diskset"
	"github.com/varvebackup/varve/internal/store/names"
	"github.com/varvebackup/varve/internal/store/storepb"
	"github.com/varvebackup/varve/test/authority"
	"github.com/varvebackup/varve/test/verdict"
	"github.com/varvebackup/varve/test/wait"
)

const mib = 1 << 20

var ubuntu = Copy{Image: "ubuntu-22.04", UUID: "i-1", DiskUUID: "d-1"}

// waitForLeases waits until so many leases of the image are open.
func waitForLeases(tb testing.TB, image *disktest.OneImage, n int) {
	tb.Helper()
	wait.Succeeds(tb, time.Minute, fmt.Sprint(n, " leases"), func() error {
		if got := image.CountLeases(); got != n {
			return fmt.Errorf("%d leases", got)
		}
		return nil
	})
}

// copies are what a store reports.
type copies struct {
	all     []longhornv1.BackingImageV2CopyInfo
	err     error
	mu      sync.Mutex
	changed chan struct{}
	called  []string
}

func (c *copies) CreateCopy(_ context.Context, of Copy) (longhornv1.BackingImageV2CopyInfo, error) {
	c.called = append(c.called, "create "+fmt.Sprint(of))
	return longhornv1.BackingImageV2CopyInfo{Name: of.Image, State: longhornv1.StatePending}, c.err
}

func (c *copies) DeleteCopy(_ context.Context, of Copy) error {
	c.called = append(c.called, "delete "+fmt.Sprint(of))
	return c.err
}

func (c *copies) NoteDamage(_ context.Context, of Copy, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.called = append(c.called, "damage "+fmt.Sprint(of)+": "+why)
}

func (c *copies) ListCopies() ([]longhornv1.BackingImageV2CopyInfo, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all, c.changed
}

// store is a server under test.
type store struct {
	image  *disktest.OneImage
	copies *copies
	port   int
	tlsDir string
}

func newStore(t *testing.T, a *authority.Authority, data []byte, c clock.WithTicker) *store {
	t.Helper()
	s := &store{
		image:  disktest.NewOneImage(t, names.Image(ubuntu.Image, ubuntu.UUID), disk.UID(ubuntu.UUID), data),
		copies: &copies{changed: make(chan struct{})}, tlsDir: a.ServiceFiles(t, names.StoreHost),
	}
	var disks diskset.Set
	disks.Put(diskset.Disk{Disk: s.image, Name: "default-disk", UUID: "d-1"})
	o := Options{TLSDir: s.tlsDir, Disks: &disks, Copies: s.copies, Clock: c, Logger: slog.New(slog.DiscardHandler)}
	var listen net.ListenConfig
	calls, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dataPort, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.port = calls.Addr().(*net.TCPAddr).Port
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, o, calls, dataPort) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the server ended with %v", err)
		}
		waitForLeases(t, s.image, 0)
	})
	return s
}

func (s *store) open(t *testing.T, dir string) *Image {
	t.Helper()
	i, err := OpenImage(t.Context(), "127.0.0.1", s.port, dir, ubuntu)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = i.Close() }) // which may be the second time
	return i
}

func (s *store) calls(t *testing.T, dir string) storepb.StoreClient {
	t.Helper()
	c, err := Dial("127.0.0.1", s.port, dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return storepb.NewStoreClient(c)
}

func TestOpenImage_readsAll(t *testing.T) {
	t.Parallel()
	a := authority.New(t)
	data := disktest.Noise(1, 5*mib+1)
	clear(data[mib : 3*mib])
	s := newStore(t, a, data, clock.RealClock{})
	i := s.open(t, a.ServiceFiles(t, names.StoreHost))
	got := make([]byte, len(data))
	if err := i.ReadAt(t.Context(), got, 0); err != nil || !bytes.Equal(got, data) {
		verdict.JudgeErrorf(t, err == nil, "the image: %v", err)
	}
	pieces, _ := s.image.Pieces(t.Context(), "")
	if diff := cmp.Diff(pieces, i.Pieces); diff != "" || i.Checksum != disktest.Checksum(data) || i.Bytes != 5*mib+1 {
		t.Errorf("%d bytes, %s: %s", i.Bytes, i.Checksum, diff)
	}
	if err := i.Close(); err != nil {
		t.Error(err)
	}
	waitForLeases(t, s.image, 0)
}

// The store of a copy finds out by itself that a piece is not what was sealed, also if its reader asks for a part of it.
func TestExport_notesDamage(t *testing.T) {
	t.Parallel()
	a := authority.New(t)
	data := disktest.Noise(9, 3*mib)
	clear(data[mib+512<<10 : 2*mib-4096])
	s := newStore(t, a, data, clock.RealClock{})
	i := s.open(t, a.ServiceFiles(t, names.StoreHost))
	f, err := os.OpenFile(s.image.Path, os.O_RDWR, 0)
	if err == nil {
		_, err = f.WriteAt([]byte{data[2*mib-1] ^ 1}, 2*mib-1)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 4096)
	for _, offset := range []int64{0, mib, mib + 4096, 2 * mib} {
		if err := i.ReadAt(t.Context(), p, offset); err != nil || !bytes.Equal(p, data[offset:][:len(p)]) {
			verdict.JudgeErrorf(t, err == nil, "at %d: %v", offset, err)
		}
	}
	s.copies.mu.Lock()
	defer s.copies.mu.Unlock()
	want := []string{"damage " + fmt.Sprint(ubuntu) + ": MiB 1 is not what was sealed"}
	if diff := cmp.Diff(want, s.copies.called); diff != "" {
		t.Error(diff)
	}
}

// exposeOnly is a lease without the client of the data.
func exposeOnly(t *testing.T, s *store, dir string) (*storepb.Lease, grpc.ServerStreamingClient[storepb.Exposed]) {
	t.Helper()
	stream, err := s.calls(t, dir).BackingImageExpose(t.Context(), &storepb.BackingImageExposeRequest{
		Name: ubuntu.Image, Uuid: ubuntu.UUID, DiskUuid: ubuntu.DiskUUID,
	})
	if err != nil {
		t.Fatal(err)
	}
	first, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return first.GetLease(), stream
}

func (s *store) dialData(t *testing.T, dir string, l *storepb.Lease) (*nbd.Client, error) {
	t.Helper()
	config, err := clientTLS(dir)
	if err != nil {
		t.Fatal(err)
	}
	address := net.JoinHostPort("127.0.0.1", fmt.Sprint(l.GetNbdPort()))
	c, err := nbd.Dial(t.Context(), nbd.Target{Network: "tcp", Address: address, Export: l.GetExport(), TLS: true},
		nbd.Options{TLS: config, Contexts: []string{nbd.ContextAllocation}})
	if err == nil {
		t.Cleanup(func() { _ = c.Close() })
	}
	return c, err
}

// Holes are told, so that nobody reads them, and nothing can be written.
func TestExport_tellsHolesAndIsReadOnly(t *testing.T) {
	t.Parallel()
	a := authority.New(t)
	data := disktest.Noise(2, 4*mib)
	clear(data[mib : 3*mib])
	s := newStore(t, a, data, clock.RealClock{})
	dir := a.ServiceFiles(t, names.StoreHost)
	lease, _ := exposeOnly(t, s, dir)
	c, err := s.dialData(t, dir, lease)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	err = c.BlockStatus(t.Context(), extent.Extent{Length: 4 * mib}, func(_ string, e extent.Extent, flags uint64) error {
		got = append(got, fmt.Sprint(e.Offset/mib, "+", e.Length/mib, ":", flags))
		return nil
	})
	want := []string{"0+1:0", fmt.Sprint("1+2:", nbd.StateHole|nbd.StateZero), "3+1:0"}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	if err := c.WriteAt(t.Context(), make([]byte, 512), 0, 0); err == nil {
		t.Error("an image can be written")
	}
}

// Unexpose ends the lease that it names, and no other one of the same image.
func TestUnexpose_endsOneLease(t *testing.T) {
	t.Parallel()
	a := authority.New(t)
	data := disktest.Noise(3, mib)
	s := newStore(t, a, data, clock.RealClock{})
	dir := a.ServiceFiles(t, names.StoreHost)
	kept := s.open(t, dir)
	lease, stream := exposeOnly(t, s, dir)
	waitForLeases(t, s.image, 2)
	reader, err := s.dialData(t, dir, lease)
	if err != nil {
		t.Fatal(err)
	}
	calls := s.calls(t, dir)
	for _, id := range []string{"unknown", lease.GetId(), lease.GetId()} {
		if _, err := calls.BackingImageUnexpose(t.Context(), &storepb.BackingImageUnexposeRequest{Id: id}); err != nil {
			t.Error(err)
		}
	}
	for err == nil {
		_, err = stream.Recv()
	}
	if !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	waitForLeases(t, s.image, 1)
	if err := reader.ReadAt(t.Context(), make([]byte, 512), 0); err == nil {
		t.Error("a lease that has ended can be read")
	}
	if _, err := s.dialData(t, dir, lease); !errors.Is(err, nbd.ErrUnknownExport) {
		t.Error(err)
	}
	got := make([]byte, mib)
	if err := kept.ReadAt(t.Context(), got, 0); err != nil || !bytes.Equal(got, data) {
		t.Errorf("the other lease: %v", err)
	}
}

// A lease ends with the call that made it, and when nobody opens it.
func TestExpose_endsByItself(t *testing.T) {
	t.Parallel()
	a := authority.New(t)
	c := clocktesting.NewFakeClock(time.Now())
	s := newStore(t, a, disktest.Noise(4, 512), c)
	dir := a.ServiceFiles(t, names.StoreHost)
	ctx, cancel := context.WithCancel(t.Context())
	i, err := OpenImage(ctx, "127.0.0.1", s.port, dir, ubuntu)
	if err != nil {
		t.Fatal(err)
	}
	waitForLeases(t, s.image, 1)
	c.Step(2 * idleLimit) // it is open, so that it stays
	if err := i.ReadAt(t.Context(), make([]byte, 512), 0); err != nil {
		t.Error(err)
	}
	waitForLeases(t, s.image, 1)
	cancel()
	waitForLeases(t, s.image, 0)
	_ = i.Close()

	_, stream := exposeOnly(t, s, dir)
	waitForLeases(t, s.image, 1)
	wait.Until(t, time.Minute, "the end of a lease that nobody opens", func() bool {
		c.Step(idleInterval)
		return s.image.CountLeases() == 0
	})
	for err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != errclass.GRPCCode(errclass.Expired) {
		t.Error(err)
	}
}

// Only who has a certificate of the authority with the stores' name gets anything.
func TestServer_demandsAStore(t *testing.T) {
	t.Parallel()
	a := authority.New(t)
	s := newStore(t, a, disktest.Noise(5, 512), clock.RealClock{})
	for name, dir := range map[string]string{
		"another name":      a.ServiceFiles(t, "handler.varve"),
		"another authority": authority.New(t).ServiceFiles(t, names.StoreHost),
	} {
		if _, err := OpenImage(t.Context(), "127.0.0.1", s.port, dir, ubuntu); err == nil {
			t.Errorf("%s: no error", name)
		}
		if _, err := s.dialData(t, dir, &storepb.Lease{}); errors.Is(err, nbd.ErrUnknownExport) || err == nil {
			t.Errorf("%s: data: %v", name, err)
		}
	}
	address := net.JoinHostPort("127.0.0.1", fmt.Sprint(s.port))
	config := a.Client.Clone()
	config.Certificates, config.ServerName = nil, names.StoreHost
	for name, c := range map[string]grpccredentials.TransportCredentials{
		"no certificate": grpccredentials.NewTLS(config), "no TLS": insecure.NewCredentials(),
	} {
		conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(c))
		if err == nil {
			_, err = storepb.NewStoreClient(conn).BackingImageList(t.Context(), &storepb.BackingImageListRequest{})
			_ = conn.Close()
		}
		if status.Code(err) != codes.Unavailable {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Certificates are replaced while the server runs.
func TestServer_readsItsCertificateAgain(t *testing.T) {
	t.Parallel()
	s := newStore(t, authority.New(t), disktest.Noise(6, 512), clock.RealClock{})
	other := authority.New(t)
	replaced := other.ServiceFiles(t, names.StoreHost)
	for _, name := range []string{"ca.crt", "tls.crt", "tls.key"} {
		if err := os.Rename(filepath.Join(replaced, name), filepath.Join(s.tlsDir, name)); err != nil {
			t.Fatal(err)
		}
	}
	s.open(t, other.ServiceFiles(t, names.StoreHost))
}

func TestOpenImage_errors(t *testing.T) {
	t.Parallel()
	a := authority.New(t)
	s := newStore(t, a, disktest.Noise(7, 512), clock.RealClock{})
	dir := a.ServiceFiles(t, names.StoreHost)
	for name, x := range map[string]struct {
		copy  Copy
		class error
		words string
	}{
		"another disk": {Copy{"ubuntu-22.04", "i-1", "d-2"}, errclass.NotFound, "d-2"},
		"another UUID": {Copy{"ubuntu-22.04", "i-2", "d-1"}, errclass.NotFound, "i-2"},
		"another name": {Copy{"ubuntu-22", "i-1", "d-1"}, errclass.NotFound, `"ubuntu-22"`},
	} {
		_, err := OpenImage(t.Context(), "127.0.0.1", s.port, dir, x.copy)
		if !errors.Is(err, x.class) || !strings.Contains(fmt.Sprint(err), x.words) {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := OpenImage(t.Context(), "127.0.0.1", 1, dir, ubuntu)
	if !errors.Is(err, errclass.Transient) {
		t.Error(err)
	}
	if _, err := OpenImage(t.Context(), "127.0.0.1", s.port, t.TempDir(), ubuntu); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func TestReadPiece(t *testing.T) {
	t.Parallel()
	a := authority.New(t)
	data := disktest.Noise(8, mib+512)
	s := newStore(t, a, data, clock.RealClock{})
	dir := a.ServiceFiles(t, names.StoreHost)
	p := make([]byte, mib)
	for piece, want := range [][]byte{data[:mib], data[mib:]} {
		got := p[:len(want)]
		if err := ReadPiece(t.Context(), "127.0.0.1", s.port, dir, ubuntu, piece, got); err != nil || !bytes.Equal(got, want) {
			verdict.JudgeErrorf(t, err == nil, "MiB %d: %v", piece, err)
		}
	}
	for name, x := range map[string]struct {
		copy  Copy
		piece int
		p     []byte
		class error
	}{
		"another disk":     {Copy{ubuntu.Image, ubuntu.UUID, "d-2"}, 0, p, errclass.NotFound},
		"another UUID":     {Copy{ubuntu.Image, "i-2", ubuntu.DiskUUID}, 0, p, errclass.NotFound},
		"a piece too many": {ubuntu, 2, p, errclass.Corrupt},
	} {
		err := ReadPiece(t.Context(), "127.0.0.1", s.port, dir, x.copy, x.piece, x.p)
		if !errors.Is(err, x.class) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, size := range []int{0, mib + 1} {
		err := ReadPiece(t.Context(), "127.0.0.1", s.port, dir, ubuntu, 0, make([]byte, size))
		if err == nil || !strings.Contains(err.Error(), "a piece has 1 to 1048576 bytes") {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
	s.copies.mu.Lock()
	defer s.copies.mu.Unlock()
	if len(s.copies.called) != 1 || !strings.HasPrefix(s.copies.called[0], "damage "+fmt.Sprint(ubuntu)) {
		t.Errorf("a piece that is wrong: %q", s.copies.called)
	}
}

func TestCalls_reportAndPassOn(t *testing.T) {
	t.Parallel()
	a := authority.New(t)
	s := newStore(t, a, disktest.Noise(8, 512), clock.RealClock{})
	info := longhornv1.BackingImageV2CopyInfo{
		Name: "ubuntu-22.04", UUID: "i-1", DiskUUID: "d-1", Size: 5, RealSize: 4, Progress: 3, State: "in-progress",
		CurrentChecksum: "ab", Message: "m",
	}
	want := &storepb.BackingImage{
		Name: "ubuntu-22.04", Uuid: "i-1", DiskUuid: "d-1", Size: 5, RealSize: 4, Progress: 3, State: "in-progress",
		CurrentChecksum: "ab", Message: "m",
	}
	calls := s.calls(t, a.ServiceFiles(t, names.StoreHost))
	watch, err := calls.BackingImageWatch(t.Context(), &storepb.BackingImageWatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if first, err := watch.Recv(); err != nil || len(first.GetBackingImages()) != 0 {
		t.Fatal(first, err)
	}
	get := &storepb.BackingImageGetRequest{Name: "ubuntu-22.04", DiskUuid: "d-1"}
	if _, err := calls.BackingImageGet(t.Context(), get); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
	s.copies.mu.Lock()
	s.copies.all = []longhornv1.BackingImageV2CopyInfo{info}
	changed := s.copies.changed
	s.copies.changed = make(chan struct{})
	s.copies.mu.Unlock()
	close(changed)
	next, err := watch.Recv()
	diff := cmp.Diff([]*storepb.BackingImage{want}, next.GetBackingImages(), protocmp.Transform())
	if diff != "" || err != nil {
		t.Errorf("watch: %v\n%s", err, diff)
	}
	got, err := calls.BackingImageGet(t.Context(), get)
	if diff = cmp.Diff(want, got, protocmp.Transform()); diff != "" || err != nil {
		t.Errorf("get: %v\n%s", err, diff)
	}
	list, err := calls.BackingImageList(t.Context(), &storepb.BackingImageListRequest{})
	if len(list.GetBackingImages()) != 1 || err != nil {
		t.Errorf("list: %v, %v", list, err)
	}
	create := &storepb.BackingImageCreateRequest{Name: "n", Uuid: "u", DiskUuid: "d"}
	if made, err := calls.BackingImageCreate(t.Context(), create); err != nil || made.GetState() != "pending" {
		t.Error(made, err)
	}
	s.copies.err = errclass.Errorf(errclass.Conflict, "remove the disk first")
	_, err = calls.BackingImageDelete(t.Context(), &storepb.BackingImageDeleteRequest{Name: "n", Uuid: "u", DiskUuid: "d"})
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "remove the disk first") {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"create {n u d}", "delete {n u d}"}, s.copies.called); diff != "" {
		t.Error(diff)
	}
}

// liar is another store that says what the test wants.
type liar struct {
	storepb.UnimplementedStoreServer
	messages []*storepb.Exposed
}

func (l liar) BackingImageExpose(
	_ *storepb.BackingImageExposeRequest, stream grpc.ServerStreamingServer[storepb.Exposed],
) error {
	for _, m := range l.messages {
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	return nil
}

// What another store says of its copy is bounded by what an image can be.
func TestOpenImage_refusesNonsense(t *testing.T) {
	t.Parallel()
	a := authority.New(t)
	dir := a.ServiceFiles(t, names.StoreHost)
	size := func(n int64) *storepb.Exposed { return &storepb.Exposed{Lease: &storepb.Lease{Size: n}} }
	hashes := func(n int) *storepb.Exposed { return &storepb.Exposed{Hashes: make([]byte, n)} }
	for name, messages := range map[string][]*storepb.Exposed{
		"no size":           {size(0)},
		"negative":          {size(-1)},
		"too large":         {size(1 << 60)},
		"no lease":          {hashes(32)},
		"too many hashes":   {size(mib), hashes(64)},
		"part of a hash":    {size(mib), hashes(31)},
		"an empty message":  {size(mib), hashes(0)},
		"more in the third": {size(2 * mib), hashes(32), hashes(64)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var listen net.ListenConfig
			l, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			server := grpc.NewServer(grpc.Creds(grpccredentials.NewTLS(serverTLS(dir, "h2"))))
			storepb.RegisterStoreServer(server, liar{messages: messages})
			go func() { _ = server.Serve(l) }()
			t.Cleanup(server.Stop)
			_, err = OpenImage(t.Context(), "127.0.0.1", l.Addr().(*net.TCPAddr).Port, dir, ubuntu)
			if !errors.Is(err, errclass.Corrupt) {
				t.Error(err)
			}
		})
	}
}
