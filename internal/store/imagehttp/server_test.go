package imagehttp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/semaphore"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubernetesfake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/disk/disktest"
	"github.com/varvebackup/varve/internal/store/diskset"
	"github.com/varvebackup/varve/internal/store/download"
	"github.com/varvebackup/varve/internal/store/peer"
	"github.com/varvebackup/varve/test/wait"
)

const (
	mib       = disk.PieceBytes
	goodToken = "good"
)

var golden = download.Copy{Image: "golden-22.04", UUID: "i-1", DiskUUID: "d-1"}

// world is a store that serves an image: noise, zeroes, noise, and a bit more.
type world struct {
	*testing.T
	image   *disktest.OneImage
	options Options
	address string
	http    *http.Client

	mu      sync.Mutex
	damaged []string
}

func newWorld(t *testing.T, edits ...func(*Options)) *world {
	t.Helper()
	w := &world{T: t, http: &http.Client{Transport: &http.Transport{}}}
	data := slices.Concat(disktest.Noise(1, mib), make([]byte, mib), disktest.Noise(2, mib+1001))
	w.image = disktest.NewOneImage(t, "image/golden-22.04/i-1", "i-1", data)
	disks := &diskset.Set{}
	disks.Put(diskset.Disk{Disk: w.image, Name: "default-disk", UUID: "d-1"})
	core := kubernetesfake.NewClientset()
	core.PrependReactor("create", "tokenreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		review := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview).DeepCopy()
		token, s := review.Spec.Token, &review.Status
		if token == "down" {
			return true, nil, errors.New("the API server is down")
		}
		s.Authenticated, s.Audiences = token != "bad", review.Spec.Audiences
		s.User.Username = "system:serviceaccount:varve:varve-image-download"
		switch token {
		case "other account":
			s.User.Username = "system:serviceaccount:varve:default"
		case "other namespace":
			s.User.Username = "system:serviceaccount:app:varve-image-download"
		case "other audience":
			s.Audiences = nil
		}
		return true, review, nil
	})
	w.options = Options{
		Namespace: "varve", Disks: disks, Kubernetes: core, Clock: clock.RealClock{},
		Logger: slog.New(slog.DiscardHandler),
		NoteDamage: func(_ context.Context, c peer.Copy, why string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.damaged = append(w.damaged, fmt.Sprint(c, ": ", why))
		},
	}
	for _, edit := range edits {
		edit(&w.options)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.address = l.Addr().String()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- serveUsers(ctx, w.options, l) }()
	t.Cleanup(func() {
		w.wantLeases(0)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		w.http.CloseIdleConnections()
	})
	w.http.Transport.(*http.Transport).DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", w.address)
	}
	return w
}

func (w *world) wantLeases(n int) {
	w.Helper()
	wait.Succeeds(w, time.Minute, fmt.Sprint(n, " leases"), func() error {
		if got := w.image.CountLeases(); got != n {
			return fmt.Errorf("%d leases", got)
		}
		return nil
	})
}

func (w *world) newClient(token string) *download.Client {
	return &download.Client{HTTP: w.http, Token: token}
}

func (w *world) readData(from int) ([]byte, error) {
	body, err := w.newClient(goodToken).OpenData(w.Context(), golden, from)
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }()
	return io.ReadAll(body)
}

func TestServer_sendsHashesAndData(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	want, _ := w.image.Pieces(t.Context(), "")
	hashes, err := w.newClient(goodToken).ReadHashes(t.Context(), golden, 4)
	if err != nil || !slices.Equal(hashes, want) {
		t.Errorf("%d hashes: %v", len(hashes), err)
	}
	if _, err := w.newClient(goodToken).ReadHashes(t.Context(), golden, 3); !errors.Is(err, errclass.Corrupt) {
		t.Errorf("more hashes than the image has: %v", err)
	}
	for from, want := range map[int][]byte{
		0: slices.Concat(w.image.Data[:mib], w.image.Data[2*mib:]), 1: w.image.Data[2*mib:], 3: w.image.Data[3*mib:],
	} {
		if got, err := w.readData(from); err != nil || !bytes.Equal(got, want) {
			t.Errorf("from %d: %d bytes: %v", from, len(got), err)
		}
	}
}

func TestServer_refusesStrangers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for token, words := range map[string]string{
		"": "no token", "bad": "not valid", "other audience": "not valid", "other account": "varve:default",
		"other namespace": "app:varve-image-download",
	} {
		c := w.newClient(token)
		_, hashesErr := c.ReadHashes(t.Context(), golden, 4)
		_, dataErr := c.OpenData(t.Context(), golden, 0)
		for _, err := range []error{hashesErr, dataErr} {
			if !errors.Is(err, errclass.Denied) || !strings.Contains(err.Error(), words) {
				t.Errorf("token %q: %v", token, err)
			}
		}
	}
	if _, err := w.newClient("down").OpenData(t.Context(), golden, 0); !errors.Is(err, errclass.Transient) {
		t.Errorf("an API server that does not answer: %v", err)
	}
	if reviews := len(w.options.Kubernetes.(*kubernetesfake.Clientset).Actions()); reviews != 9 {
		t.Errorf("%d reviews of tokens", reviews) // a request without a token needs none
	}
}

func TestServer_errors(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, c := range map[string]struct {
		copy  download.Copy
		from  int
		class error
	}{
		"another disk":  {download.Copy{Image: golden.Image, UUID: "i-1", DiskUUID: "d-2"}, 0, errclass.NotFound},
		"another image": {download.Copy{Image: "x", UUID: "i-1", DiskUUID: "d-1"}, 0, errclass.NotFound},
		"another UUID":  {download.Copy{Image: golden.Image, UUID: "../i-1", DiskUUID: "d-1"}, 0, errclass.NotFound},
		"behind it":     {golden, 4, errclass.Transient},
		"before it":     {golden, -1, errclass.Transient},
	} {
		if _, err := w.newClient(goodToken).OpenData(t.Context(), c.copy, c.from); !errors.Is(err, c.class) {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.image.State = disk.StateDamaged
	if _, err := w.readData(0); err == nil || !strings.Contains(err.Error(), "is damaged") {
		t.Errorf("a damaged copy: %v", err)
	}
}

// Nobody gets a piece that has rotted, nor takes what came before for all.
func TestServer_findsDamage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f, err := os.OpenFile(w.image.Path, os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteAt([]byte("rot"), 2*mib+5)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	if got, err := w.readData(0); err == nil || len(got) > mib {
		t.Errorf("%d bytes came: %v", len(got), err)
	}
	if _, err := w.readData(2); err == nil || !strings.Contains(err.Error(), "MiB 2 is not what was sealed") {
		t.Errorf("error %v", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if want := "{golden-22.04 i-1 d-1}: MiB 2 is not what was sealed"; len(w.damaged) != 2 || w.damaged[0] != want {
		t.Errorf("damaged: %q", w.damaged)
	}
}

// Who reads nothing keeps others from reading only until its connection ends.
func TestServer_isBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.image.Data = disktest.Noise(3, 32*mib) // more than what connections buffer
	if err := os.WriteFile(w.image.Path, w.image.Data, 0o600); err != nil {
		t.Fatal(err)
	}
	var open []io.Closer
	for range maxRequests {
		body, err := w.newClient(goodToken).OpenData(t.Context(), golden, 0)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, body)
	}
	w.wantLeases(maxRequests)
	if _, err := w.readData(0); !errors.Is(err, errclass.Transient) || !strings.Contains(err.Error(), "try again later") {
		t.Errorf("one too many: %v", err)
	}
	for _, body := range open {
		_ = body.Close()
	}
	w.wantLeases(0)
	wait.Succeeds(t, time.Minute, "a free slot", func() error {
		_, err := w.readData(0)
		return err
	})
}

// newRequest returns a request for a copy, as the server has it.
func newRequest(c download.Copy) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	r.SetPathValue("image", c.Image)
	r.SetPathValue("uuid", c.UUID)
	r.SetPathValue("disk", c.DiskUUID)
	return r
}

// The hashes of all images that are downloaded take no more room than the store has.
func TestServer_boundsHashes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := &server{o: w.options, pieces: semaphore.NewWeighted(5)}
	request := newRequest(golden)
	first, err := s.leaseCopy(request)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.leaseCopy(request); !errors.Is(err, errclass.Transient) {
		t.Errorf("4 and 4 pieces of 5: %v", err)
	}
	if err := first.endLease(); err != nil {
		t.Fatal(err)
	}
	request.SetPathValue("uuid", "another")
	if _, err := s.leaseCopy(request); !errors.Is(err, errclass.NotFound) || !s.pieces.TryAcquire(5) {
		t.Errorf("what failed keeps room: %v", err)
	}
}

// A reader that takes nothing, and one that takes for ever, keep the copy only for so long.
func TestServer_endsRequests(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(*Options){
		"idle": func(o *Options) { o.Clock = clocktesting.NewFakeClock(time.Now().Add(-writePatience)) },
		"long": func(o *Options) { o.RequestTime = time.Nanosecond },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, edit)
			if got, err := w.readData(0); err == nil {
				t.Errorf("%d bytes came", len(got))
			}
			w.wantLeases(0)
		})
	}
}

// A connection that is refused for now waits until another one ends.
func TestLimitedListener(t *testing.T) {
	t.Parallel()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := newLimitedListener(inner, 1)
	accepted := make(chan net.Conn)
	go func() {
		defer close(accepted)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	for range 2 {
		c, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	first := <-accepted
	if len(l.slots) != 1 {
		t.Errorf("%d connections", len(l.slots))
	}
	_ = first.Close()
	_ = first.Close() // frees one slot
	second := <-accepted
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, more := <-accepted; more {
		t.Error("a closed listener accepts")
	}
	_ = second.Close()
}
