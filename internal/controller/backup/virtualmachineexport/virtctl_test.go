//go:build controlplane

package virtualmachineexport

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	"github.com/varvebackup/varve/internal/export/exporter"
	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/internal/export/proxy"
	"github.com/varvebackup/varve/test/checkout"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
	"github.com/varvebackup/varve/test/verdict"
)

// TestVirtctl_vmexport runs upstream's virtctl as it is: exports of the controller, served by the program of export pods
// on this machine, behind the export proxy. Only the kubelet, DNS and the garbage collector are played.
func TestVirtctl_vmexport(t *testing.T) {
	t.Parallel()
	program := virtctlProgram(t)
	if err := cluster.InstallRoles(t.Context()); err != nil {
		t.Fatal(err)
	}
	outside := listen(t)
	v := &virtctl{program: program, world: newWorldBehind(t, outside.Addr().String()), addresses: map[string]string{}}
	v.kubeconfig = cluster.Kubeconfig(v, controlplane.Plain, v.ns)
	v.runProxy(outside)
	v.disk = make([]byte, 3<<20+512)
	random := rand.NewChaCha8([32]byte{})
	_, _ = random.Read(v.disk[1<<20 : 2<<20]) // it has no errors
	v.boundClaim("root")
	v.create(machine(v.ns, "root"))

	v.exportsAMachine()
	v.exportsAClaimInPassing()
}

func virtctlProgram(t *testing.T) string {
	t.Helper()
	root, err := checkout.Root()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(root, "build", "virtctl", "bin", "virtctl")
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("%v: run make virtctl", err)
	}
	return program
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// virtctl is a user with virtctl, and what a cluster has around the controller.
type virtctl struct {
	*world
	program, kubeconfig string
	disk                []byte

	mu        sync.Mutex
	addresses map[string]string // of exports, by the host and port of their Service
}

// secretFiles writes the keys of a Secret to files, as the kubelet does.
func (v *virtctl) secretFiles(name string) string {
	v.Helper()
	s := wait(v.world, &corev1.Secret{ObjectMeta: gen.Meta(v.ns, name)}, exists)
	dir := v.TempDir()
	for key, value := range s.Data {
		if err := os.WriteFile(filepath.Join(dir, key), value, 0o600); err != nil {
			v.Fatal(err)
		}
	}
	return dir
}

// runProxy runs the export proxy with what its Deployment mounts.
func (v *virtctl) runProxy(l net.Listener) {
	v.Helper()
	certificate, authorities := v.secretFiles(proxy.CertificateSecret), v.secretFiles(AuthoritySecret)
	p := proxy.New(proxy.Options{
		Files: proxy.Files{Certificate: certificate + "/tls.crt", Key: certificate + "/tls.key", Authorities: authorities + "/ca.crt"},
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			v.mu.Lock()
			defer v.mu.Unlock()
			real, ok := v.addresses[address]
			if !ok {
				return nil, &net.DNSError{Err: "no such host", Name: address, IsNotFound: true}
			}
			return (&net.Dialer{}).DialContext(ctx, network, real)
		},
		Log: slog.New(slog.DiscardHandler),
	})
	v.background(func(ctx context.Context) error { return p.Serve(ctx, l) })
}

// background runs something until the test ends.
func (v *virtctl) background(run func(context.Context) error) {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	v.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			v.Error(err)
		}
	})
}

// runPod plays the kubelet for the pod of an export: it runs the pod's program with what the pod mounts, and disk as the
// content of each claim.
func (v *virtctl) runPod(export string) {
	v.Helper()
	pod := wait(v.world, &corev1.Pod{ObjectMeta: gen.Meta(v.ns, podspec.Pod(export))}, exists)
	config, err := podspec.Decode(configIn(pod))
	if err != nil {
		v.Fatal(err)
	}
	for i := range config.Volumes {
		config.Volumes[i].Path = filepath.Join(v.TempDir(), "disk.img")
		if err := os.WriteFile(config.Volumes[i].Path, v.disk, 0o600); err != nil {
			v.Fatal(err)
		}
	}
	mounts := map[string]string{} // directory by the pod's path
	for _, volume := range pod.Spec.Volumes {
		i := slices.IndexFunc(pod.Spec.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == volume.Name })
		if volume.Secret != nil {
			mounts[pod.Spec.Containers[0].VolumeMounts[i].MountPath] = v.secretFiles(volume.Secret.SecretName)
		}
	}
	l := listen(v.T)
	v.mu.Lock()
	v.addresses[podspec.ServiceHosts(v.ns, export)[0]+":443"] = l.Addr().String()
	v.mu.Unlock()
	v.background(func(ctx context.Context) error {
		return exporter.Run(ctx, exporter.Options{Config: config, Log: slog.New(slog.DiscardHandler), Listen: func(int) (net.Listener, error) { return l, nil }, Files: exporter.Files{
			Certificate: mounts[podspec.CertificateDirectory] + "/tls.crt", Key: mounts[podspec.CertificateDirectory] + "/tls.key",
			Token: mounts[podspec.TokenDirectory] + "/" + podspec.TokenKey, Manifests: mounts[podspec.ManifestsDirectory],
		}})
	})
	v.serves(pod)
}

// begin starts virtctl. finish waits for it and returns its standard output.
func (v *virtctl) begin(args ...string) (finish func() []byte) {
	v.Helper()
	ctx, cancel := context.WithTimeout(v.Context(), time.Minute)
	c := exec.CommandContext(ctx, v.program, append([]string{"vmexport"}, args...)...)
	c.Env = []string{"KUBECONFIG=" + v.kubeconfig, "HOME=" + v.TempDir(), "PATH=" + os.Getenv("PATH")}
	var out, problems bytes.Buffer
	c.Stdout, c.Stderr = &out, &problems
	if err := c.Start(); err != nil {
		v.Fatal(err)
	}
	return func() []byte {
		v.Helper()
		defer cancel()
		if err := c.Wait(); err != nil {
			v.Fatalf("virtctl vmexport %s: %v\n%s%s", strings.Join(args, " "), err, out.Bytes(), problems.Bytes())
		}
		return out.Bytes()
	}
}

func (v *virtctl) run(args ...string) []byte {
	v.Helper()
	return v.begin(args...)()
}

// download returns what virtctl writes to a file.
func (v *virtctl) download(args ...string) []byte {
	v.Helper()
	return v.beginDownload(args...)()
}

func (v *virtctl) beginDownload(args ...string) (finish func() []byte) {
	v.Helper()
	file := filepath.Join(v.TempDir(), "output")
	ended := v.begin(append(append([]string{"download"}, args...), "--output="+file)...)
	return func() []byte {
		v.Helper()
		ended()
		content, err := os.ReadFile(file)
		if err != nil {
			v.Fatal(err)
		}
		return content
	}
}

// isDisk fails the test unless a file is the exported disk.
func (v *virtctl) isDisk(what string, content []byte) {
	v.Helper()
	if !bytes.Equal(content, v.disk) {
		verdict.Errorf(v, "%s: %d bytes are not the disk's %d", what, len(content), len(v.disk))
	}
}

func (v *virtctl) unzip(content []byte) []byte {
	v.Helper()
	z, err := gzip.NewReader(bytes.NewReader(content))
	if err != nil {
		v.Fatal(err)
	}
	all, err := io.ReadAll(z)
	if err != nil {
		v.Fatal(err)
	}
	return all
}

func (v *virtctl) isThere(export string) bool {
	v.Helper()
	err := v.admin.Get(v.Context(), client.ObjectKey{Namespace: v.ns, Name: export}, &exportv1.VirtualMachineExport{})
	if client.IgnoreNotFound(err) != nil {
		v.Fatal(err)
	}
	return !apierrors.IsNotFound(err)
}

// exportsAMachine: create, download in both formats, manifests, delete.
func (v *virtctl) exportsAMachine() {
	v.Helper()
	v.run("create", "e", "--vm=vm", "--ttl=1h")
	v.runPod("e")
	e := v.reaches(exportv1.ExportReady, exportv1.ReasonPodReady, "")
	if e.Spec.TTLDuration.Duration != time.Hour || *e.Status.TokenSecretRef != "secret-e" {
		v.Errorf("%+v", e)
	}
	v.isDisk("gzip", v.unzip(v.download("e")))
	v.isDisk("raw", v.download("e", "--volume=root", "--format=raw"))
	// With the address of the Service, as for a NodePort. Its certificate names the Service, so virtctl must not look.
	v.isDisk("service URL", v.download("e", "--format=raw", "--insecure", "--service-url="+v.addresses[podspec.ServiceHosts(v.ns, "e")[0]+":443"]))
	v.manifestsBringItUp(v.run("download", "e", "--manifest", "--include-secret"))
	var list struct{ Items []json.RawMessage }
	if text := v.run("download", "e", "--manifest", "--manifest-output-format=json"); json.Unmarshal(text, &list) != nil || len(list.Items) != 3 {
		v.Errorf("JSON: %s", text)
	}
	if !v.isThere("e") {
		v.Error("a download has deleted an export that it has not created")
	}
	v.run("delete", "e")
	if v.isThere("e") {
		v.Error("the export is there")
	}
}

// exportsAClaimInPassing: a download creates its export, and deletes it unless it is to stay.
func (v *virtctl) exportsAClaimInPassing() {
	v.Helper()
	for export, keep := range map[string]bool{"kept": true, "passing": false} {
		args := []string{export, "--pvc=root", "--format=raw"}
		if keep {
			args = append(args, "--keep-vme")
		}
		finish := v.beginDownload(args...)
		v.runPod(export)
		v.isDisk(export, finish())
		if v.isThere(export) != keep {
			v.Errorf("%s: the export is there: %t", export, !keep)
		}
	}
}

// manifestsBringItUp does what CDI does with the manifests: it fetches the disk from where the DataVolume says, trusts
// the ConfigMap that it names and sends the headers of its Secrets.
func (v *virtctl) manifestsBringItUp(text []byte) {
	v.Helper()
	var authorities corev1.ConfigMap
	var disk cdiv1.DataVolume
	var header corev1.Secret
	var kinds []string
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var kind struct{ Kind string }
		if err := yaml.Unmarshal([]byte(document), &kind); err != nil {
			v.Fatalf("%v: %s", err, document)
		}
		if kind.Kind == "" {
			continue
		}
		kinds = append(kinds, kind.Kind)
		if into := map[string]any{"ConfigMap": &authorities, "DataVolume": &disk, "Secret": &header}[kind.Kind]; into != nil {
			if err := yaml.UnmarshalStrict([]byte(document), into); err != nil {
				v.Errorf("%s: %v", kind.Kind, err)
			}
		}
	}
	if want := []string{"ConfigMap", "VirtualMachine", "DataVolume", "Secret"}; !slices.Equal(kinds, want) {
		v.Fatalf("%v in %s", kinds, text)
	}
	source := disk.Spec.Source.HTTP
	if source.CertConfigMap != authorities.Name || !slices.Equal(source.SecretExtraHeaders, []string{header.Name}) {
		v.Errorf("%+v names neither %s nor %s", source, authorities.Name, header.Name)
	}
	roots := x509.NewCertPool()
	for _, certificate := range authorities.Data {
		roots.AppendCertsFromPEM([]byte(certificate))
	}
	r, err := http.NewRequestWithContext(v.Context(), http.MethodGet, source.URL, http.NoBody)
	if err != nil {
		v.Fatal(err)
	}
	for _, line := range header.StringData {
		name, value, _ := strings.Cut(line, ":")
		r.Header.Set(name, value)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(r)
	if err != nil {
		v.Fatal(err)
	}
	content, err := io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil || response.StatusCode != http.StatusOK {
		v.Fatal(fmt.Errorf("%s: %w", response.Status, err))
	}
	v.isDisk("what the DataVolume fetches", v.unzip(content))
}
