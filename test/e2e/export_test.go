//go:build e2e

package e2e

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/internal/export/proxy"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/gen"
	"github.com/varvebackup/varve/test/lab"
	"github.com/varvebackup/varve/test/verdict"
	"github.com/varvebackup/varve/test/wait"
)

// fetch reads a path of an export's Service through the API server.
func (s *scene) fetch(service, path, token string) []byte {
	s.t.Helper()
	data, err := s.fetchFrom(s.Namespace, service, path, token)
	s.must(err)
	return data
}

// fetchFrom reads a path of a Service on port 443 through the API server.
func (s *scene) fetchFrom(namespace, service, path, token string) ([]byte, error) {
	return s.Clientset.CoreV1().RESTClient().Get().
		AbsPath(fmt.Sprintf("/api/v1/namespaces/%s/services/https:%s:%d/proxy%s", namespace, service, podspec.ServicePort, path)).
		SetHeader(podspec.TokenHeader, token).DoRaw(s.t.Context())
}

// diskIsExported exports the machine, which is stopped, and compares what two formats have.
func (s *scene) diskIsExported() {
	ctx := s.t.Context()
	export := &exportv1.VirtualMachineExport{ObjectMeta: gen.Meta(s.Namespace, "machine")}
	export.Spec.Source = corev1.TypedLocalObjectReference{APIGroup: ptr.To("kubevirt.io"), Kind: "VirtualMachine", Name: s.vm}
	s.must(s.Create(ctx, export))
	s.must(wait.For(ctx, 2*time.Minute, "the export", func(ctx context.Context) (bool, string, error) {
		err := s.Get(ctx, client.ObjectKeyFromObject(export), export)
		return export.Status.Phase == exportv1.ExportReady, fmt.Sprintf("%+v", export.Status), err
	}))
	volumes := export.Status.Links.Internal.Volumes
	if len(volumes) != 1 || volumes[0].Name != lab.ClaimName(s.vm, "data") || len(volumes[0].Formats) != 2 {
		s.t.Fatalf("links %+v", export.Status.Links.Internal)
	}
	secret := &corev1.Secret{}
	s.must(s.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: *export.Status.TokenSecretRef}, secret))
	contents := map[exportv1.ExportVolumeFormat][]byte{}
	for _, format := range volumes[0].Formats {
		link, err := url.Parse(format.URL)
		s.must(err)
		contents[format.Format] = s.fetch(export.Status.ServiceName, link.Path, string(secret.Data[podspec.TokenKey]))
	}
	raw := contents[exportv1.FormatRaw]
	z, err := gzip.NewReader(bytes.NewReader(contents[exportv1.FormatGzip]))
	s.must(err)
	unzipped, err := io.ReadAll(z)
	s.must(err)
	if int64(len(raw)) != 64*mib/8*7/mib*mib || sha256.Sum256(raw) != sha256.Sum256(unzipped) {
		verdict.Errorf(s.t, "raw has %d bytes, gzip %d", len(raw), len(unzipped))
	}
	// The superblock of the file system that the guest had mounted (ext4, s_magic).
	if !bytes.Equal(raw[0x438:0x43a], []byte{0x53, 0xef}) {
		verdict.Errorf(s.t, "no file system in the export: % x", raw[0x400:0x440])
	}
	s.exportHasManifests(export, string(secret.Data[podspec.TokenKey]))
	s.virtctlDownloads(export.Name, raw)
	s.must(s.Delete(ctx, export))
	s.must(s.WaitGone(ctx, &corev1.Pod{ObjectMeta: gen.Meta(s.Namespace, podspec.Pod("machine"))}, 2*time.Minute))
}

// exportHasManifests reads the manifests of the export. The proxy finds an export by its name, and the box has no DNS, so all that is
// asked of it here is that it is deployed and admits nobody without a token; the control plane's tests read through it.
func (s *scene) exportHasManifests(export *exportv1.VirtualMachineExport, token string) {
	s.t.Helper()
	manifests := s.fetch(export.Status.ServiceName, podspec.AllManifestsPath(podspec.InternalLink), token)
	for _, want := range []string{`"VirtualMachine"`, `"DataVolume"`, podspec.ServiceHosts(s.Namespace, export.Name)[0]} {
		if !bytes.Contains(manifests, []byte(want)) {
			s.t.Errorf("no %s in %s", want, manifests)
		}
	}
	path := podspec.ProxyPath(s.Namespace, export.Name) + podspec.RawPath(lab.ClaimName(s.vm, "data"))
	if _, err := s.fetchFrom(layout.Namespace, proxy.Name, path, ""); !apierrors.IsUnauthorized(err) {
		s.t.Errorf("the proxy without a token: %v", err)
	}
}

// virtctlDownloads downloads the disk with upstream's virtctl, which forwards a port to the export pod.
func (s *scene) virtctlDownloads(export string, raw []byte) {
	s.t.Helper()
	file := filepath.Join(s.t.TempDir(), "disk.img")
	c := exec.CommandContext(s.t.Context(), filepath.Join(cluster.build, "virtctl", "bin", "virtctl"),
		"vmexport", "download", export, "--namespace="+s.Namespace, "--port-forward", "--format=raw", "--output="+file)
	c.Env = append(os.Environ(), "KUBECONFIG="+cluster.kubeconfig)
	out, err := c.CombinedOutput()
	if err != nil {
		s.t.Fatalf("virtctl (make virtctl builds it): %v\n%s", err, out)
	}
	got, err := os.ReadFile(file)
	s.must(err)
	if sha256.Sum256(got) != sha256.Sum256(raw) {
		verdict.Errorf(s.t, "virtctl has %d bytes, want %d\n%s", len(got), len(raw), out)
	}
}
