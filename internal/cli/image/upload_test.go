package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
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
	"github.com/varvebackup/varve/internal/store/upload"
	"github.com/varvebackup/varve/test/wait"
)

// uploadWorld is a cluster with an image that waits for an upload. The test plays the controller and the source pod.
type uploadWorld struct {
	*testing.T

	client     *cluster.Client
	forwarding *clustertest.Forwarding
	image      *longhornv1.BackingImage
	pod        *upload.Listener
	address    string // of pod
	broken     atomic.Bool
	http       *http.Client
	content    []byte
	path       string

	mu    sync.Mutex
	shown []string
}

func newUploadWorld(t *testing.T, refuse bool) *uploadWorld {
	t.Helper()
	w := &uploadWorld{T: t, content: make([]byte, 8<<20), path: filepath.Join(t.TempDir(), "golden.raw")}
	_, _ = rand.NewChaCha8([32]byte{1}).Read(w.content)
	if err := os.WriteFile(w.path, w.content, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.pod = upload.NewListener(l, "golden", clock.RealClock{}, slog.New(slog.DiscardHandler))
	w.address = l.Addr().String()
	transport := &http.Transport{DialContext: w.pod.DialContext}
	w.http = &http.Client{Transport: transport}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		if err := w.pod.Close(); err != nil {
			t.Error(err)
		}
	})
	w.forwarding = &clustertest.Forwarding{To: func(string) string {
		if w.broken.Load() {
			return ""
		}
		return w.address
	}}
	api := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if path.Base(r.URL.Path) != "portforward" || !strings.Contains(r.URL.Path, "/namespaces/varve/pods/source-u/") {
			t.Errorf("request for %s", r.URL.Path)
		}
		if refuse {
			rw.Header().Set("Content-Type", "application/json")
			rw.WriteHeader(http.StatusForbidden)
			fmt.Fprint(rw, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`)
			return
		}
		w.forwarding.ServeHTTP(rw, r)
	}))
	t.Cleanup(api.Close)
	flags := genericclioptions.NewConfigFlags(true)
	flags.APIServer, flags.KubeConfig = &api.URL, ptr.To("/dev/null")
	if w.client, err = cluster.Connect(flags, t.Output()); err != nil {
		t.Fatal(err)
	}
	w.image = &longhornv1.BackingImage{
		ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: "golden", UID: "1"},
		Spec:       longhornv1.BackingImageSpec{SourceType: longhornv1.SourceUpload, MinNumberOfCopies: 1},
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: "source-u"}}
	pod.Status.Phase = corev1.PodRunning
	w.client.Namespace = "varve"
	// As with a server, a watch ends with its context.
	calls := interceptor.Funcs{Watch: func(
		ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption,
	) (watch.Interface, error) {
		watcher, err := c.Watch(ctx, list, options...)
		if err == nil {
			context.AfterFunc(ctx, watcher.Stop)
		}
		return watcher, err
	}}
	w.client.WithWatch = newClient(t, calls, w.image, pod).WithWatch
	return w
}

// edit changes the image as the controller does.
func (w *uploadWorld) edit(change func(*longhornv1.BackingImageStatus)) {
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

// start runs the command.
func (w *uploadWorld) start() (ended <-chan error, interrupt context.CancelFunc) {
	w.Helper()
	file, err := upload.OpenFile(w.path)
	if err != nil {
		w.Fatal(err)
	}
	u := newUploader(newSession(), w.client, w.image, file, w.path, clock.RealClock{})
	ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
	result := make(chan error, 1)
	go func() {
		result <- u.uploadUntilReady(ctx, func(r progress.Report) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.shown = append(w.shown, r.String())
		})
	}()
	w.Cleanup(func() {
		cancel()
		u.close()
		_ = file.Close()
	})
	return result, cancel
}

func (w *uploadWorld) begin() {
	w.Helper()
	w.edit(func(s *longhornv1.BackingImageStatus) {
		s.UUID, s.V2FirstCopyStatus, s.V2FirstCopyDisk = "u", longhornv1.StateInProgress, diskA
	})
}

// ready has the image be made of the file with an ETag; "": nobody knows of which.
func (w *uploadWorld) ready(etag string) {
	w.Helper()
	w.edit(func(s *longhornv1.BackingImageStatus) {
		s.V2FirstCopyStatus, s.ReadyCopies, s.FirstCopyFile = longhornv1.StateReady, 1, upload.ParseTag(etag)
	})
}

// read plays the source pod, which asks for the file from a byte on.
func (w *uploadWorld) read(first int, etag string) (data []byte, tag string, err error) {
	w.Helper()
	request, err := http.NewRequestWithContext(w.Context(), http.MethodGet, "http://upload/", http.NoBody)
	if err != nil {
		w.Fatal(err)
	}
	request.Header.Set("Range", fmt.Sprintf("bytes=%d-", first))
	if etag != "" {
		request.Header.Set("If-Range", etag)
	}
	response, err := w.http.Do(request)
	if err != nil {
		return nil, "", err
	}
	defer response.Body.Close()
	data, err = io.ReadAll(response.Body)
	return data, response.Header.Get("ETag"), err
}

// says waits until a line with these words was shown.
func (w *uploadWorld) says(words string) {
	w.Helper()
	err := wait.For(w.Context(), 30*time.Second, words, func(context.Context) (bool, string, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		return strings.Contains(strings.Join(w.shown, "\n"), words), strings.Join(w.shown, "\n"), nil
	})
	if err != nil {
		w.Fatal(err)
	}
}

func TestUpload_servesTheSourcePod(t *testing.T) {
	t.Parallel()
	w := newUploadWorld(t, false)
	ended, _ := w.start()
	w.says("no disk has been chosen yet")
	w.begin()
	data, tag, err := w.read(0, "")
	if err != nil || !bytes.Equal(data, w.content) || tag == "" {
		t.Fatalf("%d bytes, ETag %q: %v", len(data), tag, err)
	}
	w.says("file golden.raw: Upload 100% 8 MiB of 8 MiB")
	// A way that breaks is made anew.
	w.forwarding.Cut()
	data, again, err := w.read(5<<20, tag)
	for err != nil { // The connections that were there break one after the other.
		data, again, err = w.read(5<<20, tag)
	}
	if !bytes.Equal(data, w.content[5<<20:]) || again != tag {
		t.Fatalf("%d bytes, ETag %q, and before %q", len(data), again, tag)
	}
	w.edit(func(s *longhornv1.BackingImageStatus) { s.FirstCopyWrittenTime = ptr.To(metav1.Now()) })
	w.says("golden.raw: Uploaded")
	w.ready(tag)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestUpload_saysWhereItGoesOn(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		other bool
		words string
	}{"the same file": {false, "goes on at 3 MiB"}, "another file": {true, "from the first byte, because another file"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newUploadWorld(t, false)
			w.begin()
			first, interrupt := w.start()
			_, tag, err := w.read(0, "")
			if err != nil {
				t.Fatal(err)
			}
			interrupt()
			err = <-first
			if failure.Code(err) != errclass.ExitInterrupted || !strings.Contains(err.Error(), "8 MiB of 8 MiB of golden.raw") ||
				!strings.Contains(failure.Hint(err), "the same command goes on there") {
				t.Errorf("interrupted: %v (%s)", err, failure.Hint(err))
			}
			if c.other {
				w.content = bytes.Repeat([]byte("other"), 1<<20)
				if err := os.WriteFile(w.path, w.content, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			second, _ := w.start()
			want := w.content[3<<20:]
			if c.other {
				want = w.content
			}
			data, tag2, err := w.read(3<<20, tag)
			for err != nil {
				data, tag2, err = w.read(3<<20, tag)
			}
			if !bytes.Equal(data, want) {
				t.Fatalf("%d bytes", len(data))
			}
			w.says(c.words)
			w.ready(tag2)
			if err := <-second; err != nil {
				t.Error(err)
			}
		})
	}
}

func TestUpload_fails(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		refuse bool
		// play is what happens after the pod has read the file, or instead of it.
		asks        bool
		play        func(*uploadWorld)
		code        int
		words, hint string
	}{
		"the file is no image": {false, true, func(w *uploadWorld) {
			w.edit(func(s *longhornv1.BackingImageStatus) {
				s.V2FirstCopyStatus, s.FirstCopyAttempts, s.FirstCopyMessage = longhornv1.StateFailed, 1, "it is a VMDK image"
				s.FirstCopyRetryTime = ptr.To(metav1.Now())
			})
		}, errclass.ExitFailure, "image golden: the upload failed: it is a VMDK image", "run the command again"},
		"the file changes": {false, true, func(w *uploadWorld) {
			if err := os.WriteFile(w.path, []byte("another"), 0o600); err != nil {
				w.Fatal(err)
			}
			_, _, _ = w.read(0, "")
		}, errclass.ExitCode(errclass.Conflict), "was changed while it was uploaded", ""},
		"another command uploads it": {
			false, false, func(w *uploadWorld) { w.ready(anotherTag) }, errclass.ExitRefused,
			"image golden was made from another file than golden.raw", "choose another name",
		},
		// This one had sent all of its file, and another command took its place before the pod was done.
		"another command uploads it in the end": {
			false, true, func(w *uploadWorld) { w.ready(anotherTag) }, errclass.ExitRefused,
			"image golden was made from another file than golden.raw", "choose another name",
		},
		"nobody knows": {
			false, true, func(w *uploadWorld) { w.ready("") }, errclass.ExitFailure,
			"the cluster does not say whether it was made from golden.raw", "sha512sum",
		},
		"no rights": {true, false, func(*uploadWorld) {}, errclass.ExitRefused, "forward a port", "varve-image-upload"},
		"deleted": {false, true, func(w *uploadWorld) {
			if err := w.client.Delete(w.Context(), w.image); err != nil {
				w.Fatal(err)
			}
		}, errclass.ExitFailure, "image golden was deleted", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newUploadWorld(t, c.refuse)
			w.begin()
			ended, _ := w.start()
			if c.asks {
				if _, _, err := w.read(0, ""); err != nil {
					t.Fatal(err)
				}
			}
			c.play(w)
			err := <-ended
			if failure.Code(err) != c.code || !strings.Contains(err.Error(), c.words) ||
				!strings.Contains(failure.Hint(err), c.hint) || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error %v (%d, %s)", err, failure.Code(err), failure.Hint(err))
			}
		})
	}
}

// anotherTag is that of another file.
const anotherTag = `"0123456789abcdef0123456789abcdef"`

// Another command may have sent the same file: what counts is the file.
func TestUpload_ofTheSameFileByAnother(t *testing.T) {
	t.Parallel()
	w := newUploadWorld(t, false)
	file, err := upload.OpenFile(w.path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	w.begin()
	ended, _ := w.start()
	w.ready(`"` + file.Identity() + `"`)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// What another command has sent is not what this one was given.
func TestUpload_isTakenOverByAnother(t *testing.T) {
	t.Parallel()
	w := newUploadWorld(t, false)
	w.begin()
	ended, _ := w.start()
	if _, _, err := w.read(0, ""); err != nil {
		t.Fatal(err)
	}
	w.broken.Store(true)
	w.forwarding.Cut()
	other := upload.NewSession()
	err := wait.For(t.Context(), 30*time.Second, "another command", func(ctx context.Context) (bool, string, error) {
		conn, err := net.Dial("tcp", w.address)
		if err != nil {
			return false, "", err
		}
		t.Cleanup(func() { _ = conn.Close() })
		return other.Greet(ctx, conn) == nil, "", nil
	})
	if err != nil {
		t.Fatal(err)
	}
	w.broken.Store(false)
	w.says("golden.raw: Upload another command is uploading this image")
	w.ready(anotherTag)
	err = <-ended
	if failure.Code(err) != errclass.ExitRefused || !strings.Contains(err.Error(), "another command has uploaded it") {
		t.Errorf("error %v", err)
	}
}

// A way on which nothing moves for a minute may be broken without anybody having noticed it.
func TestFindSilence(t *testing.T) {
	t.Parallel()
	fake := clocktesting.NewFakeClock(time.Unix(1_000_000, 0))
	u := &uploader{clock: fake, pod: "source-u", forward: (&cluster.Client{}).Forward("varve", "source-u", 1)}
	t.Cleanup(u.forward.Close)
	found := func() bool { return u.findSilence() != nil }
	if found() {
		t.Error("it is silent at once")
	}
	fake.Step(silentTime - time.Second)
	if found() {
		t.Error("it is silent too early")
	}
	fake.Step(time.Second)
	if !found() || found() {
		t.Error("it is not silent once after a minute")
	}
	u.pod = ""
	fake.Step(2 * silentTime)
	if found() {
		t.Error("it is silent although there is no pod")
	}
}

func TestFindOrCreate(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		edit  func(*longhornv1.BackingImage)
		given string
		words string // "": it waits for an upload
	}{
		"waits":         {func(*longhornv1.BackingImage) {}, "", ""},
		"has failed":    {func(b *longhornv1.BackingImage) { b.Status.V2FirstCopyStatus = longhornv1.StateFailed }, "", ""},
		"ready":         {func(b *longhornv1.BackingImage) { b.Status.ReadyCopies = 1 }, "", "is there already"},
		"was ready":     {func(b *longhornv1.BackingImage) { b.Status.V2FirstCopyStatus = "ready" }, "", "is there already"},
		"downloaded":    {func(b *longhornv1.BackingImage) { b.Spec.SourceType = "clone" }, "", "comes from image"},
		"being sealed":  {func(b *longhornv1.BackingImage) { b.Status.FirstCopyWrittenTime = ptr.To(metav1.Now()) }, "", "being sealed"},
		"sum":           {func(b *longhornv1.BackingImage) { b.Spec.Checksum = "ab" }, "checksum", "another checksum"},
		"sum not given": {func(b *longhornv1.BackingImage) { b.Spec.Checksum = "ab" }, "", ""},
		"copies":        {func(b *longhornv1.BackingImage) { b.Spec.MinNumberOfCopies = 2 }, "copies", "to have 2 copies"},
		"disks":         {func(b *longhornv1.BackingImage) { b.Spec.DiskSelector = []string{"ssd"} }, "disk-tags", `"ssd"`},
		"nodes":         {func(b *longhornv1.BackingImage) { b.Spec.NodeSelector = []string{"a"} }, "node-tags", `"a"`},
		"being deleted": {func(b *longhornv1.BackingImage) {
			b.DeletionTimestamp, b.Finalizers = ptr.To(metav1.Now()), []string{"x"}
		}, "", "is being deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			there := &longhornv1.BackingImage{
				ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: "golden", UID: "7"},
				Spec:       longhornv1.BackingImageSpec{SourceType: longhornv1.SourceUpload, MinNumberOfCopies: 1},
			}
			c.edit(there)
			kube := newClient(t, interceptor.Funcs{}, there)
			b, err := (&wishes{copies: 1}).newImage("golden", longhornv1.SourceUpload)
			if err != nil {
				t.Fatal(err)
			}
			b.Namespace = "varve"
			created, err := findOrCreate(t.Context(), kube, b, func(flag string) bool { return flag == c.given })
			if c.words == "" {
				if err != nil || created || b.UID != "7" {
					t.Errorf("created %t, UID %s: %v", created, b.UID, err)
				}
				return
			}
			if failure.Code(err) != errclass.ExitRefused || !strings.Contains(err.Error(), c.words) || failure.Hint(err) == "" {
				t.Errorf("error %v", err)
			}
		})
	}
	b, err := (&wishes{copies: 3}).newImage("golden", longhornv1.SourceUpload)
	if err != nil {
		t.Fatal(err)
	}
	b.Namespace = "varve"
	kube := newClient(t, interceptor.Funcs{})
	created, err := findOrCreate(t.Context(), kube, b, func(string) bool { return true })
	if err != nil || !created {
		t.Fatalf("created %t: %v", created, err)
	}
	got, err := getImage(t.Context(), kube, "golden")
	if err != nil || got.Spec.SourceType != longhornv1.SourceUpload || got.Spec.MinNumberOfCopies != 3 {
		t.Errorf("%+v, %v", got, err)
	}
}
