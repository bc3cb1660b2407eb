package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/cluster/clustertest"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/progress"
	"github.com/varvebackup/varve/internal/errclass"
	storedisk "github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/disk/disktest"
	"github.com/varvebackup/varve/internal/store/download"
)

const pieceBytes = storedisk.PieceBytes

// fakeStore serves a copy of the image. It breaks off before a piece, if there is one with that number.
type fakeStore struct {
	mu      sync.Mutex
	data    []byte
	breakAt int
	deny    bool
	// asked are the first pieces of the requests for data.
	asked []int
}

func (s *fakeStore) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	mux := http.NewServeMux()
	mux.HandleFunc(download.HashesPath, func(w http.ResponseWriter, _ *http.Request) {
		for _, hash := range disktest.HashPieces(s.data) {
			_, _ = w.Write(hash[:])
		}
	})
	mux.HandleFunc(download.DataPath, func(w http.ResponseWriter, r *http.Request) {
		from, _ := strconv.Atoi(r.URL.Query().Get(download.FromQuery))
		s.mu.Lock()
		s.asked = append(s.asked, from)
		s.mu.Unlock()
		i := from
		for piece := range slices.Chunk(s.data[from*pieceBytes:], pieceBytes) {
			if i == s.breakAt {
				panic(http.ErrAbortHandler)
			}
			_, _ = w.Write(piece)
			i++
		}
	})
	if s.deny || r.Header.Get("Authorization") == "" || !strings.HasPrefix(r.URL.Path, "/v1/images/debian/uuid-1/") {
		http.Error(w, "the token is not valid", http.StatusForbidden)
		return
	}
	mux.ServeHTTP(w, r)
}

func (s *fakeStore) listRequests() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

// downloadWorld is a cluster with an image of 4 MiB and a bit, which is ready on two disks.
type downloadWorld struct {
	*testing.T

	client *cluster.Client
	image  *longhornv1.BackingImage
	data   []byte
	stores map[string]*fakeStore // by their pods
	path   string

	mu    sync.Mutex
	shown []string
}

func newDownloadWorld(t *testing.T, calls interceptor.Funcs, edits ...func(*longhornv1.BackingImage)) *downloadWorld {
	t.Helper()
	w := &downloadWorld{
		T: t, image: newImage(), data: make([]byte, 4*pieceBytes+77), path: filepath.Join(t.TempDir(), "debian.raw"),
		stores: map[string]*fakeStore{},
	}
	_, _ = rand.NewChaCha8([32]byte{3}).Read(w.data)
	w.image.Status.UUID, w.image.Status.Size = "uuid-1", int64(len(w.data))
	w.image.Status.Checksum = disktest.Checksum(w.data)
	w.image.Status.DiskFileStatusMap[diskB] = &longhornv1.BackingImageDiskFileStatus{State: longhornv1.StateReady}
	for _, edit := range edits {
		edit(w.image)
	}
	objects := append(threeNodes(), w.image, &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: download.ServiceAccount},
	})
	addresses := map[string]string{}
	for _, node := range []string{"n1", "n2"} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: "store-" + node, Labels: storePods}}
		pod.Spec.NodeName, pod.Status.Phase = node, corev1.PodRunning
		objects = append(objects, pod)
		w.stores[pod.Name] = &fakeStore{data: w.data, breakAt: -1}
		server := httptest.NewServer(w.stores[pod.Name])
		t.Cleanup(server.Close)
		addresses[pod.Name] = strings.TrimPrefix(server.URL, "http://")
	}
	forwarding := &clustertest.Forwarding{To: func(p string) string { return addresses[path.Base(path.Dir(p))] }}
	api := httptest.NewServer(forwarding)
	t.Cleanup(api.Close)
	flags := genericclioptions.NewConfigFlags(true)
	flags.APIServer, flags.KubeConfig = &api.URL, ptr.To("/dev/null")
	var err error
	if w.client, err = cluster.Connect(flags, t.Output()); err != nil {
		t.Fatal(err)
	}
	w.client.Namespace = "varve"
	w.client.WithWatch = newClient(t, calls, objects...).WithWatch
	if err := w.client.Get(t.Context(), client.ObjectKeyFromObject(w.image), w.image); err != nil {
		t.Fatal(err)
	}
	return w
}

// openFile returns what brings the image to the file.
func (w *downloadWorld) openFile() *downloader {
	w.Helper()
	to, closeTo, err := openDestination(w.image, w.path, false, w.Output())
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = closeTo() })
	return w.openTo(to)
}

func (w *downloadWorld) openTo(to download.Destination) *downloader {
	w.Helper()
	d, err := newDownloader(newSession(), w.client, w.image, to, w.path, clock.RealClock{})
	if err != nil {
		w.Fatal(err)
	}
	return d
}

func (w *downloadWorld) recordReport(r progress.Report) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.shown = append(w.shown, r.String())
}

func (w *downloadWorld) wantFile() {
	w.Helper()
	got, err := os.ReadFile(w.path)
	if err != nil || !bytes.Equal(got, w.data) {
		w.Errorf("%d bytes that may differ: %v", len(got), err)
	}
	if left, _ := filepath.Glob(w.path + ".*"); len(left) > 0 {
		w.Errorf("%v were left", left)
	}
}

func TestDownload_bringsTheImage(t *testing.T) {
	t.Parallel()
	w := newDownloadWorld(t, interceptor.Funcs{})
	if err := w.openFile().downloadImage(t.Context(), w.recordReport); err != nil {
		t.Fatal(err)
	}
	w.wantFile()
	got, other := w.stores["store-n1"].listRequests(), w.stores["store-n2"].listRequests()
	if !slices.Equal(got, []int{0}) || len(other) > 0 {
		t.Errorf("requests for pieces %v, and of the other store %v", got, other)
	}
	last := w.shown[len(w.shown)-1]
	if want := "file " + w.path + ": Download from n1/a 100% 4 MiB of 4 MiB"; last != want {
		t.Errorf("shown %q, want %q", last, want)
	}
}

func TestDownload_toAStream(t *testing.T) {
	t.Parallel()
	w := newDownloadWorld(t, interceptor.Funcs{})
	var out bytes.Buffer
	to, _, err := openDestination(w.image, toStdout, false, &out)
	if err != nil {
		t.Fatal(err)
	}
	w.stores["store-n1"].breakAt = 2 // the next copy goes on
	if err := w.openTo(to).downloadImage(t.Context(), w.recordReport); err != nil || !bytes.Equal(out.Bytes(), w.data) {
		t.Errorf("%d bytes: %v", out.Len(), err)
	}
}

// Another copy goes on where a store has died, or has sent something that is wrong.
func TestDownload_fallsOver(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*downloadWorld){
		"dies": func(w *downloadWorld) { w.stores["store-n1"].breakAt = 3 },
		"is wrong": func(w *downloadWorld) {
			spoiled := bytes.Clone(w.data)
			spoiled[3*pieceBytes]++
			w.stores["store-n1"].data = spoiled
			// The hashes are those of the image, as the cluster has them.
			w.image.Status.PiecesChecksum = storedisk.SumPieces(disktest.HashPieces(w.data))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newDownloadWorld(t, interceptor.Funcs{})
			spoil(w)
			if err := w.openFile().downloadImage(t.Context(), w.recordReport); err != nil {
				t.Fatal(err)
			}
			w.wantFile()
			want := []int{3}
			if name == "is wrong" {
				want = []int{0} // it is found out by the hashes
			}
			if got := w.stores["store-n2"].listRequests(); !slices.Equal(got, want) {
				t.Errorf("the other store was asked for pieces %v, not %v", got, want)
			}
		})
	}
}

// What one run has brought, the next does not bring again.
func TestDownload_goesOnAfterAnInterrupt(t *testing.T) {
	t.Parallel()
	w := newDownloadWorld(t, interceptor.Funcs{})
	for _, s := range w.stores {
		s.breakAt = 2
	}
	to, closeTo, err := openDestination(w.image, w.path, false, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	ctx, interrupt := context.WithCancel(t.Context())
	d := w.openTo(to)
	err = d.downloadImage(ctx, func(progress.Report) {
		if d.transfer.Done() == 2*pieceBytes {
			interrupt()
		}
	})
	if failure.Code(err) != errclass.ExitInterrupted || !strings.Contains(err.Error(), "2 MiB of 4 MiB of image debian") ||
		!strings.Contains(failure.Hint(err), "run the same command again") {
		t.Errorf("interrupted: %v (%s)", err, failure.Hint(err))
	}
	if err := closeTo(); err != nil {
		t.Fatal(err)
	}
	for _, s := range w.stores {
		s.breakAt, s.asked = -1, nil
	}
	if err := w.openFile().downloadImage(t.Context(), w.recordReport); err != nil {
		t.Fatal(err)
	}
	w.wantFile()
	if got := w.stores["store-n1"].listRequests(); !slices.Equal(got, []int{2}) {
		t.Errorf("requests for pieces %v", got)
	}
	if last := w.shown[len(w.shown)-1]; !strings.Contains(last, "goes on at 2 MiB") {
		t.Errorf("shown %q", last)
	}
}

func forbidAccess(resource string) error {
	return apierrors.NewForbidden(corev1.Resource(resource), "x", errors.New("no"))
}

func TestDownload_fails(t *testing.T) {
	t.Parallel()
	forbidToken := interceptor.Funcs{SubResourceCreate: func(
		context.Context, client.Client, string, client.Object, client.Object, ...client.SubResourceCreateOption,
	) error {
		return forbidAccess("serviceaccounts/token")
	}}
	forbidPods := interceptor.Funcs{List: func(
		ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption,
	) error {
		if _, pods := list.(*corev1.PodList); pods {
			return forbidAccess("pods")
		}
		return c.List(ctx, list, options...)
	}}
	for name, c := range map[string]struct {
		calls       interceptor.Funcs
		prepare     func(*downloadWorld)
		code        int
		words, hint string
	}{
		"no right to a token": {forbidToken, nil, errclass.ExitRefused, "make a token", "varve-image-download"},
		"no right to pods":    {forbidPods, nil, errclass.ExitRefused, "list the pods", "varve-image-download"},
		"the store refuses": {interceptor.Funcs{}, func(w *downloadWorld) {
			w.stores["store-n1"].deny = true
		}, errclass.ExitRefused, "the token is not valid", "varve-image-download"},
		"no account": {interceptor.Funcs{}, func(w *downloadWorld) {
			account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: download.ServiceAccount}}
			if err := w.client.Delete(w.Context(), account); err != nil {
				w.Fatal(err)
			}
		}, errclass.ExitFailure, "has no service account varve/varve-image-download", "install the version"},
		"no copy": {interceptor.Funcs{}, func(w *downloadWorld) {
			w.editStatus(func(s *longhornv1.BackingImageStatus) {
				s.DiskFileStatusMap[diskA].State, s.DiskFileStatusMap[diskA].Message = longhornv1.StateFailed, "MiB 3 has rotted"
				s.DiskFileStatusMap[diskB].State = longhornv1.StateInProgress
			})
		}, errclass.ExitFailure, "no copy of image debian is ready: n1/a is failed (MiB 3 has rotted); n2/b is in-progress, " +
			"evicted; n3/c is going (the store of n2 does not report)", "image describe debian"},
		"deleted": {interceptor.Funcs{}, func(w *downloadWorld) {
			if err := w.client.Delete(w.Context(), w.image); err != nil {
				w.Fatal(err)
			}
		}, errclass.ExitFailure, "image debian was deleted", ""},
		"made again": {interceptor.Funcs{}, func(w *downloadWorld) {
			w.editStatus(func(s *longhornv1.BackingImageStatus) { s.UUID = "uuid-2" })
		}, errclass.ExitFailure, "image debian was deleted", ""},
		"wrong as a whole": {interceptor.Funcs{}, func(w *downloadWorld) {
			for _, s := range w.stores {
				s.data = bytes.Clone(w.data)
				s.data[0]++
			}
		}, errclass.ExitFailure, "image debian is not what it must be: corrupt: its SHA-512 is", "what came was deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newDownloadWorld(t, c.calls)
			if c.prepare != nil {
				c.prepare(w)
			}
			err := w.openFile().downloadImage(t.Context(), w.recordReport)
			if failure.Code(err) != c.code || !strings.Contains(fmt.Sprint(err), c.words) ||
				!strings.Contains(failure.Hint(err), c.hint) {
				t.Errorf("error %v (%d, %s)", err, failure.Code(err), failure.Hint(err))
			}
			if _, err := os.Stat(w.path); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("there is a file: %v", err)
			}
		})
	}
}

// editStatus changes the image as the controller does.
func (w *downloadWorld) editStatus(change func(*longhornv1.BackingImageStatus)) {
	w.Helper()
	b := &longhornv1.BackingImage{}
	if err := w.client.Get(w.Context(), client.ObjectKeyFromObject(w.image), b); err != nil {
		w.Fatal(err)
	}
	change(&b.Status)
	if err := w.client.Update(w.Context(), b); err != nil {
		w.Fatal(err)
	}
}

// A store that restarts is waited for, and one that stays away only for so long. The user sees why meanwhile.
func TestDownload_waitsForStores(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		image := newImage()
		image.Status.UUID, image.Status.Checksum = "uuid-1", strings.Repeat("0", 128)
		c := newClient(t, interceptor.Funcs{}, append(threeNodes(), image)...)
		d, err := newDownloader(newSession(), c, image, &download.Stream{To: t.Output()}, "f", clock.RealClock{})
		if err != nil {
			t.Fatal(err)
		}
		var shown []string
		began := time.Now()
		err = d.downloadImage(t.Context(), func(r progress.Report) { shown = append(shown, r.String()) })
		took := time.Since(began)
		if failure.Code(err) != errclass.ExitUnreachable || took < downloadPatience || took > downloadPatience+time.Minute ||
			!strings.Contains(fmt.Sprint(err), "nothing has come for 5m") ||
			!strings.Contains(fmt.Sprint(err), "n1/a: no store runs on its node") {
			t.Errorf("after %s: %v", took, err)
		}
		if len(shown) < 10 || !strings.Contains(shown[5], "no store runs on its node") {
			t.Errorf("shown: %q", shown)
		}
		began = time.Now()
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, failure.ErrTimeout)
		defer cancel()
		err = d.downloadImage(ctx, func(progress.Report) {})
		if failure.Code(err) != errclass.ExitTimeout || errors.Is(err, failure.ErrTimeout) ||
			!strings.Contains(fmt.Sprint(err), "timed out: 0 B of 3 GiB") || time.Since(began) > time.Minute {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
	})
}

// A store that sends a little in each attempt is not given up.
func TestPatience(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000_000, 0)
	p := patience{movedAt: now}
	var pauses []time.Duration
	for range 6 {
		pause, ok := p.choosePause(now, false)
		if !ok {
			t.Error("it ends too early")
		}
		pauses = append(pauses, pause)
	}
	want := []time.Duration{
		firstPause, 2 * firstPause, 4 * firstPause, 8 * firstPause, longestPause, longestPause,
	}
	if !slices.Equal(pauses, want) {
		t.Errorf("pauses %v, want %v", pauses, want)
	}
	now = now.Add(2 * downloadPatience)
	if pause, ok := p.choosePause(now, true); pause != firstPause || !ok {
		t.Errorf("after something has come: %s, %t", pause, ok)
	}
	if _, ok := p.choosePause(now.Add(downloadPatience-1), false); !ok {
		t.Error("it ends too early")
	}
	if _, ok := p.choosePause(now.Add(downloadPatience), false); ok {
		t.Error("it does not end")
	}
}

// A copy that fails again and again does not keep a good one waiting.
func TestReadyCopies_beginWithThoseThatFailLeast(t *testing.T) {
	t.Parallel()
	w := newDownloadWorld(t, interceptor.Funcs{})
	d := w.openFile()
	for _, want := range []string{diskA, diskB} {
		copies, err := d.readyCopies(t.Context())
		if err != nil || len(copies) != 2 || copies[0].uuid != want {
			t.Errorf("%+v: %v", copies, err)
		}
		d.failures[diskA]++
	}
}

func TestOpenDestination_refuses(t *testing.T) {
	t.Parallel()
	ready := newImage()
	ready.Status.Checksum = strings.Repeat("0", 128)
	path := filepath.Join(t.TempDir(), "debian.raw")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		image       *longhornv1.BackingImage
		path        string
		code        int
		words, hint string
	}{
		"not ready":    {&longhornv1.BackingImage{}, path + "x", errclass.ExitFailure, "is not ready yet", "wait until"},
		"a file":       {ready, path, errclass.ExitRefused, path + ": the file exists already", "--force"},
		"no directory": {ready, path + "/x", errclass.ExitFailure, "not a directory", ""},
	} {
		_, _, err := openDestination(c.image, c.path, false, nil)
		if failure.Code(err) != c.code || !strings.Contains(fmt.Sprint(err), c.words) ||
			!strings.Contains(failure.Hint(err), c.hint) {
			t.Errorf("%s: %v (%d, %s)", name, err, failure.Code(err), failure.Hint(err))
		}
	}
	full := &download.LocalError{Path: path, Err: errclass.Errorf(errclass.Exhausted, "no space left on device")}
	if hint := failure.Hint(explainLocal(full, path)); !strings.Contains(hint, "make room in "+filepath.Dir(path)) {
		t.Errorf("hint %q", hint)
	}
}

// The way to the pod may have broken unnoticed if nothing moves on it for a minute.
func TestDownloader_endSilence(t *testing.T) {
	t.Parallel()
	fake := clocktesting.NewFakeClock(time.Unix(1_000_000, 0))
	transfer, err := download.NewTransfer(download.Image{Bytes: 5, Checksum: strings.Repeat("0", 128)}, &download.Stream{})
	if err != nil {
		t.Fatal(err)
	}
	d := &downloader{clock: fake, transfer: transfer}
	d.endSilence() // without an attempt
	ctx, cancel := context.WithCancelCause(t.Context())
	forward := (&cluster.Client{}).Forward("varve", "store-n1", 1)
	t.Cleanup(forward.Close)
	d.beginAttempt("n1/a", forward, cancel)
	fake.Step(silentTime - time.Second)
	d.endSilence()
	if ctx.Err() != nil {
		t.Error("it ends too early")
	}
	fake.Step(time.Second)
	d.endSilence()
	if !errors.Is(context.Cause(ctx), errclass.Transient) {
		t.Errorf("cause %v", context.Cause(ctx))
	}
}
