package image

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/progress"
	"github.com/varvebackup/varve/internal/cli/resource"
	"github.com/varvebackup/varve/internal/cli/session"
	"github.com/varvebackup/varve/internal/errclass"
)

const (
	diskA = "aaaaaaaa-0000-0000-0000-000000000000"
	diskB = "bbbbbbbb-0000-0000-0000-000000000000"
	diskC = "cccccccc-0000-0000-0000-000000000000"

	snapshotID = "varve1.disk.0123456789abcdef0123456789abcdef.app"
	filesID    = "varve1.files.0123456789abcdef0123456789abcdef.app"
)

func newSession() *resource.Session {
	return resource.NewSessionIn(&session.Session{Streams: session.Streams{Err: io.Discard}, Now: time.Now}, "varve")
}

// newImage returns an image that is ready on disk A, in progress on disk B, and going from disk C.
func newImage() *longhornv1.BackingImage {
	b := &longhornv1.BackingImage{
		ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: "debian", UID: "u"},
		Spec: longhornv1.BackingImageSpec{
			SourceType: longhornv1.SourceDownload,
			SourceParameters: map[string]longhornv1.ParameterValue{
				longhornv1.ParameterURL: "https://user:secret@example.com/debian.img?token=secret",
			},
			MinNumberOfCopies: 2,
			DiskFileSpecMap:   map[string]*longhornv1.BackingImageDiskFileSpec{diskA: nil, diskB: {EvictionRequested: true}},
		},
	}
	b.Status = longhornv1.BackingImageStatus{
		Size: 3 << 30, ReadyCopies: 1, V2FirstCopyDisk: diskA, V2FirstCopyStatus: longhornv1.StateReady,
		DiskFileStatusMap: map[string]*longhornv1.BackingImageDiskFileStatus{
			diskA: {State: longhornv1.StateReady},
			diskB: {State: longhornv1.StateInProgress, Progress: 40, Message: "from n1"},
			diskC: {State: longhornv1.StateUnknown, Message: "the store of n2 does not report"},
		},
		Conditions: []metav1.Condition{{Type: longhornv1.ConditionReady, Status: metav1.ConditionTrue}},
	}
	return b
}

func newNode(name, diskName, uuid string) *longhornv1.Node {
	return &longhornv1.Node{
		ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: name},
		Status: longhornv1.NodeStatus{
			DiskStatus: map[string]*longhornv1.DiskStatus{diskName: {DiskUUID: uuid}, "new": nil},
		},
	}
}

func threeNodes() []client.Object {
	return []client.Object{newNode("n1", "a", diskA), newNode("n2", "b", diskB), newNode("n3", "c", diskC)}
}

func newClient(t *testing.T, calls interceptor.Funcs, objects ...client.Object) *cluster.Client {
	t.Helper()
	scheme, err := cluster.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(calls)
	return &cluster.Client{Namespace: "varve", WithWatch: builder.Build()}
}

func TestRequest_newObject(t *testing.T) {
	t.Parallel()
	const address, md5 = "https://example.com/disk", "d41d8cd98f00b204e9800998ecf8427e"
	const sum = "7d793037a0760186574b0282f2f435e7a2c5b0e0d9d3cf7e8d1b5a1e1b1f1d5b"
	for name, c := range map[string]struct {
		request request
		says    string // "": it can be used
	}{
		"plain":            {request{wishes: wishes{copies: 1}, url: address}, ""},
		"checksum":         {request{wishes: wishes{copies: 100, checksum: "sha256:" + strings.ToUpper(sum)}, url: address}, ""},
		"SHA-512":          {request{wishes: wishes{copies: 1, checksum: sum + sum}, url: address}, ""},
		"no address":       {request{wishes: wishes{copies: 1}}, "exactly one of --url"},
		"another scheme":   {request{wishes: wishes{copies: 1}, url: "ftp://example.com/disk"}, "--url: give"},
		"two sources":      {request{wishes: wishes{copies: 1}, url: address, fromImage: "base"}, "exactly one of"},
		"a clone":          {request{wishes: wishes{copies: 1, checksum: sum}, fromImage: "base"}, ""},
		"of itself":        {request{wishes: wishes{copies: 1}, fromImage: "debian"}, "cannot be a clone of itself"},
		"a volume":         {request{wishes: wishes{copies: 1}, fromVolume: "pvc-1"}, ""},
		"a claim":          {request{wishes: wishes{copies: 1}, fromClaim: "app/root"}, ""},
		"half a claim":     {request{wishes: wishes{copies: 1}, fromClaim: "root"}, "--from-claim root: give NAMESPACE/NAME"},
		"a long claim":     {request{wishes: wishes{copies: 1}, fromClaim: "a/b/c"}, "NAMESPACE/NAME"},
		"certificates":     {request{wishes: wishes{copies: 1}, fromImage: "base", caFile: "/none"}, "--ca-file is for --url alone"},
		"no host":          {request{wishes: wishes{copies: 1}, url: "https:///secret"}, "--url: give"},
		"a backup":         {request{wishes: wishes{copies: 1}, fromBackup: "app/monday", volume: "root"}, ""},
		"half a backup":    {request{wishes: wishes{copies: 1}, fromBackup: "monday"}, "--from-backup monday: give NAMESPACE/NAME"},
		"a volume alone":   {request{wishes: wishes{copies: 1}, fromImage: "base", volume: "root"}, "--volume is for --from-backup alone"},
		"a snapshot ID":    {request{wishes: wishes{copies: 1}, fromSnapshot: snapshotID, location: "s3"}, ""},
		"no location":      {request{wishes: wishes{copies: 1}, fromSnapshot: snapshotID}, "need each other"},
		"a location alone": {request{wishes: wishes{copies: 1}, fromBackup: "app/monday", location: "s3"}, "need each other"},
		"files":            {request{wishes: wishes{copies: 1}, fromSnapshot: filesID, location: "s3"}, "it is of files"},
		"no snapshot ID":   {request{wishes: wishes{copies: 1}, fromSnapshot: "kopia", location: "s3"}, "--from-snapshot-id: snapshotID"},
		"no copies":        {request{url: "https://example.com/disk"}, "--copies 0"},
		"too many copies":  {request{wishes: wishes{copies: 101}, url: "https://example.com/disk"}, "--copies 101"},
		"another checksum": {request{wishes: wishes{copies: 1, checksum: md5}, url: address}, "--checksum"},
	} {
		b, err := c.request.newObject("debian")
		if c.says != "" {
			if failure.Code(err) != errclass.ExitUsage || !strings.Contains(err.Error(), c.says) ||
				strings.Contains(err.Error(), "secret") {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if b.Spec.Checksum != "" && !strings.HasPrefix(b.Spec.Checksum, sum) ||
			b.Spec.MinNumberOfCopies != c.request.copies ||
			string(b.Spec.SourceParameters["url"]) != c.request.url ||
			string(b.Spec.SourceParameters["backing-image"]) != c.request.fromImage ||
			string(b.Spec.SourceParameters["volume-name"]) != c.request.fromVolume ||
			string(b.Spec.SourceParameters["snapshot-id"]) != c.request.fromSnapshot ||
			string(b.Spec.SourceParameters["backup-storage-location"]) != c.request.location {
			t.Errorf("%s: %+v", name, b.Spec)
		}
	}
}

func TestRequest_findVolume(t *testing.T) {
	t.Parallel()
	claim := func(name, volume string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: name},
			Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: volume},
		}
	}
	volume := func(name, driver string) *corev1.PersistentVolume {
		v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if driver != "" {
			v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "handle-of-" + name}
		}
		return v
	}
	client := newClient(t, interceptor.Funcs{},
		claim("root", "pv-1"), claim("unbound", ""), claim("other", "pv-2"), claim("local", "pv-3"), claim("lost", "pv-4"),
		volume("pv-1", "store.varvebackup.io"), volume("pv-2", "ebs.csi.aws.com"), volume("pv-3", ""))
	for name, want := range map[string]string{
		"root": "", "none": "get claim app/none", "unbound": "has no volume yet", "other": "is not of the driver",
		"local": "is not of the driver", "lost": "get PersistentVolume pv-4",
	} {
		r := request{wishes: wishes{copies: 1}, fromClaim: "app/" + name}
		b, err := r.newObject("golden")
		if err != nil {
			t.Fatal(err)
		}
		err = r.findVolume(t.Context(), client, b)
		got := b.Spec.SourceParameters[longhornv1.ParameterVolumeName]
		switch {
		case want == "" && (err != nil || got != "handle-of-pv-1" || b.Spec.SourceType != longhornv1.SourceExport):
			t.Errorf("%s: %+v, %v", name, b.Spec, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want) || got != ""):
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func TestRequest_readsCertificates(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(nil)
	server.Close()
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for name, c := range map[string]struct {
		content []byte
		says    string
	}{
		"a certificate": {certificate, ""},
		"no PEM":        {[]byte("certificate"), "no certificate in PEM format"},
		"too many":      {bytes.Repeat(certificate, 20), "more than 16384 bytes"},
		"absent":        {nil, "no such file"},
	} {
		path := filepath.Join(t.TempDir(), "ca.pem")
		if c.content != nil {
			if err := os.WriteFile(path, c.content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		r := request{wishes: wishes{copies: 1}, url: "https://example.com/disk", caFile: path}
		b, err := r.newObject("debian")
		switch {
		case c.says != "" && (failure.Code(err) != errclass.ExitUsage || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%s: %v", name, err)
		case c.says == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.says == "" && string(b.Spec.SourceParameters["ca-certificate"]) != string(c.content):
			t.Errorf("%s: %v", name, b.Spec.SourceParameters)
		}
	}
}

func TestWriteImage_hidesSecrets(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := &output.Page{Out: &out, Now: time.Unix(0, 0)}
	disks := map[string]disk{diskA: {diskA, "n1", "default-disk"}, diskB: {diskB, "n2", "fast"}}
	writeImage(p, newImage())
	writeCopies(p, listCopies(newImage(), disks))
	for _, want := range []string{
		"https://example.com/debian.img (without its password or query)", "3 GiB", "1 ready, 2 wanted",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "secret") {
		t.Errorf("it shows a secret:\n%s", out.String())
	}
	var rows [][]string
	for _, line := range strings.Split(out.String(), "\n") {
		if fields := strings.Fields(line); len(fields) > 2 && strings.Contains(line, "-0000-") {
			rows = append(rows, fields)
		}
	}
	want := [][]string{
		strings.Fields("- - " + diskC + " going 0% the store of n2 does not report"),
		strings.Fields("n1 default-disk " + diskA + " ready 100% -"),
		strings.Fields("n2 fast " + diskB + " in-progress, evicted 40% from n1"),
	}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Error(diff)
	}
}

// A disk of an image changes alone, whatever else has changed since it was read.
func TestDiskCommands_change(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		command *diskCommand
		disk    string
		want    map[string]*longhornv1.BackingImageDiskFileSpec
		says    string
	}{
		"evict": {evicting, diskA, map[string]*longhornv1.BackingImageDiskFileSpec{
			diskA: {EvictionRequested: true}, diskB: {EvictionRequested: true},
		}, ""},
		"evict from another": {evicting, diskC, nil, "has no copy"},
		"sync": {syncing, diskC, map[string]*longhornv1.BackingImageDiskFileSpec{
			diskA: nil, diskB: {EvictionRequested: true}, diskC: {DataEngine: "v2", Keep: true},
		}, ""},
		"sync cancels an eviction": {syncing, diskB, map[string]*longhornv1.BackingImageDiskFileSpec{
			diskA: nil, diskB: {DataEngine: "v2", Keep: true},
		}, ""},
		"sync to nowhere": {syncing, "dddddddd", nil, "no node has a disk"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := newClient(t, interceptor.Funcs{}, threeNodes()...)
			b := newImage()
			err := c.command.apply(t.Context(), newSession(), cluster, b, c.disk)
			if c.says != "" {
				if failure.Code(err) != errclass.ExitNotFound || !strings.Contains(err.Error(), c.says) || failure.Hint(err) == "" {
					t.Errorf("error %v, hint %q", err, failure.Hint(err))
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, b.Spec.DiskFileSpecMap); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDiskCommands_complete(t *testing.T) {
	t.Parallel()
	c := newClient(t, interceptor.Funcs{}, append(threeNodes(), newImage())...)
	for name, want := range map[string][]string{"sync ": {diskC + "\tn3/c"}, "evict ": {diskA + "\tn1/a"}, "sync b": nil} {
		verb, typed, _ := strings.Cut(name, " ")
		command := map[string]*diskCommand{"sync": syncing, "evict": evicting}[verb]
		if diff := cmp.Diff(want, command.offer(t.Context(), c, "debian", typed)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if got := syncing.offer(t.Context(), c, "absent", ""); got != nil {
		t.Errorf("offers %v for an image that does not exist", got)
	}
}

// step changes an image as the controller does.
type step = func(*longhornv1.BackingImage)

// follow runs a wait on an image, which the steps change one after the other.
func follow(
	t *testing.T, until func(*cluster.Client, *longhornv1.BackingImage) resource.WaitFunc, steps ...step,
) ([]string, error) {
	t.Helper()
	b := newImage()
	states := []*longhornv1.BackingImage{b}
	for _, step := range steps {
		next := states[len(states)-1].DeepCopy()
		step(next)
		states = append(states, next)
	}
	calls := interceptor.Funcs{
		Watch: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) (watch.Interface, error) {
			w := watch.NewFakeWithChanSize(len(states), false)
			for _, state := range states[1:] {
				if state.Name == "" {
					w.Delete(b)
					continue
				}
				w.Modify(state)
			}
			return w, nil
		},
	}
	c := newClient(t, calls, b, newNode("n1", "a", diskA), newNode("n2", "b", diskB))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var shown []string
	err := until(c, b)(ctx, func(r progress.Report) { shown = append(shown, r.String()) })
	return shown, err
}

func TestUntil(t *testing.T) {
	t.Parallel()
	s := newSession()
	ready := func(c *cluster.Client, b *longhornv1.BackingImage) resource.WaitFunc { return untilReady(s, c, b, 2) }
	onDisk := func(c *cluster.Client, b *longhornv1.BackingImage) resource.WaitFunc {
		return untilOnDisk(s, c, b, diskB)
	}
	evicted := func(c *cluster.Client, b *longhornv1.BackingImage) resource.WaitFunc {
		return untilEvicted(s, c, b, diskB)
	}
	second := func(b *longhornv1.BackingImage) {
		b.Status.ReadyCopies, b.Status.DiskFileStatusMap[diskB].State = 2, longhornv1.StateReady
	}
	fails := func(retry bool) func(*longhornv1.BackingImage) {
		return func(b *longhornv1.BackingImage) {
			b.Status.V2FirstCopyStatus, b.Status.FirstCopyAttempts = longhornv1.StateFailed, 3
			b.Status.FirstCopyMessage = "the address gave a web page"
			if retry {
				b.Status.FirstCopyRetryTime = &metav1.Time{Time: time.Unix(1_800_000_000, 0)}
			}
		}
	}
	unwanted := func(b *longhornv1.BackingImage) { delete(b.Spec.DiskFileSpecMap, diskB) }
	gone := func(b *longhornv1.BackingImage) { delete(b.Status.DiskFileStatusMap, diskB) }
	deleted := func(b *longhornv1.BackingImage) { b.Name = "" }
	kept := func(b *longhornv1.BackingImage) { b.Spec.DiskFileSpecMap[diskB] = nil }
	for name, c := range map[string]struct {
		until func(*cluster.Client, *longhornv1.BackingImage) resource.WaitFunc
		steps []step
		says  string // the error; "": success
		shown string // by some line
	}{
		"ready":               {ready, []step{second}, "", "debian on n2/b: InProgress 40% from n1"},
		"fails for good":      {ready, []step{fails(false)}, "failed: the address gave a web page", ""},
		"is tried again":      {ready, []step{fails(true), second}, "", "attempt 3; the next is at"},
		"deleted":             {ready, []step{deleted}, "image debian was deleted", ""},
		"on a disk":           {onDisk, []step{second}, "", "n2/b: Ready"},
		"not wanted any more": {onDisk, []step{unwanted}, "is not wanted any more", ""},
		"evicted":             {evicted, []step{unwanted, gone}, "", "debian on disk " + diskC},
		"eviction canceled":   {evicted, []step{kept}, "was canceled", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			shown, err := follow(t, c.until, c.steps...)
			if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("error %v, want %q", err, c.says)
			}
			if errors.Is(err, context.DeadlineExceeded) {
				t.Error("it went on waiting")
			}
			if !strings.Contains(strings.Join(shown, "\n"), c.shown) {
				t.Errorf("no line has %q: %q", c.shown, shown)
			}
		})
	}
}
