//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1alpha1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/gen"
	"github.com/varvebackup/varve/test/lab"
	"github.com/varvebackup/varve/test/verdict"
	"github.com/varvebackup/varve/test/wait"
)

// clientsToken is what the tests' clients send.
const clientsToken = "the token of the clients"

// pull returns a backup in pull mode whose scratch files go to a claim.
func (s *scene) pull(name, tracker, claim string) *backupv1alpha1.VirtualMachineBackup {
	b := s.Backup(name, tracker, claim)
	b.Spec.Mode, b.Spec.TokenSecretRef = backupv1alpha1.PullMode, ptr.To("clients")
	return b
}

// ready waits until the backup's endpoints answer.
func (s *scene) ready(name string) *backupv1alpha1.VirtualMachineBackup {
	s.t.Helper()
	return s.waitFor(name, "ready", func(st *backupv1alpha1.VirtualMachineBackupStatus) bool {
		return meta.IsStatusConditionTrue(st.Conditions, backupv1alpha1.ConditionReady) || st.Phase.Final()
	})
}

// puller reads the endpoints of a backup as a client in the cluster does.
type puller struct {
	*scene
	http   *http.Client
	backup *backupv1alpha1.VirtualMachineBackup
}

// puller returns a client that trusts the authorities in status, and finds the Service without the cluster's DNS, which the box
// does not have.
func (s *scene) puller(b *backupv1alpha1.VirtualMachineBackup) *puller {
	s.t.Helper()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(b.Status.Cert)) {
		s.t.Fatalf("backup %s has no certificates: %+v", b.Name, b.Status)
	}
	service := &corev1.Service{}
	s.must(s.Get(s.t.Context(), client.ObjectKey{Namespace: s.Namespace, Name: podspec.Service(b.Status.ExportName)}, service))
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, net.JoinHostPort(service.Spec.ClusterIP, "443"))
		},
	}
	s.t.Cleanup(transport.CloseIdleConnections)
	return &puller{scene: s, http: &http.Client{Transport: transport}, backup: b}
}

func (p *puller) get(url string, header map[string]string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set(podspec.TokenHeader, clientsToken)
	for k, v := range header {
		request.Header.Set(k, v)
	}
	return p.http.Do(request)
}

type region struct {
	Offset, Length int64
	Type           string
}

// regions reads the map of a volume, page after page.
func (p *puller) regions(v *backupv1alpha1.IncludedVolume) (all []region, size int64) {
	p.t.Helper()
	next := ptr.To[int64](0)
	for next != nil {
		response, err := p.get(fmt.Sprintf("%s?start=%d", v.MapEndpoint, *next), nil)
		p.must(err)
		var page struct {
			Regions    []region
			NextOffset *int64 `json:"next_offset"`
			Size       int64
		}
		err = json.NewDecoder(response.Body).Decode(&page)
		response.Body.Close()
		if err != nil || response.StatusCode != http.StatusOK {
			p.t.Fatalf("map of %s: %s, %v", v.Name, response.Status, err)
		}
		all, next, size = append(all, page.Regions...), page.NextOffset, page.Size
	}
	return all, size
}

// apply writes what the map names over a disk, which is what a client has of the backup before.
func (p *puller) apply(v *backupv1alpha1.IncludedVolume, disk []byte) []byte {
	p.t.Helper()
	all, size := p.regions(v)
	if int64(len(disk)) < size {
		disk = append(disk, make([]byte, size-int64(len(disk)))...)
	}
	for _, r := range all {
		part := disk[r.Offset : r.Offset+r.Length]
		if r.Type == "zero" {
			clear(part)
			continue
		}
		response, err := p.get(v.DataEndpoint, map[string]string{"Range": fmt.Sprintf("bytes=%d-%d", r.Offset, r.Offset+r.Length-1)})
		p.must(err)
		n, err := io.ReadFull(response.Body, part)
		response.Body.Close()
		if err != nil || response.StatusCode != http.StatusPartialContent {
			p.t.Fatalf("data of %s at %d: %s after %d bytes, %v", v.Name, r.Offset, response.Status, n, err)
		}
	}
	return disk
}

func sum(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}

// pointReady creates a backup of a frozen guest, and returns it with what the disks held, when it can be read.
func (s *scene) pointReady(b *backupv1alpha1.VirtualMachineBackup, want backupv1alpha1.BackupType) (*backupv1alpha1.VirtualMachineBackup, map[string]string) {
	s.t.Helper()
	ctx := s.t.Context()
	g, err := s.Guest(ctx, s.vm)
	s.must(err)
	// Nothing writes but what the test lets write.
	_, err = g.Run(ctx, "sync")
	s.must(err)
	s.must(g.Freeze(ctx))
	sums, err := g.DiskSums(ctx, s.instance())
	s.must(err)
	b.Spec.SkipQuiesce = true
	s.must(s.Create(ctx, b))
	s.waitFor(b.Name, "serving", func(st *backupv1alpha1.VirtualMachineBackupStatus) bool {
		return st.Phase == backupv1alpha1.BackupServing || st.Phase.Final()
	})
	s.must(g.Thaw(ctx))
	ready := s.ready(b.Name)
	if ready.Status.Phase != backupv1alpha1.BackupServing || ready.Status.Type != want {
		s.t.Fatalf("backup %s is %s and %s (%s), want %s", b.Name, ready.Status.Phase, ready.Status.Type, ready.Status.Message, want)
	}
	return ready, sums
}

// collected deletes a backup that was read, and waits until it is gone.
func (s *scene) collected(b *backupv1alpha1.VirtualMachineBackup) {
	s.t.Helper()
	s.delete(b)
	s.must(s.WaitGone(s.t.Context(), b, 3*time.Minute))
	c := s.checkpoint("daily")
	if c == nil || c.Name != b.Status.CheckpointName || c.BackupUID != b.UID || c.Target != nil {
		s.t.Errorf("after backup %s the tracker has %+v", b.Name, c)
	}
	s.nothingServed()
}

// nothingServed waits until no export, pod, Service or Secret of a backup is left. Pods take a while to end.
func (s *scene) nothingServed() {
	s.t.Helper()
	s.must(wait.For(s.t.Context(), time.Minute, "nothing of an export is left", func(ctx context.Context) (bool, string, error) {
		var exports exportv1.VirtualMachineExportList
		var pods corev1.PodList
		var services corev1.ServiceList
		var secrets corev1.SecretList
		err := errors.Join(
			s.List(ctx, &exports, client.InNamespace(s.Namespace)),
			s.List(ctx, &pods, client.InNamespace(s.Namespace), client.HasLabels{layout.LabelExport}),
			s.List(ctx, &services, client.InNamespace(s.Namespace)),
			s.List(ctx, &secrets, client.InNamespace(s.Namespace)),
		)
		left := fmt.Sprintf("%d exports, %d export pods, %d Services and %d Secrets", len(exports.Items), len(pods.Items), len(services.Items), len(secrets.Items))
		return len(exports.Items)+len(pods.Items)+len(services.Items) == 0 && len(secrets.Items) <= 1, left, err
	}))
}

// TestPull_fromFullToIncrementals pulls a machine that goes on writing, from another node than the guest's.
func TestPull_fromFullToIncrementals(t *testing.T) {
	s := newScene(t, "pull")
	ctx := t.Context()
	s.boot(lab.Disk{Name: "fs", Bytes: 96 * mib}, lab.Disk{Name: "blk", Bytes: 48 * mib, Block: true})
	s.target("scratch", 512*mib)
	s.tracker("daily")
	s.must(s.Create(ctx, &corev1.Secret{ObjectMeta: gen.Meta(s.Namespace, "clients"), Data: map[string][]byte{podspec.TokenKey: []byte(clientsToken)}}))
	const device = `b=/dev/$(grep -lx blk /sys/block/*/serial | cut -d/ -f4); `
	s.guest(device + `mkdir /disks/fs/x; for i in 1 2 3; do head -c 3000000 /dev/urandom >/disks/fs/x/$i; done; head -c 10000000 /dev/urandom | dd of=$b bs=1M conv=notrunc; sync`)
	s.keepExportsOff(s.instance().Status.NodeName)
	disks, files := map[string][]byte{}, t.TempDir()

	// Full: while it is pulled, the guest overwrites everything that it wrote.
	b1, sums := s.pointReady(s.pull("b1", "daily", "scratch"), full)
	s.guest(device + `for i in 1 2 3; do head -c 3000000 /dev/urandom >/disks/fs/x/$i; done; head -c 12000000 /dev/urandom | dd of=$b bs=1M conv=notrunc,fsync; sync`)
	s.pulls(b1, disks, sums)
	s.pullsFiles(b1, files, sums)
	var pod corev1.Pod
	s.must(s.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: podspec.Pod(b1.Status.ExportName)}, &pod))
	if pod.Spec.NodeName == "" || pod.Spec.NodeName == s.instance().Status.NodeName {
		t.Errorf("the export pod is on %q, as the guest is", pod.Spec.NodeName)
	}
	s.collected(b1)
	s.clean("scratch", b1.Status.CheckpointName)

	// Incremental: the difference and nothing else. Behind the backup's back its export and its pod go.
	b2, sums := s.pointReady(s.pull("b2", "daily", "scratch"), incremental)
	s.exportComesBack(b2)
	s.pulls(s.ready("b2"), disks, sums)
	s.pullsFiles(b2, files, sums)
	s.collected(b2)

	// A deletion before the backup was ready is no success, and the tracker stays.
	s.must(s.Create(ctx, s.pull("early", "daily", "scratch")))
	early := s.waitFor("early", "under way", func(st *backupv1alpha1.VirtualMachineBackupStatus) bool {
		return st.Phase == backupv1alpha1.BackupAttaching || st.Phase == backupv1alpha1.BackupStarting
	})
	s.must(s.Delete(ctx, early))
	s.must(s.WaitGone(ctx, early, 3*time.Minute))
	if c := s.checkpoint("daily"); c.Name != b2.Status.CheckpointName {
		t.Errorf("the tracker has %+v", c)
	}
	// Nor is one whose time is up.
	late := s.pull("late", "daily", "scratch")
	late.Spec.TTL = &metav1.Duration{Duration: 25 * time.Second}
	s.must(s.Create(ctx, late))
	s.failed("late", backupv1alpha1.ReasonTTLExpired)
	s.nothingServed()
	s.clean("scratch", b2.Status.CheckpointName)

	s.must(s.Restart(ctx, s.vm))
	_, err := s.WaitAgent(ctx, s.vm, bootTimeout)
	s.must(err)
	s.guest(device + `rm /disks/fs/x/2; head -c 700000 /dev/urandom >/disks/fs/x/4; dd if=/dev/zero of=$b bs=1M seek=3 count=2 conv=notrunc; sync`)
	b3, sums := s.pointReady(s.pull("b3", "daily", "scratch"), incremental)
	s.pulls(b3, disks, sums)
	s.pullsFiles(b3, files, sums, "--finish")
	s.collected(b3)
	s.clean("scratch", b3.Status.CheckpointName)
}

// pulls reads a backup over what was read before, and compares each disk with what it held at the point in time.
func (s *scene) pulls(b *backupv1alpha1.VirtualMachineBackup, disks map[string][]byte, sums map[string]string) {
	s.t.Helper()
	p := s.puller(b)
	if len(b.Status.IncludedVolumes) != len(s.disks) {
		s.t.Errorf("backup %s has %d volumes", b.Name, len(b.Status.IncludedVolumes))
	}
	for i := range b.Status.IncludedVolumes {
		v := &b.Status.IncludedVolumes[i]
		before := bytes.Clone(disks[v.Name])
		disks[v.Name] = p.apply(v, disks[v.Name])
		if got := sum(disks[v.Name]); got != sums[v.Name] {
			verdict.Errorf(s.t, "backup %s, volume %s (%s): pulled %s, the disk held %s", b.Name, v.Name, v.Type, got, sums[v.Name])
		}
		if v.Type == incremental && bytes.Equal(before, disks[v.Name]) && b.Name == "b3" {
			verdict.Errorf(s.t, "backup %s has no changes of volume %s", b.Name, v.Name)
		}
	}
	response, err := p.get(b.Status.IncludedVolumes[0].DataEndpoint, map[string]string{podspec.TokenHeader: "wrong"})
	s.must(err)
	response.Body.Close()
	if response.StatusCode != http.StatusUnauthorized {
		s.t.Errorf("a wrong token gets %s", response.Status)
	}
}

// pullsFiles fetches a backup with varve itself into a directory beside those before, and compares what qemu-img makes of the files.
func (s *scene) pullsFiles(b *backupv1alpha1.VirtualMachineBackup, files string, sums map[string]string, more ...string) {
	s.t.Helper()
	ctx, dir := s.t.Context(), filepath.Join(files, b.Name)
	args := append([]string{"backup", "pull", b.Name, "--kubeconfig", cluster.kubeconfig, "-n", s.Namespace, "--output", dir, "--progress", "none"}, more...)
	out, err := exec.CommandContext(ctx, varveProgram(), args...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("varve backup pull %s: %v: %s", b.Name, err, out)
	}
	s.t.Logf("%s", out)
	for volume, want := range sums {
		raw := filepath.Join(s.t.TempDir(), "raw")
		if out, err := exec.CommandContext(ctx, "qemu-img", "convert", "-O", "raw", filepath.Join(dir, volume+".qcow2"), raw).CombinedOutput(); err != nil {
			s.t.Fatalf("backup %s, volume %s: %v: %s", b.Name, volume, err, out)
		}
		content, err := os.ReadFile(raw)
		s.must(err)
		if got := sum(content); got != want {
			verdict.Errorf(s.t, "backup %s, volume %s: the file has %s, the disk held %s", b.Name, volume, got, want)
		}
	}
}

// exportComesBack deletes the export's pod and then the export: the backup is ready again within 30 seconds.
func (s *scene) exportComesBack(b *backupv1alpha1.VirtualMachineBackup) {
	s.t.Helper()
	ctx := s.t.Context()
	export := &exportv1.VirtualMachineExport{}
	s.must(s.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: b.Status.ExportName}, export))
	s.must(s.Delete(ctx, export))
	began := time.Now()
	s.must(wait.For(ctx, 2*time.Minute, "another export", func(ctx context.Context) (bool, string, error) {
		now := &exportv1.VirtualMachineExport{}
		err := client.IgnoreNotFound(s.Get(ctx, client.ObjectKeyFromObject(export), now))
		return now.UID != "" && now.UID != export.UID && now.Status.Phase == exportv1.ExportReady, fmt.Sprintf("%+v", now.Status), err
	}))
	s.t.Logf("the export was there again after %s", time.Since(began).Round(100*time.Millisecond))
}

// keepExportsOff keeps the export pods of the test off a node: a pod there wants none beside it.
func (s *scene) keepExportsOff(node string) {
	s.t.Helper()
	image, err := s.Image("varve")
	s.must(err)
	pod := &corev1.Pod{ObjectMeta: gen.Meta(s.Namespace, "keeps-exports-off")}
	pod.Spec.NodeName, pod.Spec.TerminationGracePeriodSeconds = node, ptr.To[int64](1)
	pod.Spec.Containers = []corev1.Container{{Name: "hold", Image: image, Command: []string{"/usr/bin/varve", "internal", "hold"}}}
	pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
		TopologyKey:   corev1.LabelHostname,
		LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: layout.LabelExport, Operator: metav1.LabelSelectorOpExists}}},
	}}}}
	s.must(s.Create(s.t.Context(), pod))
	s.must(wait.For(s.t.Context(), time.Minute, "the pod that keeps exports off", func(ctx context.Context) (bool, string, error) {
		err := s.Get(ctx, client.ObjectKeyFromObject(pod), pod)
		return pod.Status.Phase == corev1.PodRunning, string(pod.Status.Phase), err
	}))
}
